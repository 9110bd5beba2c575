"""Reads and writes at indices, and windows, as graphs of ONNX."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from lowering_verifier import lowered, verify_lowering
from tiers import of_tiers

from jaxrnn.errors import UnsupportedError

MODES = ("clip", "fill", "promise_in_bounds")
DTYPES = ("float32", "int32", "int8", "bool", "float16")


def numbers(shape, dtype="float32"):
    """Different numbers."""
    return (np.arange(int(np.prod(shape))) - 5).reshape(shape).astype(dtype)


@st.composite
def indexings(draw):
    """An operand's shape, dimension numbers, sizes of slices and the shape of indices, as gathers and scatters have."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    kinds = [draw(st.sampled_from(("whole", "part", "first", "window", "index", "index", "batch"))) for _ in shape]
    if not {"window", "index"} & {*kinds}:
        kinds[draw(st.integers(0, len(shape) - 1))] = "index"
    batched = [axis for axis, kind in enumerate(kinds) if kind == "batch"]
    indexed = draw(st.permutations([axis for axis, kind in enumerate(kinds) if kind in ("index", "window")]))
    sizes = [
        1 if kind in ("first", "index", "batch") else size if kind == "whole" else draw(st.integers(1, size))
        for size, kind in zip(shape, kinds, strict=True)
    ]
    dropped = [axis for axis, kind in enumerate(kinds) if kind in ("first", "index")]
    free = draw(st.lists(st.integers(1, 3), max_size=2))
    places = draw(st.permutations([*(("batch", axis) for axis in batched), *(("free", size) for size in free)]))
    batch = [shape[value] if kind == "batch" else value for kind, value in places]
    windows = [axis for axis in range(len(shape)) if axis not in (*dropped, *batched)]
    rank = len(batch) + len(windows)
    offset = sorted(draw(st.permutations(range(rank)))[: len(windows)])
    return {
        "shape": tuple(shape),
        "sizes": tuple(sizes),
        "indices": (*batch, len(indexed)),
        "numbers": {
            "offset": tuple(offset),
            "dropped": tuple(dropped),
            "map": tuple(indexed),
            "batched": tuple(batched),
            "in_indices": tuple(places.index(("batch", axis)) for axis in batched),
        },
    }


def indices_of(case, seed, low=-2, high=5):
    """Indices, some of them outside."""
    return np.random.default_rng(seed).integers(low, high, case["indices"]).astype(np.int32)


#: Cases of a gather or a scatter.
indexed = given(
    case=indexings(),
    mode=st.sampled_from(MODES),
    seed=st.integers(0, 99),
    known=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)


@pytest.mark.thorough
@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@indexed
def test_gather(case, mode, seed, known, dtype):
    """Of any axes, with windows, batches, and indices outside."""
    of = case["numbers"]
    numbers_ = lax.GatherDimensionNumbers(of["offset"], of["dropped"], of["map"], of["batched"], of["in_indices"])

    def function(x, indices):
        return lax.gather(x, indices, numbers_, case["sizes"], mode=mode)

    verify_lowering(function, numbers(case["shape"], dtype), indices_of(case, seed), known=(1,) if known else ())


@pytest.mark.thorough
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@indexed
def test_scatter(case, mode, seed, known, dtype):
    """Sums, where several updates may meet; and replacements, of one place each."""
    of = case["numbers"]
    numbers_ = lax.ScatterDimensionNumbers(of["offset"], of["dropped"], of["map"], of["batched"], of["in_indices"])
    batch = iter(case["indices"][:-1])
    windows = iter([size for axis, size in enumerate(case["sizes"]) if axis not in (*of["dropped"], *of["batched"])])
    rank = len(case["indices"]) - 1 + len(of["offset"])
    shape = [next(windows) if dim in of["offset"] else next(batch) for dim in range(rank)]
    functions = [lax.scatter_add] if dtype != "bool" else []
    if np.prod(case["indices"][:-1]) == 1:
        functions.append(lax.scatter)
    if not functions:
        return

    def function(x, indices, updates):
        return [each(x, indices, updates, numbers_, mode=mode) for each in functions]

    arguments = (numbers(case["shape"], dtype), indices_of(case, seed), numbers(shape, dtype))
    verify_lowering(function, *arguments, known=(1,) if known else ())


