"""Depthwise convolutions as sums of shifted products: one filter for each channel, and no sum over channels.

XLA has no fast kernel for them on CPU and takes ten to some hundred times as long; a sum of shifted products becomes
one loop that reads the operand once, and fuses with what is around it.
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

#: A kernel of more taps stays a convolution: the compiled sum would be as long.
TAPS = 64


def is_depthwise(operand: Sequence[Any], kernel: Sequence[Any], groups: int) -> bool:
    """Whether `depthwise` takes a convolution.

    Args:
        operand: shape ``[batch, channels, *spatial]``; symbolic sizes stay convolutions, which say more to `stream`.
        kernel: shape ``[out, channels / groups, *spatial]``.
        groups: of channels.
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
    """A convolution with one group for each channel.

    Args:
        x: ``[batch, channels, *spatial]``.
        kernel: ``[channels * multiplier, 1, *spatial]``.
        strides: of the windows.
        padding: before and after each spatial axis, of the dilated input; negative entries crop.
        input_dilation: distance of the input's elements, with zeros between them.
        kernel_dilation: distance of the kernel's taps.

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
    # Sums of 16-bit products lose too much in 16 bits; XLA's convolution adds in 32 as well.
    wide = jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4 else x.dtype
    padded, kernel = padded.astype(wide), kernel.astype(wide)
    per_channel = kernel.reshape(x.shape[1], -1, *spatial, *(1,) * len(spatial))
    terms = []
    for tap in itertools.product(*map(range, spatial)):
        starts = [index * dilation for index, dilation in zip(tap, kernel_dilation, strict=True)]
        limits = [start + (n - 1) * s + 1 for start, n, s in zip(starts, sizes, strides, strict=True)]
        seen = lax.slice(padded, (0, 0, *starts), (*x.shape[:2], *limits), (1, 1, *strides))
        terms.append(seen[:, :, None] * per_channel[(slice(None), slice(None), *tap)])
    return functools.reduce(jnp.add, terms).reshape(out).astype(x.dtype)
