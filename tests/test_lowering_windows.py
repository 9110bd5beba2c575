"""Convolutions, pooling and windows as graphs of ONNX."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from tests.lowering_verifier import verify_lowering
from tests.tiers import of_tiers

FLOATS = [np.float32, np.float16, np.float64]

#: How many are drawn.
EXAMPLES = of_tiers([25, 60], quick=[25])


@st.composite
def convolutions(draw):
    """The parameters of a convolution, with the shapes of its operands."""
    rank = draw(st.integers(0, 3))
    kind = draw(st.sampled_from(["plain", "features", "batch"]))
    groups = 1 if kind == "plain" else draw(st.integers(2, 3))
    batch = draw(st.integers(1, 2)) * (groups if kind == "batch" else 1)
    channels = draw(st.integers(1, 2))
    out = draw(st.integers(1, 2)) * groups
    axes = []
    for _ in range(rank):
        size, spacing = draw(st.integers(1, 5)), draw(st.sampled_from([1, 1, 2, 3]))
        widths = st.integers(-((size - 1) * spacing // 2), 4)  # JAX lets them crop no more than there is
        axis = {"size": size, "spacing": spacing, "taps": draw(st.integers(1, 3)), "stride": draw(st.integers(1, 3))}
        axes.append({**axis, "pads": (draw(widths), draw(widths)), "dilation": draw(st.sampled_from([1, 1, 2, 3]))})
    orders = [tuple(draw(st.permutations(range(2 + rank)))) for _ in range(3)]
    by_feature = groups if kind == "features" else 1
    x = [batch, channels * by_feature, *(axis["size"] for axis in axes)]
    kernel = [out, channels, *(axis["taps"] for axis in axes)]
    shapes = []
    for sizes, order in zip((x, kernel), orders, strict=False):
        shape = [0] * len(sizes)
        for size, place in zip(sizes, order, strict=True):
            shape[place] = size
        shapes.append(shape)
    parameters = {
        "window_strides": [axis["stride"] for axis in axes],
        "padding": [axis["pads"] for axis in axes],
        "lhs_dilation": [axis["spacing"] for axis in axes],
        "rhs_dilation": [axis["dilation"] for axis in axes],
        "dimension_numbers": lax.ConvDimensionNumbers(*orders),
        "feature_group_count": by_feature,
        "batch_group_count": groups if kind == "batch" else 1,
    }
    return parameters, *shapes


@pytest.mark.parametrize("examples", EXAMPLES)
def test_every_convolution(examples):
    @settings(max_examples=examples, deadline=None)
    @given(convolutions(), st.sampled_from([*FLOATS, np.int32, np.int8, np.uint8]), st.booleans(), st.booleans())
    def check(convolution, dtype, widened, known):
        parameters, x_shape, kernel_shape = convolution
        rng = np.random.default_rng(0)
        x, kernel = (
            rng.integers(-4 if np.dtype(dtype).kind != "u" else 0, 5, shape).astype(dtype)
            for shape in (x_shape, kernel_shape)
        )
        wider = {np.dtype(np.float16): np.float32, np.dtype(np.int8): np.int32, np.dtype(np.uint8): np.int32}

        def function(x, kernel):
            wide = wider.get(x.dtype) if widened else None
            return lax.conv_general_dilated(x, kernel, preferred_element_type=wide, **parameters)

        # Sums of whole numbers that are this small are exact in every type.
        verify_lowering(function, x, kernel, known={1} if known else (), roundings=0)

    check()


@st.composite
def pools(draw):
    """The parameters of a reduction over windows, with the shape of its operand."""
    rank = draw(st.integers(1, 4))
    shape, axes = [], []
    for _ in range(rank):
        size, spacing = draw(st.integers(1, 5)), draw(st.sampled_from([1, 1, 2]))
        shape.append(size)
        widths = st.integers(-((size - 1) * spacing // 2), 3)
        plain = (1, 1, (0, 0), 1, 1)
        own = (
            draw(st.integers(1, 3)),
            draw(st.integers(1, 3)),
            (draw(widths), draw(widths)),
            spacing,
            draw(st.integers(1, 2)),
        )
        axes.append(own if draw(st.booleans()) else plain)
    return shape, *zip(*axes, strict=True)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_every_reduction_over_windows(examples):
    @settings(max_examples=examples, deadline=None)
    @given(pools(), st.sampled_from([*FLOATS, np.int32, np.int8, np.uint8]), st.sampled_from([0, 1, 2, 3]))
    def check(pool, dtype, kind):
        shape, window, strides, padding, spacing, dilation = pool
        start, combine = [(0, lax.add), (-np.inf, lax.max), (np.inf, lax.min), (1, lax.mul)][kind]
        dtype = np.dtype(dtype)
        if np.isinf(start) and dtype.kind != "f":
            start = np.iinfo(dtype).min if start < 0 else np.iinfo(dtype).max
        x = np.random.default_rng(0).integers(0 if dtype.kind == "u" else -4, 5, shape).astype(dtype)

        def function(x):
            return lax.reduce_window(x, dtype.type(start), combine, window, strides, padding, spacing, dilation)

        verify_lowering(function, x, roundings=4 if combine is lax.add else 0)

    check()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("running", [lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp])
def test_running_reductions(running, reverse):
    rng = np.random.default_rng(0)
    for dtype in FLOATS if running is lax.cumlogsumexp else (*FLOATS, np.int32, np.int8):
        x = (rng.normal(size=(2, 7, 3)) * 3).astype(dtype)
        verify_lowering(lambda x: [running(x, axis, reverse) for axis in range(3)], x, roundings=8)
