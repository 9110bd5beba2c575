"""The LSTM cell with everything that ONNX gives it: peepholes, coupled gates, clipping, any activations.

Source: operator LSTM of the ONNX specification. Gates are stacked in ONNX's order i, o, f, c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.cells.activations import SIGMOID, TANH, Activation
from jaxrnn.cells.recurrence import Carry, Weights, clipped


@dataclass(frozen=True)
class LSTM:
    """An LSTM cell; the carry is ``(h, c)``.

    Attributes:
        activations: f (gates), g (cell input) and h (cell output).
        clip: bound on the input of every activation, or None.
        input_forget: the forget gate is one minus the input gate.
    """

    activations: tuple[Activation, Activation, Activation] = (SIGMOID, TANH, TANH)
    clip: float | None = None
    input_forget: bool = False

    gates: ClassVar[int] = 4
    carries: ClassVar[int] = 2

    def prepare(self, weights: Weights, dtype: Any) -> Any:
        """The matrices transposed for ``x @ w``, the two biases added, the peepholes split."""
        w, r, bias, peephole = weights
        summed = None if bias is None else bias[: bias.shape[0] // 2] + bias[bias.shape[0] // 2 :]
        return w.T, r.T, summed, None if peephole is None else jnp.split(peephole, 3)

    def project(self, prepared: Any, x: jax.Array) -> jax.Array:
        """``[..., features] -> [..., 4 * hidden]``."""
        w, _, bias, _ = prepared
        projected = x @ w
        return projected if bias is None else projected + bias

    def step(self, prepared: Any, carry: Carry, projected: jax.Array) -> Carry:
        """One step."""
        _, r, _, peephole = prepared
        h, c = carry
        gates = projected + h @ r
        f_act, g_act, h_act = self.activations
        if peephole is None and (f_act, g_act) == (SIGMOID, TANH):
            i, o, f, g = _sigmoid_gates_by_one_tanh(clipped(gates, self.clip))
        else:
            i, o, f, g = jnp.split(gates, 4, -1)
            if peephole is not None:
                i, f = i + peephole[0] * c, f + peephole[2] * c
            i, f = f_act(clipped(i, self.clip)), f_act(clipped(f, self.clip))
            g = g_act(clipped(g, self.clip))
        if self.input_forget:
            f = 1 - i
        c = f * c + i * g
        if peephole is not None:
            o = o + peephole[1] * c
        if peephole is not None or (f_act, g_act) != (SIGMOID, TANH):
            o = f_act(clipped(o, self.clip))
        return o * h_act(clipped(c, self.clip)), c


def _sigmoid_gates_by_one_tanh(gates: jax.Array) -> list[jax.Array]:
    """All four gates through one tanh: sigmoid(x) = tanh(x / 2) / 2 + 1 / 2.

    One vectorised function over the whole row is faster on CPU than four over slices.
    """
    hidden = gates.shape[-1] // 4
    scale = np.repeat(np.asarray([0.5, 0.5, 0.5, 1.0], gates.dtype), hidden)
    offset = np.repeat(np.asarray([0.5, 0.5, 0.5, 0.0], gates.dtype), hidden)
    return jnp.split(jnp.tanh(gates * scale) * scale + offset, 4, -1)
