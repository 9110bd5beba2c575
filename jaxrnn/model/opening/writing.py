"""The file with opened axes: nodes that compute what follows from the length, and the comparison with the original."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx

from jaxrnn._files.messages import first_line
from jaxrnn._jax.context import exact_types
from jaxrnn.comparison import compare
from jaxrnn.errors import InputError, JaxrnnError, ModelError, UnsupportedError
from jaxrnn.model.opening.formulas import Openings, SizeFormulas, value_in, walked
from jaxrnn.model.opening.places import BandFormula
from jaxrnn.model.opening.search import Opening, Trial, Written
from jaxrnn.onnx import ir
from jaxrnn.onnx.binding import BoundGraph, bind
from jaxrnn.onnx.evaluate import Scope, evaluate
from jaxrnn.onnx.graph import graphs_of, is_batch_name, read_graph, spec_of
from jaxrnn.onnx.limits import Limits
from jaxrnn.onnx.operators import OwnOperators
from jaxrnn.onnx.reading import SourceFile, check_proto
from jaxrnn.onnx.values import traced
from jaxrnn.streaming.dimensions import expression
from jaxrnn.streaming.dimensions import is_symbolic as is_formula

#: The first opset with all operators that formulas need, such as Max of integers.
_OPSET = 13
#: The sizes of the batch in the comparison of rows, and of dimensions that were open before.
_ROWS, _OTHER = 3, 2


def open_axes(
    file: SourceFile,
    graph: ir.Model,
    opened: Openings,
    *,
    static: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    operators: OwnOperators | None = None,
) -> tuple[SourceFile, ir.Model, tuple[str, ...]]:
    """Return a file with open axes in place of fixed axes, the graph of this file, and what was done and compared.

    Args:
        file: the file as it was read.
        graph: the graph of the file, which is changed.
        opened: names of axes of inputs, ``{"x": {0: "time"}}``; and for constants, by the element or axis, a number
            that stays, or the name of a dimension that the number follows from.
        static: values of inputs as in `jaxrnn.load`.
        limits: as in `jaxrnn.load`.
        operators: as in `jaxrnn.load`.

    Raises:
        InputError: an axis does not exist, or is open.
        ModelError: the graph does not fit other lengths, a constant may or may not follow from the length, or the
            numbers differ from those of the file.
    """
    check_axes(graph, opened)
    opening = Opening(bind(graph, limits, operators), opened, static=static, producer=str(graph.producer_name or ""))
    trial = opening.solved()
    original = _Running(opening.program, opening)
    count = _PlaceWriter(graph, opening, trial).written()
    proto = ir.serde.serialize_model(graph)
    check_proto(proto, file.folder)
    data = proto.SerializeToString()
    changed = read_graph(proto, limits)
    if file.folder is not None:
        ir.external_data.set_base_dir(changed.graph, file.folder)
    running = _Running(bind(changed, limits, operators), opening)
    said = [
        f"axis {axis} of {name!r} is {given}, and has {spec.shape[axis]} in the file"
        for name, axes in opening.opened.items()
        for spec in [next(each for each in original.specs if each.name == name)]
        for axis, given in axes.items()
        if spec.shape is not None
    ]
    said.append(f"{count} operand(s) of nodes are computed from the length" if count else "no constant has the length")
    said += [
        f"the mask {place.name!r} is by the column minus the row: {place.band}"
        for written in trial.written.values()
        for place, _ in written.readings
        if place.band is not None
    ]
    whole = proto
    if file.folder is not None:
        whole = onnx.ModelProto.FromString(data)
        onnx.load_external_data_for_model(whole, str(file.folder))
    said += _compared(original, running, opening, trial, whole)
    return SourceFile(proto, data, file.folder), changed, tuple(said)


def check_axes(graph: ir.Model, opened: Openings) -> None:
    """Refuse axes that do not exist, and axes that are open."""
    specs = {spec.name: spec for spec in map(spec_of, graph.graph.inputs)}
    for name in opened.keys() & specs.keys():
        shape = specs[name].shape
        for axis, given in opened[name].items():
            line = f"`dims={ {name: {axis: given}} }`"
            if shape is None or not isinstance(axis, int) or not 0 <= axis < len(shape):
                raise InputError(f"{line}: the input is {specs[name]}, which has no axis {axis}")
            if not isinstance(given, str) or not given.strip():
                raise InputError(f"{line}: expected the name of the axis, such as 'time'")
            if isinstance(shape[axis], str):
                renamed = f"`dims={ {shape[axis]: given} }`"
                raise InputError(f"{line}: the axis is open, with the name {shape[axis]!r}; {renamed} renames it")
    if not opened.keys() & specs.keys():
        raise InputError(f"`dims={dict(opened)}`: the inputs are {', '.join(map(str, specs.values()))}")


class _PlaceWriter:
    """Writes the decided places of a graph as nodes, in place."""

    def __init__(self, graph: ir.Model, opening: Opening, trial: Trial):
        self.graph, self.sizes, self.opening, self.trial = graph.graph, opening.sizes, opening, trial
        self.nodes: list[ir.Node] = []
        used = {str(value.name) for graph in graphs_of(self.graph) for node in graph for value in node.outputs}
        used |= {*map(str, self.graph.initializers), *(str(value.name) for value in self.graph.inputs)}
        self.names = (name for n in itertools.count() if (name := f"opened_{n}") not in used)
        self.opset = graph.opset_imports.get("", graph.opset_imports.get("ai.onnx", 0))

    def written(self) -> int:
        """Write all places, open the inputs, and drop declared shapes; return the number of operands."""
        if self.trial.written and self.opset < _OPSET:
            raise UnsupportedError(
                f"constants of this file follow from the length, and opset {self.opset} cannot compute them: convert "
                f"the file first, with `onnx.version_converter.convert_version(onnx.load(path), {_OPSET})`"
            )
        for (output, operand), written in self.trial.written.items():
            node = output.producer()
            assert node is not None, "places are operands of nodes"
            node.replace_input_with(operand, self._operand(written))
        if self.nodes:
            self.graph.insert_before(self.graph[0], self.nodes)
        for graph in graphs_of(self.graph):
            for value in (value for node in graph for value in node.outputs):
                value.shape = None
            for value in () if graph is self.graph else (*graph.inputs, *graph.outputs):
                if value.shape is not None:  # ONNX Runtime needs ranks here
                    value.shape = ir.Shape([None] * len(value.shape))
        for value in self.opening.program.block.inputs:
            if value.name in self.sizes.shapes:
                value.shape = ir.Shape(map(self._named, self.sizes.shapes[str(value.name)]))
        for value, shape in zip(self.graph.outputs, self.trial.outputs, strict=True):
            value.shape = None if shape is None else ir.Shape(map(self._named, shape))
        return len(self.trial.written)

    def _named(self, size: Any) -> int | str:
        return self.sizes.spelled(size) if is_formula(size) else int(size)

    def _operand(self, written: Written) -> ir.Value:
        """Return the new value of an operand."""
        array, kinds = written.array, {place.kind for place, _ in written.readings}
        value: ir.Value | None = None
        if kinds & {"element", "layout", "limit"}:
            value = self._vector(written.value, array.dtype, array.shape)
        shape: list[Any] = [1] * array.ndim
        for place, formula in written.readings:
            if place.kind == "axis":
                array, shape[place.index] = np.take(array, [0], place.index), formula
            elif place.kind in ("range", "count", "reversed"):
                zero, one, minus = (self._constant(np.asarray(n, np.int64)) for n in (0, 1, -1))
                size = self._scalar(formula)
                if place.kind == "reversed":
                    value = self._add("Range", self._add("Sub", size, one), minus, minus)
                else:
                    value = self._add("Range", zero, size, one)
                    value = self._add("Add", value, one) if place.kind == "count" else value
                value = self._shaped(value, array.dtype, [1 if n == 1 else formula for n in array.shape])
            elif place.band is not None:
                value = self._banded(place.band, formula, array.ndim)
                shape = [size if axis not in place.axes else 1 for axis, size in enumerate(written.array.shape)]
        if shape != [1] * array.ndim:
            value = self._add("Expand", self._constant(array) if value is None else value, self._vector(shape))
        assert value is not None, "a reading has a kind"
        return value

    def _banded(self, band: BandFormula, size: Any, rank: int) -> ir.Value:
        """Return a mask from the numbers of its rows and columns."""
        zero, one = (self._constant(np.asarray(number, np.int64)) for number in (0, 1))
        numbers = self._add("Range", zero, self._scalar(size), one)
        row, column = (
            self._shaped(numbers, np.dtype(np.int64), [size if axis == own else 1 for axis in range(rank)])
            for own in band.axes
        )
        distance, value = self._add("Sub", column, row), self._constant(np.asarray(band.values[0]))
        for step, level in zip(band.steps, band.values[1:], strict=True):
            is_below = self._add("Less", distance, self._constant(np.asarray(step, np.int64)))
            value = self._add("Where", is_below, value, self._constant(np.asarray(level)))
        return value

    def _vector(self, items: Any, dtype: np.dtype | None = None, shape: Sequence[int] | None = None) -> ir.Value:
        parts = [self._number(item) for item in np.array([*np.ravel(np.array(items, object)), None], object)[:-1]]
        value = self._add("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]
        return self._shaped(value, dtype or np.dtype(np.int64), [len(parts)] if shape is None else shape)

    def _shaped(self, value: ir.Value, dtype: np.dtype, shape: Sequence[Any]) -> ir.Value:
        """Cast and reshape an int64 vector."""
        if dtype not in (np.dtype(np.int64), np.dtype(object)):
            value = self._add("Cast", value, to=int(ir.DataType.from_numpy(dtype)))
        if len(shape) != 1:
            target = self._vector(shape) if len(shape) else self._constant(np.zeros(0, np.int64))
            value = self._add("Reshape", value, target)
        return value

    def _scalar(self, size: Any) -> ir.Value:
        return self._add("Reshape", self._number(size), self._constant(np.zeros(0, np.int64)))

    def _number(self, size: Any) -> ir.Value:
        """Return a size as an int64 vector of one element."""
        if not is_formula(size):
            return self._constant(np.asarray([int(size)], np.int64))
        return walked(expression(size), self._leaf, self._apply)

    def _leaf(self, leaf: str | int) -> ir.Value:
        return self._constant(np.asarray([leaf], np.int64)) if isinstance(leaf, int) else self._symbol(leaf)

    @functools.cache  # noqa: B019  (the writer lives as long as its cache)
    def _symbol(self, symbol: str) -> ir.Value:
        value, axis, factor = self.sizes.sources[symbol]
        size = self._add("Gather", self._add("Shape", value), self._constant(np.asarray([axis], np.int64)))
        return size if factor == 1 else self._add("Div", size, self._constant(np.asarray([factor], np.int64)))

    def _apply(self, name: str, first: ir.Value, second: ir.Value) -> ir.Value:
        if name == "floordiv":  # Div of ONNX rounds towards zero
            return self._add("Div", self._add("Sub", first, self._add("Mod", first, second)), second)
        return self._add({"mod": "Mod", "max": "Max", "min": "Min"}.get(name, name), first, second)

    def _constant(self, array: np.ndarray) -> ir.Value:
        name = next(self.names)
        value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        value.shape, value.dtype = ir.Shape(array.shape), ir.DataType.from_numpy(array.dtype)
        self.graph.register_initializer(value)
        return value

    def _add(self, operator: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        output = ir.Value(name=next(self.names))
        self.nodes.append(ir.node(operator, inputs, attributes, outputs=[output], name=output.name))
        return output


class _Running:
    """A graph that is computed on arrays, for comparisons."""

    def __init__(self, program: BoundGraph, opening: Opening):
        self.program, self.static, self.sizes = program, opening.static, opening.sizes
        self.specs = [spec for spec in map(spec_of, program.block.inputs) if spec.name not in self.static]
        self.names = [str(value.name) for value in program.block.outputs]

    def draw(self, numbers: Mapping[str, int]) -> dict[str, np.ndarray]:
        """Return random inputs for numbers of the symbols."""
        random, arrays = np.random.default_rng(0), {}
        for spec in self.specs:
            shape = [value_in(expression(size), numbers) for size in self.sizes.shapes[spec.name]]
            assert spec.dtype is not None, "the search has refused inputs without a type"
            floats = spec.dtype.kind not in "iub"
            drawn = random.standard_normal(shape) if floats else random.integers(0, 2, shape)
            arrays[spec.name] = drawn.astype(spec.dtype)
        return arrays

    def __call__(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs that are arrays."""
        given = {**self.static, **arrays}

        def applied(params: Any, arrays: Any) -> dict[str, Any]:
            values = [arrays.get(str(key.name), given[str(key.name)]) for key in self.program.block.inputs]
            outputs = evaluate(self.program.block, values, Scope(params))
            pairs = zip(self.names, outputs, strict=True)
            return {name: traced(value) for name, value in pairs if hasattr(value, "shape")}

        with exact_types():
            params = {name: jax.device_put(array) for name, array in self.program.parameters.items()}
            own = {name: jax.device_put(array) for name, array in arrays.items()}
            try:
                results = jax.jit(applied)(params, own)
            except JaxrnnError:  # a shape may depend on values
                results = applied(params, own)
            return {name: np.asarray(value) for name, value in results.items()}


