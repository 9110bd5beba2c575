"""Activations of the domain ``com.microsoft``, alone and fused with a product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrnn.onnx.operators import activations
from jaxrnn.onnx.operators.arithmetic import clip_6, unary
from jaxrnn.onnx.operators.rounding import wide_type
from jaxrnn.onnx.registry import elementwise, since
from jaxrnn.onnx.values import Value, traced

#: The functions that may follow a product, and the names of their coefficients in the order of ``activation_params``.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "Clip": (clip_6, ("min", "max")),
    "Elu": (activations.elu, ("alpha",)),
    "HardSigmoid": (activations.hard_sigmoid, ("alpha", "beta")),
    "LeakyRelu": (activations.leaky_relu, ("alpha",)),
    "Relu": (activations.relu, ()),
    "Selu": (activations.selu, ("alpha", "gamma")),
    "Sigmoid": (unary(jax.nn.sigmoid), ()),
    "Softplus": (unary(jax.nn.softplus), ()),
    "Softsign": (unary(jax.nn.soft_sign), ()),
    "Tanh": (unary(jnp.tanh), ()),
    "ThresholdedRelu": (activations.thresholded_relu, ("alpha",)),
}


def coefficients_of(activation: str) -> tuple[str, ...]:
    """The names of an activation's coefficients.

    Raises:
        ValueError: there is no such activation.
    """
    if activation not in _FUNCTIONS:
        raise ValueError(f"activation must be one of {', '.join(_FUNCTIONS)}, not {activation!r}")
    return _FUNCTIONS[activation][1]


def activate(x: Value, activation: str, coefficients: Sequence[float | None]) -> Value:
    """Apply an activation to a product; an empty name leaves it as it is.

    Args:
        x: the product.
        activation: the name of the activation, or an empty string.
        coefficients: its coefficients in order; None stands for the default.
    """
    if not activation:
        if any(value is not None for value in coefficients):
            raise ValueError("coefficients of an activation are given, but no activation is")
        return x
    names = coefficients_of(activation)
    if len(coefficients) > len(names):
        raise ValueError(f"{activation} takes {len(names)} coefficients, not {len(coefficients)}")
    named = {name: value for name, value in zip(names, coefficients, strict=False) if value is not None}
    return _FUNCTIONS[activation][0](x, **named)


def gelu(x: Value) -> Value:
    """Gelu, by erf."""
    x = traced(x)
    return activations.gelu(x.astype(wide_type(x.dtype))).astype(x.dtype)


def bias_gelu(a: Value, b: Value) -> Value:
    """BiasGelu: Gelu of a sum."""
    return gelu(traced(a) + traced(b))


def fast_gelu(x: Value, bias: Value = None) -> Value:
    """FastGelu: Gelu by tanh, of the input or of its sum with a bias."""
    x = traced(x) if bias is None else traced(x) + traced(bias)
    wide = x.astype(wide_type(x.dtype))
    number = wide.dtype.type
    inner = wide * (number(math.sqrt(2 / math.pi)) + number(0.044715 * math.sqrt(2 / math.pi)) * wide * wide)
    return (number(0.5) * wide * (1 + jnp.tanh(inner))).astype(x.dtype)


def quick_gelu(x: Value, *, alpha: float = 1.702) -> Value:
    """QuickGelu: x times the sigmoid of alpha x."""
    return activations.swish(x, alpha=alpha)


OPERATORS = {
    "com.microsoft::BiasGelu": since(bias_gelu, 1),
    "com.microsoft::FastGelu": since(fast_gelu, 1),
    "com.microsoft::Gelu": elementwise(gelu, 1),
    "com.microsoft::QuickGelu": elementwise(quick_gelu, 1),
}
