"""Facts about the graph of a file: nodes, values, inner graphs, the places of the state, and values in pulses."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrnn._files.messages import short_repr
from jaxrnn.errors import JaxrnnError
from jaxrnn.onnx import ir
from jaxrnn.onnx.binding import read_constant
from jaxrnn.onnx.graph import inputs_of, is_of_onnx, node_label, normal_domain, subgraphs_of
from jaxrnn.onnx.operators import operator_table
from jaxrnn.onnx.recurrences import copied_from, loop_slots
from jaxrnn.onnx.registry import Operator
from jaxrnn.onnx.state import StateVar
from jaxrnn.steps.stepspec import StepSpec
from jaxrnn.streaming.dimensions import SYMBOL
from jaxrnn.streaming.interpreter import Observed, StreamedValue, observe

if TYPE_CHECKING:
    from jaxrnn.model import Model


@dataclass(frozen=True)
class ValueInfo:
    """A value of a graph."""

    name: str
    #: the element type, or the ONNX type of a value that is not a tensor; None if the file leaves it open
    dtype: str | None
    shape: tuple[int | str, ...] | None  # sizes and names of open dimensions; None if unknown
    kind: str = "value"  # ``"value"``, ``"parameter"`` or ``"constant"``
    parameter: str | None = None  # the name of the parameter
    content: str | None = None  # the elements of a small constant


@dataclass(frozen=True)
class NodeInfo:
    """A node."""

    name: str  # the label in messages
    #: the operator; the version is None if the operator cannot run
    operator: str
    domain: str
    version: int | None
    graph: int  # the number of the graph that holds the node
    scope: tuple[str, ...]  # the names of the modules around the node, the outermost first
    #: for each input the name of the operator's parameter and the number of the value, None if absent
    inputs: tuple[tuple[str, int | None], ...]
    outputs: tuple[int, ...]  # the numbers of the output values
    attributes: dict[str, str]  # as text
    problem: str | None = None  # the reason why the node cannot run, or None


@dataclass(frozen=True)
class GraphScope:
    """A graph: the outer graph, or a graph inside of a node."""

    name: str  # the attribute that holds the graph; empty for the outer graph
    node: int | None  # the number of the node around the graph; None for the outer graph
    #: the numbers of the values
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    #: pairs of a place among the node's inputs and a place among the graph's inputs
    entries: tuple[tuple[int, int], ...] = ()
    #: pairs of a place among the graph's outputs and a place among the node's outputs
    exits: tuple[tuple[int, int], ...] = ()
    #: pairs of a place among outputs and the place among inputs in the next step
    carries: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class StatePlace:
    """The values by which a state variable enters and leaves, or the nodes that keep it."""

    input: int | None
    output: int | None
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Statistics:
    """The distribution of a parameter's elements, the share of zeros, and the number of non-finite elements."""

    mean: float
    deviation: float
    smallest: float
    largest: float
    zeros: float
    not_finite: int


@short_repr
@dataclass(frozen=True)
class GraphInfo:
    """All graphs of a file, the outer graph first. ``state`` is in the order of the model's state."""

    nodes: tuple[NodeInfo, ...]
    values: tuple[ValueInfo, ...]
    graphs: tuple[GraphScope, ...]
    state: tuple[StatePlace, ...]
    statistics: dict[str, Statistics]


def paths_of(graph: GraphInfo) -> dict[str, int]:
    """Return the number of each node by the path of node names, as in scopes."""
    paths: list[str] = []
    for node in graph.nodes:
        outer = graph.graphs[node.graph].node
        inner = node.name if outer is None or node.name.startswith("/") else f"/{node.name}"
        paths.append(inner if outer is None else f"{paths[outer]}{inner}")
    return {path: number for number, path in reversed(list(enumerate(paths)))}


#: The most elements of a constant and the most letters of an attribute that are shown.
_ELEMENTS, _LETTERS = 8, 300
#: The metadata key in which PyTorch's exporter writes the modules around a node.
_SCOPES = "pkg.torch.onnx.name_scopes"


