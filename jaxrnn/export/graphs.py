"""Graphs of steps, flushes, and functions without state: tracing, lowering, names and facts.

`lower` writes a jaxpr as an ONNX model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr

from jaxrnn._files.messages import near
from jaxrnn._jax.context import exact_types
from jaxrnn.cells.forms import plain_forms
from jaxrnn.errors import InputError, UnsupportedError
from jaxrnn.export.exportable import Exportable, check_params, exact, from_pairs, guarded, paired, to_pairs
from jaxrnn.export.lowering import Lowering
from jaxrnn.export.patterns import rewrite
from jaxrnn.export.quantized import Quantized
from jaxrnn.export.reshaping import source_of
from jaxrnn.export.rewrites import REWRITES, WRITTEN_OUT, split_slices
from jaxrnn.export.writer import Operand, Writer, constant_of, dtype_of, make_value, maker_of, unused_name
from jaxrnn.export.writer import shape_of as size_of
from jaxrnn.jaxprs.canonical import canonical
from jaxrnn.jaxprs.equations import is_key, shape_of, type_of, walk
from jaxrnn.jaxprs.own import operator_p
from jaxrnn.onnx.stepfile import FLUSH, FUNCTION, LITERT, STEP, StateNames, StepFile
from jaxrnn.steps.specs import Arrays, ArraySpec
from jaxrnn.steps.stepper import NO_NOTES, Notes
from jaxrnn.steps.stepspec import OutputSpec, StepSpec
from jaxrnn.streaming.diagnostics import of_file
from jaxrnn.streaming.plan import as_struct
from jaxrnn.streaming.transform import as_function, explained

#: The newest file format that engines of the default opset read.
_IR_VERSION = 8


@dataclass(frozen=True)
class NamedArgument:
    """The name of an input; or the name and value of a parameter, which becomes an initializer."""

    name: str
    value: np.ndarray | None = None


def lower(
    closed: ClosedJaxpr,
    arguments: Sequence[NamedArgument],
    results: Sequence[str],
    *,
    opset: int = 17,
    label: str = "",
    target: str | None = None,
) -> ir.Model:
    """Write a canonical jaxpr with fixed sizes as an ONNX model, for all engines or in the form for a target engine.

    Arguments are in the order of the jaxpr's inputs. Results that depend only on arguments with a value are computed
    now. The returned model is not yet checked by ONNX. An `UnsupportedError` lists all nodes or lines without a
    counterpart in ONNX.
    """
    _refuse_complex(closed, arguments, results)
    writer = Writer(opset, target)
    for name in (*(argument.name for argument in arguments if argument.value is None), *results):
        writer.unused(name)
    values: list[Operand] = []
    for argument, variable in zip(arguments, closed.jaxpr.invars, strict=True):
        if argument.value is None:
            values.append(make_value(argument.name, shape_of(variable), type_of(variable)))
        else:
            array = np.asarray(argument.value)
            writer.parameter(argument.name, array)
            values.append(array)
    inputs = [value for value in values if isinstance(value, ir.Value)]
    with exact_types():
        found = Lowering(writer).whole(closed, values)
    # The attribute prevents a merge of equal results.
    ends = [writer.node("Result", result, place=place) for place, result in enumerate(found)]
    graph = ir.Graph(inputs, ends, nodes=writer.nodes, opset_imports={"": opset}, name=label)
    model = ir.Model(graph, ir_version=_IR_VERSION, producer_name="jaxrnn")
    # Patterns compare values by identity, so equal values are merged before and after.
    for rewrites in (REWRITES, WRITTEN_OUT):
        passes.CommonSubexpressionEliminationPass()(model)
        rewrite(graph, writer, rewrites)
    passes.CommonSubexpressionEliminationPass()(model)
    for node in graph.all_nodes():
        if node.op_type == "Erfc":
            place = node.meta["place"]
            raise UnsupportedError(f"{place}: ONNX has no erfc with the digits of float64; compute it in float32")
    split_slices(graph, writer)
    _write_quantized(graph, writer)
    for value in writer.initializers:
        graph.register_initializer(value)
    for subgraph in graph.subgraphs():
        _trim_results(subgraph)
    _name_outputs(graph, results)
    passes.RemoveUnusedNodesPass()(model)
    _name_nodes(graph)
    return model


def _refuse_complex(closed: ClosedJaxpr, arguments: Sequence[NamedArgument], results: Sequence[str]) -> None:
    names = [argument.name if argument.value is None else "" for argument in arguments]
    for name, variable in zip([*names, *results], [*closed.jaxpr.invars, *closed.jaxpr.outvars], strict=True):
        if name and type_of(variable).kind == "c":
            raise UnsupportedError(f"{name!r} is complex, and ONNX engines have no complex type: use two real arrays")


def _write_quantized(graph: ir.Graph, writer: Writer) -> None:
    """Dequantise constants, such as an int32 bias, that are read between DequantizeLinear and QuantizeLinear."""
    for value in writer.initializers:
        array = constant_of(value)
        if not isinstance(array, Quantized):
            continue
        for node, place in list(value.uses()):
            here = writer.inside()
            here.scope = node.meta.get("scope", "")
            if _is_between(node, value) and (quantized := here.quantized(array)) is not None:
                assert node.graph is not None
                node.graph.insert_before(node, here.nodes)
                node.replace_input_with(place, quantized)
        value.const_value = ir.tensor(np.ascontiguousarray(array).reshape(array.shape), name=value.name)


def _is_between(node: ir.Node, constant: ir.Value) -> bool:
    """Return True if a node's result is quantised, and all operands except a constant are dequantised."""
    uses = [use.node.op_type for result in node.outputs for use in result.uses()]
    others = [each for each in node.inputs if each is not None and each is not constant]
    return uses == ["QuantizeLinear"] and bool(others) and all(maker_of(each, "DequantizeLinear") for each in others)


