"""Pooling over regions of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn._jax import varying
from jaxrnn.errors import StaticValueError
from jaxrnn.onnx.evaluate import demand
from jaxrnn.onnx.limits import current
from jaxrnn.onnx.operators.arithmetic import of_one_type
from jaxrnn.onnx.operators.sampling import Taps, linear_taps, sample
from jaxrnn.onnx.operators.types import wide_type
from jaxrnn.onnx.registry import earlier, since
from jaxrnn.onnx.values import STATIC_OR_EAGER, Value, check_choice, is_known, traced

#: The regions to compute at once; each copies the elements that it reads.
_AT_ONCE = 64


def roi_align(
    x: Value,
    rois: Value,
    batch_indices: Value,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    """RoiAlign: the mean or the maximum of samples in each bin of each region."""
    modes = "half_pixel", "output_half_pixel"
    check_choice("coordinate_transformation_mode", coordinate_transformation_mode, modes)
    check_choice("mode", mode, ("avg", "max"))
    of_one_type(x, rois)
    _check_regions(x, rois, 4)
    if tuple(batch_indices.shape) != (rois.shape[0],):
        raise ValueError(f"{rois.shape[0]} regions need as many batch indices, not {tuple(batch_indices.shape)}")
    if sampling_ratio < 0:
        raise ValueError(f"sampling_ratio must not be negative, not {sampling_ratio}")
    aligned = coordinate_transformation_mode == "half_pixel"
    cells, sizes = (output_height, output_width), x.shape[2:]
    working = wide_type(x.dtype)
    starts, bins = _bins(jnp, traced(rois), spatial_scale, aligned, cells, working)
    most: list[Any] = [sampling_ratio] * 2
    if not sampling_ratio and is_known(rois):
        _, known = _bins(np, np.asarray(rois), spatial_scale, aligned, cells, working)
        if not np.all(np.isfinite(known)):
            raise ValueError("a region is not finite")
        most = [int(np.ceil(np.max(known[:, axis], initial=1))) for axis in range(2)]
        if mode == "avg" and any(count > 2 * size + 4 for count, size in zip(most, sizes, strict=True)):
            most = [None, None]  # regions far larger than the image, most of whose samples lie outside
        else:
            current().check((min(rois.shape[0], _AT_ONCE), *cells, *most, x.shape[1]), working)
    elif not sampling_ratio and mode == "avg":
        demand(lambda: jnp.isfinite(bins))
        most = [None, None]
    elif not sampling_ratio:
        raise StaticValueError(
            "sampling_ratio 0 takes as many samples as a region is large, and the regions depend on data. For the mode "
            "max, give a sampling_ratio, bind the graph input that the regions come from with "
            f"{STATIC_OR_EAGER}"
        )
    images = jnp.moveaxis(traced(x).astype(working), 1, -1)
    are_finite = jnp.isfinite(images).all()

    def region(start: Any, size: Any, image_index: Any) -> Any:
        numbers = jnp.ceil(size) if sampling_ratio == 0 else jnp.full((2,), sampling_ratio, working)
        taps = [_bin_taps(start[k], size[k], numbers[k], cells[k], most[k], sizes[k]) for k in range(2)]
        image = _image(images, image_index)
        if None in most:
            return _mean_by_products(image, taps, numbers, are_finite)
        return (_mean if mode == "avg" else _maximum)(image, taps, numbers)

    y = _for_each(region, starts, bins, traced(batch_indices))
    return jnp.moveaxis(y, -1, 1).astype(x.dtype)


def _check_regions(x: Value, rois: Value, columns: int) -> None:
    if len(x.shape) != 4 or len(rois.shape) != 2 or rois.shape[1] != columns:
        raise ValueError(
            f"the input must be [batch, channels, height, width] and the regions [count, {columns}], not "
            f"{tuple(x.shape)} and {tuple(rois.shape)}"
        )


def _bins(
    np_or_jnp: Any, rois: Any, scale: float, aligned: bool, cells: tuple[int, int], working: Any
) -> tuple[Any, Any]:
    """Return the starts of regions and the sizes of their bins: rows of height and width, in input elements."""
    corners = rois.astype(working) * np.asarray(scale, working) - np.asarray(0.5 if aligned else 0, working)
    extents = corners[:, 3:1:-1] - corners[:, 1::-1]
    if not aligned:
        extents = np_or_jnp.maximum(extents, np.ones((), working))
    return corners[:, 1::-1], extents / np.asarray(cells, working)


def _bin_taps(start: Any, size: Any, number: Any, cells: int, most: int | None, length: int) -> tuple[Taps, Any]:
    """Return the taps ``[cells, samples, 2]`` of the samples in each bin along an axis, and a mask of existing samples.

    Without a bound on the samples of a bin, the samples inside of the input are taken: samples are more than half an
    element apart, or there is a single sample.
    """
    step = size / jnp.maximum(number, 1)
    begin = start + jnp.arange(cells, dtype=size.dtype)[:, None] * size
    sample_number = jnp.arange(2 * length + 4 if most is None else most, dtype=size.dtype)
    if most is None:
        before = (-1 - begin) / jnp.where(step > 0, step, jnp.ones((), step.dtype))
        sample_number = sample_number + lax.stop_gradient(jnp.maximum(jnp.ceil(before - 0.5) - 1, 0))
    place = begin + (sample_number + np.asarray(0.5, size.dtype)) * step
    in_image = (place >= -1) & (place <= length)
    # Within one element outside, the element at the edge is read.
    taps = linear_taps(jnp.clip(place, 0, length - 1), length)
    weight = jnp.where(in_image[..., None], taps.weight, jnp.zeros((), taps.weight.dtype))
    return Taps(taps.index, weight), jnp.broadcast_to(sample_number < number, place.shape)


def _image(images: Any, index: Any) -> Any:
    """Return an image of a batch; NaN for an index outside of the batch."""
    count = images.shape[0]
    index = jnp.where(index < 0, index + count, index).astype(jnp.int32)
    image = lax.dynamic_index_in_dim(images, jnp.clip(index, 0, count - 1), keepdims=False)
    return jnp.where((index >= 0) & (index < count), image, jnp.asarray(jnp.nan, images.dtype))


def _mean(image: Any, taps: Sequence[tuple[Taps, Any]], number: Any) -> Any:
    """Return the mean of the samples of each bin; ``[height, width, channels]``."""
    (rows, _), (columns, _) = taps
    cells, width = rows.index.shape[0], columns.index.shape[0]
    total = jnp.maximum(number[0] * number[1], 1).astype(image.dtype)

    def spread(part: Any, axis: int) -> Any:
        """Return the joined taps of all samples of a bin, for each bin."""
        flat = part.reshape(part.shape[0], -1)
        shape = (cells, width, flat.shape[1])
        return jnp.broadcast_to(jnp.expand_dims(flat, 1 - axis), shape).reshape(-1, flat.shape[1])

    counted = [jnp.where(exists[..., None], part.weight, 0) for part, exists in taps]
    values = sample(
        image,
        [Taps(spread(part.index, axis), spread(counted[axis], axis)) for axis, (part, _) in enumerate(taps)],
    )
    return (values / total).reshape(cells, width, -1)


def _mean_by_products(image: Any, taps: Sequence[tuple[Taps, Any]], number: Any, is_finite: Any) -> Any:
    """Return the mean of the samples of each bin by a product for each axis, for any number of samples."""
    shares = []
    for (part, exists), size in zip(taps, image.shape, strict=False):
        weight = jnp.where(exists[..., None], part.weight, 0)
        hit = part.index[..., None] == jnp.arange(size, dtype=part.index.dtype)
        shares.append(jnp.sum(jnp.where(hit, weight[..., None], 0), (1, 2)))

    def product(image: Any) -> Any:
        return jnp.einsum("ph,qw,hwc->pqc", *shares, image, precision=lax.Precision.HIGHEST)

    def apart(image: Any) -> Any:
        """Ignore elements without weight, even infinite ones, as `sample` does."""
        total = product(jnp.where(jnp.isfinite(image), image, 0))
        for value, where in ((jnp.inf, image == jnp.inf), (-jnp.inf, image == -jnp.inf), (jnp.nan, image != image)):
            total = total + jnp.where(product(where.astype(image.dtype)) > 0, jnp.asarray(value, image.dtype), 0)
        return total

    return varying.cond(is_finite, product, apart, image) / jnp.maximum(number[0] * number[1], 1)


def _maximum(image: Any, taps: Sequence[tuple[Taps, Any]], number: Any) -> Any:
    """Return the largest weighted element of each bin, as in ONNX's test case, without interpolation."""
    (rows, some_rows), (columns, some_columns) = taps
    values = image[rows.index.clip(0, image.shape[0] - 1)]  # [cells, samples, 2, width, channels]
    values = values[..., columns.index.clip(0, image.shape[1] - 1), :]
    weight = rows.weight[..., None, None, None] * columns.weight
    exists = some_rows[..., None, None, None, None] & some_columns[..., None]
    values = jnp.where(exists[..., None], values * weight[..., None], -jnp.inf)
    largest = jnp.max(values, (1, 2, 4, 5))
    return jnp.where(number[0] * number[1] > 0, largest, jnp.zeros((), largest.dtype))


