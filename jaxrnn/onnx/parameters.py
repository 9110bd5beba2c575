"""The choice of the tensors that are parameters of a model, and their names.

Parameters are float initializers and float ``Constant`` tensors of rank 1 and more (some exporters put all weights
there, also in the branches of ``If``). Each parameter has a stable, unique name and ONNX's own layout. The flow of
values through the graph decides which tensors are constants instead:

- tensors that gradients cannot reach: no differentiable path leads to a float output. Exporters leave copies of
  weights that are only read for their shape, or that a loop passes on unread. If a model has no float output, any path
  counts;
- values that an operator needs while tracing (axes, pads, the scales of Resize): inputs marked ``Static``, and
  constants from which other operators compute such inputs;
- values of masks: minus infinity and other numbers beyond 1e30, tables of 0 and such numbers that are only added or
  selected, and single numbers that only masks select or compare;
- numbers of a formula: inputs marked ``Foldable`` (the exponent of Pow, the bounds of Clip), constants that are only
  compared, and scalars as exporters write the 1e-5 in ``sqrt(x + 1e-5)`` and the 1 in ``1 - z``: ``Constant`` nodes,
  initializers inside subgraphs, and initializers with names that exporters invent for numbers;
- zeros that are only read as initial values of recurrences: some exporters write a missing state in this way;
- frozen first states: the state that a layer had at export, such as a layer of Keras with ``stateful=True``. A first
  state that is repeated over the batch serves all streams, so it is trained and a parameter. A first state without
  such a repetition is frozen if its rows differ over the batch, or if tf2onnx wrote the file, because layers of Keras
  train no first state. In files of PyTorch, other first states are parameters: `torch.nn.Parameter`;
- scalar zeros that are compared, even if other nodes read the zeros: exporters that merge equal constants use the same
  zero for a counter, a missing state and a mask.

A tensor of the file is a single parameter, even if a local function with the tensor is called several times.

A file may also state its parameters: the metadata entry ``jaxrnn.weights`` lists the names of initializers, in JSON.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx_ir as ir

from jaxrnn.errors import ModelError
from jaxrnn.onnx.graph import Address, graphs_of, is_of_onnx, node_label, origin_of, subgraphs_of, tensor_origin
from jaxrnn.onnx.recurrences import loop_slots, starts_recurrence
from jaxrnn.onnx.registry import BODY, Movement, Operator, schema_of

FLOATS = frozenset(map(np.dtype, (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)))

OperatorOf = Callable[[ir.Node], Operator]
ConstantOf = Callable[[ir.Value], np.ndarray | None]

#: The largest weight; masks have larger numbers.
_LARGEST = 1e30

#: The reason why a tensor is a constant that gradients do not reach.
UNREACHED = "reaches no float output by a differentiable path"

#: Types of counters, indices and conditions, to which no gradient flows. Quantized networks have narrower integers.
_DISCRETE = frozenset((ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.STRING))

#: Producers of files with the state of stateful layers, and without trained first states.
_OF_KERAS = ("tf2onnx", "keras2onnx")

#: Names of scalars that were written as numbers by PyTorch, TensorFlow and ``jaxrnn.export_onnx``.
_NUMBER = re.compile(r"(val|const|scalar_tensor_default)(_\d+)*(_cast)?(_\d+)*|(.*/)?[xy]:0|(.*/)?constant(_\d+)?")


#: The entry of a file's metadata that lists its parameters.
WEIGHTS = "jaxrnn.weights"


def stated_parameters(model: ir.Model) -> frozenset[str] | None:
    """Return the initializers that the metadata of a file list as parameters, or None without such a list."""
    text = model.metadata_props.get(WEIGHTS)
    if text is None:
        return None
    try:
        names: Any = json.loads(text)
    except ValueError:
        names = None
    listed = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not listed or not model.graph.initializers.keys() >= set(names):
        raise ModelError(
            f"the metadata entry {WEIGHTS!r} must be a JSON list of names of initializers, not {text[:80]!r}; delete "
            "the entry, so that the parameters are found by their use"
        )
    return frozenset(names)


class ChosenParameters(NamedTuple):
    """The parameters of a graph, and the other float tensors of rank 1 and more."""

    names: dict[ir.Value, str]  # the name of each parameter, in the order of the file
    constants: dict[ir.Value, str]  # the reason why a tensor is not a parameter


def choose_parameters(model: ir.Model, operator_of: OperatorOf, constant_of: ConstantOf) -> ChosenParameters:
    """Find the parameters of a graph, or take the parameters that the file states."""
    graph, stated = model.graph, stated_parameters(model)
    if stated is not None:
        names = {value: name for name, value in graph.initializers.items() if name in stated}
        return ChosenParameters(
            names, _others(graph, names, constant_of, {}, f"not in the list {WEIGHTS!r} of the file")
        )
    reasons = needed_while_tracing(graph, operator_of) | _never_trained(model, operator_of, constant_of)
    names = _names(graph, reasons, _reached(graph, operator_of), constant_of)
    return ChosenParameters(names, _others(graph, names, constant_of, reasons, UNREACHED))


def _others(
    graph: ir.Graph,
    names: Collection[ir.Value],
    constant_of: ConstantOf,
    reasons: dict[ir.Value, str],
    otherwise: str,
) -> dict[ir.Value, str]:
    """Return the reasons why the other float tensors of rank 1 and more are constants."""
    named = set(map(_address, names))
    others: dict[ir.Value, str] = {}
    for value in _constants(graph):
        array, address = constant_of(value), _address(value)
        if value in names or array is None or array.dtype not in FLOATS or not array.ndim or not array.size:
            continue
        if address is None or address not in named:
            others[value] = reasons.get(value, otherwise)
            named.add(address)
    return others


def _address(value: ir.Value) -> Address | None:
    origin = origin_of(value)
    return None if origin is None else origin.address


def _names(
    graph: ir.Graph, fixed: Collection[ir.Value], reached: Collection[ir.Value], constant_of: ConstantOf
) -> dict[ir.Value, str]:
    """Return the names of the constants that are reached and not fixed."""
    fixed_tensors = {_address(value) for value in fixed if _is_constant(value)}
    for node in graph.all_nodes():
        if not is_of_onnx(node, "Constant"):
            tensors = (each for each in node.attributes.values() if each.type == ir.AttributeType.TENSOR)
            fixed_tensors |= {origin.address for origin in map(tensor_origin, tensors) if origin is not None}
    # A tensor in a local function has a value for each call of the function.
    live_tensors = {_address(value) for value in reached if _is_constant(value)}
    names: dict[ir.Value, str] = {}
    of_tensor: dict[Address, str] = {}
    taken: set[str] = set()

    def add(value: ir.Value, path: str) -> None:
        array = constant_of(value)
        if value in fixed or array is None or array.dtype not in FLOATS or not array.size:
            return
        origin, address = origin_of(value), _address(value)
        if value not in reached and (address is None or address not in live_tensors):
            return
        if address is not None and address in fixed_tensors:
            return
        if address in of_tensor:
            names[value] = of_tensor[address]
            return
        own_name = str(value.name) if origin is None or origin.name is None else origin.name
        name = own_name if own_name not in taken else f"{path}{own_name}"
        while name in taken:
            name += "'"
        taken.add(name)
        names[value] = name
        if address is not None:
            of_tensor[address] = name

    def walk(graph: ir.Graph, path: str) -> None:
        for value in graph.initializers.values():
            array = constant_of(value)
            if array is not None and (array.ndim > 0 or not (path or _NUMBER.fullmatch(str(value.name)))):
                add(value, path)
        for node in graph:
            if is_of_onnx(node, "Constant"):
                array = constant_of(node.outputs[0])
                if array is not None and array.ndim > 0:
                    add(node.outputs[0], path)
            for name, inner in subgraphs_of(node):
                walk(inner, f"{path}{node.name or node.op_type}.{name}/")

    walk(graph, "")
    return names


def needed_while_tracing(graph: ir.Graph, operator_of: OperatorOf) -> dict[ir.Value, str]:
    """Return all values from which static and foldable inputs of operators are computed."""
    pending: list[ir.Value] = []
    for node in graph.all_nodes():
        operator = operator_of(node)
        for index, value in enumerate(node.inputs):
            slot = operator.slot(index)
            if value is None or slot is None:
                continue
            if slot.static or (slot.foldable and _is_constant(value)):
                pending.append(value)
    seen: set[ir.Value] = set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        pending.extend(_sources(value, operator_of))
    return dict.fromkeys(seen, "a number of a formula, or needed while tracing")


def _never_trained(model: ir.Model, operator_of: OperatorOf, constant_of: ConstantOf) -> dict[ir.Value, str]:
    """Return the constants that training leaves unchanged because of their uses, with the reasons."""
    untrained, keras = {}, model.producer_name in _OF_KERAS
    for value in _constants(model.graph):
        array = constant_of(value)
        if array is None or array.dtype not in FLOATS or not array.size:
            continue
        if (ends := list(_ends(value, operator_of))) and (reason := _reason(array, ends, operator_of, keras)):
            untrained[value] = reason
    return untrained


class _End(NamedTuple):
    """A use of a value: a node and an input of the node, or None if the use is a graph output."""

    node: ir.Node | None
    place: int
    repeated: bool  # True if elements are repeated on the way


def _reason(array: np.ndarray, ends: list[_End], operator_of: OperatorOf, keras: bool) -> str | None:
    """Return the reason why a constant with these uses is not trained, or None."""
    zeros = not np.any(array)
    operators = [None if end.node is None else operator_of(end.node) for end in ends]
    traits = [None if each is None else each.traits for each in operators]
    compared = [each is not None and bool(each.compares) for each in traits]
    beyond = ~(np.abs(array) < _LARGEST)
    single = array.size == 1 and all(each is not None and (each.compares or each.selects) for each in traits)
    joined = all(each is not None and (each.selects or (each.elementwise and each.linear == "all")) for each in traits)
    if single or (beyond.any() and (beyond.all() or (joined and not np.any(array[~beyond])))):
        return "values of a mask"
    if all(compared) or (zeros and not array.ndim and any(compared)):
        return "only compared"
    starts = (
        each is not None and end.node is not None and starts_recurrence(end.node, end.place, each.carries)
        for end, each in zip(ends, traits, strict=True)
    )
    if not all(starts):
        return None
    if zeros:
        return "zeros from which a recurrence starts"
    if not any(end.repeated for end in ends) and (keras or any(_rows_differ(array, end, operator_of) for end in ends)):
        labels = ", ".join(dict.fromkeys(repr(node_label(end.node)) for end in ends if end.node is not None))
        return f"a frozen first state: {labels} starts from a constant that is not zero"
    return None


def _rows_differ(array: np.ndarray, end: _End, operator_of: OperatorOf) -> bool:
    """Return True if the initial value of a recurrent layer has different rows along the batch."""
    assert end.node is not None
    carries = operator_of(end.node).traits.carries
    if carries is None or not carries.hidden or array.ndim != 3:
        return False
    layout = end.node.attributes.get("layout")
    axis = 0 if layout is not None and layout.value == 1 else 1
    return bool(np.any(array != np.take(array, [0], axis)))


def _constants(graph: ir.Graph) -> Iterable[ir.Value]:
    for inner in graphs_of(graph):
        yield from inner.initializers.values()
        yield from (node.outputs[0] for node in inner if is_of_onnx(node, "Constant"))


def _ends(value: ir.Value, operator_of: OperatorOf, repeated: bool = False) -> Iterator[_End]:
    """Yield the uses of a value, followed through nodes that only move elements."""
    if value.is_graph_output():
        yield _End(None, 0, repeated)
    for node, index in value.uses():
        traits = operator_of(node).traits
        if index == 0 and traits.moves_first:
            for output in node.outputs:
                yield from _ends(output, operator_of, repeated or traits.moves is Movement.REPEATS)
        else:
            yield _End(node, index, repeated)


def _reached(graph: ir.Graph, operator_of: OperatorOf) -> set[ir.Value]:
    """Return the values from which a differentiable path leads to a float output of the graph.

    Quantized outputs count as floats. In a graph without float outputs, any path to an output counts.
    """
    bodies = ((node, inner) for node in graph.all_nodes() for _, inner in subgraphs_of(node))
    fed = {value: (node, place) for node, inner in bodies for place, value in enumerate(inner.inputs)}
    floats = [value for value in graph.outputs if value.dtype not in _DISCRETE]
    pending, seen = floats or list(graph.outputs), set[ir.Value]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        node = value.producer()
        if node is not None:
            operator = operator_of(node)
            if not (floats and _is_flat(node, operator, value.index() or 0)):
                pending += _before(node, operator, value.index() or 0)
        elif value in fed:
            owner, place = fed[value]
            pending += _fed(owner, operator_of(owner), place)
    return seen


def _before(node: ir.Node, operator: Operator, place: int) -> Iterator[ir.Value]:
    """Yield the values from which an output of a node is computed."""
    if operator.traits.of_shape:
        return
    inner = dict(subgraphs_of(node))
    if is_of_onnx(node, "If"):
        yield from (graph.outputs[place] for graph in inner.values() if place < len(graph.outputs))
        yield from (value for value in node.inputs if value is not None)
    elif operator.traits.carries is BODY and inner:
        first, slots, results = loop_slots(node)
        # The number of steps may depend on anything.
        before = [*node.inputs[:first], *(node.inputs[first + place : first + place + 1] if place < len(slots) else ())]
        yield from (value for value in before if value is not None)
        yield from (*results[place : place + 1], *(graph.outputs[0] for graph in inner.values() if first == 2))
    else:
        for graph in inner.values():
            yield from graph.outputs
        for index, value in enumerate(node.inputs):
            slot = operator.slot(index)
            if value is not None and not (slot is not None and slot.static):
                yield value


def _fed(node: ir.Node, operator: Operator, place: int) -> Iterator[ir.Value]:
    """Yield the values that an input of a body takes: from outside, and from the step before."""
    if operator.traits.carries is not BODY:
        yield from (each for each in node.inputs if each is not None)
        return
    first, slots, results = loop_slots(node)
    place -= 2 if first == 2 else 0  # the number of the trip and the condition of a Loop
    if place >= 0:
        yield from (each for each in node.inputs[first + place : first + place + 1] if each is not None)
    if 0 <= place < len(slots):
        yield from results[place : place + 1]


def _is_flat(node: ir.Node, operator: Operator, place: int) -> bool:
    """Return True if no gradient flows through an output of a node, because the output counts, compares or indexes."""
    if operator.traits.moves is Movement.CASTS and (target := node.attributes.get("to")) is not None:
        return target.value in _DISCRETE
    return not operator.own and place in _flat_outputs(operator.domain, operator.name, operator.since)


@functools.cache
def _flat_outputs(domain: str, name: str, version: int) -> frozenset[int]:
    """Return the outputs that are integers or booleans for all types of inputs."""
    schema = schema_of(domain, name, version)
    if schema is None:
        return frozenset()
    allowed = {each.type_param_str: set(each.allowed_type_strs) for each in schema.type_constraints}
    types = [allowed.get(output.type_str, {output.type_str}) for output in schema.outputs]
    return frozenset(place for place, each in enumerate(types) if each <= {"tensor(int64)", "tensor(bool)"})


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is None or is_of_onnx(producer, "Constant")


def _sources(value: ir.Value, operator_of: OperatorOf) -> Iterable[ir.Value]:
    producer = value.producer()
    if producer is None or operator_of(producer).traits.of_shape:
        return
    yield from (source for source in producer.inputs if source is not None)
    for _, inner in subgraphs_of(producer):
        yield from inner.outputs