@dataclass
class _Reading:
    """The facts while graphs are read."""

    operators: Mapping[ir.Node, Operator]
    problems: Mapping[ir.Node, str]
    parameters: Mapping[ir.Value, str]
    nodes: list[NodeInfo] = field(default_factory=list)
    values: list[ValueInfo] = field(default_factory=list)
    graphs: list[GraphScope] = field(default_factory=list)
    numbers: dict[ir.Value, int] = field(default_factory=dict)

    def number(self, value: ir.Value) -> int:
        """Return the number of a value."""
        if value not in self.numbers:
            self.numbers[value] = len(self.values)
            self.values.append(_value(value, self.parameters.get(value)))
        return self.numbers[value]

    def graph(self, graph: ir.Graph, name: str = "", node: ir.Node | None = None, number: int | None = None) -> None:
        """Read a graph and all inner graphs."""
        inputs, here = inputs_of(graph), len(self.graphs)
        ends = tuple(map(self.number, inputs)), tuple(map(self.number, graph.outputs))
        links = {} if node is None else _links(node, graph, inputs)
        self.graphs.append(GraphScope(name, number, *ends, **links))
        for each in graph:
            if is_of_onnx(each, "Constant") and read_constant(each.outputs[0]) is not None:
                continue
            place = len(self.nodes)
            self.nodes.append(self.node(each, here))
            for attribute, inner in subgraphs_of(each):
                self.graph(inner, attribute, each, place)

    def node(self, node: ir.Node, graph: int) -> NodeInfo:
        """Read a node."""
        operator = self.operators.get(node)
        return NodeInfo(
            name=node_label(node),
            operator=node.op_type,
            domain=normal_domain(node.domain),
            version=None if operator is None else operator.since,
            graph=graph,
            scope=_scope(node),
            inputs=tuple(
                (
                    slot.name if operator and (slot := operator.slot(place)) else "",
                    None if value is None else self.number(value),
                )
                for place, value in enumerate(node.inputs)
            ),
            outputs=tuple(map(self.number, node.outputs)),
            attributes=dict(_attributes(node)),
            problem=self.problems.get(node),
        )


def graph_facts(
    graph: ir.Graph,
    operators: Mapping[ir.Node, Operator],
    problems: Mapping[ir.Node, str],
    parameters: Mapping[ir.Value, str],
    state: Sequence[StateVar],
) -> GraphInfo:
    """Return the facts about a graph."""
    reading = _Reading(operators, problems, parameters)
    reading.graph(graph)
    arrays = {name: read_constant(value) for value, name in parameters.items()}
    return GraphInfo(
        tuple(reading.nodes),
        tuple(reading.values),
        tuple(reading.graphs),
        tuple(_places(reading, state)),
        {name: statistics(array) for name, array in arrays.items() if array is not None and array.size},
    )


def statistics(array: np.ndarray) -> Statistics:
    """Return the distribution of an array of floats."""
    elements = np.asarray(array, np.float64).ravel()
    finite = elements[np.isfinite(elements)]
    if not finite.size:
        return Statistics(math.nan, math.nan, math.nan, math.nan, 0.0, elements.size)
    zeros = float(np.mean(elements == 0))
    spread = (finite.mean(), finite.std(), finite.min(), finite.max())
    mean, deviation, smallest, largest = map(float, spread)
    return Statistics(mean, deviation, smallest, largest, zeros, elements.size - finite.size)


def _value(value: ir.Value, parameter: str | None) -> ValueInfo:
    array = read_constant(value)
    if array is not None:
        kind = "constant" if parameter is None else "parameter"
        # An array without elements may have any number of rows.
        listed = math.prod(itertools.takewhile(bool, array.shape))
        content = None if listed > _ELEMENTS else _short(str(array.tolist()))
        return ValueInfo(str(value.name), array.dtype.name, array.shape, kind, parameter, content)
    shape = None
    if value.shape is not None:
        shape = tuple(size if isinstance(size, int) else size.value or "?" for size in value.shape)
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        dtype = _short(str(value.type))
    else:
        dtype = None if value.dtype in (None, ir.DataType.UNDEFINED) else value.dtype.numpy().name
    return ValueInfo(str(value.name), dtype, shape)


def _scope(node: ir.Node) -> tuple[str, ...]:
    """Return the modules around a node, from PyTorch's metadata or from the parts of the node's name."""
    stated = node.metadata_props.get(_SCOPES)
    if stated is not None:
        names = [part.strip().strip("'\"") for part in stated.strip("[]").split(",")]
        names = [name for name in names if name][:-1]  # the last one is the operation
        return tuple(inner.removeprefix(f"{outer}.") for outer, inner in zip(["", *names], names, strict=False))
    return tuple(filter(None, (node.name or "").split("/")))[:-1]


