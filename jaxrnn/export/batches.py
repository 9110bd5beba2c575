"""One graph for any number of streams, from the graphs for several numbers of streams.

Rules of the lowering know all sizes. So a step is lowered for several numbers of streams, and the graphs are compared:
a size or a constant that follows the number of streams is computed in the file, and another difference is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxrnn.errors import UnsupportedError
from jaxrnn.export.graphs import Graph
from jaxrnn.export.writer import make_value, unused_name
from jaxrnn.onnx.graph import subgraphs_of
from jaxrnn.onnx.stepfile import StepFile
from jaxrnn.steps.stepspec import StepSpec

#: The numbers of streams that are compared: two determine a line, and the third checks it.
NUMBERS = (3, 7, 11)


def opened(graphs: Sequence[Graph], opset: int, symbol: str) -> tuple[ir.Model, StepFile]:
    """Return the model and the facts for any number of streams, ``symbol``, from graphs for `NUMBERS` of streams."""
    facts = _facts([each.facts for each in graphs], symbol)
    models = [each.lowered(opset) for each in graphs]
    _Opening([model.graph for model in models], symbol).run()
    return models[0], facts


def _facts(facts: Sequence[StepFile], symbol: str) -> StepFile:
    """Return the facts with open sizes; the first state has a batch of 1."""
    specs = [each.spec for each in facts]

    def arrays(kind: str) -> tuple[Any, ...]:
        rows = zip(*(getattr(spec, kind) for spec in specs), strict=True)
        return tuple(
            dataclasses.replace(row[0], shape=_shape([each.sizes for each in row], symbol, row[0].name)) for row in rows
        )

    spec: StepSpec = dataclasses.replace(specs[0], **{kind: arrays(kind) for kind in ("inputs", "outputs", "state")})
    first = {}
    for each in spec.state if facts[0].first else ():
        row = facts[0].first[each.name]
        for axis, size in enumerate(each.shape or ()):
            row = row.take([0], axis) if size == symbol else row
        if not np.array_equal(np.broadcast_to(row, facts[0].first[each.name].shape), facts[0].first[each.name]):
            raise _refused(f"the first state {each.name!r}", "differs between streams")
        first[each.name] = row
    return dataclasses.replace(facts[0], spec=spec, batch=symbol, first=first)


def _shape(shapes: Sequence[Sequence[int]], symbol: str, name: str) -> tuple[int | str, ...]:
    """Return the sizes of an input or output, of which some are the number of streams."""
    found = _sizes(shapes, symbol)
    if None in found:
        raise _refused(f"{name!r}", f"has the sizes {', '.join(str(list(shape)) for shape in shapes)}")
    return tuple(size for size in found if size is not None)


def _sizes(shapes: Sequence[Sequence[int]], symbol: str) -> list[int | str | None]:
    if len({len(shape) for shape in shapes}) > 1:
        return [None]
    rows = [tuple(row) for row in zip(*shapes, strict=True)]
    return [row[0] if len({*row}) == 1 else symbol if row == NUMBERS else None for row in rows]


def _refused(place: str, why: str) -> UnsupportedError:
    numbers = f"{', '.join(map(str, NUMBERS[:-1]))} and {NUMBERS[-1]}"
    return UnsupportedError(
        f"{place} {why} with {numbers} streams, so no file serves any number of streams: give a number, such as "
        "`batch=8`"
    )


class _Opening:
    """The comparison of graphs, of which the first becomes the graph for any number of streams."""

    def __init__(self, graphs: Sequence[ir.Graph], symbol: str):
        self.graphs, self.graph, self.symbol = graphs, graphs[0], symbol
        self._nodes: list[ir.Node] = []
        self._merged: dict[tuple[int, ...], ir.Value] = {}
        graphs = (self.graph, *self.graph.subgraphs())
        values = (value for graph in graphs for value in (*graph.inputs, *graph.initializers.values()))
        outputs = (value for node in self.graph.all_nodes() for value in (node, *node.outputs))
        self._names = {str(each.name) for each in (*values, *outputs)}
        self._number: ir.Value | None = None

    def run(self) -> None:
        """Replace the sizes and constants of the first graph that follow the number of streams."""
        nodes = [list(graph.all_nodes()) for graph in self.graphs]
        places: dict[int, Any] = {}
        for graph, own in zip(self.graphs, nodes, strict=True):
            places.update((id(value), ("input", index)) for index, value in enumerate(graph.inputs))
            for index, node in enumerate(own):
                places.update((id(value), (index, place)) for place, value in enumerate(node.outputs))
                for name, body in subgraphs_of(node):
                    places.update((id(value), (index, name, place)) for place, value in enumerate(body.inputs))
        for values in zip(*(graph.inputs for graph in self.graphs), strict=True):
            values[0].shape = ir.Shape(_shape([_known(each) for each in values], self.symbol, str(values[0].name)))
        for values in zip(*(graph.outputs for graph in self.graphs), strict=True):
            _shape([_known(each) for each in values], self.symbol, str(values[0].name))
        if len({len(own) for own in nodes}) > 1:
            raise _refused("the graph", "has other nodes")
        for row in zip(*nodes, strict=True):
            self._open(row, places)
        for values in zip(*(graph.outputs for graph in self.graphs), strict=True):
            self._same([_origin(each, places) for each in values], f"the output {values[0].name!r}")
        if self._nodes:
            self.graph.insert_before(self.graph[0], self._nodes)
        for value in list(self.graph.initializers.values()):
            if not value.uses() and not value.is_graph_output():
                del self.graph.initializers[str(value.name)]

    def _open(self, row: Sequence[ir.Node], places: Mapping[int, Any]) -> None:
        node = row[0]
        place = str(node.meta.get("place") or f"node {node.name!r} ({node.op_type})")
        self._same([(each.op_type, each.domain, len(each.inputs), len(each.outputs)) for each in row], place)
        self._same([{key: _attribute(value) for key, value in each.attributes.items()} for each in row], place)
        bodies = [[body for _, body in subgraphs_of(each)] for each in row]
        for group in zip(*bodies, strict=True):
            for values in zip(*((*body.inputs, *body.outputs) for body in group), strict=True):
                self._resize(values)
                self._same([_origin(each, places) for each in values], place)
        for index, values in enumerate(zip(*(each.inputs for each in row), strict=True)):
            known = [None if value is None else value.const_value for value in values]
            if all(each is not None for each in known):
                node.replace_input_with(index, self._constant([v for v in values if v is not None], node, index, place))
            else:
                self._same([_origin(each, places) for each in values], place)
        for values in zip(*(each.outputs for each in row), strict=True):
            self._resize(values)

    def _same(self, found: Sequence[Any], place: str) -> None:
        if any(each != found[0] for each in found[1:]):
            raise _refused(place, "is written in another way")

    def _resize(self, values: Sequence[ir.Value]) -> None:
        shapes = [_known(each) for each in values if each.shape is not None]
        if len(shapes) == len(values):
            values[0].shape = ir.Shape(_sizes(shapes, self.symbol))

    def _constant(self, values: Sequence[ir.Value], node: ir.Node, index: int, place: str) -> ir.Value:
        """Return a constant as a value of the first graph, computed if it follows the number of streams."""
        arrays = [value.const_value.numpy() for value in values if value.const_value is not None]
        if len({*map(_bits, arrays)}) == 1:
            return values[0]
        if node.op_type == "Reshape" and index == 1 and arrays[0].shape == arrays[1].shape and arrays[0].all():
            differs = arrays[0] != arrays[1]
            shapes = [np.where(differs, -1, array) for array in arrays]
            if np.count_nonzero(differs) == 1 and len({*map(_bits, shapes)}) == 1:
                return self._initializer(shapes[0])
        key = tuple(map(id, values))
        if key not in self._merged:
            self._merged[key] = self._computed(arrays, place)
        return self._merged[key]

    def _computed(self, arrays: Sequence[np.ndarray], place: str) -> ir.Value:
        """Return a constant as a function of the number of streams."""
        shapes = [array.shape for array in arrays]
        if len({*shapes}) == 1 and arrays[0].dtype == np.int64:
            return self._line(arrays, place)
        axes = [axis for axis, row in enumerate(zip(*shapes, strict=False)) if len({*row}) > 1]
        if len(axes) == 1:
            (axis,) = axes
            base = arrays[0].take(np.arange(max(shapes[0][axis] // NUMBERS[0], 1)), axis)
            tiled = [np.concatenate([base] * number, axis) for number in NUMBERS]
            if list(map(_bits, tiled)) == list(map(_bits, arrays)):
                counts = [np.where(np.arange(base.ndim) == axis, number, 1) for number in NUMBERS]
                return self._node("Tile", self._initializer(base), self._line(counts, place), like=base)
        raise _refused(place, "has a constant that follows no rule")

    def _line(self, arrays: Sequence[np.ndarray], place: str) -> ir.Value:
        """Return integers that are a multiple of the number of streams, and an offset."""
        slope, rest = np.divmod(arrays[1] - arrays[0], NUMBERS[1] - NUMBERS[0])
        offset = arrays[0] - slope * NUMBERS[0]
        lines = [slope * number + offset for number in NUMBERS]
        if rest.any() or not list(map(_bits, lines)) == list(map(_bits, arrays)):
            raise _refused(place, "has a constant that follows no rule")
        result = self._node("Mul", self._initializer(slope), self._streams(), like=slope)
        if offset.any():
            result = self._node("Add", result, self._initializer(offset), like=offset)
        return result if slope.ndim else self._node("Squeeze", result, like=slope)

    def _streams(self) -> ir.Value:
        """Return the number of streams, a vector of one element."""
        if self._number is None:
            sizes = ((value, axis, size) for value in self.graph.inputs for axis, size in enumerate(value.shape or ()))
            value, axis = next((value, axis) for value, axis, size in sizes if str(size) == self.symbol)
            shape = self._node("Shape", value, like=np.zeros(len(value.shape or ()), np.int64))
            place = self._initializer(np.array([axis], np.int64))
            self._number = self._node("Gather", shape, place, like=np.zeros(1, np.int64))
        return self._number

    def _initializer(self, array: np.ndarray) -> ir.Value:
        value = make_value(unused_name("streams/constant", self._names), array.shape, array.dtype)
        value.const_value = ir.tensor(np.ascontiguousarray(array).reshape(array.shape), name=value.name)
        self.graph.register_initializer(value)
        return value

    def _node(self, operator: str, *inputs: ir.Value, like: np.ndarray, **attributes: Any) -> ir.Value:
        name = unused_name(f"streams/{operator}", self._names)
        result = ir.Value(name=f"{name}_output", type=ir.TensorType(ir.DataType.from_numpy(like.dtype)))
        self._nodes.append(ir.node(operator, inputs, attributes, outputs=[result], name=name))
        return result


def _bits(array: np.ndarray) -> tuple[Any, ...]:
    return array.dtype.name, array.shape, array.tobytes()


def _known(value: ir.Value) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else -1 for size in value.shape or ())


def _origin(value: ir.Value | None, places: Mapping[int, Any]) -> Any:
    """Return the place or the content of a value: equal in all graphs if the value is computed in the same way."""
    if value is None:
        return None
    if value.const_value is not None:
        return _bits(value.const_value.numpy())
    return places[id(value)]


def _attribute(attribute: ir.Attr) -> Any:
    value = attribute.value
    if isinstance(value, ir.Graph):
        return len(value.inputs), len(value.outputs), len(value)
    if hasattr(value, "numpy"):
        return _bits(value.numpy())
    return tuple(value) if isinstance(value, list) else value
