"""Machine code of JAX: a compiled function as bytes, and bytes as a function again.

JAX keeps executables itself, as pickles, which run code while they are read. Here nothing is pickled: of a function,
the bytes are kept that the compiler's own runtime writes and reads, and whoever loads it says what its arguments and
results are. JAX has no public names for that. All private ones that jaxrnn uses for it are in this file.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
from jax._src import config
from jax._src.interpreters import pxla
from jax.core import ShapedArray
from jax.sharding import SingleDeviceSharding
from jaxlib import xla_client

#: What this version of JAX wants to know of an executable; others want a little more or less.
_PARTS = {field.name for field in dataclasses.fields(pxla.UnloadedMeshExecutable)}


class CodeError(Exception):
    """A function has no machine code that another process could run, or there are bytes that are none."""


def code_of(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    donated: tuple[int, ...] = (),
) -> tuple[bytes, Any]:
    """The machine code of a function for this machine, and what it returns.

    Args:
        function: of arrays alone.
        arguments: trees of shapes and element types.
        donated: the numbers of those that it may overwrite.

    Returns:
        The code; the results, as trees of shapes and element types.

    Raises:
        CodeError: the function calls back into Python, or runs on several devices.
    """

    def jaxrnn_machine_code(*arrays: Any) -> Any:
        return function(*arrays)

    # What is not used stays an argument, so that nobody needs to know which those are.
    jitted = jax.jit(jaxrnn_machine_code, keep_unused=True, donate_argnums=donated)
    lowered = jitted.lower(*arguments)
    # What comes from JAX's persistent cache has lost the names of its parts, and cannot be kept again. A function of
    # this name is in no cache.
    with config.persistent_cache_min_compile_time_secs(math.inf):
        compiled = lowered.compile()
    unloaded: Any = getattr(compiled._executable, "_unloaded_executable", None)
    if unloaded is None or unloaded.host_callbacks or unloaded.keepalive or unloaded.ordered_effects:
        raise CodeError("it calls back into Python")
    executable: Any = compiled.runtime_executable()
    if len(executable.local_devices()) != 1:
        raise CodeError("it runs on several devices")
    return executable.client.serialize_executable(executable), lowered.out_info


def function_of(code: bytes, arguments: tuple[Any, ...], results: Any) -> Callable[..., Any]:
    """A function from its machine code, on JAX's default device. It takes and gives arrays of exactly these shapes.

    Args:
        code: as `code_of` gave it on such a machine. It is run as it is.
        arguments: trees of shapes and element types.
        results: the same of what it returns.

    Raises:
        CodeError: these bytes are no machine code of this platform, or this version of JAX keeps it in another way.
    """
    (device,) = jax.device_put(0).devices()
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
    except Exception as error:  # of whatever kind: the runtime's own, or of a JAX that has other parts
        raise CodeError(str(error)) from error
