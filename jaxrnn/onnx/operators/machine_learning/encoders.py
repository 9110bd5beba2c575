"""Operators of ``ai.onnx.ml`` that look values up: categories, labels, one-hot rows.

Strings are looked up on NumPy; numbers in JAX, by comparing them with all keys.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.onnx.registry import earlier, since
from jaxrnn.onnx.text import text_array
from jaxrnn.onnx.values import Value, describe, is_text, static, traced


def positions(x: Value, keys: np.ndarray) -> Value:
    """The index of each element among the keys: the last one of a repeated key, -1 of an unknown element."""
    if is_text(x) != is_text(keys):
        raise TypeError(f"{describe(x)} cannot be found among keys that are {describe(keys)}")
    if is_text(x):
        places = {key: place for place, key in enumerate(keys.ravel().tolist())}
        return np.array([places.get(item, -1) for item in x.ravel().tolist()], np.int64).reshape(x.shape)
    x = traced(x)
    if not keys.size:
        return jnp.full(x.shape, -1, jnp.int64)
    candidates = jnp.asarray(keys.ravel())
    same = x[..., None] == candidates.astype(x.dtype)
    if jnp.issubdtype(x.dtype, jnp.floating):
        same = same | (jnp.isnan(x[..., None]) & jnp.isnan(candidates.astype(x.dtype)))
    return jnp.max(jnp.where(same, jnp.arange(keys.size), -1), -1)


def look_up(index: Value, values: np.ndarray, default: np.ndarray) -> Value:
    """The value at each index, or the default where the index is -1."""
    table = np.concatenate([values.ravel(), default.reshape(1)])
    if is_text(table):
        return table[static(index, "the index of a string")]
    return jnp.asarray(table)[index]


def _one_of(**attributes: Any) -> np.ndarray:
    """The one attribute of several that the node has, as an array of its type."""
    present = {name: value for name, value in attributes.items() if value is not None}
    if len(present) != 1:
        raise ValueError(
            f"exactly one attribute of {', '.join(attributes)} is expected, not {', '.join(present) or 'none'}"
        )
    ((name, value),) = present.items()
    if name.endswith("tensor"):
        return value
    if name.endswith("strings"):
        return text_array(value)
    return np.asarray(value, np.float32 if name.endswith("floats") else np.int64)


def label_encoder(
    x: Value,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: np.ndarray | None = None,
    keys_floats: tuple[float, ...] | None = None,
    keys_int64s: tuple[int, ...] | None = None,
    keys_strings: tuple[str, ...] | None = None,
    keys_tensor: np.ndarray | None = None,
    values_floats: tuple[float, ...] | None = None,
    values_int64s: tuple[int, ...] | None = None,
    values_strings: tuple[str, ...] | None = None,
    values_tensor: np.ndarray | None = None,
) -> Value:
    """LabelEncoder: the value of each key. NaN matches NaN, and the last of equal keys wins."""
    keys = _one_of(keys_floats=keys_floats, keys_int64s=keys_int64s, keys_strings=keys_strings, keys_tensor=keys_tensor)
    values = _one_of(
        values_floats=values_floats,
        values_int64s=values_int64s,
        values_strings=values_strings,
        values_tensor=values_tensor,
    )
    if keys.size != values.size:
        raise ValueError(f"there are {keys.size} keys, but {values.size} values")
    if default_tensor is not None and default_tensor.size == 1:
        default = default_tensor
    elif is_text(values):
        default = text_array([default_string])
    else:
        floating = jnp.issubdtype(values.dtype, jnp.floating)
        default = np.asarray(default_float if floating else default_int64, values.dtype)
    return look_up(positions(x, keys), values, default)


def _either_way(x: Value, numbers: np.ndarray, strings: np.ndarray, integer: int, string: str) -> Value:
    """Strings to their numbers, or numbers to their strings."""
    if numbers.size != strings.size:
        raise ValueError(f"there are {numbers.size} integers, but {strings.size} strings")
    if is_text(x):
        return look_up(positions(x, strings), numbers, np.asarray(integer, np.int64))
    return look_up(positions(x, numbers), strings, text_array([string]))


def label_encoder_1(
    x: Value,
    *,
    classes_strings: tuple[str, ...] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Value:
    """LabelEncoder, between strings and their places in a list."""
    numbers = np.arange(len(classes_strings), dtype=np.int64)
    return _either_way(x, numbers, text_array(classes_strings), default_int64, default_string)


def category_mapper(
    x: Value,
    *,
    cats_int64s: tuple[int, ...] = (),
    cats_strings: tuple[str, ...] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Value:
    """CategoryMapper: strings to integers, or integers to strings."""
    return _either_way(x, np.asarray(cats_int64s, np.int64), text_array(cats_strings), default_int64, default_string)


def one_hot_encoder(
    x: Value, *, cats_int64s: tuple[int, ...] | None = None, cats_strings: tuple[str, ...] | None = None, zeros: int = 1
) -> Value:
    """OneHotEncoder: a row for each element. An unknown one gives zeros, or an error with ``zeros=0``."""
    categories = _one_of(cats_int64s=cats_int64s, cats_strings=cats_strings)
    if not is_text(x) and not is_text(categories):
        x = traced(x).astype(jnp.int64)
    place = positions(x, categories)
    if not zeros and np.any(static(place, "whether every element has a category, which zeros=0 demands,") < 0):
        raise ValueError("an element is in no category, which zeros=0 forbids")
    return jax.nn.one_hot(place, categories.size, dtype=jnp.float32)


OPERATORS = {
    "ai.onnx.ml::CategoryMapper": since(category_mapper, 1),
    "ai.onnx.ml::LabelEncoder": since(label_encoder_1, 1)
    | since(earlier(label_encoder, "default_tensor", "keys_tensor", "values_tensor"), 2)
    | since(label_encoder, 4),
    "ai.onnx.ml::OneHotEncoder": since(one_hot_encoder, 1),
}
