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
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

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
    geometry = _Geometry(tuple(strides), tuple(padding), tuple(input_dilation), tuple(kernel_dilation))
    out = geometry.result(x, kernel)
    if 0 in (*out, *kernel.shape[2:]):
        return jnp.zeros(out, x.dtype)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return geometry.shifted_products(x, kernel)  # exact, and not every platform convolves integers
    return by_platform(geometry.shifted_products, geometry.convolution, x, kernel)


@dataclass(frozen=True)
class _Geometry:
    """Where the windows of a convolution lie, and its forms. The arguments of `depthwise`, as tuples."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    input_dilation: tuple[int, ...]
    kernel_dilation: tuple[int, ...]

    def result(self, x: jax.Array, kernel: jax.Array) -> tuple[int, ...]:
        """The shape of the result."""
        sizes = [
            max(((length - 1) * spacing + 1 if length else 0) + low + high - (taps - 1) * dilation - 1, -1)
            for length, spacing, (low, high), taps, dilation in zip(
                x.shape[2:], self.input_dilation, self.padding, kernel.shape[2:], self.kernel_dilation, strict=True
            )
        ]
        return (x.shape[0], kernel.shape[0], *(n // stride + 1 for n, stride in zip(sizes, self.strides, strict=True)))

    def convolution(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """The plain form."""
        geometry = self.strides, self.padding, self.input_dilation, self.kernel_dilation
        return lax.conv_general_dilated(x, kernel, *geometry, feature_group_count=x.shape[1])

    def shifted_products(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """A sum with a term for each tap."""
        spatial, out = kernel.shape[2:], self.result(x, kernel)
        spaced = zip(self.padding, self.input_dilation, strict=True)
        widths = [(low, high, spacing - 1) for (low, high), spacing in spaced]
        padded = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *widths])
        # 16-bit products are summed in 32 bits, as in XLA's own convolution.
        wide = jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4 else x.dtype
        padded, kernel = padded.astype(wide), kernel.astype(wide)
        per_channel = kernel.reshape(x.shape[1], -1, *spatial, *(1,) * len(spatial))
        terms = []
        for tap in itertools.product(*map(range, spatial)):
            starts = [index * dilation for index, dilation in zip(tap, self.kernel_dilation, strict=True)]
            limits = [start + (n - 1) * s + 1 for start, n, s in zip(starts, out[2:], self.strides, strict=True)]
            shifted = lax.slice(padded, (0, 0, *starts), (*x.shape[:2], *limits), (1, 1, *self.strides))
            terms.append(shifted[:, :, None] * per_channel[(slice(None), slice(None), *tap)])
        return functools.reduce(jnp.add, terms).reshape(out).astype(x.dtype)
