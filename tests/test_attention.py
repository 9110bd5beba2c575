"""Attention, FlexAttention, RotaryEmbedding and SwiGLU against NumPy in float64, and where attention can stream."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from refusals import check_refused
from small_models import graph_of, make_model
from tiers import of_tiers
from verifier import assert_derivative, dot, random_like

import jaxrnn
from jaxrnn._jax.context import exact_types
from jaxrnn.onnx.operators.activations import swiglu
from jaxrnn.onnx.operators.attention import attention, attention_23, rotary_embedding


def reference(q, k, v, mask, past, valid, attributes):
    """Query by query, in float64: Y and the four states of the scores; inputs of rank 4."""
    k, v = (x if before is None else np.concatenate([before, x], 2) for x, before in zip((k, v), past, strict=True))
    batch, heads, queries, size = q.shape
    keys = k.shape[2]
    scale = attributes.get("scale") or size**-0.5
    cap = attributes.get("softcap", 0.0)
    before, behind = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    y = np.zeros((batch, heads, queries, v.shape[3]))
    scores = np.zeros((4, batch, heads, queries, keys))
    full = None if mask is None else np.broadcast_to(mask, (batch, heads, queries, mask.shape[-1]))
    for b, h, i in np.ndindex(batch, heads, queries):
        shared = h * k.shape[1] // heads
        position = i + (k.shape[2] - k_new(past, k) if valid is None else int(valid[b]) - queries)
        raw = scale * (k[b, shared] @ q[b, h, i])
        capped = cap * np.tanh(raw / cap) if cap else raw
        bias = np.zeros(keys)
        for j in range(keys):
            hidden = attributes.get("is_causal") and j > position
            hidden = hidden or (before >= 0 and j < position - before) or (behind >= 0 and j > position + behind)
            hidden = hidden or (valid is not None and j >= valid[b])
            if full is not None:
                given_mask = full[b, h, i, j] if j < full.shape[3] else -np.inf
                hidden = hidden or given_mask == -np.inf or (full.dtype == bool and not given_mask)
                bias[j] = 0 if hidden or full.dtype == bool else given_mask
            if hidden:
                bias[j] = -np.inf
        weights = np.zeros(keys)
        if not np.all(bias == -np.inf):
            weights = np.exp(capped + bias - np.max(capped + bias))
            weights /= weights.sum()
        y[b, h, i] = weights @ v[b, shared]
        scores[:, b, h, i] = raw, capped, capped + bias, weights
    return y, scores


def k_new(past, k):
    """How many of the keys are new."""
    return k.shape[2] - (0 if past[0] is None else past[0].shape[2])


@st.composite
def cases(draw):
    """Inputs of rank 4 and attributes of an Attention of opset 25."""
    batch, shared, group, queries, keys = (draw(st.integers(1, top)) for top in (2, 2, 2, 4, 5))
    size, width = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    draws = lambda *shape: rng.uniform(-2, 2, shape)  # noqa: E731
    cached = draw(st.sampled_from((None, "inside", "outside")))
    past = (draws(batch, shared, 2, size), draws(batch, shared, 2, width)) if cached == "inside" else (None, None)
    valid = rng.integers(0, keys + 1, batch) if cached == "outside" else None
    total = keys + (2 if cached == "inside" else 0)
    mask, kind = None, draw(st.sampled_from((None, "bool", "float")))
    if kind:
        named = draw(st.integers(1, total))
        shape = [*(draw(st.sampled_from((1, n))) for n in (batch, shared * group, queries)), named]
        shape = shape[draw(st.integers(0, 3)) :]
        mask = rng.random(shape) < 0.6
        mask = mask if kind == "bool" else np.where(mask, draws(*shape), -np.inf)
    attributes = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "is_causal": st.just(1),
                "left_window_size": st.integers(0, 2),
                "right_window_size": st.integers(0, 2),
                "scale": st.just(0.7),
                "softcap": st.just(1.5),
            },
        )
    )
    attributes["qk_matmul_output_mode"] = draw(st.integers(0, 3))
    shapes = (batch, shared * group, queries, size), (batch, shared, keys, size), (batch, shared, keys, width)
    inputs = [draws(*shape) for shape in shapes]
    return inputs, mask, past, valid, attributes, draw(st.booleans())


def joined(x):
    """Heads as a part of the features."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


