"""Gathering, scattering, sorting and everything else that reads or writes by index.

Indices may be negative and then count from the end. Those that are known are checked against the axis; those that
depend on data read NaN where they lie outside, so that a wrong index cannot pass for a right one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.onnx.operators.arithmetic import alike
from jaxrnn.onnx.operators.movement import axes_of
from jaxrnn.onnx.registry import Static, since
from jaxrnn.onnx.values import Value, dimensions, dtype_of, is_known, is_static, is_symbolic, traced


def wrap_indices(indices: Value, size: Any) -> Value:
    """Indices with negative ones counted from the end: static ones as int64, traced ones as int32.

    A traced index outside the axis becomes ``size``, which reads as NaN (`read`) and is not written.

    Raises:
        IndexError: an index that is known lies outside the axis.
    """
    if is_known(indices) and isinstance(size, int) and not is_symbolic(indices):
        known = np.asarray(indices)
        if known.size and (known.min() < -size or known.max() >= size):
            wrong = known.min() if known.min() < -size else known.max()
            raise IndexError(f"index {wrong} is out of range for an axis of size {size}")
        if is_static(indices):
            return np.where(indices < 0, indices + size, indices).astype(np.int64)
    # int32 holds every index of an axis, and lowers the same way whatever jax_enable_x64 says.
    index = traced(indices).astype(jnp.int64)
    limit = jnp.asarray(size, jnp.int64)
    index = jnp.where(index < 0, index + limit, index)
    return jnp.where((index < 0) | (index > limit), limit, index).astype(jnp.int32)


def read(data: jax.Array, index: tuple[Any, ...]) -> jax.Array:
    """The elements at an index; NaN (or the type's extreme) where it lies outside, never a neighbour's value."""
    known = all(isinstance(part, (slice, np.ndarray)) for part in index)
    return data.at[index].get(mode="promise_in_bounds" if known else "fill", wrap_negative_indices=False)


def gather(data: Value, indices: Value, *, axis: int = 0) -> Value:
    """Gather whole slices along an axis."""
    (axis,) = axes_of([axis], len(data.shape))
    if is_static(data, indices) and not is_symbolic(indices):
        return np.take(data, wrap_indices(indices, data.shape[axis]), axis)
    index = wrap_indices(indices, data.shape[axis])
    if isinstance(index, np.ndarray) and index.ndim == 0:
        # One known index is a slice, which says more to XLA and to a transformation than a gather does.
        return lax.index_in_dim(traced(data), int(index), axis, keepdims=False)
    return read(traced(data), (slice(None),) * axis + (index.astype(np.int32),))


def gather_elements(data: Value, indices: Value, *, axis: int = 0) -> Value:
    """GatherElements: one index an element; the indices may be smaller than the data along the other axes."""
    (axis,) = axes_of([axis], len(data.shape))
    index = traced(wrap_indices(indices, data.shape[axis])).astype(jnp.int32)
    return read(traced(data), _element_index(index, axis))


def _element_index(index: jax.Array, axis: int) -> tuple[jax.Array, ...]:
    grid = [lax.broadcasted_iota(index.dtype, index.shape, d) for d in range(index.ndim)]
    return tuple(index if d == axis else grid[d] for d in range(index.ndim))


def gather_nd(data: Value, indices: Value, *, batch_dims: int = 0) -> Value:
    """GatherND: the last axis of the indices holds one index for each leading axis of the data."""
    data, index = traced(data), _wrap_tuples(indices, data.shape[batch_dims:])
    function = lambda d, i: read(d, tuple(jnp.moveaxis(i, -1, 0)))  # noqa: E731
    for _ in range(batch_dims):
        function = jax.vmap(function)
    return function(data, index)


def _wrap_tuples(indices: Value, sizes: tuple[Any, ...]) -> jax.Array:
    depth = indices.shape[-1]
    columns = [wrap_indices(indices[..., d], sizes[d]) for d in range(depth)]
    return jnp.stack([traced(column).astype(jnp.int32) for column in columns], -1)


_SCATTER = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}


_REDUCE = {"add": jnp.add, "multiply": jnp.multiply, "max": jnp.maximum, "min": jnp.minimum}


def _scatter(reduction: str) -> str:
    if reduction not in _SCATTER:
        raise ValueError(f"reduction must be one of {', '.join(_SCATTER)}, not {reduction!r}")
    return _SCATTER[reduction]


def scatter_elements(data: Value, indices: Value, updates: Value, *, axis: int = 0, reduction: str = "none") -> Value:
    """ScatterElements."""
    alike(data, updates)
    (axis,) = axes_of([axis], len(data.shape))
    index = traced(wrap_indices(indices, data.shape[axis])).astype(jnp.int32)
    return getattr(traced(data).at[_element_index(index, axis)], _scatter(reduction))(traced(updates))


def scatter(data: Value, indices: Value, updates: Value, *, axis: int = 0) -> Value:
    """Scatter, the older name of ScatterElements."""
    return scatter_elements(data, indices, updates, axis=axis)


def scatter_nd(data: Value, indices: Value, updates: Value, *, reduction: str = "none") -> Value:
    """ScatterND."""
    alike(data, updates)
    data, updates, operation = traced(data), traced(updates), _scatter(reduction)
    box = _box(indices, data.shape)
    if box is not None:
        sizes = [part.stop - part.start for part in box]
        return _write_box(data, box, updates.reshape(*sizes, *data.shape[len(box) :]), operation)
    index = _wrap_tuples(indices, data.shape)
    return getattr(data.at[tuple(jnp.moveaxis(index, -1, 0))], operation)(updates)


def _box(indices: Value, sizes: tuple[Any, ...]) -> list[slice] | None:
    """The ranges that known indices of ScatterND run through in order, as an exporter's ``x[:, a:b] = y`` does."""
    if not is_static(indices) or is_symbolic(indices) or not indices.size:
        return None
    columns = [wrap_indices(indices[..., d], sizes[d]).ravel() for d in range(indices.shape[-1])]
    ranges = [slice(int(column[0]), int(column[-1]) + 1) for column in columns]
    shape = [part.stop - part.start for part in ranges]
    if min(shape) < 1 or math.prod(shape) != columns[0].size:
        return None
    expected = (grid.ravel() + part.start for grid, part in zip(np.indices(shape), ranges, strict=True))
    return ranges if all(map(np.array_equal, columns, expected)) else None


def _write_box(data: jax.Array, box: Sequence[slice], updates: jax.Array, operation: str, axis: int = 0) -> jax.Array:
    """The data with a box of it updated, by slices and joins alone: fast, and known to every transformation."""
    while axis < len(box) and box[axis] == slice(0, data.shape[axis]):
        axis += 1
    if axis == len(box):
        return updates if operation == "set" else _REDUCE[operation](data, updates)
    before, inside, behind = jnp.split(data, [box[axis].start, box[axis].stop], axis)
    parts = [before, _write_box(inside, box, updates, operation, axis + 1), behind]
    return jnp.concatenate([part for part in parts if part.shape[axis]], axis)


def one_hot(indices: Value, depth: Static, values: Value, *, axis: int = -1) -> Value:
    """OneHot: off and on values; an index outside the depth gives a row of off values."""
    count = int(depth.reshape(()))
    index = traced(indices)
    index = index.astype(jnp.int64) if not jnp.issubdtype(index.dtype, jnp.integer) else index
    (axis,) = axes_of([axis], index.ndim + 1)
    index = jnp.expand_dims(jnp.where(index < 0, index + count, index), axis)
    hot = index == lax.broadcasted_iota(index.dtype, tuple(count if d == axis else 1 for d in range(index.ndim)), axis)
    off_on = traced(values)
    return jnp.where(hot, off_on[1], off_on[0])


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


def top_k_1(x: Value, *, k: int, axis: int = -1) -> list[Value]:
    """TopK, k as attribute."""
    return top_k(x, np.asarray([k], np.int64), axis=axis)


def compress(x: Value, condition: Static, *, axis: int | None = None) -> Value:
    """Compress: the slices, or the flattened elements, where the condition holds."""
    keep = np.flatnonzero(condition)
    return jnp.take(traced(x), keep, axis=axis)


def non_zero(x: Static) -> Value:
    """NonZero: the indices of the elements that are not 0, one column each."""
    return np.stack(np.nonzero(x)).astype(np.int64)


def cumulative(function: str):
    """CumSum and CumProd along an axis, forwards or backwards, with or without the element itself."""

    def apply(x: Value, axis: Static, *, exclusive: int = 0, reverse: int = 0) -> Value:
        x = traced(x)
        (along,) = axes_of([int(axis.reshape(()))], x.ndim)
        if exclusive:
            # Shift by one frame: the neutral element comes in, the last frame drops out.
            neutral = np.asarray(1 if function == "cumprod" else 0, dtype_of(x))
            pads = [(0, 0, 0)] * x.ndim
            pads[along] = (-1, 1, 0) if reverse else (1, -1, 0)
            x = lax.pad(x, neutral, pads)
        return getattr(lax, function)(x, axis=along, reverse=bool(reverse))

    return apply


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


def tensor_scatter(
    past: Value, update: Value, write_indices: Value = None, *, axis: int = -2, mode: str = "linear"
) -> Value:
    """TensorScatter: write one chunk a batch row into a cache, at its own position, around the end if circular."""
    if mode not in ("linear", "circular"):
        raise ValueError(f"mode must be linear or circular, not {mode!r}")
    (axis,) = axes_of([axis], len(past.shape))
    cache, chunk = jnp.moveaxis(traced(past), axis, 1), jnp.moveaxis(traced(update), axis, 1)
    start = jnp.zeros(cache.shape[0], jnp.int64) if write_indices is None else traced(write_indices)
    index = start[:, None] + jnp.arange(chunk.shape[1])[None, :]
    if mode == "circular":
        index = index % cache.shape[1]
    written = jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))(cache, index, chunk)
    return jnp.moveaxis(written, 1, axis)


