"""Strings: arrays of them, and operators that move elements of any type.

JAX has no strings, so what they are must be known while tracing, and operators on them run on NumPy. Those that only
move elements are not written twice: see `moves_text`.
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


def moves_text(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator whose outputs hold elements of its inputs, or the empty string where they fill, also of strings.

    On strings it moves their numbers in a list of all that occur, outside of every trace. What it gives is held against
    the limits before it is computed.

    Raises:
        StaticValueError: a number among the operands of strings depends on data while tracing.
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
    """Inputs with a number for each string, and the strings by number; the first is the empty one."""
    places = {"": 0}

    def number(value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(map(number, value))
        if not is_text(value):
            return value if value is None else static(value, "what stands beside strings")
        flat = [places.setdefault(item, len(places)) for item in value.ravel().tolist()]
        return np.array(flat, np.int64).reshape(value.shape)

    return list(map(number, inputs)), text_array(list(places))
