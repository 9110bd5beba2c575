"""Pooling over windows and over whole images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.onnx.limits import current
from jaxrnn.onnx.operators.windows import Windows, per_axis
from jaxrnn.onnx.registry import Static, inherits, since
from jaxrnn.onnx.values import Value, dimensions, traced


class PoolingWindows(Windows):
    """The windows of a pooling operator, which may reach beyond the padding where their number is rounded up.

    Attributes:
        overhang: what rounding up adds after the padding.
    """

    @inherits(Windows)
    def __init__(self, x: Any, *, kernel_shape: tuple[int, ...], ceil_mode: int = 0, **geometry: Any):
        super().__init__(x.shape[2:], per_axis(kernel_shape, x.ndim - 2, "kernel_shape"), **geometry)
        self.overhang = [self._overhang(axis) if ceil_mode else 0 for axis in range(x.ndim - 2)]

    def _overhang(self, axis: int) -> Any:
        (low, high), size, stride = self.pads[axis], self.sizes[axis], self.strides[axis]
        span = size + low + high - self.reach[axis]
        steps = -(-span // stride)
        if steps * stride >= size + low:
            steps -= 1  # the last window may not begin in the padding after the image
        return max(steps * stride - span, 0)

    def reduce(self, x: Any, start: Any, combine: Any) -> Any:
        """Combine the elements of every window; positions outside the image count as ``start``."""
        pads = [(low, high + over) for (low, high), over in zip(self.pads, self.overhang, strict=True)]
        # XLA crashes on extremely large windows and paddings.
        padded = [size + low + high for size, (low, high) in zip(x.shape[2:], pads, strict=True)]
        current().check((*x.shape[:2], *padded), x.dtype)
        current().check(self.kernel, x.dtype)
        return lax.reduce_window(
            x,
            np.asarray(start, x.dtype)[()],
            combine,
            (1, 1, *self.kernel),
            (1, 1, *self.strides),
            [(0, 0), (0, 0), *pads],
            window_dilation=(1, 1, *self.dilations),
        )


@inherits(PoolingWindows)
def max_pool(x: Value, *, storage_order: int = 0, output_count: int = 1, **geometry: Any) -> Value:
    """MaxPool; the second output is the flat index of each maximum."""
    x = traced(x)
    windows = PoolingWindows(x, **geometry)
    lowest = -np.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    # JAX has no derivative of a maximum over windows with holes.
    y = windows.reduce(x, lowest, lax.max) if set(windows.dilations) == {1} else _by_axis(x, windows, lowest)
    if output_count == 1:
        return y
    return [y, _max_indices(x, windows, lowest, storage_order)]


def _over_windows(
    arrays: Sequence[Any],
    fillers: Sequence[Any],
    windows: PoolingWindows,
    axis: int,
    combine: Callable[..., Sequence[Any]],
) -> Sequence[Any]:
    """The elements of the windows along one axis, combined by a function that may count an element twice.

    A window of twice the size combines two of the size before, so that large windows take few steps.
    """
    size, (low, high), over = windows.kernel[axis - 2], windows.pads[axis - 2], windows.overhang[axis - 2]
    pads = [(low, high + over) if d == axis else (0, 0) for d in range(arrays[0].ndim)]
    parts: Sequence[Any] = [
        jnp.pad(array, pads, constant_values=filler) for array, filler in zip(arrays, fillers, strict=True)
    ]
    done = 1
    while done < size:
        step = min(done, size - done)
        shift = step * windows.dilations[axis - 2]
        length = parts[0].shape[axis] - shift
        here, there = (
            [lax.slice_in_dim(part, start, start + length, 1, axis) for part in parts] for start in (0, shift)
        )
        parts = combine(here, there)
        done += step
    return [lax.slice_in_dim(part, 0, part.shape[axis], windows.strides[axis - 2], axis) for part in parts]


def _by_axis(x: Any, windows: PoolingWindows, lowest: Any) -> Any:
    """The maximum of every window, along one axis after another."""
    for axis in range(2, x.ndim):
        (x,) = _over_windows([x], [lowest], windows, axis, lambda one, other: [jnp.maximum(one[0], other[0])])
    return x


def _max_indices(x: Any, windows: PoolingWindows, lowest: Any, storage_order: int) -> Any:
    """The flat index of the first maximum of every window, along one axis after another."""
    spatial = x.shape[2:]
    count = math.prod(spatial)
    index = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int64).reshape(spatial), x.shape)

    def first(one: Sequence[Any], other: Sequence[Any]) -> Sequence[Any]:
        (value, place), (next_value, next_place) = one, other
        later = (next_value > value) | ((next_value == value) & (next_place < place))
        return jnp.where(later, next_value, value), jnp.where(later, next_place, place)

    for axis in range(2, x.ndim):
        # The padding has the largest index, so that it is never the first of equal elements.
        x, index = _over_windows([x, index], [lowest, count], windows, axis, first)
    if storage_order:
        parts = jnp.unravel_index(index, spatial)
        index = sum(part * math.prod(spatial[:axis]) for axis, part in enumerate(parts))
    channels = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * len(spatial))
    return index + count * jnp.asarray(channels, jnp.int64)


@inherits(PoolingWindows)
def average_pool(x: Value, *, count_include_pad: int = 0, **geometry: Any) -> Value:
    """AveragePool; the padding counts as elements only with ``count_include_pad``, what rounding up adds never."""
    x = traced(x)
    windows = PoolingWindows(x, **geometry)
    total = windows.reduce(x, 0, lax.add)
    padded = any(low or high for low, high in windows.pads) and not count_include_pad
    if not padded and not any(windows.overhang):
        return total / np.asarray(math.prod(windows.kernel), x.dtype)
    ones = jnp.ones((1, 1, *x.shape[2:]), x.dtype)
    if count_include_pad:
        ones = jnp.pad(ones, [(0, 0), (0, 0), *windows.pads], constant_values=1)
        windows.pads = [(0, 0)] * len(windows.pads)
    return total / windows.reduce(ones, 0, lax.add)


@inherits(PoolingWindows)
def lp_pool(x: Value, *, p: int = 2, **geometry: Any) -> Value:
    """LpPool."""
    x = traced(x)
    windows = PoolingWindows(x, **geometry)
    return windows.reduce(jnp.abs(x) ** p, 0, lax.add) ** x.dtype.type(1 / p)


def global_pool(function: Any) -> Any:
    """Pooling over all spatial axes."""

    def apply(x: Value) -> Value:
        x = traced(x)
        return function(x, tuple(range(2, x.ndim)), keepdims=True)

    return apply


def global_lp_pool(x: Value, *, p: int = 2) -> Value:
    """GlobalLpPool."""
    x = traced(x)
    return jnp.sum(jnp.abs(x) ** p, tuple(range(2, x.ndim)), keepdims=True) ** x.dtype.type(1 / p)


@inherits(Windows, "pads", "strides")
def max_unpool(
    x: Value, indices: Value, output_shape: Static | None = None, *, kernel_shape: tuple[int, ...], **geometry: Any
) -> Value:
    """MaxUnpool: each value back at its flat index, zeros elsewhere."""
    x = traced(x)
    windows = Windows(x.shape[2:], per_axis(kernel_shape, x.ndim - 2, "kernel_shape"), **geometry)
    natural = tuple(
        (size - 1) * stride + kernel - low - high
        for size, stride, kernel, (low, high) in zip(
            windows.sizes, windows.strides, windows.kernel, windows.pads, strict=True
        )
    )
    shape = (*x.shape[:2], *natural)
    flat = jnp.zeros(math.prod(shape), x.dtype).at[traced(indices).reshape(-1)].set(x.reshape(-1)).reshape(shape)
    if output_shape is None:
        return flat
    sizes = dimensions(output_shape)
    return jnp.zeros(sizes, x.dtype).at[tuple(slice(0, size) for size in shape)].set(flat)


OPERATORS = {
    "AveragePool": since(average_pool, 7, 10, 11, 19, 22),
    "GlobalAveragePool": since(global_pool(jnp.mean), 1, 22),
    "GlobalLpPool": since(global_lp_pool, 2, 22),
    "GlobalMaxPool": since(global_pool(jnp.max), 1, 22),
    "LpPool": since(lp_pool, 2, 11, 18, 22),
    "MaxPool": since(max_pool, 1, 8, 10, 11, 12, 22),
    "MaxUnpool": since(max_unpool, 9, 11, 22),
}
