"""Arrays of strings, and operators that move elements of any type.

JAX has no strings, so strings must be known while tracing, and their operators run on NumPy. `moves_text` extends
operators that only move elements to strings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrnn.onnx.limits import current
from jaxrnn.onnx.values import TEXT, Value, is_text, static


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


def moves_text(function: Callable[..., Any]) -> Callable[..., Any]:
    """Extend an operator that moves elements, or fills with empty strings, to arrays of strings.

    The operator moves the numbers of strings in a list of all strings, outside of every trace. The result is checked
    against the limits before it is computed.
    """

    @functools.wraps(function)
    def moving(*inputs: Value, **attributes: Any) -> Any:
        if not any(map(holds_text, inputs)):
            return function(*inputs, **attributes)
        if attributes.get("reduction", "none") != "none":
            raise TypeError(f"strings cannot be combined by reduction={attributes['reduction']!r}")
        operands, strings = _numbered(inputs)
        places = [place for place, value in enumerate(inputs) if holds_text(value)]

        def moved(numbers: Sequence[Value]) -> Any:
            arguments = list(operands)
            for place, value in zip(places, numbers, strict=True):
                arguments[place] = value
            return function(*arguments, **attributes)

        numbers = [operands[place] for place in places]
        for leaf in jax.tree.leaves(jax.eval_shape(moved, numbers)):
            current().check(leaf.shape, TEXT, constant=True)
        with jax.ensure_compile_time_eval():
            return jax.tree.map(lambda leaf: strings[static(leaf)], moved(numbers))

    return moving


def _numbered(inputs: Sequence[Value]) -> tuple[list[Value], np.ndarray]:
    """Return inputs with a number for each string, and the strings by number, beginning with the empty string."""
    places = {"": 0}

    def number(value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(map(number, value))
        if not is_text(value):
            return value if value is None else static(value, "an input beside strings")
        flat = [places.setdefault(item, len(places)) for item in value.ravel().tolist()]
        return np.array(flat, np.int64).reshape(value.shape)

    return list(map(number, inputs)), text_array(list(places))
