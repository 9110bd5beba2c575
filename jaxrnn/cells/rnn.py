"""The simple recurrent cell.

Source: operator RNN of the ONNX specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from jaxrnn.cells.activations import TANH, Activation, with_slope
from jaxrnn.cells.products import product, product_of_rows
from jaxrnn.cells.recurrence import Weights, clipped
from jaxrnn.cells.sequence import Carry


@dataclass(frozen=True)
class RNN:
    """A simple recurrent cell; the carry is ``(h,)``.

    Attributes:
        activations: f.
        clip: bound on the input of the activation, or None.
    """

    activations: tuple[Activation] = (TANH,)
    clip: float | None = None

    gates: ClassVar[int] = 1
    carries: ClassVar[int] = 1

    def prepare(self, weights: Weights, dtype: Any) -> tuple[Any, Any]:
        """The matrices transposed for ``x @ w``, the recurrent one as it is too, and the two biases added."""
        w, r, bias, _ = weights
        summed = None if bias is None else bias[: bias.shape[0] // 2] + bias[bias.shape[0] // 2 :]
        return (w.T, summed), (r.T, r)

    def project(self, prepared: Any, x: jax.Array) -> jax.Array:
        """``[..., features] -> [..., hidden]``."""
        w, bias = prepared
        projected = product(x, w)
        return projected if bias is None else projected + bias

    def parts(self, projected: jax.Array) -> jax.Array:
        """As they are: all gates go through one function."""
        return projected

    def step(self, recurrent: Any, carry: Carry, projected: jax.Array) -> Carry:
        """One step."""
        return (self._activated(projected + product(carry[0], recurrent[0])),)

    def _activated(self, gate: jax.Array) -> jax.Array:
        return self.activations[0](clipped(gate, self.clip))

    # -- derivative, with h = f(projected + h0 R)

    def linearized(self, recurrent: Any, carry: Carry, projected: jax.Array) -> tuple[Carry, tuple[jax.Array, ...]]:
        """One step; the coefficient is the slope f'."""
        h, slope = with_slope(self._activated, projected + product(carry[0], recurrent[0]))
        return (h,), (slope,)

    def tangent(
        self, recurrent: Any, coefficients: tuple[jax.Array, ...], d_carry: Carry, d_projected: jax.Array
    ) -> Carry:
        """The tangent of the carry behind a step."""
        (slope,) = coefficients
        return (slope * (d_projected + product_of_rows(d_carry[0], recurrent[1])),)

    def seen(self, recurrent: Any, before: Carry, after: Carry) -> tuple[jax.Array, ...]:
        """Nothing but the hidden state."""
        return ()

    def from_weights(
        self, d_recurrent: Any, seen: tuple[jax.Array, ...], coefficients: tuple[jax.Array, ...]
    ) -> jax.Array:
        """``h0 dR``."""
        return product(seen[0], d_recurrent[0])