@given(cases())
@settings(max_examples=20, deadline=None)
def test_every_feature(case):
    """Masks of every shape and kind, windows, caches inside and outside, shared heads, softcap, either rank."""
    (q, k, v), mask, past, valid, attributes, flat = case
    expected, scores = reference(q, k, v, mask, past, valid, attributes)
    inputs = [q, k, v]
    if flat:
        attributes = {**attributes, "q_num_heads": q.shape[1], "kv_num_heads": k.shape[1]}
        inputs, expected = list(map(joined, inputs)), joined(expected)

    @jax.jit
    def run(inputs, mask, past, valid):
        return attention(*inputs, mask, *past, valid, **attributes, output_count=4)

    with exact_types():
        y, keys, values, qk = run(inputs, mask, past, valid)
    for found, value in ((y, expected), (qk, scores[attributes["qk_matmul_output_mode"]])):
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, value, rtol=0, atol=1e-13)
    for found, new, old in zip((keys, values), (k, v), past, strict=True):
        np.testing.assert_array_equal(found, new if old is None else np.concatenate([old, new], 2))


def test_derivatives():
    """Forward and reverse mode against differences in float64, through masks, softcap and rows that see nothing."""
    rng = np.random.default_rng(0)
    mask = rng.normal(size=(3, 5))
    mask[1], mask[2, 3] = -np.inf, -np.inf
    with exact_types():
        point = random_like([np.zeros((2, 4, 3, 2)), np.zeros((2, 2, 5, 2)), np.zeros((2, 2, 5, 3))], 1)
        direction = random_like(point, 2)
        run = lambda inputs: attention(*inputs, mask, is_causal=1, left_window_size=3, softcap=2.0)[0]  # noqa: E731
        y, tangent = jax.jit(lambda x, d: jax.jvp(run, (x,), (d,)))(point, direction)
        np.testing.assert_array_equal(y[:, :, 1], 0)
        assert_derivative(tangent, jax.jit(run), point, direction)
        weights = random_like(y, 3)
        (gradient,) = jax.jit(lambda x, w: jax.vjp(run, x)[1](w))(point, weights)
        np.testing.assert_allclose(dot(gradient, direction), dot(weights, tangent), rtol=1e-9)


