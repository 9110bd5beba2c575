"""Branches and loops written as ONNX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from lowering_verifier import lowered, operators_of, verify_lowering
from tiers import of_tiers

from jaxrnn.errors import UnsupportedError

WEIGHT = np.float32(np.random.default_rng(0).normal(size=(3, 3)))


@pytest.mark.parametrize("which", of_tiers([-3, 0, 1, 2, 7], quick=[1, 7]))
def test_branches(which):
    """Of two by a condition, of several by a number, one inside of another; they read what is around them."""

    def function(i, x):
        y = x * 2
        two = lax.cond(i > 0, lambda x: (x + y, y.sum()), lambda x: (x, jnp.float32(3)), x)
        four = lax.switch(i, [lambda x: x, lambda x: jnp.sin(x) + two[0], lambda x: x @ WEIGHT, jnp.negative], x)
        inner = lax.cond(i > 1, lambda: lax.cond(i > 2, lambda: x, lambda: y), lambda: WEIGHT[0])
        return two, four, inner

    model = verify_lowering(function, np.int32(which), np.float32([1, 2, 3]))
    assert operators_of(model.graph)["If"] == 6


@pytest.mark.parametrize("length", of_tiers([0, 1, 2, 5, 40], quick=[0, 2, 40]))
@pytest.mark.parametrize("reverse", [False, True])
def test_scans(length, reverse):
    """Short ones are written out, long ones are a Scan; carries of all types, some handed on, and outer values."""

    def body(carry, frames):
        h, count, same, mask = carry
        x, index = frames
        h = jnp.tanh(h @ WEIGHT + x + same)
        return (h, count + index, same, ~mask), (h.sum(), count, same, x, jnp.where(mask, 1, 2))

    def function(h, x, same):
        carry = (h, jnp.int8(3), same, True)
        return lax.scan(body, carry, (x, jnp.arange(length, dtype=jnp.int8)), reverse=reverse)

    x = np.random.default_rng(1).normal(size=(length, 3)).astype(np.float32)
    model = verify_lowering(function, np.float32([1, 0, -1]), x, np.float32([0.1, 0.2, 0.3]))
    assert operators_of(model.graph)["Scan"] == (length == 40)


def test_scans_of_nothing_but_a_carry():
    """A Scan has something to go through all the same; scans inside of scans, and of branches."""

    def inner(c, x):
        return lax.cond(x > 1, lambda c: c * 0.5 + 1, lambda c: c + x, c), c

    def outer(c, x):
        c, ys = lax.scan(inner, c, x + jnp.arange(40, dtype=jnp.float32))
        return c, ys.sum()

    verify_lowering(lambda c: lax.scan(lambda c, _: (jnp.sin(c) + 1, None), c, length=300), np.float32(0.5))
    verify_lowering(lambda c, x: lax.scan(outer, c, x), np.float32(0.5), np.arange(30, dtype=np.float32), roundings=16)


@pytest.mark.parametrize("limit", [-1.0, 0.0, 7.0, 100.0])
def test_loops_as_long_as_a_condition_holds(limit):
    """No trip at all too; with outer values in the condition and the body, and loops inside of it."""

    def function(limit, x):
        def body(carry):
            n, x, same = carry
            x = lax.fori_loop(0, n, lambda _, x: x + same, x)
            return n + 1, x + 1, same

        return lax.while_loop(lambda c: (c[1].sum() < limit) & (c[0] < 9), body, (jnp.int32(0), x, jnp.float32(0.5)))

    verify_lowering(function, np.float32(limit), np.float32([0, 0.25]))


def test_functions_with_rules_of_their_own():
    """Derivative rules, checkpoints and linear solves are the functions themselves."""

    @jax.custom_vjp
    def double(x):
        return 2 * x

    double.defvjp(lambda x: (double(x), None), lambda _, g: (g,))

    def function(x):
        solved = lax.custom_linear_solve(lambda v: v * 4, x, lambda _, b: b / 4, lambda _, b: b / 4)
        return double(x), jax.checkpoint(jnp.sin)(x), jax.nn.relu(x), solved

    verify_lowering(function, np.float32([-1, 0, 2]))


def test_refusals():
    """All that cannot be written is named at once, with its line and why; what prints or calls Python too."""

    def function(x):
        jax.debug.print("{}", x)
        y = lax.scan(lambda c, x: (c + lax.lgamma(x), None), x[0], x)[0]
        return y, jnp.linalg.cholesky(x[:, None] * x), lax.erf_inv(x), jnp.bitwise_or(x.astype(jnp.int32), 5)

    with pytest.raises(UnsupportedError) as error:
        lowered(function, np.float32([1, 2]))
    lines = str(error.value).splitlines()
    assert lines[0] == "5 operations cannot be written as ONNX:"
    for line, words in zip(lines[1:], ("calls Python", "lgamma", "cholesky", "erf_inv", "opset=18"), strict=True):
        assert words in line
        assert "test_lowering_control.py:" in line


def test_random_numbers():
    """Those of a known key are constants; others are refused."""
    verify_lowering(lambda x: x + jax.random.normal(jax.random.key(1), (3,), jnp.float32), np.float32([1, 2, 3]))
    with pytest.raises(UnsupportedError, match="draw them outside"):
        lowered(lambda seed: jax.random.normal(jax.random.key(seed), (3,), jnp.float32), np.int32(3))
