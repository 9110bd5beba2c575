"""Depthwise convolutions as sums of shifted products: one filter for each channel, and no sum over channels.

XLA has no fast CPU kernel for them and takes ten to over a hundred times as long. A sum of shifted products compiles to
one loop that reads its operand once and fuses with its neighbours.
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
    spatial = kernel.shape[2:]
    widths = [(low, high, spacing - 1) for (low, high), spacing in zip(padding, input_dilation, strict=True)]
    padded = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *widths])
    sizes = [
        max((length - (taps - 1) * dilation - 1) // stride + 1, 0)
        for length, taps, dilation, stride in zip(padded.shape[2:], spatial, kernel_dilation, strides, strict=True)
    ]
    out = (x.shape[0], kernel.shape[0], *sizes)
    if 0 in (*out, *spatial):
        return jnp.zeros(out, x.dtype)
    # 16-bit products are summed in 32 bits, as in XLA's own convolution.
    wide = jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4 else x.dtype
    padded, kernel = padded.astype(wide), kernel.astype(wide)
    per_channel = kernel.reshape(x.shape[1], -1, *spatial, *(1,) * len(spatial))
    terms = []
    for tap in itertools.product(*map(range, spatial)):
        starts = [index * dilation for index, dilation in zip(tap, kernel_dilation, strict=True)]
        limits = [start + (n - 1) * s + 1 for start, n, s in zip(starts, sizes, strides, strict=True)]
        shifted = lax.slice(padded, (0, 0, *starts), (*x.shape[:2], *limits), (1, 1, *strides))
        terms.append(shifted[:, :, None] * per_channel[(slice(None), slice(None), *tap)])
    return functools.reduce(jnp.add, terms).reshape(out).astype(x.dtype)
