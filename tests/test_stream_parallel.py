"""Parallel forms of recurrences: matrices of all pairs of frames under a causal mask, streamed as recurrences."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from refusals import check_refused
from streaming_verifier import check_gradients, check_values
from tiers import of_tiers

import jaxrnn
from jaxrnn.export import verify_export

WIDTH, HEADS, SIZE = 6, 2, 3
RANDOM = np.random.default_rng(0)
#: Weights that all types of floats hold.
W = [jnp.asarray(RANDOM.normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH), jnp.bfloat16) for _ in range(3)]
EXAMPLE = jax.ShapeDtypeStruct((12, WIDTH), np.float32)


def parts(x, heads=False):
    """Queries, keys and values, with heads or without."""
    made = [x @ w.astype(x.dtype) for w in W]
    return [each.reshape(x.shape[0], HEADS, SIZE) for each in made] if heads else made


def apart(x):
    n = jnp.arange(x.shape[0])
    return n[:, None] - n


def linear(x):
    q, k, v = parts(x)
    return jnp.tril(q @ k.T) @ v


def normalised(x):
    """Linear attention as published: positive features, divided by the sum of the weights."""
    q, k, v = parts(x)
    weights = jnp.tril((jax.nn.elu(q) + 1) @ (jax.nn.elu(k) + 1).T)
    return (weights @ v) / weights.sum(-1, keepdims=True)


def retention(x):
    """A decay for each head, by the distance of the frames."""
    q, k, v = parts(x, heads=True)
    decay = jnp.log(jnp.asarray([0.9, 0.5], x.dtype))[:, None, None]
    decay = jnp.where(apart(x) >= 0, jnp.exp(decay * apart(x).astype(x.dtype)), 0)
    return jnp.einsum("hqk,khd->qhd", jnp.einsum("qhd,khd->hqk", q, k) * decay, v).reshape(x.shape)


def keys_first(x):
    q, k, v = parts(x)
    return (
        (k @ q.T) * jnp.where(apart(x) <= 0, jnp.power(jnp.asarray(0.8, x.dtype), -apart(x).astype(x.dtype)), 0)
    ).T @ v


def powers(x):
    """Powers of numbers that have no logarithm, by the distance of the frames."""
    q, k, v = parts(x)
    base = jnp.asarray([0, -0.9, 0.9, -1], x.dtype)[:, None, None]
    decay = jnp.where(apart(x) >= 0, base ** jnp.maximum(apart(x), 0).astype(x.dtype), 0).sum(0)
    return (q @ k.T * decay) @ v


def gated(x):
    """A decay that depends on the frames, as a difference of running sums."""
    q, k, v = parts(x)
    total = jnp.cumsum(jax.nn.log_sigmoid(x[:, 0]))
    return (q @ k.T * jnp.exp(jnp.where(apart(x) >= 0, total[:, None] - total, -jnp.inf))) @ v


def gated_features(x):
    """Gated linear attention: a decay for each feature."""
    q, k, v = parts(x)
    total = jnp.cumsum(jax.nn.log_sigmoid(x), 0)
    decay = jnp.exp(jnp.where((apart(x) >= 0)[..., None], total[:, None] - total, -jnp.inf))
    return (q[:, None] * k * decay).sum(-1) @ v


def mlstm(x):
    """The matrix memory of xLSTM, with its stabiliser."""
    q, k, v = parts(x, heads=True)
    forget, enter = jnp.cumsum(jax.nn.log_sigmoid(x[:, :HEADS]).T, -1), x[:, HEADS : 2 * HEADS].T
    log = jnp.where(apart(x) >= 0, forget[:, :, None] - forget[:, None] + enter[:, None], -jnp.inf)
    largest = log.max(-1, keepdims=True)
    weights = jnp.einsum("qhd,khd->hqk", q, k) / float(np.sqrt(SIZE)) * jnp.exp(log - largest)
    weights = weights / jnp.maximum(jnp.abs(weights.sum(-1, keepdims=True)), jnp.exp(-largest))
    return jnp.einsum("hqk,khd->qhd", weights, v).reshape(x.shape)


def segments(x, log):
    """Sums of logarithms after each key, ``[..., queries, keys]``, as Mamba-2 writes them."""
    rows = jnp.where(apart(x) > 0, jnp.broadcast_to(log[..., None], (*log.shape, x.shape[0])), 0)
    return jnp.where(apart(x) >= 0, jnp.cumsum(rows, -2), -jnp.inf)


def gates(x):
    """Logarithms of a gate that also opens, closes, and closes so far that float32 loses all digits after it."""
    soft = -jax.nn.softplus(x)
    return jnp.where(x > 0.8, 0, jnp.where(x < -1.2, -jnp.inf, jnp.where(x < -1, -1e6, soft).astype(x.dtype)))


def state_space_duality(x):
    """Mamba-2: a decay by segment sums."""
    c, b, v = parts(x, heads=True)
    decay = jnp.exp(segments(x, gates(x[:, :HEADS]).T))
    return jnp.einsum("lhn,shn,hls,shp->lhp", c, b, decay, v).reshape(x.shape)


def segments_and_keys(x):
    """Segment sums in an exponent with a key part, which is relative to the largest exponent."""
    q, k, v = parts(x)
    return (q @ k.T * jnp.exp(segments(x, gates(x[:, 0])) + x[:, 1])) @ v


def attention_free(x):
    q, k, v = parts(x)
    scores = jnp.where((apart(x) >= 0)[..., None], jnp.broadcast_to(k, (x.shape[0], *k.shape)), -jnp.inf)
    return jax.nn.sigmoid(q) * jnp.einsum("ijd,jd->id", jax.nn.softmax(scores, 1), v)


def rwkv(x):
    """A decay for each feature, keys as exponents, and a bonus for the frame itself."""
    q, k, v = parts(x)
    before = (apart(x) - 1)[..., None]
    rates = jnp.exp(jnp.linspace(-3, 0, WIDTH, dtype=x.dtype))
    weights = jnp.exp(jnp.where(before >= 0, -rates * before.astype(x.dtype) + k, -jnp.inf))
    bonus = jnp.exp(0.3 + k)
    return jax.nn.sigmoid(q) * ((weights * v).sum(1) + bonus * v) / (weights.sum(1) + bonus)


def log_cumulative_sum(x):
    return jax.nn.logsumexp(jnp.where((apart(x) >= 0)[..., None], x[None], -jnp.inf), axis=1)


def mean_so_far(x):
    triangle = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), x.dtype))
    return (triangle / triangle.sum(-1, keepdims=True)) @ x


def squared(x):
    q, k, v = parts(x)
    return jnp.where(apart(x) >= 0, jnp.square(q @ k.T), 0) @ v


def strictly_past(x):
    q, k, v = parts(x)
    return jnp.where(apart(x) > 0, q @ k.T, 0) @ v


def with_look_ahead(x):
    q, k, v = parts(x)
    return jnp.where(apart(x) >= -2, q @ k.T, 0) @ v


def sum_of_two(x):
    """Two scores with decays of their own, added."""
    q, k, v = parts(x)
    d = apart(x).astype(x.dtype)
    return jnp.where(apart(x) >= 0, q @ k.T * jnp.exp(-0.1 * d) + k @ q.T * jnp.exp(-0.5 * d), 0) @ v


def two_layers(x):
    return retention(jnp.tanh(x + gated(x)))


#: Functions, and the sizes of the state beyond the counters, in numbers.
CASES = {
    "linear attention": (linear, 2 * 36),
    "normalised linear attention": (normalised, 2 * 36 + 2 * 6),
    "retention": (retention, 2 * HEADS * SIZE**2),
    "keys first": (keys_first, 2 * 36),
    "gated": (gated, 2 * 36 + 1 + 2),
    "gated features": (gated_features, 2 * 36 + 6 + 2 * 6),
    "mLSTM": (mlstm, HEADS * (2 * (SIZE**2 + SIZE) + 1 + 1 + 1 + 2)),
    "Mamba-2": (state_space_duality, 2 * HEADS * SIZE**2),
    "segments and keys": (segments_and_keys, 2 * 36 + 1),
    "powers": (powers, 8 * 36),
    "attention free": (attention_free, 7 * 6),
    "RWKV": (rwkv, 4 * 6 + 2 * 12),
    "log of a cumulative sum": (log_cumulative_sum, 4 * 6),
    "mean so far": (mean_so_far, 2 * 6 + 2),
    "squared": (squared, 2 * 6 * 36),
    "strictly past": (strictly_past, 2 * 36 + 2 * 6),
    "with look-ahead": (with_look_ahead, 2 * 36 + 2 * 6),
    "sum of two": (sum_of_two, 4 * 36),
    "two layers": (two_layers, 75 + 2 * HEADS * SIZE**2),
}
QUICK = ["keys first", "mLSTM", "Mamba-2", "with look-ahead", "segments and keys", "powers", "RWKV"]


@pytest.mark.parametrize("name", of_tiers(CASES, QUICK[:4], thorough=["RWKV"]))
def test_values(name):
    """Exact in every mixture of pulses, with a state that does not grow."""
    function, size = CASES[name]
    streamed = check_values(function, (20, WIDTH), lengths=(1, 6, 23), chunkings=((1,), (5, 1)), tolerance=2e-5)
    assert sum(np.prod(each.shape) for each in streamed.state if each.kind != "counter") == size
    assert streamed.look_ahead == (2 if name == "with look-ahead" else 0)
    assert streamed.receptive_field is None


@pytest.mark.parametrize("name", of_tiers(CASES, (), thorough=["gated features"]))
def test_gradients(name):
    check_gradients(CASES[name][0], (12, WIDTH), length=7)


@pytest.mark.parametrize(("name", "pulse"), of_tiers(zip(CASES, itertools.cycle((1, 3))), [], [("Mamba-2", 3)]))
def test_exports(name, pulse, tmp_path):
    function = lambda arrays: {"y": CASES[name][0](arrays["x"])}  # noqa: E731
    streamed = jaxrnn.stream(function, {"x": EXAMPLE}, axes=0, pulse=pulse)
    jaxrnn.export_onnx(streamed, None, tmp_path / "step.onnx", flush=tmp_path / "flush.onnx")
    report = verify_export(streamed, None, tmp_path / "step.onnx", offline=function)
    assert report.ok
    assert report.flushed


@pytest.mark.parametrize("dtype", of_tiers([jnp.int8, jnp.bfloat16], (), [jnp.int8]))
def test_products_in_a_wider_type(dtype):
    """Whole numbers are equal to the bit: no part of an element is computed in the narrow type of the frames."""

    def function(x):
        scores = lax.dot(x, x.T, preferred_element_type=jnp.int32 if dtype == jnp.int8 else jnp.float32)
        weights = jnp.where(apart(x) >= 0, scores + jnp.square(scores), 0)
        ones = jnp.where(apart(x) >= 0, jnp.broadcast_to(x[:, 0], scores.shape), 0)
        return weights @ x.astype(scores.dtype), lax.dot(ones, x, preferred_element_type=scores.dtype)

    x = jnp.asarray(RANDOM.integers(-11, 11, (18, 3)), dtype)
    for pulse in (1, 16):
        found = jaxrnn.stream(function, x, axes=0, pulse=pulse).run(None, x)
        jax.tree.map(np.testing.assert_array_equal, found, jax.jit(function)(x))


@pytest.mark.nightly
@pytest.mark.parametrize("name", of_tiers(["retention", "gated", "mLSTM", "attention free"], ["gated"]))
def test_exponents_stay_small(name):
    """Large exponents and long streams do not overflow: the state is relative to the largest exponent."""
    function = lambda x: CASES[name][0](30 * x)  # noqa: E731
    x = np.random.default_rng(1).normal(size=(600, WIDTH)).astype(np.float32)
    expected = np.asarray(function(x))
    assert np.all(np.isfinite(expected))
    for pulse in (1, 300):
        found = jaxrnn.stream(function, EXAMPLE, axes=0, pulse=pulse).run(None, x)
        # A running sum of gates reaches 10,000, whose float32 spacing is 1e-3.
        scale = np.max(np.abs(expected))
        np.testing.assert_allclose(found, expected, atol=(3e-3 if name in ("gated", "mLSTM") else 1e-5) * scale)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", CASES)
def test_errors(name, dtype):
    """The stream is at most twice as far from float64 as the function on the whole recording."""
    function = CASES[name][0]
    x = jnp.asarray(np.random.default_rng(2).normal(size=(200, WIDTH)), dtype)
    with jax.enable_x64(True):
        exact = np.asarray(jax.jit(function)(x.astype(jnp.float64)))

    def error(found):
        return np.sqrt(np.mean((np.asarray(found).astype(np.float64) - exact) ** 2))

    allowed = 2 * error(jax.jit(function)(x)) + jnp.finfo(dtype).eps / 2 * np.sqrt(np.mean(exact**2))
    for pulse in (1, 16, 64):
        assert error(jaxrnn.stream(function, x[:12], axes=0, pulse=pulse).run(None, x)) <= allowed


@pytest.mark.nightly
@pytest.mark.parametrize("decays", [(0, 1e-30, 1e-8, 0.5, 0.9, 0.999, 1), (0.999,), (1,)], ids=str)
@pytest.mark.parametrize(("dtype", "pulse"), [(jnp.float32, 1), (jnp.float32, 100), (jnp.bfloat16, 100)])
def test_many_frames(decays, dtype, pulse):
    """Segment sums keep their digits: 100,000 frames against rows of the matrix in float64.

    Queries and keys are single numbers, so an element has one rounding of a product, and a decay has one of a sum whose
    size is at most 1 where the element counts.
    """

    def function(x):
        q, k, log = x[:, 0], x[:, 1], x[:, 2]
        return (q[:, None] * k * jnp.exp(segments(x, log))) @ x[:, 3:]

    rng, frames = np.random.default_rng(3), 100_000
    x = rng.uniform(0.5, 1, (frames, 5))
    with np.errstate(divide="ignore"):
        x[:, 2] = np.log(rng.choice(decays, frames))
    x = jnp.asarray(x, dtype)
    found = jaxrnn.stream(function, x[:12], axes=0, pulse=pulse).run(None, x)
    exact = np.asarray(x.astype(jnp.float32)).astype(np.float64)
    for last in (1_000, 65_537, frames - 1):
        q, k, log, v = exact[last, 0], exact[: last + 1, 1], exact[1 : last + 1, 2], exact[: last + 1, 3:]
        decay = np.exp(np.append(np.cumsum(log[::-1])[::-1], 0))
        np.testing.assert_allclose(
            np.asarray(found[last], np.float64), q * (k * decay) @ v, rtol=4 * jnp.finfo(dtype).eps
        )


def complex_decays(x, *, of_weights=False):
    """Powers and exponentials of complex numbers, and the real part of each sum."""
    with jax.numpy_dtype_promotion("standard"):
        d, dtype = apart(x), jnp.result_type(x.dtype, jnp.complex64)
        rates = jnp.asarray([-0.1 + 0.2j, -0.3 + 0.5j], dtype)
        power = jnp.where(d >= 0, jnp.power(jnp.asarray(0.9 * np.exp(0.2j), dtype), jnp.maximum(d, 0)), 0)
        decay = jnp.where(d >= 0, jnp.exp(rates[:, None, None] * d), 0)
        sums = jnp.einsum("hij,jd->ihd", decay.real if of_weights else decay, x.astype(dtype))
        return (power @ x.astype(dtype)).real, sums.real


@pytest.mark.parametrize("name", of_tiers(["values", "gradients"], (), ["values"]))
def test_complex_decays(name):
    if name == "values":
        check_values(complex_decays, (20, 3), chunkings=((1,), (4,)))
    else:
        check_gradients(complex_decays, (20, 3))


REFUSED = {
    "the real part of each weight": (
        functools.partial(complex_decays, of_weights=True),
        "'real' .*does not split.*; take the real part of the sum over the keys",
    ),
    "softmax": (
        lambda x: jax.nn.softmax(jnp.where(apart(x) >= 0, x @ x.T, -jnp.inf)) @ x,
        "earlier frames; give `past=64",
    ),
    "a function of the score": (
        lambda x: jnp.tril(jax.nn.gelu(x @ x.T)) @ x,
        "'integer_pow' .* does not split into a query part and a key part",
    ),
    "a distance as a factor": (lambda x: jnp.tril(apart(x).astype(x.dtype) * (x @ x.T)) @ x, "distance .* is a factor"),
    "a curved bias": (
        lambda x: jnp.tril(jnp.exp(-(jnp.square(apart(x)).astype(x.dtype)))) @ x,
        "a bias is not linear in the distance",
    ),
    "chunks of the past": (
        lambda x: jnp.where(apart(x) // 4 * 4 >= jnp.arange(x.shape[0])[:, None] % 4, x @ x.T, 0) @ x,
        "because a mask or bias depends on more than the distance",
    ),
    "a power of a base below 0": (
        lambda x: jnp.tril(np.float32(-0.9) ** (x[:, :1] - x[:, 0])) @ x,
        "base of 'pow' .* may be 0 or negative, and the exponent is not the distance .*; write exp",
    ),
    "such a power, with an exponential": (
        lambda x: (np.float32(-0.9) ** apart(x).astype(x.dtype) * jnp.exp(segments(x, gates(x[:, 0])) + x[:, 1])) @ x,
        "an exponential of both frames is multiplied by a power .*; write exp",
    ),
    "a rounded distance": (
        lambda x: jnp.tril(jnp.exp(-(x[:, :1] - x[:, 0]).astype(jnp.int32).astype(x.dtype))) @ x,
        "'convert_element_type' .* rounds, wraps or overflows the sum",
    ),
    "a rounded quotient": (
        lambda x: jnp.tril((x @ x.T).astype(jnp.int32) // 2).astype(x.dtype) @ x,
        "does not split|rounds, wraps",
    ),
    "a mask of data": (
        lambda x: jnp.where((apart(x) >= 0) & (x[:, :1] > x[:, :1].T), x @ x.T, 0) @ x,
        "'gt' .* does not split",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    """The message names the operation that does not factor."""
    function, words = REFUSED[name]
    check_refused(jaxrnn.StreamError, words, jaxrnn.stream, function, EXAMPLE, axes=0)


def exponential(q, k):
    return jnp.exp(q[:, :1] + k[:, 0])


@st.composite
def forms(draw):
    """A function of a T x T matrix under a causal mask, at random."""
    score = draw(
        st.sampled_from(
            [
                lambda q, k: q @ k.T,
                lambda q, k: (k @ q.T).T,
                lambda q, k: (q[:, None] * k).sum(-1),
                lambda q, k: jnp.square(q @ k.T),
                lambda q, k: q @ k.T + q[:, :1] * k[:, 0],
                exponential,
                lambda q, k: -(q @ k.T) / (1 + jnp.square(k[:, 0])) - q[:, :1],
            ]
        )
    )
    rate = draw(st.sampled_from([0.0, 0.1, 1.0]))
    gate = draw(st.sampled_from(["none", "sum", "key", "both", "segments", "segments and key"]))
    edge = 0 if "segments" in gate else draw(st.integers(-2, 2))
    no_logarithms = () if score is exponential or gate not in ("none", "segments") else (0.0, -0.7, -1.0)
    base = draw(st.sampled_from([1.0, 0.9, *no_logarithms]))
    bias = draw(st.booleans())

    def function(x):
        q, k, v = parts(x)
        d = apart(x)
        log = -rate * d.astype(x.dtype) if rate else jnp.zeros((), x.dtype)
        total = jnp.cumsum(jax.nn.log_sigmoid(x[:, 1]))
        log = log + (total[:, None] - total if gate in ("sum", "both") else 0)
        log = log + (x[:, 2] if gate in ("key", "both", "segments and key") else 0)
        log = log + (segments(x, gates(x[:, 1])) if "segments" in gate else 0)
        weights = score(q, k) * jnp.exp(jnp.where(d >= edge, log, -jnp.inf))
        if base != 1:
            weights = weights * jnp.where(d >= edge, np.float32(base) ** (d - edge).astype(x.dtype), 0)
        out = weights @ v
        return out / (1 + jnp.abs(weights.sum(-1, keepdims=True))) if bias else out

    return function


@pytest.mark.nightly
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(forms(), st.integers(1, 5), st.integers(1, 17))
def test_forms_at_random(function, pulse, length):
    streamed = jaxrnn.stream(function, EXAMPLE, axes=0, pulse=pulse)
    x = np.random.default_rng(length).normal(size=(length, WIDTH)).astype(np.float32)
    expected = np.asarray(function(x))
    scale = max(1.0, np.max(np.abs(expected)))
    np.testing.assert_allclose(streamed.run(None, x), expected, atol=2e-5 * scale)
