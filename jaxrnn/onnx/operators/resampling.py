"""Resizing of an axis of known or symbolic size.

For a scale n or 1 / n with an integer n, all elements of the input have the same weights. Such an axis is resized by
shifts, concatenations and reshapes, which are fast, allow a symbolic size, and can be streamed. For other scales,
elements are gathered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.onnx.limits import current
from jaxrnn.onnx.operators.shaping import padded
from jaxrnn.onnx.operators.types import wide_type
from jaxrnn.onnx.values import check_choice

#: Up to this number, taps are gathered separately, which XLA fuses best.
_SEPARATE = 4


def resample(x: Any, axis: int, change: Rescaling, sampling: Sampling) -> Any:
    """Resize one axis of an array."""
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
    """Enlarge by an integer factor: an element becomes several mixtures of itself and its neighbours."""
    factor = change.scale.numerator
    if change.scale.denominator != 1:
        return None
    place = source_positions(Rescaling(1, factor, change.scale), _local(sampling.coordinates))
    index, weights = taps(place, sampling, change.scale)
    used = [offset for offset, weight in zip(index.flat, weights.flat, strict=True) if weight]
    if sampling.exclude_outside and any(used):
        return None
    neighbours = _Neighbours(x, axis, min(*used, 0), max(*used, 0))
    phases = [_mixture(x.dtype, neighbours, row, weight) for row, weight in zip(index, weights, strict=True)]
    if not any(used):
        phases = phases[:1]  # all phases are the element itself
    elif not isinstance(change.size, int):  # stacked phases of a stream would wait for each other's neighbours
        parts = [padded(phase, axis, k, factor - 1 - k, factor - 1) for k, phase in enumerate(phases)]
        return sum(parts[1:], parts[0])
    joined = jnp.stack(phases, axis + 1)
    shape = list(x.shape)
    joined = jnp.broadcast_to(joined, (*shape[: axis + 1], factor, *shape[axis + 1 :]))
    return joined.reshape((*shape[:axis], change.out, *shape[axis + 1 :]))


def _reduced(x: Any, axis: int, change: Rescaling, sampling: Sampling) -> Any:
    """Shrink by an integer factor: all groups of elements become the same mixture."""
    count = change.scale.denominator
    if change.scale.numerator != 1:
        return None
    if isinstance(change.size, int) and change.out * count > change.size:
        return None  # rounded up, as sizes that keep the aspect ratio may be
    if sampling.coordinates == "half_pixel_symmetric" and change.out * count != change.size:
        return None
    if sampling.coordinates == "pytorch_half_pixel" and not change.out > 1:
        return None
    place = source_positions(Rescaling(count, 1, change.scale), _local(sampling.coordinates))
    index, weights = taps(place, sampling, change.scale)
    used = [offset for offset, weight in zip(index.flat, weights.flat, strict=True) if weight]
    if not all(0 <= offset < count for offset in used):
        return None
    parts = lax.slice_in_dim(x, 0, change.out * count, axis=axis)
    parts = parts.reshape((*x.shape[:axis], change.out, count, *x.shape[axis + 1 :]))
    inside = {offset: lax.index_in_dim(parts, int(offset), axis + 1, keepdims=False) for offset in used}
    return _mixture(x.dtype, inside, index[0], weights[0])


def _local(coordinates: str) -> str:
    """Return the rule for positions within an element; PyTorch's rule differs only for an axis of size 1."""
    return "half_pixel" if coordinates == "pytorch_half_pixel" else coordinates


class _Neighbours:
    """An array shifted along an axis, with repeated first and last elements."""

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
        """Return for each element the element ``offset`` places later."""
        if offset not in self.shifted:
            self.shifted[offset] = self._find(offset)
        return self.shifted[offset]

    def _find(self, offset: int) -> Any:
        size = self.x.shape[self.axis]
        if isinstance(size, int):
            begin = int(offset) - self.first
            return lax.slice_in_dim(self.padded, begin, begin + size, axis=self.axis)
        # One step at a time: at the end, at a symbolic index, the nearer neighbour is the last element.
        step = 1 if offset > 0 else -1
        nearer = self[offset - step]
        if step not in self.exists:
            mask = padded(jnp.ones((size,), bool), 0, -step, step)
            self.exists[step] = mask.reshape([size if d == self.axis else 1 for d in range(self.x.ndim)])
        return jnp.where(self.exists[step], padded(nearer, self.axis, -step, step), nearer)


def _mixture(dtype: Any, elements: Any, index: np.ndarray, weights: np.ndarray) -> Any:
    """Return the weighted sum of the elements at offsets, or the element itself if only one offset has a weight."""
    chosen = [(offset, weight) for offset, weight in zip(index.tolist(), weights.tolist(), strict=True) if weight]
    if len(chosen) == 1 and chosen[0][1] == 1:
        return elements[chosen[0][0]]
    terms = [elements[offset] * np.asarray(weight).astype(dtype) for offset, weight in chosen]
    return sum(terms[1:], terms[0])