def _compared(
    original: _Running, opened: _Running, opening: Opening, trial: Trial, proto: onnx.ModelProto
) -> Iterator[str]:
    """Compare the opened graph with the file at the lengths of the file, and with ONNX Runtime at other lengths."""
    sizes = opening.sizes
    others = {symbol: _OTHER for symbol in sizes.numbers if symbol not in sizes.opened}
    own = {**sizes.numbers, **others}
    arrays = original.draw(own)
    expected = original(arrays)
    _check_equal(opened(arrays), expected, "the file at its own length")
    yield f"the numbers equal those of the file at its own length: {', '.join(expected)}"
    batches = [name for name, symbol in sizes.names.items() if symbol in sizes.opened and is_batch_name(name)]
    for name in batches:
        yield _rows_compared(name, original, opened, opening, trial, own)
    if importlib.util.find_spec("onnxruntime") is None:
        yield "other lengths were not computed, because ONNX Runtime is not installed"
        return
    try:
        _by_onnx_runtime(proto, {**opening.static, **arrays})
    except Exception as error:  # ONNX Runtime raises many types
        yield f"other lengths were not compared, because ONNX Runtime cannot run the file: {first_line(error)}"
        return
    for make in _LENGTHS:
        numbers = {**own, **{symbol: make(own[symbol]) for symbol in sizes.opened}}
        spelled = ", ".join(f"{sizes.spelled(symbol)}={numbers[symbol]}" for symbol in sorted(sizes.opened))
        arrays = opened.draw(numbers)
        try:
            here = opened(arrays)
        except JaxrnnError as error:
            raise ModelError(f"the opened file cannot be computed at {spelled}: {error}") from error
        try:
            peer = _by_onnx_runtime(proto, {**opening.static, **arrays})
        except Exception as error:
            raise ModelError(f"ONNX Runtime cannot run the opened file at {spelled}: {first_line(error)}") from error
        _check_equal(here, peer, f"ONNX Runtime on the opened file at {spelled}")
        yield f"the numbers equal those of ONNX Runtime at {spelled}"


