"""Streams of functions that keep values between calls: right or refused, and the function works as before."""

import functools
import types
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import check_refused

import jaxrnn
from jaxrnn.streaming import check

X = jax.ShapeDtypeStruct((20,), jnp.float32)
KNOWN = {}
MODULE = types.ModuleType("positions")
vars(MODULE)["known"] = {}


def grown(known, frames):
    """Return positions from a cache that grows."""
    if "positions" not in known or known["positions"].shape[0] < frames:
        known["positions"] = jnp.arange(frames, dtype=jnp.float32)
    return known["positions"][:frames]


class Positions:
    def __init__(self):
        self.known = None

    def __call__(self, x):
        if self.known is None:
            self.known = jnp.arange(x.shape[0], dtype=jnp.float32)
        return x + self.known


class Slots:
    """Values that `stream` does not see."""

    __slots__ = ("known",)

    def __init__(self):
        self.known = None

    def __call__(self, x):
        if self.known is None:
            self.known = jnp.arange(3.0)
        return x + self.known[1]


@functools.cache
def window(size):
    return jnp.arange(size, dtype=jnp.float32)


@functools.lru_cache
def bounded(size):
    return {"window": jnp.arange(size, dtype=jnp.float32)}


@functools.cache
def table(frames):
    return np.arange(frames, dtype=np.float32)


def in_closure():
    known = {}
    return lambda x: x + grown(known, x.shape[0])


FUNCTIONS = {
    "an attribute": (Positions(), lambda x: x + np.arange(len(x))),
    "a closure": (in_closure(), lambda x: x + np.arange(len(x))),
    "a global variable": (lambda x: x + grown(KNOWN, x.shape[0]), lambda x: x + np.arange(len(x))),
    "a variable of a module": (lambda x: x + grown(MODULE.known, x.shape[0]), lambda x: x + np.arange(len(x))),
    "functools.cache": (lambda x: x * window(3)[2], lambda x: 2 * x),
    "functools.lru_cache": (lambda x: x * bounded(3)["window"][2], lambda x: 2 * x),
    "a partial": (
        functools.partial(lambda known, x: x + grown(known, x.shape[0]), {}),
        lambda x: x + np.arange(len(x)),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_caches(name):
    """No trace reads what another trace has left, and no tracer stays in a cache."""
    function, expected = FUNCTIONS[name]
    for _ in range(2):
        streamed = jaxrnn.stream(function, X, axes=0, pulse=2)
        for frames in (1, 7, 40):
            x = np.linspace(0, 1, frames, dtype=np.float32)
            np.testing.assert_allclose(streamed.run(None, x), expected(x), rtol=1e-6)
    x = np.ones(9, np.float32)
    np.testing.assert_allclose(function(x), expected(x), rtol=1e-6)


def test_what_calls_have_left():
    """A table of earlier calls bounds the length, and a cache by length is refused; other values are constants."""
    function = Positions()
    function(jnp.zeros(30))
    check_refused(jaxrnn.StreamError, "S <= 30", jaxrnn.stream, lambda x: x + function.known[: x.shape[0]], X, axes=0)
    for by_length in (lambda x: x + table(x.shape[0]), lambda x: x + KNOWN.setdefault(x.shape[0], 1)):
        words = "the size 'S' is looked up in a dict or set"
        check_refused(jaxrnn.StreamError, words, jaxrnn.stream, by_length, X, axes=0)
    window(4)
    streamed = jaxrnn.stream(lambda x: x * window(4)[3], X, axes=0)
    assert window.cache_info().currsize
    np.testing.assert_array_equal(streamed.run(None, np.ones(5, np.float32)), 3 * np.ones(5))


def test_what_cannot_be_seen():
    """A tracer that stays in an unseen cache is one error."""
    function = Slots()
    for _ in range(2):
        check_refused(
            jaxrnn.StreamError, "keeps a value from one call for the next", jaxrnn.stream, function, X, axes=0
        )


def test_values_that_are_no_tracers_stay():
    """A note of a function about its calls stays."""
    seen = []

    def noted(x):
        seen.append(x.ndim)
        return 2 * x

    jaxrnn.stream(noted, X, axes=0)
    assert seen
    assert {*seen} == {1}


class Computed(OrderedDict):
    """A table of classes, of which reading an entry makes an object, as in transformers."""

    def __getitem__(self, name):
        raise AssertionError("the entry was read")


def test_entries_that_a_table_computes_are_not_read():
    table = Computed(tanh=jnp.tanh)

    def function(x):
        return dict.get(table, "tanh")(x)

    check(function, np.ones(20, np.float32), axes=0, lengths=(5,))
    assert list(table) == ["tanh"]
