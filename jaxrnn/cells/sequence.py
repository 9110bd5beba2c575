"""The loop over a sequence, with a derivative rule of its own.

JAX derives a rule for ``lax.scan`` that adds up the gradient of the weights in every step: a matrix product a step,
and a pass over memory as large as the weights. Here a step's derivative is a linear function of what its cell calls
coefficients, and the weights enter it from outside the loop: with ``h`` the carry before a step, ``h @ dR`` of all
steps is one product. Its transpose, which JAX finds by itself, is the gradient of the weights as one product behind the
loop. As the rule is one for forward mode, forward, reverse and higher derivatives all work.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxrnn.cells.products import matrix_products_in
from jaxrnn.guards import own_arithmetic

if TYPE_CHECKING:
    from jaxrnn.cells.recurrence import Cell

Carry = tuple[jax.Array, ...]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def sequence(
    cell: Cell,
    reverse: bool,
    dtype: np.dtype | None,
    recurrent: Any,
    initial: Carry,
    projected: jax.Array,
    exists: jax.Array | None,
) -> tuple[Carry, jax.Array]:
    """A cell over all frames.

    Args:
        cell: the cell.
        reverse: begin with the last frame.
        dtype: type of the operands of matrix products, as `matrix_products_in` takes it: the derivative may be traced
            long after that context.
        recurrent: its weights, as `Cell.step` takes them.
        initial: the carry before the first step, arrays ``[batch, hidden]``.
        projected: ``[time, batch, gates * hidden]``.
        exists: ``bool[time, batch, 1]``: other frames leave the carry alone and give zeros; None if all exist.

    Returns:
        The last carry, and outputs ``[time, batch, hidden]``.
    """

    def step(carry: Carry, frame: tuple[Any, jax.Array | None]) -> tuple[Carry, jax.Array]:
        gates, here = frame
        new = cell.step(recurrent, carry, gates)
        return kept(here, new, carry), blanked(here, new[0])

    with matrix_products_in(dtype):
        return lax.scan(step, initial, (cell.parts(projected), exists), reverse=reverse)


@own_arithmetic()
def _derivative(
    cell: Cell, reverse: bool, dtype: np.dtype | None, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[tuple[Carry, jax.Array], tuple[Carry, jax.Array]]:
    recurrent, initial, projected, exists = primals
    d_recurrent, d_initial, d_projected, _ = tangents

    def step(carry: Carry, frame: tuple[Any, jax.Array | None]) -> tuple[Carry, Any]:
        gates, here = frame
        new, coefficients = cell.linearized(recurrent, carry, gates)
        new = kept(here, new, carry)
        seen = cell.seen(recurrent, carry, new)
        # Where all frames exist, the hidden state before a step is the output of the step before.
        return new, (blanked(here, new[0]), coefficients, seen if here is None else (carry[0], *seen))

    def linear(d_carry: Carry, frame: Any) -> tuple[Carry, jax.Array]:
        d_gates, at, here = frame
        d_new = kept(here, cell.tangent(recurrent, at, d_carry, d_gates), d_carry)
        return d_new, blanked(here, d_new[0])

    with matrix_products_in(dtype):
        final, (y, coefficients, seen) = lax.scan(step, initial, (cell.parts(projected), exists), reverse=reverse)
        total = _dense(d_projected)
        if not all(map(_is_zero, jax.tree.leaves(d_recurrent, is_leaf=_is_zero))):
            if exists is None:
                shifted = (y[1:], initial[0][None]) if reverse else (initial[0][None], y[:-1])
                seen = (jnp.concatenate(shifted), *seen)
            total = total + cell.from_weights(jax.tree.map(_dense, d_recurrent, is_leaf=_is_zero), seen, coefficients)
        start = tuple(map(_dense, d_initial))
        d_final, d_y = lax.scan(linear, start, (cell.parts(total), coefficients, exists), reverse=reverse)
    return (final, y), (d_final, d_y)


sequence.defjvp(_derivative, symbolic_zeros=True)


def _is_zero(value: Any) -> bool:
    return isinstance(value, SymbolicZero)


def _dense(tangent: Any) -> Any:
    return jnp.zeros(tangent.shape, tangent.dtype) if _is_zero(tangent) else tangent


def kept(here: jax.Array | None, new: Carry, old: Carry) -> Carry:
    """The carry behind a step, which a frame that does not exist leaves alone."""
    if here is None:
        return new
    return tuple(jnp.where(here, after, before) for after, before in zip(new, old, strict=True))


def blanked(here: jax.Array | None, y: jax.Array) -> jax.Array:
    """The output of a step: zeros in a frame that does not exist."""
    return y if here is None else jnp.where(here, y, jnp.zeros((), y.dtype))
