"""Resize and Upsample, axis by axis, with neighbours that are known while tracing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxrnn.onnx.operators.resampling import (
    Rescaling,
    Sampling,
    check_sampling,
    exact_scale,
    resample,
    source_positions,
    working_type,
)
from jaxrnn.onnx.operators.shaping import axes_of
from jaxrnn.onnx.registry import Static, earlier, since
from jaxrnn.onnx.values import Value, check_choice, dimensions, is_text, traced

_CROP = "tf_crop_and_resize"


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
        place = source_positions(change, _CROP)
        beyond = (place < 0) | (place > change.size - 1)
        outside = outside | beyond.reshape([-1 if d == axis else 1 for d in range(len(y.shape))])
    if not np.any(outside):
        return y
    return (np if isinstance(y, np.ndarray) else jnp).where(outside, np.asarray(value).astype(y.dtype), y)


OPERATORS = {
    "Resize": since(resize_10, 10)
    | since(earlier(resize, "antialias", "axes", "keep_aspect_ratio_policy"), 11, 13)
    | since(resize, 18, 19),
    "Upsample": since(upsample_7, 7) | since(upsample, 9),
}