def _trim_results(graph: ir.Graph) -> None:
    """Remove the `Identity` before a body's result if the body computes the value."""
    for index, end in enumerate(graph.outputs):
        node = maker_of(end, "Identity")
        value = end if node is None else source_of(node)
        maker = value.producer()
        if node is None or maker is None or maker.graph is not graph or value.is_graph_output() or end.uses():
            continue
        graph.outputs[index] = value
        graph.remove(node, safe=True)


def _name_outputs(graph: ir.Graph, names: Sequence[str]) -> None:
    """Name the results. An `Identity` separates a result from an input or a second result."""
    for index, name in enumerate(names):
        end = graph.outputs[index].producer()
        assert end is not None
        value = source_of(end)
        maker = value.producer()
        if maker is None or maker.graph is not graph or value.is_graph_output():
            identity = ir.node("Identity", [value], outputs=[make_value(name, size_of(value), dtype_of(value))])
            graph.insert_before(end, identity)
            value = identity.outputs[0]
        graph.outputs[index] = value
        graph.remove(end, safe=True)
        value.name = name


def _name_nodes(graph: ir.Graph) -> None:
    """Name nodes by scope, in order, and values by their nodes. Inputs and outputs keep their names."""
    graphs = (graph, *graph.subgraphs())
    kept = {value for each in graphs for value in (*each.inputs, *each.outputs, *each.initializers.values())}
    taken = {str(value.name) for value in kept}
    for node in graph.all_nodes():
        scope = node.meta.get("scope", "")
        node.name = unused_name(scope if scope.endswith(node.op_type) else f"{scope}/{node.op_type}", taken)
        for index, value in enumerate(node.outputs):
            if value not in kept:
                ending = f"_{index}" if len(node.outputs) > 1 else ""
                value.name = unused_name(f"{node.name}_output{ending}", taken)