def _attributes(node: ir.Node) -> Iterator[tuple[str, str]]:
    for name, attribute in node.attributes.items():
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            continue
        value = attribute.value
        if attribute.type == ir.AttributeType.TENSOR:
            value = f"{value.dtype.numpy().name}{list(value.shape.numpy())}"
        elif attribute.type in (ir.AttributeType.STRING, ir.AttributeType.STRINGS):
            value = attribute.as_string() if attribute.type == ir.AttributeType.STRING else list(attribute.as_strings())
        elif isinstance(value, float):
            value = f"{value:.6g}"
        yield name, _short(str(list(value) if isinstance(value, tuple) else value))


def _short(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]} ..."


def _links(node: ir.Node, body: ir.Graph, inputs: Sequence[ir.Value]) -> dict[str, Any]:
    """Return the connections of an inner graph to the node's inputs and outputs, and to itself."""
    outputs, carries = body.outputs, []
    if is_of_onnx(node, "Loop"):
        entries = [(place, place) for place in range(1, len(node.inputs))]  # the number of trips stays outside
        exits = [(place + 1, place) for place in range(len(node.outputs))]
        carries = [(place, place + 1) for place in range(len(inputs) - 1)]
    else:
        exits = [(place, place) for place in range(len(node.outputs))]
        entries = [] if is_of_onnx(node, "If") else [(place, place) for place in range(len(node.inputs))]
    if is_of_onnx(node, "Scan"):
        first, slots, _ = loop_slots(node)
        entries = [(first + place, place) for place in range(len(inputs))]
        carries = [(place, place) for place in range(len(slots))]
    # A file that cannot be loaded may have fewer inputs and outputs than its carries need.
    carries = [(o, i) for o, i in carries if o < len(outputs) and i < len(inputs)]
    return {
        "entries": tuple((o, i) for o, i in entries if o < len(node.inputs) and i < len(inputs)),
        "exits": tuple((i, o) for i, o in exits if i < len(outputs)),
        "carries": tuple((o, i) for o, i in carries if copied_from(outputs[o]) is not inputs[i]),
    }


def _places(reading: _Reading, state: Sequence[StateVar]) -> Iterator[StatePlace]:
    """Yield the place of each state variable."""
    outer = reading.graphs[0]
    ends = [{reading.values[number].name: number for number in numbers} for numbers in (outer.inputs, outer.outputs)]
    labels: dict[str, list[int]] = {}
    for number, node in enumerate(reading.nodes):
        labels.setdefault(node.name, []).append(number)
    for variable in state:
        nodes = labels.get(variable.node) or [n for label in variable.node.split(", ") for n in labels.get(label, ())]
        yield StatePlace(ends[0].get(variable.input or ""), ends[1].get(variable.output or ""), tuple(nodes))


@dataclass(frozen=True)
class StreamInfo:
    """The facts about a model that is streamed with an open dimension as time, or about a file of an exported step."""

    symbol: str | None  # None for an exported step
    smallest_pulse: int | None = None  # in input frames; multiples fit too. None if the model cannot be streamed.
    #: by output, the frames before its frame 0; None for an output known only at the end
    delay: dict[str, int | None] | None = None
    look_ahead: int | None = None  # later input frames that an output frame depends on
    receptive_field: int | None = None  # input frames that an output frame depends on; None for the whole past
    state_bytes: int | None = None  # size of the state of one stream
    past: int | None = None  # the most earlier frames of an attention without a bound, where that changes the model
    rate: dict[str, Fraction | None] | None = None  # by output, frames per input frame; None without frames
    problem: str | None = None  # the reason why the model cannot be streamed, and a remedy, or None


@dataclass(frozen=True)
class KeptState:
    """An entry of the state of a stream: name, kind, shape and bytes."""

    name: str
    kind: str
    shape: tuple[int | str, ...]
    nbytes: int


@short_repr
@dataclass(frozen=True)
class GraphStream:
    """A graph in pulses."""

    symbol: str  # the dimension that is time
    values: dict[int, StreamedValue]  # the facts about values, by their numbers in the graph
    kept: dict[int, list[KeptState]]  # the state of nodes, by their numbers
    #: the number of the node that cannot be streamed; None if all nodes can, or for other reasons
    refused: int | None = None


def step_facts(spec: StepSpec, symbol: str | None, outputs: Mapping[str, str]) -> StreamInfo:
    """Return the facts about a step, with the names of ``outputs`` in the file."""
    return StreamInfo(
        symbol,
        spec.smallest_pulse if symbol else spec.pulse,
        {shown: spec.delay[name] for name, shown in outputs.items()},
        spec.look_ahead,
        spec.receptive_field,
        sum(entry.nbytes for entry in spec.state),
        spec.past,
        {shown: spec.rate[name] for name, shown in outputs.items()},
    )


