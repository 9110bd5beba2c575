"""Blocks of images: deformable convolution, and images assembled from blocks."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxrnn.cells import product_operands
from jaxrnn.onnx.operators.arithmetic import alike
from jaxrnn.onnx.operators.rounding import wide_type
from jaxrnn.onnx.operators.sampling import linear_taps, sample
from jaxrnn.onnx.operators.windows import Windows, kernel_of
from jaxrnn.onnx.registry import Static, inherits, since
from jaxrnn.onnx.values import Value, dimensions, traced


@inherits(Windows, "dilations", "pads", "strides")
def deform_conv(
    x: Value,
    w: Value,
    offset: Value,
    b: Value = None,
    mask: Value = None,
    *,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    offset_group: int = 1,
    **geometry: Any,
) -> Value:
    """DeformConv: a convolution whose taps are moved by the offsets and interpolate between elements."""
    alike(x, w, offset, b, mask)
    x, w, offset = traced(x), traced(w), traced(offset)
    dtype, working = x.dtype, wide_type(x.dtype)
    rank, kernel = x.ndim - 2, kernel_of(w, kernel_shape)
    if rank < 1 or w.ndim != x.ndim or offset.ndim != x.ndim:
        raise ValueError(f"input, weight and offset must have one rank, not {x.ndim}, {w.ndim} and {offset.ndim}")
    batch, channels = x.shape[:2]
    if channels != w.shape[1] * group or w.shape[0] % group or channels % offset_group:
        raise ValueError(
            f"{channels} input channels do not fit a weight for {w.shape[1]} a group, {group} groups, {w.shape[0]} "
            f"outputs and {offset_group} groups of offsets"
        )
    windows = Windows(x.shape[2:], kernel, **geometry)
    sizes = windows.counts
    points, places = math.prod(kernel), math.prod(sizes)
    if offset.shape != (batch, offset_group * points * rank, *sizes):
        raise ValueError(f"the offset must be {(batch, offset_group * points * rank, *sizes)}, not {offset.shape}")
    moved = offset.reshape(batch, offset_group, *kernel, rank, *sizes).astype(working)
    axes = []
    for axis in range(rank):
        at = jnp.arange(sizes[axis], dtype=working) * windows.strides[axis] - windows.pads[axis][0]
        tap = jnp.arange(kernel[axis], dtype=working) * windows.dilations[axis]
        place = moved[:, :, *(slice(None),) * rank, axis]
        place = place + at.reshape([-1 if d == axis else 1 for d in range(rank)])
        axes.append(place + tap.reshape([-1 if d == axis else 1 for d in range(2 * rank)]))
    axes = [place.reshape(batch * offset_group, points * places) for place in axes]
    images = x.astype(working).reshape(batch * offset_group, channels // offset_group, *x.shape[2:])
    images = jnp.moveaxis(images, 1, -1)

    def columns(image: Any, *coordinates: Any) -> Any:
        return sample(image, [linear_taps(place, size) for place, size in zip(coordinates, image.shape, strict=False)])

    samples = jax.vmap(columns)(images, *axes)  # [batch * offset groups, points * places, channels]
    samples = samples.reshape(batch, offset_group, points, places, channels // offset_group)
    if mask is not None:
        if tuple(mask.shape) != (batch, offset_group * points, *sizes):
            raise ValueError(f"the mask must be {(batch, offset_group * points, *sizes)}, not {tuple(mask.shape)}")
        samples = samples * traced(mask).astype(working).reshape(batch, offset_group, points, places, 1)
    samples = jnp.moveaxis(samples, -1, 2).reshape(batch, group, channels // group * points, places)
    weight = w.astype(working).reshape(group, w.shape[0] // group, w.shape[1] * points)
    y = jnp.einsum("ngkp,gok->ngop", *product_operands(samples, weight), preferred_element_type=working)
    y = y.reshape(batch, w.shape[0], *sizes)
    if b is not None:
        y = y + traced(b).astype(working).reshape((-1,) + (1,) * rank)
    return y.astype(dtype)


@inherits(Windows, "dilations", "pads", "strides")
def col2im(x: Value, image_shape: Static, block_shape: Static, **geometry: Any) -> Value:
    """Col2Im: overlap-add of blocks at every place of an image, one axis after the other."""
    x, image, kernel = traced(x), dimensions(image_shape), dimensions(block_shape)
    rank = len(kernel)
    if x.ndim != 3 or len(image) != rank:
        raise ValueError(f"the input must have 3 axes and image and block one rank, not {x.ndim}, {len(image)}, {rank}")
    windows = Windows(image, kernel, **geometry)
    counts = windows.counts
    if x.shape[1] % math.prod(kernel) or x.shape[2] != math.prod(counts):
        raise ValueError(
            f"an image of {list(image)} in blocks of {list(kernel)} needs [batch, channels * {math.prod(kernel)}, "
            f"{math.prod(counts)}], not {tuple(x.shape)}"
        )
    y = x.reshape(x.shape[0], x.shape[1] // math.prod(kernel), *kernel, *counts)
    for axis in range(rank):
        # The blocks' axis of this step is always the first, for the one before has gone.
        stride, dilation, low = windows.strides[axis], windows.dilations[axis], windows.pads[axis][0]
        y = _folded(y, 2, 2 + rank, stride, dilation, low, image[axis])
    return y


def _folded(y: Any, block: int, count: int, stride: int, dilation: int, low: Any, size: Any) -> Any:
    """Overlap-add along one axis: the axis ``block`` disappears, and ``count`` becomes an axis of ``size``."""
    y = jnp.moveaxis(y, (block, count), (-1, -2))
    length, blocks = y.shape[-1], y.shape[-2]
    if dilation == 1:
        # Blocks split into parts of one stride overlap in whole parts, which are shifted and added.
        parts = -(-length // stride)
        y = lax.pad(y, jnp.zeros((), y.dtype), [(0, 0, 0)] * (y.ndim - 1) + [(0, parts * stride - length, 0)])
        y = y.reshape(*y.shape[:-1], parts, stride)
        terms = [
            lax.pad(
                lax.index_in_dim(y, part, -2, keepdims=False),
                jnp.zeros((), y.dtype),
                [(0, 0, 0)] * (y.ndim - 3) + [(part, parts - 1 - part, 0), (0, 0, 0)],
            )
            for part in range(parts)
        ]
        total = sum(terms[1:], terms[0])
        total = total.reshape(*total.shape[:-2], (blocks + parts - 1) * stride)
    else:
        reach = (length - 1) * dilation
        plain = [(0, 0, 0)] * (y.ndim - 2)
        terms = [
            lax.pad(
                lax.index_in_dim(y, tap, -1, keepdims=False),
                jnp.zeros((), y.dtype),
                [*plain, (tap * dilation, reach - tap * dilation, stride - 1)],
            )
            for tap in range(length)
        ]
        total = sum(terms[1:], terms[0])
    after = low + size - total.shape[-1]
    total = lax.pad(total, jnp.zeros((), total.dtype), [(0, 0, 0)] * (total.ndim - 1) + [(-low, after, 0)])
    return jnp.moveaxis(total, -1, count - 1)


OPERATORS = {
    "Col2Im": since(col2im, 18),
    "DeformConv": since(deform_conv, 19, 22),
}
