"""Quantised products, elementwise operators and LSTM of the domain ``com.microsoft``.

DynamicQuantizeLSTM quantises all frames of the input over their common range, and the hidden state of each step over
the range of the batch. Gates, cell state and outputs are float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._jax import varying
from jaxrnn.cells.cell import LSTM
from jaxrnn.cells.recurrence import DIRECTIONS, masked_output, masked_update
from jaxrnn.onnx.operators.activations import along, flattened, leaky_relu
from jaxrnn.onnx.operators.linear import conv
from jaxrnn.onnx.operators.pooling import max_pool, window_sums
from jaxrnn.onnx.operators.quantization import (
    dequantize_linear,
    dynamic_quantize_linear,
    matmul_integer,
    of_matrix,
    q_linear_conv,
    quantize_linear,
    quantized,
    quotient,
    requantized,
    wide,
)
from jaxrnn.onnx.operators.recurrent import checked_lengths, make_cells, visible_layer
from jaxrnn.onnx.registry import Carries, Versions, earlier, inherits, since
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
    """DynamicQuantizeMatMul: the first operand is quantised to uint8 over its range before the product."""
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
    """QGemm: alpha A' B' plus a bias in units of both scales; quantised, or float32 without a y_scale."""
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
    return requantized(product, factor, traced(y_zero_point).reshape(()))


_FLOAT = np.dtype(np.float32)


def _number(scale: Value) -> jax.Array:
    return traced(scale).reshape(())


def _zero(zero_point: Value) -> jax.Array:
    return jnp.zeros((), jnp.int32) if zero_point is None else wide(zero_point).reshape(())


def _of_two(total: Callable[..., jax.Array]) -> Callable[..., Value]:
    """Return an operator of two quantised tensors, with broadcasting."""

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


def _function(x: Value, scales: tuple[Value, Value], zeros: tuple[Value, Value], of: Callable[[jax.Array], jax.Array]):
    """Apply a function of floats to quantised values, by a table of results."""
    x = traced(x)
    low = jnp.iinfo(x.dtype).min
    steps = jnp.arange(low, low + 256, dtype=jnp.int32)
    y = of((steps - _zero(zeros[0])).astype(jnp.float32) * _number(scales[0]))
    table = quantized(quotient(y, _number(scales[1]), _FLOAT), _zero(zeros[1]), dtype_of(x))
    return table[x.astype(jnp.int32) - low]


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
    """QLinearConcat of tensors, each with a scale and a zero point."""
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
    """QLinearGlobalAveragePool over all axes except batch and channels."""
    steps = wide(x)
    axes = tuple(range(1, steps.ndim - 1)) if channels_last else tuple(range(2, steps.ndim))
    count = np.prod([steps.shape[axis] for axis in axes], dtype=np.int64)
    total = jnp.sum(steps, axes, keepdims=True, dtype=jnp.int32) - _zero(x_zero_point) * jnp.asarray(count, jnp.int32)
    factor = quotient(_number(x_scale), _number(y_scale) * np.float32(count), _FLOAT)
    return quantized(total.astype(jnp.float32) * factor, _zero(y_zero_point), dtype_of(x))


def _channels_second(x: Value) -> jax.Array:
    return jnp.moveaxis(traced(x), -1, 1)


@inherits(window_sums)
def q_linear_average_pool(
    x: Value,
    x_scale: Value,
    x_zero_point: Value = None,
    y_scale: Value = None,
    y_zero_point: Value = None,
    *,
    channels_last: int = 0,
    **geometry: Any,
) -> Value:
    """QLinearAveragePool: the average of floats, quantised."""
    if y_scale is None:
        raise ValueError("y_scale must be given")
    array = _channels_second(x) if channels_last else traced(x)
    elements = (wide(array) - _zero(x_zero_point)).astype(jnp.float32) * _number(x_scale)
    total, count = window_sums(elements, **geometry)
    y = quotient(total, jnp.asarray(count), _FLOAT)
    steps = quotient(y, _number(y_scale), _FLOAT) + _zero(y_zero_point).astype(jnp.float32)
    result = quantized(steps, jnp.zeros((), jnp.int32), dtype_of(x))
    return jnp.moveaxis(traced(result), 1, -1) if channels_last else result


def q_linear_softmax(
    x: Value, x_scale: Value, x_zero_point: Value, y_scale: Value, y_zero_point: Value, *, axis: int = -1, opset: int
) -> Value:
    """QLinearSoftmax: a softmax along one axis, or before opset 13 over all axes from ``axis`` on."""
    softmax = (along if opset >= 13 else flattened)(jax.nn.softmax)
    y = softmax((wide(x) - _zero(x_zero_point)).astype(jnp.float32) * _number(x_scale), axis=axis)
    return quantized(quotient(traced(y), _number(y_scale), _FLOAT), _zero(y_zero_point), dtype_of(x))


def q_linear_where(
    condition: Value,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    y: Value,
    y_scale: Value,
    y_zero_point: Value,
    z_scale: Value,
    z_zero_point: Value,
) -> Value:
    """QLinearWhere: an element of the first or the second tensor, each with a scale and a zero point."""
    parts = [
        _function(each, (scale, z_scale), (zero, z_zero_point), lambda value: value)
        for each, scale, zero in ((x, x_scale, x_zero_point), (y, y_scale, y_zero_point))
    ]
    return jnp.where(traced(condition), *parts)


@inherits(conv)
def q_linear_conv_of_images(x: Value, *operands: Value, channels_last: int = 0, **window: Any) -> Value:
    """QLinearConv, also with the channels on the last axis."""
    if not channels_last:
        return q_linear_conv(x, *operands, **window)
    return jnp.moveaxis(traced(q_linear_conv(_channels_second(x), *operands, **window)), 1, -1)


@inherits(max_pool, "auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
def nhwc_max_pool(x: Value, **geometry: Any) -> Value:
    """NhwcMaxPool: MaxPool with the channels on the last axis."""
    return jnp.moveaxis(traced(max_pool(_channels_second(x), **geometry)), 1, -1)


def matmul_integer_16(a: Value, b: Value) -> Value:
    """MatMulInteger16: the product of 16-bit integers; int32, which wraps around."""
    return matmul_integer(a, b)


class RuntimeLSTM(LSTM):
    """An LSTM as in ONNX Runtime: ``clip`` bounds the inputs of the gates, and not the cell state."""

    def _output(self, c: jax.Array) -> jax.Array:
        return self.activations[2](c)


class QuantizedMatrix:
    """Quantised weights of a direction, ``[rows, 4 * hidden]``, with a single scale or a scale for each column."""

    def __init__(self, steps: Value, scale: Value, zero_point: Value):
        self.scale = traced(scale)
        self.steps = wide(steps)
        if zero_point is not None:
            self.steps = self.steps - wide(zero_point)

    def times(self, x: jax.Array) -> jax.Array:
        """Return ``x @ self`` for an x that is quantised over the whole range: ``[..., rows] -> [..., 4 * hidden]``."""
        quantized, scale, zero_point = dynamic_quantize_linear(x)
        product = jnp.matmul(wide(quantized) - wide(zero_point), self.steps)
        return product.astype(x.dtype) * (scale * self.scale)


def _matrices(
    steps: Value, scale: Value, zero_point: Value, rows: Any, hidden: int, name: str
) -> list[QuantizedMatrix]:
    """Return a matrix for each direction."""
    shape = tuple(steps.shape)
    if len(shape) != 3 or shape[1:] != (rows, 4 * hidden):
        raise ValueError(f"{name} has shape {shape}, but (directions, {rows}, {4 * hidden}) is expected")
    for what, value in (("scale", scale), ("zero point", zero_point)):
        if value is not None and tuple(value.shape) not in ((shape[0],), (shape[0], 4 * hidden)):
            raise ValueError(f"the {what} of {name} has shape {tuple(value.shape)}; one for each direction is expected")
    zeros = [None] * shape[0] if zero_point is None else list(traced(zero_point))
    return [QuantizedMatrix(traced(steps)[d], traced(scale)[d], zeros[d]) for d in range(shape[0])]


def _run(
    cell: LSTM,
    matrix: QuantizedMatrix,
    peephole: list[jax.Array] | None,
    projected: jax.Array,
    initial: tuple[jax.Array, jax.Array],
    lengths: jax.Array | None,
    reverse: bool,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Run one direction: outputs ``[time, batch, hidden]`` and the last carry."""
    # The product with the hidden state is computed here, so the cell's hidden state has no units.
    nothing = jnp.zeros((0, projected.shape[-1]), projected.dtype)

    def next_carry(carry: Any, h: jax.Array, gates: jax.Array) -> tuple[jax.Array, ...]:
        return cell.step((nothing, None, peephole), (h[:, :0], carry[1]), gates + matrix.times(h))

    if lengths is None:

        def step(carry: Any, gates: jax.Array) -> tuple[Any, jax.Array]:
            new = next_carry(carry, carry[0], gates)
            return new, new[0]

        final, y = varying.scan(step, initial, projected, reverse=reverse)
        return y, final

    def step_where(state: Any, frame: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        # The range is taken over the previous outputs: an ended sequence adds zeros, and not its last state.
        carry, before = state
        gates, here = frame
        new = next_carry(carry, before, gates)
        y = masked_output(here, new[0])
        return (masked_update(here, new, carry), y), y

    frames = jnp.arange(projected.shape[0], dtype=lengths.dtype)[:, None]
    exists = frames < lengths[None, :]
    # All sequences begin in the first step, also sequences that are read from the end.
    order = jnp.where(exists & reverse, lengths[None, :] - 1 - frames, frames)[..., None]
    turned = jnp.take_along_axis(projected, order, 0)
    (final, _), y = varying.scan(step_where, (initial, initial[0]), (turned, exists[..., None]))
    return jnp.take_along_axis(y, order, 0), final


@inherits(make_cells)
def dynamic_quantize_lstm(
    X: Value,
    W: Value,
    R: Value,
    B: Value = None,
    sequence_lens: Value = None,
    initial_h: Value = None,
    initial_c: Value = None,
    P: Value = None,
    W_scale: Value = None,
    W_zero_point: Value = None,
    R_scale: Value = None,
    R_zero_point: Value = None,
    *,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    output_count: int,
    **of_cells: Any,
) -> list[Value]:
    """DynamicQuantizeLSTM: Y, Y_h and Y_c of an LSTM with transposed matrices."""
    if W_scale is None or R_scale is None:
        raise ValueError("the scales of W and R must be given")
    make = functools.partial(RuntimeLSTM, input_forget=bool(input_forget))
    cells = make_cells(make, ("Sigmoid", "Tanh", "Tanh"), direction, **of_cells)
    x = traced(X)
    time, batch, features = x.shape
    if len(R.shape) != 3:
        raise ValueError(f"R must have rank 3, but its shape is {tuple(R.shape)}")
    hidden: Any = R.shape[1]
    if R.shape[0] != len(cells) or W.shape[0] != len(cells) or hidden_size not in (None, hidden):
        raise ValueError(f"W {W.shape} and R {R.shape} do not fit {len(cells)} direction(s) and size {hidden_size}")
    for_input = _matrices(W, W_scale, W_zero_point, features, hidden, "W")
    recurrent = _matrices(R, R_scale, R_zero_point, hidden, hidden, "R")
    lengths = checked_lengths(sequence_lens, time, batch)
    if lengths is not None:
        # Frames after the longest sequence do not count for the range.
        some = jnp.arange(time, dtype=lengths.dtype) < jnp.max(lengths, initial=0)
        x = jnp.where(some[:, None, None], x, jnp.zeros((), x.dtype))
    zeros = jnp.zeros((len(cells), batch, hidden), x.dtype)
    starts = [zeros if value is None else traced(value) for value in (initial_h, initial_c)]
    results = []
    for d, (cell, reverse) in enumerate(zip(cells, DIRECTIONS[direction], strict=True)):
        projected = for_input[d].times(x)
        if B is not None:
            bias = traced(B)[d]
            projected = projected + (bias[: 4 * hidden] + bias[4 * hidden :])
        peephole = None if P is None else jnp.split(traced(P)[d], 3)
        assert isinstance(cell, LSTM)
        results.append(_run(cell, recurrent[d], peephole, projected, (starts[0][d], starts[1][d]), lengths, reverse))
    y = jnp.stack([outputs for outputs, _ in results], 1)
    final = [jnp.stack(arrays) for arrays in zip(*(carry for _, carry in results), strict=True)]
    results = visible_layer([y, *final], (initial_h, initial_c), direction, all_exist=sequence_lens is None)
    return results[:output_count]


_CARRIES = Carries({"h": (5, 1), "c": (6, 2)}, by_function=True, weights=(1, 2, 3, 7), features=(1, -2), hidden=(2, -2))


OPERATORS: dict[str, Versions] = {
    # This domain had 16-bit versions before ONNX.
    "com.microsoft::DequantizeLinear": since(earlier(dequantize_linear, "block_size", "output_dtype"), 1),
    "com.microsoft::DynamicQuantizeMatMul": since(dynamic_quantize_matmul, 1),
    "com.microsoft::MatMulIntegerToFloat": since(matmul_integer_to_float, 1),
    "com.microsoft::MatMulInteger16": since(matmul_integer_16, 1),
    "com.microsoft::NhwcMaxPool": since(nhwc_max_pool, 1),
    "com.microsoft::QGemm": since(q_gemm, 1),
    "com.microsoft::QLinearAveragePool": since(q_linear_average_pool, 1),
    "com.microsoft::QLinearConv": since(q_linear_conv_of_images, 1),
    "com.microsoft::QLinearSoftmax": since(q_linear_softmax, 1),
    "com.microsoft::QLinearWhere": since(q_linear_where, 1),
    "com.microsoft::QuantizeLinear": since(
        earlier(quantize_linear, "block_size", "output_dtype", "precision", "saturate"), 1
    ),
    "com.microsoft::QLinearAdd": since(_of_two(_sum), 1),
    "com.microsoft::QLinearConcat": since(q_linear_concat, 1),
    "com.microsoft::QLinearGlobalAveragePool": since(q_linear_global_average_pool, 1),
    "com.microsoft::QLinearLeakyRelu": since(q_linear_leaky_relu, 1),
    "com.microsoft::QLinearMul": since(_of_two(_product), 1),
    "com.microsoft::QLinearSigmoid": since(q_linear_sigmoid, 1),
    "com.microsoft::DynamicQuantizeLSTM": since(dynamic_quantize_lstm, 1, carries=_CARRIES),
}
