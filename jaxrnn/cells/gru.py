"""The GRU cell, in both of ONNX's forms.

Source: operator GRU of the ONNX specification. Gates are stacked in ONNX's order z, r, h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxrnn.cells.activations import SIGMOID, TANH, Activation
from jaxrnn.cells.recurrence import Carry, Weights, clipped


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

    def prepare(self, weights: Weights, dtype: Any) -> Any:
        """The matrices transposed; of the biases, the candidate's recurrent one stays apart if the reset scales it."""
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
        return w.T, r.T, input_bias + recurrent_bias, candidate_bias

    def project(self, prepared: Any, x: jax.Array) -> jax.Array:
        """``[..., features] -> [..., 3 * hidden]``."""
        w, _, bias, _ = prepared
        return x @ w + bias

    def step(self, prepared: Any, carry: Carry, projected: jax.Array) -> Carry:
        """One step."""
        _, recurrent, _, candidate_bias = prepared
        (h,) = carry
        f_act, g_act = self.activations
        cut = 2 * h.shape[-1]
        if self.linear_before_reset:
            product = h @ recurrent
            gates, candidate = projected[..., :cut] + product[..., :cut], product[..., cut:] + candidate_bias
        else:
            gates, candidate = projected[..., :cut] + h @ recurrent[:, :cut], None
        z, r = jnp.split(f_act(clipped(gates, self.clip)), 2, -1)
        candidate = (r * h) @ recurrent[:, cut:] if candidate is None else r * candidate
        g = g_act(clipped(projected[..., cut:] + candidate, self.clip))
        return ((1 - z) * g + z * h,)
