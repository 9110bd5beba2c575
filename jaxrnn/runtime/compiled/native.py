"""Machine code of a compiled file: writing and reading the code, and comparing the machine with this machine.

Machine code runs on one kind of machine with the same installation. Elsewhere, JAX compiles the portable part of the
file. All dependencies of the code are compared before the code runs.

JAX stores executables as pickles, and reading a pickle runs code. This module does not pickle: the file contains the
bytes that the compiler's runtime writes and reads, and the reader supplies the arguments and results. JAX has no public
names for these functions. The private names of JAX that jaxrnn needs for compiled files are in this module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jaxlib.version
import numpy as np
from jax._src import config
from jax._src.interpreters import pxla
from jax.core import ShapedArray
from jax.sharding import SingleDeviceSharding
from jaxlib import xla_client

from jaxrnn._jax.context import default_device
from jaxrnn._jax.processors import features
from jaxrnn.steps.specs import ArraySpec, dtype_named
from jaxrnn.steps.stepspec import StepSpec
from jaxrnn.version import __version__

#: The suffix of a function for a batch of streams, with a leading axis on each array.
BATCHED = "_batched"
#: The environment variables that change the compiler.
VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")

Results = list[dict[str, tuple[str, list[int]]]]


class Native(NamedTuple):
    """Machine code by function."""

    made: Mapping[str, Any]  # the `environment` of the compilation
    results: Mapping[str, Results]  # the dtypes and shapes of the results
    code: Mapping[str, bytes]


def environment() -> dict[str, str]:
    """Return all dependencies of machine code, except the compiled function."""
    device = default_device()
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
    """Describe the dependencies that differ; return an empty list if the code can run here.

    The processor can have further instruction sets.
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
    """Return the arguments of machine code as trees of shapes and dtypes.

    The name of a function for several streams ends with the number of streams. An unknown name raises ValueError.
    """
    kind, _, number = name.rpartition("_") if name[-1:].isdigit() else (name, "", "")
    batch = int(number or 1)
    # The number sizes the batch dimension of a step; a pool keeps its streams apart, on a leading axis.
    within = spec.batch_symbol is not None and not kind.startswith("pool")
    lead = () if within or not number else (batch,)
    return arguments(spec, kind.removesuffix(BATCHED), lead, batch if within else 1)


def portable_arguments(spec: StepSpec, name: str, frames: Any, batch: Any) -> tuple[Any, ...]:
    """Return the arguments of a portable function after the parameters, with symbolic sizes, as trees of shapes."""
    kind = name.removesuffix(BATCHED)
    if kind == "init":
        return arguments(spec, kind)
    return arguments(spec, kind, () if kind == name else (batch,), batch if kind == name else 1, frames)


def arguments(
    spec: StepSpec, kind: str, lead: tuple[Any, ...] = (), batch: Any = 1, frames: Any = 1
) -> tuple[Any, ...]:
    """Return the arguments of a kind of function, with leading axes ``lead`` or this size of the batch dimension."""
    state, inputs = (structs(specs, spec, lead, batch) for specs in (spec.carried, spec.inputs))
    slot = jax.ShapeDtypeStruct((), np.int32)
    match kind:
        case "init":
            return ({each: struct for each, struct in inputs.items() if each in spec.constants},)
        case "step":
            return state, inputs
        case "scan":
            return state, structs(spec.inputs, spec, (*lead, frames), batch)
        case "flush":
            return state, inputs if spec.streams else {}, jax.ShapeDtypeStruct(lead, np.int32)
        case "pool_run":
            return state, inputs, jax.ShapeDtypeStruct(lead, bool)
        case "pool_take":
            return state, slot
        case "pool_clear":
            return state, structs(spec.carried, spec, ()), slot
    raise ValueError(f"no function is called {kind!r}")