#: The role of an array in a file, and the stepper's name for the array.
Key = tuple[str, str]
#: Roles: inputs, outputs, state before and after the step, the number of existing frames in a tail and in an output,
#: and parameters.
INPUT, OUTPUT, BEFORE, AFTER = "input", "output", "before", "after"
VALID, COUNT, PARAM = "valid", "count", "param"

#: Control characters and separators of lines, as in a class of a regular expression.
_CONTROLS = r"\x00-\x1f\x7f-\x9f\u2028\u2029"

Keyed = Mapping[Key, Any]
Structs = Mapping[Key, jax.ShapeDtypeStruct]


class Names:
    """Unique names for the arrays of a file, shared by a step and the flush of the step; ``chosen`` by the caller.

    Inputs are named first, then outputs, state and the rest. A name that is taken gets a suffix. Equal steppers
    therefore get equal names. ``own`` maps the state to names in the file that a model was loaded from. By default
    the input has the name of the entry, with dots for slashes, and the output has the suffix ``_next``. Names in the
    file have underscores for equals signs and control characters, which end names in the lines of the metadata, and for
    commas in a LiteRT file.
    """

    def __init__(
        self,
        spec: StepSpec,
        state: Sequence[ArraySpec] = (),
        own: Mapping[str, StateNames] | None = None,
        chosen: Mapping[str, str] | None = None,
        target: str | None = None,
    ):
        self._taken = set[str]()
        #: Signs that separate names: in lines of metadata, and in signatures of LiteRT.
        self._signs = re.compile(f"[={',' if target == LITERT else ''}{_CONTROLS}]")
        self._names: dict[Key, str] = {}
        for each in spec.inputs:
            self._names[INPUT, each.name] = self._unused(each.name, "in")
        for each in spec.outputs:
            self._names[OUTPUT, each.name] = self._unused(each.name, "out")
        own = own or {each.name: StateNames(each.name.strip("/").replace("/", "."), None) for each in state}
        for name, names in own.items():
            self._names[BEFORE, name] = self._unused(names.input, "state")
        for name, names in own.items():
            self._names[AFTER, name] = self._unused(names.output or f"{self[BEFORE, name]}_next", "state")
        self._names[VALID, ""] = self._unused("valid", "frames")
        for each in spec.outputs:
            if each.time_axis is not None:
                self._names[COUNT, each.name] = self._unused(f"{self[OUTPUT, each.name]}_count", "frames")
        if chosen:
            self._rename(chosen)

    def _rename(self, chosen: Mapping[str, str]) -> None:
        """Give arrays the names that the caller has chosen."""
        for name in chosen:
            if name not in self._taken:
                listed = ", ".join(self._names.values())
                raise InputError(
                    f"`names={dict(chosen)}`: the file has no input or output {name!r}{near(name, self._taken)}; the "
                    f"names are: {listed}"
                )
        renamed = [chosen.get(name, name) for name in self._names.values()]
        for name in renamed:
            if not isinstance(name, str) or not name or renamed.count(name) > 1:
                raise InputError(f"`names={dict(chosen)}`: {name!r} is no name, or the name of two arrays")
            if found := self._signs.search(name):
                raise InputError(f"`names={dict(chosen)}`: {found[0]!r} separates names in files, and {name!r} has it")
        self._taken = set(renamed)
        self._names = dict(zip(self._names, renamed, strict=True))

    def __getitem__(self, key: Key) -> str:
        return self._names[key]

    def of(self, kind: str, keys: Mapping[Key, Any]) -> dict[str, str]:
        """Map the stepper's names of a role to names in the file."""
        return {key[1]: self[key] for key in keys if key[0] == kind}

    def state(self, after: bool) -> dict[str, StateNames]:
        """Return the input name and, with ``after``, the output name of each state entry."""
        entries = [name for kind, name in self._names if kind == BEFORE]
        return {name: StateNames(self[BEFORE, name], self[AFTER, name] if after else None) for name in entries}

    def of_params(self, paths: Sequence[Any]) -> list[str]:
        """Name parameters by their paths, such as ``encoder.0.kernel``."""
        for path in paths:
            key = PARAM, jax.tree_util.keystr(path)
            if key not in self._names:
                # The last key of a Flax path is the value of a variable.
                keys = path[:-1] if path and path[-1] == jax.tree_util.GetAttrKey("value") else path
                self._names[key] = self._unused(".".join(map(_part, keys)) or "params", "param")
        return [self[PARAM, jax.tree_util.keystr(path)] for path in paths]

    def _unused(self, name: str, ending: str) -> str:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"the name {name!r} cannot be written to a file ({error.reason}): rename the array"
            ) from error
        name = self._signs.sub("_", name)
        candidates = [name, f"{name}_{ending}"] if name else [ending]
        candidates += [f"{candidates[-1]}_{count}" for count in range(2, len(self._taken) + 3)]
        chosen = next(each for each in candidates if each not in self._taken)
        self._taken.add(chosen)
        return chosen


