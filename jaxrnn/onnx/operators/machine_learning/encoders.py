"""Operators of ``ai.onnx.ml`` that look values up: categories, labels, one-hot rows.

Strings are looked up on NumPy; numbers in JAX, by comparing them with all keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.onnx.registry import since
from jaxrnn.onnx.text import text_array
from jaxrnn.onnx.values import Value, describe, is_text, static, traced


def positions(x: Value, keys: np.ndarray) -> Value:
    """The place of each element among the keys, the last one where a key is repeated, and -1 where there is none."""
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


def chosen(place: Value, values: np.ndarray, default: np.ndarray) -> Value:
    """The value at each place, or the default where the place is -1."""
    table = np.concatenate([values.ravel(), default.reshape(1)])
    if is_text(table):
        return table[static(place, "which string is chosen")]
    return jnp.asarray(table)[place]


def _one(what: str, attributes: Mapping[str, Any]) -> np.ndarray:
    """The one attribute of several that was given, as an array of its type."""
    given = {name: value for name, value in attributes.items() if value is not None}
    if len(given) != 1:
        raise ValueError(f"exactly one attribute of {', '.join(attributes)} must be given for the {what}")
    ((name, value),) = given.items()
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
    """LabelEncoder: the value of each key; NaN is found among keys, and of a repeated key the last counts."""
    keys = _one(
        "keys",
        {
            "keys_floats": keys_floats,
            "keys_int64s": keys_int64s,
            "keys_strings": keys_strings,
            "keys_tensor": keys_tensor,
        },
    )
    values = _one(
        "values",
        {
            "values_floats": values_floats,
            "values_int64s": values_int64s,
            "values_strings": values_strings,
            "values_tensor": values_tensor,
        },
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
    return chosen(positions(x, keys), values, default)


def label_encoder_2(
    x: Value,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    keys_floats: tuple[float, ...] | None = None,
    keys_int64s: tuple[int, ...] | None = None,
    keys_strings: tuple[str, ...] | None = None,
    values_floats: tuple[float, ...] | None = None,
    values_int64s: tuple[int, ...] | None = None,
    values_strings: tuple[str, ...] | None = None,
) -> Value:
    """LabelEncoder before it took tensors as attributes."""
    return label_encoder(
        x,
        default_float=default_float,
        default_int64=default_int64,
        default_string=default_string,
        keys_floats=keys_floats,
        keys_int64s=keys_int64s,
        keys_strings=keys_strings,
        values_floats=values_floats,
        values_int64s=values_int64s,
        values_strings=values_strings,
    )


def _either_way(x: Value, numbers: np.ndarray, strings: np.ndarray, integer: int, string: str) -> Value:
    """Strings to their numbers, or numbers to their strings."""
    if numbers.size != strings.size:
        raise ValueError(f"there are {numbers.size} integers, but {strings.size} strings")
    if is_text(x):
        return chosen(positions(x, strings), numbers, np.asarray(integer, np.int64))
    return chosen(positions(x, numbers), strings, text_array([string]))


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
    """OneHotEncoder: a row for each element; of zeros where it is of no category, which ``zeros=0`` forbids."""
    categories = _one("categories", {"cats_int64s": cats_int64s, "cats_strings": cats_strings})
    if not is_text(x) and not is_text(categories):
        x = traced(x).astype(jnp.int64)
    place = positions(x, categories)
    if not zeros and np.any(static(place, "whether every element has a category, which zeros=0 demands,") < 0):
        raise ValueError("an element is of no category, and zeros=0 forbids that")
    return jax.nn.one_hot(place, categories.size, dtype=jnp.float32)


OPERATORS = {
    "ai.onnx.ml::CategoryMapper": since(category_mapper, 1),
    "ai.onnx.ml::LabelEncoder": since(label_encoder_1, 1) | since(label_encoder_2, 2) | since(label_encoder, 4),
    "ai.onnx.ml::OneHotEncoder": since(one_hot_encoder, 1),
}
