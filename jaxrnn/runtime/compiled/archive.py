"""A stepper as the functions and arrays of a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import jax
import numpy as np

from jaxrnn._files.arguments import argument, called
from jaxrnn._files.messages import describe
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError, StateError
from jaxrnn.jaxprs.packing import Packed
from jaxrnn.runtime.bound import Bound, packed
from jaxrnn.runtime.compiled.format import Archive
from jaxrnn.runtime.compiled.manifest import BATCHED
from jaxrnn.runtime.compiled.native import structs
from jaxrnn.steps.stepper import State, Stepper
from jaxrnn.steps.stepspec import StepSpec

#: What programs can be compiled for, by JAX's names, besides the platform that JAX uses here.
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

Arrays = Mapping[str, Any]
Functions = dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]


def archive(
    stepper: Stepper, params: Any, dims: Mapping[str, int], platforms: Sequence[str] | None, label: str | None
) -> Archive:
    """What a file of a stepper holds.

    Raises:
        StateError: it has no steps, or its state grows.
        InputError: a dimension or parameters are missing or do not fit, or there is no such platform.
    """
    platforms = _known(platforms)
    stream = Bound(stepper, params)
    params = stream.params
    spec = _sized(stepper.spec, dims)
    params = packed(stepper, params, dims)
    leaves, rebuild = _leaves_of(params)
    shapes = [_shape(leaf) for leaf in leaves]
    sizes = _dims_argument({name: dims[name] for each in stepper.spec.state for name in each.symbols if name in dims})
    constants = stream.example_constants() or {}

    def init(leaves: Any, constants: Arrays) -> State:
        return stepper.init(params=rebuild(leaves), constants=constants or None, **sizes)

    with exact_types():
        init(leaves, constants)  # holds the parameters against the stepper's
        functions = _functions(stepper, spec, rebuild, shapes)
        start = None
        try:
            made = stepper.init(**sizes)
            start = tuple(_compact(np.asarray(made[each.name])) for each in spec.carried)
        except InputError:
            functions["init"] = (init, (jax.tree.map(_shape, constants),))
        exported = {
            name: bytes(jax.export.export(jax.jit(function), platforms=platforms)(shapes, *rest).serialize())
            for name, (function, rest) in functions.items()
        }
    named = dataclasses.replace(spec, label=label or PurePath(spec.label).name, needs_params=False)
    return Archive(named, jax.__version__, tuple(map(np.asarray, leaves)), start, exported)


def _known(platforms: Sequence[str] | None) -> Sequence[str] | None:
    """Names of platforms, each once; None for the one that JAX uses here."""
    if platforms is None:
        return None
    known = dict.fromkeys((*PLATFORMS, jax.export.default_export_platform()))
    if isinstance(platforms, str) or not platforms or any(name not in known for name in platforms):
        raise InputError(
            f"platforms must be some of {', '.join(known)} (a GPU is cuda or rocm), as in platforms=('cpu', 'cuda'), "
            f"not {platforms!r}"
        )
    return list(dict.fromkeys(platforms))


def _sized(spec: StepSpec, dims: Mapping[str, int]) -> StepSpec:
    """The same with sizes for all open dimensions but the batch."""
    names = [name for each in (*spec.inputs, *spec.state) for name in each.symbols if name != spec.batch_symbol]
    missing = [name for name in dict.fromkeys(names) if name not in dims]
    if missing:
        raise InputError(
            f"{spec.label}: give the size of {', '.join(missing)}, as in {argument('dims', {missing[0]: 16})}"
        )
    unknown = [name for name in dims if name not in names]
    if unknown:
        listed = ", ".join(dict.fromkeys(names)) or "none"
        raise InputError(
            f"{spec.label}: {called('dims')} gives {unknown[0]!r}; dimensions left open besides the batch: {listed}"
        )
    return spec.sized(dims)


def _dims_argument(dims: Mapping[str, int]) -> dict[str, Any]:
    """Sizes as an argument; none for steppers that leave nothing open."""
    return {"dims": dims} if dims else {}


def _leaves_of(params: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The arrays of parameters that a file needs, and how they become parameters again."""
    if isinstance(params, Packed):
        return [*params.folded], lambda leaves: dataclasses.replace(params, folded=tuple(leaves))
    leaves, structure = jax.tree.flatten(params)
    return leaves, lambda leaves: jax.tree.unflatten(structure, leaves)


def _functions(
    stepper: Stepper, spec: StepSpec, rebuild: Callable[[Sequence[Any]], Any], leaves: Sequence[Any]
) -> Functions:
    """By name, the functions of a file, which take the leaves of the parameters first, and the shapes of the rest."""

    def step(leaves: Any, state: State, inputs: Arrays) -> tuple[dict[str, Any], State]:
        outputs, state = stepper.step(rebuild(leaves), state, inputs)
        return {name: value for name, value in outputs.items() if value is not None}, state

    def flush(leaves: Any, state: State, tail: Arrays, valid: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        outputs, counts = stepper.flush(rebuild(leaves), state, *((tail, valid) if spec.streams else ()))
        return outputs, {name: count for name, count in counts.items() if count is not None}

    def scan(leaves: Any, state: State, inputs: Arrays) -> tuple[dict[str, Any], State]:
        return stepper.scan(rebuild(leaves), state, inputs)  # pyright: ignore[reportAttributeAccessIssue]

    time, batch = jax.export.symbolic_shape("time, batch")
    functions: Functions = {}
    keeps = False
    for ending, size, lead in (("", batch, ()), (BATCHED, 1, (batch,))):
        state, inputs = (structs(specs, spec, lead, size) for specs in (spec.carried, spec.inputs))
        rest = (inputs if spec.streams else {}, jax.ShapeDtypeStruct(lead, np.int32))

        def enter(name: str, function: Callable[..., Any], *shapes: Any) -> None:
            mapped = jax.vmap(function, (None, *(0 for _ in shapes))) if lead else function  # noqa: B023
            functions[name + ending] = (mapped, shapes)  # noqa: B023

        enter("step", step, state, inputs)
        if not lead:
            _check_steady(spec, state, jax.eval_shape(step, leaves, state, inputs)[1])
            keeps = spec.streams or bool(jax.eval_shape(flush, leaves, state, *rest)[0])
        if keeps:
            enter("flush", flush, state, *rest)
        if not spec.streams and hasattr(stepper, "scan"):
            enter("scan", scan, state, structs(spec.inputs, spec, (*lead, time), size))
    return functions


def _check_steady(spec: StepSpec, before: Arrays, after: Arrays) -> None:
    """Refuse a state that is not the same size after each step, such as a cache that grows."""
    for name, array in before.items():
        if after[name].shape != array.shape:
            raise StateError(
                f"{spec.label} cannot be compiled: its state {name!r} is {describe(array)} before a step and "
                f"{describe(after[name])} after it"
            )


def _shape(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(array), array.dtype)


def _compact(array: np.ndarray) -> np.ndarray:
    """One element of an array whose elements are all the same, which is what most states begin with."""
    first = array.reshape(-1)[:1]
    return first.reshape(()) if array.size and array.tobytes() == first.tobytes() * array.size else array