def _part(key: Any) -> str:
    if isinstance(key, (jax.tree_util.DictKey, jax.tree_util.FlattenedIndexKey)):
        return str(key.key)
    if isinstance(key, jax.tree_util.SequenceKey):
        return str(key.idx)
    return str(getattr(key, "name", key))


@dataclass(frozen=True)
class Graph:
    """A traced function with argument names, result names and facts. Parameters are arguments with a value.

    ``operators`` maps scopes to operators of the traced model, for error messages. ``notes`` are the texts of its file.
    """

    closed: ClosedJaxpr
    arguments: Sequence[NamedArgument]
    results: Sequence[str]
    facts: StepFile
    operators: Mapping[str, str] | None = None
    notes: Notes = NO_NOTES

    @property
    def stores_blocks(self) -> bool:
        """Return True if the function dequantises integers in blocks, or of 4 bits."""
        return any(
            bool(dict(each.params["attributes"]).get("block_size")) or type_of(each.invars[0]).name.endswith("int4")
            for each in walk(self.closed.jaxpr)
            if each.primitive is operator_p and each.params["name"] == "DequantizeLinear"
        )

    def lowered(self, opset: int) -> ir.Model:
        """Lower the function to an ONNX model."""
        label, target = self.facts.spec.label, self.facts.target
        with contextlib.nullcontext() if self.operators is None else of_file(self.operators):
            return lower(self.closed, self.arguments, self.results, opset=opset, label=label, target=target)


def step_graph(exportable: Exportable, names: Names) -> Graph:
    """Trace the step of a bound stepper, and compute the state before the first frame."""
    spec, first = exportable.spec, exportable.first()

    def step(params: Any, arrays: Keyed) -> dict[Key, Any]:
        outputs, state = exportable.step(params, _of(BEFORE, arrays), _of(INPUT, arrays))
        return _keyed(OUTPUT, outputs) | _keyed(AFTER, {each.name: state[each.name] for each in exportable.state})

    with exportable.types():
        inputs, state = _structs(spec.inputs, exportable.lead), _structs(exportable.state, exportable.lead)
        traced = trace(step, exportable.params, _keyed(INPUT, inputs) | _keyed(BEFORE, state))
    spec = dataclasses.replace(spec, state=exportable.state)
    given = {"parts": exportable.parts, "guard": exportable.guard}
    facts = StepFile(STEP, spec, exportable.batch, state=names.state(after=True), first=first, **given)
    return _graph(traced, names, facts, exportable)


