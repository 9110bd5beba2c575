"""The operators that carry a state from step to step, and the inputs of its initial value."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

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
    body = next((graph for name, graph in subgraphs_of(node) if name == "body"), None)
    if body is None:
        return False
    if node.op_type == "Loop":
        place, slots, results = index - 2, body.inputs[2:], body.outputs[1:]
    else:
        old = node.version is not None and node.version < 9
        attribute = node.attributes.get("num_scan_inputs")
        scanned = 0 if attribute is None else attribute.as_int()
        place, slots, results = index - old, body.inputs[: len(body.inputs) - scanned], body.outputs
    if not 0 <= place < min(len(slots), len(results)):
        return False
    end = results[place]
    while (maker := end.producer()) is not None and maker.op_type == "Identity" and maker.inputs[0] is not None:
        end = maker.inputs[0]
    return end is not slots[place]
