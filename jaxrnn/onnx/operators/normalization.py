"""Normalisation operators."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.onnx.operators.types import numpy_dtype
from jaxrnn.onnx.registry import bounded, inherits, since
from jaxrnn.onnx.values import Value, check_choice, traced


def _by_channel(values: Value, rank: int) -> Any:
    return traced(values).reshape((-1,) + (1,) * (rank - 2))


def batch_normalization(
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    var: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    output_count: int = 1,
) -> list[Value]:
    """BatchNormalization; in training mode with batch statistics, and the running statistics as further outputs."""
    x = traced(x)
    rank = x.ndim
    mean, var = traced(mean), traced(var)
    used_mean, used_var = mean, var
    if training_mode:
        axes = (0, *range(2, rank))
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        used_mean, used_var = jnp.mean(wide, axes).astype(mean.dtype), jnp.var(wide, axes).astype(var.dtype)
    factor = traced(scale).astype(var.dtype) * lax.rsqrt(used_var + var.dtype.type(epsilon))
    offset = traced(bias).astype(var.dtype) - used_mean * factor
    y = (x * _by_channel(factor, rank) + _by_channel(offset, rank)).astype(x.dtype)
    if not training_mode:
        if output_count > 1:
            raise ValueError("the statistics are outputs only with training_mode=1")
        return [y]
    keep, take = var.dtype.type(momentum), var.dtype.type(1 - momentum)
    return [y, mean * keep + used_mean * take, var * keep + used_var * take][:output_count]


@inherits(batch_normalization, "epsilon", "momentum")
def batch_normalization_7(
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    var: Value,
    *,
    spatial: int = 1,
    output_count: int = 1,
    **kept: Any,
) -> list[Value]:
    """BatchNormalization before opset 14, for inference."""
    if not spatial:
        raise ValueError("spatial=0 (statistics for every element) is not supported")
    if output_count > 1:
        raise ValueError("BatchNormalization with more than one output (training before opset 14) is not supported")
    return batch_normalization(x, scale, bias, mean, var, **kept)


def instance_normalization(x: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5) -> Value:
    """InstanceNormalization over all axes after the channel."""
    x = traced(x)
    axes = tuple(range(2, x.ndim))
    mean, var = jnp.mean(x, axes, keepdims=True), jnp.var(x, axes, keepdims=True)
    return (x - mean) * lax.rsqrt(var + x.dtype.type(epsilon)) * _by_channel(scale, x.ndim) + _by_channel(bias, x.ndim)


def normalized(x: jax.Array, axis: int, epsilon: float, *, centred: bool) -> tuple[jax.Array, Any, jax.Array]:
    """Divide an array by the root of the mean square over the axes from ``axis`` on, after centring if ``centred``.

    Returns the array, the mean or None, and the inverse of the root.
    """
    axes = tuple(range(axis % x.ndim, x.ndim))
    mean = jnp.mean(x, axes, keepdims=True) if centred else None
    x = x if mean is None else x - mean
    inverse = lax.rsqrt(jnp.mean(x * x, axes, keepdims=True) + x.dtype.type(epsilon))
    return x * inverse, mean, inverse


def layer_normalization(
    x: Value, scale: Value, bias: Value = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1,
    output_count: int = 1,
) -> list[Value]:  # fmt: skip
    """LayerNormalization over the axes from ``axis`` on, in the precision of ``stash_type``."""
    x = traced(x)
    wide = x.astype(numpy_dtype(stash_type)) if stash_type else x
    y, mean, inverse = normalized(wide, axis, epsilon, centred=True)
    y = y.astype(x.dtype) * traced(scale)
    if bias is not None:
        y = y + traced(bias)
    return [y, mean, inverse][:output_count]


def rms_normalization(x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Value:
    """RMSNormalization over the axes from ``axis`` on, in the precision of ``stash_type``."""
    x, scale = traced(x), traced(scale)
    y, _, _ = normalized(x.astype(numpy_dtype(stash_type)), axis, epsilon, centred=False)
    return (y.astype(scale.dtype) * scale).astype(scale.dtype)


def group_normalization(
    x: Value, scale: Value, bias: Value, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Value:
    """GroupNormalization; scale and bias for each channel."""
    x = traced(x)
    wide = x.astype(numpy_dtype(stash_type)) if stash_type else x
    groups = wide.reshape((x.shape[0], num_groups, -1))
    mean, var = jnp.mean(groups, -1, keepdims=True), jnp.var(groups, -1, keepdims=True)
    y = ((groups - mean) * lax.rsqrt(var + wide.dtype.type(epsilon))).reshape(x.shape).astype(x.dtype)
    return y * _by_channel(scale, x.ndim) + _by_channel(bias, x.ndim)


def group_normalization_18(x: Value, scale: Value, bias: Value, *, num_groups: int, epsilon: float = 1e-5) -> Value:
    """GroupNormalization with scale and bias for each group."""
    each = x.shape[1] // num_groups
    scale, bias = jnp.repeat(traced(scale), each), jnp.repeat(traced(bias), each)
    return group_normalization(x, scale, bias, num_groups=num_groups, epsilon=epsilon, stash_type=0)


def mean_variance_normalization(x: Value, *, axes: tuple[int, ...] = (0, 2, 3)) -> Value:
    """MeanVarianceNormalization; the 1e-9 is the specification's."""
    x = traced(x)
    mean, var = jnp.mean(x, axes, keepdims=True), jnp.var(x, axes, keepdims=True)
    return (x - mean) / (jnp.sqrt(var) + x.dtype.type(1e-9))


def lp_normalization(x: Value, *, axis: int = -1, p: int = 2) -> Value:
    """LpNormalization; a zero vector stays zero."""
    x = traced(x)
    check_choice("p", p, (1, 2))
    norm = jnp.sum(jnp.abs(x) if p == 1 else x * x, axis, keepdims=True)
    zero = norm == 0
    norm = jnp.where(zero, jnp.ones((), x.dtype), norm)
    return jnp.where(zero, jnp.zeros((), x.dtype), x / (norm if p == 1 else jnp.sqrt(norm)))


def local_response(x: Value, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Value:
    """LRN: normalised by the squares of the neighbouring channels."""
    x = traced(x)
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    # A window wider than the axis has no further neighbours.
    before, after = (min(reach, x.shape[1]) for reach in ((size - 1) // 2, size - 1 - (size - 1) // 2))
    window = (1, before + 1 + after) + (1,) * (x.ndim - 2)
    pads = ((0, 0), (before, after), *((0, 0),) * (x.ndim - 2))
    squares = lax.reduce_window(x * x, np.zeros((), x.dtype)[()], lax.add, window, (1,) * x.ndim, pads)
    return x / (x.dtype.type(bias) + x.dtype.type(alpha / size) * squares) ** x.dtype.type(beta)


OPERATORS = {
    "BatchNormalization": since(batch_normalization_7, 7, 9) | bounded(batch_normalization, 14, 15, statistics=(3, 4)),
    "GroupNormalization": since(group_normalization_18, 18) | since(group_normalization, 21),
    "InstanceNormalization": since(instance_normalization, 6, 22),
    "LRN": since(local_response, 1, 13),
    # ONNX Runtime had this operator in this domain before ONNX, and exporters wrote it.
    "LayerNormalization": bounded(layer_normalization, 1, 17),
    "LpNormalization": since(lp_normalization, 1, 22),
    "MeanVarianceNormalization": since(mean_variance_normalization, 9, 13),
    "RMSNormalization": bounded(rms_normalization, 23),
}
