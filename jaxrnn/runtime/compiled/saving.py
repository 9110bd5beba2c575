"""`save_compiled`: writing a stepper as a file of portable functions, machine code and arrays."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import first_line
from jaxrnn._files.stores import check_writable, local_path
from jaxrnn._jax.context import default_device, exact_types
from jaxrnn.errors import InputError, UnsupportedError, check_count
from jaxrnn.jaxprs.equations import walk
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.jaxprs.schedule import Packed
from jaxrnn.runtime.compiled.format import PORTABLE, Archive, host_operations, write
from jaxrnn.runtime.compiled.native import (
    BATCHED,
    CodeError,
    Native,
    arguments_of,
    code_of,
    environment,
    function_of,
    portable_arguments,
    results_of,
    structs,
    structs_of,
    without_file_names,
)
from jaxrnn.runtime.compiled.stepper import CompiledStepper
from jaxrnn.runtime.pool import DONATING, slot_functions
from jaxrnn.steps.specs import Arrays
from jaxrnn.steps.stepper import Bound, State, Stepper

#: JAX's names of the platforms that a file can be compiled for, besides the platform in use.
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

Functions = dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]


def save_compiled(
    stepper: Stepper,
    path: str | os.PathLike[str],
    *,
    params: Any = None,
    dims: Mapping[str, int] | None = None,
    platforms: Sequence[str] | None = None,
    label: str | None = None,
    native: bool = False,
    batches: Sequence[int] = (),
) -> None:
    """Write a stepper to a file: the step, the flush, and the scan of a model in steps.

    The file is written completely, or not at all. It contains the parameters once, packed if the stepper is a model in
    steps. The number of streams and the number of frames of a scan stay open. A streamed function is compiled for a
    fixed pulse.

    Args:
        stepper: a model with external state, a streamed function, or a custom `Stepper`.
        path: the path of the file, customarily with the suffix ``.jaxrnn``.
        params: the parameters; by default the parameters of the stepper.
        dims: sizes of open dimensions, except the batch.
        platforms: the platforms to compile for, some of ``"cpu"``, ``"cuda"``, ``"rocm"`` and ``"tpu"``; by default
            the platform that JAX uses here. The devices are not needed. The same file and state work on all platforms.
        label: the name in messages; by default the name of the model's file.
        native: also store machine code for one stream, so that `load_compiled` with ``native=True`` does not compile.
            Machine code is for this processor and these versions of jaxrnn and JAX; elsewhere the portable functions
            run. The machine code of each function contains a second copy of the parameters.
        batches: further numbers of streams for machine code, as batches and as capacities of pools.

    Raises:
        StateError: the model has no steps, or the state grows from step to step.
        InputError: a dimension or a parameter is missing or does not fit, arrays have no names, a platform is unknown,
            ``batches`` are not numbers of streams, or ``batches`` are given without ``native``.
        UnsupportedError: the step calls back into Python or needs other code of the host.
    """
    check_writable(local_path(path))
    counts = checked_batches(batches)
    if counts and not native:
        raise InputError(
            "batches are for machine code, and portable functions serve any number of streams: give native"
        )
    made = archive(stepper, params, dims or {}, platforms, label)
    write(Path(path), made._replace(native=machine_code(made, counts)) if native else made)


def checked_batches(batches: Sequence[int]) -> list[int]:
    """Check numbers of streams, and drop repetitions."""
    return [check_count("batches, the numbers of streams,", batch) for batch in dict.fromkeys(batches)]


def archive(
    stepper: Stepper, params: Any, dims: Mapping[str, int], platforms: Sequence[str] | None, label: str | None
) -> Archive:
    """Return the portable content of a file."""
    platforms = _known(platforms)
    bound = Bound(stepper, params, dims=dims)
    bound.check_sizes()
    bound = bound.packed()
    leaves, rebuild = _leaves_of(bound.params)
    constants = bound.example_constants() or {}

    def init(leaves: Any, constants: Arrays) -> State:
        return bound.with_params(rebuild(leaves)).start(constants or None)

    # Outside of `exact_types`, as in a runner: a custom stepper can rely on JAX's default dtypes.
    init(leaves, constants)  # checks the parameters
    leaves = [leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf) for leaf in leaves]
    shapes = [_shape(leaf) for leaf in leaves]
    try:
        made = bound.with_params(None).start()
        start = tuple(_compact(np.asarray(made[each.name])) for each in bound.spec.carried)
    except InputError:
        start = None
    with exact_types(), without_file_names():
        functions = _functions(bound, rebuild)
        if start is None:
            functions["init"] = (init, (jax.tree.map(_shape, constants),))
        spec = dataclasses.replace(
            bound.open_spec, label=label or PurePath(bound.open_spec.label).name, needs_params=False
        )
        exported = {
            name: _exported(f"{spec.label}: {name}", function, (shapes, *rest), platforms)
            for name, (function, rest) in functions.items()
        }
    return Archive(spec, jax.__version__, tuple(map(np.asarray, leaves)), start, exported)


def _exported(
    label: str, function: Callable[..., Any], arguments: tuple[Any, ...], platforms: Sequence[str] | None
) -> bytes:
    """Serialise a function; raise UnsupportedError if the function needs code of the host, as `load_function` does."""
    jitted = jax.jit(function)
    inner = walk(jitted.trace(*arguments).jaxpr)
    called = {equation.primitive.name for equation in inner if entry_of(equation).kind == "callback"}
    if called:
        raise UnsupportedError(f"{label} needs {', '.join(sorted(called))}, and {PORTABLE}")
    # `host_operations` compares the custom calls with the list of the reader.
    checks = [jax.export.DisabledSafetyCheck.custom_call("ALL")]
    try:
        made = jax.export.export(jitted, platforms=platforms, disabled_checks=checks)(*arguments)
    except NotImplementedError as error:  # a primitive that JAX does not lower for a platform
        raise UnsupportedError(f"{label} cannot be compiled: {first_line(error)}") from error
    except ValueError as error:  # JAX 0.10.0 has no "ALL", and compares the custom calls itself
        kernels = ", ".join(map(repr, sorted(set(re.findall(r'custom_call @"?([^"(]+)', str(error))))))
        if not kernels:
            raise
        raise UnsupportedError(f"{label} needs the custom call {kernels}, and {PORTABLE}") from error
    if refused := host_operations(made):
        raise UnsupportedError(f"{label} needs {', '.join(refused)}, and {PORTABLE}")
    return bytes(made.serialize())


def _known(platforms: Sequence[str] | None) -> Sequence[str] | None:
    """Check the names of platforms and drop repetitions; None means the platform that JAX uses here."""
    if platforms is None:
        return None
    known = dict.fromkeys((*PLATFORMS, jax.export.default_export_platform()))
    if isinstance(platforms, str) or not platforms or any(name not in known for name in platforms):
        raise InputError(
            f"platforms must be some of {', '.join(known)} (a GPU is cuda or rocm), as in platforms=('cpu', 'cuda'), "
            f"not {platforms!r}"
        )
    return list(dict.fromkeys(platforms))


def _leaves_of(params: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Return the arrays of parameters that a file needs, and a function that rebuilds the parameters."""
    if isinstance(params, Packed):
        return [*params.folded], lambda leaves: dataclasses.replace(params, folded=tuple(leaves))
    leaves, structure = jax.tree.flatten(params)
    return leaves, lambda leaves: jax.tree.unflatten(structure, leaves)


