"""The nodes of a graph that carry a state over steps, with their sizes, also of graphs that cannot be run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxrnn.onnx.carries import CELLS, LOOPS, QUANTIZED, STATEFUL, attribute_of, loop_slots
from jaxrnn.onnx.graph import node_label, normal_domain, subgraphs_of
from jaxrnn.onnx.inference import infer_shapes
from jaxrnn.onnx.interface import spec_of
from jaxrnn.onnx.signatures import known_shape


@dataclass(frozen=True)
class RecurrentInfo:
    """A node that carries a state over steps.

    Attributes:
        name: the label of the node in messages.
        operator: LSTM, GRU, RNN, LinearAttention, CausalConvWithState, Scan or Loop.
        where: path of the subgraph that holds it, empty in the outer graph.
        direction: forward, reverse, bidirectional, or mixed for a Scan whose inputs differ; None for a Loop.
        input_size: the features of the input of a step if known; None for a Scan or Loop.
        hidden_size: the size of the hidden state of an LSTM, GRU or RNN if known.
        weights: the number of elements of W, R, B and P, or of a convolution's kernel and bias, if known.
        carries: the name, dtype and shape of what any other node carries.
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
    nodes = tuple(_find(model.graph))
    if all(info.weights is not None for info in nodes if info.operator in CELLS):
        return nodes
    # Some exporters compute the weights by nodes; inference still finds their shapes.
    infer_shapes(model)
    return tuple(_find(model.graph))


def _find(graph: ir.Graph) -> Iterator[RecurrentInfo]:
    for where, node in walk(graph):
        if (normal_domain(node.domain), node.op_type) == QUANTIZED:
            yield _cell(where, node, features=-2)
        elif normal_domain(node.domain):
            continue
        elif node.op_type in CELLS:
            yield _cell(where, node)
        elif node.op_type in STATEFUL:
            yield _stateful(where, node)
        elif node.op_type in LOOPS:
            yield _loop(where, node)


def _cell(where: str, node: ir.Node, features: int = -1) -> RecurrentInfo:
    """A cell, whose weights have their input features along the axis ``features``."""
    inputs = [*node.inputs, *[None] * 8][:8]
    w, r, b, p = (_shape(inputs[index]) for index in (1, 2, 3, 7))
    present = [shape for value, shape in zip((*inputs[1:4], inputs[7]), (w, r, b, p), strict=True) if value is not None]
    known = [int(np.prod(shape)) for shape in present if shape is not None]
    direction = attribute_of(node, "direction", ir.AttributeType.STRING, "forward")
    hidden = attribute_of(node, "hidden_size", ir.AttributeType.INT, None)
    return RecurrentInfo(
        name=node_label(node),
        operator=node.op_type,
        where=where,
        direction=direction,
        input_size=w[features] if w and len(w) >= -features else None,
        hidden_size=r[features] if r and len(r) >= -features else hidden,
        weights=sum(known) if len(known) == len(present) else None,
    )


def _stateful(where: str, node: ir.Node) -> RecurrentInfo:
    inputs = [*node.inputs, *[None] * 4][:4]
    operator, weights, features = STATEFUL[node.op_type], None, None
    if node.op_type == "CausalConvWithState":
        kernel, bias = _shape(inputs[1]), _shape(inputs[2])
        features = kernel[0] if kernel else None
        if kernel is not None and (bias is not None or inputs[2] is None):
            weights = int(np.prod(kernel)) + (0 if bias is None else int(np.prod(bias)))
    elif inputs[0] is not None and inputs[0].shape is not None and len(inputs[0].shape) == 3:
        size = inputs[0].shape[2]
        features = size if isinstance(size, int) else None
    ends = (inputs[operator.past], *node.outputs[1:2])
    typed = [value for value in ends if value is not None and value.name and value.type is not None]
    carries = (str(spec_of(typed[0])) if typed else operator.slot,)
    return RecurrentInfo(node_label(node), node.op_type, where, "forward", features, None, weights, carries)


def _shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape of a constant or of a declared value, where every dimension is known."""
    if value is None:
        return None
    shape = known_shape(value) or value.shape
    sizes = [size for size in shape or () if isinstance(size, int)]
    return tuple(sizes) if shape is not None and len(sizes) == len(shape) else None


def _loop(where: str, node: ir.Node) -> RecurrentInfo:
    direction = None
    if node.op_type == "Scan":
        directions = set(attribute_of(node, "scan_input_directions", ir.AttributeType.INTS, (0,)))
        direction = "mixed" if len(directions) > 1 else "reverse" if directions == {1} else "forward"
    carries = tuple(str(spec_of(value)) for value in loop_slots(node)[1])
    return RecurrentInfo(node_label(node), node.op_type, where, direction, carries=carries)
