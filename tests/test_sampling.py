"""Sampling, regions and blocks of images against both engines, and their gradients in float64."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads
from node_models import by_onnx_runtime, by_reference, check, computed, invalid, one_node
from streaming_verifier import check_values

import jaxrnn
from jaxrnn._jax.context import exact_types
from jaxrnn.onnx.operators.regions import max_roi_pool, roi_align
from jaxrnn.onnx.operators.sampling import affine_grid, col2im, deform_conv, grid_sample

PADDING = ("zeros", "border", "reflection")


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def uniform(low, high, *shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)


def gradients(function, *point):
    """Reverse and forward mode of the sum of a function against finite differences."""
    summed = jax.jit(lambda *point: jnp.sum(jnp.sin(function(*point))))
    check_grads(summed, point, order=1, modes=("rev", "fwd"), atol=1e-6, rtol=1e-6, eps=1e-6)


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_grid_sample(data):
    """The reference jumps to the border's value where a cubic mixture leaves the image; ONNX Runtime does not."""
    rank = data.draw(st.integers(2, 3))
    mode = data.draw(st.sampled_from(("linear", "nearest", "cubic")[: 5 - rank]))
    sizes = data.draw(st.tuples(*rank * [st.integers(2, 5)]))
    inputs = {
        "x": normal(2, 2, *sizes, seed=data.draw(st.integers(0, 99))),
        "grid": uniform(-1.9, 1.9, 2, *range(1, rank + 1), rank),
    }
    attributes = {
        "mode": mode,
        "padding_mode": data.draw(st.sampled_from(PADDING)),
        "align_corners": data.draw(st.integers(0, 1)),
    }
    check("GridSample", inputs, opset=20, atol=1e-4, **attributes)
    if rank == 2:
        attributes["mode"] = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
        check("GridSample", inputs, opset=16, engines=(by_onnx_runtime,), atol=1e-4, **attributes)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "bool", "float16", "bfloat16"])
def test_grid_sample_of_other_types(dtype):
    """Computed as floats and cut off to integers; the reference gathers integers at places of halves and quarters."""
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = np.arange(12).reshape(1, 1, 3, 4).astype(dtype)
    grid = np.array([[[-1, -1], [0.25, -1], [1, 1], [3, 0]]], np.float32).reshape(1, 1, 4, 2)
    model, arrays = one_node("GridSample", {"x": x, "grid": grid}, opset=22, align_corners=1)
    expected = [
        x.astype(np.float64)[0, 0, 0, 0],
        1.875 if dtype.kind != "b" else 1,
        x.astype(np.float64)[0, 0, 2, 3],
        0,
    ]
    np.testing.assert_array_equal(computed(model, arrays).ravel(), np.array(expected).astype(dtype))


def test_places_far_outside():
    """No integer holds the numbers of such elements, and what has no weight does not count, were it infinite."""
    x = np.array([np.inf, 1, 2, 3], np.float32).reshape(1, 1, 2, 2)
    grid = np.array([[1e30, 0], [-1e30, 1e30], [1, 1], [1, 0]], np.float32).reshape(1, 1, 4, 2)
    with exact_types():
        found = jax.jit(lambda x: grid_sample(x, grid, align_corners=1))(x)
        border = jax.jit(lambda x: grid_sample(x, grid, align_corners=1, padding_mode="border"))(x)
    np.testing.assert_array_equal(np.ravel(found), [0, 0, 3, 2])
    np.testing.assert_array_equal(np.ravel(border), [2, 2, 3, 2])


@pytest.mark.thorough
def test_grid_sample_gradients():
    with jax.enable_x64(True):
        x, grid = normal(1, 2, 4, 3, dtype=np.float64), uniform(-1.4, 1.4, 1, 2, 2, 2, dtype=np.float64)
        for mode, padding in (("linear", "reflection"), ("cubic", "zeros")):
            gradients(lambda x, grid, m=mode, p=padding: grid_sample(x, grid, mode=m, padding_mode=p), x, grid)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("sizes", [(2, 1, 3, 4), (2, 3, 2, 4, 3)])
def test_affine_grid(sizes, align_corners):
    rank = len(sizes) - 2
    inputs = {"theta": normal(2, rank, rank + 1), "size": np.array(sizes)}
    check("AffineGrid", inputs, opset=20, align_corners=align_corners)
    inputs["theta"] = inputs["theta"].astype(np.float16)
    found = computed(*one_node("AffineGrid", inputs, opset=20, align_corners=align_corners))
    assert found.dtype == np.float16


@pytest.mark.thorough
def test_a_grid_of_one_element():
    """It lies in the middle, as in PyTorch; ONNX Runtime has 1 and the reference -1."""
    theta = np.array([[[1, 0, 0], [0, 1, 0]]], np.float32)
    with exact_types():
        found = affine_grid(theta, np.array([1, 1, 1, 3]), align_corners=1)
    np.testing.assert_array_equal(found, [[[[-1, 0], [0, 0], [1, 0]]]])