def test_slices_without_an_index():
    """Axes without an index are read and written from 0."""
    x, nowhere = numbers((2, 3)), np.zeros((4, 0), np.int32)
    verify_lowering(lambda x, i: lax.gather(x, i, lax.GatherDimensionNumbers((1, 2), (), ()), (1, 3)), x, nowhere)
    verify_lowering(lambda x, i: lax.gather(x, i, lax.GatherDimensionNumbers((1,), (0,), ()), (1, 3)), x, nowhere)
    some, at = numbers((2, 3, 2)), np.int32([[1], [0], [1]])  # the index is of the second axis only
    numbers_ = lax.GatherDimensionNumbers((1,), (0, 1), (1,))
    verify_lowering(lambda x, i: lax.gather(x, i, numbers_, (1, 1, 2)), some, at)
    of_updates = lax.ScatterDimensionNumbers((1,), (0, 1), (1,))
    verify_lowering(lambda x, i, u: lax.scatter_add(x, i, u, of_updates), some, at, numbers((3, 2)))
    verify_lowering(lambda x: [x.at[:].get(), x.at[:].add(1), x.at[:, :].set(2)], x)

    def written(x, i, updates):
        return lax.scatter_add(x, i, updates, lax.ScatterDimensionNumbers((1, 2), (), ()))

    verify_lowering(written, x, nowhere, numbers((4, 1, 3)), opset=16)
    with pytest.raises(UnsupportedError, match="without an index"):
        lowered(written, x, nowhere, numbers((4, 2, 3)))


@pytest.mark.parametrize("dtype", ["float32", "int8", "float16", "uint32"])
def test_reductions_of_scatters(dtype):
    """Products, differences, and since opset 18 extremes."""
    x, places, updates = numbers((6, 2), dtype), np.int32([[1], [4], [1], [9]]), numbers((4, 2), dtype)
    functions = [
        lambda at, v: at.mul(v),
        lambda at, v: at.subtract(v),
        lambda at, v: at.min(v),
        lambda at, v: at.max(v),
    ]
    for function in functions:
        verify_lowering(lambda x, i, v, f=function: f(x.at[i[:, 0]], v), x, places, updates, opset=18)


@pytest.mark.parametrize("known", [(), (1, 2, 3)])
def test_slices_anywhere(known):
    """Starts are clamped, so that slices lie inside."""
    x = numbers((4, 5, 3))
    for starts in ((0, 0, 0), (1, 2, 1), (-3, 9, 0), (3, 4, 2)):
        for sizes in ((1, 5, 3), (2, 3, 3), (4, 2, 1), (2, 2, 2)):
            places = [np.int32(each) for each in starts]
            verify_lowering(
                lambda x, *s, sizes=sizes: [
                    lax.dynamic_slice(x, s, sizes),
                    lax.dynamic_update_slice(x, -jnp.ones(sizes, x.dtype), s),
                ],
                x,
                *places,
                known=known,
            )


def test_known_places_are_slices():
    """Rows at known places are read by a slice, and written between what is before and after."""
    x, row = numbers((4, 5)), np.ones(5, np.float32)
    verify_lowering(lambda x: x[np.array([1, 3])], x, operators={"Slice": 1})
    verify_lowering(lambda x: jnp.take(x, np.array([3, 2, 1]), axis=1), x, operators={"Slice": 1})
    verify_lowering(lambda x, row: x.at[-1].set(row), x, row, operators={"Slice": 1, "Reshape": 1, "Concat": 1})
    verify_lowering(
        lambda x, row: x.at[0].add(row), x, row, operators={"Split": 1, "Reshape": 1, "Add": 1, "Concat": 1}
    )


