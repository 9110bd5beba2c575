"""The interface of recurrent cells: weights, a step, and the derivative of the step; and activation functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxrnn.cells.products import product

Carry = tuple[jax.Array, ...]


class Weights(NamedTuple):
    """The weights of one direction in ONNX's layout; G is the number of gates of the cell."""

    input: jax.Array  # ``[G * hidden, features]``
    recurrent: jax.Array  # ``[G * hidden, hidden]``
    bias: jax.Array | None = None  # ``[2 * G * hidden]``, the input's, then the recurrent one
    peephole: jax.Array | None = None  # ``[3 * hidden]``; LSTM only


class Cell(Protocol):
    """A recurrent cell: a step and its derivative. The skeleton adds time, direction and lengths.

    The derivative has two parts. `tangent` is linear in the tangents of the carry and of the projected frame, with the
    coefficients from `linearize`. `weight_tangents` adds the contribution of the weights' tangents, as one product for
    all frames.
    """

    #: Gates whose weights are stacked along the first axis of `Weights.input`.
    gates: ClassVar[int]
    #: Arrays in the carry; the first one is the output.
    carries: ClassVar[int]

    def prepare(self, weights: Weights, dtype: Any) -> tuple[Any, Any]:
        """Return the weights for `project` (a matrix, and a bias or None) and the weights for `step`."""
        ...

    def project(self, prepared: tuple[jax.Array, jax.Array | None], x: jax.Array) -> jax.Array:
        """Compute the part of the gates without carry, for all frames: ``[..., features] -> [..., G * hidden]``."""
        w, bias = prepared
        projected = product(x, w)
        return projected if bias is None else projected + bias

    def split_gates(self, projected: jax.Array) -> Any:
        """Split projected frames for `step`: an array, or several arrays if a loop over them is faster."""
        return projected

    def step(self, recurrent: Any, carry: Carry, projected: Any) -> Carry:
        """Compute a step from carry arrays ``[batch, hidden]`` and a projected frame from `split_gates`."""
        ...

    def linearize(self, recurrent: Any, carry: Carry, projected: Any) -> tuple[Carry, tuple[jax.Array, ...]]:
        """Compute a step, and the coefficients of its derivative, arrays ``[batch, k * hidden]``."""
        ...

    def tangent(self, recurrent: Any, coefficients: tuple[jax.Array, ...], d_carry: Carry, d_projected: Any) -> Carry:
        """Return the tangent of the carry after a step; ``d_projected`` is split like the projected frame."""
        ...

    def residuals(self, recurrent: Any, before: Carry, after: Carry) -> tuple[jax.Array, ...]:
        """Return the parts of the carries around a step that `weight_tangents` needs besides the hidden state."""
        return ()

    def weight_tangents(
        self, d_recurrent: Any, residuals: tuple[jax.Array, ...], coefficients: tuple[jax.Array, ...]
    ) -> jax.Array:
        """Return the contribution of weight tangents to projected frames, ``[time, batch, G * hidden]``.

        ``d_recurrent`` has the structure of the recurrent weights. ``residuals`` are the hidden state before each step,
        then the `residuals`; like ``coefficients``, they have a leading time axis.
        """
        ...


def sum_biases(bias: jax.Array | None) -> jax.Array | None:
    """Return the sum of ONNX's input and recurrent biases, ``[G * hidden]``."""
    return None if bias is None else bias[: bias.shape[0] // 2] + bias[bias.shape[0] // 2 :]


def clip_input(x: jax.Array, limit: float | None) -> jax.Array:
    """Clip the input of an activation to ``[-limit, limit]``, as ONNX's attribute ``clip`` asks; None clips nothing."""
    return x if limit is None else jnp.clip(x, -limit, limit)


def _affine(x, alpha, beta):
    return alpha * x + beta


def _leaky_relu(x, alpha):
    return jnp.where(x >= 0, x, alpha * x)


def _thresholded_relu(x, alpha):
    return jnp.where(x >= alpha, x, jnp.zeros((), x.dtype))


def _scaled_tanh(x, alpha, beta):
    return alpha * jnp.tanh(beta * x)


def _hard_sigmoid(x, alpha, beta):
    return jnp.clip(alpha * x + beta, 0, 1)


def _elu(x, alpha):
    return jnp.where(x >= 0, x, alpha * jnp.expm1(jnp.minimum(x, 0)))


#: Each function by ONNX's name, and the defaults of the coefficients that it takes (alpha, then beta).
_FUNCTIONS: dict[str, tuple[Callable[..., jax.Array], tuple[float, ...]]] = {
    "Relu": (jax.nn.relu, ()),
    "Tanh": (jnp.tanh, ()),
    "Sigmoid": (jax.nn.sigmoid, ()),
    "Softsign": (jax.nn.soft_sign, ()),
    "Softplus": (jax.nn.softplus, ()),
    "Affine": (_affine, (1.0, 0.0)),
    "LeakyRelu": (_leaky_relu, (0.01,)),
    "ThresholdedRelu": (_thresholded_relu, (1.0,)),
    "ScaledTanh": (_scaled_tanh, (1.0, 1.0)),
    "HardSigmoid": (_hard_sigmoid, (0.2, 0.5)),
    "Elu": (_elu, (1.0,)),
}


@dataclass(frozen=True)
class Activation:
    """An activation function with its coefficients. Comparable, so that a cell can recognise the standard ones."""

    name: str
    coefficients: tuple[float, ...] = ()

    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the function elementwise, in the type of ``x``."""
        function, _ = _FUNCTIONS[self.name]
        return function(x, *(jnp.asarray(value, x.dtype) for value in self.coefficients))


SIGMOID, TANH = Activation("Sigmoid"), Activation("Tanh")


def value_and_slope(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the value and the derivative of an elementwise function at x."""
    return jax.jvp(function, (x,), (jnp.ones_like(x),))


def parse_activations(
    names: Sequence[str], alphas: Sequence[float] = (), betas: Sequence[float] = ()
) -> tuple[Activation, ...]:
    """Parse ONNX's three lists of activations; names are case-insensitive.

    Each function consumes the coefficients that it takes, in order. Defaults apply once a list is used up. An unknown
    name raises a ValueError.
    """
    queues, result = [list(alphas), list(betas)], []
    known = {name.lower(): name for name in _FUNCTIONS}
    for spelling in names:
        if (name := known.get(spelling.lower())) is None:
            raise ValueError(f"unknown activation {spelling!r}; there are: {', '.join(_FUNCTIONS)}")
        _, defaults = _FUNCTIONS[name]
        coefficients = [queue.pop(0) if queue else default for queue, default in zip(queues, defaults, strict=False)]
        result.append(Activation(name, tuple(map(float, coefficients))))
    return tuple(result)
