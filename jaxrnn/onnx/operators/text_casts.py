"""Casts between numbers and strings."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from jaxrnn.onnx.text import text_array

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