def center_crop_pad(x: Value, shape: Static, *, axes: tuple[int, ...] | None = None) -> Value:
    """CenterCropPad: crop and zero-pad the centre to a shape."""
    x = traced(x)
    chosen = range(x.ndim) if axes is None else axes_of(axes, x.ndim)
    widths = [(0, 0, 0)] * x.ndim
    for axis, wanted in zip(chosen, dimensions(shape), strict=True):
        missing = wanted - x.shape[axis]
        before = missing // 2 if missing >= 0 else -(-missing // 2)
        widths[axis] = (before, missing - before, 0)
    return lax.pad(x, jnp.zeros((), x.dtype), widths)


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
    "CenterCropPad": since(center_crop_pad, 18),
    "Compress": since(compress, 9, 11, 28),
    "CumProd": since(cumulative("cumprod"), 26),
    "CumSum": since(cumulative("cumsum"), 11, 14),
    "Gather": since(gather, 1, 11, 13),
    "GatherElements": since(gather_elements, 11, 13),
    "GatherND": since(gather_nd, 11, 12, 13),
    "NonMaxSuppression": since(non_max_suppression, 10, 11),
    "NonZero": since(non_zero, 9, 13),
    "OneHot": since(one_hot, 9, 11, 28),
    "Scatter": since(scatter, 9, 11),
    "ScatterElements": since(scatter_elements, 11, 13, 16, 18),
    "ScatterND": since(scatter_nd, 11, 13, 16, 18),
    "TensorScatter": since(tensor_scatter, 24),
    "TopK": since(top_k_1, 1) | since(top_k, 10, 11, 24),
    "Unique": since(unique, 11, 28),
}
