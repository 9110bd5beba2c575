"""The loop over a sequence, with a derivative rule of its own.

JAX's own rule for ``lax.scan`` accumulates the gradient of the weights inside the loop: every step costs a matrix
product and a pass over memory as large as the weights. Here the derivative of a step is a linear function with a few
coefficients, and the tangents of the weights enter before the loop: with ``h`` the hidden state before each step,
``h @ dR`` is one product for all steps. JAX transposes it to one product after the loop, the gradient of the weights.
The rule is written for forward mode, so forward, reverse and higher derivatives all work.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from jaxrnn._jax import varying
from jaxrnn._jax.context import own_arithmetic
from jaxrnn.cells.cell import Carry, Cell
from jaxrnn.cells.products import matrix_products_in


def sequence(
    cell: Cell,
    reverse: bool,
    dtype: np.dtype | None,
    recurrent: Any,
    initial: Carry,
    projected: jax.Array,
    exists: jax.Array | None,
) -> tuple[Carry, jax.Array]:
    """Run a cell over all frames.

    Args:
        cell: the cell.
        reverse: begin with the last frame.
        dtype: the operand type of matrix products, as `matrix_products_in` takes it. It is an argument because JAX may
            trace the derivative long after that context has ended.
        recurrent: the recurrent weights, as `Cell.step` takes them.
        initial: the carry before the first step, arrays ``[batch, hidden]``.
        projected: ``[time, batch, gates * hidden]``.
        exists: ``bool[time, batch, 1]``; a frame that does not exist leaves the carry unchanged and outputs zeros. None
            if all frames exist.

    Returns:
        The final carry, and outputs ``[time, batch, hidden]``.
    """
    return _sequence(cell, reverse, dtype, *varying.alike(recurrent, initial, projected, exists))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _sequence(
    cell: Cell,
    reverse: bool,
    dtype: np.dtype | None,
    recurrent: Any,
    initial: Carry,
    projected: jax.Array,
    exists: jax.Array | None,
) -> tuple[Carry, jax.Array]:
    def step(carry: Carry, frame: tuple[Any, jax.Array | None]) -> tuple[Carry, jax.Array]:
        gates, mask = frame
        new = cell.step(recurrent, carry, gates)
        return masked_update(mask, new, carry), masked_output(mask, new[0])

    with matrix_products_in(dtype):
        return varying.scan(step, initial, (cell.split_gates(projected), exists), reverse=reverse)


@own_arithmetic()
def _jvp(
    cell: Cell, reverse: bool, dtype: np.dtype | None, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[tuple[Carry, jax.Array], tuple[Carry, jax.Array]]:
    recurrent, initial, projected, exists = primals
    d_recurrent, d_initial, d_projected, _ = tangents

    def step(carry: Carry, frame: tuple[Any, jax.Array | None]) -> tuple[Carry, Any]:
        gates, mask = frame
        new, coefficients = cell.linearize(recurrent, carry, gates)
        new = masked_update(mask, new, carry)
        residuals = cell.residuals(recurrent, carry, new)
        # Where all frames exist, the hidden state before a step is the output of the step before it.
        return new, (masked_output(mask, new[0]), coefficients, residuals if mask is None else (carry[0], *residuals))

    def linear_step(d_carry: Carry, frame: Any) -> tuple[Carry, jax.Array]:
        d_gates, coefficients, mask = frame
        d_new = masked_update(mask, cell.tangent(recurrent, coefficients, d_carry, d_gates), d_carry)
        return d_new, masked_output(mask, d_new[0])

    with matrix_products_in(dtype):
        frames = cell.split_gates(projected), exists
        final, (y, coefficients, residuals) = varying.scan(step, initial, frames, reverse=reverse)
        d_total = _dense(d_projected)
        if not all(map(_is_zero, jax.tree.leaves(d_recurrent, is_leaf=_is_zero))):
            if exists is None:
                before = (y[1:], initial[0][None]) if reverse else (initial[0][None], y[:-1])
                # Of no frames, none has a hidden state before it.
                residuals = (jnp.concatenate(before) if y.shape[0] != 0 else y, *residuals)
            d_weights = jax.tree.map(_dense, d_recurrent, is_leaf=_is_zero)
            d_total = d_total + cell.weight_tangents(d_weights, residuals, coefficients)
        d_start = tuple(map(_dense, d_initial))
        d_frames = cell.split_gates(d_total), coefficients, exists
        d_final, d_y = varying.scan(linear_step, d_start, d_frames, reverse=reverse)
    return (final, y), (d_final, d_y)


_sequence.defjvp(_jvp, symbolic_zeros=True)


def _is_zero(value: Any) -> bool:
    return isinstance(value, SymbolicZero)


def _dense(tangent: Any) -> Any:
    return jnp.zeros(tangent.shape, tangent.dtype) if _is_zero(tangent) else tangent


def masked_update(mask: jax.Array | None, new: Carry, old: Carry) -> Carry:
    """The carry after a step: the new one where the frame exists, else the old one. Without a mask, the new one."""
    if mask is None:
        return new
    return tuple(jnp.where(mask, after, before) for after, before in zip(new, old, strict=True))


def masked_output(mask: jax.Array | None, y: jax.Array) -> jax.Array:
    """The output of a step: zeros where the frame does not exist."""
    return y if mask is None else jnp.where(mask, y, jnp.zeros((), y.dtype))
