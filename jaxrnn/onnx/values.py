"""What flows along the edges of a graph while it is evaluated.

A *static* value is a NumPy array: it is known while tracing, so arithmetic on shapes folds away. Integers that
depend on a symbolic dimension are static too, as NumPy arrays of dtype ``object`` whose items are Python ints and
JAX symbolic dimensions; they stand for int64. Strings are static always: NumPy arrays of dtype `TEXT`, since JAX has
none. A *traced* value is a JAX array. A sequence is a tuple of values, and an absent optional is ``None``.

Evaluation runs inside `exact_types`, so a traced int64 or float64 has its full width whatever ``jax_enable_x64`` says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrnn.errors import StaticValueError
from jaxrnn.guards import own_arithmetic

Value = Any  # np.ndarray | jax.Array | tuple[Value, ...] | None

#: The element type of strings inside a graph. Callers give and get arrays of dtype ``object``, which here mean sizes.
TEXT = np.dtypes.StringDType()


class Subgraph(Protocol):
    """A graph attribute as an operator receives it: a function of values, which also sees the outer graph's."""

    @property
    def output_count(self) -> int:
        """How many outputs the subgraph gives."""
        ...

    def __call__(self, *inputs: Value) -> tuple[Value, ...]:
        """The outputs of the subgraph for values of its inputs."""
        ...


@contextlib.contextmanager
def exact_types() -> Iterator[None]:
    """64-bit types stay 64-bit inside this context; the caller's JAX configuration is untouched outside it.

    Operators broadcast and use constants there as ONNX has it, whatever the caller forbids: see `own_arithmetic`.
    """
    with jax.enable_x64(True), own_arithmetic(), np.errstate(all="ignore"):
        yield


def is_static(*values: Value) -> bool:
    """Whether every value is known while tracing."""
    return all(isinstance(value, (np.ndarray, np.generic)) for value in values)


def is_known(value: Value) -> bool:
    """Whether Python can look at the value: it is static, or a JAX array outside every transformation."""
    return not isinstance(value, Tracer)


def is_symbolic(array: Value) -> bool:
    """Whether a static value holds symbolic dimensions."""
    return isinstance(array, np.ndarray) and array.dtype == object


def is_text(value: Value) -> bool:
    """Whether a value is an array of strings."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "T"


def dtype_of(value: Value) -> np.dtype:
    """The ONNX element type of a value, as a NumPy dtype: symbolic integers are int64."""
    return np.dtype(np.int64) if is_symbolic(value) else np.dtype(value.dtype)


def settle(value: Value) -> Value:
    """Bring what an operator returned into the forms above: no NumPy scalars, no object arrays of plain integers."""
    if isinstance(value, (list, tuple)):
        return tuple(settle(item) for item in value)
    if isinstance(value, str):  # what NumPy hands out as the item of an array of strings
        return np.asarray(value, TEXT)
    if isinstance(value, np.generic):
        return np.asarray(value)
    if value is not None and not hasattr(value, "dtype"):
        # NumPy hands out the items of an object array as they are: Python ints and symbolic dimensions.
        boxed = np.empty((), object)
        boxed[()] = value
        value = boxed
    if not is_symbolic(value):
        return value
    items = np.asarray(value)
    return items.astype(np.int64) if all(isinstance(item, (int, np.integer)) for item in items.flat) else items


def traced(value: Value) -> jax.Array:
    """The value as a JAX array of the same element type.

    Raises:
        TypeError: it is an array of strings.
    """
    if is_text(value):
        raise TypeError("the operator computes in JAX, which has no strings")
    if is_symbolic(value):
        items = [jnp.asarray(item, dtype=jnp.int64) for item in value.flat]
        return jnp.stack(items).reshape(value.shape) if items else jnp.zeros(value.shape, jnp.int64)
    return jnp.asarray(value)


def operands(*values: Value) -> tuple[Any, tuple[Any, ...]]:
    """The array module that fits the values, and the values as its arrays: NumPy if all are static, else JAX."""
    if is_static(*values):
        return np, values
    return jnp, tuple(traced(value) for value in values)


def static(value: Value, what: str = "value") -> np.ndarray:
    """The value as a NumPy array, for use in shapes and attributes.

    Raises:
        StaticValueError: the value is a tracer, so nothing is known of it but its shape.
    """
    if isinstance(value, np.ndarray):
        return value
    if not is_known(value):
        raise StaticValueError(
            f"{what} must be known while tracing, but it depends on data. Bind the graph input that it comes from with "
            "jaxrnn.load(..., static={name: value}), or call apply outside jit, grad and vmap"
        )
    return np.asarray(value)


def dimensions(value: np.ndarray) -> tuple[Any, ...]:
    """A one-dimensional static integer array as Python ints and symbolic dimensions, for use as a shape."""
    return tuple(item if not isinstance(item, (int, np.integer)) else int(item) for item in np.ravel(value).tolist())


def describe(value: Value) -> str:
    """Dtype and shape for a message: ``float32[1, 257]``."""
    if value is None:
        return "absent"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(describe(item) for item in value) + ")"
    shape = ", ".join(map(str, value.shape))
    return f"{'string' if is_text(value) else dtype_of(value).name}[{shape}]"
