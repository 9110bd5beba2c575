"""The nodes of a graph that carry a state over steps, with their sizes; works on graphs that cannot be run, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from jaxrnn.onnx.graph import normal_domain, subgraphs_of
from jaxrnn.onnx.interface import tensor_info
from jaxrnn.onnx.program import node_label, read_constant

#: Operators that carry a state from step to step.
CELLS = ("LSTM", "GRU", "RNN")
LOOPS = ("Scan", "Loop")


@dataclass(frozen=True)
class RecurrentInfo:
    """A node that carries a state over steps.

    Attributes:
        name: what errors call the node.
        operator: LSTM, GRU, RNN, Scan or Loop.
        where: path of the subgraph that holds it, empty in the outer graph.
        direction: forward, reverse, bidirectional, or mixed for a Scan whose inputs differ; None for a Loop.
        input_size: features that enter an LSTM, GRU or RNN each step, where the file tells.
        hidden_size: size of its hidden state, where the file tells.
        weights: number of elements of W, R, B and P, where the file tells.
        carries: name, dtype and shape of what a Scan or Loop carries.
    """

    name: str
    operator: str
    where: str
    direction: str | None
    input_size: int | None = None
    hidden_size: int | None = None
    weights: int | None = None
    carries: tuple[str, ...] = ()


def walk(graph: ir.Graph, path: str = "") -> Iterator[tuple[str, ir.Node]]:
    """Every node with the path of the subgraph that holds it."""
    for node in graph:
        yield path, node
        for name, inner in subgraphs_of(node):
            yield from walk(inner, f"{path}{node_label(node)}.{name}/")


def recurrent_nodes(model: ir.Model) -> tuple[RecurrentInfo, ...]:
    """Every node that carries a state over steps, subgraphs included; may add inferred shapes to the model."""
    found = tuple(_find(model.graph))
    if all(info.weights is not None for info in found if info.operator in CELLS):
        return found
    # Some exporters compute the weights from others, node by node: inference knows the shapes all the same.
    ShapeInferencePass(check_type=False, strict_mode=False)(model)
    return tuple(_find(model.graph))


def _find(graph: ir.Graph) -> Iterator[RecurrentInfo]:
    for where, node in walk(graph):
        if normal_domain(node.domain):
            continue
        if node.op_type in CELLS:
            yield _cell(where, node)
        elif node.op_type in LOOPS and "body" in node.attributes:
            yield _loop(where, node, node.attributes["body"].as_graph())


def _cell(where: str, node: ir.Node) -> RecurrentInfo:
    inputs = [*node.inputs, *[None] * 8][:8]
    w, r, b, p = (_shape(inputs[index]) for index in (1, 2, 3, 7))
    given = [shape for value, shape in zip((*inputs[1:4], inputs[7]), (w, r, b, p), strict=True) if value is not None]
    known = [int(np.prod(shape)) for shape in given if shape is not None]
    direction = node.attributes["direction"].as_string() if "direction" in node.attributes else "forward"
    hidden = node.attributes["hidden_size"].as_int() if "hidden_size" in node.attributes else None
    return RecurrentInfo(
        name=node_label(node),
        operator=node.op_type,
        where=where,
        direction=direction,
        input_size=w[-1] if w else None,
        hidden_size=r[-1] if r else hidden,
        weights=sum(known) if len(known) == len(given) else None,
    )


def _shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape of a constant or of a declared value, where every dimension is known."""
    if value is None:
        return None
    array = read_constant(value)
    if array is not None:
        return array.shape
    if value.shape is None or not all(isinstance(size, int) for size in value.shape):
        return None
    return tuple(size for size in value.shape if isinstance(size, int))


def _loop(where: str, node: ir.Node, body: ir.Graph) -> RecurrentInfo:
    if node.op_type == "Loop":
        carried, direction = body.inputs[2:], None
    else:
        scanned = node.attributes["num_scan_inputs"].as_int() if "num_scan_inputs" in node.attributes else 0
        carried = body.inputs[: len(body.inputs) - scanned]
        given = node.attributes.get("scan_input_directions")
        directions = set(given.as_ints()) if given is not None else {0}
        direction = "mixed" if len(directions) > 1 else "reverse" if directions == {1} else "forward"
    carries = tuple(str(tensor_info(value)) for value in carried)
    return RecurrentInfo(node_label(node), node.op_type, where, direction, carries=carries)
