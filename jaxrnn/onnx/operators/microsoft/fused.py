"""Fused activations, normalisations and products of the domain ``com.microsoft``.

Source of the definitions: ContribOperators.md and the results of ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrnn.cells.forms import product
from jaxrnn.onnx.operators import activations
from jaxrnn.onnx.operators.arithmetic import clip_6, of_one_type, unary
from jaxrnn.onnx.operators.linear import conv, gemm
from jaxrnn.onnx.operators.normalization import layer_normalization, normalized
from jaxrnn.onnx.operators.types import numpy_dtype, wide_type
from jaxrnn.onnx.registry import Versions, elementwise, inherits, since
from jaxrnn.onnx.values import Value, check_choice, traced

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
    """Return the names of the coefficients of an activation; raise ValueError for an unknown activation."""
    check_choice("activation", activation, _FUNCTIONS)
    return _FUNCTIONS[activation][1]


def activate(x: Value, activation: str, coefficients: Sequence[float | None]) -> Value:
    """Apply an activation to a product; an empty name returns the product."""
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
    """FastGelu: Gelu by tanh, of the input or of the sum of input and bias."""
    x = traced(x) if bias is None else traced(x) + traced(bias)
    wide = x.astype(wide_type(x.dtype))
    number = wide.dtype.type
    inner = wide * (number(math.sqrt(2 / math.pi)) + number(0.044715 * math.sqrt(2 / math.pi)) * wide * wide)
    return (number(0.5) * wide * (1 + jnp.tanh(inner))).astype(x.dtype)


def quick_gelu(x: Value, *, alpha: float = 1.702) -> Value:
    """QuickGelu: x times the sigmoid of alpha x."""
    return activations.swish(x, alpha=alpha)


def simplified_layer_normalization(
    x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, output_count: int = 1
) -> list[Value]:
    """SimplifiedLayerNormalization: RMSNormalization with the inverse of the root as second output."""
    x = traced(x)
    y, _, inverse = normalized(x.astype(numpy_dtype(stash_type)), axis, epsilon, centred=False)
    return [y.astype(x.dtype) * traced(scale).astype(x.dtype), inverse][:output_count]


def sum_normalized(parts: Sequence[Value], gamma: Value, beta: Value, epsilon: float, *, centred: bool) -> list[Value]:
    """Add parts in at least 32 bits and normalise; return result, mean, inverse deviation and sum."""
    arrays = [traced(value) for value in parts if value is not None]
    dtype, wide = arrays[0].dtype, wide_type(arrays[0].dtype)
    total = jnp.asarray(sum(array.astype(wide) for array in arrays))
    y, mean, inverse = normalized(total, -1, epsilon, centred=centred)
    y = y * traced(gamma).astype(wide)
    if beta is not None:
        y = y + traced(beta).astype(wide)
    return [y.astype(dtype), jnp.zeros_like(inverse) if mean is None else mean, inverse, total.astype(dtype)]


def skip_layer_normalization(
    input: Value,
    skip: Value,
    gamma: Value,
    beta: Value = None,
    bias: Value = None,
    *,
    epsilon: float = 1e-12,
    output_count: int = 1,
) -> list[Value]:
    """SkipLayerNormalization: LayerNormalization over the last axis of input + skip + bias."""
    return sum_normalized((input, skip, bias), gamma, beta, epsilon, centred=True)[:output_count]


def skip_simplified_layer_normalization(
    input: Value, skip: Value, gamma: Value, bias: Value = None, *, epsilon: float = 1e-12, output_count: int = 1
) -> list[Value]:
    """SkipSimplifiedLayerNormalization: RMSNormalization over the last axis of input + skip + bias."""
    return sum_normalized((input, skip, bias), gamma, None, epsilon, centred=False)[:output_count]


def _turned(x: Value, last: int, batch: int) -> jax.Array:
    """Transpose the last two axes of an operand, optionally after moving the first axis before the last."""
    x = traced(x)
    if x.ndim < 2:
        return x
    if batch:
        x = jnp.moveaxis(x, 0, -2)
    return jnp.swapaxes(x, -1, -2) if last else x


def fused_matmul(
    a: Value,
    b: Value,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Value:
    """FusedMatMul (earlier called TransposeMatMul): a scaled product of transposed operands."""
    of_one_type(a, b)
    result = product(_turned(a, transA, transBatchA), _turned(b, transB, transBatchB))
    return result if alpha == 1.0 else result * result.dtype.type(alpha)


@inherits(gemm)
def fused_gemm(
    a: Value,
    b: Value,
    c: Value = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    **scaling: Any,
) -> Value:
    """FusedGemm: Gemm, then an activation with named coefficients."""
    coefficients = {"alpha": activation_alpha, "beta": activation_beta, "gamma": activation_gamma}
    names = coefficients_of(activation) if activation else ()
    unknown = [name for name, value in coefficients.items() if value is not None and name not in names]
    if unknown:
        raise ValueError(f"the activation {activation!r} has no coefficient {unknown[0]!r}")
    result = gemm(a, b, c, **scaling)
    return activate(result, activation, [coefficients.get(name) for name in names])


@inherits(conv)
def fused_conv(
    x: Value,
    w: Value,
    b: Value = None,
    z: Value = None,
    *,
    activation: str = "",
    activation_params: tuple[float, ...] = (),
    **window: Any,
) -> Value:
    """FusedConv: Conv, plus an optional tensor, then an activation."""
    y = conv(x, w, b, **window)
    return activate(y if z is None else y + traced(z), activation, activation_params)


OPERATORS: dict[str, Versions] = {
    "com.microsoft::BiasGelu": since(bias_gelu, 1),
    "com.microsoft::FastGelu": since(fast_gelu, 1),
    "com.microsoft::Gelu": elementwise(gelu, 1),
    "com.microsoft::QuickGelu": elementwise(quick_gelu, 1),
    "SimplifiedLayerNormalization": since(simplified_layer_normalization, 1),
    "com.microsoft::LayerNormalization": since(layer_normalization, 1),
    "com.microsoft::SimplifiedLayerNormalization": since(simplified_layer_normalization, 1),
    "com.microsoft::SkipLayerNormalization": since(skip_layer_normalization, 1),
    "com.microsoft::SkipSimplifiedLayerNormalization": since(skip_simplified_layer_normalization, 1),
    "com.microsoft::FusedConv": since(fused_conv, 1),
    "com.microsoft::FusedGemm": since(fused_gemm, 1),
    "com.microsoft::FusedMatMul": since(fused_matmul, 1),
    "com.microsoft::TransposeMatMul": since(fused_matmul, 1),
}
