"""Operators of ``com.microsoft`` on quantised tensors, element by element, and their joins and means.

They are written as ONNX Runtime computes them, in float32 and with the products of scales that it forms first, so that
integers come out the same. A function of one tensor is a table of its 256 values there, as here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.onnx.operators.activations import leaky_relu
from jaxrnn.onnx.operators.quantization import quantized, quotient, wide
from jaxrnn.onnx.registry import since
from jaxrnn.onnx.values import Value, dtype_of, traced

_FLOAT = np.dtype(np.float32)


def _number(scale: Value) -> jax.Array:
    return traced(scale).reshape(())


def _zero(zero_point: Value) -> jax.Array:
    return jnp.zeros((), jnp.int32) if zero_point is None else wide(zero_point).reshape(())


def _of_two(total: Callable[..., jax.Array]) -> Callable[..., Value]:
    """An operator of two quantised tensors, with broadcasting.

    Args:
        total: its result in units of the result's scale, zero point included: of the two tensors as integers, and of
            the three scales and the three zero points as scalars.
    """

    def apply(
        a: Value,
        a_scale: Value,
        a_zero_point: Value,
        b: Value,
        b_scale: Value,
        b_zero_point: Value,
        c_scale: Value,
        c_zero_point: Value = None,
    ) -> Value:
        scales = list(map(_number, (a_scale, b_scale, c_scale)))
        zeros = list(map(_zero, (a_zero_point, b_zero_point, c_zero_point)))
        return quantized(total(wide(a), wide(b), scales, zeros), jnp.zeros((), jnp.int32), dtype_of(a))

    return apply


def _sum(a: jax.Array, b: jax.Array, scales: Sequence[jax.Array], zeros: Sequence[jax.Array]) -> jax.Array:
    left, right = quotient(scales[0], scales[2], _FLOAT), quotient(scales[1], scales[2], _FLOAT)
    zeros = [zero.astype(jnp.float32) for zero in zeros]
    fixed = zeros[2] - (left * zeros[0] + right * zeros[1])
    return fixed + a.astype(jnp.float32) * left + b.astype(jnp.float32) * right


def _product(a: jax.Array, b: jax.Array, scales: Sequence[jax.Array], zeros: Sequence[jax.Array]) -> jax.Array:
    factor = quotient(scales[0] * scales[1], scales[2], _FLOAT)
    product = (a - zeros[0]) * (b - zeros[1])
    return product.astype(jnp.float32) * factor + zeros[2].astype(jnp.float32)


def _by_table(x: Value, function: Callable[[jax.Array], jax.Array]) -> Value:
    """A function of quantised values, from a table of them: it takes int32 and gives the values' own type."""
    x = traced(x)
    low = jnp.iinfo(x.dtype).min
    table = function(jnp.arange(low, low + 256, dtype=jnp.int32))
    return table[x.astype(jnp.int32) - low]


def _function(x: Value, scales: tuple[Value, Value], zeros: tuple[Value, Value], of: Callable[[jax.Array], jax.Array]):
    def apply(steps: jax.Array) -> jax.Array:
        y = of((steps - _zero(zeros[0])).astype(jnp.float32) * _number(scales[0]))
        return quantized(quotient(y, _number(scales[1]), _FLOAT), _zero(zeros[1]), dtype_of(x))

    return _by_table(x, apply)


def q_linear_sigmoid(
    x: Value, x_scale: Value, x_zero_point: Value, y_scale: Value, y_zero_point: Value = None
) -> Value:
    """QLinearSigmoid."""
    return _function(x, (x_scale, y_scale), (x_zero_point, y_zero_point), jax.nn.sigmoid)


def q_linear_leaky_relu(
    x: Value, x_scale: Value, x_zero_point: Value, y_scale: Value, y_zero_point: Value = None, *, alpha: float = 0.01
) -> Value:
    """QLinearLeakyRelu."""
    return _function(x, (x_scale, y_scale), (x_zero_point, y_zero_point), lambda v: leaky_relu(v, alpha=alpha))


def q_linear_concat(y_scale: Value, y_zero_point: Value, *inputs: Value, axis: int) -> Value:
    """QLinearConcat of tensors that come with a scale and a zero point each."""
    if len(inputs) % 3 or not inputs:
        raise ValueError(f"each tensor needs a scale and a zero point, but there are {len(inputs)} inputs")
    parts = [
        _function(x, (scale, y_scale), (zero, y_zero_point), lambda value: value)
        for x, scale, zero in zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    ]
    return jnp.concatenate(parts, axis)


def q_linear_global_average_pool(
    x: Value, x_scale: Value, x_zero_point: Value, y_scale: Value, y_zero_point: Value, *, channels_last: int = 0
) -> Value:
    """QLinearGlobalAveragePool over all axes but those of the batch and the channels."""
    steps = wide(x)
    axes = tuple(range(1, steps.ndim - 1)) if channels_last else tuple(range(2, steps.ndim))
    count = np.prod([steps.shape[axis] for axis in axes], dtype=np.int64)
    total = jnp.sum(steps, axes, keepdims=True, dtype=jnp.int32) - _zero(x_zero_point) * jnp.asarray(count, jnp.int32)
    factor = quotient(_number(x_scale), _number(y_scale) * np.float32(count), _FLOAT)
    return quantized(total.astype(jnp.float32) * factor, _zero(y_zero_point), dtype_of(x))


OPERATORS = {
    "com.microsoft::QLinearAdd": since(_of_two(_sum), 1),
    "com.microsoft::QLinearConcat": since(q_linear_concat, 1),
    "com.microsoft::QLinearGlobalAveragePool": since(q_linear_global_average_pool, 1),
    "com.microsoft::QLinearLeakyRelu": since(q_linear_leaky_relu, 1),
    "com.microsoft::QLinearMul": since(_of_two(_product), 1),
    "com.microsoft::QLinearSigmoid": since(q_linear_sigmoid, 1),
}
