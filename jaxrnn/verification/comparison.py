"""Comparison of two values: the rule of `jaxrnn.verification.verify`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import short_repr
from jaxrnn.errors import InputError

#: Tolerances of float32 and float64; at least `STEPS` rounding steps of types with fewer digits.
ATOL, RTOL, STEPS = 1e-5, 1e-4, 8


@short_repr
@dataclass(frozen=True)
class Comparison:
    """The result of comparing a value with the value of a peer, such as a second engine.

    Attributes:
        name: name of the value.
        dtype: element type of the value.
        shape: shape of the value.
        max_abs: largest ``|here - peer|``; infinite if only one side is NaN or infinite, None if both are strings.
        max_rel: largest ``|here - peer| / |peer|`` over the elements with ``|peer| > atol``.
        scale: largest finite ``|peer|``; None if the values are strings.
        ok: True if element type, shape and all elements agree.
        reason: description of the difference, or None if the values agree.
        worst: index of the element with the largest difference beyond the tolerance.
        first_frame: first frame with a difference beyond the tolerance, if the value has a time axis.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    max_abs: float | None = 0.0
    max_rel: float | None = 0.0
    scale: float | None = 0.0
    ok: bool = True
    reason: str | None = None
    worst: tuple[int, ...] | None = None
    first_frame: int | None = None


def tolerances(dtype: np.dtype, atol: float | None, rtol: float | None) -> tuple[float, float]:
    """Return the tolerances for an element type; the defaults for integers are 0."""
    for name, tolerance in (("atol", atol), ("rtol", rtol)):
        if tolerance is not None and not tolerance >= 0:
            raise InputError(f"{name} must be a number of at least 0, not {tolerance}")
    if not jnp.issubdtype(dtype, jnp.inexact):
        return atol or 0.0, rtol or 0.0
    least = STEPS * float(jnp.finfo(dtype).eps)
    return max(ATOL, least) if atol is None else atol, max(RTOL, least) if rtol is None else rtol


def compare(
    name: str,
    here: Any,
    peer: Any,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    scaled: bool = False,
    time_axis: int | None = None,
) -> Comparison:
    """Compare a value with the value of a peer: each element must satisfy ``|here - peer| <= atol + rtol * |peer|``.

    Element types and shapes must agree. NaNs must be at the same positions, and infinities must be equal. Sequences are
    compared item by item, and the comparison of the worst item is returned.

    Args:
        name: name of the value in the result.
        here: array, tuple of values, or None if an optional is absent.
        peer: the value of the other engine.
        atol: absolute tolerance; by default 1e-5, but at least 8 rounding steps of the element type, and 0 for
            integers, booleans and strings.
        rtol: relative tolerance; by default 1e-4, with the same exceptions.
        scaled: multiply ``atol`` by the largest finite ``|peer|`` if that is above 1. Useful for values inside a
            graph, where large terms may cancel.
        time_axis: axis of frames, for `Comparison.first_frame`.

    Raises:
        InputError: a tolerance is negative or NaN.
    """
    if here is None or peer is None or isinstance(here, (list, tuple)) or isinstance(peer, (list, tuple)):
        return _compare_items(name, here, peer, atol, rtol, scaled)
    here, peer = np.asarray(here), np.asarray(peer)
    text = here.dtype.kind in "OUST" and peer.dtype.kind in "OUST"
    result = Comparison(name, "string" if text else here.dtype.name, here.shape)
    if not text and here.dtype != peer.dtype:
        return _different(result, f"the element type is {here.dtype.name} here, but {peer.dtype.name} in the peer")
    if here.shape != peer.shape:
        return _different(result, f"the shape is {list(here.shape)} here, but {list(peer.shape)} in the peer")
    if text:
        one, other = (array.astype(str) if array.dtype.kind == "S" else array for array in (here, peer))
        wrong = np.asarray(one.astype(object) != other.astype(object))
        result = replace(result, max_abs=None, max_rel=None, scale=None)
        return _different(result, *_reason(wrong, wrong.astype(float), "")) if wrong.any() else result
    return _compare_numbers(result, here, peer, *tolerances(here.dtype, atol, rtol), scaled, time_axis)


