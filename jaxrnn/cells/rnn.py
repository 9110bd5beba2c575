"""The simple recurrent cell.

Source: operator RNN of the ONNX specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from jaxrnn.cells.activations import TANH, Activation
from jaxrnn.cells.recurrence import Carry, Weights, clipped


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

    def prepare(self, weights: Weights, dtype: Any) -> Any:
        """The matrices transposed for ``x @ w``, and the two biases added."""
        w, r, bias, _ = weights
        summed = None if bias is None else bias[: bias.shape[0] // 2] + bias[bias.shape[0] // 2 :]
        return w.T, r.T, summed

    def project(self, prepared: Any, x: jax.Array) -> jax.Array:
        """``[..., features] -> [..., hidden]``."""
        w, _, bias = prepared
        projected = x @ w
        return projected if bias is None else projected + bias

    def step(self, prepared: Any, carry: Carry, projected: jax.Array) -> Carry:
        """One step."""
        _, recurrent, _ = prepared
        (h,) = carry
        return (self.activations[0](clipped(projected + h @ recurrent, self.clip)),)
