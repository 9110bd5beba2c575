"""Sampling of images and volumes between elements, deformable convolution, and overlap-add of patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.cells.forms import product_operands
from jaxrnn.onnx.operators.arithmetic import of_one_type
from jaxrnn.onnx.operators.pooling import WindowAttributes, kernel_of
from jaxrnn.onnx.operators.resize import cubic_kernel, working_type
from jaxrnn.onnx.operators.shaping import on_axis, padded
from jaxrnn.onnx.operators.types import wide_type
from jaxrnn.onnx.registry import Static, Versions, inherits, since
from jaxrnn.onnx.values import Value, check_choice, dimensions, traced

_MODES = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic", "nearest": "nearest"}
_PADDING = ("zeros", "border", "reflection")


class Taps(NamedTuple):
    """The indices of the elements to interpolate along an axis, and their weights, ``[..., taps]``.

    An index with weight 0 may be outside of the axis.
    """

    index: Any
    weight: Any


def linear_taps(place: Any, size: Any) -> Taps:
    """Return the two elements around a place; elements outside have weight 0."""
    base = jnp.floor(place)
    after = place - base
    index = base.astype(jnp.int32)[..., None] + jnp.arange(2, dtype=jnp.int32)
    weight = jnp.stack([1 - after, after], -1)
    return Taps(index, jnp.where((index >= 0) & (index < size), weight, jnp.zeros((), weight.dtype)))


def sample(image: Any, axes: Sequence[Taps]) -> Any:
    """Return mixtures of elements of an image, ``[places, channels]``."""
    sizes, channels = image.shape[:-1], image.shape[-1]
    places = axes[0].index.shape[0]
    index, weight = jnp.zeros((places, 1), jnp.int32), jnp.ones((places, 1), axes[0].weight.dtype)
    for size, taps in zip(sizes, axes, strict=True):
        inside = jnp.clip(taps.index, 0, jnp.asarray(size - 1, jnp.int32))
        count = index.shape[1] * inside.shape[1]
        index = (index[..., None] * jnp.asarray(size, jnp.int32) + inside[:, None]).reshape(places, count)
        weight = (weight[..., None] * taps.weight[:, None]).reshape(places, count)
    elements = image.reshape(math.prod(sizes), channels).at[index].get(mode="promise_in_bounds")
    weight = weight[..., None].astype(elements.dtype)
    # Elements of weight 0 do not count, even if infinite.
    return jnp.sum(jnp.where(weight == 0, jnp.zeros((), elements.dtype), elements * weight), 1)


def grid_sample(
    x: Value, grid: Value, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Value:
    """GridSample: at the places of a grid, from -1 to 1 along each axis, the last axis of the image first."""
    x, grid = traced(x), traced(grid)
    rank = x.ndim - 2
    if rank < 1 or grid.ndim != rank + 2 or grid.shape[-1] != rank or grid.shape[0] != x.shape[0]:
        raise ValueError(
            f"an input of shape {x.shape} needs a grid of shape ({x.shape[0]}, ..., {rank}) with {rank} axes between "
            f"them, not {grid.shape}"
        )
    check_choice("mode", mode, _MODES)
    check_choice("padding_mode", padding_mode, _PADDING)
    if 0 in x.shape[2:]:
        raise ValueError(f"an input of shape {x.shape} has no elements to sample")
    dtype = x.dtype
    grid = grid.astype(working_type(grid.dtype))
    values = x if _MODES[mode] == "nearest" else x.astype(working_type(dtype))
    axes = [
        _grid_taps(grid[..., rank - 1 - axis], x.shape[2 + axis], bool(align_corners), _MODES[mode], padding_mode)
        for axis in range(rank)
    ]
    places = math.prod(grid.shape[1:-1])
    flat = jax.tree.map(lambda part: part.reshape(x.shape[0], places, part.shape[-1]), axes)
    y = jax.vmap(_pick if _MODES[mode] == "nearest" else sample)(jnp.moveaxis(values, 1, -1), flat)
    y = y.reshape(x.shape[0], *grid.shape[1:-1], x.shape[1])
    return jnp.moveaxis(y, -1, 1).astype(dtype)


def grid_sample_16(
    x: Value, grid: Value, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Value:
    """GridSample of images."""
    if len(x.shape) != 4:
        raise ValueError(f"version 16 samples images of rank 4, not of rank {len(x.shape)}; volumes need opset 20")
    return grid_sample(x, grid, align_corners=align_corners, mode=mode, padding_mode=padding_mode)


def _pick(image: Any, axes: Sequence[Taps]) -> Any:
    """Return the element at each place, of any type; 0 if the weight is 0."""
    index = tuple(jnp.clip(taps.index[:, 0], 0, size - 1) for size, taps in zip(image.shape, axes, strict=False))
    elements = image.at[index].get(mode="promise_in_bounds")
    counts = jnp.all(jnp.stack([taps.weight[:, 0] != 0 for taps in axes]), 0)
    return jnp.where(counts[:, None], elements, jnp.zeros((), elements.dtype))


def _grid_taps(place: Any, size: Any, corners: bool, mode: str, padding: str) -> Taps:
    """Return the taps of places from -1 to 1 along an axis."""
    length = jnp.asarray(size, place.dtype)
    place = (place + 1) / 2 * (length - 1) if corners else ((place + 1) * length - 1) / 2
    low, high = (0 * length, length - 1) if corners else (0 * length - 0.5, length - 0.5)
    if mode == "nearest":
        place = jnp.round(place)  # halves are rounded to even
    outside = (place < low) | (place > high)
    if padding == "border" and mode != "cubic":
        # Cubic interpolation repeats the elements at the border instead, for smooth transitions.
        place = jnp.where(outside, jnp.clip(place, 0, length - 1), place)
    elif padding == "reflection":
        place = jnp.where(outside, _reflected(place, low, high), place)
    # Clamp places far outside to an index just outside, which fits into an integer.
    base = jnp.floor(place)
    part = place - base
    base = jnp.clip(base, -3, length + 2).astype(jnp.int32)
    if mode == "nearest":
        offsets, weight = (0,), jnp.ones_like(part)[..., None]
    elif mode == "linear":
        offsets, weight = (0, 1), jnp.stack([1 - part, part], -1)
    else:
        offsets = (-1, 0, 1, 2)
        weight = jnp.stack([cubic_kernel(part - offset, where=jnp.where) for offset in offsets], -1)
    index = base[..., None] + jnp.asarray(offsets, jnp.int32)
    if padding == "zeros":
        weight = jnp.where((index >= 0) & (index < size), weight, jnp.zeros((), weight.dtype))
    elif padding == "reflection":
        index = _reflected(index.astype(place.dtype), low, high).astype(jnp.int32)
    return Taps(index, weight)


def _reflected(place: Any, low: Any, high: Any) -> Any:
    """Mirror a place at both ends until the place is inside."""
    span = jnp.maximum(high - low, jnp.finfo(place.dtype).tiny)
    beyond = jnp.where(place < low, low - place, place - high)
    times = jnp.floor(beyond / span)
    rest = beyond - times * span
    even = times % 2 == 0
    from_low = jnp.where(place < low, even, ~even)
    mirrored = jnp.where(from_low, low + rest, high - rest)
    return jnp.where((place < low) | (place > high), jnp.where(high > low, mirrored, low), place)


def affine_grid(theta: Value, size: Static, *, align_corners: int = 0) -> Value:
    """AffineGrid: the places of an image's elements under affine maps, for GridSample."""
    theta = traced(theta)
    shape = dimensions(size)
    rank = len(shape) - 2
    if rank not in (2, 3) or theta.shape != (shape[0], rank, rank + 1):
        raise ValueError(
            f"theta must be ({shape[0] if shape else 'N'}, r, r + 1) for a size of r + 2 numbers, r being 2 or 3, but "
            f"theta is {theta.shape} and size {list(shape)}"
        )
    working = working_type(theta.dtype)
    sizes = shape[2:]
    grid = None
    for axis, length in enumerate(sizes):
        steps = 2 * lax.iota(working, length) + 1 - length
        span = max(length - 1 if align_corners else length, 1)
        along = on_axis(steps / np.asarray(span, working), axis, rank)
        # The column of an axis: the last axis of the image is x, the first coordinate.
        column = theta[:, :, rank - 1 - axis].astype(working).reshape(-1, *(1,) * rank, rank)
        term = along[None, ..., None] * column
        grid = term if grid is None else grid + term
    moved = grid + theta[:, :, rank].astype(working).reshape(-1, *(1,) * rank, rank)
    return moved.astype(theta.dtype)


