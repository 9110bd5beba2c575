"""The verifiers of the tests: each accepts right code, fails on wrong code, and fails where nothing is compared."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts_verifier import check_facts
from lowering_verifier import verify_lowering
from onnx import helper
from small_models import a_little_wrong, graph_of, make_model, operator_replaced
from streaming_verifier import check_gradients, check_values
from verifier import verify

from jaxrnn.export.lowering import RULES
from jaxrnn.streaming import Streamed, stream

X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
SQUASH = make_model(graph_of([helper.make_node("Tanh", ["x"], ["y"])], {"x": ["T", 3]}, {"y": ["T", 3]}))
NOTHING = "nothing is (compared|measured)"


@pytest.mark.nightly
def test_the_verifier_of_models():
    verify(SQUASH, {"x": X}, gradient=["x"])
    for options in ({}, {"eager": False}, {"jit": False}):
        with operator_replaced("Tanh", a_little_wrong), pytest.raises(AssertionError, match="Not equal to tolerance"):
            verify(SQUASH, {"x": X}, **options)
    with pytest.raises(AssertionError, match=NOTHING):
        verify(SQUASH, {"x": np.nan * X})
    verify(SQUASH, {"x": np.nan * X}, something=False)
    with pytest.raises(AssertionError, match=NOTHING):
        verify(SQUASH, {"x": X}, jit=False, eager=False)


def test_the_verifier_of_gradients():
    """A function with the values of Tanh and another derivative."""

    def other_derivative(function):
        return lambda x: function(x) + 1e-3 * (x - jax.lax.stop_gradient(x))

    with operator_replaced("Tanh", other_derivative), pytest.raises(AssertionError):
        verify(SQUASH, {"x": X}, gradient=["x"])


@contextlib.contextmanager
def wrong_flush(change):
    """Inside, the flush of a stream returns what ``change`` makes of outputs and counts."""
    flush = Streamed.flush

    def wrong(self, *arguments, **options):
        outputs, counts = flush(self, *arguments, **options)
        return change(outputs, counts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Streamed, "flush", wrong)
        yield


def look_ahead(x):
    """Two frames of the past and a frame of the future."""
    frames = jnp.pad(x, (2, 1))
    return frames[:-3] - 2 * frames[1:-2] + 3 * frames[2:-1] + frames[3:]


@pytest.mark.nightly
def test_the_verifier_of_streams():
    check_values(look_ahead, (9,))
    for change in (lambda y, count: (1.001 * y, count), lambda y, count: (y, count - 1)):
        with wrong_flush(change), pytest.raises(AssertionError, match=r"pulses \[1\]"):
            check_values(look_ahead, (9,))
    with pytest.raises(AssertionError, match=r"pulses \[1\]"):
        check_values(look_ahead, (9,), reference=lambda x: look_ahead(x) + 1e-3)
    for options in ({"lengths": ()}, {"chunkings": ()}):
        with pytest.raises(AssertionError, match=NOTHING):
            check_values(look_ahead, (9,), **options)
    with pytest.raises(AssertionError, match=NOTHING):
        check_values(lambda x: jnp.log(-1 - x * x), (9,))
    check_values(lambda x: jnp.log(-1 - x * x), (9,), something=False)
    check_gradients(look_ahead, (9,))
    with pytest.raises(AssertionError):
        check_gradients(look_ahead, (9,), reference=lambda x: look_ahead(x) + 1e-3 * x)


def test_the_verifier_of_lowerings(monkeypatch):
    verify_lowering(jnp.exp, X, operators={"Exp": 1})
    with pytest.raises(AssertionError):
        verify_lowering(jnp.exp, X, operators={"Exp": 2})
    with pytest.raises(AssertionError, match=NOTHING):
        verify_lowering(jnp.log, -abs(X))
    verify_lowering(jnp.log, -abs(X), something=False)
    with pytest.raises(AssertionError, match=NOTHING):
        verify_lowering(jnp.exp, X[:0])
    monkeypatch.setitem(RULES, "exp", lambda lowering, equation, x: lowering.writer.node("Tanh", x))
    with pytest.raises(AssertionError):
        verify_lowering(jnp.exp, X)


@pytest.mark.nightly
def test_the_verifier_of_facts():
    streamed = stream(look_ahead, np.zeros(9, np.float32), axes=0)
    check_facts(look_ahead, streamed, larger=False)
    other = stream(lambda x: x + 0 * jnp.pad(x, (1, 0))[:-1], np.zeros(9, np.float32), axes=0)
    with pytest.raises(AssertionError, match=r"said .*, measured"):
        check_facts(look_ahead, other, larger=False)
    with pytest.raises(AssertionError):
        check_facts(look_ahead, other, larger=True)
    with pytest.raises(AssertionError, match=NOTHING):
        check_facts(lambda x: jnp.zeros_like(x), streamed, larger=True)
