"""Whether the manifest of a compiled file says what whoever runs it relies on."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jaxrnn.arrays import MAX_ARRAY_BYTES
from jaxrnn.messages import bytes_of
from jaxrnn.specs import dtype_named
from jaxrnn.stepper import StepSpec

#: What the name of a function ends with that takes a batch of streams, an axis in front of every array.
BATCHED = "_batched"


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


def _dtype_or_none(value: Any) -> bool:
    return value is None or _dtype(value)


def _shape_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(map(_size, value)))


_ARRAY = {"name": _text, "dtype": _dtype, "shape": [_size], "time_axis": _whole_or_none}
#: What stands in every manifest.
_MANIFEST = {
    "jaxrnn": _text,
    "jax": _text,
    "params": [_dtype],
    "start": [_dtype],
    "functions": [_text],
    "spec": {
        "label": _text,
        "inputs": [_ARRAY],
        # The files of some models say neither the type nor the rank of an output.
        "outputs": [
            {
                **_ARRAY,
                "dtype": _dtype_or_none,
                "shape": _shape_or_none,
                "delay": _whole_or_none,
                "rate": _rate,
                "at_end": _flag,
            }
        ],
        "state": [{**_ARRAY, "kind": _text}],
        **dict.fromkeys(("pulse", "multiple", "smallest_pulse"), _count),
        "look_ahead": _whole,
        "receptive_field": _whole_or_none,
        "batch_symbol": _text_or_none,
        "joined": _flag,
        "constants": [_text],
        "needs_params": _flag,
    },
}


def check_manifest(manifest: Any, functions: Collection[str]) -> StepSpec:
    """The facts of a manifest, held against what a file must have.

    Raises:
        ValueError: something is missing, of another type, or larger than any value may be.
    """
    _check(manifest, _MANIFEST, "")
    fields = manifest["spec"]
    for kind in ("inputs", "outputs", "state"):
        for entry in fields[kind]:
            if unknown := entry.keys() - _MANIFEST["spec"][kind][0].keys():
                raise ValueError(f"{entry['name']} has the unknown fact(s) {', '.join(sorted(unknown))}")
            _check_array(entry)
    if unknown := fields.keys() - _MANIFEST["spec"].keys():
        raise ValueError(f"spec has the unknown fact(s) {', '.join(sorted(unknown))}")
    spec = StepSpec.from_json(fields)
    flushes = spec.streams or "flush" in manifest["functions"]
    needed = [name + ending for name in ("step", "flush")[: 1 + flushes] for ending in ("", BATCHED)]
    missing = {*needed, *manifest["functions"]} - set(functions)
    if missing:
        raise ValueError(f"it lacks the function(s) {', '.join(sorted(missing))}")
    if "init" not in functions and len(manifest["start"]) != len(spec.carried):
        raise ValueError(f"it lacks the function init, or {len(spec.carried)} arrays that the state begins with")
    return spec


def check_native(facts: Any) -> None:
    """What a manifest says of machine code, held against what a file must have.

    Raises:
        ValueError: something is missing, or of another type.
    """
    _check(facts, {"made": {}, "results": {}}, "native")
    for name, value in facts["made"].items():
        _check(value, _text, f"native.made.{name}")
    for name, results in facts["results"].items():
        where = f"native.results.{name}"
        _check(results, [{}], where)
        if not 0 < len(results) < 3:
            raise ValueError(f"{where} has {len(results)} groups of arrays")
        for array, described in (pair for each in results for pair in each.items()):
            _check(described, [lambda _: True], f"{where}.{array}")
            if len(described) != 2:
                raise ValueError(f"{where}.{array} is no element type and shape")
            _check(described[0], _dtype, f"{where}.{array}")
            _check(described[1], [lambda size: _whole(size) and size >= 0], f"{where}.{array}")
            _check_size(f"{where}.{array}", described[1], described[0])


def _check_array(entry: Mapping[str, Any]) -> None:
    axis, shape = entry["time_axis"], entry["shape"] or ()
    if axis is not None and not 0 <= axis < len(shape):
        raise ValueError(f"{entry['name']} of shape {entry['shape']} has no axis {axis}")
    if axis is not None and not _count(shape[axis]):
        raise ValueError(f"{entry['name']} of shape {entry['shape']} has no frames along axis {axis}")
    _check_size(entry["name"], [size for size in shape if not isinstance(size, str)], entry["dtype"])


def _check_size(name: str, sizes: Sequence[int], dtype: str | None) -> None:
    needed = math.prod(sizes) * (0 if dtype is None else dtype_named(dtype).itemsize)
    if needed > MAX_ARRAY_BYTES:
        raise ValueError(f"{name} takes {bytes_of(needed)}")


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
