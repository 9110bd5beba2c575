"""A second stream of the same function: the plan of the first, unless something has changed."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_models import layers_model

import jaxrnn
from jaxrnn.jaxprs.held import Held
from jaxrnn.streaming.interpreter import observe

X = jax.ShapeDtypeStruct((10, 3), jnp.float32)
DATA = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)


@pytest.fixture
def comparisons(monkeypatch):
    """The number of plans that are compared with single lengths."""
    from jaxrnn.streaming import transform

    found, compare = [], transform._Offline.compare
    monkeypatch.setattr(transform._Offline, "compare", lambda *args: (found.append(1), compare(*args))[1])
    return found


def test_the_same_function_is_planned_once(comparisons):
    scale = [2.0]

    def function(x):
        return jnp.cumsum(x, axis=0) * scale[0]

    first, second = (jaxrnn.stream(function, X, axes=0, pulse=pulse) for pulse in (1, 4))
    assert second._plan is first._plan
    assert (first.pulse, second.pulse, len(comparisons)) == (1, 4, 1)
    np.testing.assert_allclose(second.run(None, DATA), function(DATA), atol=5e-6)
    scale[0] = 3.0  # the function closes over a value that changes
    third = jaxrnn.stream(function, X, axes=0, pulse=1)
    np.testing.assert_allclose(third.run(None, DATA), function(DATA), atol=5e-6)
    assert jaxrnn.stream(function, X, axes=0, multiple=2)._plan is not third._plan
    assert jaxrnn.stream(function, X, axes=0, constraints=["S >= 3"])._plan is not third._plan
    wide = jaxrnn.stream(function, jax.ShapeDtypeStruct((10, 5), jnp.float32), axes=0)
    assert wide.run(None, np.ones((4, 5), np.float32)).shape == (4, 5)
    with jax.enable_x64(True):
        assert jaxrnn.stream(function, X, axes=0)._plan is not third._plan


def test_another_callback_of_the_same_name_is_planned_again():
    scale = [2.0]

    def function(params, x):
        factor = scale[0]

        def scaled(value):
            return np.asarray(value * factor, np.float32)

        return x * jax.pure_callback(scaled, jax.ShapeDtypeStruct((), jnp.float32), params)

    for factor in (2.0, 3.0):
        scale[0] = factor
        streamed = jaxrnn.stream(function, X, axes=0, params=jnp.float32(1))
        np.testing.assert_allclose(streamed.run(jnp.float32(5), DATA), 5 * factor * DATA, rtol=1e-5)


def test_a_trained_module_is_planned_again():
    layer = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    before = jaxrnn.stream(layer, X, axes=0)
    layer.kernel[...] = 2 * layer.kernel[...]
    after = jaxrnn.stream(layer, X, axes=0)
    np.testing.assert_allclose(after.run(None, DATA), 2 * before.run(None, DATA), rtol=1e-5)
    old = layer.kernel[...]
    layer.kernel[...] = old + 0
    old.delete()  # as a donation to an update does
    assert jaxrnn.stream(layer, X, axes=0).run(None, DATA).shape == (7, 2)


def test_a_traced_value_is_not_kept(comparisons):
    def scaled(x):
        return x * factor[0]

    factor = [None]

    def streamed(value):
        factor[0] = value
        return jaxrnn.stream(scaled, X, axes=0).run(None, DATA).sum()

    np.testing.assert_allclose(jax.grad(streamed)(2.0), DATA.sum(), rtol=1e-4)
    np.testing.assert_allclose(jax.grad(streamed)(2.0), DATA.sum(), rtol=1e-4)
    assert len(comparisons) == 2


def test_an_observer_sees_the_work_again():
    jaxrnn.stream(jnp.tanh, X, axes=0)
    with observe() as values:
        jaxrnn.stream(jnp.tanh, X, axes=0)
    assert values


def test_a_model_is_planned_once_and_freed(comparisons):
    model = jaxrnn.load(layers_model())
    first, second = (model.stream(pulse=pulse) for pulse in (1, 2))
    assert second._plan is first._plan
    assert len(comparisons) == 1
    gone = weakref.ref(model)
    del model, first, second
    gc.collect()
    assert gone() is None


def test_an_assertion_does_not_lead_to_pytest():
    """The code of an `assert` that pytest has rewritten names a module of pytest, which leads to all tests."""

    def function(x):
        assert len(x.shape) == 2
        return x

    reached = Held({"": function})._seen.values()
    assert any(each is function for each in reached)
    assert [each for each in reached if type(each).__module__.startswith(("_pytest", "pluggy"))] == []
