"""Quantised arithmetic: conversion to and from small types, and products of quantised operands.

Values are rounded half to even, and products of integers accumulate in int32. A quotient is rounded to its type before
it is rounded to an integer, because an error in the last bit could move the value to a different integer.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.cells.forms import is_plain
from jaxrnn.jaxprs.own import one_equation
from jaxrnn.onnx.operators.arithmetic import is_integer
from jaxrnn.onnx.operators.linear import conv
from jaxrnn.onnx.operators.shaping import axes_of
from jaxrnn.onnx.operators.types import convert, numpy_dtype
from jaxrnn.onnx.registry import bounded, inherits, since
from jaxrnn.onnx.values import Value, dtype_of, traced


def wide(x: Value) -> jax.Array:
    """Convert a quantised tensor to the type in which products accumulate."""
    array = traced(x)
    return array.astype(jnp.int32 if is_integer(array) else jnp.float32)


def _spread(value: jax.Array, shape: tuple[Any, ...], axis: int, block_size: int) -> jax.Array:
    """Reshape a scale or zero point (of a tensor, of indices of an axis, or of blocks) so that it broadcasts."""
    if value.ndim == 0 or value.shape == (1,):
        return value.reshape(())
    (axis,) = axes_of([axis], len(shape))
    if not block_size:
        if value.shape != (shape[axis],):
            raise ValueError(f"the scale has shape {value.shape}, but axis {axis} has size {shape[axis]}")
        return value.reshape(tuple(-1 if index == axis else 1 for index in range(len(shape))))
    if block_size < 0:
        raise ValueError(f"block_size must not be negative, not {block_size}")
    expected = tuple(-(-size // block_size) if index == axis else size for index, size in enumerate(shape))
    if value.shape != expected:
        raise ValueError(
            f"the scale has shape {value.shape}, but blocks of {block_size} on axis {axis} need {expected}"
        )
    return lax.slice_in_dim(jnp.repeat(value, block_size, axis), 0, shape[axis], axis=axis)


def _zero_point(zero_point: Value, scale: Value, shape: tuple[Any, ...], axis: int, block_size: int) -> Any:
    if zero_point is None:
        return jnp.zeros((), jnp.int32)
    if tuple(zero_point.shape) != tuple(scale.shape) and {zero_point.size, scale.size} != {1}:
        raise ValueError(f"scale and zero point must have equal shapes, not {scale.shape} and {zero_point.shape}")
    return _spread(wide(zero_point), shape, axis, block_size)


def _rounded(x: jax.Array) -> jax.Array:
    """Round a value to its type, even if XLA would use a higher precision."""
    info = jnp.finfo(x.dtype)
    return x if info.bits >= 32 else lax.reduce_precision(x, info.nexp, info.nmant)


def quotient(x: jax.Array, scale: jax.Array, dtype: np.dtype) -> jax.Array:
    """Divide with a single rounding: XLA replaces division by a broadcast scale with ``x * (1 / scale)``.

    The divisor therefore depends on the dividend: NaN divides to NaN.
    """
    x, scale = _rounded(x.astype(dtype)), _rounded(scale.astype(dtype))
    return _rounded(x / jnp.where(jnp.isnan(x), x, scale))


def quantized(value: jax.Array, zero_point: jax.Array, dtype: np.dtype) -> Value:
    """Add the zero point to a value in steps, and round to a small type."""
    if is_plain() and dtype.name in ("int8", "uint8") and value.dtype == jnp.float32 and zero_point.size == 1:
        one, zero = jnp.ones((), jnp.float32), zero_point.reshape(()).astype(dtype)
        return quantize_linear(value, one, zero)  # one node in a file
    return _quantized(value, zero_point, dtype)


def _quantized(value: jax.Array, zero_point: jax.Array, dtype: np.dtype, saturate: bool = True) -> Value:
    if not jnp.issubdtype(dtype, jnp.integer):
        return convert(value.astype(jnp.float32) + zero_point.astype(jnp.float32), dtype, saturate)
    info = jnp.iinfo(dtype)
    value = value if value.dtype == jnp.float64 else value.astype(jnp.float32)
    low, high = ((limit - zero_point).astype(value.dtype) for limit in (info.min, info.max))
    return (jnp.clip(jnp.round(value), low, high).astype(jnp.int32) + zero_point).astype(dtype)


def _division_dtype(x: jax.Array, scale: jax.Array) -> np.dtype:
    """Return the scale's type, unless it stores only powers of two (float8e8m0) or integers."""
    if is_integer(scale):
        return np.dtype(np.float64)
    if scale.dtype.itemsize == 1:
        return np.dtype(np.float32) if is_integer(x) else np.dtype(x.dtype)
    return np.dtype(scale.dtype)


