"""The values on the edges of a graph during evaluation.

A *static* value is a NumPy array, known while tracing, so that arithmetic on shapes folds. Integers that depend on a
symbolic dimension are also static: NumPy arrays of dtype ``object`` with Python ints and JAX symbolic dimensions, which
stand for int64. Integral floats and comparisons of sizes (`symbols`) are static as well. Strings are always static, in
NumPy arrays of dtype `TEXT`, because JAX has no strings. A *traced* value is a JAX array. A sequence is a tuple of
values, or `Stacked` if a loop created the sequence. An absent optional is ``None``.

Evaluation runs inside `exact_types`, so that int64 and float64 keep their width for all values of ``jax_enable_x64``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrnn.errors import StaticValueError
from jaxrnn.onnx import symbols

Value = Any  # np.ndarray | jax.Array | tuple[Value, ...] | Stacked | None

#: The element type of strings inside a graph. Callers pass arrays of dtype ``object``, which in a graph are sizes.
TEXT = np.dtypes.StringDType()

#: The part of a message about a graph input whose value is needed while tracing.
STATIC_OR_EAGER = (
    "`jaxrnn.load(path, static={NAME: VALUE})`; a call of apply outside jit, grad and vmap also knows the value"
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stacked:
    """A sequence of elements with equal types and shapes, created by a loop over time."""

    array: Any  # the elements along the first axis, whose size may be symbolic

    def elements(self) -> tuple[Any, ...]:
        """Return the sequence as a tuple; raise StaticValueError for a symbolic length."""
        length = self.array.shape[0]
        if not isinstance(length, int):
            raise StaticValueError(
                f"a sequence of {length} elements supports only reading one element and concatenating all of them; "
                "call apply on arrays of known length"
            )
        return tuple(self.array[index] for index in range(length))


def is_sequence(value: Value) -> bool:
    """Return True for a value of ONNX's sequence type."""
    return isinstance(value, (tuple, Stacked))


def is_static(*values: Value) -> bool:
    """Return True if all values are static."""
    return all(isinstance(value, (np.ndarray, np.generic)) for value in values)


def is_known(value: Value) -> bool:
    """Return True if Python can read the value: a static value, or a JAX array outside of transformations."""
    return not isinstance(value, Tracer)


def is_symbolic(array: Value) -> bool:
    """Return True if a static value has symbolic dimensions."""
    return isinstance(array, np.ndarray) and array.dtype == object


