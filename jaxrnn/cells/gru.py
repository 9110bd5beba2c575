"""The GRU cell, in both of ONNX's forms.

Source: operator GRU of the ONNX specification. Gates are stacked in ONNX's order z, r, h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxrnn.cells.activations import SIGMOID, TANH, Activation, value_and_slope
from jaxrnn.cells.cell import Carry, Cell, Weights, clip_input
from jaxrnn.cells.products import product, product_of_rows


@dataclass(frozen=True)
class GRU(Cell):
    """A GRU cell; the carry is ``(h,)``.

    Attributes:
        activations: f (gates) and g (candidate).
        clip: bound on the input of every activation, or None.
        linear_before_reset: the reset gate scales the recurrent product, not the hidden state before it.
    """

    activations: tuple[Activation, Activation] = (SIGMOID, TANH)
    clip: float | None = None
    linear_before_reset: bool = False

    gates: ClassVar[int] = 3
    carries: ClassVar[int] = 1

    def prepare(self, weights: Weights, dtype: Any) -> tuple[Any, Any]:
        """Transpose the matrices, keep R for the tangent too, and add the biases.

        The recurrent bias of the candidate stays separate where the reset gate scales it.
        """
        w, r, bias, _ = weights
        hidden = r.shape[-1]
        if bias is None:
            bias = jnp.zeros(6 * hidden, dtype)
        input_bias, recurrent_bias = jnp.split(bias, 2)
        if self.linear_before_reset:
            candidate_bias = recurrent_bias[2 * hidden :]
            recurrent_bias = jnp.concatenate([recurrent_bias[: 2 * hidden], jnp.zeros_like(candidate_bias)])
        else:
            candidate_bias = None
        # A reset before the product needs two products: split their matrices here and not in every step.
        cuts = [] if self.linear_before_reset else [2 * hidden]
        columns, rows = (tuple(jnp.split(matrix, cuts, axis)) for matrix, axis in ((r.T, 1), (r, 0)))
        return (w.T, input_bias + recurrent_bias), (columns, rows, candidate_bias)

    def split_gates(self, projected: jax.Array) -> list[jax.Array]:
        """One array for each gate: a loop that reads gates from the middle of rows takes two to three times as long."""
        return jnp.split(projected, 3, -1)

    def step(self, recurrent: Any, carry: Carry, projected: list[jax.Array]) -> Carry:
        """One step."""
        (h,) = carry
        z, r, candidate = self._products(recurrent, h, projected)
        z, r = self._gate(z), self._gate(r)
        g = self._candidate(self._candidate_input(recurrent, h, projected, candidate, r))
        return ((1 - z) * g + z * h,)

    def _products(
        self, recurrent: Any, h: jax.Array, projected: list[jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """The inputs of gates z and r, and the candidate's recurrent part, None where the reset comes first."""
        columns, _, candidate_bias = recurrent
        z, r, *rest = jnp.split(product(h, columns[0]), 3 if self.linear_before_reset else 2, -1)
        return projected[0] + z, projected[1] + r, rest[0] + candidate_bias if rest else None

    def _candidate_input(
        self, recurrent: Any, h: jax.Array, projected: list[jax.Array], candidate: jax.Array | None, r: jax.Array
    ) -> jax.Array:
        """The input of the candidate's activation."""
        return projected[2] + (product(r * h, recurrent[0][1]) if candidate is None else r * candidate)

    def _gate(self, gate: jax.Array) -> jax.Array:
        return self.activations[0](clip_input(gate, self.clip))

    def _candidate(self, candidate: jax.Array) -> jax.Array:
        return self.activations[1](clip_input(candidate, self.clip))

    # The derivative: h = (1 - z) g + z h0. n is the candidate's recurrent part without the reset, or h0 where the reset
    # comes before the product.

    def linearize(
        self, recurrent: Any, carry: Carry, projected: list[jax.Array]
    ) -> tuple[Carry, tuple[jax.Array, ...]]:
        """One step; the coefficients are (h0 - g) z', n r' (or h0 r'), (1 - z) g', z and r."""
        (h,) = carry
        z, r, candidate = self._products(recurrent, h, projected)
        (z, slope_z), (r, slope_r) = value_and_slope(self._gate, z), value_and_slope(self._gate, r)
        g, slope = value_and_slope(self._candidate, self._candidate_input(recurrent, h, projected, candidate, r))
        by_r = (h if candidate is None else candidate) * slope_r
        return ((1 - z) * g + z * h,), ((h - g) * slope_z, by_r, (1 - z) * slope, z, r)

    def tangent(
        self, recurrent: Any, coefficients: tuple[jax.Array, ...], d_carry: Carry, d_projected: list[jax.Array]
    ) -> Carry:
        """The tangent of h after a step."""
        by_z, by_r, slope, z, r = coefficients
        (dh,), rows = d_carry, recurrent[1]
        d_z, d_r, *rest = jnp.split(product_of_rows(dh, rows[0]), 3 if self.linear_before_reset else 2, -1)
        of_r = by_r * (d_projected[1] + d_r)
        candidate = of_r + r * rest[0] if rest else product_of_rows(of_r + r * dh, rows[1])
        return (by_z * (d_projected[0] + d_z) + slope * (d_projected[2] + candidate) + z * dh,)

    def weight_tangents(
        self, d_recurrent: Any, residuals: tuple[jax.Array, ...], coefficients: tuple[jax.Array, ...]
    ) -> jax.Array:
        """``h0 dR'``, with the reset gate on the candidate before or after the product."""
        columns, _, candidate_bias = d_recurrent
        (h,), r = residuals, coefficients[-1]
        if not self.linear_before_reset:
            return jnp.concatenate([product(h, columns[0]), product(r * h, columns[1])], -1)
        z, reset, candidate = jnp.split(product(h, columns[0]), 3, -1)
        return jnp.concatenate([z, reset, r * (candidate + candidate_bias)], -1)