def _for_each(function: Callable[..., Any], *arrays: Any) -> Any:
    """Map a function of a region over all regions, in batches if there are many."""
    count = arrays[0].shape[0]
    if not isinstance(count, int) or count <= _AT_ONCE:
        return jax.vmap(function)(*arrays)
    return lax.map(lambda each: jax.checkpoint(function)(*each), arrays, batch_size=_AT_ONCE)


def max_roi_pool(x: Value, rois: Value, *, pooled_shape: tuple[int, ...], spatial_scale: float = 1.0) -> Value:
    """MaxRoiPool: the maximum of each bin of each region, with corners rounded to elements; 0 for empty bins."""
    of_one_type(x, rois)
    _check_regions(x, rois, 5)
    if len(pooled_shape) != 2:
        raise ValueError(f"pooled_shape has {len(pooled_shape)} entries; height and width are expected")
    x, rois = traced(x), traced(rois)
    working = wide_type(x.dtype)
    corners = jnp.floor(rois[:, 1:].astype(working) * np.asarray(spatial_scale, working) + np.asarray(0.5, working))
    starts, ends = corners[:, 1::-1], corners[:, 3:1:-1]
    bins = jnp.maximum(ends - starts + 1, 1) / np.asarray(pooled_shape, working)
    images = x.astype(working)

    def region(start: Any, size: Any, image_index: Any) -> Any:
        values = _image(images, image_index)
        for axis in (1, 0):
            cell = jnp.arange(pooled_shape[axis], dtype=working)
            low = jnp.floor(cell * size[axis]) + start[axis]
            high = jnp.ceil((cell + 1) * size[axis]) + start[axis]
            place = jnp.arange(x.shape[2 + axis], dtype=working)
            in_image = (place >= low[:, None]) & (place < high[:, None])  # [cells, size]
            # Width first: [channels, height, cells, width], then [channels, cells, height, cells of width].
            if axis == 1:
                values = jnp.max(jnp.where(in_image, values[:, :, None], -jnp.inf), -1, initial=-jnp.inf)
            else:
                values = jnp.max(jnp.where(in_image[..., None], values[:, None], -jnp.inf), 2, initial=-jnp.inf)
        return jnp.where(values == -jnp.inf, jnp.zeros((), working), values)

    y = _for_each(region, starts, bins, rois[:, 0].astype(jnp.int32))
    return y.astype(x.dtype)


OPERATORS = {
    "MaxRoiPool": since(max_roi_pool, 1, 22),
    "RoiAlign": since(earlier(roi_align, coordinate_transformation_mode="output_half_pixel"), 10)
    | since(roi_align, 16, 22),
}
