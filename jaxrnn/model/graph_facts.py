"""The graph of a file as facts: nodes, values, graphs inside of nodes, and where the state enters, stays and leaves."""

from __future__ import annotations

from dataclasses import dataclass

from jaxrnn._files.messages import brief


@dataclass(frozen=True)
class ValueInfo:
    """A value of a graph.

    Attributes:
        name: its name.
        dtype: its element type, or its type where it is no tensor; None where the file leaves it open.
        shape: sizes and names of open dimensions; None where not known.
        kind: ``"value"``, ``"parameter"`` or ``"constant"``.
        parameter: the name of the parameter.
        content: the elements of a small constant.
    """

    name: str
    dtype: str | None
    shape: tuple[int | str, ...] | None
    kind: str = "value"
    parameter: str | None = None
    content: str | None = None


@dataclass(frozen=True)
class NodeInfo:
    """A node.

    Attributes:
        name: its label in messages.
        operator, domain, version: what it applies; the version is None where it cannot be run.
        graph: the number of the graph that holds it.
        scope: the names of the modules that it comes from, the outermost first.
        inputs: for each, the name of the operator's parameter and the number of the value, None where it is absent.
        outputs: the numbers of its values.
        attributes: as text.
        problem: why it cannot be run, or None.
    """

    name: str
    operator: str
    domain: str
    version: int | None
    graph: int
    scope: tuple[str, ...]
    inputs: tuple[tuple[str, int | None], ...]
    outputs: tuple[int, ...]
    attributes: dict[str, str]
    problem: str | None = None


@dataclass(frozen=True)
class Subgraph:
    """A graph: the outer one, or one inside of a node.

    Attributes:
        name: of the attribute that holds it; empty for the outer one.
        node: the number of the node that it is inside of; None for the outer one.
        inputs, outputs: the numbers of its values.
        entries: places of the node's inputs and of those inputs of this graph that they become.
        exits: places of this graph's outputs and of the node's outputs that they become.
        carries: places of outputs, and of the inputs that they become in the next step.
    """

    name: str
    node: int | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    entries: tuple[tuple[int, int], ...] = ()
    exits: tuple[tuple[int, int], ...] = ()
    carries: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class StatePlace:
    """Where a state variable is: the values that it enters and leaves by, or the nodes that keep it."""

    input: int | None
    output: int | None
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Statistics:
    """The elements of a parameter: how they are spread, which share is zero, and how many are not finite."""

    mean: float
    deviation: float
    smallest: float
    largest: float
    zeros: float
    not_finite: int


@brief
@dataclass(frozen=True)
class GraphInfo:
    """All graphs of a file; the first one is the outer one. ``state`` is in the order of the model's."""

    nodes: tuple[NodeInfo, ...]
    values: tuple[ValueInfo, ...]
    graphs: tuple[Subgraph, ...]
    state: tuple[StatePlace, ...]
    statistics: dict[str, Statistics]


def paths_of(graph: GraphInfo) -> dict[str, int]:
    """The number of each node by the names of the nodes that it is inside of and its own, as scopes are written."""
    paths: list[str] = []
    for node in graph.nodes:
        outer = graph.graphs[node.graph].node
        inner = node.name if outer is None or node.name.startswith("/") else f"/{node.name}"
        paths.append(inner if outer is None else f"{paths[outer]}{inner}")
    return {path: number for number, path in reversed(list(enumerate(paths)))}
