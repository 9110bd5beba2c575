"""What a recurrent cell is: its weights, one step, and the derivative of that step."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxrnn.cells.products import product

Carry = tuple[jax.Array, ...]


class Weights(NamedTuple):
    """The weights of one direction in ONNX's layout; G is the number of gates of the cell.

    Attributes:
        input: ``[G * hidden, features]``.
        recurrent: ``[G * hidden, hidden]``.
        bias: ``[2 * G * hidden]``, the input's, then the recurrent one.
        peephole: ``[3 * hidden]``; LSTM only.
    """

    input: jax.Array
    recurrent: jax.Array
    bias: jax.Array | None = None
    peephole: jax.Array | None = None


class Cell(Protocol):
    """One recurrent cell: a step and its derivative. Time, direction and lengths are the skeleton's.

    The derivative has two parts. `tangent` is linear in the tangents of the carry and of the projected frame, with the
    coefficients that `linearize` computes. `weight_tangents` adds what the tangents of the weights contribute, as one
    product for all frames.
    """

    #: Gates whose weights are stacked along the first axis of `Weights.input`.
    gates: ClassVar[int]
    #: Arrays in the carry; the first one is the output.
    carries: ClassVar[int]

    def prepare(self, weights: Weights, dtype: Any) -> tuple[Any, Any]:
        """The weights as `project` takes them, a matrix and a bias or None, and as `step` takes them."""
        ...

    def project(self, prepared: tuple[jax.Array, jax.Array | None], x: jax.Array) -> jax.Array:
        """The part of the gates that needs no carry, for all frames: ``[..., features] -> [..., G * hidden]``."""
        w, bias = prepared
        projected = product(x, w)
        return projected if bias is None else projected + bias

    def split_gates(self, projected: jax.Array) -> Any:
        """Projected frames as `step` takes them: one array, or several where a loop over them is faster."""
        return projected

    def step(self, recurrent: Any, carry: Carry, projected: Any) -> Carry:
        """One step, from carry arrays ``[batch, hidden]`` and one projected frame as `split_gates` returns it."""
        ...

    def linearize(self, recurrent: Any, carry: Carry, projected: Any) -> tuple[Carry, tuple[jax.Array, ...]]:
        """One step, and the coefficients of its derivative, arrays ``[batch, k * hidden]``."""
        ...

    def tangent(self, recurrent: Any, coefficients: tuple[jax.Array, ...], d_carry: Carry, d_projected: Any) -> Carry:
        """The tangent of the carry after a step; ``d_projected`` is split like the projected frame."""
        ...

    def residuals(self, recurrent: Any, before: Carry, after: Carry) -> tuple[jax.Array, ...]:
        """The parts of the carries around a step that `weight_tangents` needs besides the hidden state before it."""
        return ()

    def weight_tangents(
        self, d_recurrent: Any, residuals: tuple[jax.Array, ...], coefficients: tuple[jax.Array, ...]
    ) -> jax.Array:
        """What the tangents of the weights add to those of the projected frames, ``[time, batch, G * hidden]``.

        Args:
            d_recurrent: tangents with the structure of the recurrent weights.
            residuals: the hidden state before each step, then the `residuals`, with a leading time axis.
            coefficients: the coefficients of each step, with a leading time axis.
        """
        ...


def sum_biases(bias: jax.Array | None) -> jax.Array | None:
    """ONNX's two biases, the input's and the recurrent one, as their sum ``[G * hidden]``."""
    return None if bias is None else bias[: bias.shape[0] // 2] + bias[bias.shape[0] // 2 :]


def clip_input(x: jax.Array, limit: float | None) -> jax.Array:
    """Clip the input of an activation to ``[-limit, limit]``, as ONNX's attribute ``clip`` asks; None clips nothing."""
    return x if limit is None else jnp.clip(x, -limit, limit)
