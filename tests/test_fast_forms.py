"""Operators that take a faster form where they can: it equals the plain one, and is taken where it should be.

The larger ones are compiled as users compile them, since vector code begins at some number of elements.
"""

from __future__ import annotations

import contextlib
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from node_models import compare
from onnx import TensorProto, helper
from quick_compiling import as_users_compile
from small_models import graph_of, make_model
from tiers import of_tiers
from verifier import verify

import jaxrnn
from jaxrnn._jax.context import exact_types, unmapped
from jaxrnn.cells import forms
from jaxrnn.cells.cell import GRU, LSTM, RNN, Weights
from jaxrnn.cells.convolution import WindowProduct, convolve, windows_of
from jaxrnn.cells.linear_attention import AttentionFrames, linear_attention
from jaxrnn.cells.linear_attention import step as attention_step
from jaxrnn.cells.recurrence import run_layer
from jaxrnn.jaxprs.equations import trace
from jaxrnn.jaxprs.moves import split
from jaxrnn.jaxprs.numbering import fingerprint
from jaxrnn.jaxprs.recognition.parts import elements, taken
from jaxrnn.onnx.operators import activations, arithmetic, linear, normalization, reduction
from jaxrnn.onnx.operators.quantization import quotient
from jaxrnn.onnx.operators.reduction import first_extreme
from jaxrnn.onnx.operators.types import convert


def with_gradients(function, x, kernel, weight):
    value, pull = jax.vjp(function, x, kernel)
    return value, *pull(weight)


def assert_near(found, expected, limit):
    """Leaf by leaf, as a part of the largest number of the leaf, or of 1."""
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=limit * max(1.0, np.abs(np.asarray(b)).max(initial=0)))


#: Operators that call `jax.lax` directly, beside the function of `jax.numpy` or `jax.nn` of the same equations.
DIRECT = {
    "add": (arithmetic.add, jnp.add),
    "subtract": (arithmetic.subtract, jnp.subtract),
    "multiply": (arithmetic.multiply, jnp.multiply),
    "divide": (arithmetic.divide, jnp.divide),
    "exp": (lambda x, _: arithmetic.OPERATORS["Exp"][13](x), lambda x, _: jnp.exp(x)),
    "log": (lambda x, _: arithmetic.OPERATORS["Log"][13](x), lambda x, _: jnp.log(x)),
    "tanh": (lambda x, _: activations.OPERATORS["Tanh"][13](x), lambda x, _: jnp.tanh(x)),
    "sigmoid": (lambda x, _: activations.OPERATORS["Sigmoid"][13](x), lambda x, _: jax.nn.sigmoid(x)),
    "relu": (lambda x, _: activations.relu(x), lambda x, _: jax.nn.relu(x)),
    "mean": (
        lambda x, _: reduction._mean(x, (0, 2), True).astype(x.dtype),
        lambda x, _: jnp.mean(x, (0, 2), keepdims=True),
    ),
    "mean, axes dropped": (lambda x, _: reduction._mean(x, (1,), False).astype(x.dtype), lambda x, _: jnp.mean(x, 1)),
}


@pytest.mark.parametrize("name", DIRECT)
def test_direct_operators_are_programs_of_jax_numpy(name):
    """Values and derivatives are the same equations, for sizes of 1 and for other ranks too."""

    def with_tangent(function):
        return lambda x, y: jax.jvp(function, (x, y), (x, y))

    shapes = [((2, 3, 4), (2, 3, 4)), ((2, 1, 4), (3, 1)), ((1, 3, 4), (2, 3, 1)), ((0, 3, 4), (4,)), ((2, 3, 4), ())]
    shapes = [((2, 3, 4), (5, 4)), ((2, 3, 4), (4,)), ((4,), (3, 4))] if name == "product" else shapes
    with exact_types():
        for dtype, pair in itertools.product(["float16", "bfloat16", "float32", "float64"], shapes):
            x, y = (jax.ShapeDtypeStruct(shape, dtype) for shape in pair)
            found, expected = (trace(with_tangent(each), x, y)[0] for each in DIRECT[name])
            assert fingerprint(found) == fingerprint(expected)