def structs(
    specs: Sequence[ArraySpec], spec: StepSpec, lead: Sequence[Any], batch: Any = 1
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return a dict of shapes and dtypes, with leading axes ``lead`` and this size of the step's batch dimension."""
    sizes = {} if spec.batch_symbol is None else {spec.batch_symbol: batch}
    return {each.name: each.sized(sizes).batched(lead).struct() for each in specs}


def results_of(structs: Any) -> Results:
    """Return the structs of a function's results, a dict or a tuple of dicts, as JSON values."""
    dicts = (structs,) if isinstance(structs, Mapping) else structs
    return [
        {name: (np.dtype(leaf.dtype).name, list(leaf.shape)) for name, leaf in sorted(each.items())} for each in dicts
    ]


def structs_of(results: Results) -> Any:
    """Return the structs from the JSON values of `results_of`."""
    dicts = [
        {name: jax.ShapeDtypeStruct(tuple(shape), dtype_named(dtype)) for name, (dtype, shape) in each.items()}
        for each in results
    ]
    return tuple(dicts) if len(dicts) > 1 else dicts[0]


#: The fields of an executable in this version of JAX; versions differ slightly.
_PARTS = {field.name for field in dataclasses.fields(pxla.UnloadedMeshExecutable)}


class CodeError(Exception):
    """A function without machine code for other processes, or bytes that are not machine code."""


def code_of(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    donated: tuple[int, ...] = (),
) -> tuple[bytes, Any]:
    """Compile a function of arrays for this machine, and return the machine code and the structs of the results.

    ``arguments`` are trees of shapes and dtypes; the function can overwrite the ``donated`` arguments. Python callbacks
    are not allowed. Raises CodeError if the function runs on several devices.
    """

    def jaxrnn_machine_code(*arrays: Any) -> Any:
        return function(*arrays)

    # Unused arguments stay arguments, so that a reader does not have to know which arguments are unused.
    jitted = jax.jit(jaxrnn_machine_code, keep_unused=True, donate_argnums=donated)
    with without_file_names():
        lowered = jitted.lower(*arguments)
    # An executable from JAX's persistent cache has lost the names of its parts and cannot be written again. The
    # function has a name that no cache contains.
    with config.persistent_cache_min_compile_time_secs(math.inf):
        compiled = lowered.compile()
    executable: Any = compiled.runtime_executable()
    if len(executable.local_devices()) != 1:
        raise CodeError("it runs on several devices")
    return executable.client.serialize_executable(executable), lowered.out_info


def without_file_names() -> contextlib.AbstractContextManager[Any]:
    """Lower programs without the files and lines of this machine; scopes, such as the names of nodes, stay."""
    return config.traceback_in_locations_limit(0)


def function_of(code: bytes, arguments: tuple[Any, ...], results: Any, device: Any) -> Callable[..., Any]:
    """Load machine code as a function on a device, for arrays of exactly these shapes.

    The code runs unchecked. ``arguments`` and ``results`` are trees of shapes and dtypes. Raises CodeError if the bytes
    are not machine code for this platform, or this version of JAX has a different format.
    """
    sharding = SingleDeviceSharding(device)
    devices = xla_client.DeviceList((device,))
    taken, given = ([ShapedArray(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(t)] for t in (arguments, results))
    facts: dict[str, Any] = {
        "device_list": devices,
        "backend": device.client,
        "input_avals": taken,
        "input_shardings": [sharding] * len(taken),
        "output_avals": given,
        "output_shardings": [sharding] * len(given),
        "committed": True,
        "name": "native",
        "kept_var_idx": set(range(len(taken))),
        "mut": None,
        "auto_spmd_lowering": False,
        "all_args_info": None,
        "pgle_profiler": None,
        **dict.fromkeys(("unordered_effects", "ordered_effects", "keepalive", "host_callbacks"), ()),
        **dict.fromkeys(("xla_in_layouts", "dispatch_in_layouts"), [None] * len(taken)),
        "xla_out_layouts": [None] * len(given),
    }
    try:
        executable = device.client.deserialize_executable(code, executable_devices=devices)
        parts = {name: value for name, value in facts.items() if name in _PARTS}
        loaded = pxla.UnloadedMeshExecutable(xla_executable=executable, **parts).load()
        return jax.stages.Compiled(loaded, [], (arguments, {}), jax.tree.structure(results), no_kwargs=True)
    except Exception as error:  # any error: of the runtime, or of a JAX with other fields
        raise CodeError(str(error)) from error
