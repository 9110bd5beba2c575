"""Whether the manifest of a compiled file says what whoever runs it relies on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jaxrnn.steps.schemas import SPEC, check, check_size, checked_spec, is_dtype, is_text, is_whole
from jaxrnn.steps.stepspec import StepSpec

#: What the name of a function ends with that takes a batch of streams, an axis in front of every array.
BATCHED = "_batched"

#: What stands in every manifest.
_MANIFEST = {
    "jaxrnn": is_text,
    "jax": is_text,
    "params": [is_dtype],
    "start": [is_dtype],
    "functions": [is_text],
    "spec": SPEC,
}


def check_manifest(manifest: Any, functions: Collection[str]) -> StepSpec:
    """The facts of a manifest, held against what a file must have.

    Raises:
        ValueError: something is missing, of another type, or larger than any value may be.
    """
    check(manifest, _MANIFEST, "")
    spec = checked_spec(manifest["spec"], "spec")
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
    check(facts, {"made": {}, "results": {}}, "native")
    for name, value in facts["made"].items():
        check(value, is_text, f"native.made.{name}")
    for name, results in facts["results"].items():
        where = f"native.results.{name}"
        check(results, [{}], where)
        if not 0 < len(results) < 3:
            raise ValueError(f"{where} has {len(results)} groups of arrays")
        for array, described in (pair for each in results for pair in each.items()):
            check(described, [lambda _: True], f"{where}.{array}")
            if len(described) != 2:
                raise ValueError(f"{where}.{array} is no element type and shape")
            check(described[0], is_dtype, f"{where}.{array}")
            check(described[1], [lambda size: is_whole(size) and size >= 0], f"{where}.{array}")
            check_size(f"{where}.{array}", described[1], described[0])