@pytest.mark.nightly
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_roi_align(data):
    """Fixed and adaptive numbers of samples; regions beyond the image and without an extent."""
    count = data.draw(st.integers(1, 4))
    corner = uniform(-3, 9, count, 2, seed=data.draw(st.integers(0, 99)))
    size = uniform(data.draw(st.sampled_from((-1, 0.1))), 9, count, 2)
    inputs = {
        "x": normal(2, 3, data.draw(st.integers(2, 9)), data.draw(st.integers(2, 9))),
        "rois": np.concatenate([corner, corner + size], 1),
        "batch": np.arange(count) % 2,
    }
    attributes = {
        "mode": data.draw(st.sampled_from(("avg", "max"))),
        "output_height": data.draw(st.integers(1, 3)),
        "output_width": data.draw(st.integers(1, 3)),
        "sampling_ratio": data.draw(st.integers(0, 2)),
        "spatial_scale": data.draw(st.sampled_from((1.0, 0.5))),
        "coordinate_transformation_mode": data.draw(st.sampled_from(("half_pixel", "output_half_pixel"))),
    }
    known = ("rois",) if attributes["mode"] == "max" and not attributes["sampling_ratio"] else ()
    fixed = {"opset": 16, "constants": (*known, "batch"), "atol": 1e-4}
    if not known:
        check("RoiAlign", inputs, engines=(by_onnx_runtime,), **fixed, **attributes)
    # Where the regions are known, the samples are counted.
    with exact_types():
        found = jax.jit(lambda x: roi_align(x, inputs["rois"], inputs["batch"], **attributes))(inputs["x"])
    expected = by_onnx_runtime(*one_node("RoiAlign", inputs, opset=16, **attributes))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_many_regions():
    """More than are computed at once, also none."""
    x = normal(3, 2, 8, 8)
    for count in (0, 150):
        corner = uniform(0, 6, count, 2)
        rois = np.concatenate([corner, corner + 2.5], 1)
        inputs = {"x": x, "rois": rois, "batch": np.arange(count) % 3}
        found = computed(*one_node("RoiAlign", inputs, opset=22, output_height=2, output_width=2, sampling_ratio=2))
        assert found.shape == (count, 2, 2, 2)
        if count:
            found_each = by_onnx_runtime(
                *one_node("RoiAlign", inputs, opset=16, output_height=2, output_width=2, sampling_ratio=2)
            )
            np.testing.assert_allclose(found, found_each, atol=1e-5)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_an_infinite_element_is_in_regions_that_hold_it_and_in_no_other(value):
    """Whether the regions are known, and samples counted, or not, and axes multiplied with matrices."""
    x = normal(1, 2, 9, 9)
    x[0, 0, 5, 5] = value
    rois = np.array([[0.2, 0.3, 3.3, 3.2], [2.1, 2.3, 6.3, 6.2]], np.float32)  # no sample lies on an element
    inputs = {"x": x, "rois": rois, "batch": np.array([0, 0])}
    model, arrays = one_node("RoiAlign", inputs, opset=16, constants=("batch",), output_height=2, output_width=2)
    expected = by_onnx_runtime(model, arrays)
    assert np.isfinite(expected[0]).all()
    assert not np.isfinite(expected[1]).all()
    np.testing.assert_allclose(computed(model, arrays), expected, atol=1e-5)
    with exact_types():
        found = jax.jit(lambda x: roi_align(x, inputs["rois"], inputs["batch"], output_height=2, output_width=2))(x)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_adaptive_maxima_need_known_regions():
    x, rois, batch = normal(1, 1, 4, 4), np.array([[0, 0, 3, 3]], np.float32), np.array([0])
    with pytest.raises(jaxrnn.StaticValueError, match="sampling_ratio"):
        jax.jit(lambda rois: roi_align(x, rois, batch, mode="max"))(rois)


@pytest.mark.nightly
def test_roi_gradients():
    with jax.enable_x64(True):
        x = normal(1, 2, 5, 6, dtype=np.float64)
        rois = np.array([[0.3, 0.4, 3.1, 2.7], [1.2, 1.1, 4.9, 3.8]])
        batch = np.array([0, 0])
        for attributes in ({"sampling_ratio": 2}, {}, {"sampling_ratio": 2, "mode": "max"}):
            sizes = {"output_height": 2, "output_width": 3, **attributes}
            gradients(lambda x, rois, s=sizes: roi_align(x, rois, batch, **s), x, rois)
        pooled = lambda x: max_roi_pool(x, np.insert(rois, 0, 0, 1), pooled_shape=(2, 2))  # noqa: E731
        gradients(pooled, x)


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_max_roi_pool(data):
    count = data.draw(st.integers(1, 4))
    corner = uniform(0, 6, count, 2, seed=data.draw(st.integers(0, 99)))
    rois = np.concatenate([np.arange(count)[:, None] % 2, corner, corner + uniform(0, 6, count, 2)], 1)
    inputs = {"x": normal(2, 3, *data.draw(st.tuples(*2 * [st.integers(2, 9)]))), "rois": rois.astype(np.float32)}
    attributes = {
        "pooled_shape": data.draw(st.tuples(*2 * [st.integers(1, 3)])),
        "spatial_scale": data.draw(st.sampled_from((1.0, 0.5))),
    }
    check("MaxRoiPool", inputs, opset=13, engines=(by_onnx_runtime,), **attributes)


