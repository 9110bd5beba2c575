"""Products of quantised matrices in the domain ``com.microsoft``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.onnx.operators.quantization import (
    dequantize_linear,
    dynamic_quantize_linear,
    matmul_integer,
    of_matrix,
    quantize_linear,
    quantized,
    quotient,
    wide,
)
from jaxrnn.onnx.registry import earlier, since
from jaxrnn.onnx.values import Value, dtype_of, traced


def matmul_integer_to_float(
    a: Value,
    b: Value,
    a_scale: Value,
    b_scale: Value,
    a_zero_point: Value = None,
    b_zero_point: Value = None,
    bias: Value = None,
) -> Value:
    """MatMulIntegerToFloat: the product of two quantised matrices, in the type of their scales."""
    product = matmul_integer(a, b, a_zero_point, b_zero_point)
    left, right = of_matrix(traced(a_scale), product, -2, "a_scale"), of_matrix(traced(b_scale), product, -1, "b_scale")
    y = product.astype(left.dtype) * (left * right)
    return y if bias is None else y + traced(bias)


def dynamic_quantize_matmul(
    a: Value, b: Value, b_scale: Value, b_zero_point: Value = None, bias: Value = None
) -> Value:
    """DynamicQuantizeMatMul: the first operand is quantised to uint8 over its own range before the product."""
    quantized_a, scale, zero_point = dynamic_quantize_linear(a)
    return matmul_integer_to_float(quantized_a, b, scale, b_scale, zero_point, b_zero_point, bias)


def _matrix(value: Value, turned: int) -> jax.Array:
    return wide(value).T if turned else wide(value)


def q_gemm(
    a: Value,
    a_scale: Value,
    a_zero_point: Value,
    b: Value,
    b_scale: Value,
    b_zero_point: Value,
    c: Value = None,
    y_scale: Value = None,
    y_zero_point: Value = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    """QGemm: alpha A' B' plus a bias in units of both scales; quantised, or float32 where no y_scale is given."""
    zero_points = [None if value is None else wide(value) for value in (a_zero_point, b_zero_point)]
    product = matmul_integer(_matrix(a, transA), _matrix(b, transB), *zero_points)
    if c is not None:
        product = product + traced(c)
    scale = np.float32(alpha) * traced(a_scale).reshape(()) * of_matrix(traced(b_scale), product, -1, "b_scale")
    if y_scale is None:
        return product.astype(jnp.float32) * scale
    if y_zero_point is None:
        raise ValueError("y_scale is given, but y_zero_point is not")
    factor = quotient(scale, traced(y_scale).reshape(()), np.dtype(np.float32))
    scaled = product.astype(jnp.float32) * factor
    return quantized(scaled, wide(y_zero_point).reshape(()), dtype_of(y_zero_point))


OPERATORS: dict[str, Any] = {
    # This domain had both for 16 bits before ONNX did.
    "com.microsoft::DequantizeLinear": since(earlier(dequantize_linear, "block_size", "output_dtype"), 1),
    "com.microsoft::DynamicQuantizeMatMul": since(dynamic_quantize_matmul, 1),
    "com.microsoft::MatMulIntegerToFloat": since(matmul_integer_to_float, 1),
    "com.microsoft::QGemm": since(q_gemm, 1),
    "com.microsoft::QuantizeLinear": since(
        earlier(quantize_linear, "block_size", "output_dtype", "precision", "saturate"), 1
    ),
}
