"""Choosing elements by their values: sorting, and results whose size depends on data."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from jaxrnn.onnx.operators.reshaping import axes_of
from jaxrnn.onnx.registry import Movement, Static, as_attributes, bounded, earlier, since
from jaxrnn.onnx.text import moves_text
from jaxrnn.onnx.values import Value, dimensions, traced


def top_k(x: Value, k: Static, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> list[Value]:
    """TopK: values and indices; of equal values the one with the lower index comes first."""
    del sorted  # the result is sorted either way
    (axis,) = axes_of([axis], len(x.shape))
    x, count = jnp.moveaxis(traced(x), axis, -1), dimensions(k)[0]
    if not 0 <= count <= x.shape[-1]:
        raise ValueError(f"k is {count}, but the axis has {x.shape[-1]} elements")
    order = jnp.argsort(x, axis=-1, stable=True, descending=bool(largest))[..., :count]
    values = jnp.take_along_axis(x, order, -1)
    return [jnp.moveaxis(values, -1, axis), jnp.moveaxis(order.astype(jnp.int64), -1, axis)]


@moves_text
def compress(x: Value, condition: Static, *, axis: int | None = None) -> Value:
    """Compress: the slices, or the flattened elements, where the condition holds."""
    keep = np.flatnonzero(condition)
    return jnp.take(traced(x), keep, axis=axis)


def non_zero(x: Static) -> Value:
    """NonZero: the indices of the elements that are not 0, one column each."""
    return np.stack(np.nonzero(x)).astype(np.int64)


def unique(x: Static, *, axis: int | None = None, sorted: int = 1, output_count: int) -> list[Value]:
    """Unique values or slices, with first index, inverse and counts."""
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        values, first, counts = np.take(values, order, 0 if axis is None else axis), first[order], counts[order]
        inverse = rank[inverse]
    return [values, *(item.astype(np.int64) for item in (first, inverse, counts))][:output_count]


def non_max_suppression(
    boxes: Static,
    scores: Static,
    max_output_boxes_per_class: Static | None = None,
    iou_threshold: Static | None = None,
    score_threshold: Static | None = None,
    *,
    center_point_box: int = 0,
) -> Value:
    """NonMaxSuppression: rows of batch, class and box index, best scores first within a class."""
    limit = 0 if max_output_boxes_per_class is None else int(max_output_boxes_per_class.reshape(()))
    overlap = 0.0 if iou_threshold is None else float(iou_threshold.reshape(()))
    lowest = -math.inf if score_threshold is None else float(score_threshold.reshape(()))
    if center_point_box:
        centre, half = boxes[..., :2], boxes[..., 2:] / 2
        low, high = centre - half, centre + half
    else:
        low, high = np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])
    area = np.prod(high - low, -1)
    rows: list[tuple[int, int, int]] = []
    for batch, kind in np.ndindex(*scores.shape[:2]):
        kept: list[int] = []
        for box in np.argsort(-scores[batch, kind], kind="stable"):
            if len(kept) >= limit or not scores[batch, kind, box] > lowest:
                break
            common_low = np.maximum(low[batch, box], low[batch, kept])
            common = np.prod(np.maximum(np.minimum(high[batch, box], high[batch, kept]) - common_low, 0), -1)
            union = area[batch, box] + area[batch, kept] - common
            if not np.any((union > 0) & (common > overlap * union)):
                kept.append(int(box))
        rows += [(batch, kind, box) for box in kept]
    return np.asarray(rows, np.int64).reshape(-1, 3)


OPERATORS = {
    "Compress": since(compress, 9, 11, 28, moves=Movement.PICKS),
    "NonMaxSuppression": since(non_max_suppression, 10, 11),
    "NonZero": since(non_zero, 9, 13),
    "TopK": since(earlier(as_attributes(top_k, "k"), "largest", "sorted"), 1) | bounded(top_k, 10, 11, 24),
    "Unique": bounded(unique, 11, 28),
}
