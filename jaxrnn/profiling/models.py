"""`profile_model` and `profile_stepper`: profiles of whole graphs, steps, scans and pulses on random inputs."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxrnn._files.messages import VALUE, pairs_of
from jaxrnn._jax.context import compute_type, exact_types
from jaxrnn.errors import InputError, check_count, check_kind
from jaxrnn.jaxprs.schedule import Packed
from jaxrnn.model import Model
from jaxrnn.model.streaming import time_symbols
from jaxrnn.profiling.measure import profile
from jaxrnn.profiling.results import LowPrecision, OutputDifference, Profile
from jaxrnn.profiling.timing import Peaks, time_calls
from jaxrnn.steps.stepper import Bound, Stepper
from jaxrnn.streaming import Streamed
from jaxrnn.streaming.transform import with_dtype
from jaxrnn.verification.sampling import Sample, integer_ranges, random_arrays, random_inputs

KINDS = ("apply", "step", "scan", "stream")
#: Default number of frames of a scan.
LENGTH = 100
#: Steps for the comparison of low with full precision.
STEPS = 50

Step = Callable[[Any, Any], tuple[dict[str, Any], Any]]


def profile_model(
    model: Model,
    what: str | None = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    batch: int | None = None,
    length: int | None = None,
    stream: Streamed | None = None,
    seed: int = 0,
    dtype: Any = None,
    peaks: Peaks | bool = True,
) -> Profile:
    """Measure the time of a model by node and by region.

    The parameters of steps, scans and streams are constants of the compiled program, as in `jaxrnn.Runner`. The
    parameters of ``"apply"`` are arguments, as in a call of the model.

    Args:
        model: the model.
        what: ``"apply"`` (the whole graph), ``"step"``, ``"scan"`` or ``"stream"``. By default, a step if all state is
            external, else the whole graph.
        inputs: a dict of arrays; missing inputs are random. Inputs of a scan have a first axis of frames. A batch axis
            that the file lacks precedes the axes of the file.
        dims: sizes of open dimensions, except the batch of steps.
        batch: number of streams of a step, scan or stream; by default one stream without a batch axis.
        length: number of frames of a scan, or of the whole graph if exactly one dimension can be time.
        stream: result of `Model.stream`, for ``"stream"``. The default has the smallest pulse over the only open
            dimension that can be time.
        seed: seed of the random inputs.
        dtype: compute dtype of a step, scan or stream, as in `Model.pack`. `Profile.low_precision` then compares size,
            time and outputs with full precision, over several steps with different inputs.
        peaks: as in `profile`.

    Raises:
        InputError: an argument does not fit the model or ``what``.
        StateError: the model forgets its state after each call, so steps and scans are impossible.
    """
    check_kind("model", model, Model, "a Model, as jaxrnn.load returns")
    if what is None:
        kinds = {variable.kind for variable in model.state}
        what = "stream" if stream is not None else "step" if kinds == {"external"} else "apply"
    if what not in KINDS:
        raise InputError(f"{what!r} of a model cannot be profiled; expected one of {', '.join(KINDS)}")
    if stream is not None and what != "stream":
        raise InputError(f"stream is given, but {what!r} is profiled; use `what='stream'`")
    for name, count in {"batch": batch, "length": length}.items():
        if count is not None:
            check_count(name, count)
    if length is not None and what in ("step", "stream"):
        raise InputError(f"`length` is for the whole graph and scans, not for a {what}")
    dtype, inputs, dims = compute_type(dtype), inputs or {}, dims or {}
    if what == "apply":
        if batch is not None:
            raise InputError("`batch` is for steps, scans and streams; for the whole graph give `dims={NAME: SIZE}`")
        if dtype is not None:
            raise InputError("`dtype` is for steps, scans and streams, not for the whole graph")
        target = of_graph(model, inputs, dims, length=length, seed=seed)
    else:
        streamed = None
        if what == "stream":
            streamed = stream or model.stream(dims=dims)
        target = of_stepper(
            streamed or model,
            model.params,
            inputs,
            {} if streamed else dims,
            batch=batch,
            seed=seed,
            frames=(length or LENGTH) if what == "scan" else None,
            dtype=dtype,
            low=with_dtype(streamed, dtype) if streamed and dtype is not None else None,
            model=model,
            sizes=dims if streamed else None,
        )
    operators = {node.name: str(node.operator) for node in model.program.block.all_nodes()}
    return _profiled(target, operators, peaks, seed)


def profile_stepper(
    stepper: Stepper,
    params: Any = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    batch: int | None = None,
    seed: int = 0,
    peaks: Peaks | bool = True,
) -> Profile:
    """Measure the time of a step of a `Stepper` by region.

    Args:
        stepper: a model, a streamed function, a compiled file or a custom stepper.
        params: parameters, which become constants of the compiled program; by default ``stepper.params``.
        inputs: a dict of arrays; missing inputs are random.
        dims: sizes of open dimensions.
        batch: number of streams; by default one stream without a batch axis.
        seed: seed of the random inputs.
        peaks: as in `profile`.

    Raises:
        InputError: an argument does not fit the stepper.
    """
    params = Bound(stepper, params).params  # refuses other objects
    return _profiled(of_stepper(stepper, params, inputs or {}, dims or {}, batch=batch, seed=seed), {}, peaks, seed)


def _profiled(chosen: Target, nodes: Mapping[str, str], peaks: Peaks | bool, seed: int) -> Profile:
    # Without exact types, JAX narrows 64-bit arguments before the call.
    with exact_types(), chosen.sample.naming_assumptions():
        profiled = profile(chosen.function, *chosen.arguments, label=chosen.label, nodes=nodes, peaks=peaks)
        low = None if chosen.full is None else _low_precision(chosen, chosen.full, seed)
        return dataclasses.replace(profiled, low_precision=low, past=chosen.past)


def _low_precision(chosen: Target, full: FullPrecision, seed: int) -> LowPrecision:
    """Compare the compute dtype of a target with full precision."""
    functions = chosen.function, full.function
    states, inputs = (chosen.arguments[0], full.state), chosen.arguments[1]
    low_step, full_step = (
        jax.jit(function).lower(state, inputs).compile() for function, state in zip(functions, states, strict=True)
    )
    jax.block_until_ready(full_step(full.state, inputs))
    times = time_calls(lambda: full_step(full.state, inputs))
    frames = map(full.draw, range(seed, seed + STEPS))
    nbytes, full_nbytes = (sum(array.nbytes for array in packed.folded) for packed in (full.low, full.packed))
    differences = differences_of(low_step, full_step, states, frames)
    return LowPrecision(full.dtype, nbytes, full_nbytes, statistics.median(times), STEPS, differences)


def differences_of(
    low: Step, full: Step, first: tuple[Any, Any], frames: Iterator[Any]
) -> tuple[OutputDifference, ...]:
    """Run two steps with separate states over the same inputs, and compare the outputs."""
    states = list(first)
    errors: dict[str, list[np.ndarray]] = {}
    outputs: dict[str, list[np.ndarray]] = {}
    for inputs in frames:
        results = []
        for place, step in enumerate((low, full)):
            values, states[place] = step(states[place], inputs)
            results.append(values)
        for name, value in results[1].items():
            if value is None or not jax.numpy.issubdtype(value.dtype, jax.numpy.floating):
                continue
            expected = np.asarray(value, np.float64)
            outputs.setdefault(name, []).append(expected)
            errors.setdefault(name, []).append(np.asarray(results[0][name], np.float64) - expected)
    differences = []
    for name in outputs:
        error, output = np.stack(errors[name]), np.stack(outputs[name])
        noise, energy = float(np.square(error).sum()), float(np.square(output).sum())
        decibels = math.inf if noise == 0 else 10 * math.log10(energy / noise) if energy else -math.inf
        largest, scale = (float(np.abs(array).max(initial=0)) for array in (error, output))
        differences.append(OutputDifference(name, largest, scale, decibels))
    return tuple(differences)


@dataclass(frozen=True)
class FullPrecision:
    """The full-precision reference of a function with a compute dtype."""

    #: Compute dtype of the profiled function.
    dtype: str
    #: The function in full precision, with packed parameters and the first state.
    function: Callable[..., Any]
    packed: Packed
    state: Any
    #: Packed parameters of the profiled function.
    low: Packed
    #: Draws inputs from a seed.
    draw: Callable[[int], Any]


@dataclass(frozen=True)
class Target:
    """A function to profile, with arguments."""

    label: str
    function: Callable[..., Any]
    #: Parameters and inputs of a whole graph, or state and inputs.
    arguments: tuple[Any, ...]
    sample: Sample
    #: The reference of a function with a compute dtype.
    full: FullPrecision | None = None
    #: The `past` of a stream.
    past: int | None = None


def of_graph(
    model: Model, given: Mapping[str, Any], dims: Mapping[str, int], *, length: int | None, seed: int
) -> Target:
    """Return the target for the whole graph; `length` is the size of the only open dimension that can be time."""
    if length is not None:
        symbols = time_symbols(model)
        if len(symbols) != 1:
            listed = ", ".join(symbols) or "none"
            raise InputError(f"`length` needs exactly one dimension that can be time, not {listed}; use `dims`")
        if dims.get(symbols[0], length) != length:
            raise InputError(f"`length` is {length}, but `dims` gives {symbols[0]}={dims[symbols[0]]}")
        dims = {**dims, symbols[0]: length}
    if text := [info for info in model.inputs if info.is_text]:
        bound = f"`jaxrnn.load(path, static={ {text[0].name: VALUE} })`"
        raise InputError(f"{text[0].as_input}: JAX cannot compile functions of strings; bind the input with {bound}")
    sample = random_inputs(model, given, dims=dims, seed=seed)
    label = _label(model.label, "apply", pairs_of(sample.dims))
    return Target(label, model.apply, (model.params, sample.inputs), sample)


def of_stepper(
    stepper: Any,
    params: Any,
    given: Mapping[str, Any],
    dims: Mapping[str, int],
    *,
    batch: int | None,
    seed: int,
    frames: int | None = None,
    dtype: np.dtype | None = None,
    low: Any = None,
    model: Model | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Target:
    """Return the target for a step of a stepper, or for a scan of `frames` steps.

    With a compute dtype, the target is the step of `low`, or of the stepper with parameters that were packed in this
    dtype. The tables of `model` limit random indices. The label includes `sizes`.
    """
    spec = stepper.spec
    symbol = spec.batch_symbol
    if symbol is not None and symbol in dims and batch not in (None, dims[symbol]):
        raise InputError(
            f"`dims` gives the batch as {symbol}={dims[symbol]}, but `batch` is {batch}; give only `batch`"
        )
    streams = batch if symbol is None else int(dims.get(symbol, batch or 1))
    bound = Bound(stepper, params, batch=streams, dims=dims)
    infos = [each.batched(bound.lead) for each in spec.inputs]
    named = {name: streams or 1 for each in infos for name in each.symbols if name == symbol}
    ranges = {} if model is None else integer_ranges(model, {**dims, **named, **(sizes or {})})

    def draw(seed: int) -> Sample:
        return random_arrays(infos, given, dims={**dims, **named}, seed=seed, ranges=ranges, frames=frames)

    sample = draw(seed)
    constants = {name: sample.inputs[name][0] if bound.lead else sample.inputs[name] for name in spec.constants}

    def of(bound: Bound) -> tuple[Callable[..., Any], Any]:
        with exact_types():
            return bound.mapped(bound.step) if frames is None else bound.scan, bound.start(constants or None)

    what = f"scan of {frames} frames" if frames is not None else f"pulse of {spec.pulse}" if spec.streams else "step"
    details = [
        pairs_of({**sample.dims, **(sizes or {})}),
        "" if batch is None else f"batch {batch}",
        "" if dtype is None else f"products in {dtype.name}",
    ]
    label = _label(spec.label if model is None else model.label, what, *details)
    function, state = of(bound)
    if dtype is None:
        return Target(label, function, (state, sample.inputs), sample, past=spec.past)
    known = {name: size for name, size in sample.dims.items() if name != symbol}
    options = {"dims": known} if known else {}
    packed = stepper.pack(params, **options)
    lowered = stepper.pack(params, **options, dtype=dtype) if low is None else low.pack(params)
    full_function, full_state = of(bound.with_params(packed))
    full = FullPrecision(dtype.name, full_function, packed, full_state, lowered, lambda seed: draw(seed).inputs)
    function, state = of(Bound(stepper if low is None else low, lowered, batch=streams, dims=dims))
    return Target(label, function, (state, sample.inputs), sample, full, spec.past)


def _label(name: str, what: str, *details: str) -> str:
    text = ", ".join(filter(None, details))
    return f"{name}: {what}" + (f" ({text})" if text else "")
