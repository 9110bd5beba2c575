"""Operators that read, write and select elements by index or position.

Negative indices count from the end. Known indices are checked against the axis. Indices that depend on data read NaN
outside of the axis, so that a wrong index is visible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn._jax import varying
from jaxrnn._jax.context import own_arithmetic
from jaxrnn.onnx import symbols
from jaxrnn.onnx.evaluate import demand
from jaxrnn.onnx.operators.arithmetic import is_integer, of_one_type
from jaxrnn.onnx.operators.shaping import axes_of, moves_text, read
from jaxrnn.onnx.registry import Movement, Static, Versions, as_attributes, bounded, earlier, elementwise, since
from jaxrnn.onnx.values import (
    Value,
    check_choice,
    dimensions,
    dtype_of,
    is_known,
    is_static,
    is_symbolic,
    operands,
    settle,
    traced,
)


def wrap_indices(indices: Value, size: Any) -> Value:
    """Return indices counted from the start: static indices as int64, traced indices as int32.

    A traced index outside of the axis becomes ``size``, which reads as NaN (`read`) and is not written. A known index
    outside of the axis raises IndexError.
    """
    if is_known(indices) and isinstance(size, int) and not is_symbolic(indices):
        known = np.asarray(indices)
        if known.size and (known.min() < -size or known.max() >= size):
            wrong = known.min() if known.min() < -size else known.max()
            raise IndexError(f"index {wrong} is out of range for an axis of size {size}")
        if is_static(indices):
            return np.where(indices < 0, indices + size, indices).astype(np.int64)
    # int32 is enough for all indices of an axis, and its lowering does not depend on jax_enable_x64.
    index = traced(indices).astype(jnp.int64)
    limit = jnp.asarray(size, jnp.int64)
    counted = jnp.where(index < 0, index + limit, index)
    inside = (counted >= 0) & (counted < limit)
    demand(lambda: inside)
    return jnp.where(inside, counted, limit).astype(jnp.int32)


@moves_text
def gather(data: Value, indices: Value, *, axis: int = 0) -> Value:
    """Gather whole slices along an axis."""
    (axis,) = axes_of([axis], len(data.shape))
    if is_static(data, indices) and not is_symbolic(indices):
        return np.take(data, wrap_indices(indices, data.shape[axis]), axis)
    if is_static(indices) and indices.ndim == 0 and not isinstance(data.shape[axis], int):
        return _one_of(traced(data), indices.item(), axis)
    index = wrap_indices(indices, data.shape[axis])
    if isinstance(index, np.ndarray) and index.ndim == 0:
        # A single known index is a slice, which XLA fuses, and for which all transformations have rules.
        return lax.index_in_dim(traced(data), int(index), axis, keepdims=False)
    if isinstance(data.shape[axis], int) and data.shape[axis] == 0:
        data = traced(data)
        outside = jnp.nan if jnp.issubdtype(data.dtype, jnp.inexact) else 0
        return jnp.full((*data.shape[:axis], *jnp.shape(index), *data.shape[axis + 1 :]), outside, data.dtype)
    return read(traced(data), (slice(None),) * axis + (index.astype(np.int32),))


def _one_of(data: jax.Array, index: Any, axis: int) -> jax.Array:
    """Read an element of a symbolic axis by a known index or a symbolic dimension."""
    size = data.shape[axis]
    start = index + size if symbols.less(index, 0, or_equal=False) is True else index
    inside = symbols.less(0, start, or_equal=True), symbols.less(start, size, or_equal=False)
    if inside == (True, True):
        return lax.squeeze(lax.slice_in_dim(data, start, start + 1, 1, axis), (axis,))
    return read(data, (slice(None),) * axis + (wrap_indices(symbols.boxed(index), size).astype(np.int32),))


@moves_text
def gather_elements(data: Value, indices: Value, *, axis: int = 0) -> Value:
    """GatherElements: an index for each element; the indices may be smaller than the data along the other axes."""
    (axis,) = axes_of([axis], len(data.shape))
    index = traced(wrap_indices(indices, data.shape[axis])).astype(jnp.int32)
    return read(traced(data), element_index(index, axis))


def element_index(index: jax.Array, axis: int) -> tuple[jax.Array, ...]:
    """Return indices along all axes for elements with these indices along ``axis``."""
    grid = [lax.broadcasted_iota(index.dtype, index.shape, d) for d in range(index.ndim)]
    return tuple(index if d == axis else grid[d] for d in range(index.ndim))


@moves_text
def gather_nd(data: Value, indices: Value, *, batch_dims: int = 0) -> Value:
    """GatherND: the last axis of the indices has an index for each leading axis of the data."""
    function: Callable[..., Any] = read
    for _ in range(batch_dims):
        function = jax.vmap(function)
    return function(traced(data), tuple(_columns(indices, data.shape[batch_dims:])))


def wrap_tuples(indices: Value, sizes: tuple[Any, ...]) -> jax.Array:
    """Return index tuples along the last axis, counted from the start."""
    return jnp.stack(_columns(indices, sizes), -1)


def _columns(indices: Value, sizes: tuple[Any, ...]) -> list[jax.Array]:
    """Return the indices of each axis, counted from the start."""
    columns = (wrap_indices(indices[..., d], sizes[d]) for d in range(indices.shape[-1]))
    return [traced(column).astype(jnp.int32) for column in columns]


@moves_text
def one_hot(indices: Value, depth: Static, values: Value, *, axis: int = -1) -> Value:
    """OneHot: off and on values; an index outside the depth becomes a row of off values."""
    count = int(depth.reshape(()))
    index = traced(indices)
    if not jnp.issubdtype(index.dtype, jnp.integer) or index.dtype.itemsize < 4:  # small types may not hold the depth
        index = index.astype(jnp.int64)
    (axis,) = axes_of([axis], index.ndim + 1)
    index = jnp.expand_dims(jnp.where(index < 0, index + count, index), axis)
    hot = index == lax.broadcasted_iota(index.dtype, tuple(count if d == axis else 1 for d in range(index.ndim)), axis)
    off_on = traced(values)
    return jnp.where(hot, off_on[1], off_on[0])


#: Types in which NumPy adds and multiplies known numbers, such as positions, as JAX does.
_COUNTS = ("int32", "int64", "float32", "float64")


def cumulative(function: str):
    """CumSum and CumProd along an axis, forwards or backwards, with or without the element itself."""

    def apply(x: Value, axis: Static, *, exclusive: int = 0, reverse: int = 0) -> Value:
        (along,) = axes_of([int(axis.reshape(()))], x.ndim)
        if isinstance(x, np.ndarray) and x.dtype.name in _COUNTS and not exclusive:
            ordered = np.flip(x, along) if reverse else x
            sums = getattr(np, function)(ordered, along, x.dtype)
            return np.flip(sums, along) if reverse else sums
        x = traced(x)
        if exclusive:
            # Shift by one frame: the neutral element enters, and the last frame leaves.
            neutral = np.asarray(1 if function == "cumprod" else 0, dtype_of(x))
            pads = [(0, 0, 0)] * x.ndim
            pads[along] = (-1, 1, 0) if reverse else (1, -1, 0)
            x = lax.pad(x, neutral, pads)
        return getattr(lax, function)(x, axis=along, reverse=bool(reverse))

    return apply


@moves_text
def center_crop_pad(x: Value, shape: Static, *, axes: tuple[int, ...] | None = None) -> Value:
    """CenterCropPad: crop and zero-pad the centre to a shape."""
    x = traced(x)
    chosen = range(x.ndim) if axes is None else axes_of(axes, x.ndim)
    widths = [(0, 0, 0)] * x.ndim
    for axis, size in zip(chosen, dimensions(shape), strict=True):
        missing = size - x.shape[axis]
        before = missing // 2 if missing >= 0 else -(-missing // 2)
        widths[axis] = (before, missing - before, 0)
    return lax.pad(x, jnp.zeros((), x.dtype), widths)


_SCATTER = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}


_REDUCE = {"add": jnp.add, "multiply": jnp.multiply, "max": jnp.maximum, "min": jnp.minimum}


def _scatter(reduction: str) -> str:
    check_choice("reduction", reduction, _SCATTER)
    return _SCATTER[reduction]


@moves_text
def scatter_elements(data: Value, indices: Value, updates: Value, *, axis: int = 0, reduction: str = "none") -> Value:
    """ScatterElements."""
    of_one_type(data, updates)
    (axis,) = axes_of([axis], len(data.shape))
    if reduction == "none" and is_static(data, indices, updates) and not is_symbolic(indices):
        result = data.astype(np.result_type(data, updates))  # a shape, perhaps with symbolic sizes
        np.put_along_axis(result, wrap_indices(indices, data.shape[axis]), updates, axis)
        return result
    index = traced(wrap_indices(indices, data.shape[axis])).astype(jnp.int32)
    return _write(traced(data), element_index(index, axis), traced(updates), _scatter(reduction))


@moves_text
def scatter_nd(data: Value, indices: Value, updates: Value, *, reduction: str = "none") -> Value:
    """ScatterND."""
    of_one_type(data, updates)
    data, updates, operation = traced(data), traced(updates), _scatter(reduction)
    box = _box(indices, data.shape)
    if box is not None:
        sizes = [part.stop - part.start for part in box]
        return _write_box(data, box, updates.reshape(*sizes, *data.shape[len(box) :]), operation)
    index = wrap_tuples(indices, data.shape)
    return _write(data, tuple(jnp.moveaxis(index, -1, 0)), updates, operation)


def _write(data: jax.Array, index: tuple[jax.Array, ...], updates: jax.Array, operation: str) -> jax.Array:
    if data.dtype == bool:
        operation = {"add": "max", "multiply": "min"}.get(operation, operation)
    if operation == "multiply" and jnp.issubdtype(data.dtype, jnp.inexact):
        return _multiplied(data, updates, *index)
    return getattr(data.at[index], operation)(updates)


@jax.custom_jvp
def _multiplied(data: jax.Array, updates: jax.Array, *index: jax.Array) -> jax.Array:
    return data.at[index].multiply(updates)


@_multiplied.defjvp
@own_arithmetic()
def _multiplied_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    """Apply updates in sequence; JAX has no derivative of simultaneous updates of an element."""
    (data, updates, *index), (d_data, d_updates, *_) = primals, tangents
    places = [part.reshape(-1) for part in index]

    def one_by_one(data: jax.Array, updates: jax.Array) -> jax.Array:
        def step(data: jax.Array, update: tuple[list[jax.Array], jax.Array]) -> tuple[jax.Array, None]:
            place, factor = update
            return data.at[tuple(place)].multiply(factor, unique_indices=True), None

        return varying.scan(step, data, (places, updates.reshape(-1, *data.shape[len(index) :])))[0]

    return jax.jvp(one_by_one, (data, updates), (d_data, d_updates))


def _box(indices: Value, sizes: tuple[Any, ...]) -> list[slice] | None:
    """Return the ranges that known ScatterND indices cover in order, as exporters write ``x[:, a:b] = y``."""
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
    """Replace a box of the data by slices and concatenations, which are fast and support all transformations."""
    while axis < len(box) and box[axis] == slice(0, data.shape[axis]):
        axis += 1
    if axis == len(box):
        return updates if operation == "set" else _REDUCE[operation](data, updates)
    before, inside, after = jnp.split(data, [box[axis].start, box[axis].stop], axis)
    parts = [before, _write_box(inside, box, updates, operation, axis + 1), after]
    return jnp.concatenate([part for part in parts if part.shape[axis]], axis)


@moves_text
def tensor_scatter(
    past: Value, update: Value, write_indices: Value = None, *, axis: int = -2, mode: str = "linear"
) -> Value:
    """TensorScatter: write a chunk of each row into a cache at the row's own position, which may be circular."""
    check_choice("mode", mode, ("linear", "circular"))
    (axis,) = axes_of([axis], len(past.shape))
    cache, chunk = jnp.moveaxis(traced(past), axis, 1), jnp.moveaxis(traced(update), axis, 1)
    start = jnp.zeros(cache.shape[0], jnp.int64) if write_indices is None else traced(write_indices)
    index = start[:, None] + jnp.arange(chunk.shape[1])[None, :]
    if mode == "circular":
        index = index % cache.shape[1]
    written = jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))(cache, index, chunk)
    return jnp.moveaxis(written, 1, axis)


