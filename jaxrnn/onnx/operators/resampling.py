"""One axis of known or symbolic size, resized.

A scale n or 1 / n for an integer n has the same weights within every element of the input. Such an axis is resized by
shifts, concatenations and reshapes: fast, possible for a symbolic size, and known to ``stream``. For any other scale,
elements are gathered.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.onnx.operators.interpolation import (
    SHIFT_INVARIANT,
    Rescaling,
    Sampling,
    positions,
    taps,
    without_outside,
)

#: Up to this number of taps are gathered one by one, which XLA fuses best.
_SEPARATE = 4


def resample(x: Any, axis: int, change: Rescaling, sampling: Sampling) -> Any:
    """The array with one axis resized."""
    if isinstance(change.out, int) and change.out == 0:
        return x[(slice(None),) * axis + (slice(0, 0),)]
    if isinstance(x, np.ndarray):
        return _gathered(x, axis, change, sampling)
    if sampling.coordinates in SHIFT_INVARIANT:
        y = _enlarged(x, axis, change, sampling) if change.scale >= 1 else _reduced(x, axis, change, sampling)
        if y is not None:
            return y
    if not isinstance(change.size, int):
        outside = " and exclude_outside" if sampling.exclude_outside else ""
        raise ValueError(
            f"axis {axis} of open size {change.size} cannot be resized by {change.scale} in mode {sampling.mode} with "
            f"coordinate_transformation_mode {sampling.coordinates}{outside}: where an element comes from depends on "
            "the size. Bind the size, or export the model with mode nearest and whole scales"
        )
    return _gathered(x, axis, change, sampling)


def _enlarged(x: Any, axis: int, change: Rescaling, sampling: Sampling) -> Any:
    """Larger by an integer factor: every element becomes several mixtures of itself and its neighbours."""
    factor = change.scale.numerator
    if change.scale.denominator != 1:
        return None
    place = positions(Rescaling(1, factor, change.scale), _local(sampling.coordinates))
    index, weights = taps(place, sampling, change.scale)
    used = [offset for offset, weight in zip(index.flat, weights.flat, strict=True) if weight]
    if sampling.exclude_outside and any(used):
        return None
    neighbours = _Neighbours(x, axis, min(*used, 0), max(*used, 0))
    phases = [_mixture(x.dtype, neighbours, row, weight) for row, weight in zip(index, weights, strict=True)]
    if not any(used):
        phases = phases[:1]  # all of them are the element itself
    joined = jnp.stack(phases, axis + 1)
    shape = list(x.shape)
    joined = jnp.broadcast_to(joined, (*shape[: axis + 1], factor, *shape[axis + 1 :]))
    return joined.reshape((*shape[:axis], change.out, *shape[axis + 1 :]))


def _reduced(x: Any, axis: int, change: Rescaling, sampling: Sampling) -> Any:
    """Smaller by an integer factor: the same mixture of elements in every group of that many."""
    count = change.scale.denominator
    if change.scale.numerator != 1:
        return None
    if isinstance(change.size, int) and change.out * count > change.size:
        return None  # rounded up, as sizes that keep the aspect ratio may be
    if sampling.coordinates == "half_pixel_symmetric" and change.out * count != change.size:
        return None
    if sampling.coordinates == "pytorch_half_pixel" and not change.out > 1:
        return None
    place = positions(Rescaling(count, 1, change.scale), _local(sampling.coordinates))
    index, weights = taps(place, sampling, change.scale)
    used = [offset for offset, weight in zip(index.flat, weights.flat, strict=True) if weight]
    if not all(0 <= offset < count for offset in used):
        return None
    parts = lax.slice_in_dim(x, 0, change.out * count, axis=axis)
    parts = parts.reshape((*x.shape[:axis], change.out, count, *x.shape[axis + 1 :]))
    inside = {offset: lax.index_in_dim(parts, int(offset), axis + 1, keepdims=False) for offset in used}
    return _mixture(x.dtype, inside, index[0], weights[0])


def _local(coordinates: str) -> str:
    """The rule for positions within one element: PyTorch's differs only for an axis of one element."""
    return "half_pixel" if coordinates == "pytorch_half_pixel" else coordinates


