"""Normalisations of ONNX Runtime: LayerNormalization and RMSNormalization under other names, and after a skip.

Before ONNX had them, exporters wrote LayerNormalization and SimplifiedLayerNormalization into its own domain.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxrnn.onnx.operators.normalization import layer_normalization
from jaxrnn.onnx.operators.rounding import wide_type
from jaxrnn.onnx.operators.types import numpy_dtype
from jaxrnn.onnx.registry import since
from jaxrnn.onnx.values import Value, traced


def simplified_layer_normalization(
    x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, output_count: int = 1
) -> list[Value]:
    """SimplifiedLayerNormalization: over the root of the mean square, which is the second output, as its inverse."""
    x = traced(x)
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.astype(numpy_dtype(stash_type))
    inverse = lax.rsqrt(jnp.mean(wide * wide, axes, keepdims=True) + wide.dtype.type(epsilon))
    return [(wide * inverse).astype(x.dtype) * traced(scale).astype(x.dtype), inverse][:output_count]


def _sum(input: Value, skip: Value, bias: Value) -> jax.Array:
    """The input, the skip and the bias, added in at least 32 bits."""
    parts = [traced(value) for value in (input, skip, bias) if value is not None]
    wide = wide_type(parts[0].dtype)
    return jnp.asarray(sum(part.astype(wide) for part in parts))


def _normalized(
    total: jax.Array, dtype, gamma: Value, beta: Value, mean: jax.Array | None, epsilon: float, output_count: int
) -> list[Value]:
    """Outputs: normalised, mean, inverse deviation, and the sum that was normalised."""
    centred = total if mean is None else total - mean
    inverse = lax.rsqrt(jnp.mean(centred * centred, -1, keepdims=True) + total.dtype.type(epsilon))
    y = centred * inverse * traced(gamma).astype(total.dtype)
    if beta is not None:
        y = y + traced(beta).astype(total.dtype)
    saved = jnp.zeros_like(inverse) if mean is None else mean
    return [y.astype(dtype), saved, inverse, total.astype(dtype)][:output_count]


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
    total = _sum(input, skip, bias)
    mean = jnp.mean(total, -1, keepdims=True)
    return _normalized(total, traced(input).dtype, gamma, beta, mean, epsilon, output_count)


def skip_simplified_layer_normalization(
    input: Value, skip: Value, gamma: Value, bias: Value = None, *, epsilon: float = 1e-12, output_count: int = 1
) -> list[Value]:
    """SkipSimplifiedLayerNormalization: RMSNormalization over the last axis of input + skip + bias."""
    total = _sum(input, skip, bias)
    return _normalized(total, traced(input).dtype, gamma, None, None, epsilon, output_count)


OPERATORS = {
    "SimplifiedLayerNormalization": since(simplified_layer_normalization, 1),
    "com.microsoft::LayerNormalization": since(layer_normalization, 1),
    "com.microsoft::SimplifiedLayerNormalization": since(simplified_layer_normalization, 1),
    "com.microsoft::SkipLayerNormalization": since(skip_layer_normalization, 1),
    "com.microsoft::SkipSimplifiedLayerNormalization": since(skip_simplified_layer_normalization, 1),
}
