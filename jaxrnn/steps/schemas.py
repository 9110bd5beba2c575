"""Schemas of the JSON in files: checks of values, and the spec of a step from JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrnn._files.arrays import MAX_ARRAY_BYTES
from jaxrnn._files.messages import bytes_of
from jaxrnn.steps.specs import dtype_named
from jaxrnn.steps.stepspec import StepSpec

#: The first bytes of a compiled file of any format version.
COMPILED = b"jaxrnn compiled model"


def is_text(value: Any) -> bool:
    """Return True for a string."""
    return isinstance(value, str)


def is_whole(value: Any) -> bool:
    """Return True for an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_positive(value: Any) -> bool:
    """Return True for a positive integer of 32 bits, as numbers of frames in files are."""
    return is_whole(value) and 0 < value < 2**31


def is_flag(value: Any) -> bool:
    """Return True for a boolean."""
    return isinstance(value, bool)


def is_dtype(value: Any) -> bool:
    """Return True for the name of a dtype."""
    try:
        dtype = dtype_named(value)
    except (TypeError, ValueError, SyntaxError):  # NumPy parses some names as Python
        return False
    return dtype.name == value and dtype.kind not in "OSUTMm"


def is_size(value: Any) -> bool:
    """Return True for an integer from 0 on."""
    return is_whole(value) and value >= 0


def _dimension(value: Any) -> bool:
    return is_text(value) or is_size(value)


def _rate(value: Any) -> bool:
    return is_text(value) and re.fullmatch(r"[0-9]{1,9}(/[1-9][0-9]{0,8})?", value) is not None


def or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a check that also accepts None."""
    return lambda value: value is None or check(value)


_ARRAY = {"name": is_text, "dtype": is_dtype, "shape": [_dimension], "time_axis": or_none(is_whole)}
#: The schema of `StepSpec.to_json`.
SPEC = {
    "label": is_text,
    "inputs": [_ARRAY],
    # Some model files declare neither the dtype nor the rank of an output.
    "outputs": [
        {
            **_ARRAY,
            "dtype": or_none(is_dtype),
            "shape": or_none(lambda shape: isinstance(shape, list) and all(map(_dimension, shape))),
            "delay": or_none(is_whole),
            "rate": or_none(_rate),
            "at_end": is_flag,
        }
    ],
    "state": [{**_ARRAY, "kind": is_text}],
    **dict.fromkeys(("pulse", "multiple", "smallest_pulse"), is_positive),
    "look_ahead": is_whole,
    "receptive_field": or_none(is_whole),
    "batch_symbol": or_none(is_text),
    "joined": is_flag,
    "constants": [is_text],
    "needs_params": is_flag,
}


def checked_spec(fields: Any, where: str) -> StepSpec:
    """Return the spec of a step from the values of `StepSpec.to_json`, after a check.

    ``where`` is the key of the values in the file. Raises ValueError if an entry is missing or unknown, has a wrong
    type, or describes an array larger than the limit.
    """
    optional = [name for name in ("past", "shortest", "longest") if isinstance(fields, Mapping) and name in fields]
    schema = SPEC | dict.fromkeys(optional, is_positive)
    check(fields, schema, where)
    for kind in ("inputs", "outputs", "state"):
        for entry in fields[kind]:
            if unknown := entry.keys() - SPEC[kind][0].keys():
                raise ValueError(f"{entry['name']} has the unknown fact(s) {', '.join(sorted(unknown))}")
            axis, shape = entry["time_axis"], entry["shape"] or ()
            if axis is not None and not 0 <= axis < len(shape):
                raise ValueError(f"{entry['name']} of shape {entry['shape']} has no axis {axis}")
            if axis is not None and not is_positive(shape[axis]):
                raise ValueError(f"{entry['name']} of shape {entry['shape']} has no frames along axis {axis}")
            check_size(entry["name"], [size for size in shape if not isinstance(size, str)], entry["dtype"])
    if unknown := fields.keys() - schema.keys():
        raise ValueError(f"{where} has the unknown fact(s) {', '.join(sorted(unknown))}")
    return StepSpec.from_json(fields)


def check_size(name: str, sizes: Sequence[int], dtype: str | None) -> None:
    """Check that an array is not larger than `MAX_ARRAY_BYTES`; otherwise raise ValueError."""
    needed = math.prod(sizes) * (0 if dtype is None else dtype_named(dtype).itemsize)
    if needed > MAX_ARRAY_BYTES:
        raise ValueError(f"{name} takes {bytes_of(needed)}")


def check(value: Any, expected: Any, where: str) -> None:
    """Check a value against a schema: a dict of schemas by key, a list with the schema of all items, or a predicate.

    An entry that is missing or has a wrong type raises ValueError with the key.
    """
    if isinstance(expected, dict):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where or 'the manifest'} is not an object")
        if missing := expected.keys() - value.keys():
            raise ValueError(f"{where or 'the manifest'} lacks {', '.join(sorted(missing))}")
        for key, inner in expected.items():
            check(value[key], inner, f"{where}.{key}" if where else key)
    elif isinstance(expected, list):
        if not isinstance(value, list):
            raise ValueError(f"{where} is not a list")
        for index, item in enumerate(value):
            check(item, expected[0], f"{where}[{index}]")
    elif not expected(value):
        raise ValueError(f"{where} is {value!r:.60}")
