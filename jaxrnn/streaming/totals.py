"""Running totals without drift: a total of floats is carried as the sum of two floats.

After hours of audio, a float32 total is so large that adding a frame changes only the last digits, or no digit. So
`high` is the rounded total, and `low` is the rounding error, which doubles the number of digits. Totals of narrower
dtypes are carried as two float32 values. Totals of integers, maxima, minima and bits are exact and have no
`low`. Example: after ``2**24`` frames of 1.0, a float32 total stays at 16,777,216; here, `low` counts further frames.

Compilers must keep the order of additions, as XLA and ONNX Runtime do. A compiler may fuse a product and an addition,
and round once instead of twice, so products are computed exactly before an addition.

Sources: Knuth, "The Art of Computer Programming", volume 2, section 4.2.2 (`_two_sum`); Dekker, "A Floating-Point
Technique for Extending the Available Precision", 1971 (`_product`); Rump, Ogita and Oishi, "Accurate Floating-Point
Summation", 2008 (`_exact_parts`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn._jax.context import highest, lowest
from jaxrnn.cells.forms import is_plain
from jaxrnn.streaming.dimensions import Timeline
from jaxrnn.streaming.passes import Pass


class Wide(NamedTuple):
    """An array as the unevaluated sum of two arrays of the same dtype; a zero `low` is None."""

    high: Any
    low: Any = None


def _two_sum(a: Any, b: Any) -> Wide:
    """Return the rounded sum of two arrays and the exact rounding error."""
    total = a + b
    part = total - a
    return Wide(total, (a - (total - part)) + (b - part))


def _rounded(high: Any, error: Any) -> Wide:
    """Round the sum of both parts into `high`. If the error is NaN, `high` is not finite and stays."""
    known = lax.eq(error, error)
    total = jnp.where(known, high + error, high)
    return Wide(total, jnp.where(known, error - (total - high), jnp.zeros_like(error)))


def _sum(a: Wide, b: Wide) -> Wide:
    high, error = _two_sum(a.high, b.high)
    return _rounded(high, sum([x.low for x in (a, b) if x.low is not None], start=error))


def _halves(x: Any) -> tuple[Any, Any]:
    """Split numbers into two numbers with half the digits, so that products of the halves are exact."""
    info = jnp.finfo(x.dtype)
    bits = (info.nmant - 1) // 2
    if is_plain():  # ONNX has no operator that rounds to fewer bits, and engines do not fuse these operations
        scaled = x * (2.0 ** (info.nmant - bits) + 1)
        half = scaled - (scaled - x)
    else:
        half = lax.reduce_precision(x, info.nexp, bits)
    return half, x - half


def _product(a: Wide, b: Wide) -> Wide:
    (a_first, a_second), (b_first, b_second) = _halves(a.high), _halves(b.high)
    high, error = _two_sum(a_first * b_first, a_first * b_second)
    high, more = _two_sum(high, a_second * b_first)
    crossed = [x * y.low for x, y in ((a.high, b), (b.high, a)) if y.low is not None]
    error = sum([more, a_second * b_second, *crossed], start=error)
    return _rounded(jnp.where(lax.eq(error, error), high, a.high * b.high), error)


def _logaddexp(a: Wide, b: Wide) -> Wide:
    """Add ``log(1 + exp(smaller - larger))`` to the larger number; `b`, a part of a chunk, has no `low`."""
    swapped = a.high < b.high
    larger, smaller = jnp.where(swapped, b.high, a.high), jnp.where(swapped, a.high, b.high)
    gap = jnp.where(a.high == b.high, jnp.zeros_like(larger), smaller - larger)  # infinities may be equal
    high, error = _two_sum(larger, jnp.log1p(jnp.exp(gap)))
    return _rounded(high, error + jnp.where(swapped, jnp.zeros_like(error), a.low))


class _Monoid(NamedTuple):
    """An associative operation, the neutral element of each dtype, and the operation on `Wide` numbers, if any."""

    join: Callable[[Any, Any], Any]
    identity: Callable[[Any], Any]
    wide: Callable[[Wide, Wide], Wide] | None = None
    is_idempotent: bool = False  # equal elements count once


#: Monoids, keyed by the last part of the primitive's name.
_MONOIDS = {
    "sum": _Monoid(lax.add, lambda dtype: 0, _sum),
    "prod": _Monoid(lax.mul, lambda dtype: 1, _product),
    "max": _Monoid(lax.max, lowest, is_idempotent=True),
    "min": _Monoid(lax.min, highest, is_idempotent=True),
    "logsumexp": _Monoid(jnp.logaddexp, lowest, _logaddexp),
    "and": _Monoid(lax.bitwise_and, lambda dtype: np.invert(np.zeros((), dtype)), is_idempotent=True),
    "or": _Monoid(lax.bitwise_or, lambda dtype: 0, is_idempotent=True),
    "xor": _Monoid(lax.bitwise_xor, lambda dtype: 0),
}


def is_idempotent(name: str) -> bool:
    """Return True for a monoid in which equal elements count once."""
    return _MONOIDS[name].is_idempotent


def identity_of(name: str, dtype: Any) -> Any:
    """Return the neutral element: 0 for sums, the lowest value for maxima."""
    return _MONOIDS[name].identity(dtype)


def join_of(name: str) -> Callable[[Any, Any], Any]:
    """Return the associative operation of two arrays."""
    return _MONOIDS[name].join


def _wide_join(kind: str, dtype: Any) -> Callable[[Wide, Wide], Wide] | None:
    """Return the operation on `Wide` totals of a dtype; None if totals are exact, and for complex products."""
    return _MONOIDS[kind].wide if jnp.issubdtype(dtype, jnp.inexact if kind == "sum" else jnp.floating) else None


def carried_as(kind: str, dtype: Any) -> np.dtype:
    """Return the dtype of the carried total: float32 for narrower floats, otherwise the same dtype."""
    dtype = np.dtype(dtype)
    return np.dtype(np.float32) if dtype.itemsize < 4 and _wide_join(kind, dtype) else dtype


class Total:
    """A running total over the frames of a stream, stored in state entries.

    The constructor reads the entries, and each method stores the new values. `kind` is the last part of the primitive's
    name, such as "sum", "prod" or "max". `dtype` is the dtype of the results.
    """

    def __init__(self, run: Pass, kind: str, shape: Sequence[int], dtype: Any, timeline: Timeline, delay: int):
        self._run, self._frames, self._dtype = run, (timeline, delay), np.dtype(dtype)
        self._join, self._wide = _MONOIDS[kind].join, _wide_join(kind, dtype)
        self._carried = carried_as(kind, dtype)
        starts = {"total": identity_of(kind, self._carried), **({"remainder": 0} if self._wide else {})}
        entries = [
            run.carry(name, functools.partial(jnp.full, shape, value, self._carried)) for name, value in starts.items()
        ]
        self._names = [name for name, _ in entries]
        self._before = Wide(*(value for _, value in entries))

    @property
    def before(self) -> Any:
        """The total before the chunk."""
        return self._before.high.astype(self._dtype)

    def move(self, change: Any, scale: Any) -> None:
        """Add to the total before the chunk, and multiply by a scale of at most 1, if given."""
        moved = _sum(self._before, Wide(jnp.zeros_like(self._before.high) + change))
        if scale is not None:
            moved = Wide(*(part * scale for part in moved))
        self._before = moved

    def scale(self, factor: Any, less_one: Any) -> None:
        """Multiply the total before the chunk by a factor; `less_one` is the factor minus 1, with all digits.

        The rounding of a factor near 1 would add up over all chunks that the total remembers.
        """
        near = jnp.abs(less_one) < 0.5
        by = jnp.where(near, less_one, factor)
        kept, changed = (
            Wide(*(change(part) for part in self._before))
            for change in (lambda part: jnp.where(near, part, jnp.zeros_like(part)), lambda part: part * by)
        )
        self._before = _sum(kept, changed)

    def after_each(self, x: Any, axis: int, cumulate: Callable[[Any], Any]) -> Any:
        """Return the total after each frame of a chunk; `cumulate` computes running totals of an array."""
        x = x.astype(self._carried)
        if x.shape[axis] == 1:
            part = Wide(x)
        elif self._wide is _sum:
            part = Wide(*map(cumulate, _exact_parts(x, (axis,))))
        else:
            part = _products(x, axis) if self._wide is _product else Wide(cumulate(x))
        return self._add(part, lambda running: lax.slice_in_dim(running, x.shape[axis] - 1, None, axis=axis))

    def after_all(self, x: Any, axes: Sequence[int], time: int, reduce: Callable[[Any, Sequence[int]], Any]) -> Any:
        """Return the total after a chunk, reduced over several axes by `reduce`; `time` is the time axis."""
        x = x.astype(self._carried)
        if self._wide is _sum:
            return self.after(*(reduce(part, axes) for part in _exact_parts(x, axes)))
        if self._wide is None:
            return self.after(reduce(x, axes))
        frames = reduce(jnp.moveaxis(x, time, 0), [axis + (axis < time) for axis in axes if axis != time])
        return self.after(*(part[-1] for part in _products(frames, 0)))

    def after(self, high: Any, low: Any = None) -> Any:
        """Add a part, which is the reduction of a chunk, and return the total."""
        self._run.notes.complete(*self._frames)
        return self._add(Wide(high.astype(self._carried), low), lambda total: total)

    def _add(self, part: Wide, last: Callable[[Any], Any]) -> Any:
        total = Wide(self._join(self._before.high, part.high)) if self._wide is None else self._wide(self._before, part)
        for name, value in zip(self._names, total, strict=False):
            self._run.store(name, last(value), *self._frames)
        return total.high.astype(self._dtype)


def _exact_parts(x: Any, axes: Sequence[int]) -> tuple[Any, ...]:
    """Split numbers into large parts with exact sums along some axes, and small remainders.

    Numbers are not split if a number is not finite, or if the sum may overflow.
    """
    if math.prod(x.shape[axis] for axis in axes) == 1:
        return (x,)
    scale = lax.stop_gradient(jnp.sum(jnp.abs(x), tuple(axes), keepdims=True) * 4)
    if jnp.iscomplexobj(x):
        scale = lax.complex(scale, scale)
    first = (x + scale) - scale
    known = lax.eq(first, first)
    return jnp.where(known, first, x), jnp.where(known, x - first, jnp.zeros_like(x))


def _products(x: Any, axis: int) -> Wide:
    """Compute running products, and the error of each product from the product before."""
    high = lax.cumprod(x, axis)
    before = lax.slice_in_dim(high, 0, x.shape[axis] - 1, axis=axis)
    before = jnp.concatenate([jnp.ones_like(lax.slice_in_dim(x, 0, 1, axis=axis)), before], axis)
    exact = _product(Wide(before), Wide(x))
    divisor = jnp.where(high == 0, jnp.ones_like(high), high)
    off = ((exact.high - high) + exact.low) / divisor  # finite unless a product is not finite
    return Wide(high, lax.stop_gradient(high * lax.cumsum(off, axis)))
