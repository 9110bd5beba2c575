"""Windows over images: the attributes that describe windows, and pooling."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn._jax.context import lowest
from jaxrnn.onnx.limits import current
from jaxrnn.onnx.registry import Static, Versions, inherits, since
from jaxrnn.onnx.values import Value, check_choice, dimensions, traced


def per_axis(values: Sequence[int] | None, rank: int, name: str) -> tuple[int, ...]:
    """Return an attribute with an entry for each spatial axis; 1 if the attribute is absent."""
    if not values:
        return (1,) * rank
    if len(values) != rank:
        raise ValueError(f"{name} has {len(values)} entries for {rank} spatial axes")
    if min(values) < 1:
        raise ValueError(f"{name} must be 1 or more, not {list(values)}")
    return tuple(values)


Pads = list[tuple[Any, Any]]


class WindowAttributes:
    """Kernel, strides, dilations and padding of each spatial axis of an image, from ONNX's attributes."""

    def __init__(
        self,
        sizes: Sequence[Any],
        kernel: Sequence[Any],
        *,
        auto_pad: str = "NOTSET",
        dilations: tuple[int, ...] | None = None,
        pads: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
    ):
        self.sizes, self.kernel, self.auto_pad, self._pads = tuple(sizes), tuple(kernel), auto_pad, pads
        self.strides = per_axis(strides, len(self.kernel), "strides")
        self.dilations = per_axis(dilations, len(self.kernel), "dilations")

    @property
    def reach(self) -> tuple[Any, ...]:
        """Return the distance from the first to the last element of a window, plus 1."""
        return tuple((size - 1) * dilation + 1 for size, dilation in zip(self.kernel, self.dilations, strict=True))

    @functools.cached_property
    def pads(self) -> Pads:
        """Return the padding before and after each axis, from the attribute or by ``auto_pad``."""
        rank = len(self.kernel)
        if self.auto_pad in ("NOTSET", ""):
            flat = tuple(self._pads) if self._pads else (0,) * (2 * rank)
            if len(flat) != 2 * rank:
                raise ValueError(f"pads has {len(flat)} entries; two for each of the {rank} spatial axes are expected")
            if any(abs(pad) >= 2**60 for pad in flat):  # sums of sizes would overflow in XLA
                raise ValueError(f"pads {list(flat)} are not between -2**60 and 2**60")
            return list(zip(flat[:rank], flat[rank:], strict=True))
        if self.auto_pad == "VALID":
            return [(0, 0)] * rank
        check_choice("auto_pad", self.auto_pad, ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
        rows = zip(self.sizes, self.strides, self.reach, strict=True)
        totals = [max((-(-size // stride) - 1) * stride + reach - size, 0) for size, stride, reach in rows]
        return self.halves(totals)

    def halves(self, totals: Sequence[Any]) -> Pads:
        """Split padding in two halves; ``auto_pad`` chooses the larger half."""
        pairs = [(total // 2, total - total // 2) for total in totals]
        return pairs if self.auto_pad == "SAME_UPPER" else [pair[::-1] for pair in pairs]

    @property
    def counts(self) -> tuple[Any, ...]:
        """Return the number of windows on each axis."""
        rows = zip(self.sizes, self.pads, self.strides, self.reach, strict=True)
        return tuple((size + low + high - reach) // stride + 1 for size, (low, high), stride, reach in rows)


def kernel_of(w: Any, kernel_shape: Sequence[int] | None) -> tuple[int, ...]:
    """Return the spatial sizes of a weight, which an attribute ``kernel_shape`` may repeat."""
    kernel = tuple(w.shape[2:])
    if kernel_shape and tuple(kernel_shape) != kernel:
        raise ValueError(f"kernel_shape {list(kernel_shape)} does not match the weight's {list(kernel)}")
    return kernel


class PoolingWindows(WindowAttributes):
    """The windows of a pooling operator, which may extend past the padding if their number is rounded up.

    ``overhang`` is the number of elements after the padding that rounding up adds.
    """

    @inherits(WindowAttributes)
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
        """Combine the elements of each window; positions outside of the image count as ``start``."""
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
    least = lowest(x.dtype)
    if set(windows.dilations) == {1}:
        y = windows.reduce(x, least, lax.max)
    else:  # axis by axis, because JAX has no derivative of a maximum over windows with holes
        y = x
        for axis in range(2, x.ndim):
            (y,) = _over_windows([y], [least], windows, axis, lambda one, other: [jnp.maximum(one[0], other[0])])
    if output_count == 1:
        return y
    return [y, _max_indices(x, windows, least, storage_order)]


def _over_windows(
    arrays: Sequence[Any],
    fillers: Sequence[Any],
    windows: PoolingWindows,
    axis: int,
    combine: Callable[..., Sequence[Any]],
) -> Sequence[Any]:
    """Combine the elements of windows along one axis by an idempotent function.

    A window of twice the size combines two smaller windows, so that large windows take few steps.
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


def _max_indices(x: Any, windows: PoolingWindows, least: Any, storage_order: int) -> Any:
    """Return the flat index of the first maximum of each window, axis by axis."""
    spatial = x.shape[2:]
    count = math.prod(spatial)
    index = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int64).reshape(spatial), x.shape)

    def first(one: Sequence[Any], other: Sequence[Any]) -> Sequence[Any]:
        (value, place), (next_value, next_place) = one, other
        later = (next_value > value) | ((next_value == value) & (next_place < place))
        return jnp.where(later, next_value, value), jnp.where(later, next_place, place)

    for axis in range(2, x.ndim):
        # The padding has the largest index, so that it is never the first of equal elements.
        x, index = _over_windows([x, index], [least, count], windows, axis, first)
    if storage_order:
        parts = jnp.unravel_index(index, spatial)
        index = sum(part * math.prod(spatial[:axis]) for axis, part in enumerate(parts))
    channels = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * len(spatial))
    return index + count * jnp.asarray(channels, jnp.int64)


@inherits(PoolingWindows)
def window_sums(x: Value, *, count_include_pad: int = 0, **geometry: Any) -> tuple[Any, Any]:
    """Return the sum of each window, and the number of elements; the overhang of rounding up never counts."""
    x = traced(x)
    windows = PoolingWindows(x, **geometry)
    total = windows.reduce(x, 0, lax.add)
    padded = any(low or high for low, high in windows.pads) and not count_include_pad
    if not padded and not any(windows.overhang):
        return total, np.asarray(math.prod(windows.kernel), x.dtype)
    ones = jnp.ones((1, 1, *x.shape[2:]), x.dtype)
    if count_include_pad:
        ones = jnp.pad(ones, [(0, 0), (0, 0), *windows.pads], constant_values=1)
        windows.pads = [(0, 0)] * len(windows.pads)
    return total, windows.reduce(ones, 0, lax.add)


@inherits(window_sums)
def average_pool(x: Value, **geometry: Any) -> Value:
    """AveragePool; the padding counts only with ``count_include_pad``."""
    total, count = window_sums(x, **geometry)
    return total / count


@inherits(PoolingWindows)
def lp_pool(x: Value, *, p: int = 2, **geometry: Any) -> Value:
    """LpPool."""
    x = traced(x)
    windows = PoolingWindows(x, **geometry)
    return windows.reduce(jnp.abs(x) ** p, 0, lax.add) ** x.dtype.type(1 / p)


def global_pool(function: Any) -> Any:
    """Return an operator that pools over all spatial axes."""

    def apply(x: Value) -> Value:
        x = traced(x)
        return function(x, tuple(range(2, x.ndim)), keepdims=True)

    return apply


def global_lp_pool(x: Value, *, p: int = 2) -> Value:
    """GlobalLpPool."""
    x = traced(x)
    return jnp.sum(jnp.abs(x) ** p, tuple(range(2, x.ndim)), keepdims=True) ** x.dtype.type(1 / p)


@inherits(WindowAttributes, "pads", "strides")
def max_unpool(
    x: Value, indices: Value, output_shape: Static | None = None, *, kernel_shape: tuple[int, ...], **geometry: Any
) -> Value:
    """MaxUnpool: each value back at its flat index, zeros elsewhere."""
    x = traced(x)
    windows = WindowAttributes(x.shape[2:], per_axis(kernel_shape, x.ndim - 2, "kernel_shape"), **geometry)
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


OPERATORS: dict[str, Versions] = {
    "AveragePool": since(average_pool, 7, 10, 11, 19, 22),
    "GlobalAveragePool": since(global_pool(jnp.mean), 1, 22),
    "GlobalLpPool": since(global_lp_pool, 2, 22),
    "GlobalMaxPool": since(global_pool(jnp.max), 1, 22),
    "LpPool": since(lp_pool, 2, 11, 18, 22),
    "MaxPool": since(max_pool, 1, 8, 10, 11, 12, 22),
    "MaxUnpool": since(max_unpool, 9, 11, 22),
}
