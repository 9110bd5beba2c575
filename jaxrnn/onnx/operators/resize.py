"""Resize and Upsample, axis by axis, with neighbours that are known while tracing.

For a scale n or 1 / n with an integer n, all elements of the input have the same weights. Such an axis is resized by
shifts, concatenations and reshapes, which are fast, allow a symbolic size, and can be streamed. For other scales,
elements are gathered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jaxrnn.onnx.limits import current
from jaxrnn.onnx.operators.shaping import axes_of, on_axis, padded
from jaxrnn.onnx.operators.types import wide_type
from jaxrnn.onnx.registry import Static, earlier, since
from jaxrnn.onnx.values import Value, check_choice, dimensions, is_text, traced

_CROP = "tf_crop_and_resize"

#: Up to this number, taps are gathered separately, which XLA fuses best.
_SEPARATE = 4

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


def resize(
    x: Value,
    roi: Static | None = None,
    scales: Static | None = None,
    sizes: Static | None = None,
    *,
    antialias: int = 0,
    axes: tuple[int, ...] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Value:
    """Resize by scales or to sizes, along all axes or ``axes``."""
    rank = len(x.shape)
    chosen = tuple(range(rank)) if axes is None else axes_of(axes, rank)
    sampling = Sampling(
        mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, bool(antialias), bool(exclude_outside)
    )
    check_sampling(sampling)
    sizes_before = [x.shape[axis] for axis in chosen]
    changes = _rescalings(sizes_before, scales, sizes, keep_aspect_ratio_policy)
    if sampling.coordinates == _CROP:
        if roi is None or roi.size != 2 * len(changes):
            raise ValueError(
                f"{_CROP} needs a roi of {2 * len(changes)} numbers, not of {0 if roi is None else roi.size}"
            )
        starts, ends = np.asarray(roi, np.float64).ravel().reshape(2, -1)
        changes = [
            replace(change, region=(float(start), float(end)))
            for change, start, end in zip(changes, starts, ends, strict=True)
        ]
    by_axis = dict(zip(chosen, changes, strict=True))
    y = _interpolated(x, by_axis, lambda _: sampling)
    return _extrapolated(y, by_axis, extrapolation_value) if sampling.coordinates == _CROP else y


def resize_10(x: Value, scales: Static, *, mode: str = "nearest") -> Value:
    """Resize from the first element on; the nearest element is the one before, or after where the axis shrinks."""
    sampling = Sampling(mode, "asymmetric")
    check_sampling(sampling)
    if mode == "cubic":
        raise ValueError("mode must be nearest or linear; cubic needs opset 11")
    changes = dict(enumerate(_rescalings(list(x.shape), scales, None, "stretch")))
    return _interpolated(x, changes, lambda change: replace(sampling, nearest="ceil" if change.scale < 1 else "floor"))


def upsample(x: Value, scales: Static, *, mode: str = "nearest") -> Value:
    """Upsample: Resize-10 with scales of at least 1."""
    if np.any(scales < 1):
        raise ValueError(f"scales must be at least 1, not {scales.tolist()}; use Resize to shrink axes")
    return resize_10(x, scales, mode=mode)


def upsample_7(x: Value, *, scales: tuple[float, ...], mode: str = "nearest") -> Value:
    """Upsample, scales as attribute."""
    return upsample(x, np.asarray(scales, np.float32), mode=mode)


def _rescalings(sizes_before: Sequence[Any], scales: Any, sizes: Any, policy: str) -> list[Rescaling]:
    """Return the changes of axes with these sizes."""
    scales = None if scales is None or not scales.size else scales.ravel()
    sizes = None if sizes is None or not sizes.size else sizes
    if (scales is None) == (sizes is None) and sizes_before:
        raise ValueError("either scales or sizes must be given, not both")
    if scales is not None:
        _check_count("scales", len(scales), len(sizes_before))
        if not np.all((scales > 0) & np.isfinite(scales)):
            raise ValueError(f"scales must be finite and greater than 0, not {scales.tolist()}")
        exact = [exact_scale(scale) for scale in scales.tolist()]
        return [
            Rescaling(size, _scaled(size, scale, float_scale), scale)
            for size, scale, float_scale in zip(sizes_before, exact, scales, strict=True)
        ]
    sizes_after = dimensions(sizes) if sizes is not None else ()
    _check_count("sizes", len(sizes_after), len(sizes_before))
    factors = [_quotient(out, size) for out, size in zip(sizes_after, sizes_before, strict=True)]
    if policy == "stretch" or not factors:
        return [Rescaling(*entry) for entry in zip(sizes_before, sizes_after, factors, strict=True)]
    check_choice("keep_aspect_ratio_policy", policy, ("stretch", "not_larger", "not_smaller"))
    if not all(isinstance(size, int) for size in sizes_before):
        raise ValueError(f"keep_aspect_ratio_policy {policy!r} needs known sizes, not {sizes_before}")
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [Rescaling(size, int(factor * size + Fraction(1, 2)), factor) for size in sizes_before]


def _check_count(name: str, count: int, expected: int) -> None:
    if count != expected:
        raise ValueError(f"{name} has {count} entries for {expected} axes; one for each is expected")


def _scaled(size: Any, scale: Fraction, float_scale: Any) -> Any:
    if scale.denominator == 1:
        return size * scale.numerator
    if isinstance(size, int):
        # In float32, as in ONNX's shape inference: 10 times 0.7 is 7.
        return int(np.floor(np.float32(size) * np.float32(float_scale)))
    if scale.numerator == 1:
        return size // scale.denominator
    raise ValueError(
        f"an axis of open size {size} can be resized by a whole number or one part in a whole number, not by {scale}"
    )


def _quotient(out: Any, size: Any) -> Fraction:
    if isinstance(out, int) and isinstance(size, int):
        if out < 0 or (size == 0 and out):
            raise ValueError(f"an axis of size {size} cannot be resized to {out}")
        return Fraction(out, size) if size else Fraction(1)
    for factor in range(1, 1025):
        if out == size * factor:
            return Fraction(factor)
        if size == out * factor:
            return Fraction(1, factor)
    raise ValueError(
        f"an axis of open size {size} cannot be resized to {out}: the factor between them must be a whole number, or "
        "one part in a whole number. Bind the size of the input, or export the model with scales"
    )


def _interpolated(x: Value, changes: dict[int, Rescaling], sampling_of: Callable[[Rescaling], Sampling]) -> Value:
    """Resize the axes, beginning with the axes that shrink most."""
    texts = is_text(x)
    x = x if texts else traced(x)
    dtype = x.dtype
    nearest = all(sampling_of(change).mode == "nearest" for change in changes.values())
    if texts or dtype.kind == "b":
        if not nearest:
            raise TypeError(f"only mode nearest resizes elements of type {dtype.name}")
    elif not nearest:
        x = x.astype(working_type(dtype))
    for axis, change in sorted(changes.items(), key=lambda item: item[1].scale):
        sampling = sampling_of(change)
        unchanged = change.scale == 1 and change.region == (0.0, 1.0)
        if not unchanged or sampling.coordinates == "tf_half_pixel_for_nn":
            x = resample(x, axis, change, sampling)
    return x if nearest else saturated(x, dtype)


def saturated(x: Any, dtype: Any) -> Any:
    """Convert to a dtype; round and clamp to the range of an integer type."""
    if jnp.issubdtype(dtype, jnp.integer):
        info = ml_dtypes.iinfo(dtype)
        x = jnp.clip(jnp.round(x), float(info.min), float(info.max))
    return x.astype(dtype)


def _extrapolated(y: Any, changes: dict[int, Rescaling], value: float) -> Any:
    """Set the elements that come from outside of the input to the value."""
    outside: Any = False
    for axis, change in changes.items():
        if change.region == (0.0, 1.0):
            continue
        place = source_positions(change, _CROP)
        beyond = (place < 0) | (place > change.size - 1)
        outside = outside | on_axis(beyond, axis, len(y.shape))
    if not np.any(outside):
        return y
    return (np if isinstance(y, np.ndarray) else jnp).where(outside, np.asarray(value).astype(y.dtype), y)


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
    if count <= _SEPARATE:
        columns = [on_axis(weights[:, tap], axis, x.ndim).astype(x.dtype) for tap in range(count)]
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


def cubic_kernel(x: Any, a: float = -0.75, where: Callable[..., Any] = np.where) -> Any:
    """Evaluate the kernel of cubic convolution on [-2, 2], for NumPy or JAX arrays (with their ``where``).

    Source: Keys, "Cubic convolution interpolation for digital image processing", 1981, equation 4.
    """
    x = abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return where(x <= 1, near, where(x < 2, far, 0 * x))


#: The kernel of each mode, with ``cubic_coeff_a``, and its reach.
_KERNELS: dict[str, tuple[Callable[..., np.ndarray], int]] = {
    "linear": (lambda x, _: np.maximum(1 - np.abs(x), 0), 1),
    "cubic": (cubic_kernel, 2),
}


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


OPERATORS = {
    "Resize": since(resize_10, 10)
    | since(earlier(resize, "antialias", "axes", "keep_aspect_ratio_policy"), 11, 13)
    | since(resize, 18, 19),
    "Upsample": since(upsample_7, 7) | since(upsample, 9),
}
