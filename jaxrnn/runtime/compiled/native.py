"""The machine code of a file: for which machine it is, and the functions that it holds.

It serves one machine and one installation, and the rest of the file all others. What it depends on is compared before
anything of it is used.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jaxlib.version
import numpy as np

from jaxrnn._jax.processors import features
from jaxrnn.runtime.compiled.manifest import BATCHED
from jaxrnn.steps.specs import ArraySpec, dtype_named
from jaxrnn.steps.stepspec import StepSpec
from jaxrnn.version import __version__

#: What the compiler takes from the environment.
VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")

Results = list[dict[str, tuple[str, list[int]]]]


class Native(NamedTuple):
    """Machine code.

    Attributes:
        made: the `environment` that it was made in.
        results: by function, the arrays that it returns: dicts of an element type and a shape each.
        code: by function, its bytes.
    """

    made: Mapping[str, Any]
    results: Mapping[str, Results]
    code: Mapping[str, bytes]


def environment() -> dict[str, str]:
    """All that machine code depends on, but for what it was compiled from."""
    (device,) = jax.device_put(0).devices()
    return {
        "jaxrnn": __version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "system": f"{sys.platform} {platform.machine()}",
        "platform": device.platform,
        "device": device.device_kind,
        "driver": getattr(device.client, "platform_version", ""),
        "processor": " ".join(features()),
        **{name: " ".join(sorted(os.environ.get(name, "").split())) for name in VARIABLES},
    }


def differences(made: Mapping[str, Any]) -> list[str]:
    """What of the environment is not as it was, in words: nothing where the code can be used.

    A processor may have more instruction sets than that for which the code was made.
    """
    said = []
    for name, here in environment().items():
        there = str(made.get(name, ""))
        if name == "processor" and here and there:
            lacking = sorted(set(there.split()) - set(here.split()))
            if lacking:
                more = f" and {len(lacking) - 4} more" if len(lacking) > 4 else ""
                said.append(f"this processor lacks {', '.join(lacking[:4])}{more}")
        elif here != there:
            was, now = (repr(value) if value else "nothing" for value in (there, here))
            said.append(f"{name} was {was} and is {now}")
    return said


def arguments_of(spec: StepSpec, name: str) -> tuple[Any, ...]:
    """What a function takes after the parameters, as trees of shapes and element types.

    Args:
        spec: the facts of the file.
        name: of the function, with the number of streams after that of one that takes a batch.

    Raises:
        ValueError: there is no such function.
    """
    kind, _, number = name.rpartition("_") if name[-1:].isdigit() else (name, "", "")
    batch = int(number or 1)
    # Of a step that has one, the batch dimension is that number, but in a pool, whose streams are apart.
    within = spec.batch_symbol is not None and not kind.startswith("pool")
    lead = () if within or not number else (batch,)
    state, frames = (structs(specs, spec, lead, batch if within else 1) for specs in (spec.carried, spec.inputs))
    slot = jax.ShapeDtypeStruct((), np.int32)
    match kind.removesuffix(BATCHED):
        case "init":
            return ({each: struct for each, struct in frames.items() if each in spec.constants},)
        case "step":
            return state, frames
        case "flush":
            return state, frames if spec.streams else {}, jax.ShapeDtypeStruct(lead, np.int32)
        case "pool_run":
            return state, frames, jax.ShapeDtypeStruct(lead, bool)
        case "pool_take":
            return state, slot
        case "pool_clear":
            return state, structs(spec.carried, spec, ()), slot
    raise ValueError(f"no function is called {name!r}")


def structs(
    specs: Sequence[ArraySpec], spec: StepSpec, lead: Sequence[Any], batch: Any = 1
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and element types by name.

    Args:
        specs: of the arrays.
        spec: of the step that they belong to.
        lead: axes in front.
        batch: the size of the batch dimension, where the step has one.
    """
    sizes = {} if spec.batch_symbol is None else {spec.batch_symbol: batch}
    return {each.name: each.sized(sizes).batched(lead).struct() for each in specs}


def results_of(structs: Any) -> Results:
    """The arrays that a function returns, in JSON's types: one dict, or a tuple of them."""
    dicts = (structs,) if isinstance(structs, Mapping) else structs
    return [
        {name: (np.dtype(leaf.dtype).name, list(leaf.shape)) for name, leaf in sorted(each.items())} for each in dicts
    ]


def structs_of(results: Results) -> Any:
    """The shapes and element types that `results_of` wrote."""
    dicts = [
        {name: jax.ShapeDtypeStruct(tuple(shape), dtype_named(dtype)) for name, (dtype, shape) in each.items()}
        for each in results
    ]
    return tuple(dicts) if len(dicts) > 1 else dicts[0]
