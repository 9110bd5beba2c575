"""Operators that take a faster form where they can: it equals the plain one, and is taken where it should be."""

from __future__ import annotations

import contextlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from onnx import TensorProto, helper, numpy_helper
from verifier import verify

import jaxrnn
from jaxrnn.cells import convolve
from jaxrnn.cells.geometry import windows_of
from jaxrnn.cells.window_products import WindowProduct
from jaxrnn.tracing import unmapped


def with_gradients(function, x, kernel, weight):
    value, pull = jax.vjp(function, x, kernel)
    return value, *pull(weight)


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


def depthwise_model():
    """Two depthwise convolutions over time, one of them dilated, a tanh between them."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(size=(6, 1, 3)).astype(np.float32), f"w{i}") for i in range(2)]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], group=6, pads=[1, 1]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["y"], group=6, pads=[4, 0], dilations=[2]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "depthwise",
        [value("x", TensorProto.FLOAT, [1, 6, "S"])],
        [value("y", TensorProto.FLOAT, [1, 6, "S"])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


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

    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("ScatterND", ["data", "index", "updates"], ["y"], reduction=reduction)],
        "scatter",
        [value("data", TensorProto.FLOAT, shape), value("updates", TensorProto.FLOAT, updates.shape)],
        [value("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(index.astype(np.int64), "index")],
    )
    model = jaxrnn.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
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
