"""Operators that only move elements, called on the identities and codes of the elements instead of their values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrnn.onnx.blocks import BoundNode
from jaxrnn.onnx.evaluate import Scope, call
from jaxrnn.onnx.limits import current
from jaxrnn.onnx.operators.types import numpy_dtype
from jaxrnn.onnx.state.flows import Flow, union

_FIRST = (0,)
#: The inputs whose elements an operator moves, () for all; the others must be known while tracing.
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
    """The outputs of a node that moves elements, or None where it depends on data where they go."""
    name = node.operator.name
    places = MOVED_INPUTS[name] or tuple(range(len(inputs)))
    flows = [flow for index in places if (flow := inputs[index]) is not None]
    if name in SCATTERS and node.attributes.get("reduction", "none") != "none":
        return None
    if len(node.outputs) > 1 and name != "Split":
        return None  # the mask of Dropout
    others = [flow for index, flow in enumerate(inputs) if index not in places and flow is not None]
    if name not in _UNCHANGED and any(flow.value is None for flow in others):
        return None
    sources = list(dict.fromkeys(source for flow in flows for source in flow.codes))

    def run(plane: Callable[[Flow], np.ndarray | None]) -> list[np.ndarray]:
        arrays: list[Any] = [None if flow is None else flow.value for flow in inputs]
        for index in places:
            flow = inputs[index]
            if flow is not None:
                array = plane(flow)
                arrays[index] = np.zeros(flow.shape or (), np.int64) if array is None else array
        return _moved_arrays(node, arrays)

    ids = run(lambda flow: flow.ids)
    planes = {source: run(lambda flow, source=source: flow.codes.get(source)) for source in sources}
    depth = {source: min(flow.depth[source] for flow in flows if source in flow.depth) for source in sources}
    read, dtype = union(flows), _dtype(node, inputs)
    outputs = []
    for index, array in enumerate(ids):
        output = Flow(array.shape, dtype, ids=array, deps=read.deps, ancestors=read.ancestors)
        for source in sources:
            if planes[source][index].any():
                output.codes[source], output.depth[source] = planes[source][index], depth[source]
        outputs.append(output)
    return outputs


def _dtype(node: BoundNode, inputs: Sequence[Flow | None]) -> Any:
    if node.operator.name == "Cast":
        return numpy_dtype(node.attributes["to"])
    first = inputs[1] if node.operator.name in ("CastLike", "Where") else inputs[0]
    return None if first is None else first.dtype


def _moved_arrays(node: BoundNode, arrays: list[Any]) -> list[np.ndarray]:
    name = node.operator.name
    if name in _UNCHANGED:
        return [arrays[0]]
    if name == "ScatterND":
        result = arrays[0].copy()
        result[tuple(np.moveaxis(arrays[1], -1, 0))] = arrays[2]
        return [result]
    if name == "Pad":  # the padding comes from nowhere: 0, whatever its value is
        arrays[2:3] = [None]
        if "value" in node.attributes:
            node = dataclasses.replace(node, attributes={**node.attributes, "value": 0.0})
    with jax.ensure_compile_time_eval():  # an operator may compute on NumPy arrays in JAX
        outputs = call(node, arrays, Scope({}))
    results = [np.asarray(array) for array in outputs]
    current().take(results, outputs)
    return results
