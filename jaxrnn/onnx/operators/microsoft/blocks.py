"""Weights of 2, 4 or 8 bits with a scale for each block, of the domain ``com.microsoft``.

Bytes pack integers along the last axis, the first integer in the lowest bits. Constant weights are unpacked while
tracing, and stay integers: an exported file stores integers of 4 bits from opset 21 on.
Source of the definitions: ContribOperators.md and the results of ONNX Runtime.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxrnn.cells.forms import product
from jaxrnn.onnx.operators.indexing import gather
from jaxrnn.onnx.operators.quantization import dequantize_linear
from jaxrnn.onnx.operators.shaping import axes_of
from jaxrnn.onnx.registry import Versions, since
from jaxrnn.onnx.values import Value, check_choice, dtype_of, is_static, traced


def _unpacked(packed: Value, bits: int, count: Any) -> Value:
    """Return the first ``count`` integers of each row of bytes, ``[rows, bytes]``, as uint4, or as uint8."""
    check_choice("bits", bits, (2, 4, 8))
    xp = np if is_static(packed) else jnp
    rows = xp.asarray(packed)
    if rows.dtype != np.uint8:
        raise TypeError(f"integers are packed in bytes (uint8), not in {rows.dtype.name}")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (rows[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    flat = parts.reshape(*rows.shape[:-1], rows.shape[-1] * (8 // bits))
    if flat.shape[-1] < count:
        raise ValueError(f"{rows.shape[-1]} bytes hold {flat.shape[-1]} integers of {bits} bits, fewer than {count}")
    return flat[..., :count].astype(ml_dtypes.uint4 if bits == 4 else np.uint8)


def _middle(like: Value, bits: int) -> Value:
    """Return the zero points of a file without zero points."""
    return np.full(tuple(like.shape), 1 << (bits - 1), ml_dtypes.uint4 if bits == 4 else np.uint8)


def _rows(value: Value, rows: Any, width: Any, name: str) -> Value:
    """Reshape a flat or ready tensor to ``[rows, width]``."""
    shape = tuple(value.shape)
    if shape not in ((rows, width), (rows * width,)):
        raise ValueError(f"{name} has shape {shape}, but [{rows}, {width}] is expected")
    return value.reshape(rows, width)


def matmul_n_bits(
    a: Value,
    b: Value,
    scales: Value,
    zero_points: Value = None,
    g_idx: Value = None,
    bias: Value = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Value:
    """MatMulNBits: a product with weights of 2, 4 or 8 bits, in the type of the first operand.

    ``accuracy_level`` is a hint for engines that quantise the first operand, and has no effect here.
    """
    if weight_prepacked:
        raise ValueError("the weights have the layout of a device (weight_prepacked); write the file without it")
    if block_size < 1 or len(b.shape) not in (2, 3):
        raise ValueError(f"block_size is {block_size} and the weights have shape {tuple(b.shape)}")
    y = _product(a, b, scales, zero_points, g_idx, K, N, bits, block_size)
    return y if bias is None else y + traced(bias).astype(y.dtype)


def _product(
    a: Value, b: Value, scales: Value, zero_points: Value, g_idx: Value, K: int, N: int, bits: int, block_size: int
) -> Value:
    if 0 in b.shape:  # an omitted weight
        return jnp.zeros((*a.shape[:-1], N), dtype_of(a))
    blocks = -(-K // block_size)
    steps = _unpacked(b.reshape(b.shape[0], -1), bits, K)
    scales = _rows(scales, N, blocks, "scales")
    if zero_points is None:
        zeros: Value = _middle(scales, bits)
    elif dtype_of(zero_points) == np.uint8:
        zeros = _unpacked(_rows(zero_points, N, -(-blocks * bits // 8), "zero_points"), bits, blocks)
    else:
        zeros = traced(_rows(zero_points, N, blocks, "zero_points"))
    group = np.arange(K) // block_size if g_idx is None else g_idx
    if g_idx is None and dtype_of(zeros) == dtype_of(steps):
        w = traced(dequantize_linear(steps, scales, zeros, axis=1, block_size=block_size))
    else:
        elements = traced(steps).astype(scales.dtype) - jnp.take(traced(zeros).astype(scales.dtype), group, 1)
        w = elements * jnp.take(traced(scales), group, 1)
    return product(traced(a), w.T.astype(dtype_of(a)))


def gather_block_quantized(
    data: Value,
    indices: Value,
    scales: Value,
    zero_points: Value = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Value:
    """GatherBlockQuantized: rows of a table of integers, as floats."""
    rank = len(data.shape)
    gathered, quantized = axes_of([gather_axis], rank)[0], axes_of([quantize_axis], rank)[0]
    if dtype_of(data) == np.uint8:
        if gathered == quantized:
            raise ValueError("gather_axis and quantize_axis must differ")
        data = _unpacked(data, bits, data.shape[-1] * (8 // bits))
        zero_points = _middle(scales, bits) if zero_points is None else _unpacked(zero_points, bits, scales.shape[-1])
    parts = [None if each is None else gather(each, indices, axis=gathered) for each in (data, scales, zero_points)]
    axis = quantized + (len(indices.shape) - 1 if quantized > gathered else 0)
    return dequantize_linear(*parts, axis=axis, block_size=block_size)


#: The values of 4 bits in bitsandbytes, by ``quant_type``: floats of 4 bits, and quantiles of a normal distribution.
_FP4 = (0, 0.0625, 8, 12, 4, 6, 2, 3)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
    *(-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_VALUES = (
    np.array([*(x / 12 for x in _FP4), *(-x / 12 for x in _FP4)], np.float32),
    np.array(_NF4, np.float32),
)


def matmul_bnb4(
    a: Value,
    b: Value,
    absmax: Value,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
) -> Value:
    """MatMulBnb4: a product with weights that are numbers of a table of 16, times the largest of each block."""
    check_choice("quant_type", quant_type, (0, 1))
    pairs = traced(b).reshape(-1)
    steps = jnp.stack([pairs >> 4, pairs & 15], 1).reshape(-1)[: N * K]
    scale = jnp.repeat(traced(absmax), block_size)[: N * K]
    w = (jnp.asarray(_VALUES[quant_type])[steps] * scale.astype(jnp.float32)).astype(dtype_of(a))
    return product(traced(a), w.reshape(N, K).T if transB else w.reshape(N, K))


OPERATORS: dict[str, Versions] = {
    "com.microsoft::GatherBlockQuantized": since(gather_block_quantized, 1),
    "com.microsoft::MatMulBnb4": since(matmul_bnb4, 1),
    "com.microsoft::MatMulNBits": since(matmul_n_bits, 1),
}
