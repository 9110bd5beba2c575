"""Movements of elements in NumPy, as functions of the parameters of a primitive and its operands.

XLA would compile a program for each movement. Moved elements may be values, positions, or codes for the origin of an
element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.lax import GatherScatterMode


def broadcast(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    """Repeat elements along new or stretched axes."""
    shape = np.ones(len(params["shape"]), int)
    shape[list(params["broadcast_dimensions"])] = x.shape
    return np.broadcast_to(x.reshape(shape), params["shape"])


def pad(params: Mapping[str, Any], x: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Add elements around and between elements, or drop elements at the edges."""
    if not any(map(any, params["padding_config"])):
        return x
    places, kept = [], []
    for size, (low, high, interior) in zip(x.shape, params["padding_config"], strict=True):
        end = max(low, 0) + max(size + (size - 1) * interior, 0)
        places.append(slice(max(low, 0), end, interior + 1))
        kept.append(slice(max(-low, 0), end + high))
    padded = np.full([max(0, place.stop, keep.stop) for place, keep in zip(places, kept, strict=True)], value, x.dtype)
    padded[tuple(places)] = x
    return padded[tuple(kept)]


def reshape(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    """Read elements in another shape."""
    order = params.get("dimensions")
    return (x if order is None else np.transpose(x, order)).reshape(params["new_sizes"])


def select(params: Mapping[str, Any], which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    """Choose each element from one of several arrays."""
    result = cases[0]
    for place, case in enumerate(cases[1:], 1):
        result = np.where(which == place, case, result)
    return result


def slice_(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    """Read elements at a fixed step."""
    ends = zip(params["start_indices"], params["limit_indices"], params["strides"] or [1] * x.ndim, strict=True)
    return x[tuple(slice(*each) for each in ends)]


def window(shape: Sequence[int], starts: Sequence[np.ndarray], sizes: Sequence[int]) -> tuple[slice, ...]:
    """Return the window that starts nearest to these places and lies inside of the array."""
    rows = zip(shape, starts, sizes, strict=True)
    begins = [int(np.clip(start, 0, whole - size)) for whole, start, size in rows]
    return tuple(slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True))


def dynamic_update(params: Mapping[str, Any], x: np.ndarray, new: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    """Write a window."""
    result = np.array(x)
    result[window(x.shape, starts, new.shape)] = new
    return result


def _windows(
    params: Mapping[str, Any],
    shape: Sequence[int],
    indices: np.ndarray,
    sizes: Sequence[int],
    axes: Sequence[int],
    batching: Sequence[int],
    index_batching: Sequence[int],
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the places of the windows of a gather or scatter in an array, and which windows are inside of the array.

    The places are the indices along each axis of the array, in the shape of the indices and the window.
    """
    rank, batch = len(shape), indices.shape[:-1]
    starts = [np.zeros(batch, np.int64) for _ in shape]
    for column, axis in enumerate(axes):
        starts[axis] = indices[..., column].astype(np.int64)
    for axis, place in zip(batching, index_batching, strict=True):
        starts[axis] = np.broadcast_to(_along(place, len(batch), np.arange(batch[place])), batch)
    places, inside = [], np.ones(batch, bool)
    for axis, (whole, size, start) in enumerate(zip(shape, sizes, starts, strict=True)):
        if GatherScatterMode.from_any(params["mode"]) == GatherScatterMode.FILL_OR_DROP:
            inside &= (start >= 0) & (start <= whole - size)
        start = np.clip(start, 0, whole - size).reshape(*batch, *[1] * rank)
        places.append(start + _along(axis, rank, np.arange(size)))
    return places, inside


def _along(axis: int, rank: int, numbers: np.ndarray) -> np.ndarray:
    """Return numbers along an axis of an array of this rank."""
    return numbers.reshape([-1 if each == axis else 1 for each in range(rank)])


def gather(params: Mapping[str, Any], x: np.ndarray, indices: np.ndarray) -> np.ndarray | None:
    """Read windows; return None if a window is outside of the array."""
    numbers, batching = params["dimension_numbers"], params["dimension_numbers"].operand_batching_dims
    index_batching = numbers.start_indices_batching_dims
    places, inside = _windows(
        params, x.shape, indices, params["slice_sizes"], numbers.start_index_map, batching, index_batching
    )
    if not inside.all():
        return None
    batch, sizes = indices.ndim - 1, params["slice_sizes"]
    if inside.size == 1 and all(sizes):  # a view of a single window
        starts = (int(place.flat[0]) for place in places)
        window = tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))
        result = x[(*window, ...)].reshape(*inside.shape, *sizes)
    else:
        result = x[tuple(places)] if x.ndim else np.broadcast_to(x, indices.shape[:-1])
    result = np.squeeze(result, tuple(batch + axis for axis in (*numbers.collapsed_slice_dims, *batching)))
    return np.moveaxis(result, range(batch, result.ndim), numbers.offset_dims)


def scatter(params: Mapping[str, Any], x: np.ndarray, indices: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Write windows; windows outside of the array are dropped."""
    numbers, batch = params["dimension_numbers"], indices.ndim - 1
    axes, batching = numbers.scatter_dims_to_operand_dims, numbers.operand_batching_dims
    window = [new.shape[axis] for axis in numbers.update_window_dims]
    new = np.moveaxis(new, numbers.update_window_dims, range(batch, new.ndim))
    inserted = (*numbers.inserted_window_dims, *batching)
    sizes = [1 if axis in inserted else window.pop(0) for axis in range(x.ndim)]
    places, inside = _windows(params, x.shape, indices, sizes, axes, batching, numbers.scatter_indices_batching_dims)
    shape = (*indices.shape[:-1], *sizes)
    result = np.array(x)
    inside = np.broadcast_to(inside.reshape(*inside.shape, *[1] * x.ndim), shape)
    result[tuple(np.broadcast_to(place, shape)[inside] for place in places)] = new.reshape(shape)[inside]
    return result


def running_sum(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    """Return the numbers of a ``cumsum``."""
    axis = params["axis"]
    rows = np.flip(x, axis) if params["reverse"] else x
    sums = np.cumsum(rows, axis, x.dtype)
    return np.flip(sums, axis) if params["reverse"] else sums


def counted(params: Mapping[str, Any]) -> np.ndarray:
    """Return the numbers of an ``iota``."""
    shape, axis = params["shape"], params["dimension"]
    return np.broadcast_to(_along(axis, len(shape), np.arange(shape[axis]).astype(params["dtype"])), shape)