def _compare_numbers(
    result: Comparison,
    here: np.ndarray,
    peer: np.ndarray,
    atol: float,
    rtol: float,
    scaled: bool,
    time_axis: int | None,
) -> Comparison:
    equal = np.asarray(here == peer)
    inexact = jnp.issubdtype(here.dtype, jnp.inexact)
    wide = np.complex128 if np.issubdtype(here.dtype, np.complexfloating) else np.float64
    a, b = here.astype(wide), peer.astype(wide)
    with np.errstate(all="ignore"):
        equal = equal | (np.isnan(a) & np.isnan(b))
        distance = np.where(equal, 0.0, np.abs(a - b))
        distance = np.where(np.isnan(distance), np.inf, distance)
        if not inexact:
            # Large integers may differ by less than float64 resolves.
            distance = np.where(equal, 0.0, np.maximum(distance, 1.0))
        size = np.abs(b)
        scale = float(size.max(initial=0.0, where=np.isfinite(size)))
        if scaled:
            atol *= max(1.0, scale)
        ratio = np.where(np.isfinite(distance), distance / size, np.inf)
        ratio = np.where(equal | (size <= atol), 0.0, ratio)
        wrong = ~equal & ~(np.isfinite(distance) & (distance <= atol + rtol * size))
        nans = int(np.isnan(a).sum()), int(np.isnan(b).sum())
    largest = {"max_abs": float(distance.max(initial=0.0)), "max_rel": float(ratio.max(initial=0.0)), "scale": scale}
    result = replace(result, **largest)
    if not wrong.any():
        return result
    moved = bool((np.isnan(a) != np.isnan(b)).any())
    note = f", and NaNs are elsewhere ({nans[0]} here, {nans[1]} in the peer)" if moved else ""
    first = None if time_axis is None else int(np.argwhere(wrong)[:, time_axis].min())
    different = _different(result, *_reason(wrong, distance, note))
    return replace(different, **largest, first_frame=first)


def _reason(wrong: np.ndarray, distance: np.ndarray, note: str) -> tuple[str, tuple[int, ...]]:
    worst = np.unravel_index(int(np.argmax(np.where(wrong, distance, -1.0))), wrong.shape)
    count = int(wrong.sum())
    return f"{count:,} of {wrong.size:,} elements differ{note}", tuple(int(index) for index in worst)


def _different(result: Comparison, reason: str, worst: tuple[int, ...] | None = None) -> Comparison:
    return replace(result, max_abs=None, max_rel=None, scale=None, ok=False, reason=reason, worst=worst)


def _compare_items(name: str, here: Any, peer: Any, atol: float | None, rtol: float | None, scaled: bool) -> Comparison:
    result = Comparison(name, "absent" if here is None else "sequence", ())
    if here is None and peer is None:
        return result
    if not (isinstance(here, (list, tuple)) and isinstance(peer, (list, tuple))):
        return _different(result, f"it is {_kind(here)} here, but {_kind(peer)} in the peer")
    if len(here) != len(peer):
        return _different(result, f"the sequence has {len(here)} items here, but {len(peer)} in the peer")
    items: Sequence[Comparison] = [
        compare(f"{name}[{index}]", *pair, atol=atol, rtol=rtol, scaled=scaled)
        for index, pair in enumerate(zip(here, peer, strict=True))
    ]
    worst = min(items, key=lambda item: (item.ok, -(item.max_abs or 0.0)), default=result)
    return replace(
        result,
        shape=(len(items),),
        max_abs=worst.max_abs,
        max_rel=worst.max_rel,
        scale=worst.scale,
        ok=worst.ok,
        reason=worst.reason and f"{worst.name}: {worst.reason}",
        worst=worst.worst,
    )


def _kind(value: Any) -> str:
    return "absent" if value is None else "a sequence" if isinstance(value, (list, tuple)) else "an array"
