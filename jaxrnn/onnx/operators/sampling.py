"""Sampling an image or a volume at positions between its elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.onnx.operators.interpolation import cubic_kernel, working_type
from jaxrnn.onnx.registry import Static, since
from jaxrnn.onnx.values import Value, dimensions, traced

_MODES = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic", "nearest": "nearest"}
_PADDING = ("zeros", "border", "reflection")


@dataclass(frozen=True)
class Taps:
    """The indices of the elements that each place interpolates along one axis, and their weights, ``[..., taps]``.

    An index may lie outside where its weight is 0.
    """

    index: Any
    weight: Any


def linear_taps(place: Any, size: Any) -> Taps:
    """The two elements around a place, those outside without a weight."""
    base = jnp.floor(place)
    after = place - base
    index = base.astype(jnp.int32)[..., None] + jnp.arange(2, dtype=jnp.int32)
    weight = jnp.stack([1 - after, after], -1)
    return Taps(index, jnp.where((index >= 0) & (index < size), weight, jnp.zeros((), weight.dtype)))


def sample(image: Any, axes: Sequence[Taps]) -> Any:
    """Mixtures of an image's elements.

    Args:
        image: ``[*sizes, channels]``.
        axes: for each of the sizes the taps of every place, of one shape ``[places]``.

    Returns:
        ``[places, channels]``.
    """
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
    # An element without weight does not count, even where it is infinite.
    return jnp.sum(jnp.where(weight == 0, jnp.zeros((), elements.dtype), elements * weight), 1)


def grid_sample(
    x: Value, grid: Value, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Value:
    """GridSample: at the places of a grid, from -1 to 1 along every axis, the last axis of the image first."""
    x, grid = traced(x), traced(grid)
    rank = x.ndim - 2
    if rank < 1 or grid.ndim != rank + 2 or grid.shape[-1] != rank or grid.shape[0] != x.shape[0]:
        raise ValueError(
            f"an input of shape {x.shape} needs a grid of shape ({x.shape[0]}, ..., {rank}) with {rank} axes between "
            f"them, not {grid.shape}"
        )
    if mode not in _MODES or padding_mode not in _PADDING:
        raise ValueError(
            f"mode must be one of {', '.join(_MODES)} and padding_mode one of {', '.join(_PADDING)}, not {mode!r} and "
            f"{padding_mode!r}"
        )
    if 0 in x.shape[2:]:
        raise ValueError(f"there is nothing to sample in an input of shape {x.shape}")
    dtype = x.dtype
    grid = grid.astype(working_type(grid.dtype))
    values = x if _MODES[mode] == "nearest" else x.astype(working_type(dtype))
    axes = [
        _grid_taps(grid[..., rank - 1 - axis], x.shape[2 + axis], bool(align_corners), _MODES[mode], padding_mode)
        for axis in range(rank)
    ]
    places = math.prod(grid.shape[1:-1])
    flat = [
        Taps(*(part.reshape(x.shape[0], places, part.shape[-1]) for part in (taps.index, taps.weight))) for taps in axes
    ]
    take = _pick if _MODES[mode] == "nearest" else sample
    y = jax.vmap(lambda image, indices, weights: take(image, list(map(Taps, indices, weights))))(
        jnp.moveaxis(values, 1, -1), [taps.index for taps in flat], [taps.weight for taps in flat]
    )
    y = y.reshape(x.shape[0], *grid.shape[1:-1], x.shape[1])
    return jnp.moveaxis(y, -1, 1).astype(dtype)


def grid_sample_16(
    x: Value, grid: Value, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Value:
    """GridSample of images."""
    if len(x.shape) != 4:
        raise ValueError(f"version 16 samples images of rank 4, not of rank {len(x.shape)}; volumes came with opset 20")
    return grid_sample(x, grid, align_corners=align_corners, mode=mode, padding_mode=padding_mode)


def _pick(image: Any, axes: Sequence[Taps]) -> Any:
    """The one element of every place, of any type; 0 where its weight is."""
    index = tuple(jnp.clip(taps.index[:, 0], 0, size - 1) for size, taps in zip(image.shape, axes, strict=False))
    elements = image.at[index].get(mode="promise_in_bounds")
    counts = jnp.all(jnp.stack([taps.weight[:, 0] != 0 for taps in axes]), 0)
    return jnp.where(counts[:, None], elements, jnp.zeros((), elements.dtype))


def _grid_taps(place: Any, size: Any, corners: bool, mode: str, padding: str) -> Taps:
    """The taps of places from -1 to 1 along an axis."""
    length = jnp.asarray(size, place.dtype)
    place = (place + 1) / 2 * (length - 1) if corners else ((place + 1) * length - 1) / 2
    low, high = (0 * length, length - 1) if corners else (0 * length - 0.5, length - 0.5)
    if mode == "nearest":
        place = jnp.round(place)  # halves to the even one
    outside = (place < low) | (place > high)
    if padding == "border" and mode != "cubic":
        # Cubic interpolation repeats the border's elements instead, so that it approaches them smoothly.
        place = jnp.where(outside, jnp.clip(place, 0, length - 1), place)
    elif padding == "reflection":
        place = jnp.where(outside, _reflected(place, low, high), place)
    # A place far outside gets the index of one just outside, which an integer can hold.
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
    """A place mirrored at both ends as often as it takes to be between them."""
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
        along = (steps / np.asarray(span, working)).reshape([length if d == axis else 1 for d in range(rank)])
        # The column of an axis: the last axis of the image is x, the first coordinate.
        column = theta[:, :, rank - 1 - axis].astype(working).reshape(-1, *(1,) * rank, rank)
        term = along[None, ..., None] * column
        grid = term if grid is None else grid + term
    moved = grid + theta[:, :, rank].astype(working).reshape(-1, *(1,) * rank, rank)
    return moved.astype(theta.dtype)


OPERATORS = {
    "AffineGrid": since(affine_grid, 20),
    "GridSample": since(grid_sample_16, 16) | since(grid_sample, 20, 22),
}
