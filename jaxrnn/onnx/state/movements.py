"""Operators that only move elements, run on the identities and codes of elements instead of their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxrnn.onnx.blocks import BoundNode
from jaxrnn.onnx.foresight import check_ahead
from jaxrnn.onnx.limits import current
from jaxrnn.onnx.operators.types import numpy_dtype
from jaxrnn.onnx.state.flows import Flow

_FIRST = (0,)
#: Which inputs of an operator it moves; the others must be known. Empty: all.
MOVED_INPUTS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Cast", "CastLike", "Identity", "Dropout"), _FIRST),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile"), _FIRST),
    **dict.fromkeys(("Slice", "Split", "Gather", "Pad", "DepthToSpace", "SpaceToDepth"), _FIRST),
    **dict.fromkeys(("GatherElements", "GatherND", "Compress", "ReverseSequence"), _FIRST),
    "Concat": (),
    "Where": (1, 2),
    **dict.fromkeys(("ScatterND", "ScatterElements", "Scatter"), (0, 2)),
}
_UNCHANGED = frozenset({"Cast", "CastLike", "Identity", "Dropout"})
SCATTERS = frozenset({"ScatterND", "ScatterElements", "Scatter", "TensorScatter"})


def moved(node: BoundNode, inputs: Sequence[Flow | None]) -> list[Flow] | None:
    """The outputs of a node that moves elements, or None where the places depend on data."""
    name = node.operator.name
    data = MOVED_INPUTS[name] or tuple(range(len(inputs)))
    flows = [flow for index in data if (flow := inputs[index]) is not None]
    fixed = [None if flow is None else flow.value for flow in inputs]
    if name in SCATTERS and node.attributes.get("reduction", "none") != "none":
        return None
    if len(node.outputs) > 1 and name != "Split":
        return None  # the mask of Dropout
    if name not in _UNCHANGED and any(
        flow is not None and index not in data and flow.value is None for index, flow in enumerate(inputs)
    ):
        return None
    names = list(dict.fromkeys(source for flow in flows for source in flow.codes))

    def run(plane: Callable[[Flow], np.ndarray | None]) -> list[np.ndarray]:
        arrays: list[Any] = list(fixed)
        for index in data:
            flow = inputs[index]
            if flow is not None:
                found = plane(flow)
                arrays[index] = np.zeros(flow.shape or (), np.int64) if found is None else found
        return _moved_arrays(node, arrays)

    ids = run(lambda flow: flow.ids)
    planes = {source: run(lambda flow, source=source: flow.codes.get(source)) for source in names}
    depth = {source: min(flow.depth[source] for flow in flows if source in flow.depth) for source in names}
    deps = frozenset().union(*(flow.deps for flow in flows))
    made = 0
    for flow in flows:
        made |= flow.made
    dtype = _dtype(node, inputs)
    outputs = []
    for index, array in enumerate(ids):
        outputs.append(Flow(array.shape, dtype, ids=array, deps=deps, made=made))
        for source in names:
            if planes[source][index].any():
                outputs[-1].codes[source], outputs[-1].depth[source] = planes[source][index], depth[source]
    return outputs


def _dtype(node: BoundNode, inputs: Sequence[Flow | None]) -> Any:
    first = inputs[1] if node.operator.name in ("CastLike", "Where") else inputs[0]
    if node.operator.name == "Cast":
        return numpy_dtype(node.attributes["to"])
    return None if first is None else first.dtype


def _moved_arrays(node: BoundNode, arrays: list[Any]) -> list[np.ndarray]:
    name, attributes = node.operator.name, dict(node.attributes)
    if name in _UNCHANGED:
        return [arrays[0]]
    if name == "ScatterND":
        result = arrays[0].copy()
        result[tuple(np.moveaxis(arrays[1], -1, 0))] = arrays[2]
        return [result]
    if name == "Pad":
        arrays[2:3] = [None]
        if "value" in attributes:
            attributes["value"] = 0.0
    if node.operator.wants_output_count:
        attributes["output_count"] = len(node.outputs)
    budget = current()
    check_ahead(node.operator, arrays, attributes, budget)
    result = node.operator.function(*arrays, **attributes)
    results = [np.asarray(array) for array in (result if isinstance(result, list) else [result])]
    budget.take(results, arrays)
    return results
