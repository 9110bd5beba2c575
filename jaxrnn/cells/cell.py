"""What a recurrent cell is: its weights, its carry, one step, and the derivative of a step."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

#: The arrays that a cell carries from step to step, ``[batch, hidden]`` each.
Carry = tuple[jax.Array, ...]


class Weights(NamedTuple):
    """One direction's weights, in ONNX's layout; G is the cell's number of gates.

    input: ``[G * hidden, features]``; recurrent: ``[G * hidden, hidden]``; bias: ``[2 * G * hidden]``, input's then
    recurrent's; peephole: ``[3 * hidden]`` (LSTM only).
    """

    input: jax.Array
    recurrent: jax.Array
    bias: jax.Array | None = None
    peephole: jax.Array | None = None


class Cell(Protocol):
    """One recurrent cell: what it does in a step, free of time, direction and lengths; and the derivative of a step.

    `tangent` is linear in its last two arguments. It knows of a step what `linearized` gives as coefficients, and does
    not see the tangents of the weights: `from_weights` gives what they add to the projected frames, for all at once.
    """

    #: Gates whose weights are stacked along the first axis of `Weights.input`.
    gates: int
    #: Arrays in the carry; the first is the output.
    carries: int

    def prepare(self, weights: Weights, dtype: Any) -> tuple[Any, Any]:
        """The weights in the form that `project` reads, and in the form that `step` reads."""
        ...

    def project(self, prepared: Any, x: jax.Array) -> jax.Array:
        """The part of the gates that needs no carry, for all frames at once: ``[..., features] -> [..., G*hidden]``."""
        ...

    def parts(self, projected: jax.Array) -> Any:
        """Projected frames in the form that `step` reads: cut apart where a loop is faster over parts."""
        ...

    def step(self, recurrent: Any, carry: Carry, projected: Any) -> Carry:
        """One step: carry arrays ``[batch, hidden]`` and the `parts` of a projected frame ``[batch, G * hidden]``."""
        ...

    def linearized(self, recurrent: Any, carry: Carry, projected: Any) -> tuple[Carry, tuple[jax.Array, ...]]:
        """One step, with the coefficients of its derivative, arrays ``[batch, k * hidden]``."""
        ...

    def tangent(self, recurrent: Any, coefficients: tuple[jax.Array, ...], d_carry: Carry, d_projected: Any) -> Carry:
        """The tangent of the carry behind a step; that of the projected frame in `parts` too."""
        ...

    def seen(self, recurrent: Any, before: Carry, after: Carry) -> tuple[jax.Array, ...]:
        """What `from_weights` needs to see of the carries around a step, besides the hidden state before it."""
        ...

    def from_weights(
        self, d_recurrent: Any, seen: tuple[jax.Array, ...], coefficients: tuple[jax.Array, ...]
    ) -> jax.Array:
        """What tangents of the weights add to that of the projected frames, ``[time, batch, G * hidden]``.

        Args:
            d_recurrent: like the recurrent weights.
            seen: the hidden state before each step, then what `seen` gave, with time in front.
            coefficients: those of each step.
        """
        ...


def clipped(x: jax.Array, limit: float | None) -> jax.Array:
    """Clip to ``[-limit, limit]``, where a limit is given: ONNX's ``clip``, at the input of every activation."""
    return x if limit is None else jnp.clip(x, -limit, limit)