def stream_facts(
    model: Model, symbol: str, past: int | None, graph: GraphInfo | None
) -> tuple[StreamInfo, GraphStream | None]:
    """Return the facts about streaming over a dimension, and about values of the graph up to the first refused node."""
    state: list[KeptState] = []
    with contextlib.nullcontext(Observed()) if graph is None else observe() as values:
        try:
            streamed = model.stream(symbol, past=past)
            state = [KeptState(each.name, each.kind, tuple(each.shape or ()), each.nbytes) for each in streamed.state]
            info = step_facts(streamed.spec, symbol, {each.name: each.name for each in model.outputs})
        except JaxrnnError as error:
            info = StreamInfo(symbol, problem=str(error).removeprefix(f"{model.label}: "))
        except Exception as error:  # a file is to be looked at whatever its operators do under a symbolic length
            info = StreamInfo(symbol, problem=f"{type(error).__name__}: {error}")
    if graph is None:
        return info, None
    paths = paths_of(graph)
    named = (_node_at(scope, paths) for scope in re.findall(r"node '([^']*)'", info.problem or ""))
    refused = next((node for node in named if node is not None), None)
    known = dict(_values(graph, paths, values, symbol))
    for node in graph.nodes if info.problem is None else ():
        # A node that passes its input on unchanged, such as an Identity, leaves no equation in the trace.
        taken = [known[value] for _, value in node.inputs[:1] if value in known]
        operator = operator_table().get((node.domain, node.operator))
        is_of_shape = operator is not None and operator.traits.of_shape
        if taken and not is_of_shape and not any(output in known for output in node.outputs):
            known |= {output: taken[0] for output in node.outputs[:1] if _may_be(taken[0], graph.values[output])}
    for output in () if refused is None else graph.nodes[refused].outputs:
        known.pop(output, None)
    kept: dict[int, list[KeptState]] = {}
    for entry in state:
        node = _node_at(entry.name.rpartition(".")[0], paths)
        node = _node_at(entry.name, paths) if node is None else node
        if node is not None:
            kept.setdefault(node, []).append(entry)
    return info, GraphStream(symbol, known, kept, refused)


def _node_at(scope: str, paths: Mapping[str, int]) -> int | None:
    """Return the innermost node of a scope."""
    while scope and scope not in paths:
        scope = scope.rpartition("/")[0]
    return paths.get(scope)


def _values(
    graph: GraphInfo, paths: Mapping[str, int], found: Observed, symbol: str
) -> Iterator[tuple[int, StreamedValue]]:
    """Yield the facts about outputs of nodes: for each output, the node's last value of the declared shape."""
    opened = {size for value in graph.graphs[0].inputs for size in graph.values[value].shape or ()}
    by_node: dict[int, list[StreamedValue]] = {}
    for scope, values in found.items():
        node = _node_at(scope, paths)
        if node is not None:
            by_node.setdefault(node, []).extend(values)

    def renamed(size: int | str) -> int | str:
        """Replace S in a size by the file's name of the length."""
        return size if isinstance(size, int) else re.sub(rf"\b{SYMBOL}\b", lambda _: symbol, size)

    for number, values in by_node.items():
        named = [dataclasses.replace(value, shape=tuple(map(renamed, value.shape))) for value in values]
        outputs = [output for output in graph.nodes[number].outputs if graph.values[output].name]
        for output in outputs:
            declared = graph.values[output]
            fitting = [value for value in named if _may_be(value, declared)]
            if fitting and declared.shape is not None:
                # The trace has a batch of size 1; show the name of the batch dimension instead.
                pairs = zip(declared.shape, fitting[-1].shape, strict=True)
                shape = tuple(name if name in opened and isinstance(size, int) else size for name, size in pairs)
                yield output, dataclasses.replace(fitting[-1], shape=shape)
            elif len(outputs) == 1:
                yield output, named[-1]


def _may_be(value: StreamedValue, declared: ValueInfo) -> bool:
    if declared.shape is None or len(declared.shape) != len(value.shape):
        return False
    pairs = zip(declared.shape, value.shape, strict=True)
    return all(not isinstance(a, int) or not isinstance(b, int) or a == b for a, b in pairs)
