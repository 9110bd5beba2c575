"""Gathering, and everything else that reads by index or position.

Negative indices count from the end. Known indices are checked against the axis. Those that depend on data read NaN
outside of it, so that a wrong index cannot go unnoticed.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.onnx import symbols
from jaxrnn.onnx.demands import demand
from jaxrnn.onnx.operators.reshaping import axes_of
from jaxrnn.onnx.registry import Movement, Static, bounded, since
from jaxrnn.onnx.text import moves_text
from jaxrnn.onnx.values import Value, dimensions, dtype_of, is_known, is_static, is_symbolic, traced


def wrap_indices(indices: Value, size: Any) -> Value:
    """Indices counted from the start: static ones as int64, traced ones as int32.

    A traced index outside of the axis becomes ``size``, which reads as NaN (`read`) and is not written.

    Raises:
        IndexError: a known index lies outside of the axis.
    """
    if is_known(indices) and isinstance(size, int) and not is_symbolic(indices):
        known = np.asarray(indices)
        if known.size and (known.min() < -size or known.max() >= size):
            wrong = known.min() if known.min() < -size else known.max()
            raise IndexError(f"index {wrong} is out of range for an axis of size {size}")
        if is_static(indices):
            return np.where(indices < 0, indices + size, indices).astype(np.int64)
    # int32 holds every index of an axis, and its lowering does not depend on jax_enable_x64.
    index = traced(indices).astype(jnp.int64)
    limit = jnp.asarray(size, jnp.int64)
    counted = jnp.where(index < 0, index + limit, index)
    inside = (counted >= 0) & (counted < limit)
    demand(lambda: inside)
    return jnp.where(inside, counted, limit).astype(jnp.int32)


def read(data: jax.Array, index: tuple[Any, ...]) -> jax.Array:
    """The elements at an index; NaN, or the extreme of an integer type, where it lies outside."""
    known = all(isinstance(part, (slice, np.ndarray)) for part in index)
    return data.at[index].get(mode="promise_in_bounds" if known else "fill", wrap_negative_indices=False)


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
        # One known index is a slice: XLA fuses it, and every transformation has a rule for it.
        return lax.index_in_dim(traced(data), int(index), axis, keepdims=False)
    if isinstance(data.shape[axis], int) and data.shape[axis] == 0:
        return _read_empty(data, jnp.shape(index), axis)
    return read(traced(data), (slice(None),) * axis + (index.astype(np.int32),))


def _one_of(data: jax.Array, index: Any, axis: int) -> jax.Array:
    """One element of a symbolic axis, by a known index or a symbolic dimension."""
    size = data.shape[axis]
    start = index + size if symbols.less(index, 0, or_equal=False) is True else index
    inside = symbols.less(0, start, or_equal=True), symbols.less(start, size, or_equal=False)
    if inside == (True, True):
        return lax.squeeze(lax.slice_in_dim(data, start, start + 1, 1, axis), (axis,))
    return read(data, (slice(None),) * axis + (wrap_indices(symbols.boxed(index), size).astype(np.int32),))


def _read_empty(data: Value, shape: tuple[Any, ...], axis: int) -> jax.Array:
    """A read from an axis without elements, as in the body of a loop without trips: every index lies outside."""
    data = traced(data)
    outside = jnp.nan if jnp.issubdtype(data.dtype, jnp.inexact) else 0
    return jnp.full((*data.shape[:axis], *shape, *data.shape[axis + 1 :]), outside, data.dtype)


@moves_text
def gather_elements(data: Value, indices: Value, *, axis: int = 0) -> Value:
    """GatherElements: one index an element; the indices may be smaller than the data along the other axes."""
    (axis,) = axes_of([axis], len(data.shape))
    index = traced(wrap_indices(indices, data.shape[axis])).astype(jnp.int32)
    return read(traced(data), element_index(index, axis))


def element_index(index: jax.Array, axis: int) -> tuple[jax.Array, ...]:
    """A full index for every element, from its index along one axis."""
    grid = [lax.broadcasted_iota(index.dtype, index.shape, d) for d in range(index.ndim)]
    return tuple(index if d == axis else grid[d] for d in range(index.ndim))


@moves_text
def gather_nd(data: Value, indices: Value, *, batch_dims: int = 0) -> Value:
    """GatherND: the last axis of the indices holds one index for each leading axis of the data."""
    data, index = traced(data), wrap_tuples(indices, data.shape[batch_dims:])
    function = lambda d, i: read(d, tuple(jnp.moveaxis(i, -1, 0)))  # noqa: E731
    for _ in range(batch_dims):
        function = jax.vmap(function)
    return function(data, index)


def wrap_tuples(indices: Value, sizes: tuple[Any, ...]) -> jax.Array:
    """Tuples of indices along the last axis, counted from the start."""
    depth = indices.shape[-1]
    columns = [wrap_indices(indices[..., d], sizes[d]) for d in range(depth)]
    return jnp.stack([traced(column).astype(jnp.int32) for column in columns], -1)


@moves_text
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


OPERATORS = {
    "CenterCropPad": since(center_crop_pad, 18),
    "CumProd": bounded(cumulative("cumprod"), 26),
    "CumSum": bounded(cumulative("cumsum"), 11, 14),
    "Gather": since(gather, 1, 11, 13, moves=Movement.PICKS, reads="indices"),
    "GatherElements": since(gather_elements, 11, 13, moves=Movement.PICKS),
    "GatherND": since(gather_nd, 11, 12, 13, moves=Movement.PICKS),
    "OneHot": since(one_hot, 9, 11, 28),
}
