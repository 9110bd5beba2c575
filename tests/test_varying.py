"""Inside `jax.shard_map`: values vary over the axes that they should, so that loops, branches and rules fit together.

A mesh of one device has all the types of a larger one. What many devices compute is in `test_sharding.py`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from stream_functions import CASES, DIFFERENTIATED
from tiers import of_tiers

import jaxrnn
from jaxrnn._jax import varying
from jaxrnn.jaxprs.equations import evaluate

#: A rule, or several, that begin with constants: a carry, a mask, a buffer, a branch, a derivative.
QUICK = ("LSTM and its final state", "a forward rule of its own", "branch")


def mesh(*axes):
    return jax.make_mesh((1,) * len(axes), axes, axis_types=(AxisType.Auto,) * len(axes), devices=jax.devices()[:1])


def inside(function, *, axes=("data",), over="data"):
    """The function in a `shard_map` in which its last argument varies over an axis."""

    def call(*arguments):
        specs = (*(P() for _ in arguments[1:]), P(over))
        return jax.shard_map(function, mesh=mesh(*axes), in_specs=specs, out_specs=P(over))(*arguments)

    return call


def floats(tree):
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]


def total(tree):
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in floats(tree))


@pytest.mark.parametrize("name", of_tiers(DIFFERENTIATED, QUICK, thorough=()))
def test_every_rule_of_streams(name):
    """Steps, scans and flushes, and their gradients, are traced: their types are right, or JAX says that they are not.

    A second axis of the mesh, over which nothing varies, appears nowhere.
    """
    case = CASES[name]
    known = {key: value for key, value in case.options.items() if key in ("multiple", "constraints")}
    example = jax.ShapeDtypeStruct((20 * case.options.get("multiple", 1), 3), np.float32)
    weight = jnp.float32(0.7)
    streamed = jaxrnn.stream(
        lambda weight, x: case.function(jnp.tanh(x * weight)), example, axes=0, params=weight, pulse=None, **known
    )

    def loss(weight, x):
        state = streamed.init()
        outputs, state = streamed.step(weight, state, x[: streamed.pulse])
        later, state = streamed.scan(weight, state, x)
        last = streamed.flush(weight, state, x[: streamed.multiple], streamed.multiple).outputs
        over = {varying.axes_of(leaf) for leaf in floats((outputs, later, state, last))}
        assert over == {frozenset({"data"})}
        return total((outputs, later, last))

    def gradient(weight, x):
        value, (of_weight, of_x) = jax.value_and_grad(loss, (0, 1))(weight, x)
        assert not varying.axes_of(of_weight)
        return of_x + value

    x = jax.ShapeDtypeStruct((2 * streamed.pulse, 3), np.float32)
    jax.eval_shape(inside(gradient, axes=("other", "data") if name in QUICK else ("data",)), weight, x)


@jax.custom_jvp
def doubled(x, weight):
    return 2 * jnp.maximum(x, 0) * weight


@doubled.defjvp
def _(primals, tangents):
    x, weight = primals
    return doubled(x, weight), 3 * jnp.maximum(x, 0.1) * tangents[0] * weight + tangents[1]


@jax.custom_vjp
def halved(x, weight):
    return jnp.maximum(x, 0) * weight / 2


halved.defvjp(
    lambda x, weight: (halved(x, weight), (x, weight)),
    lambda kept, cotangent: (jnp.where(kept[0] > 0.0, cotangent * kept[1], 0.0), jnp.sum(cotangent) * 5),
)


def looped(weight, x):
    """A scan around a loop, a branch and rules, all of which begin with constants and read what varies and what not."""

    def step(carry, frame):
        count, h = carry
        h = lax.cond(frame.sum() > 0, lambda: jnp.zeros(3), lambda: jnp.tanh(h * weight) + frame)
        h = lax.fori_loop(0, 2, lambda _, value: jax.nn.relu(value) * weight + 1, h)
        return (count + 1, doubled(h, weight) + halved(h, 2.0)), h

    (count, h), ys = lax.scan(step, (jnp.int32(0), jnp.zeros(3)), x)
    return count, h, ys


FUNCTIONS = {
    "loops": looped,
    "a loop by data": lambda weight, x: lax.while_loop(
        lambda state: state[1] < 3 + x[0, 0], lambda state: (state[0] * 1.5, state[1] + 1), (weight, 0.0)
    ),
    "a branch of constants": lambda weight, x: lax.switch(
        (x[0, 0] > 0).astype(jnp.int32), [lambda: jnp.ones(2), lambda: jnp.zeros(2)]
    ),
    "rules": lambda weight, x: (doubled(x, weight), halved(x, weight), jax.nn.gelu(x), jax.nn.relu(weight)),
    "calls": lambda weight, x: jax.checkpoint(jax.jit(lambda a: lax.clamp(0.0, a * weight, 1.0)))(x),
    "equations": lambda weight, x: jnp.linalg.solve(jnp.eye(3) + weight, x[0]),
    "platforms": lambda weight, x: lax.platform_dependent(x, cpu=jnp.sin, default=lambda x: jnp.sin(x) + 0.0),
    "weights that are looped over": lambda weight, x: lax.scan(
        lambda h, w: (jax.nn.relu(h @ w), h), x, weight * jnp.ones((2, 3, 3))
    ),
    "sums and places": lambda weight, x: jnp.zeros((4, 3)).at[jnp.argsort(x[:, 0])].add(x).cumsum(0) * weight,
}

#: Those with a derivative in each mode: a loop by data has none in reverse, and a rule for reverse none forwards.
FORWARD = set(FUNCTIONS) - {"loops", "rules"}
REVERSE = set(FUNCTIONS) - {"a loop by data"}


LATER = ("equations", "loops", "rules", "sums and places", "weights that are looped over")


@pytest.mark.parametrize(
    ("name", "traced"),
    # JAX itself refuses to trace these loops where their frames vary.
    of_tiers(
        [(name, each) for name in FUNCTIONS for each in ("outside", "inside") if (name, each) != ("loops", "inside")],
        [*((name, "outside") for name in FUNCTIONS if name not in LATER), ("rules", "inside")],
        [("loops", "outside"), ("weights that are looped over", "inside")],
    ),
)
def test_a_traced_function_on_values_that_vary(name, traced):
    """A jaxpr's equations run where other values vary than in the trace: values, derivatives and types are right."""
    function = FUNCTIONS[name]
    weight, x = jnp.float32(0.7), jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)
    closed = jax.make_jaxpr(function)(weight, x)

    def run(weight, x):
        jaxpr = closed if traced == "outside" else jax.make_jaxpr(function)(*varying.alike(weight, x))
        results = evaluate(jaxpr, [weight, x])
        assert {varying.axes_of(result) for result in results} <= {frozenset({"data"}), varying.axes_of(weight)}
        return total(results)

    if name in FORWARD:
        plain = lambda *arguments: jax.jvp(lambda *x: total(function(*x)), arguments, arguments)  # noqa: E731
        expected = jax.jit(plain)(weight, x)
        found = jax.jit(inside(lambda *arguments: jnp.stack(jax.jvp(run, arguments, arguments))[None]))(weight, x)[0]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    if name in REVERSE:
        wanted = jax.jit(jax.grad(lambda *arguments: total(function(*arguments)), (0, 1)))(weight, x)

        def gradient(weight, x):
            of_weight, of_x = jax.grad(run, (0, 1))(weight, x)
            assert not varying.axes_of(of_weight)
            return of_x, of_weight[None]

        of_x, of_weight = jax.jit(inside(gradient))(weight, x)
        np.testing.assert_allclose(of_weight[0], wanted[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(of_x, wanted[1], rtol=1e-5, atol=1e-6)
