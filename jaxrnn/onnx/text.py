"""Strings: arrays of them, and operators on them.

JAX has no strings, so what they are must be known while tracing, and an operator with a string among its operands runs
on NumPy. Operators that only move elements are not written twice: they move the numbers of the strings in a list of all
that occur.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.onnx.registry import Operator
from jaxrnn.onnx.values import TEXT, Value, is_text, static

#: Operators whose outputs hold elements of their inputs, or the empty string where they fill.
_MOVEMENTS = frozenset(
    {
        "CenterCropPad",
        "Compress",
        "Concat",
        "ConcatFromSequence",
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "OneHot",
        "Pad",
        "Reshape",
        "ReverseSequence",
        "Scatter",
        "ScatterElements",
        "ScatterND",
        "Slice",
        "SpaceToDepth",
        "Split",
        "SplitToSequence",
        "Squeeze",
        "TensorScatter",
        "Tile",
        "Transpose",
        "Trilu",
        "Unsqueeze",
        "Where",
    }
)


def text_array(strings: Sequence[str], shape: tuple[int, ...] | None = None) -> np.ndarray:
    """An array of strings, one-dimensional unless a shape is given."""
    array = np.array(list(strings), TEXT)
    return array if shape is None else array.reshape(shape)


def as_text(value: Any) -> np.ndarray:
    """Strings as a caller gives them: a ``str``, a nested list, or a NumPy array of dtype ``object`` or ``str``.

    Raises:
        TypeError: an element is no string.
    """
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
    """Whether a value is an array of strings, or a sequence with one in it."""
    return any(map(holds_text, value)) if isinstance(value, tuple) else is_text(value)


def run_on_text(operator: Operator, inputs: Sequence[Value], attributes: Mapping[str, Any]) -> Any:
    """What an operator gives for operands that hold strings.

    Raises:
        StaticValueError: another operand depends on data while tracing.
    """
    known = [
        value if value is None or isinstance(value, tuple) else static(value, "what stands beside strings")
        for value in inputs
    ]
    if operator.domain or operator.name not in _MOVEMENTS:
        return operator.function(*known, **attributes)
    if attributes.get("reduction", "none") != "none":
        raise TypeError(f"strings cannot be combined by reduction={attributes['reduction']!r}")
    places = {"": 0}

    def encode(value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(map(encode, value))
        if not is_text(value):
            return value
        flat = [places.setdefault(item, len(places)) for item in value.ravel().tolist()]
        return np.array(flat, np.int64).reshape(value.shape)

    with jax.ensure_compile_time_eval():
        result = operator.function(*map(encode, known), **attributes)
    strings = text_array(list(places))
    return jax.tree.map(lambda moved: strings[static(moved)], result)


#: What Cast calls the floats that are no numbers.
_SPECIAL = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}


def written(x: np.ndarray) -> np.ndarray:
    """Numbers as strings: floats with the fewest digits that read back as the same number, booleans as 1 and 0."""
    if x.dtype.kind == "c":
        raise TypeError("complex numbers cannot be written as strings")
    if x.dtype.kind not in "iuf":
        x = x.astype(np.float32 if jnp.issubdtype(x.dtype, jnp.floating) else np.int64)
    items = map(str, x.ravel())
    return text_array([_SPECIAL.get(item, item.removesuffix(".0")) for item in items], x.shape)


def numbers(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Strings as numbers: int64 or uint64 where the type that is wanted is an integer, else float64 or bool.

    The fraction of a number that becomes an integer is cut off.

    Raises:
        ValueError: a string is no number, or one that the type cannot hold.
    """
    items = x.ravel().tolist()
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        whole = [_integer(item) for item in items]
        outside = next((item for item in whole if not info.min <= item <= info.max), None)
        if outside is not None:
            raise ValueError(f"the number {outside} does not fit the type {dtype.name}")
        return np.array(whole, np.uint64 if dtype == np.uint64 else np.int64).reshape(x.shape)
    words = {"true": 1.0, "false": 0.0} if dtype.kind == "b" else {}
    found = np.array([words[item.lower()] if item.lower() in words else float(item) for item in items], np.float64)
    return (found != 0 if dtype.kind == "b" else found).reshape(x.shape)


def _integer(item: str) -> int:
    try:
        return int(item)
    except ValueError:
        number = float(item)
        if not math.isfinite(number):
            raise ValueError(f"{item!r} is no integer") from None
        return math.trunc(number)