def top_k(x: Value, k: Static, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> list[Value]:
    """TopK: values and indices; of equal values the lower index is first."""
    del sorted  # the result is sorted either way
    (axis,) = axes_of([axis], len(x.shape))
    x, count = jnp.moveaxis(traced(x), axis, -1), dimensions(k)[0]
    if not 0 <= count <= x.shape[-1]:
        raise ValueError(f"k is {count}, but the axis has {x.shape[-1]} elements")
    order = jnp.argsort(x, axis=-1, stable=True, descending=bool(largest))[..., :count]
    values = jnp.take_along_axis(x, order, -1)
    return [jnp.moveaxis(values, -1, axis), jnp.moveaxis(order.astype(jnp.int64), -1, axis)]


@moves_text
def where(condition: Value, x: Value, y: Value) -> Value:
    """Where, with all three broadcast."""
    of_one_type(x, y)
    if is_symbolic(condition) and is_static(x, y) and is_integer(x):  # arithmetic on sizes
        condition = settle(symbols.decided(condition))
    np_or_jnp, (condition, x, y) = operands(condition, x, y)
    return np_or_jnp.where(condition, x, y)


@moves_text
def compress(x: Value, condition: Static, *, axis: int | None = None) -> Value:
    """Compress: the slices, or the flattened elements, where the condition is true."""
    keep = np.flatnonzero(condition)
    return jnp.take(traced(x), keep, axis=axis)


def non_zero(x: Static) -> Value:
    """NonZero: the indices of the elements that are not 0, one column each."""
    return np.argwhere(x).T.astype(np.int64)


def unique(x: Static, *, axis: int | None = None, sorted: int = 1, output_count: int) -> list[Value]:
    """Return unique values or slices, with first index, inverse and counts."""
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


OPERATORS: dict[str, Versions] = {
    "CenterCropPad": since(center_crop_pad, 18),
    "CumProd": bounded(cumulative("cumprod"), 26),
    "CumSum": bounded(cumulative("cumsum"), 11, 14),
    "Gather": since(gather, 1, 11, 13, moves=Movement.PICKS, reads="indices"),
    "GatherElements": since(gather_elements, 11, 13, moves=Movement.PICKS),
    "GatherND": since(gather_nd, 11, 12, 13, moves=Movement.PICKS),
    "OneHot": since(one_hot, 9, 11, 28),
    "Scatter": since(earlier(scatter_elements, "reduction"), 9, 11),
    "ScatterElements": bounded(scatter_elements, 11, 13, 16, 18),
    "ScatterND": bounded(scatter_nd, 11, 13, 16, 18),
    "TensorScatter": since(tensor_scatter, 24),
    "Compress": since(compress, 9, 11, 28, moves=Movement.PICKS),
    "NonMaxSuppression": since(non_max_suppression, 10, 11),
    "NonZero": since(non_zero, 9, 13),
    "TopK": since(earlier(as_attributes(top_k, "k"), "largest", "sorted"), 1) | bounded(top_k, 10, 11, 24),
    "Unique": bounded(unique, 11, 28),
    "Where": elementwise(where, 9, 16, selects=True),
}