def flush_graph(exportable: Exportable, names: Names) -> Graph:
    """Trace the flush of a bound stepper."""
    spec, streams = exportable.spec, exportable.spec.streams

    def flush(params: Any, arrays: Keyed) -> dict[Key, Any]:
        tail = (_of(INPUT, arrays), arrays[VALID, ""]) if streams else ()
        outputs, counts = exportable.flush(params, _of(BEFORE, arrays), *tail)
        if not outputs:
            raise InputError(f"{spec.label} has no frames left at the end of a recording: leave out flush")
        return _keyed(OUTPUT, outputs) | _keyed(COUNT, counts)

    with exportable.types():
        tail = _keyed(INPUT, _structs(spec.inputs, exportable.lead)) if streams else {}
        valid = {(VALID, ""): jax.ShapeDtypeStruct(exportable.lead, np.int32)} if streams else {}
        state = _keyed(BEFORE, _structs(exportable.state, exportable.lead))
        traced = trace(flush, exportable.params, tail | valid | state)
    entry = names[VALID, ""] if streams else None
    spec = dataclasses.replace(spec, state=exportable.state)
    given = {"parts": exportable.parts, "guard": exportable.guard}
    facts = StepFile(FLUSH, spec, exportable.batch, state=names.state(after=False), valid=entry, **given)
    return _graph(traced, names, facts, exportable)


def function_graph(
    function: Callable[..., Any],
    params: Any,
    example: Any,
    label: str | None,
    target: str | None = None,
    guard: bool = False,
) -> Graph:
    """Trace ``function(params, x)``, or ``function(x)`` if params is None, on an array or a dict of arrays."""
    check_params(params)
    callee = as_function(function)
    label = str(label or getattr(function, "__name__", type(function).__name__))
    inputs = {name: as_struct(array) for name, array in _by_name(example, "x", "the example of a function").items()}
    single = not isinstance(example, Mapping)

    def call(params: Any, arrays: Keyed) -> dict[Key, Any]:
        given = guarded(_of(INPUT, arrays)) if guard else _of(INPUT, arrays)
        x = given["x"] if single else given
        given = callee(x) if params is None else callee(params, x)
        return _keyed(OUTPUT, _by_name(given, "y", f"the result of {label}"))

    with exact(False), explained():
        traced = trace(call, params, _keyed(INPUT, inputs))
    outputs = tuple(OutputSpec(name, np.dtype(each.dtype), each.shape) for (_, name), each in traced.results.items())
    taken = tuple(ArraySpec(name, np.dtype(each.dtype), each.shape) for name, each in inputs.items())
    spec = StepSpec(label, taken, outputs, ())
    return _graph(traced, Names(spec, target=target), StepFile(FUNCTION, spec, guard=guard))


def _graph(traced: Traced, names: Names, facts: StepFile, exportable: Exportable | None = None) -> Graph:
    """Apply the names of the file to a traced function."""
    lead, operators, notes = (
        ((), None, NO_NOTES) if exportable is None else (exportable.lead, exportable.operators, exportable.notes)
    )
    known = map(NamedArgument, names.of_params(traced.paths), traced.params)
    facts = dataclasses.replace(
        facts,
        spec=_as_in_file(facts.spec, traced, lead),
        inputs=names.of(INPUT, traced.inputs),
        outputs=names.of(OUTPUT, traced.results),
        counts=names.of(COUNT, traced.results),
    )
    taken = [*known, *(NamedArgument(names[key]) for key in traced.inputs)]
    return Graph(traced.closed, taken, [names[key] for key in traced.results], facts, operators, notes)


def _as_in_file(spec: StepSpec, traced: Traced, lead: tuple[int, ...]) -> StepSpec:
    """Return the facts with the shapes and dtypes of the file, without inputs that the file does not have."""

    def seen(each: Any, struct: jax.ShapeDtypeStruct | None) -> Any:
        if struct is None:
            return each.batched(lead)
        axis = None if each.time_axis is None else each.time_axis + len(lead)
        return dataclasses.replace(each, dtype=np.dtype(struct.dtype), shape=tuple(struct.shape), time_axis=axis)

    taken, given = traced.inputs, traced.results
    return dataclasses.replace(
        spec,
        inputs=tuple(seen(each, taken[INPUT, each.name]) for each in spec.inputs if (INPUT, each.name) in taken),
        outputs=tuple(seen(each, given.get((OUTPUT, each.name))) for each in spec.outputs),
        state=tuple(seen(each, taken[BEFORE, each.name]) for each in spec.state),
        joined=False,
        needs_params=False,
    )


