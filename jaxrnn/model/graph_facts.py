"""Facts about the graph of a file: nodes, values, inner graphs, and the places of the state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxrnn._files.messages import short_repr
from jaxrnn.onnx.graph import node_label, normal_domain, subgraphs_of
from jaxrnn.onnx.program import read_constant
from jaxrnn.onnx.recurrences import copied_from, loop_slots
from jaxrnn.onnx.registry import Operator
from jaxrnn.onnx.state import StateVar


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
class Subgraph:
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
    graphs: tuple[Subgraph, ...]
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


#: Of a constant or an attribute, so many elements and letters are written out.
_ELEMENTS, _LETTERS = 8, 300
#: Where PyTorch's exporter writes the modules that a node comes from.
_SCOPES = "pkg.torch.onnx.name_scopes"


@dataclass
class _Reading:
    """The facts while graphs are read."""

    operators: Mapping[ir.Node, Operator]
    problems: Mapping[ir.Node, str]
    parameters: Mapping[ir.Value, str]
    nodes: list[NodeInfo] = field(default_factory=list)
    values: list[ValueInfo] = field(default_factory=list)
    graphs: list[Subgraph] = field(default_factory=list)
    numbers: dict[ir.Value, int] = field(default_factory=dict)

    def number(self, value: ir.Value) -> int:
        """Return the number of a value."""
        if value not in self.numbers:
            self.numbers[value] = len(self.values)
            self.values.append(_value(value, self.parameters.get(value)))
        return self.numbers[value]

    def graph(self, graph: ir.Graph, name: str = "", node: ir.Node | None = None, number: int | None = None) -> None:
        """Read a graph and all inner graphs."""
        initialized = set(graph.initializers.values())
        inputs = [value for value in graph.inputs if value not in initialized]
        here = len(self.graphs)
        ends = tuple(map(self.number, inputs)), tuple(map(self.number, graph.outputs))
        links = {} if node is None else _links(node, graph, inputs)
        self.graphs.append(Subgraph(name, number, *ends, **links))
        for each in graph:
            if each.op_type == "Constant" and read_constant(each.outputs[0]) is not None:
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
                (_slot(operator, place), None if value is None else self.number(value))
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
        return ValueInfo(str(value.name), array.dtype.name, array.shape, kind, parameter, _content(array))
    shape = None
    if value.shape is not None:
        shape = tuple(size if isinstance(size, int) else size.value or "?" for size in value.shape)
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        dtype = _short(str(value.type))
    else:
        dtype = None if value.dtype in (None, ir.DataType.UNDEFINED) else value.dtype.numpy().name
    return ValueInfo(str(value.name), dtype, shape)


def _content(array: np.ndarray) -> str | None:
    return None if array.size > _ELEMENTS else _short(str(array.tolist()))


def _slot(operator: Operator | None, place: int) -> str:
    slot = None if operator is None else operator.slot(place)
    return "" if slot is None else slot.name


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
    if node.op_type == "Loop":
        entries = [(place, place) for place in range(1, len(node.inputs))]  # the number of trips stays outside
        exits = [(place + 1, place) for place in range(len(node.outputs))]
        carries = [(place, place + 1) for place in range(len(inputs) - 1)]
    else:
        exits = [(place, place) for place in range(len(node.outputs))]
        entries = [] if node.op_type == "If" else [(place, place) for place in range(len(node.inputs))]
    if node.op_type == "Scan":
        first, slots, _ = loop_slots(node)
        entries = [(first + place, place) for place in range(len(inputs))]
        carries = [(place, place) for place in range(len(slots))]
    return {
        "entries": tuple((o, i) for o, i in entries if o < len(node.inputs) and i < len(inputs)),
        "exits": tuple((i, o) for i, o in exits if i < len(outputs)),
        "carries": tuple((o, i) for o, i in carries if o < len(outputs) and copied_from(outputs[o]) is not inputs[i]),
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
