"""Values that depend on shapes and numbers alone: static wherever their inputs are."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrnn.onnx import symbols
from jaxrnn.onnx.operators.types import numpy_dtype
from jaxrnn.onnx.registry import Static, bounded, since
from jaxrnn.onnx.values import Value, dimensions, dtype_of, is_symbolic

#: A constant of at most this many elements stays a NumPy array; a larger one is made by XLA when it is needed.
MAX_STATIC_ELEMENTS = 1024


def constant(
    *,
    value: np.ndarray | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
    value_string: str | None = None,
    value_strings: tuple[str, ...] | None = None,
    sparse_value: object = None,
) -> Value:
    """Constant. Its value is read while the graph is bound; only a node without one value reaches this function."""
    forms = (value, value_float, value_floats, value_int, value_ints, value_string, value_strings, sparse_value)
    raise TypeError(f"exactly one value is expected, not {sum(form is not None for form in forms)}")


def full(shape: tuple[Any, ...], fill: np.ndarray) -> Value:
    """An array of one number, static if it is small."""
    if all(isinstance(size, int) for size in shape) and math.prod(shape) <= MAX_STATIC_ELEMENTS:
        return np.full(shape, fill)
    return jnp.full(shape, fill)


def constant_of_shape(shape: Static, *, value: np.ndarray | None = None) -> Value:
    """ConstantOfShape: float32 zeros unless the attribute says otherwise."""
    fill = np.zeros((), np.float32) if value is None else value.reshape(())
    return full(dimensions(shape), fill)


def shape_of(x: Value, *, start: int = 0, end: int | None = None) -> Value:
    """Shape, or a slice of it."""
    sizes = x.shape[start:end]
    result = np.empty(len(sizes), object)
    result[:] = sizes
    return result


def size_of(x: Value) -> Value:
    """Size: the number of elements."""
    return symbols.boxed(math.prod(x.shape))


def value_range(start: Static, limit: Static, delta: Static, *, stash_type: int = 1) -> Value:
    """Range of known length; with a symbolic limit, a traced iota."""
    del stash_type  # the precision of running sums; here every element is computed directly
    first, last, step = (item.reshape(()).item() for item in (start, limit, delta))
    dtype = dtype_of(start)
    if any(is_symbolic(item) for item in (start, limit, delta)):
        first, last, step = map(symbols.size_of, (first, last, step))
        if None in (first, last, step):
            raise ValueError("a range whose length depends on a symbolic dimension starts and steps by whole numbers")
        return jnp.arange(first, last, step, dtype=jnp.int64).astype(dtype)
    if step == 0:
        raise ValueError("delta must not be 0")
    count = max(int(np.ceil((last - first) / step)), 0)
    if count > MAX_STATIC_ELEMENTS:
        return jnp.asarray(first, dtype) + jnp.arange(count).astype(dtype) * jnp.asarray(step, dtype)
    return (first + np.arange(count) * step).astype(dtype)


def eye_like(x: Value, *, dtype: int | None = None, k: int = 0) -> Value:
    """EyeLike: ones on a diagonal, in the input's shape."""
    return jnp.eye(*x.shape, k=k, dtype=dtype_of(x) if dtype is None else numpy_dtype(dtype))


OPERATORS = {
    "Constant": bounded(constant, 1, 9, 11, 12, 13, 19, 21, 23, 24, 25),
    "ConstantOfShape": since(constant_of_shape, 9, 20, 21, 23, 24, 25),
    "EyeLike": since(eye_like, 9, 22, of_shape=True),
    "Range": since(value_range, 11, 27),
    "Shape": bounded(shape_of, 1, 13, 15, 19, 21, 23, 24, 25, of_shape=True),
    "Size": bounded(size_of, 1, 13, 19, 21, 23, 24, 25, of_shape=True),
}