def is_text(value: Value) -> bool:
    """Return True for an array of strings."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "T"


def dtype_of(value: Value) -> np.dtype:
    """Return the ONNX element type of a value as a NumPy dtype; symbolic integers are int64."""
    return symbols.type_of(value) if is_symbolic(value) else np.dtype(value.dtype)


def settle(value: Value) -> Value:
    """Normalise the result of an operator: replace NumPy scalars and object arrays of plain integers."""
    if isinstance(value, (list, tuple)):
        return tuple(settle(item) for item in value)
    if isinstance(value, Stacked):
        return value
    if isinstance(value, str):  # an item of a NumPy array of strings
        return np.asarray(value, TEXT)
    if isinstance(value, np.generic):
        return np.asarray(value)
    if value is not None and not hasattr(value, "dtype"):
        # An item of an object array: a Python int or a symbolic dimension.
        value = symbols.boxed(value)
    if not is_symbolic(value):
        return value
    items = np.asarray(value)
    if items.size and all(isinstance(item, (bool, np.bool_)) for item in items.flat):
        return items.astype(bool)
    return items.astype(np.int64) if all(isinstance(item, (int, np.integer)) for item in items.flat) else items


def traced(value: Value) -> jax.Array:
    """Convert a value to a JAX array of the same element type; raise TypeError for strings."""
    if is_text(value):
        raise TypeError("the operator computes in JAX, which has no strings")
    if is_symbolic(value):
        items = [symbols.traced_item(item) for item in value.flat]
        return jnp.stack(items).reshape(value.shape) if items else jnp.zeros(value.shape, jnp.int64)
    return jnp.asarray(value)


def all_traced(values: Sequence[Value]) -> tuple[Value, ...]:
    """Convert all arrays, including arrays in sequences, to JAX arrays, so that a loop can carry the values."""
    return tuple(jax.tree.map(traced, tuple(values)))


def operands(*values: Value, whole: bool = False) -> tuple[Any, tuple[Any, ...]]:
    """Return the array module for some values (NumPy if all are static, else JAX) and the values as such arrays."""
    if is_static(*values):
        # NumPy combines symbolic integers; symbolic floats need an operation on whole numbers.
        integers = all(dtype_of(value).kind in "iu" for value in values if is_symbolic(value))
        if integers or (whole and all(map(symbols.are_whole, values))):
            return np, values
    return jnp, tuple(traced(value) for value in values)


def static(value: Value, what: str = "value") -> np.ndarray:
    """Return the value as a NumPy array, for shapes and attributes; raise StaticValueError for a tracer."""
    if isinstance(value, np.ndarray):
        return value
    if not is_known(value):
        raise StaticValueError(
            f"{what} must be known while tracing, but depends on data. Bind the graph input that determines the value "
            f"with {STATIC_OR_EAGER}"
        )
    return np.asarray(value)


def size_between(first: Any, last: Any) -> Any:
    """Return the number of elements between two places; raise StaticValueError if the number depends on data."""
    size = last - first
    if isinstance(size, symbols.Place):
        raise StaticValueError(
            "the number of elements must be known while tracing, but depends on data. Write both ends as sums of one "
            f"input and known numbers, such as offset and offset + 4, or bind the graph input with {STATIC_OR_EAGER}"
        )
    return size


def dimensions(value: np.ndarray) -> tuple[Any, ...]:
    """Return a one-dimensional static integer array as Python ints and symbolic dimensions, as a shape."""
    return tuple(item if not isinstance(item, (int, np.integer)) else int(item) for item in np.ravel(value).tolist())


def elements_of(shape: np.ndarray) -> float:
    """Return the number of elements of a known shape."""
    return math.prod(dimensions(shape))


def describe(value: Value) -> str:
    """Format dtype and shape for a message: ``float32[1, 257]``."""
    if value is None:
        return "absent"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(describe(item) for item in value) + ")"
    if isinstance(value, Stacked):
        return f"sequence of {value.array.shape[0]} {describe(value.array[0])}"
    shape = ", ".join(map(str, value.shape))
    return f"{'string' if is_text(value) else dtype_of(value).name}[{shape}]"


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Raise ValueError if the value of an attribute is not one of the choices."""
    *first, last = choices
    if value not in (*first, last):
        raise ValueError(f"{name} must be {', '.join(map(str, first))} or {last}, not {value!r}")


def text_array(strings: Sequence[str], shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Return an array of strings, one-dimensional unless a shape is given."""
    array = np.array(list(strings), TEXT)
    return array if shape is None else array.reshape(shape)


def as_text(value: Any) -> np.ndarray:
    """Convert a caller's strings: a ``str``, a nested list, or a NumPy array of dtype ``object`` or ``str``."""
    if is_text(value):
        return value
    items = np.asarray(value) if isinstance(value, np.ndarray) else np.asarray(value, object)
    if items.dtype.kind not in "OUT":
        raise TypeError(f"strings are expected, not {items.dtype.name}")
    wrong = next((item for item in items.flat if not isinstance(item, str)), None)
    if wrong is not None:
        raise TypeError(f"strings are expected, not a {type(wrong).__name__}")
    return items.astype(TEXT)


def holds_text(value: Value) -> bool:
    """Return True for an array of strings, or a sequence with such an array."""
    return any(map(holds_text, value)) if isinstance(value, tuple) else is_text(value)
