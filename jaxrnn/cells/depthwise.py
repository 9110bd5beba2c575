"""Depthwise convolutions: one filter for each channel, and no sum over channels.

On CPUs they are sums of shifted products: XLA has no fast kernel for them there and takes ten to over a hundred times
as long. A sum of shifted products compiles to one loop that reads its operand once and fuses with its neighbours. On
other platforms a convolution stays one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxrnn.cells.geometry import Windows, overlap_add, windows_of
from jaxrnn.cells.platforms import by_platform

#: A kernel with more taps stays a convolution: the compiled code grows with the number of terms.
TAPS = 64


def is_depthwise(operand: Sequence[Any], kernel: Sequence[Any], groups: int) -> bool:
    """Whether `depthwise` can compute a convolution.

    Args:
        operand: shape ``[batch, channels, *spatial]``. One with a symbolic size stays a convolution, which `stream`
            has a rule for.
        kernel: shape ``[out, channels / groups, *spatial]``.
        groups: the number of groups of channels.
    """
    if groups == 1 or groups != operand[1] or kernel[1] != 1:
        return False
    return all(isinstance(size, int) for size in (*operand, *kernel)) and math.prod(kernel[2:]) <= TAPS


def depthwise(
    x: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    input_dilation: Sequence[int],
    kernel_dilation: Sequence[int],
) -> jax.Array:
    """Convolve with one group for each channel.

    Args:
        x: ``[batch, channels, *spatial]``.
        kernel: ``[channels * multiplier, 1, *spatial]``.
        strides: distance between windows.
        padding: before and after each spatial axis of the dilated input; negative entries crop.
        input_dilation: distance between the input's elements, with zeros between them.
        kernel_dilation: distance between the kernel's taps.

    Returns:
        ``[batch, channels * multiplier, *spatial]``.
    """
    distances = tuple(strides), tuple(padding), tuple(input_dilation), tuple(kernel_dilation)
    windows = windows_of(x.shape[2:], kernel.shape[2:], *distances)
    out = (x.shape[0], kernel.shape[0], *(each.count for each in windows))
    if 0 in (*x.shape, *kernel.shape, *out):
        return jnp.zeros(out, x.dtype)

    def products(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return _shifted_products(x, kernel, windows)

    def convolution(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, kernel, *distances, feature_group_count=x.shape[1])

    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return products(x, kernel)  # exact, and not every platform convolves integers
    return by_platform(products, convolution, x, kernel)


def _shifted_products(x: jax.Array, kernel: jax.Array, windows: Sequence[Windows]) -> jax.Array:
    """A sum with a term for each tap. Along axes of a dilated operand, every element is multiplied by every tap."""
    dilated = [axis for axis, each in enumerate(windows) if each.spacing > 1]
    # 16-bit products are summed in 32 bits, as in XLA's own convolution.
    dtype = x.dtype
    wide = jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4 else x.dtype
    x, kernel = x.astype(wide), kernel.astype(wide).reshape(x.shape[1], -1, *kernel.shape[2:])
    terms = []
    for tap in itertools.product(*([slice(None)] if each.spacing > 1 else range(each.taps) for each in windows)):
        met, weights = x, kernel[(slice(None), slice(None), *tap)]
        for axis, index in enumerate(tap):
            if isinstance(index, int):
                met = windows[axis].under_tap(met, index, 2 + axis)
        met = jnp.expand_dims(met, range(2, 3 + len(dilated)))
        terms.append(met * jnp.expand_dims(weights, range(weights.ndim, weights.ndim + len(windows))))
    y = functools.reduce(jnp.add, terms)  # [batch, channels, multiplier, dilated taps, places]
    for index, axis in enumerate(dilated):
        y = overlap_add(y, windows[axis], 3, 3 + len(dilated) - index + axis)
    return y.reshape(x.shape[0], -1, *y.shape[3:]).astype(dtype)
