"""Machine code for the functions of a file, made where it is written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrnn._jax.context import exact_types
from jaxrnn.errors import UnsupportedError
from jaxrnn.runtime.bound import Bound
from jaxrnn.runtime.compiled.executables import CodeError, code_of, function_of
from jaxrnn.runtime.compiled.format import Archive
from jaxrnn.runtime.compiled.manifest import BATCHED
from jaxrnn.runtime.compiled.native import Native, arguments_of, environment, results_of, structs_of
from jaxrnn.runtime.compiled.stepper import CompiledStepper
from jaxrnn.runtime.slots import DONATING, slot_functions


def native(archive: Archive, batches: Sequence[int]) -> Native:
    """Machine code of what the portable functions of a file compute on this machine, the parameters in it.

    Args:
        archive: the portable part.
        batches: numbers of streams that it is for, besides a single one.

    Raises:
        UnsupportedError: a function calls back into Python, or this version of JAX keeps no machine code.
    """
    code: dict[str, bytes] = {}
    results: dict[str, Any] = {}
    with exact_types():
        for name, source in _sources(archive, batches).items():
            arguments = arguments_of(archive.spec, name)
            try:
                code[name], returned = code_of(source.function, arguments, source.donated)
                results[name] = results_of(returned)
                ready = function_of(code[name], arguments, structs_of(results[name]))
                # It has been seen to run.
                jax.block_until_ready(ready(*jax.tree.map(lambda each: np.zeros(each.shape, each.dtype), arguments)))
            except (CodeError, jax.errors.JaxRuntimeError) as error:
                raise UnsupportedError(
                    f"{archive.spec.label}: the machine code of {name!r} cannot be kept: {error}; leave out native=True"
                ) from error
    return Native(environment(), results, code)


class _Source(NamedTuple):
    """What is to be machine code: as in `code_of`."""

    function: Callable[..., Any]
    donated: tuple[int, ...] = ()


def _sources(archive: Archive, batches: Sequence[int]) -> dict[str, _Source]:
    """Functions to compile, by the names that `arguments_of` takes."""
    stepper = CompiledStepper(archive)
    held = list(stepper.params)
    names = [name for name in ("init", "step", "flush") if name in archive.functions]
    sources = {name: _Source(functools.partial(stepper.portable(name), held)) for name in names}
    ending = BATCHED if archive.spec.batch_symbol is None else ""
    pool = slot_functions(Bound(stepper).step)._asdict()
    for batch in batches:
        for name in (f"{name}{ending}" for name in names if name != "init"):
            sources[f"{name}_{batch}"] = _Source(functools.partial(stepper.portable(name), held))
        for name, function in pool.items():
            sources[f"pool_{name}_{batch}"] = _Source(function, (0,) if name in DONATING else ())
    return sources