@pytest.mark.thorough
@settings(max_examples=12, deadline=None)
@given(st.data())
def test_fast_convolutions_are_convolutions(data):
    """Any strides, dilations, padding, groups and order of axes, in every form: values and gradients."""
    rank = data.draw(st.integers(1, 2))
    draw = lambda low, high: tuple(data.draw(st.integers(low, high)) for _ in range(rank))  # noqa: E731
    groups, out, channels = (data.draw(st.integers(1, 3)) for _ in range(3))
    strides, spacing, dilation, taps = draw(1, 3), draw(1, 3), draw(1, 3), draw(1, 4)
    padding = tuple(zip(draw(-1, 3), draw(-1, 3), strict=True))
    reach = [(t - 1) * d + 3 for t, d in zip(taps, dilation, strict=True)]
    sizes = [-(-most // s) for most, s in zip(reach, spacing, strict=True)] if data.draw(st.booleans()) else [6] * rank
    sizes = [max(n, -(-most // s)) for n, most, s in zip(sizes, reach, spacing, strict=True)]
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    lhs, result = (tuple(data.draw(st.permutations(range(rank + 2)))) for _ in range(2))
    x = jnp.array(rng.normal(size=(2, groups * channels, *sizes)), jnp.float32).transpose(np.argsort(lhs))
    kernel = jnp.array(rng.normal(size=(groups * out, channels, *taps)), jnp.float32)
    numbers = lax.ConvDimensionNumbers(lhs, tuple(range(rank + 2)), result)
    distances = strides, padding, spacing, dilation

    def plain(x, kernel):
        return lax.conv_general_dilated(x, kernel, *distances, numbers, feature_group_count=groups)

    around = data.draw(st.sampled_from([unmapped, contextlib.nullcontext]))

    def fast(x, kernel):
        with around():
            return convolve(x, kernel, *distances, groups, numbers=numbers)

    windows = tuple(windows_of(sizes, taps, *distances))
    sides = [(True,) if each.spacing > 1 else (False, True) for each in windows]
    forms = [
        WindowProduct(windows, scattered, 2, groups * channels, groups * out, groups)
        for scattered in itertools.product(*sides)
    ]
    form = data.draw(st.sampled_from(forms))

    def product(x, kernel):
        return form(x, lhs, kernel.transpose(form.kernel_order), None).transpose(np.argsort(result))

    weight = jnp.array(rng.normal(size=jax.eval_shape(plain, x, kernel).shape), jnp.float32)
    expected, *others = jax.jit(lambda: [with_gradients(each, x, kernel, weight) for each in (plain, fast, product)])()
    for found in others:
        for a, b in zip(found, expected, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, atol=2e-6 * max(10, weight.size))


@pytest.mark.parametrize(("frames", "products"), [(3, (True, True)), (5, (True, False))])
def test_a_dense_convolution_is_a_product_of_one_window_or_of_frames_alone(frames, products):
    x, kernel = jnp.ones((1, 4, frames)), jnp.ones((2, 4, 3))
    for around, product in zip((unmapped, contextlib.nullcontext), products, strict=True):
        with around():
            text = str(jax.make_jaxpr(lambda x: convolve(x, kernel, (1,), [(0, 0)], (1,), (1,)))(x))
        assert ("dot_general" in text) == product


@pytest.mark.thorough
@pytest.mark.parametrize("groups", [1, 2])
def test_products_of_low_precision_serve_many_streams(groups):
    """XLA on CPUs refuses such products of several streams in the other order."""
    windows = tuple(windows_of([12], [3], (1,), [(1, 1)], (1,), (1,)))
    form = WindowProduct(windows, (False,), 1, 8 * groups, 64 * groups, groups)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(3, 1, 8 * groups, 12)), jnp.bfloat16)
    kernel = jnp.asarray(rng.normal(size=(64 * groups, 8, 3)), jnp.bfloat16)
    taps = kernel.transpose(form.kernel_order)
    y = jax.jit(jax.vmap(lambda x, taps: form(x, (0, 1, 2), taps, None), (0, None)))(x, taps)
    wide = (array.astype(jnp.float32) for array in (x[:, 0], kernel))
    expected = lax.conv_general_dilated(*wide, (1,), [(1, 1)], feature_group_count=groups)
    # Products of two bfloat16 numbers are exact in float32, and each sum has 24 of them.
    np.testing.assert_allclose(y[:, 0], expected, atol=24 * float(jnp.finfo(jnp.float32).eps) * 30)


def test_a_dilated_operand_is_never_multiplied_with_zeros():
    """A frame that is infinite is so where a tap meets it, and nowhere else."""
    x = jnp.array([1.0, jnp.inf, 2.0])[None, None]
    kernel = jnp.array([1.0, 2.0, 3.0])[None, None]
    y = jax.jit(lambda x: convolve(x, kernel, (1,), [(2, 2)], (2,), (1,)))(x)
    np.testing.assert_array_equal(jnp.isinf(y[0, 0]), [False, False, True, True, True, False, False])
    assert not jnp.isnan(y).any()


@pytest.mark.thorough
@pytest.mark.parametrize("pulse", [1, 4])
def test_a_transposed_convolution_over_time_is_one_product(pulse):
    """However many frames it makes of one: it adds to sums, and its state is those, not frames."""
    kernel = jnp.array(np.random.default_rng(0).normal(size=(1, 12, 32)), jnp.float32)

    def synthesis(kernel, x):
        return lax.conv_general_dilated(x, kernel, (1,), [(31, 31)], (16,), dimension_numbers=("NCH", "OIH", "NCH"))

    x = jnp.array(np.random.default_rng(1).normal(size=(1, 12, 8)), jnp.float32)
    streamed = jaxrnn.stream(synthesis, x, axes=2, params=kernel, pulse=pulse)
    step = jax.jit(streamed.step).lower(kernel, streamed.init(), x[..., :pulse]).as_text()
    assert (step.count("stablehlo.dot_general"), step.count("stablehlo.convolution")) == (1, 0)
    assert [each.shape for each in streamed.state if each.name.endswith("sums")] == [(16, 1, 1)]
    np.testing.assert_allclose(jax.jit(streamed.run)(kernel, x), synthesis(kernel, x), atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("pulse", of_tiers([1, 7], [7]))
def test_a_dense_convolution_of_large_windows_keeps_sums(pulse):
    """And not frames: its stream is the function on the whole recording."""
    rng = np.random.default_rng(0)
    kernel = jnp.array(rng.normal(size=(65, 70, 33)) / 48, jnp.float32)  # sums of 2310 products near 1
    x = jnp.array(rng.normal(size=(1, 70, 50)), jnp.float32)

    def causal(kernel, x):
        return lax.conv_general_dilated(x, kernel, (1,), [(32, 0)], dimension_numbers=("NCH", "OIH", "NCH"))

    streamed = jaxrnn.stream(causal, x, axes=2, params=kernel, pulse=pulse)
    assert streamed.state[0].name.endswith("sums")
    np.testing.assert_allclose(jax.jit(streamed.run)(kernel, x), causal(kernel, x), atol=1e-5)


def depthwise_model():
    """Two depthwise convolutions over time, one of them dilated, a tanh between them."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.normal(size=(6, 1, 3)).astype(np.float32) for i in range(2)}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], group=6, pads=[1, 1]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["y"], group=6, pads=[4, 0], dilations=[2]),
    ]
    return make_model(graph_of(nodes, {"x": [1, 6, "S"]}, {"y": [1, 6, "S"]}, weights))


@pytest.mark.thorough
@pytest.mark.parametrize("pulse", [1, 3])
def test_depthwise_in_a_model_and_its_stream(pulse):
    proto = depthwise_model()
    x = np.random.default_rng(1).normal(size=(1, 6, 11)).astype(np.float32)
    model = verify(proto, {"x": x})
    assert "convolution" not in jax.jit(model.apply).lower(model.params, {"x": x}).as_text()
    streamed = model.stream(pulse=pulse)
    np.testing.assert_allclose(jax.jit(streamed.run)(model.params, {"x": x})["y"], model({"x": x})["y"], atol=1e-5)
    step = jax.jit(streamed.step).lower(model.params, streamed.init(), {"x": x[..., :pulse]})
    assert "convolution" not in step.as_text()


BOXES = {
    "rows": ([slice(1, 3)], (5, 4)),
    "inner box": ([slice(0, 2), slice(1, 3), slice(2, 3)], (2, 4, 5, 3)),
    "everything": ([slice(0, 3), slice(0, 2)], (3, 2)),
    "one element": ([slice(1, 2), slice(0, 1)], (3, 2)),
}


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("name", [*BOXES, "out of order", "repeated"])
def test_scatter_nd_of_known_indices(name, reduction):
    """A box of indices is written by slices, others are scattered; NumPy says what is right."""
    box, shape = BOXES.get(name, ([slice(0, 3)], (4, 3)))
    index = np.stack(np.meshgrid(*(np.arange(part.start, part.stop) for part in box), indexing="ij"), -1)
    if name == "out of order":
        index = index[::-1]
    if name == "repeated":
        index = np.zeros_like(index)
    index = np.where(index > 1, index - np.asarray(shape[: len(box)]), index)  # from the end, where that says the same
    rng = np.random.default_rng(0)
    data = rng.normal(size=shape).astype(np.float32)
    updates = rng.normal(size=(*index.shape[:-1], *shape[len(box) :])).astype(np.float32)
    operation = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}.get(reduction)
    expected = data.copy()
    for place in np.ndindex(*index.shape[:-1]):
        at = tuple(index[place])
        expected[at] = updates[place] if operation is None else operation(expected[at], updates[place])

    node = helper.make_node("ScatterND", ["data", "index", "updates"], ["y"], reduction=reduction)
    shapes = {"data": [*shape], "updates": [*updates.shape]}
    graph = graph_of([node], shapes, {"y": [*shape]}, {"index": index.astype(np.int64)})
    model = jaxrnn.load(make_model(graph, opset=18))
    inputs = {"data": data, "updates": updates}
    np.testing.assert_allclose(model(inputs)["y"], expected, atol=1e-6)
    jaxpr = str(jax.make_jaxpr(model.apply)(model.params, inputs))
    assert ("scatter" in jaxpr) == (name in ("out of order", "repeated"))
    if reduction == "mul":  # linear in every single element: its derivative is what one more adds
        loss = jax.jit(lambda inputs: model.apply(model.params, inputs)["y"].sum())
        gradient = jax.jit(jax.grad(loss))(inputs)
        for which in inputs:
            place = tuple(rng.integers(inputs[which].shape))
            more = inputs[which].copy()
            more[place] += 1
            np.testing.assert_allclose(gradient[which][place], loss(inputs | {which: more}) - loss(inputs), atol=1e-4)


# -- recurrent layers, against a loop of steps


#: Numbers that activations meet at the ends of their range.
EXTREME = [0.0, -0.0, 1e-30, -1e-6, 1.0, -1.0, 17.0, -17.0, 90.0, -90.0, 1e30, -1e30, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("dtype", of_tiers([np.float32, np.float64, np.float16, jnp.bfloat16], [], [np.float32]))
def test_gates_by_one_tanh(dtype):
    """Values and slopes: a sigmoid by tanh is right to some roundings of 1, also where its argument is infinite."""
    sizes, drawn = (1, 5, 15, 16, 63, 64, 129), []
    with exact_types():
        for hidden in sizes:
            rng = np.random.default_rng(hidden)
            gates = np.concatenate([np.array(EXTREME * 8), 3 * rng.normal(size=12 * hidden)])[: 12 * hidden]
            drawn.append(np.asarray(rng.permutation(gates).reshape(3, 4 * hidden), dtype))
        slopes = lambda x: jax.jvp(LSTM()._gates, (x,), (jnp.ones_like(x),))  # noqa: E731
        results = as_users_compile(lambda drawn: [slopes(x) for x in drawn], drawn)
    for hidden, gates, found in zip(sizes, drawn, results, strict=True):
        wide = np.asarray(gates, np.float64)
        with np.errstate(over="ignore"):
            sigmoid, tanh = 1 / (1 + np.exp(-wide)), np.tanh(wide)
        is_tanh = np.arange(4 * hidden) >= 3 * hidden
        expected = np.where(is_tanh, tanh, sigmoid), np.where(is_tanh, 1 - tanh**2, sigmoid * (1 - sigmoid))
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == gates.dtype
            limit = 8 * float(jnp.finfo(dtype).eps)
            np.testing.assert_allclose(np.asarray(a, np.float64), b, rtol=0, atol=limit, err_msg=str(hidden))


def loop_of_steps(cells, weights, x, initial, exists, directions):
    """A layer as a loop of steps, whose derivative is JAX's own."""
    outputs, finals = [], []
    for cell, each, start, backwards in zip(cells, weights, initial, directions, strict=True):
        prepared, recurrent = cell.prepare(each, x.dtype)

        def step(carry, frame, cell=cell, prepared=prepared, recurrent=recurrent):
            new = cell.step(recurrent, carry, cell.split_gates(cell.project(prepared, frame[0])))
            new = tuple(jnp.where(frame[1], *pair) for pair in zip(new, carry, strict=True))
            return new, jnp.where(frame[1], new[0], 0)

        final, y = lax.scan(step, start, (x, exists), reverse=backwards)
        outputs.append(y)
        finals.append(final)
    return jnp.stack(outputs, 1), tuple(jnp.stack(arrays) for arrays in zip(*finals, strict=True))


LAYERS = {
    "LSTM": LSTM(),
    "LSTM with peepholes": LSTM(),
    "coupled LSTM": LSTM(input_forget=True, clip=2.0),
    "GRU": GRU(),
    "GRU, linear before reset": GRU(linear_before_reset=True),
    "RNN": RNN(),
}


#: A layer, rows, hidden units, and whether rows have lengths: some pairs of two of them.
SIZES = [(name, *sizes) for name in LAYERS for sizes in ((1, 200, False), (5, 33, True))]
SIZES += [("LSTM", 1, 33, True), ("LSTM", 5, 200, True), ("GRU", 5, 200, False), ("GRU", 1, 33, False)]
SIZES += [("RNN", 1, 200, True), ("RNN", 5, 33, False)]


@pytest.mark.parametrize(("name", "batch", "hidden", "lengths"), of_tiers(SIZES, [("GRU", 5, 33, True)], []))
def test_layers_of_many_units(name, batch, hidden, lengths, monkeypatch):
    """One loop for two directions, blocks, products for all frames, and a derivative rule: in float32 as users compile.

    The loop of steps is computed in float64.
    """
    cell, directions, time = LAYERS[name], (False, True), 19  # a prime, so that blocks leave a remainder
    rng = np.random.default_rng(0)
    draw = lambda *shape, size=1.0: size * rng.normal(size=shape)  # noqa: E731
    gates, scale = cell.gates * hidden, hidden**-0.5
    peephole = draw(3 * hidden, size=0.3) if "peepholes" in name else None
    parts = draw(gates, 7, size=0.4), draw(gates, hidden, size=scale), draw(2 * gates, size=0.3), peephole
    weights = [Weights(*(None if part is None else sign * part for part in parts)) for sign in (1, -1)]
    initial = [tuple(draw(batch, hidden, size=0.5) for _ in range(cell.carries)) for _ in directions]
    exists = (
        np.arange(time)[:, None, None] < (rng.integers(0, time, batch) if lengths else np.full(batch, time))[:, None]
    )
    if batch > 1:
        monkeypatch.setattr(forms, "BLOCK", 9 * cell.gates * batch * hidden * 4)  # nine frames, and a remainder

    def loss(function):
        def of(weights, x, initial, about):
            y, final = function([cell] * 2, weights, x, initial, about)
            return sum(jnp.sum(jnp.sin(part)) for part in (y, *final)), (y, final)

        return jax.value_and_grad(of, (0, 1, 2), has_aux=True)

    def layer(cells, weights, x, initial, about):
        weights, initial = (jax.tree.map(lambda *pair: jnp.stack(pair), *each) for each in (weights, initial))
        return run_layer(
            cells, weights, x, initial, direction="bidirectional", exists=about[..., 0] if lengths else None
        )

    fast = loss(layer)
    arguments = weights, draw(time, batch, 7), initial
    with exact_types():
        narrow = jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), arguments)
        found = as_users_compile(fast, *narrow, jnp.asarray(exists))
        wide = jax.tree.map(lambda array: jnp.asarray(array, jnp.float64), narrow)
        expected = jax.jit(loss(lambda *given: loop_of_steps(*given, directions)))(*wide, exists)
    # A step adds roundings of sums of as many products as units, and hands on earlier ones; gradients are sums over
    # all frames and rows.
    assert_near(found, expected, 100 * hidden**0.5 * float(jnp.finfo(jnp.float32).eps))


@pytest.mark.nightly
@pytest.mark.parametrize(("decays", "delta"), [(None, False), (1, True), (40, False), (40, True)])
def test_linear_attention_of_many_frames(decays, delta):
    """Several chunks and a remainder: values and gradients are those of the loop of frames in float64."""
    time, keys, size, width = 53, 2, 40, 33
    rng = np.random.default_rng(0)
    frames = AttentionFrames(
        rng.normal(size=(time, 1, keys, 2, size)),
        rng.normal(size=(time, 1, keys, size)) / size**0.5,
        rng.normal(size=(time, 1, keys, width)),
        -np.abs(rng.normal(size=(time, 1, keys, decays))) if decays else None,
        rng.uniform(size=(time, 1, keys, 1)) if delta else None,
    )
    state = rng.normal(size=(1, keys, size, width))

    def loss(function):
        def of(frames, state):
            y, last = function(frames, state)
            return jnp.sum(jnp.sin(y)) + jnp.sum(jnp.sin(last)), (y, last)

        return jax.value_and_grad(of, (0, 1), has_aux=True)

    with exact_types():
        given_arrays = jax.tree.map(jnp.asarray, (frames, state))
        found = as_users_compile(loss(linear_attention), *given_arrays)
        expected = jax.jit(loss(lambda frames, state: lax.scan(attention_step, state, frames)[::-1]))(*given_arrays)
    assert_near(found, expected, 1e-11)


# -- convolutions of many elements


#: Shape, kernel, strides, padding, dilation of the operand and of the kernel, groups.
LARGER = {
    "depthwise": ((2, 65, 301), (65, 1, 5), (1,), [(4, 0)], (1,), (2,), 65),
    "depthwise, several each": ((1, 16, 33, 35), (48, 1, 3, 3), (2, 1), [(1, 1), (0, 2)], (1, 1), (1, 1), 16),
    "depthwise, dilated": ((1, 40, 65), (40, 1, 7), (1,), [(6, 6)], (3,), (1,), 40),
    "transposed": ((1, 67, 40), (33, 67, 32), (1,), [(31, 31)], (16,), (1,), 1),
    "transposed images": ((1, 24, 9, 17), (12, 24, 4, 4), (1, 1), [(3, 3), (2, 3)], (2, 2), (1, 1), 1),
    "transposed, in groups": ((3, 32, 29), (64, 8, 9), (1,), [(8, 8)], (4,), (1,), 4),
    "groups": ((1, 48, 65), (96, 12, 3), (1,), [(2, 0)], (1,), (1,), 4),
    "one window": ((1, 70, 33), (129, 70, 33), (1,), [(0, 0)], (1,), (1,), 1),
    "few windows": ((1, 65, 5), (61, 65, 3), (1,), [(1, 1)], (1,), (1,), 1),
    "many windows": ((1, 17, 67), (33, 17, 5), (1,), [(4, 0)], (1,), (1,), 1),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", of_tiers(LARGER, ("depthwise", "transposed, in groups", "few windows"), thorough=()))
def test_larger_convolutions(name):
    """Values and gradients in float32 as users compile them, against the plain convolution in float64."""
    shape, taps, *distances, groups = LARGER[name]
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=shape), rng.normal(size=taps)
    kernel /= np.prod(taps[1:]) ** 0.5

    def plain(x, kernel):
        return lax.conv_general_dilated(x, kernel, *distances, feature_group_count=groups)

    def fast(x, kernel):
        with unmapped():
            return convolve(x, kernel, *distances, groups)

    with exact_types():
        narrow = [jnp.asarray(array, jnp.float32) for array in (x, kernel)]
        wide = [array.astype(jnp.float64) for array in narrow]
        weight = rng.normal(size=jax.eval_shape(plain, *wide).shape)
        found = as_users_compile(lambda *of: with_gradients(fast, *of), *narrow, jnp.asarray(weight, jnp.float32))
        expected = jax.jit(lambda *of: with_gradients(plain, *of))(
            *wide, jnp.asarray(weight, jnp.float32).astype(float)
        )
    text = str(jax.make_jaxpr(fast)(*narrow))
    assert "platform_index" in text, "it took no faster form"
    assert_near(found, expected, 3e-6)  # sums of at most some thousand products of numbers near 1


@pytest.mark.parametrize("pads", [(4, 0), (-2, 2)])
def test_pads_wider_than_a_window(pads):
    """Values and gradients of pads that XLA's kernel for CPUs computes from memory outside of the operand."""
    rng = np.random.default_rng(0)
    x, kernel = (jnp.array(rng.normal(size=shape), jnp.float32) for shape in ((2, 10, 12), (8, 10, 3)))

    def apart(x, kernel):
        padded = lax.pad(x, jnp.float32(0), [(0, 0, 0), (0, 0, 0), (*pads, 0)])
        return lax.conv_general_dilated(padded, kernel, (1,), [(0, 0)])

    def together(x, kernel):
        return convolve(x, kernel, (1,), (pads,), (1,), (1,))

    weight = jnp.array(rng.normal(size=jax.eval_shape(apart, x, kernel).shape), jnp.float32)
    found, expected = (jax.jit(functools.partial(with_gradients, f))(x, kernel, weight) for f in (together, apart))
    assert_near(found, expected, 1e-6)


@pytest.mark.parametrize("shape", [(3, 70, 129), (1, 65, 1), (1, 33, 9, 15), (2, 5, 0), (0, 5, 3)])
def test_a_kernel_of_one_element_is_a_product(shape):
    """Whichever side comes first, also of no elements, and of infinite ones."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=shape), jnp.float32)
    if x.size > 10:
        x = x.at[0, 2].set(jnp.inf)
    w = jnp.asarray(rng.normal(size=(37, shape[1], *[1] * (len(shape) - 2))), jnp.float32)
    found = as_users_compile(lambda x, w: linear.conv(x, w), x, w)
    expected = lax.conv_general_dilated(x, w, (1,) * (len(shape) - 2), "VALID")
    np.testing.assert_allclose(found, expected, atol=1e-5 * shape[1] ** 0.5)


# -- what is known before a program runs


def edges(dtype):
    """Numbers of a type: its ends, some small ones and some of any size. No subnormal one: XLA takes it for zero."""
    rng, dtype = np.random.default_rng(0), np.dtype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        ends = np.array([0, 1, 2, 7, info.max, info.max - 1, info.min, info.min + 1], dtype)
        return np.concatenate([ends, rng.integers(info.min, info.max, 20, dtype, endpoint=True)])
    info = jnp.finfo(dtype)
    ends = [0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 7, np.inf, -np.inf, np.nan, float(info.max), -float(info.max), 1e-4]
    return np.concatenate([np.array(ends), 3 * rng.normal(size=20)]).astype(dtype)


FLOATS = [np.dtype(kind) for kind in (np.float16, jnp.bfloat16, np.float32, np.float64)]
INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
ONE, TWO = ("Abs", "Ceil", "Floor", "Neg", "Sqrt"), ("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Max", "Min", "Sum")
TWO += ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")


def folded_and_compiled(function, cases):
    """The results of a function of arrays in NumPy, and compiled."""
    with exact_types():
        return [function(*case) for case in cases], jax.jit(lambda cases: [function(*case) for case in cases])(cases)


def assert_equal_but_for_roundings(found, expected, cases, roundings=0):
    for one, other, case in zip(found, expected, cases, strict=True):
        assert isinstance(one, np.ndarray | np.generic), "it was not folded"
        assert one.dtype == other.dtype
        wide, rtol = [np.asarray(one), np.asarray(other)], 0.0
        if one.dtype in FLOATS:
            info = jnp.finfo(one.dtype)
            wide = [np.where(np.abs(x) < float(info.tiny), 0, x) for x in (array.astype(np.float64) for array in wide)]
            rtol = roundings * float(info.eps)
        np.testing.assert_allclose(*wide, rtol=rtol, atol=0, err_msg=str([x.dtype for x in case]))


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_constants_are_folded_to_what_compiled_code_computes(name):
    """Of every type, at the ends of its range."""
    versions = arithmetic.OPERATORS[name]
    function, options = versions[max(versions)], {}
    if name == "Mod":
        options["fmod"] = 1
    cases = []
    for dtype in FLOATS if name in ("Ceil", "Floor", "Sqrt") else [*FLOATS, *INTEGERS]:
        x = edges(dtype)
        if name in ONE:
            cases.append((x,))
            continue
        a, b = (each.ravel() for each in np.meshgrid(x, x))
        if name == "Pow" and dtype.kind in "iu":
            b = np.fmod(b, 7)  # negative, too
        elif name in ("Div", "Mod") and dtype.kind in "iu":
            a, b = a[b != 0], b[b != 0]
        cases.append((a, b))
    results = folded_and_compiled(lambda *arrays: function(*arrays, **options), cases)
    # A power is an exponential of a logarithm to XLA.
    assert_equal_but_for_roundings(*results, cases, roundings=300 if name == "Pow" else 1)


@pytest.mark.parametrize("to", [*FLOATS, *INTEGERS, np.dtype(bool)], ids=str)
def test_constants_are_cast_as_compiled_code_casts(to):
    """Floats out of the range of integers too, of which NumPy promises nothing."""
    cases = [(edges(dtype),) for dtype in (*FLOATS, *INTEGERS)]
    assert_equal_but_for_roundings(*folded_and_compiled(lambda x: convert(x, to), cases), cases)


KNOWN = {
    "product of zeros": (lambda w: jnp.zeros((4, 3)) @ w, True),
    "factor of zeros": (lambda w: jnp.zeros((3, 3)) * jnp.exp(w), True),
    "convolution of zeros": (lambda w: lax.conv(jnp.zeros((1, 3, 8)), w[..., None], (1,), "SAME"), True),
    "moved": (lambda w: jnp.pad(jnp.arange(6.0).reshape(2, 3).T[::-1], 1) + 0 * w.sum(), False),
    "a known factor that is infinite": (lambda w: jnp.zeros(3) * jnp.array([1, jnp.inf, jnp.nan]), False),
    "chosen": (lambda w: jnp.where(jnp.array([True, False, True]), jnp.ones(3), jnp.zeros(3)) @ w, False),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_of_a_function_is_what_it_computes(name):
    """Products of zeros are zeros whatever finite number a parameter is; a known infinity is not multiplied away."""
    function, known = KNOWN[name]
    w = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)), jnp.float32)
    values, rest, depends = split(jax.make_jaxpr(lambda w: function(w))(w))
    (value,) = values if values[0] is not None else jax.core.eval_jaxpr(rest.jaxpr, rest.consts, w)
    np.testing.assert_allclose(value, function(w), atol=1e-6)
    assert (values[0] is not None) == known or not depends[0]


def test_elements_by_slices_are_elements_by_index():
    """Rows and columns of arrays as recognised cells read them, regular or not."""
    rng, cases = np.random.default_rng(0), []
    for _ in range(50):
        rows, columns, down, along, first = map(int, rng.integers([1, 1, -6, -6, 0], [5, 6, 7, 7, 10]))
        at = first + down * np.arange(rows)[:, None] + along * np.arange(columns)
        if rng.random() < 0.5:
            at[rng.integers(rows), rng.integers(columns)] += rng.integers(-2, 3)
        at -= min(at.min(), 0)
        width = int(rng.choice([1, 2, 3, rows, columns]))
        rest = width, -(-(int(at.max()) + 1) // width) + int(rng.integers(3))
        lead = (2,) * int(rng.integers(2))
        cases.append((np.arange(np.prod((*lead, *rest)), dtype=np.float32).reshape(*lead, *rest), at, lead))

    def read(arrays):
        parts = zip(arrays, cases, strict=True)
        return [(elements(x, at, lead), taken(x.reshape(*lead, -1), at[0], -1)) for x, (_, at, lead) in parts]

    for (array, at, lead), (found, row) in zip(cases, jax.jit(read)([array for array, _, _ in cases]), strict=True):
        flat = array.reshape(*lead, -1)
        np.testing.assert_array_equal(np.broadcast_to(found, (*lead, *at.shape)), flat[..., at])
        np.testing.assert_array_equal(row, np.take(flat, at[0], -1))


# -- other operators


@pytest.mark.nightly
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_maxima_of_dilated_windows(data):
    """Windows are doubled, so that large ones take few steps: values and indices are those of ONNX Runtime."""
    rank = data.draw(st.integers(1, 2))
    draw = lambda low, high: [data.draw(st.integers(low, high)) for _ in range(rank)]  # noqa: E731
    taps, strides, dilations = draw(1, 7), draw(1, 3), draw(1, 3)
    low, high = ([data.draw(st.integers(0, min(t - 1, 2))) for t in taps] for _ in range(2))
    sizes = [(t - 1) * d + data.draw(st.integers(1, 9)) for t, d in zip(taps, dilations, strict=True)]
    x = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-4, 5, (2, 3, *sizes)).astype(np.float32)
    options = {"kernel_shape": taps, "strides": strides, "dilations": dilations, "pads": [*low, *high]}
    compare("MaxPool", {"x": x}, outputs=2, kinds=[TensorProto.FLOAT, TensorProto.INT64], **options)


@pytest.mark.parametrize("mean", [0.0, 3.0, 1e4])
@pytest.mark.parametrize("deviation", [1e-2, 1.0, 1e3])
def test_batch_normalisation_is_a_factor_and_an_offset(mean, deviation):
    """As in ONNX Runtime. A mean of many deviations costs as many roundings of the result."""
    rng = np.random.default_rng(0)
    x = (mean + deviation * rng.normal(size=(3, 65, 33))).astype(np.float32)
    scale, bias = (rng.uniform(-2, 2, 65).astype(np.float32) for _ in range(2))
    means, variances = np.full(65, mean, np.float32), np.full(65, deviation**2, np.float32)
    (y,) = as_users_compile(lambda *of: normalization.batch_normalization(*of), x, scale, bias, means, variances)
    wide = [each.astype(np.float64)[:, None] for each in (scale, bias, means, variances)]
    slope = wide[0] / np.sqrt(wide[3] + np.float64(np.float32(1e-5)))
    expected = (x - wide[2]) * slope + wide[1]
    sizes = (np.abs(x) + np.abs(wide[2])) * np.abs(slope) + np.abs(wide[1])
    assert (np.abs(y - expected) <= 6 * np.finfo(np.float32).eps * sizes).all()


@pytest.mark.parametrize("exponent", [-64, -3, -1, 0, 1, 2, 3, 7, 31, 64])
def test_constant_powers_are_products(exponent):
    x = np.concatenate([np.random.default_rng(0).uniform(0.3, 3, 200), [0, -0.0, 1, -1, -2, np.inf, -np.inf, np.nan]])
    x = x.astype(np.float32)
    found = as_users_compile(lambda x: arithmetic.power(x, np.array(exponent, np.float32)), x)
    with np.errstate(all="ignore"):
        expected = (x.astype(np.float64) ** exponent).astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=2 * max(1, abs(exponent)) * np.finfo(np.float32).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_first_extreme(name, dtype):
    """Of 64 bits, it is found by another way than JAX's; NaN counts as an extreme."""
    x = np.random.default_rng(0).integers(0, 40, (5, 130, 3)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        x[2, 60:, 1], x[3, 5, 0], x[4, 7:9] = np.nan, np.inf, -np.inf
    with exact_types():
        found = as_users_compile(lambda x: first_extreme(x, 1, name), jnp.asarray(x))
    np.testing.assert_array_equal(found, getattr(np, name)(x, 1))


@pytest.mark.parametrize("scale", [0.1, 5 / 255, 1 / 3, 0.25, 1e-3])
def test_quotients_are_rounded_once(scale):
    """Also where XLA would multiply with the inverse: a half more or less moves a quantised value to the next one."""
    x = (np.arange(-4000, 4000) * (scale / 2)).astype(np.float32)
    found = as_users_compile(lambda x, scale: quotient(x, scale, np.dtype(np.float32)), x, np.float32(scale))
    np.testing.assert_array_equal(found, x / np.float32(scale))
