"""A model file as one graph: local functions inlined, nodes in order, each with the opset that it was written for."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from jaxrnn.errors import ModelError, UnsupportedError
from jaxrnn.onnx.origins import mark_origins

#: A file may not expand to more nodes than this when its functions are inlined.
MAX_NODES = 1_000_000

DEFAULT_DOMAINS = ("", "ai.onnx")


def normal_domain(domain: str) -> str:
    """ONNX spells its default domain in two ways."""
    return "" if domain in DEFAULT_DOMAINS else domain


def read_graph(proto: onnx.ModelProto) -> ir.Model:
    """The model with its functions inlined and its nodes sorted; ``node.version`` holds each node's opset.

    Raises:
        ModelError: a cycle, a recursive function, or an expansion beyond `MAX_NODES`.
        UnsupportedError: a function that takes a graph as attribute.
    """
    model = ir.serde.deserialize_model(proto)
    mark_origins(proto, model)
    _set_versions(model.graph, model.opset_imports)
    for function in model.functions.values():
        _set_versions(function, function.opset_imports)
        # Every node carries its own version, so the inliner need not compare the functions' with the model's.
        for domain in function.opset_imports:
            function.opset_imports[domain] = model.opset_imports.setdefault(domain, function.opset_imports[domain])
    if model.functions:
        _check_expansion(model)
        try:
            InlinePass()(model)
        except ValueError as error:
            raise UnsupportedError(f"a local function cannot be inlined: {error}") from error
    for graph in graphs_of(model.graph):
        try:
            graph.sort()
        except ValueError as error:
            path = " -> ".join(repr(label) for label in _find_cycle(graph))
            raise ModelError(
                f"the graph {graph.name!r} has a cycle: {path}; a node may not depend on its own output"
            ) from error
    return model


def nodes_of(graph: ir.Graph) -> Iterator[ir.Node]:
    """Every node of a graph and of the subgraphs inside it, in order, outer before inner."""
    yield from graph.all_nodes()


def subgraphs_of(node: ir.Node) -> Iterable[tuple[str, ir.Graph]]:
    """The graphs among a node's attributes, with their names (``then_branch``, ``body``, ...)."""
    for name, attribute in node.attributes.items():
        if attribute.type == ir.AttributeType.GRAPH:
            yield name, attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            for index, graph in enumerate(attribute.as_graphs()):
                yield f"{name}[{index}]", graph


def graphs_of(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph and every subgraph inside it."""
    yield graph
    for node in graph:
        for _, inner in subgraphs_of(node):
            yield from graphs_of(inner)


def node_label(node: ir.Node) -> str:
    """What to call a node in messages and scopes: its name, or its first output where it has none."""
    if node.name:
        return node.name
    return next((str(output.name) for output in node.outputs if output.name), node.op_type)


def _find_cycle(graph: ir.Graph) -> list[str]:
    """The labels of the nodes along one cycle, ending where it began."""
    needs: dict[ir.Node, set[ir.Node]] = {node: set(node.predecessors()) for node in graph}
    for node in graph:
        for _, inner in subgraphs_of(node):
            for nested in inner.all_nodes():
                needs[node] |= {source for source in nested.predecessors() if source.graph is graph}
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        return [node_label(node) for node in error.args[1]]
    return []


def _set_versions(graph: ir.Graph | ir.Function, opsets: dict[str, int]) -> None:
    versions = {normal_domain(domain): version for domain, version in opsets.items()}
    for node in graph.all_nodes():
        node.version = versions.get(normal_domain(node.domain))


def _check_expansion(model: ir.Model) -> None:
    """Refuse recursion and expansions that would not end, before the inliner starts."""
    sizes: dict[ir.OperatorIdentifier, int] = {}

    def size(nodes: Iterable[ir.Node], path: tuple[ir.OperatorIdentifier, ...]) -> int:
        total = 0
        for node in nodes:
            identifier = node.op_identifier()
            if identifier in path:
                names = " -> ".join(f"{name}" for _, name, _ in (*path, identifier))
                raise ModelError(
                    f"the local function {identifier[1]!r} calls itself ({names}); ONNX allows no recursion"
                )
            function = model.functions.get(identifier)
            if function is not None and identifier not in sizes:
                sizes[identifier] = size(function.all_nodes(), (*path, identifier))
            total += 1 if function is None else sizes[identifier]
        return total

    nodes = size(model.graph.all_nodes(), ())
    if nodes > MAX_NODES:
        raise ModelError(f"inlining the local functions would give {nodes} nodes; the limit is {MAX_NODES}")