def _functions(bound: Bound, rebuild: Callable[[Sequence[Any]], Any]) -> Functions:
    """Return a dict of the functions of a file, each with the shapes of the arguments after the parameters."""
    spec, symbol = bound.open_spec, bound.open_spec.batch_symbol
    time, batch = jax.export.symbolic_shape("time, batch")
    keeps = spec.streams or bool(jax.eval_shape(bound.flush, structs(spec.carried, spec, ())).outputs)
    functions: Functions = {}
    for ending, size, lead in (("", batch, ()), (BATCHED, 1, (batch,))):
        sized = Bound(bound.stepper, bound.params, batch=None if symbol is None else size, dims=bound.dims)
        names = ["step"]
        if keeps:
            names.append("flush")
        if spec.inputs and not spec.streams:  # without inputs, a scan has no number of frames
            names.append("scan")
        for name in names:
            arguments = portable_arguments(spec, name + ending, time, batch)
            function = _function(sized, rebuild, name)
            mapped = jax.vmap(function, (None, *(0 for _ in arguments))) if lead else function
            functions[name + ending] = (mapped, arguments)
    return functions


def _function(bound: Bound, rebuild: Callable[[Sequence[Any]], Any], name: str) -> Callable[..., Any]:
    """Turn a method of a bound step into a function that takes the leaves of the parameters first."""

    def function(leaves: Any, *arguments: Any) -> Any:
        return tuple(getattr(bound.with_params(rebuild(leaves)), name)(*arguments))

    function.__name__ = name
    return function


def _shape(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(array), array.dtype)


def _compact(array: np.ndarray) -> np.ndarray:
    """Replace an array of equal elements, as in most first states, by a scalar."""
    first = array.reshape(-1)[:1]
    return first.reshape(()) if array.size and array.tobytes() == first.tobytes() * array.size else array


def machine_code(archive: Archive, batches: Sequence[int]) -> Native:
    """Compile the portable functions for this machine, for a single stream and for these numbers of streams."""
    code: dict[str, bytes] = {}
    results: dict[str, Any] = {}
    with exact_types():
        for name, (function, donated) in _sources(archive, batches).items():
            arguments = arguments_of(archive.spec, name)
            try:
                code[name], returned = code_of(function, arguments, donated)
                results[name] = results_of(returned)
                ready = function_of(code[name], arguments, structs_of(results[name]), default_device())
                # The code must run here before it is written.
                jax.block_until_ready(ready(*jax.tree.map(lambda each: np.zeros(each.shape, each.dtype), arguments)))
            except (CodeError, jax.errors.JaxRuntimeError) as error:
                raise UnsupportedError(
                    f"{archive.spec.label}: machine code of {name!r} cannot be stored: {error}; leave out native=True"
                ) from error
    return Native(environment(), results, code)


def _sources(archive: Archive, batches: Sequence[int]) -> dict[str, tuple[Callable[..., Any], tuple[int, ...]]]:
    """Return the functions to compile, named as in `arguments_of`, each with the arguments to donate."""
    stepper = CompiledStepper(archive)
    held = list(stepper.params)
    names = [name for name in ("init", "step", "flush") if name in archive.functions]
    sources: dict[str, Any] = {name: (functools.partial(stepper.portable(name), held), ()) for name in names}
    ending = BATCHED if archive.spec.batch_symbol is None else ""
    pool = slot_functions(Bound(stepper).step)
    for batch in batches:
        for name in (f"{name}{ending}" for name in names if name != "init"):
            sources[f"{name}_{batch}"] = functools.partial(stepper.portable(name), held), ()
        for name, function in pool.items():
            sources[f"pool_{name}_{batch}"] = function, (0,) if name in DONATING else ()
    return sources
