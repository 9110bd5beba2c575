"""Reductions over axes, ArgMax and ArgMin."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import InconclusiveDimensionOperation

from jaxrnn._jax.context import highest, lowest
from jaxrnn.onnx.operators.shaping import axes_of
from jaxrnn.onnx.registry import Static, Versions, as_attributes, bounded, earlier
from jaxrnn.onnx.symbols import are_whole
from jaxrnn.onnx.values import Value, is_static, is_symbolic, traced

Reducer = Callable[..., Any]


def reducing(function: Reducer) -> Callable[..., Value]:
    """Return a reduction with axes from an input."""

    def apply(data: Value, axes: Static | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Value:
        if axes is None or axes.size == 0:
            if noop_with_empty_axes:
                data = traced(data)
                return function(data[None], axis=(0,), keepdims=False).astype(data.dtype)
            chosen = tuple(range(len(data.shape)))
        else:
            chosen = axes_of(axes, len(data.shape))
        if function in _ON_SHAPES and is_static(data) and data.size and (not is_symbolic(data) or are_whole(data)):
            fold = _ON_SHAPES[function]
            with contextlib.suppress(InconclusiveDimensionOperation):  # the largest size may depend on the length
                return np.asarray(fold(data, axis=chosen, keepdims=bool(keepdims)), dtype=data.dtype)
        data = traced(data)
        return function(data, axis=chosen, keepdims=bool(keepdims)).astype(data.dtype)

    return apply


def versions(function: Reducer, attribute: tuple[int, ...], input_: tuple[int, ...]) -> Versions:
    """Return the entry of a reduction: with axes as attribute, then as input."""
    reduction = reducing(function)
    older = earlier(as_attributes(reduction, "axes"), "noop_with_empty_axes")
    return bounded(older, *attribute) | bounded(reduction, *input_)


def _sum(x, axis, keepdims):
    return jnp.sum(x, axis, keepdims=keepdims, dtype=x.dtype)


def _prod(x, axis, keepdims):
    return jnp.prod(x, axis, keepdims=keepdims, dtype=x.dtype)


def _mean(x, axis, keepdims):
    if jnp.issubdtype(x.dtype, jnp.integer):
        count = np.prod([x.shape[a] for a in axis], dtype=np.int64)
        return jax.lax.div(_sum(x, axis, keepdims), jnp.asarray(count, x.dtype))
    count = math.prod(x.shape[a] for a in axis)
    if not isinstance(count, int) or not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.mean(x, axis, keepdims=keepdims)
    # The equations of `jnp.mean`, which is traced again for each shape.
    wide = x.dtype if x.dtype.itemsize > 2 else np.dtype(np.float32)
    summed = lax.reduce_sum(x.astype(wide), axis)
    return lax.div(lax.expand_dims(summed, axis) if keepdims else summed, wide.type(count))


def _extreme(name: str) -> Reducer:
    def apply(x, axis, keepdims):
        function = getattr(jnp, name)
        return function(x, axis, keepdims=keepdims, initial=(lowest if name == "max" else highest)(x.dtype))

    return apply


def _of_sum(before: Callable[[Any], Any], after: Callable[[Any], Any] | None = None) -> Reducer:
    """Return a reduction that sums a function of the elements, and applies a second function to the sum.

    With the second function, sums are computed in float64 for integers, and in float32 for narrow floats.
    """

    def apply(x, axis, keepdims):
        if after is None:
            return _sum(before(x), axis, keepdims)
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        wide = (x.dtype if x.dtype.itemsize > 2 else np.float32) if floating else np.float64
        return after(_sum(before(x.astype(wide)), axis, keepdims))

    return apply


def _log_sum_exp(x, axis, keepdims):
    wide = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float64)
    return jax.nn.logsumexp(wide, axis, keepdims=keepdims)


_max, _min = _extreme("max"), _extreme("min")

#: Reductions that appear in arithmetic on shapes.
_ON_SHAPES: dict[Reducer, Any] = {_sum: np.sum, _prod: np.prod, _max: np.max, _min: np.min}


def first_extreme(x: jax.Array, axis: int, name: str) -> jax.Array:
    """Return the position of the first maximum (``argmax``) or minimum (``argmin``) as int32; NaN wins.

    JAX lowers ``jnp.argmax`` with the caller's configuration, which may lack 64-bit indices and operands.
    """
    if x.shape[axis] == 0:
        raise ValueError(f"axis {axis} has no elements, so there is no extreme")
    if x.dtype.itemsize < 8:
        return getattr(lax, name)(x, axis, np.int32)
    extreme = (jnp.max if name == "argmax" else jnp.min)(x, axis, keepdims=True)
    is_extreme = (x == extreme) | ((x != x) if jnp.issubdtype(x.dtype, jnp.inexact) else False)
    places = lax.broadcasted_iota(np.int32, x.shape, axis)
    return jnp.min(jnp.where(is_extreme, places, np.int32(np.iinfo(np.int32).max)), axis)


def extreme_index(name: str) -> Callable[..., Value]:
    """ArgMax and ArgMin, of the first or of the last of equal elements."""

    def apply(data: Value, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Value:
        data = traced(data)
        (axis,) = axes_of([axis], data.ndim)
        turned = jnp.flip(data, axis) if select_last_index else data
        index = first_extreme(turned, axis, name).astype(jnp.int64)
        index = data.shape[axis] - 1 - index if select_last_index else index
        return jnp.expand_dims(index, axis) if keepdims else index

    return apply


OPERATORS = {
    "ArgMax": bounded(extreme_index("argmax"), 1, 11, 12, 13),
    "ArgMin": bounded(extreme_index("argmin"), 1, 11, 12, 13),
    "ReduceL1": versions(_of_sum(jnp.abs), (1, 11, 13), (18,)),
    "ReduceL2": versions(_of_sum(lambda x: x * x, jnp.sqrt), (1, 11, 13), (18,)),
    "ReduceLogSum": versions(_of_sum(lambda x: x, jnp.log), (1, 11, 13), (18, 28)),
    "ReduceLogSumExp": versions(_log_sum_exp, (1, 11, 13), (18, 28)),
    "ReduceMax": versions(_max, (1, 11, 12, 13), (18, 20)),
    "ReduceMean": versions(_mean, (1, 11, 13), (18,)),
    "ReduceMin": versions(_min, (1, 11, 12, 13), (18, 20)),
    "ReduceProd": versions(_prod, (1, 11, 13), (18,)),
    "ReduceSum": versions(_sum, (1, 11), (13,)),
    "ReduceSumSquare": versions(_of_sum(lambda x: x * x), (1, 11, 13), (18,)),
}
