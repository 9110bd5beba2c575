"""Normalisations of ONNX Runtime: LayerNormalization and RMSNormalization under other names, and after a skip.

Before ONNX had them, exporters wrote LayerNormalization and SimplifiedLayerNormalization into its own domain.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp

from jaxrnn.onnx.operators.normalization import layer_normalization, normalized
from jaxrnn.onnx.operators.rounding import wide_type
from jaxrnn.onnx.operators.types import numpy_dtype
from jaxrnn.onnx.registry import since
from jaxrnn.onnx.values import Value, traced


def simplified_layer_normalization(
    x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, output_count: int = 1
) -> list[Value]:
    """SimplifiedLayerNormalization: over the root of the mean square, which is the second output, as its inverse."""
    x = traced(x)
    y, _, inverse = normalized(x.astype(numpy_dtype(stash_type)), axis, epsilon, centred=False)
    return [y.astype(x.dtype) * traced(scale).astype(x.dtype), inverse][:output_count]


def _sum_normalized(parts: Sequence[Value], gamma: Value, beta: Value, epsilon: float, *, centred: bool) -> list[Value]:
    """Parts added in at least 32 bits, and normalised: that, mean, inverse deviation, and the sum."""
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
    return _sum_normalized((input, skip, bias), gamma, beta, epsilon, centred=True)[:output_count]


def skip_simplified_layer_normalization(
    input: Value, skip: Value, gamma: Value, bias: Value = None, *, epsilon: float = 1e-12, output_count: int = 1
) -> list[Value]:
    """SkipSimplifiedLayerNormalization: RMSNormalization over the last axis of input + skip + bias."""
    return _sum_normalized((input, skip, bias), gamma, None, epsilon, centred=False)[:output_count]


OPERATORS = {
    "SimplifiedLayerNormalization": since(simplified_layer_normalization, 1),
    "com.microsoft::LayerNormalization": since(layer_normalization, 1),
    "com.microsoft::SimplifiedLayerNormalization": since(simplified_layer_normalization, 1),
    "com.microsoft::SkipLayerNormalization": since(skip_layer_normalization, 1),
    "com.microsoft::SkipSimplifiedLayerNormalization": since(skip_simplified_layer_normalization, 1),
}