#: Other lengths, from the length in the file.
_LENGTHS = (lambda length: length + 7, lambda length: 2 * length + 3)


def _check_equal(here: Mapping[str, np.ndarray], peer: Mapping[str, Any], what: str) -> None:
    for name in here.keys() & peer.keys():
        found = compare(name, here[name], peer[name], scaled=True)
        if found.differs:
            raise ModelError(
                f"the opened file differs from {what}: output {name!r}: {found.reason}. Export the network with an "
                "open axis"
            )


def _rows_compared(
    name: str, original: _Running, opened: _Running, opening: Opening, trial: Trial, own: Mapping[str, int]
) -> str:
    """Compare the rows of a larger batch with batches of the file's size: each must equal the row in a batch of one."""
    sizes, symbol = opening.sizes, opening.sizes.names[name]
    numbers = {**own, symbol: own[symbol] * _ROWS}
    arrays = opened.draw(numbers)
    axes = {
        key: [axis for axis, size in enumerate(shape) if str(size) == symbol] for key, shape in sizes.shapes.items()
    }
    found = opened(arrays)
    shapes = dict(zip(opened.names, trial.outputs, strict=True))
    left = []
    for row in range(_ROWS):
        part = slice(row * own[symbol], (row + 1) * own[symbol])
        alone = original({key: _at(array, axes[key], part) for key, array in arrays.items()})
        for key, array in found.items():
            rows = list(_parts(array, shapes[key] or (), symbol, sizes, own, row))
            if not rows:
                left.append(key)
            elif not any(not compare(key, each, alone[key], scaled=True).differs for each in rows):
                raise ModelError(
                    f"the opened file differs from the file on a part of the batch {name!r}: output {key!r}: "
                    f"{compare(key, rows[0], alone[key], scaled=True).reason}. The parts are not independent, or a "
                    "reshape mixes them: export the network with an open axis"
                )
    other = ", ".join(dict.fromkeys(left))
    return f"each part of the batch {name} is as if it were alone" + (f", except in {other}" if other else "")


