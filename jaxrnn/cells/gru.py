"""The GRU cell, in both of ONNX's forms.

Source: operator GRU of the ONNX specification. Gates are stacked in ONNX's order z, r, h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxrnn.cells.activations import SIGMOID, TANH, Activation, with_slope
from jaxrnn.cells.products import product, product_of_rows
from jaxrnn.cells.recurrence import Weights, clipped
from jaxrnn.cells.sequence import Carry


@dataclass(frozen=True)
class GRU:
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
        """The matrices transposed, the recurrent one as it is too, and the biases added.

        The candidate's recurrent bias stays apart if the reset scales it.
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
        return (w.T, input_bias + recurrent_bias), (r.T, r, candidate_bias)

    def project(self, prepared: Any, x: jax.Array) -> jax.Array:
        """``[..., features] -> [..., 3 * hidden]``."""
        w, bias = prepared
        return product(x, w) + bias

    def step(self, recurrent: Any, carry: Carry, projected: jax.Array) -> Carry:
        """One step."""
        (h,) = carry
        gates, candidate = self._products(recurrent, h, projected)
        z, r = jnp.split(self._gates(gates), 2, -1)
        g = self._candidate(self._of_reset(recurrent, h, projected, candidate, r))
        return ((1 - z) * g + z * h,)

    def _products(self, recurrent: Any, h: jax.Array, projected: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """The gates z and r before their activation, and the candidate's recurrent part where no reset comes first."""
        matrix, _, candidate_bias = recurrent
        cut = 2 * h.shape[-1]
        if not self.linear_before_reset:
            return projected[..., :cut] + product(h, matrix[:, :cut]), None
        both = product(h, matrix)
        return projected[..., :cut] + both[..., :cut], both[..., cut:] + candidate_bias

    def _of_reset(
        self, recurrent: Any, h: jax.Array, projected: jax.Array, candidate: jax.Array | None, r: jax.Array
    ) -> jax.Array:
        """The candidate before its activation."""
        cut = 2 * h.shape[-1]
        part = product(r * h, recurrent[0][:, cut:]) if candidate is None else r * candidate
        return projected[..., cut:] + part

    def _gates(self, gates: jax.Array) -> jax.Array:
        return self.activations[0](clipped(gates, self.clip))

    def _candidate(self, candidate: jax.Array) -> jax.Array:
        return self.activations[1](clipped(candidate, self.clip))

    # -- derivative, with h = (1 - z) g + z h0, and n the candidate's recurrent part without the reset (or h0 before it)

    def linearized(self, recurrent: Any, carry: Carry, projected: jax.Array) -> tuple[Carry, tuple[jax.Array, ...]]:
        """One step; the coefficients are (h0 - g) z' and n r' (or h0 r') joined, (1 - z) g', z and r."""
        (h,) = carry
        gates, candidate = self._products(recurrent, h, projected)
        both, slopes = with_slope(self._gates, gates)
        z, r = jnp.split(both, 2, -1)
        g, slope = with_slope(self._candidate, self._of_reset(recurrent, h, projected, candidate, r))
        scaled = jnp.concatenate([h - g, h if candidate is None else candidate], -1) * slopes
        return ((1 - z) * g + z * h,), (scaled, (1 - z) * slope, z, r)

    def tangent(
        self, recurrent: Any, coefficients: tuple[jax.Array, ...], d_carry: Carry, d_projected: jax.Array
    ) -> Carry:
        """The tangent of the carry behind a step."""
        scaled, slope, z, r = coefficients
        (dh,) = d_carry
        rows, cut = recurrent[1], 2 * dh.shape[-1]
        if self.linear_before_reset:
            both = product_of_rows(dh, rows)
            by_z, by_r = jnp.split(scaled * (d_projected[..., :cut] + both[..., :cut]), 2, -1)
            candidate = by_r + r * both[..., cut:]
        else:
            by_z, by_r = jnp.split(scaled * (d_projected[..., :cut] + product_of_rows(dh, rows[:cut])), 2, -1)
            candidate = product_of_rows(by_r + r * dh, rows[cut:])
        return (by_z + slope * (d_projected[..., cut:] + candidate) + z * dh,)

    def seen(self, recurrent: Any, before: Carry, after: Carry) -> tuple[jax.Array, ...]:
        """Nothing but the hidden state."""
        return ()

    def from_weights(
        self, d_recurrent: Any, seen: tuple[jax.Array, ...], coefficients: tuple[jax.Array, ...]
    ) -> jax.Array:
        """``h0 dR``, the candidate's part scaled by the reset gate, before or after the product."""
        matrix, _, candidate_bias = d_recurrent
        (h,), r = seen, coefficients[-1]
        cut = 2 * h.shape[-1]
        if not self.linear_before_reset:
            return jnp.concatenate([product(h, matrix[:, :cut]), product(r * h, matrix[:, cut:])], -1)
        both = product(h, matrix)
        return jnp.concatenate([both[..., :cut], r * (both[..., cut:] + candidate_bias)], -1)
