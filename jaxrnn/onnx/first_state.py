"""The elements of a first state in JSON's types, for people as far as they can read them, and exact."""

from __future__ import annotations

import base64
import binascii
import math
from typing import Any

import numpy as np

from jaxrnn.steps.specs import ArraySpec

#: The most elements that are written as numbers; the bytes of more are base64, in little-endian order.
READABLE = 4096

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(array: np.ndarray) -> Any:
    """A number where all elements are the same to the last bit, nested lists of them, or the elements as base64."""
    if not array.size:
        return 0
    first = array.reshape(-1)[:1]
    if array.tobytes() == first.tobytes() * array.size and _is_plain(first):
        return _number(first.item())
    if array.size <= READABLE and _is_plain(array):
        return _listed(array.tolist())
    return {"base64": base64.b64encode(_little_endian(array)).decode()}


def from_json(value: Any, spec: ArraySpec) -> np.ndarray:
    """The elements that `to_json` described.

    Args:
        value: as it gave it.
        spec: of the array.

    Raises:
        ValueError: it is not of that type and shape.
    """
    dtype = spec.dtype
    assert dtype is not None
    if isinstance(value, dict):
        try:
            data = base64.b64decode(value["base64"], validate=True)
        except (KeyError, TypeError, binascii.Error) as error:
            raise ValueError(f"the first value of {spec.name} is no base64") from error
        bits = np.frombuffer(data, np.dtype(f"u{_parts(dtype)}").newbyteorder("<"))
        array = bits.astype(bits.dtype.newbyteorder("=")).view(dtype)
        if array.size != math.prod(spec.sizes):
            raise ValueError(f"the first value of {spec} has {array.size} elements")
        return array.reshape(spec.sizes)
    try:
        plain = np.asarray(_unlisted(value))
        array = np.asarray(_unlisted(value), dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"the first value of {spec} is {value!r:.60}") from error
    if plain.dtype.kind not in "biuf" or (plain.ndim and plain.shape != spec.sizes):
        raise ValueError(f"the first value of {spec} is {value!r:.60}")
    return np.broadcast_to(array, spec.sizes)  # a number takes no memory, whatever shape the file says


def _is_plain(array: np.ndarray) -> bool:
    """Whether JSON's numbers say all of it: no complex numbers, and of NaNs only the usual one."""
    if array.dtype.kind in "biu":
        return True
    if array.dtype.kind == "c":
        return False
    with np.errstate(all="ignore"):
        numbers = np.array(array, np.float64)
        numbers[np.isnan(numbers)] = math.nan
        again = numbers.astype(array.dtype)
    return again.tobytes() == array.tobytes()


def _number(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _listed(value: Any) -> Any:
    return [_listed(each) for each in value] if isinstance(value, list) else _number(value)


def _unlisted(value: Any) -> Any:
    if isinstance(value, list):
        return [_unlisted(each) for each in value]
    return _NOT_FINITE[value] if isinstance(value, str) and value in _NOT_FINITE else value


def _parts(dtype: np.dtype) -> int:
    """The bytes of a number in an element, of which a complex one has two."""
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize


def _little_endian(array: np.ndarray) -> bytes:
    bits = np.ascontiguousarray(array).reshape(-1).view(f"u{_parts(array.dtype)}")
    return bits.astype(bits.dtype.newbyteorder("<")).tobytes()