@inherits(WindowAttributes, "dilations", "pads", "strides")
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
    """DeformConv: a convolution with taps that are moved by the offsets and interpolate between elements."""
    of_one_type(x, w, offset, b, mask)
    x, w, offset = traced(x), traced(w), traced(offset)
    dtype, working = x.dtype, wide_type(x.dtype)
    rank, kernel = x.ndim - 2, kernel_of(w, kernel_shape)
    if rank < 1 or w.ndim != x.ndim or offset.ndim != x.ndim:
        raise ValueError(f"input, weight and offset must have equal ranks, not {x.ndim}, {w.ndim} and {offset.ndim}")
    batch, channels = x.shape[:2]
    if channels != w.shape[1] * group or w.shape[0] % group or channels % offset_group:
        raise ValueError(
            f"{channels} input channels do not fit a weight with {w.shape[1]} channels in a group, {group} groups, "
            f"{w.shape[0]} outputs and {offset_group} groups of offsets"
        )
    windows = WindowAttributes(x.shape[2:], kernel, **geometry)
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
        axes.append(place + on_axis(at, axis, rank) + on_axis(tap, axis, 2 * rank))
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


@inherits(WindowAttributes, "dilations", "pads", "strides")
def col2im(x: Value, image_shape: Static, block_shape: Static, **geometry: Any) -> Value:
    """Col2Im: overlap-add of blocks at all places of an image, axis by axis."""
    x, image, kernel = traced(x), dimensions(image_shape), dimensions(block_shape)
    rank = len(kernel)
    if x.ndim != 3 or len(image) != rank:
        raise ValueError(
            f"the input must have 3 axes, and image and block equal ranks, not {x.ndim}, {len(image)}, {rank}"
        )
    windows = WindowAttributes(image, kernel, **geometry)
    counts = windows.counts
    if x.shape[1] % math.prod(kernel) or x.shape[2] != math.prod(counts):
        raise ValueError(
            f"an image of {list(image)} in blocks of {list(kernel)} needs [batch, channels * {math.prod(kernel)}, "
            f"{math.prod(counts)}], not {tuple(x.shape)}"
        )
    y = x.reshape(x.shape[0], x.shape[1] // math.prod(kernel), *kernel, *counts)
    for axis in range(rank):
        # The axis of blocks is always the first axis, because each step removes its own.
        stride, dilation, low = windows.strides[axis], windows.dilations[axis], windows.pads[axis][0]
        y = _folded(y, 2, 2 + rank, stride, dilation, low, image[axis])
    return y


def _folded(y: Any, block: int, count: int, stride: int, dilation: int, low: Any, size: Any) -> Any:
    """Overlap-add along one axis: axis ``block`` disappears, and ``count`` becomes an axis of ``size``."""
    y = jnp.moveaxis(y, (block, count), (-1, -2))
    length, blocks = y.shape[-1], y.shape[-2]
    if dilation == 1:
        # Blocks split into parts of one stride overlap in whole parts, which are shifted and added.
        parts = -(-length // stride)
        y = padded(y, -1, 0, parts * stride - length)
        y = y.reshape(*y.shape[:-1], parts, stride)
        terms = [
            padded(lax.index_in_dim(y, part, -2, keepdims=False), -2, part, parts - 1 - part) for part in range(parts)
        ]
        total = sum(terms[1:], terms[0])
        total = total.reshape(*total.shape[:-2], (blocks + parts - 1) * stride)
    else:
        terms = []
        for tap in range(length):
            place = lax.index_in_dim(y, tap, -1, keepdims=False)
            terms.append(padded(place, -1, tap * dilation, (length - 1 - tap) * dilation, stride - 1))
        total = sum(terms[1:], terms[0])
    return jnp.moveaxis(padded(total, -1, -low, low + size - total.shape[-1]), -1, count - 1)


OPERATORS: dict[str, Versions] = {
    "AffineGrid": since(affine_grid, 20),
    "GridSample": since(grid_sample_16, 16) | since(grid_sample, 20, 22),
    "Col2Im": since(col2im, 18),
    "DeformConv": since(deform_conv, 19, 22),
}