def _parts(
    array: np.ndarray, shape: Sequence[Any], symbol: str, sizes: SizeFormulas, own: Mapping[str, int], row: int
) -> Iterator[np.ndarray]:
    """Yield a part of the batch of an output; a joined axis may have the batch first or last."""
    for axis, size in enumerate(shape):
        if sizes.follows(size) and re.fullmatch(rf"(\d+\*)?{symbol}", str(size)):
            each = value_in(expression(size), own) // own[symbol]
            for order in ((_ROWS, own[symbol] * each), (each, _ROWS, own[symbol])):
                split = array.reshape(*array.shape[:axis], *order, *array.shape[axis + 1 :])
                part = np.take(split, row, axis + len(order) - 2)
                yield part.reshape(*array.shape[:axis], own[symbol] * each, *array.shape[axis + 1 :])


def _at(array: np.ndarray, axes: Sequence[int], part: slice) -> np.ndarray:
    return array[(slice(None),) * axes[0] + (part,)] if axes else array


def _by_onnx_runtime(proto: onnx.ModelProto, arrays: Mapping[str, Any]) -> dict[str, Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}
    outputs = [each.name for each in session.get_outputs()]
    feeds = {name: np.asarray(value) for name, value in arrays.items() if name in names}
    return dict(zip(outputs, session.run(None, feeds), strict=True))
