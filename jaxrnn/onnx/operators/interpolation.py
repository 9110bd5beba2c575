"""Sampling positions and weights of a resized axis, computed in NumPy while tracing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrnn.onnx.limits import current
from jaxrnn.onnx.operators.rounding import wide_type

#: Rules whose positions are the same within every element of the input, so that no size is needed.
SHIFT_INVARIANT = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn")


@dataclass(frozen=True)
class Rescaling:
    """The change of one axis.

    Attributes:
        size: its size before, which may be symbolic.
        out: its size after, which may be symbolic.
        scale: the factor between them, before ``out`` was rounded down.
        region: the part of the axis that is resized, from 0 to 1, for ``tf_crop_and_resize``.
    """

    size: Any
    out: Any
    scale: Fraction
    region: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class Sampling:
    """How positions are computed and elements weighted: the attributes of Resize."""

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False


def working_type(dtype: Any) -> np.dtype:
    """The element type that weighted sums are computed in: at least float32, and float64 for integers."""
    return wide_type(dtype) if jnp.issubdtype(dtype, jnp.inexact) else np.dtype(np.float64)


def exact_scale(scale: float) -> Fraction:
    """The simplest fraction that rounds to a float32.

    The float32 nearest to a third, taken exactly, would move positions that lie on an element or half-way between two.
    """
    exact = Fraction(float(scale))
    simple = exact.limit_denominator(1000)
    return simple if np.float32(float(simple)) == np.float32(scale) else exact


def positions(axis: Rescaling, coordinates: str) -> np.ndarray:
    """The position in the input, in elements, of every element of the output, ``float64[out]``."""
    current().check((axis.out,), np.float64, constant=True)
    i = np.arange(axis.out, dtype=np.float64)
    # Products of whole numbers and one division, so that halves come out as halves.
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
            # The last element of an output of fractional width, as ONNX's own cases have it.
            return i * last * q / (axis.size * p - q) if axis.out > 1 else 0 * i
        case "tf_crop_and_resize":
            start, end = axis.region
            if axis.out > 1:
                return start * last + i * (end - start) * last / (axis.out - 1)
            return 0 * i + 0.5 * (start + end) * last
    raise ValueError(f"coordinate_transformation_mode {coordinates!r} is not one that ONNX defines")


_NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def linear_kernel(x: np.ndarray, a: float = 0.0) -> np.ndarray:
    """The triangle on [-1, 1]."""
    del a
    return np.maximum(1 - np.abs(x), 0)


def cubic_kernel(x: Any, a: float = -0.75, where: Callable[..., Any] = np.where) -> Any:
    """The kernel of cubic convolution on [-2, 2], for NumPy or JAX arrays (with their ``where``).

    Source: Keys, "Cubic convolution interpolation for digital image processing", 1981, equation 4.
    """
    x = abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return where(x <= 1, near, where(x < 2, far, 0 * x))


_KERNELS: dict[str, tuple[Callable[..., np.ndarray], int]] = {"linear": (linear_kernel, 1), "cubic": (cubic_kernel, 2)}


def check_sampling(sampling: Sampling) -> None:
    """Refuse choices that ONNX does not define."""
    if sampling.mode != "nearest" and sampling.mode not in _KERNELS:
        raise ValueError(f"mode must be nearest, linear or cubic, not {sampling.mode!r}")
    if sampling.nearest not in _NEAREST:
        raise ValueError(f"nearest_mode must be one of {', '.join(_NEAREST)}, not {sampling.nearest!r}")
    if sampling.antialias and sampling.mode == "nearest":
        raise ValueError("antialias goes with the modes linear and cubic, not with nearest")


def taps(position: np.ndarray, sampling: Sampling, scale: Fraction) -> tuple[np.ndarray, np.ndarray]:
    """The indices of the elements around every position, which may lie outside, and their weights; ``[out, taps]``."""
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


def without_outside(index: np.ndarray, weights: np.ndarray, size: int) -> np.ndarray:
    """The weights with zeros for elements outside, normalised to a sum of 1."""
    inner = np.where((index >= 0) & (index < size), weights, 0)
    total = inner.sum(1, keepdims=True)
    return inner / np.where(total == 0, 1, total)