@pytest.mark.parametrize("dtype", of_tiers([np.float16, ml_dtypes.bfloat16], [ml_dtypes.bfloat16]))
def test_narrow_types_are_rounded_where_the_specification_says(dtype):
    """Compiled or not, to the last bit: XLA would keep more than 16 bits between operations."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 2, 4, 8)).astype(dtype) for _ in range(3))
    run = lambda *inputs: attention(*inputs, is_causal=1, softcap=2.0, qk_matmul_output_mode=1, output_count=4)  # noqa: E731
    with exact_types():
        for one, other in zip(run(q, k, v), jax.jit(run)(q, k, v), strict=True):
            assert one.dtype == dtype
            np.testing.assert_array_equal(one, other)
        # In 32 bits, a softmax of the rounded scores is rounded once.
        modes = [
            attention(q, k, v, softmax_precision=TensorProto.FLOAT, qk_matmul_output_mode=mode, output_count=4)[3]
            for mode in (2, 3)
        ]
        scores, chances = (np.asarray(value, np.float64) for value in modes)
        expected = np.exp(scores) / np.sum(np.exp(scores), -1, keepdims=True)
        np.testing.assert_allclose(chances, expected, rtol=0.51 * float(ml_dtypes.finfo(dtype).eps))


def test_an_empty_cache():
    """No key at all: zeros, whose derivative is zero."""
    q, k, v = jnp.ones((1, 2, 3, 4)), jnp.ones((1, 1, 0, 4)), jnp.ones((1, 1, 0, 5))
    with exact_types():
        run = jax.jit(lambda q: attention(q, k, v, is_causal=1)[0])
        np.testing.assert_array_equal(run(q), np.zeros((1, 2, 3, 5)))
        assert run(q[:, :, :0]).shape == (1, 2, 0, 5)
        gradient = jax.jit(jax.grad(lambda q: run(q).sum()))(q)
    np.testing.assert_array_equal(gradient, np.zeros(q.shape))


@pytest.mark.parametrize(
    ("function", "shapes", "attributes", "message"),
    [
        (attention, "qkv", {"q_num_heads": 2}, "rank 3"),
        (attention, "qkv", {"left_window_size": -2}, "-1 or more, not -2"),
        (attention, "qkv", {"qk_matmul_output_mode": 4}, "0, 1, 2 or 3, not 4"),
        (attention, "qkv", {"scale": -1.0}, "must not be negative"),
        (attention, "qkvm", {}, "does not broadcast"),
        (attention, "qkv-p", {}, "must both be given, or neither"),
        (attention, "qkv-ppn", {}, "caches outside of the operator"),
        (attention, "qk2", {}, "do not fit"),
        (attention, "3kv", {}, "cannot share"),
        (attention, "fff", {"q_num_heads": 5, "kv_num_heads": 5}, "cannot be cut into 5 heads"),
        (attention, "fff", {}, "number of heads"),
        (attention_23, "qkvs", {}, "does not broadcast"),
    ],
)
def test_what_does_not_fit_is_refused(function, shapes, attributes, message):
    known = {"q": (1, 4, 3, 2), "k": (1, 2, 5, 2), "v": (1, 2, 5, 2), "2": (1, 2, 4, 2), "3": (1, 3, 3, 2)}
    known |= {"f": (1, 3, 8), "m": (3, 4, 3, 5), "s": (3, 4), "p": (1, 2, 1, 2)}
    inputs = [np.zeros(known[letter], np.float32) if letter in known else None for letter in shapes]
    if "n" in shapes:
        inputs[-1] = np.zeros(1, np.int64)
    check_refused(ValueError, message, function, *inputs, **attributes)


def loaded(nodes, inputs, outputs, opset=25, constants=(), domains=()):
    """A model of nodes and of inputs and outputs by name."""
    return jaxrnn.load(make_model(graph_of(nodes, inputs, outputs, constants), *domains, opset=opset))


def test_a_later_attribute_is_refused_earlier():
    node = helper.make_node("Attention", ["q", "q", "q"], ["y"], left_window_size=1)
    shape = {"q": [1, 2, 3, 4]}
    with pytest.raises(jaxrnn.ModelError, match="left_window_size"):
        loaded([node], shape, {"y": [1, 2, 3, 4]}, opset=24)
    loaded([node], shape, {"y": [1, 2, 3, 4]}, opset=25)


@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}])
def test_attention_over_time_is_refused_by_streams(attributes):
    """Without a bound, every frame sees all others, or all of the past; inside a frame, attention streams."""
    node = helper.make_node("Attention", ["x"] * 3, ["y"], name="all", q_num_heads=2, kv_num_heads=2, **attributes)
    over_time = loaded([node], {"x": [1, "T", 8]}, {"y": [1, "T", 8]})
    words = r"'all'.*each frame depends on all earlier( and later)? frames; (bound what each|give `past=64`)"
    check_refused(jaxrnn.StreamError, words, over_time.stream, symbol="T")
    inside = loaded([node], {"x": ["T", 5, 8]}, {"y": ["T", 5, 8]})
    x = np.random.default_rng(0).standard_normal((7, 5, 8)).astype(np.float32)
    found = jax.jit(inside.stream(symbol="T", pulse=2).run)(inside.params, {"x": x})
    expected = jax.jit(inside.apply)(inside.params, {"x": x})
    np.testing.assert_allclose(found["y"], expected["y"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("operator", ["Attention", "com.microsoft::MultiHeadAttention"])
def test_causal_attention_streams_with_a_bounded_past(operator):
    """Inputs of a cache are empty when a recording begins; the error says so, and for each line that it names."""
    domain, name = ("", operator) if "::" not in operator else operator.split("::")
    options = {"num_heads": 2, "unidirectional": 1} if domain else {"q_num_heads": 2, "kv_num_heads": 2, "is_causal": 1}
    caches = [*[""] * (3 if domain else 1), "past_key", "past_value"]
    node = helper.make_node(name, ["x", "x", "x", *caches], ["y", "key", "value"], name="all", domain=domain, **options)
    inputs = {"x": [1, "T", 8], "past_key": [1, 2, "P", 4], "past_value": [1, 2, "P", 4]}
    model = loaded([node], inputs, dict.fromkeys(node.output), domains=[domain] * bool(domain))
    check_refused(jaxrnn.StreamError, r"`dims=\{'P': 0\}` begins .*and then: .*give `past=64`", model.stream, "T")
    check_refused(jaxrnn.StreamError, r"`dims=\{'P': 0\}` begins without earlier frames$", model.stream, "T", past=8)
    check_refused(jaxrnn.StreamError, "give `past=64`", model.stream, "T", dims={"P": 0})
    streamed = model.stream("T", dims={"P": 0}, past=8)
    x = np.random.default_rng(0).standard_normal((1, 12, 8)).astype(np.float32)
    arrays = {"x": x, **{each: np.zeros((1, 2, 0, 4), np.float32) for each in caches[-2:]}}
    found, whole = streamed.run(model.params, arrays), jax.jit(model.apply)(model.params, arrays)
    expected = streamed.offline(model.params, arrays)
    for each in expected:
        np.testing.assert_allclose(found[each], expected[each], rtol=0, atol=1e-6)
    np.testing.assert_allclose(found["y"][:, :9], whole["y"][:, :9], rtol=0, atol=1e-6)  # the band hides no key


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("turned", [4, 6])
def test_rotary_embedding_is_a_turn_of_complex_numbers(interleaved, turned):
    """Pairs of features as complex numbers, times those of the angles; by position or token, of either rank."""
    rng = np.random.default_rng(0)
    x, angles = rng.normal(size=(2, 3, 4, 6)), rng.uniform(0, 6, (9, turned // 2))
    positions = rng.integers(0, 9, (2, 4))
    half = turned // 2
    first, second = (slice(0, turned, 2), slice(1, turned, 2)) if interleaved else (slice(half), slice(half, turned))
    product = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles[positions])[:, None]
    expected = x.copy()
    expected[..., first], expected[..., second] = product.real, product.imag
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": 0 if turned == 6 else turned}
    with exact_types():
        caches = np.cos(angles), np.sin(angles)
        run = jax.jit(lambda x, *rest: rotary_embedding(x, *rest, **attributes))
        np.testing.assert_allclose(run(x, *caches, positions), expected, rtol=0, atol=1e-14)
        by_token = [cache[positions] for cache in caches]
        flat = rotary_embedding(joined(x), *by_token, **attributes, num_heads=3)
        np.testing.assert_allclose(flat, joined(expected), rtol=0, atol=1e-14)
        with pytest.raises(IndexError, match="is out of range for an axis of size 9"):
            rotary_embedding(x, *caches, positions + 9, **attributes)


def test_flex_attention_with_a_bias_from_outside():
    """A modifier sees the graph around it: slopes that are a parameter, with their derivative."""
    nodes = [helper.make_node("Mul", ["distance", "slope"], ["bias"]), helper.make_node("Add", ["s", "bias"], ["t"])]
    body = graph_of(nodes, {"s": [1, 2, 3, 3]}, {"t": [1, 2, 3, 3]})
    node = helper.make_node("FlexAttention", ["q", "q", "q"], ["y"], domain="ai.onnx.preview", score_mod=body)
    distance = np.subtract.outer(np.arange(3.0), np.arange(3.0)).astype(np.float32)
    slope = np.array([0.5, -1], np.float32).reshape(2, 1, 1)
    shape = {"q": [1, 2, 3, 4]}
    constants = {"slope": slope, "distance": distance}
    model = loaded([node], shape, {"y": [1, 2, 3, 4]}, 26, constants, ["ai.onnx.preview"])
    q = np.random.default_rng(0).standard_normal((1, 2, 3, 4)).astype(np.float32)
    found = jax.jit(model.apply)(model.params, {"q": q})["y"]
    np.testing.assert_allclose(found, attention(q, q, q, distance * slope)[0], rtol=0, atol=1e-6)
    loss = lambda params: jnp.sum(model.apply(params, {"q": q})["y"] ** 2)  # noqa: E731
    assert np.all(np.abs(jax.jit(jax.grad(loss))(model.params)["slope"]) > 1e-4)


def test_swiglu_does_not_broadcast():
    a = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)
    b = a + 1
    np.testing.assert_allclose(swiglu(a, b, alpha=0.5), a / (1 + np.exp(-0.5 * a)) * b, rtol=1e-6)
    with pytest.raises(ValueError, match="equal shapes"):
        swiglu(a, b[:1])
