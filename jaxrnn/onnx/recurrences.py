"""Nodes that carry a state from step to step, also in graphs that cannot be run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxrnn.onnx.graph import is_of_onnx, known_shape, node_label, spec_of, subgraphs_of
from jaxrnn.onnx.inference import infer_shapes
from jaxrnn.onnx.operators import OwnOperators, traits_of
from jaxrnn.onnx.registry import Carries


@dataclass(frozen=True)
class RecurrentInfo:
    """A node that carries a state over steps."""

    name: str  # the label of the node in messages
    operator: str  # the name of the operator, such as LSTM, LinearAttention or Loop
    where: str  # the path of the subgraph with the node; empty in the outer graph
    direction: str | None  # forward, reverse, bidirectional, or mixed for a Scan whose inputs differ; None for a Loop
    input_size: int | None = None  # the features of the input of a step if known; None for a Scan or Loop
    hidden_size: int | None = None  # the size of the hidden state of an LSTM, GRU or RNN if known
    #: the number of elements of W, R, B and P, or of a convolution's kernel and bias, if known
    weights: int | None = None
    #: the name, dtype and shape of the carries of other nodes, without values that a body only passes on
    carries: tuple[str, ...] = ()


def walk(graph: ir.Graph, path: str = "") -> Iterator[tuple[str, ir.Node]]:
    """Yield each node with the path of its subgraph."""
    for node in graph:
        yield path, node
        for name, inner in subgraphs_of(node):
            yield from walk(inner, f"{path}{node_label(node)}.{name}/")


def recurrent_nodes(model: ir.Model, own: OwnOperators) -> tuple[RecurrentInfo, ...]:
    """Return the nodes that carry a state over steps; may add inferred shapes to the model."""
    found = [(where, node, carries) for where, node in walk(model.graph) if (carries := traits_of(node, own).carries)]
    nodes = tuple(_described(*each) for each in found)
    if all(info.weights is not None for info, (*_, carries) in zip(nodes, found, strict=True) if carries.hidden):
        return nodes
    # Some exporters compute the weights by nodes; inference still finds their shapes.
    infer_shapes(model)
    return tuple(_described(*each) for each in found)


def starts_recurrence(node: ir.Node, index: int, carries: Carries | None) -> bool:
    """Return True if an input of a node with these carries is the initial value of a recurrence."""
    if carries is None:
        return False
    if carries.states:
        return index in {start for start, _ in carries.states.values()}
    # A Scan or Loop computes a new value for a carry, and does not pass it on unchanged.
    first, slots, results = loop_slots(node)
    place = index - first
    return 0 <= place < min(len(slots), len(results)) and copied_from(results[place]) is not slots[place]


def copied_from(value: ir.Value) -> ir.Value:
    """Return the value that a chain of Identity nodes copies."""
    maker = value.producer()
    while maker is not None and is_of_onnx(maker, "Identity") and maker.inputs and maker.inputs[0] is not None:
        value = maker.inputs[0]
        maker = value.producer()
    return value


def loop_slots(node: ir.Node) -> tuple[int, Sequence[ir.Value], Sequence[ir.Value]]:
    """Return the carries of a Scan or Loop, which may be a node that `load` refuses.

    The result is the number of the first carried input of the node, the inputs of the body for carried values, and the
    outputs of the body from the first updated value on.
    """
    body = next((graph for name, graph in subgraphs_of(node) if name == "body"), None)
    if body is None:
        return 0, (), ()
    if is_of_onnx(node, "Loop"):
        return 2, body.inputs[2:], body.outputs[1:]
    first = int(node.version is not None and node.version < 9)  # after the lengths of the sequences
    scanned = _attribute(node, "num_scan_inputs", ir.AttributeType.INT, 0)
    return first, body.inputs[: max(len(body.inputs) - scanned, 0)], body.outputs


def _attribute(node: ir.Node, name: str, kind: ir.AttributeType, default: Any) -> Any:
    """Return an attribute, or the default if it is missing or has a type that `load` refuses."""
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.type != kind else attribute.value


def _described(where: str, node: ir.Node, carries: Carries) -> RecurrentInfo:
    name, operator = node_label(node), node.op_type
    if not carries.states:
        first, values, _ = loop_slots(node)
        changed = (value for n, value in enumerate(values) if starts_recurrence(node, first + n, carries))
        slots = tuple(str(spec_of(value)) for value in changed)
        ways = set(_attribute(node, "scan_input_directions", ir.AttributeType.INTS, (0,)))
        direction = "mixed" if len(ways) > 1 else "reverse" if ways == {1} else "forward"
        return RecurrentInfo(name, operator, where, direction if is_of_onnx(node, "Scan") else None, carries=slots)
    direction = _attribute(node, "direction", ir.AttributeType.STRING, "forward")
    features, weights = _size(node, carries.features), _weights(node, carries.weights)
    if carries.hidden:
        size = _size(node, carries.hidden)
        hidden = _attribute(node, "hidden_size", ir.AttributeType.INT, None) if size is None else size
        return RecurrentInfo(name, operator, where, direction, features, hidden, weights)
    slots = tuple(_slot(node, *each) for each in carries.states.items())
    return RecurrentInfo(name, operator, where, direction, features, None, weights, slots)


def _slot(node: ir.Node, name: str, ends: tuple[int, int]) -> str:
    """Return the name, dtype and shape that the file declares for the old or new value of a carry."""
    values = (*node.inputs[ends[0] : ends[0] + 1], *node.outputs[ends[1] : ends[1] + 1])
    typed = [value for value in values if value is not None and value.name and value.type is not None]
    return str(spec_of(typed[0])) if typed else name


def _size(node: ir.Node, place: tuple[int, int] | None) -> int | None:
    """Return the size of an axis of an input, or None if unknown."""
    if place is None or place[0] >= len(node.inputs) or (value := node.inputs[place[0]]) is None:
        return None
    shape = known_shape(value) or value.shape or ()
    size = shape[place[1]] if -len(shape) <= place[1] < len(shape) else None
    return size if isinstance(size, int) else None


def _weights(node: ir.Node, places: Sequence[int]) -> int | None:
    """Return the number of elements of the weights, or None if a shape is unknown."""
    values = [node.inputs[place] for place in places if place < len(node.inputs)]
    shapes = [known_shape(value) or value.shape for value in values if value is not None]
    if not places or any(shape is None or not all(isinstance(size, int) for size in shape) for shape in shapes):
        return None
    return sum(int(np.prod([size for size in shape or () if isinstance(size, int)])) for shape in shapes)
