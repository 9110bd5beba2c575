"""The operators that carry a state from step to step, and the inputs of its initial value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from jaxrnn.onnx.blocks import BoundNode
from jaxrnn.onnx.graph import normal_domain, subgraphs_of

CELLS = ("LSTM", "GRU", "RNN")
LOOPS = ("Scan", "Loop")
#: An LSTM of quantised weights, which are transposed to those of LSTM.
QUANTIZED = ("com.microsoft", "DynamicQuantizeLSTM")

#: What a cell carries, by operator: its name, and the number of the input of its initial value.
CELL_CARRIES = {
    "LSTM": {"h": 5, "c": 6},
    "GRU": {"h": 5},
    "RNN": {"h": 5},
    "DynamicQuantizeLSTM": {"h": 5, "c": 6},
}


@dataclass(frozen=True)
class Stateful:
    """An operator over time that takes its state as one input and returns it as its last output.

    Attributes:
        slot: the name of its state.
        past: the number of the input of its state.
        time_axis: the time axis of its first input.
    """

    slot: str
    past: int
    time_axis: int


STATEFUL = {
    "CausalConvWithState": Stateful("state", past=3, time_axis=2),
    "LinearAttention": Stateful("state", past=3, time_axis=1),
}
_RECURRENT = frozenset({*(("", name) for name in (*CELLS, *LOOPS, *STATEFUL)), QUANTIZED})


def is_recurrent(node: BoundNode) -> bool:
    """Return True if a node carries something from step to step; a user's own operator may do anything."""
    return not node.operator.own and (node.operator.domain, node.operator.name) in _RECURRENT


def starts_recurrence(node: ir.Node | None, index: int) -> bool:
    """Whether an input of a node is the initial value of something that a recurrence updates."""
    if node is None:
        return False
    domain = normal_domain(node.domain)
    if (domain, node.op_type) == QUANTIZED or (not domain and node.op_type in CELLS):
        return index in CELL_CARRIES[node.op_type].values()
    if domain:
        return False
    if node.op_type in STATEFUL:
        return index == STATEFUL[node.op_type].past
    return node.op_type in LOOPS and _is_carried(node, index)


def _is_carried(node: ir.Node, index: int) -> bool:
    """Whether a Scan or Loop updates an input, and does not just hand it to every step unchanged."""
    first, slots, results = loop_slots(node)
    place = index - first
    if not 0 <= place < min(len(slots), len(results)):
        return False
    end = results[place]
    while (maker := end.producer()) is not None and maker.op_type == "Identity" and maker.inputs[0] is not None:
        end = maker.inputs[0]
    return end is not slots[place]


def loop_slots(node: ir.Node) -> tuple[int, Sequence[ir.Value], Sequence[ir.Value]]:
    """What a Scan or Loop carries, also one that loading refuses.

    Returns:
        The number of the node's first input that it carries, the inputs of the body that hold the carried values, and
        its outputs from the first updated one on.
    """
    body = next((graph for name, graph in subgraphs_of(node) if name == "body"), None)
    if body is None:
        return 0, (), ()
    if node.op_type == "Loop":
        return 2, body.inputs[2:], body.outputs[1:]
    first = int(node.version is not None and node.version < 9)  # after the lengths of the sequences
    scanned = attribute_of(node, "num_scan_inputs", ir.AttributeType.INT, 0)
    return first, body.inputs[: max(len(body.inputs) - scanned, 0)], body.outputs


def attribute_of(node: ir.Node, name: str, kind: ir.AttributeType, default: Any) -> Any:
    """An attribute, or the default where it is missing or has another type, which loading refuses."""
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.type != kind else attribute.value
