"""Activation functions, with ONNX's default coefficients, and the softmax family."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxrnn.cells.cell import elu as elu_of
from jaxrnn.cells.cell import relu as relu_of
from jaxrnn.onnx.operators.arithmetic import of_one_type, unary
from jaxrnn.onnx.operators.reduction import first_extreme
from jaxrnn.onnx.registry import bounded, elementwise, since
from jaxrnn.onnx.values import Value, check_choice, traced


def relu(x: Value) -> Value:
    """Relu of floats and integers."""
    x = traced(x)
    return relu_of(x) if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.maximum(x, jnp.zeros((), x.dtype))


def leaky_relu(x: Value, *, alpha: float = 0.01) -> Value:
    """LeakyRelu."""
    x = traced(x)
    return jnp.where(x >= 0, x, x * x.dtype.type(alpha))


def prelu(x: Value, slope: Value) -> Value:
    """PRelu: the slope is broadcast to the input."""
    x, slope = traced(x), traced(slope)
    return jnp.where(x < 0, x * slope, x)


def elu(x: Value, *, alpha: float = 1.0) -> Value:
    """Elu."""
    x = traced(x)
    return elu_of(x, x.dtype.type(alpha))


def celu(x: Value, *, alpha: float = 1.0) -> Value:
    """Celu."""
    return jax.nn.celu(traced(x), alpha)


def selu(x: Value, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Value:
    """Selu."""
    x = traced(x)
    return x.dtype.type(gamma) * elu(x, alpha=alpha)


def hard_sigmoid(x: Value, *, alpha: float = 0.2, beta: float = 0.5) -> Value:
    """HardSigmoid."""
    x = traced(x)
    return jnp.clip(x * x.dtype.type(alpha) + x.dtype.type(beta), 0, 1)


def hard_swish(x: Value) -> Value:
    """HardSwish: x times HardSigmoid of slope 1/6."""
    x = traced(x)
    return x * hard_sigmoid(x, alpha=1 / 6, beta=0.5)


def thresholded_relu(x: Value, *, alpha: float = 1.0) -> Value:
    """ThresholdedRelu."""
    x = traced(x)
    return jnp.where(x > x.dtype.type(alpha), x, jnp.zeros((), x.dtype))


def shrink(x: Value, *, bias: float = 0.0, lambd: float = 0.5) -> Value:
    """Shrink."""
    x = traced(x)
    # The coefficients of integers may be fractions.
    wide = x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float64)
    b, zero = jnp.asarray(bias).astype(wide.dtype), jnp.zeros((), wide.dtype)
    return jnp.where(wide < -lambd, wide + b, jnp.where(wide > lambd, wide - b, zero)).astype(x.dtype)


def gelu(x: Value, *, approximate: str = "none") -> Value:
    """Gelu, by erf or by the tanh approximation."""
    check_choice("approximate", approximate, ("none", "tanh"))
    x = traced(x)
    if approximate == "tanh":
        return jax.nn.gelu(x, approximate=True)
    return x.dtype.type(0.5) * x * (1 + jax.lax.erf(x * x.dtype.type(1 / math.sqrt(2))))


def swish(x: Value, *, alpha: float = 1.0) -> Value:
    """Swish: x times the sigmoid of alpha x."""
    x = traced(x)
    return x * jax.nn.sigmoid(x.dtype.type(alpha) * x)


def swiglu(a: Value, b: Value, *, alpha: float = 1.0) -> Value:
    """SwiGLU: Swish of the gate times the value; the two are not broadcast."""
    of_one_type(a, b)
    if tuple(a.shape) != tuple(b.shape):
        raise ValueError(f"the gate and the value must have equal shapes, not {tuple(a.shape)} and {tuple(b.shape)}")
    return swish(a, alpha=alpha) * traced(b)


def mish(x: Value) -> Value:
    """Mish: x times tanh of softplus of x."""
    x = traced(x)
    return x * jnp.tanh(jax.nn.softplus(x))


def hardmax(x: Value, *, axis: int = -1) -> Value:
    """Hardmax: 1 at the first maximum along the axis, else 0."""
    x = traced(x)
    return jax.nn.one_hot(first_extreme(x, axis % x.ndim, "argmax"), x.shape[axis], dtype=x.dtype, axis=axis)


def along(function: Callable[..., Any]) -> Callable[..., Value]:
    """Return a softmax-like operator along one axis (opset 13 and later)."""
    return lambda x, *, axis=-1: function(traced(x), axis=axis)


def flattened(function: Callable[..., Any]) -> Callable[..., Value]:
    """Return a softmax-like operator over all axes from ``axis`` on (before opset 13)."""

    def apply(x: Value, *, axis: int = 1) -> Value:
        x = traced(x)
        start = axis % max(x.ndim, 1)
        rows = x.reshape(*x.shape[:start], math.prod(x.shape[start:]))
        return function(rows, axis=-1).reshape(x.shape)

    return apply


OPERATORS = {
    "Celu": elementwise(celu, 12, 28),
    "Elu": elementwise(elu, 6, 22),
    "Gelu": elementwise(gelu, 20),
    "HardSigmoid": elementwise(hard_sigmoid, 6, 22),
    "HardSwish": elementwise(hard_swish, 14, 22),
    "Hardmax": since(flattened(hardmax), 1, 11) | bounded(hardmax, 13),
    "LeakyRelu": elementwise(leaky_relu, 6, 16),
    "LogSoftmax": since(flattened(jax.nn.log_softmax), 1, 11) | bounded(along(jax.nn.log_softmax), 13),
    "Mish": elementwise(mish, 18, 22),
    "PRelu": elementwise(prelu, 7, 9, 16),
    "Relu": elementwise(relu, 6, 13, 14),
    "Selu": elementwise(selu, 6, 22),
    "Shrink": elementwise(shrink, 9),
    "Sigmoid": elementwise(unary(lax.logistic), 6, 13),
    "Softmax": since(flattened(jax.nn.softmax), 1, 11) | bounded(along(jax.nn.softmax), 13),
    "Softplus": elementwise(unary(jax.nn.softplus), 1, 22),
    "Softsign": elementwise(unary(jax.nn.soft_sign), 1, 22),
    "SwiGLU": elementwise(swiglu, 28),
    "Swish": elementwise(swish, 24),
    "Tanh": elementwise(unary(lax.tanh), 6, 13),
    "ThresholdedRelu": elementwise(thresholded_relu, 10, 22),
}