@pytest.mark.thorough
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_deform_conv(data):
    pairs = st.tuples(*2 * [st.integers(1, 2)])
    group, offset_group = data.draw(pairs)
    kernel, strides, dilations = (3, data.draw(st.integers(1, 3))), data.draw(pairs), data.draw(pairs)
    pads = data.draw(st.tuples(*4 * [st.integers(0, 1)]))
    out = [
        (size + pads[axis] + pads[axis + 2] - (kernel[axis] - 1) * dilations[axis] - 1) // strides[axis] + 1
        for axis, size in enumerate((6, 7))
    ]
    points = offset_group * math.prod(kernel)
    inputs = {
        "x": normal(2, 4, 6, 7),
        "w": normal(4, 4 // group, *kernel, seed=1),
        "offset": normal(2, 2 * points, *out, seed=2),
        "b": normal(4) if data.draw(st.booleans()) else None,
        "mask": normal(2, points, *out, seed=3) if data.draw(st.booleans()) else None,
    }
    attributes = {"group": group, "offset_group": offset_group, "strides": strides, "dilations": dilations}
    # The reference, in Python, takes a second for each; ONNX Runtime has the operator.
    check("DeformConv", inputs, opset=19, engines=(by_onnx_runtime,), atol=2e-4, pads=pads, **attributes)


@pytest.mark.thorough
def test_deform_conv_in_other_dimensions():
    """Without offsets it is a convolution, of signals and volumes too."""
    for rank in (1, 3):
        x, w = normal(2, 2, *rank * [4]), normal(3, 2, *rank * [2])
        offset = np.zeros((2, rank * 2**rank, *rank * [3]), np.float32)
        with exact_types():
            found = jax.jit(deform_conv)(x, w, offset)
            expected = jax.jit(lambda x, w, ones=(1,) * rank: jax.lax.conv(x, w, ones, "VALID"))(x, w)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_deform_conv_gradients():
    with jax.enable_x64(True):
        shapes = ((1, 2, 4, 4), (2, 2, 2, 2), (1, 8, 3, 3), (2,), (1, 4, 3, 3))
        point = [normal(*shape, seed=seed, dtype=np.float64) for seed, shape in enumerate(shapes)]
        gradients(deform_conv, *point)


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_col2im(data):
    """In three dimensions ONNX Runtime gives other sums than the reference."""
    rank = data.draw(st.integers(2, 3))
    each = lambda low, high: data.draw(st.tuples(*rank * [st.integers(low, high)]))  # noqa: E731
    image, block, strides, dilations, front, behind = (
        each(*bounds) for bounds in ((6, 9), (1, 4), (1, 3), (1, 2), (0, 2), (0, 2))
    )
    counts = [
        (image[k] + front[k] + behind[k] - (block[k] - 1) * dilations[k] - 1) // strides[k] + 1 for k in range(rank)
    ]
    x = normal(2, 2 * math.prod(block), max(math.prod(counts), 1))
    inputs = {"x": x, "image": np.array(image), "block": np.array(block)}
    attributes = {"strides": strides, "dilations": dilations, "pads": front + behind}
    if min(counts) >= 1:
        check("Col2Im", inputs, opset=18, engines=(by_reference,), **attributes)


def test_overlapping_frames_stream():
    """Frames added where they overlap, of an open number: what an inverse STFT ends with."""

    def function(x):
        frames = x.shape[2]
        image = np.array([1, 4 * frames + 2], object)
        return col2im(x, image, np.array([1, 6]), strides=(1, 4))

    streamed = check_values(function, (1, 12, 1), 2, lengths=(1, 2, 5))
    assert streamed.rate == 4


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "message"),
    [
        ("GridSample", {"x": normal(1, 1, 2, 2), "grid": normal(1, 2, 2, 3)}, {}, "rank of the grid|needs a grid"),
        ("GridSample", {"x": normal(1, 1, 2, 2), "grid": normal(1, 2, 2, 2)}, {"mode": "area"}, "'area'"),
        ("AffineGrid", {"theta": normal(2, 2, 3), "size": np.array([3, 1, 2, 2])}, {}, "theta must be"),
        ("Col2Im", {"x": normal(1, 4, 5), "i": np.array([3, 3]), "b": np.array([2, 2])}, {}, "needs|L dimension"),
        (
            "RoiAlign",
            {"x": normal(1, 1, 2, 2), "rois": normal(2, 4), "batch": np.zeros(3, np.int64)},
            {},
            "batch indices|3 and 2",
        ),
        (
            "DeformConv",
            {"x": normal(1, 1, 3, 3), "w": normal(1, 1, 2, 2), "offset": normal(1, 8, 3, 3)},
            {},
            "offset must be",
        ),
    ],
)
def test_what_does_not_fit_is_refused(operator, inputs, attributes, message):
    error = invalid(operator, inputs, opset=22, **attributes)
    assert any(part in error for part in message.split("|")), error
