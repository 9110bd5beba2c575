"""The simple recurrent cell.

Source: operator RNN of the ONNX specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from jaxrnn.cells.activations import TANH, Activation, value_and_slope
from jaxrnn.cells.cell import Carry, Cell, Weights, clip_input, sum_biases
from jaxrnn.cells.products import product, product_of_rows


@dataclass(frozen=True)
class RNN(Cell):
    """A simple recurrent cell ``h = f(x W' + h0 R' + b)``; the carry is ``(h,)``.

    Attributes:
        activations: f.
        clip: bound on the input of the activation, or None.
    """

    activations: tuple[Activation] = (TANH,)
    clip: float | None = None

    gates: ClassVar[int] = 1
    carries: ClassVar[int] = 1

    def prepare(self, weights: Weights, dtype: Any) -> tuple[Any, Any]:
        """Transpose the matrices for ``x @ w``, keep R for the tangent too, and add the two biases."""
        w, r, bias, _ = weights
        return (w.T, sum_biases(bias)), (r.T, r)

    def step(self, recurrent: Any, carry: Carry, projected: jax.Array) -> Carry:
        """One step."""
        return (self._activate(projected + product(carry[0], recurrent[0])),)

    def _activate(self, gate: jax.Array) -> jax.Array:
        return self.activations[0](clip_input(gate, self.clip))

    def linearize(self, recurrent: Any, carry: Carry, projected: jax.Array) -> tuple[Carry, tuple[jax.Array, ...]]:
        """One step; the coefficient is the slope f'."""
        h, slope = value_and_slope(self._activate, projected + product(carry[0], recurrent[0]))
        return (h,), (slope,)

    def tangent(
        self, recurrent: Any, coefficients: tuple[jax.Array, ...], d_carry: Carry, d_projected: jax.Array
    ) -> Carry:
        """``dh = f' (d_projected + dh0 R')``."""
        (slope,) = coefficients
        return (slope * (d_projected + product_of_rows(d_carry[0], recurrent[1])),)

    def weight_tangents(
        self, d_recurrent: Any, residuals: tuple[jax.Array, ...], coefficients: tuple[jax.Array, ...]
    ) -> jax.Array:
        """``h0 dR'``."""
        return product(residuals[0], d_recurrent[0])
