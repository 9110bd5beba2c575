"""Following elements through what carries them from step to step: cells, Scan, Loop, and operators with a state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxrnn.onnx.blocks import Block, BoundNode, origin
from jaxrnn.onnx.carries import CELL_CARRIES, CELLS, LOOPS, QUANTIZED, STATEFUL
from jaxrnn.onnx.state import provenance
from jaxrnn.onnx.state.elements import Elements
from jaxrnn.onnx.state.flows import Flow, Site, carry, constant, halves
from jaxrnn.onnx.time_loops import LoopBody

#: The contractions of one step.
_CONTRACTIONS = 2

_OPERATORS = frozenset({*(("", name) for name in (*CELLS, *LOOPS, *STATEFUL)), QUANTIZED})


def is_recurrent(node: BoundNode) -> bool:
    """Return True if a node carries something from step to step; a user's own operator may do anything."""
    return not node.operator.own and (node.operator.domain, node.operator.name) in _OPERATORS


def follow_recurrent(elements: Elements, node: BoundNode, inputs: list[Flow | None]) -> list[Flow]:
    """The outputs of a recurrent node; adds its carries to the sites."""
    name = node.operator.name
    if name in CELL_CARRIES:
        return _follow_cell(elements, node, inputs)
    if name in STATEFUL:
        return _follow_stateful(elements, node, inputs)
    if name == "Scan":
        return _follow_scan(elements, node, inputs)
    return _follow_body(elements, node, inputs[2:], 1, elements.abstract(node, inputs).trips(), True, inputs)


def _follow_cell(elements: Elements, node: BoundNode, inputs: list[Flow | None]) -> list[Flow]:
    name, result = node.operator.name, elements.result
    # A cell has final values, also where the node does not name them.
    shapes = elements.abstract(node, inputs).results(1 + len(CELL_CARRIES[name]))
    x, _, _, _, lengths, *initial = [*inputs, *[None] * 7][:7]
    layout, direction = node.attributes.get("layout", 0), node.attributes.get("direction", "forward")
    assert x is not None
    assert x.shape is not None
    steps = x.shape[1 if layout else 0]
    result.lengths[id(node)] = (steps,)
    read = [flow for flow in inputs[:7] if flow is not None]
    y, *finals = elements.outputs(node, shapes, read, _CONTRACTIONS)
    forward = direction == "forward" or steps == 1
    bidirectional = direction == "bidirectional" and steps != 1
    for slot, start, final in zip(CELL_CARRIES[name], initial, finals, strict=False):
        if forward:
            carry(final, start)
        if not bidirectional:
            result.sites.append(Site(node.name, name, slot, steps, forward, start, final))
            continue
        starts, ends = (halves(flow, 1 if layout else 0) for flow in (start, final))
        for half, ahead, begin, end in zip((slot, f"{slot}_reverse"), (True, False), starts, ends, strict=True):
            result.sites.append(Site(node.name, name, half, steps, ahead, begin, end))
    if forward and lengths is None and initial[0] is not None:
        last = (slice(None), -1) if layout else (-1,)
        for source, codes in initial[0].codes.items():
            y.codes[source][last] = provenance.shown(provenance.carried(codes))
    return [y, *finals]


def _follow_stateful(elements: Elements, node: BoundNode, inputs: list[Flow | None]) -> list[Flow]:
    name, result = node.operator.name, elements.result
    operator, shapes = STATEFUL[name], elements.abstract(node, inputs).results()
    x, start = inputs[0], inputs[operator.past] if len(inputs) > operator.past else None
    assert x is not None
    assert x.shape is not None
    steps = x.shape[operator.time_axis]
    result.lengths[id(node)] = (steps,)
    y, final = elements.outputs(node, shapes, [flow for flow in inputs if flow is not None], _CONTRACTIONS)
    if 0 in shapes[1].shape:
        return [y, constant(np.zeros(shapes[1].shape, shapes[1].dtype))]  # a kernel of one tap keeps no frame
    carry(final, start)
    result.sites.append(Site(node.name, name, operator.slot, steps, True, start, final))
    return [y, final]


def _follow_scan(elements: Elements, node: BoundNode, inputs: list[Flow | None]) -> list[Flow]:
    since_8 = node.operator.since < 9  # has sequence lengths as its first input, and the batch as its first axis
    axes = node.attributes.get("scan_input_axes")
    axis = 1 if since_8 else axes[-1] if axes else 0
    backwards = node.attributes.get("directions" if since_8 else "scan_input_directions") or ()
    last = inputs[-1]
    assert last is not None
    assert last.shape is not None
    carried = inputs[int(since_8) : len(inputs) - node.attributes["num_scan_inputs"]]
    return _follow_body(elements, node, carried, 0, last.shape[axis], not any(backwards), inputs)


def _follow_body(
    elements: Elements,
    node: BoundNode,
    carried: list[Flow | None],
    head: int,
    steps: int | None,
    forward: bool,
    inputs: Sequence[Flow | None],
) -> list[Flow]:
    """A Scan or Loop whose body has ``head`` outputs, and twice as many inputs, before its carries."""
    body: Block = node.attributes["body"]
    shapes = elements.abstract(node, inputs).results()
    outputs = elements.outputs(node, shapes, elements.reads(node, inputs), _CONTRACTIONS)
    elements.result.lengths[id(node)] = (steps or 0,)
    slots, results, makers = body.inputs[2 * head :], body.outputs[head:], body.makers()
    handled = _handled_by_loop(elements, body, carried) if node.operator.name == "Loop" else set()
    for index, start in enumerate(carried):
        if start is None or start.shape != outputs[index].shape:
            continue
        if origin(results[index], makers) is slots[index]:
            outputs[index] = start  # the loop hands it on unchanged
            continue
        if index in handled:
            continue
        if forward:
            carry(outputs[index], start)
        slot = str(slots[index].name)
        elements.result.sites.append(Site(node.name, node.operator.name, slot, steps, forward, start, outputs[index]))
    return outputs


def _handled_by_loop(elements: Elements, body: Block, carried: list[Flow | None]) -> set[int]:
    """The carries of a loop that are no recurrence: counters, and values that only grow."""

    def known(flow: Flow | None) -> np.ndarray | None:
        return flow.value if flow is not None and isinstance(flow.value, np.ndarray) else None

    sorted_body = LoopBody(body, lambda key: known(elements.values.get(key)), [known(flow) for flow in carried])
    return {*sorted_body.counters, *sorted_body.growing}
