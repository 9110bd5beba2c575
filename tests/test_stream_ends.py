"""Values known at the end that read other values known at the end: variances, softmax-weighted means, places."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported_files import check_exported
from onnx import helper
from refusals import check_refused
from small_models import graph_of, make_model
from streaming_verifier import check_gradients, check_values
from tiers import of_tiers

import jaxrnn

CHANNELS = 4
X = jax.ShapeDtypeStruct((20, CHANNELS), np.float32)


def attended(x):
    """Mean and deviation weighted by a softmax over time, as ECAPA-TDNN pools."""
    weights = jax.nn.softmax(3 * x, 0)
    mean = jnp.sum(weights * x, 0)
    variance = jnp.sum(weights * (x - mean) ** 2, 0)
    return jnp.concatenate([mean, jnp.sqrt(jnp.maximum(variance, 1e-5))])


def entropy(x):
    return -jnp.sum(jax.nn.softmax(x, 0) * jax.nn.log_softmax(x, 0), 0)


def skewness(x):
    return jnp.mean(((x - x.mean(0)) / (x.std(0) + 1)) ** 3, 0)


def grouped(x):
    """Covariances of two groups of channels."""
    return jnp.mean(x[:, 0] * x[:, 1, ::-1], 0)


CASES = {
    "logsumexp": lambda x: jax.nn.logsumexp(x, 0),
    "variance": lambda x: jnp.var(x, 0),
    "variance over all axes": lambda x: jnp.var(x),
    "variance of another rate": lambda x: jnp.var(jnp.pad(x, ((3, 2), (0, 0)))[::2], 0),
    "deviation": lambda x: jnp.sqrt(jnp.var(x.T, axis=1, keepdims=True) + 0.1),
    "variance of repeated frames": lambda x: jnp.var(jnp.pad(x, ((2, 1), (0, 0)), mode="edge"), 0),
    "moments of several frames": lambda x: jnp.var(x.reshape(-1, 2, 2), axis=(0, 2)),
    "skewness": skewness,
    "covariance": lambda x: (x - x.mean(0)).T @ (x - x.mean(0)) / x.shape[0],
    "weighted mean": lambda x: jnp.sum(jax.nn.softmax(jnp.tanh(x[:, :1]) / 0.1, 0) * x, 0),
    "weighted mean as a product": lambda x: jax.nn.softmax(x[:, 0]) @ x,
    "heads of attention": lambda x: jnp.einsum("th,td->hd", jax.nn.softmax(x[:, :2], 0), x),
    "weighted deviation": attended,
    "entropy": entropy,
    "slices of channels": lambda x: jnp.mean((x - x.mean(0))[:, :2] ** 2 * x[:, 2:], 0),
    "chosen channels": lambda x: jnp.mean(jnp.take(x - x.mean(0), jnp.array([2, 0, 1]), axis=1)[:, ::-1] ** 3, 0),
    "parts of channels": lambda x: jnp.mean(functools.reduce(jnp.multiply, jnp.split(x - x.mean(0), 2, 1)), 0),
    "groups of channels": lambda x: grouped((x - x.mean(0)).reshape(-1, 2, 2)),
}
MULTIPLES = {"variance of another rate": 2}
QUICK = ["logsumexp", "weighted deviation", "covariance", "variance of another rate", "variance of repeated frames"]
QUICK += ["chosen channels", "groups of channels"]


@pytest.mark.parametrize("name", of_tiers(CASES, QUICK[::4], QUICK[1:3]))
def test_values(name):
    check_values(CASES[name], (20, CHANNELS), multiple=MULTIPLES.get(name, 1), tolerance=3e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", of_tiers(CASES, ["weighted deviation"], thorough=()))
def test_gradients(name):
    check_gradients(CASES[name], (20, CHANNELS), multiple=MULTIPLES.get(name, 1))


@pytest.mark.parametrize("name", of_tiers(CASES, ["heads of attention"], thorough=["weighted deviation"]))
def test_files(name, tmp_path):
    check_exported(CASES[name], X.shape, tmp_path, multiple=MULTIPLES.get(name, 1), tolerance=3e-5)


# -- values that cancel


def running(x, moved, axis=0):
    """A running logsumexp of frames that are moved by a value, as PyTorch exports it."""
    return jnp.log(jnp.cumsum(jnp.exp(x - moved), axis)) + moved


def steep(x, largest):
    return jnp.log(jnp.cumsum(jnp.exp(3 * (x - largest)), 0)) / 3 + largest


def there_and_back(x, mean):
    return jnp.tanh(x - mean + mean)


def causal_weights(x):
    weights = jnp.exp(2 * (x - jnp.max(x, 0)))
    return weights / jnp.cumsum(weights, 0)


CANCELLED = {
    "running logsumexp": lambda x: running(x, x.max(0, keepdims=True)),
    "maximum over all axes": lambda x: running(x, x.max()),
    "along the last axis": lambda x: running(x.T, x.max(0)[:, None], 1).T,
    "steep": lambda x: steep(x, x.max(0)),
    "causal weights": causal_weights,
    "there and back": lambda x: there_and_back(x, x.mean(0)),
    "equal reductions": lambda x: jnp.log(jnp.cumsum(jnp.exp(x - x.max(0)), 0)) + x.max(0),
}


@pytest.mark.parametrize("name", of_tiers(CANCELLED, [], ["steep"]))
def test_values_that_cancel(name, tmp_path):
    """A value that is known at the end, added and subtracted again."""
    check_values(CANCELLED[name], (20, CHANNELS))
    check_gradients(CANCELLED[name], (20, CHANNELS))
    check_exported(CANCELLED[name], X.shape, tmp_path)


# -- places

PLACES = {
    "largest": lambda x: jnp.argmax(x, 0),
    "smallest, padded": lambda x: jnp.argmin(jnp.pad(x, ((2, 1), (0, 0))), 0),
    "ties": lambda x: jnp.argmax(jnp.round(x).astype(jnp.int32), 0),
    "flags": lambda x: jnp.argmin(x > 0, 0),
    "minus infinity": lambda x: jnp.argmax(jnp.where(x > 1.5, x, -jnp.inf), 0),
    "not a number": lambda x: jnp.argmax(jnp.where(x > 0.5, jnp.nan, x), 0),
    "delayed": lambda x: jnp.argmax(jnp.concatenate([x[1:], x[:1]]), 0),
}


@pytest.mark.parametrize("name", of_tiers(PLACES, ["minus infinity", "smallest, padded"], thorough=()))
def test_places(name, tmp_path):
    check_values(PLACES[name], (20, CHANNELS))
    check_exported(PLACES[name], X.shape, tmp_path, lengths=(1, 4, 7))


# -- accuracy

RECORDINGS = {
    "offset": lambda rng, t: 1e4 + rng.normal(size=t.shape),
    "rising": lambda rng, t: t / 100 + rng.normal(size=t.shape),
    "falling": lambda rng, t: 50 - t / 100 + rng.normal(size=t.shape),
    "step": lambda rng, t: np.where(t < 5000, 1e5, 0) + rng.normal(size=t.shape),
}


@functools.cache
def ends(pulse):
    def function(x):
        return jnp.std(x, 0), jax.nn.logsumexp(x, 0), jnp.sum(jax.nn.softmax(x, 0) * x, 0), attended(x / 100)

    streamed = jaxrnn.stream(function, X, axes=0, pulse=pulse)
    return function, jax.jit(functools.partial(streamed.run, None))


@pytest.mark.nightly
@pytest.mark.parametrize("pulse", of_tiers([1, 160], [160]))
@pytest.mark.parametrize("name", of_tiers(RECORDINGS, [*RECORDINGS][:2]))
def test_accuracy(name, pulse):
    """As accurate as two passes in float32, against float64."""
    times = np.broadcast_to(np.arange(10000)[:, None], (10000, CHANNELS))
    x = RECORDINGS[name](np.random.default_rng(0), times).astype(np.float32)
    function, run = ends(pulse)
    with jax.enable_x64(True):
        expected = jax.tree.map(np.asarray, function(jnp.asarray(x, jnp.float64)))
    for found, offline, exact in zip(run(x), jax.jit(function)(x), expected, strict=True):
        scale = np.abs(exact)
        error, usual = (np.max(np.abs(np.asarray(each) - exact) / scale) for each in (found, offline))
        assert error <= max(1e-6, 8 * usual)


@pytest.mark.parametrize("name", RECORDINGS)
def test_accuracy_of_a_running_logsumexp(name):
    """Against float64, also if frames lie so far below the maximum that their exponentials are 0."""
    times = np.broadcast_to(np.arange(10000)[:, None], (10000, CHANNELS))
    x = RECORDINGS[name](np.random.default_rng(0), times).astype(np.float32)
    streamed = jaxrnn.stream(CANCELLED["running logsumexp"], X, axes=0, pulse=100)
    exact = np.logaddexp.accumulate(x.astype(np.float64))
    np.testing.assert_allclose(jax.jit(streamed.run)(None, x), exact, rtol=1e-6)


SWINGS = np.stack([np.linspace(-1, 1, 10), np.repeat([100.0, -100.0], 5)], 1).astype(np.float32)
#: Functions, and recordings in which a final value goes far and comes back.
EXCURSIONS = {
    "mean, up": (lambda x: jnp.sum(jnp.exp(x[:, 0] - jnp.mean(x[:, 1]))), SWINGS),
    "mean, down": (lambda x: jnp.sum(jnp.exp(x[:, 0] - jnp.mean(x[:, 1]))), SWINGS * [1, -1]),
    "logsumexp": (lambda x: jnp.sum(jnp.exp(x[:, 0] - jax.nn.logsumexp(x[:, 1]))), SWINGS * [1, -1]),
    "power": (lambda x: jnp.mean((x[:, 0] - jnp.mean(x[:, 1])) ** 4), SWINGS * [1, 100]),
    "weighted power": (lambda x: jnp.sum(jax.nn.softmax(x[:, 0]) * (x[:, 0] - x[-1, 0]) ** 2), SWINGS[:, ::-1] + 3),
    "a shift of all frames": (lambda x: jnp.var(jnp.pad(x, ((2, 1), (0, 0)), mode="edge")), SWINGS / 100 + 1e4),
    "squares near the largest float": (lambda x: jnp.var(x), np.full((2, 2), 2e19)),
}


@pytest.mark.parametrize("pulse", of_tiers([1, 3], [3], thorough=()))
@pytest.mark.parametrize("name", of_tiers(EXCURSIONS, (), ["mean, down"]))
def test_excursions_of_a_final_value(name, pulse):
    """The result does not depend on the way of a final value to the end."""
    function, x = EXCURSIONS[name]
    x = jnp.asarray(x, jnp.float32)
    streamed = jaxrnn.stream(function, x, axes=0, pulse=pulse)
    found, gradient = jax.jit(jax.value_and_grad(functools.partial(streamed.run, None)))(x)
    with jax.enable_x64(True):
        expected, exact = jax.value_and_grad(function)(jnp.asarray(x, jnp.float64))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-30)
    np.testing.assert_allclose(gradient, exact, rtol=1e-3, atol=1e-3 * np.max(np.abs(exact)) + 1e-30)


def test_squares_that_overflow():
    """Variances are infinite, as offline; an infinite frame has no mean."""
    frames = [[1e25, 1, 3e38, 1], [-3e25, -1e20, 3e38, np.inf], [2e25, 1e30, 3e38, 2], [0, 3, 2e38, 1]]
    x = np.array(frames, np.float32)
    function = lambda x: (x.var(0), x.std(0))  # noqa: E731
    streamed = jaxrnn.stream(function, jax.ShapeDtypeStruct((20, 4), np.float32), axes=0, pulse=3)
    for found, expected in zip(streamed.run(None, x), jax.jit(function)(x), strict=True):
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(found, [np.inf, np.inf, np.inf, np.nan])


def test_sums_without_drift():
    """The state of a variance stays exact over many frames."""
    streamed = jaxrnn.stream(lambda x: jnp.var(x), jnp.zeros(8, jnp.float32), axes=0, pulse=1)
    assert sorted(entry.kind for entry in streamed.state) == sorted(
        ["counter", "counter", "counter", "base", "base", *["remainder"] * 4, *["total"] * 4]
    )


# -- files of ONNX


@pytest.mark.thorough
@pytest.mark.parametrize("opset", [17])
def test_a_pooling_of_onnx(opset):
    """ReduceMean, Sub, Mul, ReduceMean, Sqrt, and Softmax over time with a weighted sum, time in the last axis."""
    node = helper.make_node
    nodes = [
        node("ReduceMean", ["x"], ["mean"], axes=[2], keepdims=1),
        node("Sub", ["x", "mean"], ["centred"]),
        node("Mul", ["centred", "centred"], ["squares"]),
        node("ReduceMean", ["squares"], ["variance"], axes=[2], keepdims=0),
        node("Sqrt", ["variance"], ["deviation"]),
        node("Softmax", ["x"], ["weights"], axis=2),
        node("Mul", ["weights", "x"], ["weighted"]),
        node("ReduceSum", ["weighted", "axes"], ["pooled"], keepdims=0),
    ]
    outputs = {"deviation": [1, 3], "pooled": [1, 3]}
    graph = graph_of(nodes, {"x": [1, 3, "T"]}, outputs, {"axes": np.array([2])}, "pooling")
    model = jaxrnn.load(make_model(graph, opset=opset))
    x = {"x": np.random.default_rng(0).normal(3, 1, (1, 3, 17)).astype(np.float32)}
    found, expected = model.stream("T", pulse=4).run(model.params, x), model.apply(model.params, x)
    for name in ("deviation", "pooled"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)


@pytest.mark.thorough
def test_a_running_logsumexp_of_pytorch():
    """ReduceMax, Sub, Exp, CumSum, Log and Add, as PyTorch's exporter writes `torch.logcumsumexp`."""
    node = helper.make_node
    nodes = [
        node("ReduceMax", ["x", "axis"], ["largest"], keepdims=1),
        node("Sub", ["x", "largest"], ["moved"]),
        node("Exp", ["moved"], ["weights"]),
        node("CumSum", ["weights", "axis"], ["running"]),
        node("Log", ["running"], ["logarithm"]),
        node("Add", ["logarithm", "largest"], ["y"]),
    ]
    shape = [1, "T", 3]
    graph = graph_of(nodes, {"x": shape}, {"y": shape}, {"axis": np.array([1])}, "running")
    model = jaxrnn.load(make_model(graph, opset=18))
    x = {"x": np.random.default_rng(0).normal(3, 1, (1, 17, 3)).astype(np.float32)}
    streamed = model.stream("T", pulse=4)
    assert streamed.delay == {"y": 0}
    found, expected = streamed.run(model.params, x), model.apply(model.params, x)
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-6)


# -- refusals

REFUSED = {
    "a centred stream": lambda x: x - x.mean(0),
    "a sum of another function": lambda x: jnp.sum(jnp.abs(x - x.mean(0)), 0),
    "a maximum": lambda x: jnp.max(jnp.abs(x - x.mean(0)), 0),
    "a running sum": lambda x: jnp.cumsum(x / x.max(0), 0),
    "a clipped stream": lambda x: jnp.sum(jnp.clip(x - x.mean(0), -1, 1), 0),
    "a running logsumexp moved by two values": lambda x: running(x, x.max(0)) - x.max(0) + x.max(0)[::-1],
    "a variance of products": lambda x: jnp.var((x - x.mean(0)) * x, 0),
    "a quotient": lambda x: jnp.sum(1 / (x - x.mean(0)), 0),
    "too many moments": lambda x: jnp.mean((x - x.mean(0)) ** 20, 0),
    "an infinite power": lambda x: jnp.sum(jnp.power(x - x.mean(0), np.inf), 0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    check_refused(jaxrnn.StreamError, "known only when the stream has ended", jaxrnn.stream, REFUSED[name], X, axes=0)