def _structs(specs: Sequence[ArraySpec], lead: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
    return {each.name: each.batched(lead).struct() for each in specs}


def _keyed(kind: str, arrays: Arrays) -> dict[Key, Any]:
    return {(kind, name): array for name, array in arrays.items()}


def _of(kind: str, arrays: Keyed) -> dict[str, Any]:
    return {name: array for (own, name), array in arrays.items() if own == kind}


def _by_name(value: Any, single: str, what: str) -> dict[str, Any]:
    """Return a dict of arrays; a single array is named ``single``."""
    arrays = dict(value) if isinstance(value, Mapping) else {single: value}
    for name, array in arrays.items():
        number = isinstance(array, (bool, int, float, complex))
        if not isinstance(name, str) or not (number or (hasattr(array, "shape") and hasattr(array, "dtype"))):
            raise InputError(
                f"{what} must be an array, or a dict of arrays with strings for keys, not {jax.tree.structure(value)}"
            )
    if not arrays:
        raise InputError(f"{what} has no arrays")
    return arrays


@dataclass(frozen=True)
class Traced:
    """A function as a jaxpr of the leaves of the parameters, then of the inputs.

    ``params`` are the values of these leaves, ``paths`` their paths in the tree.
    """

    closed: ClosedJaxpr
    params: Sequence[np.ndarray]
    paths: Sequence[Any]
    inputs: Structs
    results: Structs


def trace(function: Callable[[Any, Keyed], Keyed], params: Any, inputs: Structs) -> Traced:
    """Trace a function of parameters and named arrays in plain forms, with the caller's 64-bit setting.

    Complex arrays become pairs of real numbers along a last axis, the real part first, because ONNX engines have no
    complex type. Random keys among the parameters become their integers.
    """
    with_paths, structure = jax.tree_util.tree_flatten_with_path(params)
    given = [leaf for _, leaf in with_paths]
    leaves = [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in given]
    results: list[Key] = []

    def flat(leaves: Any, arrays: Sequence[Any]) -> list[Any]:
        named = {key: from_pairs(array, struct) for (key, struct), array in zip(inputs.items(), arrays, strict=True)}
        outputs = function(structure.unflatten(map(_as_given, given, leaves)), named)
        results[:] = outputs
        return [to_pairs(jnp.asarray(array)) for array in outputs.values()]

    stored = {key: _without_values(paired(struct)) for key, struct in inputs.items()}
    with plain_forms(), jax.disable_jit(False):  # without programs, loops would run as Python
        closed = canonical(jax.make_jaxpr(flat)(list(map(_without_values, leaves)), list(stored.values())))
    if any(isinstance(value, Tracer) for value in closed.consts):
        raise InputError("the function closes over values that are being traced; call export_onnx outside of jit")
    values = [np.asarray(leaf).astype(aval.dtype) for leaf, aval in zip(leaves, closed.in_avals, strict=False)]
    paths = [path for path, _ in with_paths]
    # The avals of the jaxpr, not the given shapes: without 64-bit types JAX narrows the given types.
    taken = closed.in_avals[len(leaves) :]
    return Traced(closed, values, paths, _named(stored, taken), _named(results, closed.out_avals))


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and is_key(leaf.dtype)


def _as_given(given: Any, leaf: Any) -> Any:
    """Return a leaf with the type of the given leaf: random keys from their integers."""
    return jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(given)) if _is_key(given) else leaf


def _named(keys: Iterable[Key], avals: Sequence[Any]) -> Structs:
    return {key: jax.ShapeDtypeStruct(aval.shape, aval.dtype) for key, aval in zip(keys, avals, strict=True)}


def _without_values(leaf: Any) -> Any:
    """Return the shape of a leaf in the caller's types. A Python number stays a number with a weak type."""
    if not hasattr(leaf, "dtype"):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True))
