"""The activation functions that ONNX allows inside a recurrent cell, with their default coefficients.

Source: the operators LSTM, GRU and RNN of the ONNX specification, attribute ``activations``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp


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
        """Element-wise, in the type of ``x``."""
        function, _ = _FUNCTIONS[self.name]
        return function(x, *(jnp.asarray(value, x.dtype) for value in self.coefficients))


SIGMOID, TANH = Activation("Sigmoid"), Activation("Tanh")


def value_and_slope(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The value and the derivative of an element-wise function at x."""
    return jax.jvp(function, (x,), (jnp.ones_like(x),))


def parse_activations(
    names: Sequence[str], alphas: Sequence[float] = (), betas: Sequence[float] = ()
) -> tuple[Activation, ...]:
    """Parse ONNX's three lists of activations; names are case-insensitive.

    Each function consumes the coefficients that it takes, in order. Defaults apply once a list is used up.

    Raises:
        ValueError: a name is unknown.
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