def _gathered(x: Any, axis: int, change: Rescaling, sampling: Sampling) -> Any:
    """Return weighted sums of gathered elements along an axis of known size; indices are clamped."""
    index, weights = taps(source_positions(change, sampling.coordinates), sampling, change.scale)
    if sampling.exclude_outside:
        inner = np.where((index >= 0) & (index < change.size), weights, 0)
        total = inner.sum(1, keepdims=True)
        weights = inner / np.where(total == 0, 1, total)
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
    """Return the elements at known indices, by a slice if the indices are consecutive or evenly spaced."""
    step = int(index[1] - index[0]) if len(index) > 1 else 1
    if len(index) and step > 0 and np.array_equal(index, index[0] + step * np.arange(len(index))):
        return lax.slice_in_dim(x, int(index[0]), int(index[-1]) + 1, step, axis)
    return x.at[(slice(None),) * axis + (index.astype(np.int32),)].get(mode="promise_in_bounds")


#: Rules with equal positions within all elements of the input, so that no size is needed.
SHIFT_INVARIANT = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn")


@dataclass(frozen=True)
class Rescaling:
    """The change of an axis."""

    size: Any  # the size before, perhaps symbolic
    out: Any  # the size after, perhaps symbolic
    scale: Fraction  # the factor between both, before ``out`` was rounded down
    region: tuple[float, float] = (0.0, 1.0)  # the resized part of the axis, from 0 to 1, for ``tf_crop_and_resize``


@dataclass(frozen=True)
class Sampling:
    """The attributes of Resize that determine positions and weights."""

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False


def working_type(dtype: Any) -> np.dtype:
    """Return the type of weighted sums: at least float32, and float64 for integers."""
    return wide_type(dtype) if jnp.issubdtype(dtype, jnp.inexact) else np.dtype(np.float64)


def exact_scale(scale: float) -> Fraction:
    """Return the simplest fraction that rounds to a float32.

    The exact float32 nearest to a third would move positions that lie on an element or half-way between two elements.
    """
    exact = Fraction(float(scale))
    simple = exact.limit_denominator(1000)
    return simple if np.float32(float(simple)) == np.float32(scale) else exact


def source_positions(axis: Rescaling, coordinates: str) -> np.ndarray:
    """Return the input position, in elements, of each output element, ``float64[out]``."""
    current().check((axis.out,), np.float64, constant=True)
    i = np.arange(axis.out, dtype=np.float64)
    # Products of integers and a single division, so that halves are exact.
    p, q = float(axis.scale.numerator), float(axis.scale.denominator)
    centred = (2 * i + 1) * q / (2 * p) - 0.5
    last = axis.size - 1
    match coordinates:
        case "half_pixel":
            return centred
        case "pytorch_half_pixel":
            return centred if axis.out > 1 else 0 * i
        case "half_pixel_symmetric":
            # The centre of the input lies in the centre of the output.
            return (last * p + (2 * i + 1 - axis.out) * q) / (2 * p)
        case "asymmetric":
            return i * q / p
        case "tf_half_pixel_for_nn":
            return (i + 0.5) * q / p
        case "align_corners":
            # The last element of an output of fractional width, as in ONNX's test cases.
            return i * last * q / (axis.size * p - q) if axis.out > 1 else 0 * i
        case "tf_crop_and_resize":
            start, end = axis.region
            if axis.out > 1:
                return start * last + i * (end - start) * last / (axis.out - 1)
            return 0 * i + 0.5 * (start + end) * last
    raise ValueError(f"coordinate_transformation_mode {coordinates!r} is not defined by ONNX")


_NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def linear_kernel(x: np.ndarray, a: float = 0.0) -> np.ndarray:
    """Evaluate the triangle on [-1, 1]."""
    del a
    return np.maximum(1 - np.abs(x), 0)


def cubic_kernel(x: Any, a: float = -0.75, where: Callable[..., Any] = np.where) -> Any:
    """Evaluate the kernel of cubic convolution on [-2, 2], for NumPy or JAX arrays (with their ``where``).

    Source: Keys, "Cubic convolution interpolation for digital image processing", 1981, equation 4.
    """
    x = abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return where(x <= 1, near, where(x < 2, far, 0 * x))


_KERNELS: dict[str, tuple[Callable[..., np.ndarray], int]] = {"linear": (linear_kernel, 1), "cubic": (cubic_kernel, 2)}


def check_sampling(sampling: Sampling) -> None:
    """Refuse choices that ONNX does not define."""
    check_choice("mode", sampling.mode, ("nearest", *_KERNELS))
    check_choice("nearest_mode", sampling.nearest, _NEAREST)
    if sampling.antialias and sampling.mode == "nearest":
        raise ValueError("antialias applies only to the modes linear and cubic")


def taps(position: np.ndarray, sampling: Sampling, scale: Fraction) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the elements around each position, which may be outside, and weights; ``[out, taps]``."""
    if sampling.mode == "nearest":
        nearest = _NEAREST[sampling.nearest](position).astype(np.int64)
        return nearest[:, None], np.ones((len(position), 1))
    kernel, radius = _KERNELS[sampling.mode]
    stretch = min(scale, Fraction(1)) if sampling.antialias else Fraction(1)
    reach = math.ceil(radius / stretch)
    base = np.floor(position)
    current().check((len(position), 2 * reach), np.float64, constant=True)
    offsets = np.arange(1 - reach, reach + 1)
    weights = kernel((offsets - (position - base)[:, None]) * float(stretch), sampling.cubic_a)
    if stretch != 1:
        weights = weights / weights.sum(1, keepdims=True)
    return base[:, None].astype(np.int64) + offsets, weights
