"""Where the windows of a convolution lie, and what of its operand lies under them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax


@dataclass(frozen=True)
class Windows:
    """The windows along one axis, in the terms of ``lax.conv_general_dilated``.

    Element i of the operand is at ``low + i * spacing``. Window j begins at ``j * stride``, and its taps are `dilation`
    apart.
    """

    size: int
    taps: int
    stride: int
    low: int
    high: int
    spacing: int
    dilation: int

    @property
    def extent(self) -> int:
        """How far the last tap of a window is from its first."""
        return (self.taps - 1) * self.dilation

    @property
    def count(self) -> int:
        """How many windows there are."""
        length = (self.size - 1) * self.spacing + 1 if self.size else 0
        return max((length + self.low + self.high - self.extent - 1) // self.stride + 1, 0)

    def under_tap(self, x: jax.Array, tap: int, axis: int) -> jax.Array:
        """What a tap meets in each window, along an axis of the operand."""
        return _elements(x, tap * self.dilation - self.low, self.count, self.stride, axis)

    def under_window(self, x: jax.Array, index: int, axis: int) -> jax.Array:
        """What a window meets with each tap, along an axis of the operand."""
        return _elements(x, index * self.stride - self.low, self.taps, self.dilation, axis)


def windows_of(
    sizes: Sequence[int],
    taps: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    input_dilation: Sequence[int],
    kernel_dilation: Sequence[int],
) -> list[Windows]:
    """The windows along each axis; the arguments have an entry for each."""
    rows = zip(sizes, taps, strides, padding, input_dilation, kernel_dilation, strict=True)
    return [
        Windows(size, count, stride, int(low), int(high), spacing, dilation)
        for size, count, stride, (low, high), spacing, dilation in rows
    ]


def overlap_add(parts: jax.Array, windows: Windows, taps: int, axis: int) -> jax.Array:
    """The sum of what every element of the operand gives to the windows along an axis.

    Args:
        parts: what each element gives, with one of its axes for the taps.
        windows: along the axis.
        taps: the axis of the taps.
        axis: that of the elements, after that of the taps.

    Returns:
        The axis of the taps is gone, and the other one is that of the windows.
    """
    parts = jnp.moveaxis(parts, taps, axis - 1)
    before, after = parts.shape[: axis - 1], parts.shape[axis + 1 :]
    extent, spacing, dilation = windows.extent, windows.spacing, windows.dilation
    if windows.size == 1:
        sums = _padded(lax.rev(parts, (axis - 1,)), {axis - 1: (0, 0, dilation - 1)})
        sums = sums.reshape(*before, extent + 1, *after)
    else:
        # An element meets the last tap first, and the one before it `dilation` on. Places come in blocks, one for
        # each element: what falls into a later block is added to what later elements give.
        blocks = extent // spacing + 1
        terms = []
        for block in sorted({tap * dilation // spacing for tap in range(windows.taps)}):
            first, end = -(-block * spacing // dilation), min(-(-(block + 1) * spacing // dilation), windows.taps)
            taken = lax.slice_in_dim(parts, windows.taps - end, windows.taps - first, axis=axis - 1)
            low, span = first * dilation - block * spacing, (end - first - 1) * dilation + 1
            widths = {axis - 1: (low, spacing - low - span, dilation - 1), axis: (block, blocks - 1 - block, 0)}
            terms.append(_padded(lax.rev(taken, (axis - 1,)), widths))
        sums = jnp.swapaxes(functools.reduce(jnp.add, terms), axis - 1, axis).reshape(*before, -1, *after)
    # The first of the sums is at the place where the first element meets the last tap.
    return _elements(sums, extent - windows.low, windows.count, windows.stride, axis - 1)


def _elements(x: jax.Array, first: int, count: int, step: int, axis: int) -> jax.Array:
    """So many elements along an axis, so far apart; zeros where there are none.

    Slices of a padded array would need it in memory: each is padded for itself.
    """
    size = x.shape[axis]
    before = min(max(-(first // step), 0), count)
    after = min(max(count - 1 - (size - 1 - first) // step, 0), count - before)
    inside = count - before - after
    if not inside:
        return jnp.zeros((*x.shape[:axis], count, *x.shape[axis + 1 :]), x.dtype)
    begin = first + before * step
    return _padded(lax.slice_in_dim(x, begin, begin + (inside - 1) * step + 1, step, axis), {axis: (before, after, 0)})


def _padded(x: jax.Array, widths: Mapping[int, tuple[int, int, int]]) -> jax.Array:
    """Zeros before, after and between the elements of some axes; negative numbers crop."""
    if not any(map(any, widths.values())):
        return x
    return lax.pad(x, jnp.zeros((), x.dtype), [widths.get(axis, (0, 0, 0)) for axis in range(x.ndim)])
