"""Modules of Flax NNX, linen and Equinox under `stream`: as they are where they can be, else what to write instead."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from tiers import of_tiers

import jaxrnn

X = jax.random.normal(jax.random.key(0), (1, 9, 3))


class Tied(nnx.Module):
    """Two layers that share a weight, a count of the calls that the second reads, running statistics and dropout."""

    def __init__(self, *, rngs):
        self.first, self.second = nnx.Linear(3, 3, rngs=rngs), nnx.Linear(3, 3, rngs=rngs)
        self.second.kernel = self.first.kernel
        self.norm, self.dropout = nnx.BatchNorm(3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.recurrent = nnx.RNN(nnx.GRUCell(3, 4, rngs=rngs))
        count = nnx.Variable(jnp.zeros(()))
        self.counts = nnx.List([count, count])

    def __call__(self, x):
        return self.recurrent(self.count(self.norm(self.first(x))))

    def count(self, x):
        self.counts[0].set_value(self.counts[0].get_value() + 1)
        return self.dropout(self.second(x)) * self.counts[1].get_value()


class Recurrent(eqx.Module):
    """A GRU and a small network of each frame; the frames come first."""

    cell: eqx.nn.GRUCell
    output: eqx.nn.MLP

    def __init__(self, key):
        self.cell = eqx.nn.GRUCell(3, 4, key=key)
        self.output = eqx.nn.MLP(4, 2, 5, 1, key=key)

    def __call__(self, x):
        def step(h, frame):
            h = self.cell(frame, h)
            return h, self.output(h)

        return jax.lax.scan(step, jnp.zeros(4), x)[1]


def check(function, whole, x=X, axis=1, **options):
    """Stream and compare with the function on the whole recording."""
    streamed = jaxrnn.stream(function, x, axes=axis, pulse=2, **options)
    found = jax.jit(streamed.run)(options.get("params"), x)
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def tied():
    module = Tied(rngs=nnx.Rngs(0))
    module.eval()
    return module


@pytest.mark.thorough
def test_an_nnx_module_as_it_is(tied):
    """Its counters move in a copy, whose parts share what they share in the module; the module stays as it is."""
    before = jax.tree.map(np.array, nnx.to_pure_dict(nnx.state(tied, nnx.Not(nnx.RngState))))
    expected = nnx.clone(tied)(X)
    check(tied, expected)
    after = nnx.to_pure_dict(nnx.state(tied, nnx.Not(nnx.RngState)))
    jax.tree.map(np.testing.assert_array_equal, after, before)


@pytest.mark.parametrize("how", of_tiers(["method", "partial", "params"], ["params"]))
def test_parts_of_an_nnx_module(tied, how):
    expected = nnx.clone(tied).recurrent(X)
    if how == "params":
        check(lambda module, x: module(x), expected, params=tied.recurrent)
    else:
        part = tied.recurrent.__call__ if how == "method" else functools.partial(tied.recurrent, return_carry=False)
        check(part, expected)


def test_what_to_write_for_a_module_that_is_closed_over(tied):
    """Followed to the letter."""
    function = lambda x: tied(x)  # noqa: E731
    for each in (function, nnx.jit(tied)):
        with pytest.raises(jaxrnn.StreamError, match=r"changes an NNX module that was made outside of it") as caught:
            jaxrnn.stream(each, X, axes=1)
    text = str(caught.value)
    assert "http" not in text
    assert "jaxrnn.stream(module, ...)" in text
    split, merge = "graph, params, rest = nnx.split(module, nnx.Param, ...)", "lambda params, x: "
    assert split in text
    function = text[text.index(merge) : text.index(", ..., params=params)")]
    names = {"nnx": nnx, "module": tied}
    exec(split, names)
    check(eval(function, names), nnx.clone(tied)(X), params=names["params"])


@pytest.mark.thorough
def test_linen():
    module = linen.RNN(linen.GRUCell(4))
    variables = module.init(jax.random.key(1), X)
    expected = module.apply(variables, X)
    check(module.apply, expected, params=variables)
    for params in (None, variables):
        with pytest.raises(jaxrnn.StreamError, match=r"RNN has no parameters.*stream\(module\.apply, .*params=var"):
            jaxrnn.stream(module, X, axes=1, params=params)
    assert jaxrnn.stream(module.bind(variables), X, axes=1).delay == 0


def test_equinox():
    """As it is; as parameters, once its functions are taken out, which the refusal says how to do."""
    module, x = Recurrent(jax.random.key(2)), X[0]
    expected = module(x)
    check(module, expected, x, 0)
    with pytest.raises(jaxrnn.StreamError, match=r"params\.output\.activation is a .*eqx\.partition\(module, eqx\.is_"):
        jaxrnn.stream(lambda module, x: module(x), x, axes=0, params=module)
    arrays, static = eqx.partition(module, eqx.is_array)
    check(lambda arrays, x: eqx.combine(arrays, static)(x), expected, x, 0, params=arrays)