class _Neighbours:
    """An array shifted along an axis, with the first and last elements repeated beyond its ends."""

    def __init__(self, x: Any, axis: int, first: int, last: int):
        self.x, self.axis = x, axis
        self.first = first
        self.padded = x
        self.exists: dict[int, Any] = {}
        self.shifted: dict[int, Any] = {0: x}
        if isinstance(x.shape[axis], int) and (first or last):
            ends = {offset: lax.slice_in_dim(x, offset, offset + 1, axis=axis) for offset in (0, x.shape[axis] - 1)}
            before, after = [ends[0]] * -first, [ends[x.shape[axis] - 1]] * last
            self.padded = jnp.concatenate([*before, x, *after], axis)

    def __getitem__(self, offset: int) -> Any:
        """For every element the one ``offset`` elements after it, or before it where negative."""
        if offset not in self.shifted:
            self.shifted[offset] = self._find(offset)
        return self.shifted[offset]

    def _find(self, offset: int) -> Any:
        size = self.x.shape[self.axis]
        if isinstance(size, int):
            begin = int(offset) - self.first
            return lax.slice_in_dim(self.padded, begin, begin + size, axis=self.axis)
        # One step at a time: at the end, whose index is symbolic, the nearer neighbour is the last element.
        step = 1 if offset > 0 else -1
        nearer = self[offset - step]
        if step not in self.exists:
            mask = self._moved(jnp.ones((size,), bool), 0, step)
            self.exists[step] = mask.reshape([size if d == self.axis else 1 for d in range(self.x.ndim)])
        return jnp.where(self.exists[step], self._moved(nearer, self.axis, step), nearer)

    @staticmethod
    def _moved(x: Any, axis: int, offset: int) -> Any:
        config = [(-int(offset), int(offset), 0) if d == axis else (0, 0, 0) for d in range(x.ndim)]
        return lax.pad(x, jnp.zeros((), x.dtype), config)


def _mixture(dtype: Any, elements: Any, index: np.ndarray, weights: np.ndarray) -> Any:
    """The weighted sum of the elements at offsets, or the element itself where only one has a weight."""
    chosen = [(offset, weight) for offset, weight in zip(index.tolist(), weights.tolist(), strict=True) if weight]
    if len(chosen) == 1 and chosen[0][1] == 1:
        return elements[chosen[0][0]]
    terms = [elements[offset] * np.asarray(weight).astype(dtype) for offset, weight in chosen]
    return sum(terms[1:], terms[0])


def _gathered(x: Any, axis: int, change: Rescaling, sampling: Sampling) -> Any:
    """Weighted sums of gathered elements along an axis of known size; indices are clamped to it."""
    index, weights = taps(positions(change, sampling.coordinates), sampling, change.scale)
    if sampling.exclude_outside:
        weights = without_outside(index, weights, change.size)
    index = np.clip(index, 0, max(change.size - 1, 0))
    if isinstance(x, np.ndarray):
        return np.take(x, index[:, 0], axis)
    if sampling.mode == "nearest":
        return _take(x, index[:, 0], axis)
    count = index.shape[1]
    shape = [-1 if d == axis else 1 for d in range(x.ndim)]
    if count <= _SEPARATE:
        columns = [weights[:, tap].reshape(shape).astype(x.dtype) for tap in range(count)]
        terms = [_take(x, index[:, tap], axis) * column for tap, column in enumerate(columns)]
        return sum(terms[1:], terms[0])
    gathered = _take(x, index.ravel(), axis).reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))
    weights = weights.reshape((*(1,) * axis, *index.shape, *(1,) * (x.ndim - axis - 1)))
    return jnp.sum(gathered * weights.astype(x.dtype), axis + 1)


def _take(x: Any, index: np.ndarray, axis: int) -> Any:
    """The elements at known indices: a slice where they are consecutive or evenly spaced."""
    step = int(index[1] - index[0]) if len(index) > 1 else 1
    if len(index) and step > 0 and np.array_equal(index, index[0] + step * np.arange(len(index))):
        return lax.slice_in_dim(x, int(index[0]), int(index[-1]) + 1, step, axis)
    return x.at[(slice(None),) * axis + (index.astype(np.int32),)].get(mode="promise_in_bounds")