@one_equation("QuantizeLinear", "elements")
def quantize_linear(
    x: Value,
    y_scale: Value,
    y_zero_point: Value = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Value:
    """QuantizeLinear: ``x / y_scale + y_zero_point`` in the zero point's type, by default uint8."""
    dtype = numpy_dtype(output_dtype) if output_dtype else np.dtype(np.uint8)
    if y_zero_point is not None:
        if output_dtype and dtype_of(y_zero_point) != dtype:
            raise TypeError(f"output_dtype is {dtype.name}, but the zero point is {dtype_of(y_zero_point).name}")
        dtype = dtype_of(y_zero_point)
    x, scale = traced(x), traced(y_scale)
    division = numpy_dtype(precision) if precision else _division_dtype(x, scale)
    steps = quotient(x, _spread(scale.astype(division), x.shape, axis, block_size), division)
    zero_point = _zero_point(y_zero_point, y_scale, x.shape, axis, block_size)
    return _quantized(steps, zero_point, dtype, bool(saturate))


@one_equation("DequantizeLinear", "elements")
def dequantize_linear(
    x: Value,
    x_scale: Value,
    x_zero_point: Value = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Value:
    """DequantizeLinear: ``(x - x_zero_point) * x_scale``, rounded once, to the scale's type or to ``output_dtype``."""
    dtype = numpy_dtype(output_dtype) if output_dtype else dtype_of(x_scale)
    if x_zero_point is not None and dtype_of(x_zero_point) != dtype_of(x):
        raise TypeError(
            f"x and its zero point must have equal types, not {dtype_of(x).name} and {dtype_of(x_zero_point).name}"
        )
    steps = wide(x)
    if x_zero_point is not None:
        steps = steps - _zero_point(x_zero_point, x_scale, steps.shape, axis, block_size)
    scale = _spread(traced(x_scale).astype(jnp.float32), steps.shape, axis, block_size)
    return (steps.astype(jnp.float32) * scale).astype(dtype)


@one_equation("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Value) -> list[Value]:
    """DynamicQuantizeLinear: uint8 over the range of the data and 0; the scale is 1 for data of zeros."""
    x = traced(x)
    low, high = jnp.min(x, initial=0), jnp.max(x, initial=0)
    scale = jnp.where(high == low, jnp.ones((), x.dtype), quotient(high - low, jnp.full((), 255, x.dtype), x.dtype))
    zero_point = jnp.round(jnp.clip(-quotient(low, scale, x.dtype), 0, 255)).astype(jnp.int32)
    y = quantized(quotient(x, scale, x.dtype), zero_point, np.dtype(np.uint8))
    return [y, scale, zero_point.astype(jnp.uint8)]


def of_matrix(value: jax.Array, matrix: jax.Array, axis: int, name: str) -> jax.Array:
    """Reshape a scale or zero point of a matrix: a single number, or a number for each row (axis -2) or column (-1)."""
    if value.size == 1:
        return value.reshape(())
    if value.ndim == 1 and (matrix.ndim < -axis or value.shape[0] != matrix.shape[axis]):
        raise ValueError(f"{name} has shape {value.shape}, but axis {axis} of {matrix.shape} needs one entry for each")
    return value[:, None] if value.ndim == 1 and axis == -2 else value


@one_equation("MatMulInteger", "rows")
def matmul_integer(a: Value, b: Value, a_zero_point: Value = None, b_zero_point: Value = None) -> Value:
    """MatMulInteger: the product of the operands less their zero points; int32, which wraps around."""
    a, b = wide(a), wide(b)
    if a_zero_point is not None:
        a = a - of_matrix(wide(a_zero_point), a, -2, "a_zero_point")
    if b_zero_point is not None:
        b = b - of_matrix(wide(b_zero_point), b, -1, "b_zero_point")
    return jnp.matmul(a, b)


def requantized(product: jax.Array, factor: jax.Array, y_zero_point: Value) -> Value:
    """Multiply an accumulated product by the ratio of the scales, and round to the output's type."""
    scaled = product.astype(jnp.float32) * factor
    return quantized(scaled, wide(y_zero_point), dtype_of(y_zero_point))


@one_equation("QLinearMatMul", "rows")
def q_linear_matmul(
    a: Value,
    a_scale: Value,
    a_zero_point: Value,
    b: Value,
    b_scale: Value,
    b_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
) -> Value:
    """QLinearMatMul: the product of two quantised matrices, quantised. The ratio of the scales is a float32."""
    product = matmul_integer(a, b, a_zero_point, b_zero_point)
    scales = [traced(scale).astype(jnp.float32) for scale in (a_scale, b_scale, y_scale)]
    left, right = of_matrix(scales[0], traced(a), -2, "a_scale"), of_matrix(scales[1], traced(b), -1, "b_scale")
    factor = quotient(left * right, of_matrix(scales[2], product, -2, "y_scale"), np.dtype(np.float32))
    zero_point = of_matrix(traced(y_zero_point), product, -2, "y_zero_point")
    return requantized(product, factor, zero_point)


def _of_channels(value: Value, w: Value, name: str) -> Value:
    """Reshape a scale or zero point of a kernel: a single number, or a number for each output channel."""
    value = traced(value)
    if value.size == 1:
        return value.reshape(())
    if value.shape != (w.shape[0],):
        raise ValueError(f"{name} has shape {value.shape}, but the kernel has {w.shape[0]} output channels")
    return value.reshape((-1,) + (1,) * (len(w.shape) - 1))


def _convolved(x: Value, w: Value, x_zero_point: Value, w_zero_point: Value, b: Value, **window: Any) -> Value:
    """Convolve the operands less their zero points; padding means 0."""
    wide_x, wide_w = wide(x), wide(w)
    if x_zero_point is not None:
        wide_x = wide_x - wide(x_zero_point).reshape(())
    if w_zero_point is not None:
        wide_w = wide_w - wide(_of_channels(w_zero_point, w, "w_zero_point"))
    return conv(wide_x, wide_w, b, **window)


@one_equation("ConvInteger", "windows")
@inherits(conv)
def conv_integer(x: Value, w: Value, x_zero_point: Value = None, w_zero_point: Value = None, **window: Any) -> Value:
    """ConvInteger: the convolution of the operands less their zero points; int32, which wraps around."""
    return _convolved(x, w, x_zero_point, w_zero_point, None, **window)


@one_equation("QLinearConv", "windows")
@inherits(conv)
def q_linear_conv(
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    w: Value,
    w_scale: Value,
    w_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    B: Value = None,
    **window: Any,
) -> Value:
    """QLinearConv: the convolution of two quantised operands, quantised; the bias is in units of both their scales."""
    product = _convolved(x, w, x_zero_point, w_zero_point, B, **window)
    of_kernel = _of_channels(w_scale, w, "w_scale")
    scales = traced(x_scale).reshape(()) * (of_kernel[:, 0] if of_kernel.ndim else of_kernel)
    factor = quotient(scales, traced(y_scale).reshape(()), np.dtype(np.float32))
    return requantized(product, factor, traced(y_zero_point).reshape(()))


OPERATORS = {
    "ConvInteger": since(conv_integer, 10),
    "DequantizeLinear": bounded(dequantize_linear, 10, 13, 19, 21, 23, 24, 25, 28),
    "DynamicQuantizeLinear": since(dynamic_quantize_linear, 11),
    "MatMulInteger": since(matmul_integer, 10),
    "QLinearConv": since(q_linear_conv, 10),
    "QLinearMatMul": since(q_linear_matmul, 10, 21),
    "QuantizeLinear": bounded(quantize_linear, 10, 13, 19, 21, 23, 24, 25, 28),
}
