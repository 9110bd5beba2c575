"""LinearAttention and CausalConvWithState: values, derivatives, and that their state is that of a recurrence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from small_models import graph_of, make_model
from streaming_verifier import assert_same
from tiers import of_tiers
from verifier import assert_derivative, dot, random_like

import jaxrnn
from jaxrnn._jax.context import exact_types
from jaxrnn.cells.linear_attention import CHUNK
from jaxrnn.model.inspection import inspect_model
from jaxrnn.onnx.operators.linear import causal_convolution
from jaxrnn.onnx.operators.recurrent import RULES, linear_attention_operator
from jaxrnn.streaming import transform
from jaxrnn.streaming.checking import POISON, InPulses
from jaxrnn.streaming.measuring import drawn

FLOATS = (np.float32, np.float16, ml_dtypes.bfloat16)


def reference(q, k, v, past, decay, beta, heads, scale):
    """The recurrence in float64, one frame, sequence and head after the other."""
    q, k, v, decay, beta = (None if x is None else np.asarray(x, np.float64) for x in (q, k, v, decay, beta))
    queries, keys = heads
    batch, length = q.shape[:2]
    size, width = k.shape[2] // keys, v.shape[2] // keys
    state = np.zeros((batch, keys, size, width)) if past is None else np.array(past, np.float64)
    y = np.zeros((batch, length, queries, width))
    for b, t, h in np.ndindex(batch, length, keys):
        key, value = k[b, t].reshape(keys, size)[h], v[b, t].reshape(keys, width)[h]
        kept = state[b, h]
        if decay is not None:
            kept = np.exp(decay[b, t].reshape(keys, -1)[h])[:, None] * kept
        if beta is not None:
            value = beta[b, t, h % beta.shape[2]] * (value - kept.T @ key)
        state[b, h] = kept + np.outer(key, value)
        for query in range(h * queries // keys, (h + 1) * queries // keys):
            y[b, t, query] = (scale or size**-0.5) * q[b, t].reshape(queries, size)[query] @ state[b, h]
    return y.reshape(batch, length, queries * width), state


@st.composite
def cases(draw):
    """Inputs of a LinearAttention, and its attributes."""
    rule = draw(st.sampled_from(sorted(RULES)))
    keys, group, size, width = (draw(st.integers(1, top)) for top in (2, 2, 4, 3))
    batch, length = draw(st.integers(1, 2)), draw(st.sampled_from((0, 1, 2, 5, 9)))
    dtype, held = draw(st.sampled_from(FLOATS)), draw(st.sampled_from((None, *FLOATS)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    draws = lambda *shape: rng.uniform(-1, 1, shape).astype(dtype)  # noqa: E731
    decays, corrects = RULES[rule]
    inputs = [
        draws(batch, length, keys * group * size),
        draws(batch, length, keys * size) / np.sqrt(size).astype(dtype),
        draws(batch, length, keys * width),
        None if held is None else rng.uniform(-1, 1, (batch, keys, size, width)).astype(held),
        -abs(draws(batch, length, keys * draw(st.sampled_from((1, size))))) if decays else None,
        abs(draws(batch, length, draw(st.sampled_from((1, keys))))) if corrects else None,
    ]
    scale = draw(st.sampled_from((0.0, 0.3)))
    return inputs, {"update_rule": rule, "q_num_heads": keys * group, "kv_num_heads": keys, "scale": scale}


@pytest.mark.thorough
@given(cases())
@settings(max_examples=30, deadline=None)
def test_every_rule(case):
    """Against the recurrence in float64; the state and the sums are of 32 bits, whatever the type of the inputs."""
    inputs, attributes = case
    given_inputs = [x for x in inputs if x is not None]

    @jax.jit
    def run(arrays):
        arrays = iter(arrays)
        return linear_attention_operator(*(None if x is None else next(arrays) for x in inputs), **attributes)

    with exact_types():
        y, state = run(given_inputs)
    heads = attributes["q_num_heads"], attributes["kv_num_heads"]
    expected = reference(*inputs, heads, attributes["scale"])
    assert (y.dtype, state.dtype) == (inputs[0].dtype, (inputs[0] if inputs[3] is None else inputs[3]).dtype)
    for found, value in zip((y, state), expected, strict=True):
        # At most 9 frames of sums of 4 products in float32, and one rounding to the type of the result.
        roundings = 100 * np.finfo(np.float32).eps + float(ml_dtypes.finfo(found.dtype).eps)
        assert found.shape == value.shape
        limit = roundings * max(1.0, np.max(np.abs(value), initial=0))
        np.testing.assert_allclose(np.asarray(found, np.float64), value, rtol=0, atol=limit)


#: Rule, queries for each key head, features of the decay, of beta, and frames: within a chunk, and beyond one.
DERIVATIVES = [
    ("linear", 1, None, None, CHUNK + 1),
    ("gated", 2, 3, None, CHUNK),
    ("delta", 1, None, 1, 3),
    ("gated_delta", 1, 1, 2, CHUNK + 1),
    ("gated_delta", 2, 3, 2, 1),
]


@pytest.mark.parametrize(
    ("rule", "group", "decays", "rates", "length"), of_tiers(DERIVATIVES, DERIVATIVES[:2], thorough=())
)
def test_derivatives(rule, group, decays, rates, length):
    """Forward and reverse mode against differences of the loop, in float64: of all inputs and of the state."""
    with exact_types():
        shapes = [(1, length, 2 * group * 3), (1, length, 6), (1, length, 4), (1, 2, 3, 2)]
        shapes += [None if n is None else (1, length, n * heads) for n, heads in ((decays, 2), (rates, 1))]
        names = [name for name, shape in zip(("q", "k", "v", "past", "decay", "beta"), shapes, strict=True) if shape]
        point = random_like([np.zeros(shape) for shape in shapes if shape], 1)
        point[1] = point[1] / 3  # keys that let the state grow make every difference useless
        direction = random_like(point, 2)

        def run(arrays):
            by_name = dict(zip(names, arrays, strict=True))
            by_name["decay"] = -jnp.abs(by_name["decay"]) if decays else None
            given_inputs = [by_name.get(name) for name in ("q", "k", "v", "past", "decay", "beta")]
            return linear_attention_operator(
                *given_inputs, q_num_heads=2 * group, kv_num_heads=2, update_rule=rule, scale=0.7
            )

        function = jax.jit(run)
        values, tangents = jax.jit(lambda x, d: jax.jvp(run, (x,), (d,)))(point, direction)
        assert_derivative(tangents, function, point, direction, scale=10)
        for value, expected in zip(values, function(point), strict=True):
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-12)
        weights = random_like(values, 3)
        (gradient,) = jax.jit(lambda x, w: jax.vjp(run, x)[1](w))(point, weights)
        np.testing.assert_allclose(dot(gradient, direction), dot(weights, tangents), rtol=1e-9)


@pytest.mark.thorough
def test_a_frame_that_clears_the_state():
    """A factor of 0, whose logarithm is -inf, is one like any other, and nothing behind it loses precision."""
    rng = np.random.default_rng(0)
    q, k, v = (jnp.array(rng.normal(size=(1, 6, 2)), jnp.float32) for _ in range(3))
    decay = jnp.array([[[-0.1], [-0.2], [-jnp.inf], [-0.1], [-0.3], [-0.1]]], jnp.float32)

    def run(q, k, v, decay):
        return linear_attention_operator(*(q, k, v, None, decay), q_num_heads=1, kv_num_heads=1, update_rule="gated")

    y, state = jax.jit(run)(q, k, v, decay)
    after = jax.jit(run)(q[:, 2:], k[:, 2:], v[:, 2:], decay[:, 2:])
    np.testing.assert_array_equal(y[:, 2:], after[0])
    np.testing.assert_array_equal(state, after[1])
    loss = lambda *x: sum(jnp.sum(part**2) for part in run(*x))  # noqa: E731
    gradients = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(q, k, v, decay)
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)
    assert gradients[3][0, 2] == 0


@given(
    st.integers(0, 6),
    st.integers(1, 5),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from(("none", "silu", "swish")),
    st.sampled_from(FLOATS),
)
@settings(max_examples=20, deadline=None)
def test_convolution(length, taps, channels, with_bias, with_past, activation, dtype):
    """Against sums in float64, over the frames of the state and those that come."""
    rng = np.random.default_rng(length)
    draws = lambda *shape: rng.uniform(-1, 1, shape).astype(dtype)  # noqa: E731
    x, weight = draws(2, channels, length), draws(channels, 1, taps)
    bias = draws(channels) if with_bias else None
    past = draws(2, channels, taps - 1) if with_past else None
    with exact_types():
        run = jax.jit(lambda *arrays: causal_convolution(*arrays, activation=activation))
        y, present = run(x, weight, bias, past)
    seen = np.concatenate([np.zeros((2, channels, taps - 1), dtype) if past is None else past, x], 2)
    assert (y.dtype, y.shape, present.dtype) == (dtype, x.shape, dtype)
    np.testing.assert_array_equal(present, seen[:, :, length:])
    expected = np.zeros(x.shape)
    for t in range(length):
        expected[:, :, t] = np.sum(seen[:, :, t : t + taps].astype(np.float64) * weight[:, 0].astype(np.float64), 2)
    expected += 0 if bias is None else bias.astype(np.float64)[:, None]
    if activation != "none":
        expected = expected / (1 + np.exp(-expected))
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=0, atol=8 * float(ml_dtypes.finfo(dtype).eps))


FEATURES, TAPS, KEY_HEADS, QUERY_HEADS, KEY, VALUE = 4, 4, 2, 4, 3, 2


def network(length, rule="gated_delta", *, external=True, batch=1):
    """A block as gated delta networks have it: a convolution, then linear attention with gates of its own."""
    rng = np.random.default_rng(0)
    node = helper.make_node
    past = ("frames_in", "matrix_in") if external else ("", "")
    decays, corrects = RULES[rule]
    nodes = [
        node("Transpose", ["x"], ["xt"], perm=[0, 2, 1]),
        node("CausalConvWithState", ["xt", "taps", "", past[0]], ["c", "frames"], name="conv", activation="silu"),
        node("Transpose", ["c"], ["ct"], perm=[0, 2, 1]),
        *(node("MatMul", ["ct", f"W{name}"], [name]) for name in "qkvgb"),
        node("LpNormalization", ["k"], ["unit"]),
        node("Sigmoid", ["g"], ["factor"]),
        node("Log", ["factor"], ["decay"]),
        node("Sigmoid", ["b"], ["beta"]),
        node(
            "LinearAttention",
            ["q", "unit", "v", past[1], "decay" if decays else "", "beta" if corrects else ""],
            ["a", "matrix"],
            name="attention",
            q_num_heads=QUERY_HEADS,
            kv_num_heads=KEY_HEADS,
            update_rule=rule,
        ),
        node("MatMul", ["a", "Wo"], ["y"]),
    ]
    states = {"frames": [batch, FEATURES, TAPS - 1], "matrix": [batch, KEY_HEADS, KEY, VALUE]} if external else {}
    inputs = {"x": [batch, length, FEATURES], **{f"{name}_in": shape for name, shape in states.items()}}
    outputs = {"y": [batch, length, 2], **states}
    widths = {"q": QUERY_HEADS * KEY, "k": KEY_HEADS * KEY, "v": KEY_HEADS * VALUE, "g": KEY_HEADS, "b": KEY_HEADS}
    shapes = {f"W{name}": (FEATURES, width) for name, width in widths.items()}
    shapes |= {"taps": (FEATURES, 1, TAPS), "Wo": (QUERY_HEADS * VALUE, 2)}
    weights = {name: (0.4 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    return make_model(graph_of(nodes, inputs, outputs, weights, "block"), opset=27)


def frames_of(length, batch=1):
    return np.random.default_rng(length).standard_normal((batch, length, FEATURES)).astype(np.float32)


#: Two dozen sums of up to a dozen products in float32.
CLOSE = {"rtol": 0, "atol": 2e-6}


def test_state_is_found_stepped_and_scanned():
    """The pairs are found with a reason; a step has no loop; steps, a scan and the whole give the same."""
    model = jaxrnn.load(network(1, batch="N"))
    assert {v.input: (v.output, v.node, v.kind) for v in model.state} == {
        "frames_in": ("frames", "conv", "external"),
        "matrix_in": ("matrix", "attention", "external"),
    }
    assert "state of LinearAttention 'attention' starts from 'matrix_in' and ends in 'matrix'" in model.state[1].reason
    state = model.init(batch=2)
    step = jax.jit(model.step)
    printed = str(jax.make_jaxpr(model.step)(model.params, state, {"x": frames_of(1, 2)}))
    assert "scan" not in printed
    assert "while" not in printed
    x = frames_of(9, 2)
    whole = jaxrnn.load(network("T", batch="N"))
    expected = jax.jit(whole.apply)(whole.params, {"x": x, **model.init(batch=2)})
    scanned, final = jax.jit(lambda p, s, i: model.scan(p, s, i, time_axis=1))(model.params, state, {"x": x})
    pieces = []
    for t in range(9):
        outputs, state = step(model.params, state, {"x": x[:, t : t + 1]})
        pieces.append(outputs["y"])
    for y, end in ((scanned["y"], final), (jnp.concatenate(pieces, 1), state)):
        np.testing.assert_allclose(y, expected["y"], **CLOSE)
        for name, value in end.items():
            np.testing.assert_allclose(value, expected[name.removesuffix("_in")], **CLOSE)


@pytest.mark.thorough
@pytest.mark.parametrize("rule", ["linear", "gated_delta"])
def test_a_recording_in_two_parts(rule):
    """Some frames, then the others from the state that came out, give what all of them give."""
    model = jaxrnn.load(network("T", rule))
    assert len(model.state) == 2
    step = jax.jit(model.step)
    x = frames_of(8)
    expected, end = step(model.params, model.init(), {"x": x})
    before, state = step(model.params, model.init(), {"x": x[:, :2]})
    behind, state = step(model.params, state, {"x": x[:, 2:]})
    np.testing.assert_allclose(np.concatenate([before["y"], behind["y"]], 1), expected["y"], **CLOSE)
    for name, value in end.items():
        np.testing.assert_allclose(state[name], value, **CLOSE)


@pytest.mark.thorough
def test_forgotten_state_is_named_and_streamed(monkeypatch):
    """A file that forgets its state says so, is not run in steps, and streams exactly, from the first frame on."""
    model = jaxrnn.load(network("T", external=False))
    assert {(v.name, v.kind, v.shape) for v in model.state} == {
        ("conv.state", "internal", (1, FEATURES, TAPS - 1)),
        ("attention.state", "internal", (1, KEY_HEADS, KEY, VALUE)),
    }
    with pytest.raises(jaxrnn.StateError, match=r"attention, conv.* stream"):
        model.init()
    monkeypatch.setattr(transform, "PLACEHOLDER", POISON)
    streamed = model.stream(symbol="T", pulse=1)
    assert streamed.delay == {"y": 0}
    runner, offline = InPulses(streamed, model.params), jax.jit(model.apply)
    with exact_types():
        for length in (1, 2, 7):
            x = {"x": drawn((1, length, FEATURES), seed=length)}
            expected = offline(model.params, x)
            for pulses in ((1,), (3,), (2, 1)):
                assert_same(runner.run(x, length, pulses), expected, 2e-6, f"{length} frames, pulses {pulses}")


def test_final_state_of_a_stream():
    """A stream of a file with state as inputs and outputs starts from the one and ends in the other."""
    model = jaxrnn.load(network("T"))
    rng = np.random.default_rng(1)
    start = {name: rng.standard_normal(value.shape).astype(np.float32) for name, value in model.init().items()}
    x = {"x": frames_of(5), **start}
    expected = jax.jit(model.apply)(model.params, x)
    found = jax.jit(model.stream(symbol="T", pulse=3).run)(model.params, x)
    assert_same(found, expected, 2e-6, "5 frames, pulses of 3")


def test_listed_among_recurrent_nodes():
    nodes = {node.operator: node for node in inspect_model(network("T")).recurrent}
    assert set(nodes) == {"LinearAttention", "CausalConvWithState"}
    assert nodes["CausalConvWithState"].weights == FEATURES * TAPS
    assert nodes["LinearAttention"].carries == (f"matrix_in: float32[1, {KEY_HEADS}, {KEY}, {VALUE}]",)
    forgetful = inspect_model(network("T", external=False)).recurrent
    assert [node.carries for node in forgetful] == [("state",), ("state",)]


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ({}, {"update_rule": "rwkv"}, "linear, gated, delta or gated_delta, not 'rwkv'"),
        ({"decay": None}, {}, "'gated_delta' needs decay, which is missing"),
        ({}, {"update_rule": "delta"}, "'delta' takes no decay"),
        ({}, {"q_num_heads": 3}, "a multiple of kv_num_heads, not 3 and 2"),
        ({"query": (1, 5, 13)}, {}, "query has 13 features"),
        ({"query": (1, 5, 8)}, {}, "query has 2 features, but one of the key 3"),
        ({"key": (1, 4, 6)}, {}, "equal lengths"),
        ({"decay": (1, 5, 4)}, {}, "decay must have 1 or 3 features"),
        ({"beta": (1, 5, 6)}, {}, "beta must have 1 feature"),
        ({"past_state": (1, 2, 2, 3)}, {}, r"\(1, 2, 3, 2\) is expected"),
    ],
)
def test_what_does_not_fit_is_refused(shapes, attributes, message):
    names = ("query", "key", "value", "past_state", "decay", "beta")
    defaults = ((1, 5, 12), (1, 5, 6), (1, 5, 4), None, (1, 5, 2), (1, 5, 2))
    given_shapes = dict(zip(names, defaults, strict=True)) | shapes
    inputs = [None if shape is None else np.zeros(shape, np.float32) for shape in given_shapes.values()]
    with pytest.raises(ValueError, match=message):
        linear_attention_operator(*inputs, **({"q_num_heads": 4, "kv_num_heads": 2} | attributes))


def test_a_kernel_of_one_tap_has_no_state():
    """Nothing is kept between frames: what has no elements is an input and an output like any other."""
    node = helper.make_node("CausalConvWithState", ["x", "w", "", "past"], ["y", "present"])
    ends = {"x": [1, 2, "T"], "past": [1, 2, 0]}, {"y": [1, 2, "T"], "present": [1, 2, 0]}
    weight = np.array([[[2.0]], [[3.0]]], np.float32)
    model = jaxrnn.load(make_model(graph_of([node], *ends, {"w": weight}), opset=27))
    assert model.state == ()
    outputs = model.apply(model.params, {"x": np.ones((1, 2, 1), np.float32), "past": np.zeros((1, 2, 0), np.float32)})
    np.testing.assert_array_equal(outputs["y"], [[[2], [3]]])
