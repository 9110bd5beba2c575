"""Primitives that move elements give in NumPy what XLA gives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxrnn.jaxprs.equations import evaluate
from jaxrnn.jaxprs.moves import computed, move, moved_operands

X = np.arange(2 * 3 * 4, dtype=np.int32).reshape(2, 3, 4)
NEW = -1 - np.arange(6, dtype=np.int32).reshape(2, 3)

MOVES = {
    "broadcast": lambda x: jnp.broadcast_to(x[:, None], (2, 5, 3, 4)),
    "concatenate": lambda x: jnp.concatenate([x, x[:, :1]], 1),
    "pad": lambda x: lax.pad(x, 7, [(1, -1, 1), (-1, 2, 0), (0, 0, 2)]),
    "reshape": lambda x: lax.reshape(x, (4, 6), (2, 0, 1)),
    "reverse": lambda x: lax.rev(x, (0, 2)),
    "select": lambda x: lax.select_n(x % 3, x, -x, x * 0),
    "slice": lambda x: lax.slice(x, (0, 1, 0), (2, 3, 4), (1, 1, 2)),
    "split": lambda x: lax.split(x, (1, 2), 1),
    "transpose": lambda x: jnp.transpose(x, (2, 0, 1)),
    "squeeze": lambda x: lax.squeeze(x[:1], (0,)),
    "take": lambda x: x[:, np.array([2, 0, 0])],
    "take along an axis": lambda x: jnp.take_along_axis(x, jnp.array([[[3, 1]]]), 2),
    "take points": lambda x: x[np.array([1, 0]), np.array([[2], [1]])],
    "take windows": lambda x: jax.vmap(lambda row, at: lax.dynamic_slice(row, (at, 1), (2, 2)))(x, jnp.array([1, 9])),
    "slice at the end": lambda x: lax.dynamic_slice(x, (0, 5, -1), (1, 2, 4)),
    "write a slice": lambda x: lax.dynamic_update_slice(x, x[:1, :, :2] * 0 - 1, (1, 0, 3)),
    "write columns": lambda x: x.at[:, :, 2].set(NEW),
    "write points": lambda x: x.at[np.array([1, 0]), np.array([2, 1])].set(-x[:, 0] - 1),
    "write some before": lambda x: x.at[:, np.array([0, -9]), 1].set(NEW[:, :2], mode="drop"),
    "write some outside": lambda x: x.at[:, np.array([0, 7]), 1].set(NEW[:, :2], mode="drop"),
    "write rows of a batch": lambda x: jax.vmap(lambda row, at: row.at[at].set(-1))(x, jnp.array([2, 0])),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_are_those_of_xla(name):
    """Every equation that can move is moved in NumPy, and nothing but arithmetic is left to XLA."""
    closed = jax.make_jaxpr(MOVES[name])(X)
    seen = set()

    def apply(equation, operands):
        inner = equation.params.get("jaxpr")
        if inner is not None:
            return evaluate(inner, operands, apply)
        arrays = [np.asarray(x, atom.aval.dtype) for x, atom in zip(operands, equation.invars, strict=True)]
        if moved_operands(equation) is not None:
            moved = move(equation, arrays)
            assert moved is not None
            seen.add(equation.primitive.name)
            return moved
        results = equation.primitive.bind(*arrays, **equation.params)
        return results if equation.primitive.multiple_results else [results]

    expected = jax.tree.leaves(jax.jit(MOVES[name])(X))
    for result, array in zip(evaluate(closed, [X], apply), expected, strict=True):
        np.testing.assert_array_equal(result, array)
        assert result.dtype == array.dtype
    assert seen


def test_what_is_outside_does_not_move():
    """A gather that reads outside of its operand gives numbers that are no elements."""
    closed = jax.make_jaxpr(lambda x: x.at[np.array([0, 9])].get(mode="fill", fill_value=3))(X)
    gather = next(equation for equation in closed.jaxpr.eqns if equation.primitive.name == "gather")
    assert move(gather, [X, np.array([[0], [9]])]) is None


FLOATS = [
    0,
    -0.0,
    0.5,
    -1.9,
    127.6,
    -129,
    255.5,
    3e4,
    2**31,
    -(2**31) - 257,
    2.0**63,
    2.0**64,
    -1e30,
    "inf",
    "-inf",
    "nan",
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("wanted", ["int8", "uint32", "int64", "uint64"])
def test_casts_are_those_of_xla(dtype, wanted):
    """Floats beyond the range of an integer type become the ends of the range, and NaN becomes 0."""
    with jax.enable_x64(True), np.errstate(over="ignore"):
        x = np.array(FLOATS, np.float64).astype(jnp.dtype(dtype))
        closed = jax.make_jaxpr(lambda x: lax.convert_element_type(x, wanted))(x)
        (equation,) = closed.jaxpr.eqns
        (found,) = computed(equation, [x])
        expected = np.asarray(lax.convert_element_type(x, wanted))
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)
