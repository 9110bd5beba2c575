"""Whether the manifest of a compiled file says what whoever runs it relies on."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from jaxrnn.messages import bytes_of
from jaxrnn.onnx.limits import Limits


def dtype_named(name: str) -> np.dtype:
    """An element type by its name, those that NumPy does not have itself included."""
    return np.dtype(getattr(ml_dtypes, name, name))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return _whole(value) and value > 0


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _dtype(value: Any) -> bool:
    try:
        dtype = dtype_named(value)
    except (TypeError, ValueError):
        return False
    return dtype.name == value and dtype.kind not in "OSUTMm"


def _size(value: Any) -> bool:
    return _text(value) or (_whole(value) and value >= 0)


def _rate(value: Any) -> bool:
    return value is None or (_text(value) and re.fullmatch(r"[0-9]{1,9}(/[1-9][0-9]{0,8})?", value) is not None)


def _whole_or_none(value: Any) -> bool:
    return value is None or _whole(value)


def _text_or_none(value: Any) -> bool:
    return value is None or _text(value)


def _anything(value: Any) -> bool:
    return True


_ARRAY = {"name": _text, "dtype": _dtype, "shape": [_size]}
#: What stands in every manifest.
_COMMON = {"jaxrnn": _text, "jax": _text, "label": _text, "dtypes": [_dtype]}
#: What stands in that of a model in steps.
STEPS = {
    **_COMMON,
    "batch_symbol": _text_or_none,
    "inputs": [_ARRAY],
    "outputs": [_text],
    "state": [{**_ARRAY, "reason": _text, "initial": _anything}],
}
#: What stands in that of a streamed function.
STREAMED = {
    **_COMMON,
    **dict.fromkeys(("pulse", "multiple", "smallest_pulse"), _count),
    "look_ahead": _whole,
    "receptive_field": _whole_or_none,
    "inputs": [{**_ARRAY, "axis": _whole_or_none}],
    "outputs": [{**_ARRAY, "axis": _whole_or_none, "delay": _whole_or_none, "rate": _rate, "at_end": _flag}],
    "state": [{**_ARRAY, "kind": _text}],
    "vectors": [_ARRAY],
    "held": [_text],
}


def check_manifest(manifest: Any, functions: Collection[str], *, streamed: bool) -> None:
    """Hold a manifest against what its kind of file says, and the functions against those that the file must have.

    Raises:
        ValueError: something is missing, of another type, or larger than any value may be.
    """
    _check(manifest, STREAMED if streamed else STEPS, "")
    endings = ("", "_lifted") if streamed or manifest["batch_symbol"] is None else ("",)
    names = {f"{name}{ending}" for name in (("step", "flush") if streamed else ("step", "scan")) for ending in endings}
    missing = (names | ({"init"} if streamed else set())) - set(functions)
    if missing:
        raise ValueError(f"it lacks the function(s) {', '.join(sorted(missing))}")
    for entry in (*manifest["inputs"], *manifest["state"]):
        axis = entry.get("axis")
        if axis is not None and not 0 <= axis < len(entry["shape"]):
            raise ValueError(f"{entry['name']} of shape {entry['shape']} has no axis {axis}")
        sizes = [size for size in entry["shape"] if not isinstance(size, str)]
        needed = math.prod(sizes) * dtype_named(entry["dtype"]).itemsize
        if needed > Limits.value_bytes:
            raise ValueError(f"{entry['name']} takes {bytes_of(needed)}")
        if "initial" in entry:
            start = np.asarray(entry["initial"], dtype_named(entry["dtype"]))
            np.broadcast_to(start, [1 if isinstance(size, str) else size for size in entry["shape"]])


def _check(value: Any, expected: Any, where: str) -> None:
    if isinstance(expected, dict):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where or 'the manifest'} is no object")
        if missing := expected.keys() - value.keys():
            raise ValueError(f"{where or 'the manifest'} lacks {', '.join(sorted(missing))}")
        for key, inner in expected.items():
            _check(value[key], inner, f"{where}.{key}" if where else key)
    elif isinstance(expected, list):
        if not isinstance(value, list):
            raise ValueError(f"{where} is no list")
        for index, item in enumerate(value):
            _check(item, expected[0], f"{where}[{index}]")
    elif not expected(value):
        raise ValueError(f"{where} is {value!r:.60}")
