"""The operators that carry a state from step to step, and by which of their inputs it enters."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from jaxrnn.onnx.graph import normal_domain, subgraphs_of

#: Operators that carry a state from step to step.
CELLS = ("LSTM", "GRU", "RNN")
LOOPS = ("Scan", "Loop")
#: An LSTM of quantised weights, which lie the other way around.
QUANTIZED = ("com.microsoft", "DynamicQuantizeLSTM")


@dataclass(frozen=True)
class Stateful:
    """An operator over time that takes its state as one input and gives it as its last output.

    Attributes:
        slot: what its state is called.
        past: the number of that input.
        time_axis: the axis of the first input that is time.
    """

    slot: str
    past: int
    time_axis: int


STATEFUL = {
    "CausalConvWithState": Stateful("state", past=3, time_axis=2),
    "LinearAttention": Stateful("state", past=3, time_axis=1),
}

#: The inputs by which the state of a cell enters.
_INITIAL = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,), "DynamicQuantizeLSTM": (5, 6)}


def starts_recurrence(node: ir.Node | None, index: int) -> bool:
    """Whether an input of a node is what a recurrence starts from, and changes in its course."""
    if node is None:
        return False
    if node.op_type in _INITIAL and (normal_domain(node.domain) == "" or (node.domain, node.op_type) == QUANTIZED):
        return index in _INITIAL[node.op_type]
    if normal_domain(node.domain):
        return False
    if node.op_type in STATEFUL:
        return index == STATEFUL[node.op_type].past
    return node.op_type in LOOPS and _is_carried(node, index)


def _is_carried(node: ir.Node, index: int) -> bool:
    """Whether a Scan or Loop carries an input on, and does not just hand it to every step as it is."""
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