@pytest.mark.parametrize(
    "dtype",
    of_tiers(
        ["float32", "float16", "float64", "int32", "uint8", "int16", "uint16", "uint32", "int64", "uint64", "bool"],
        quick=["float32", "float64", "int16", "uint64"],
        thorough=["float16", "bool"],
    ),
)
def test_order(dtype):
    """Sorts are stable, by one key or several, with others in the same order; the largest come first."""
    rng = np.random.default_rng(1)
    x, y = (rng.integers(0, 4, (3, 7)).astype(dtype) for _ in range(2))
    x = -x if x.dtype.kind in "iu" else x  # the largest numbers of unsigned types
    verify_lowering(lambda x, y: lax.sort((x, y), dimension=1, num_keys=1), x, y)
    verify_lowering(lambda x, y: lax.sort((x, y, jnp.arange(21).reshape(3, 7)), dimension=0, num_keys=2), x, y)
    verify_lowering(lambda x: [jnp.argsort(x, 0), jnp.argsort(x, 1, descending=True), jnp.sort(x)], x)
    if dtype != "bool":
        verify_lowering(lambda x: lax.top_k(x, 3), x)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_order_of_all_floats(dtype):
    """NaN is above infinity, and `top_k` takes 0 before -0; a stable sort does not."""
    info = np.finfo(dtype)
    x = np.array(
        [3, np.inf, np.nan, -0.0, info.max, 0, np.inf, -np.inf, -0.0, info.min, np.nan, -1, 0, info.tiny], dtype
    )
    for count in (1, 3, len(x)):
        verify_lowering(lambda x, count=count: lax.top_k(x, count), x, signed_zeros=True)
    verify_lowering(lambda x: [jnp.sort(x), jnp.argsort(x), jnp.argsort(x, descending=True)], x, signed_zeros=True)
    verify_lowering(lambda x, y: lax.sort((x, y, jnp.arange(14)), num_keys=2), np.sign(x), x)


def test_places_in_an_order():
    """Searches, interpolation and histograms."""
    edges = np.float32([-np.inf, -1, 0, 0, 0.5, 2, np.inf, np.nan])
    x = np.float32([-2, -0.0, 0, 0.3, 2, 9, np.inf, -np.inf, np.nan])
    for side in ("left", "right"):
        verify_lowering(lambda e, x, side=side: jnp.searchsorted(e, x, side=side), edges, x)
    verify_lowering(lambda e, x: jnp.searchsorted(e, x), np.arange(4), np.array([-1, 2, 9]))
    verify_lowering(lambda e, x: jnp.interp(x, e[1:6], jnp.arange(5, dtype=x.dtype)), edges, x)
    verify_lowering(lambda x: jnp.histogram(x, 3)[0], x[:6])


FLOATS = [np.float32, np.float16, np.float64]

#: How many are drawn.
EXAMPLES = of_tiers([25, 60], quick=[25], thorough=[])


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

        # Sums of whole numbers that are this small are exact in every type. Some results are empty.
        verify_lowering(function, x, kernel, known={1} if known else (), roundings=0, something=False)

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

        verify_lowering(function, x, roundings=4 if combine is lax.add else 0, something=False)

    check()


RUNNING = [lax.cumsum, lax.cummin, lax.cumprod, lax.cummax, lax.cumlogsumexp]


@pytest.mark.parametrize("running", of_tiers(RUNNING, RUNNING[:2], [lax.cumlogsumexp]))
def test_running_reductions(running):
    rng = np.random.default_rng(0)
    for dtype in FLOATS if running is lax.cumlogsumexp else (*FLOATS, np.int32, np.int8):
        x = (rng.normal(size=(2, 7, 3)) * 3).astype(dtype)
        verify_lowering(
            lambda x: [running(x, axis, axis != 1) for axis in range(3)] + [running(x, 1, True)], x, roundings=8
        )
