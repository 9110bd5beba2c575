"""Profiles of models: time by ONNX node, or by region of the compiled program."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrnn._files.messages import VALUE, check_word, pairs_of
from jaxrnn._jax.context import compute_type, exact_types
from jaxrnn.errors import InputError, check_count
from jaxrnn.model import Model
from jaxrnn.model.streaming import time_symbols
from jaxrnn.profiling.regions import Profile, Row, profile
from jaxrnn.steps.stepper import Bound, State, Stepper
from jaxrnn.streaming import Streamed
from jaxrnn.streaming.transform import with_dtype
from jaxrnn.verification.sampling import Sample, integer_ranges, random_arrays, random_inputs

if TYPE_CHECKING:
    from jaxrnn.audio.waveforms import Waveform

__all__ = ["Profile", "Row", "profile", "profile_model"]
__dir__ = __all__.copy

KINDS = ("apply", "step", "scan", "stream")
#: Default number of frames of a scan, and steps for the comparison of low with full precision.
LENGTH, STEPS = 100, 50


def profile_model(
    model: Model | Waveform | Stepper,
    what: str | None = None,
    *,
    params: Any = None,
    inputs: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    batch: int | None = None,
    length: int | None = None,
    stream: Streamed | None = None,
    seed: int = 0,
    dtype: Any = None,
) -> Profile:
    """Measure the time of a model by node and by region.

    The parameters of steps, scans and streams are constants of the compiled program, as in `jaxrnn.Runner`. The
    parameters of ``"apply"`` are arguments, as in a call of the model.

    Args:
        model: the model, a `jaxrnn.audio.Waveform` of a single network, or a stepper: a streamed function, a compiled
            file or a custom stepper, of which a step is measured.
        what: ``"apply"`` (the whole graph), ``"step"``, ``"scan"`` or ``"stream"``. By default, a step if all state is
            external, else the whole graph.
        params: the parameters, by default the parameters of the model.
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

    Raises:
        InputError: an argument does not fit the model or ``what``.
        StateError: the model forgets its state after each call, so steps and scans are impossible.
    """
    network: Any = model  # a waveform has the functions of a model
    is_network = hasattr(model, "program")
    if what is None and is_network and stream is None:
        what = "step" if {variable.kind for variable in network.state} == {"external"} else "apply"
    what = what or ("step" if stream is None else "stream")
    check_word("`what`", what, KINDS if is_network else ("step",))
    if stream is not None and what != "stream":
        raise InputError(f"stream is given, but {what!r} is profiled; use `what='stream'`")
    for name, count in {"batch": batch, "length": length}.items():
        if count is not None:
            check_count(name, count)
    if length is not None and what in ("step", "stream"):
        raise InputError(f"`length` is for the whole graph and scans, not for a {what}")
    if dtype is not None and not is_network:
        raise InputError(f"`dtype` is for models, not for a {type(model).__name__}")
    dtype, inputs, dims = compute_type(dtype), inputs or {}, dims or {}
    params = getattr(model, "params", None) if params is None else params
    nodes = {node.name: str(node.operator) for node in network.program.block.all_nodes()} if is_network else None
    if what == "apply":
        for name, value, instead in (
            ("batch", batch, "; for the whole graph give `dims={NAME: SIZE}`"),
            ("dtype", dtype, ", not for the whole graph"),
        ):
            if value is not None:
                raise InputError(f"`{name}` is for steps, scans and streams{instead}")
        if text := [info for info in network.inputs if info.is_text]:
            bound = f"`jaxrnn.load(path, static={ {text[0].name: VALUE} })`"
            raise InputError(
                f"{text[0].as_input}: JAX cannot compile functions of strings; bind the input with {bound}"
            )
        sample = random_inputs(
            network, inputs, dims=dims if length is None else _timed(network, dims, length), seed=seed
        )
        # Without exact types, JAX narrows 64-bit arguments before the call.
        with exact_types(), sample.naming_assumptions():
            label = _label(network.label, "apply", pairs_of(sample.dims))
            return profile(network.apply, params, sample.inputs, label=label, nodes=nodes)
    stepper: Any = (stream or network.stream(dims=dims)) if what == "stream" else model
    sizes = {} if what == "stream" else dims
    bound, frames = Bound(stepper, params, batch=batch, dims=sizes), (length or LENGTH) if what == "scan" else None
    symbol = stepper.spec.batch_symbol
    if symbol in sizes and batch not in (None, sizes[symbol]):
        raise InputError(
            f"`dims` gives the batch as {symbol}={sizes[symbol]}, but `batch` is {batch}; give only `batch`"
        )
    if symbol is not None and bound.batch is None:
        bound = Bound(stepper, params, batch=1, dims=sizes)
    specs = [each.batched(bound.lead) for each in stepper.spec.inputs]
    if any(symbol in each.symbols for each in specs):
        sizes = {**sizes, str(symbol): int(bound.batch or 1)}
    ranges = integer_ranges(network, {**sizes, **dims}) if is_network else {}

    def draw(seed: int) -> Sample:
        return random_arrays(specs, inputs, dims=sizes, seed=seed, ranges=ranges, frames=frames)

    def measured(bound: Bound) -> Profile:
        with exact_types(), sample.naming_assumptions():
            function, state = _call(bound, frames, sample.inputs)
            found = profile(function, state, sample.inputs, label=label, nodes=nodes)
        return replace(found, past=bound.spec.past)

    sample = draw(seed)
    one = f"pulse of {bound.spec.pulse}" if bound.spec.streams else "step"
    label = _label(
        network.label if is_network else stepper.spec.label,
        one if frames is None else f"scan of {frames} frames",
        pairs_of({**sample.dims, **(dims if what == "stream" else {})}),
        "" if batch is None else f"batch {batch}",
        "" if dtype is None else f"products in {dtype.name}",
    )
    if dtype is None:
        return measured(bound)
    known = {name: size for name, size in sample.dims.items() if name != symbol}
    options = {"dims": known} if known else {}
    full = Bound(stepper, stepper.pack(params, **options), batch=bound.batch, dims=bound.dims)
    if what == "stream":
        lowered = with_dtype(stepper, dtype)
        low = Bound(lowered, lowered.pack(params), batch=bound.batch, dims=bound.dims)
    else:
        low = Bound(stepper, stepper.pack(params, **options, dtype=dtype), batch=bound.batch, dims=bound.dims)
    with exact_types(), sample.naming_assumptions():
        calls = [_call(each, frames, sample.inputs) for each in (low, full)]
        differences = _differences(calls, [draw(seed + step).inputs for step in range(STEPS)])
    nbytes, full_nbytes = (sum(array.nbytes for array in each.params.folded) for each in (low, full))
    effect = {"dtype": dtype.name, "nbytes": nbytes, "full_nbytes": full_nbytes, "steps": STEPS}
    effect |= {"full_seconds": measured(full).seconds, "differences": differences}
    return replace(measured(low), low_precision=effect)


def _timed(model: Model, dims: Mapping[str, int], length: int) -> dict[str, int]:
    """Return the sizes with `length` for the only open dimension that can be time."""
    symbols = time_symbols(model)
    if len(symbols) != 1:
        listed = ", ".join(symbols) or "none"
        raise InputError(f"`length` needs exactly one dimension that can be time, not {listed}; use `dims`")
    if dims.get(symbols[0], length) != length:
        raise InputError(f"`length` is {length}, but `dims` gives {symbols[0]}={dims[symbols[0]]}")
    return {**dims, symbols[0]: length}


def _label(name: str, what: str, *details: str) -> str:
    text = ", ".join(filter(None, details))
    return f"{name}: {what}" + (f" ({text})" if text else "")


def _call(bound: Bound, frames: int | None, inputs: Mapping[str, Any]) -> tuple[Callable[..., Any], State]:
    """Return the function of state and inputs for a step, or for a scan of frames, and the state before frame 0."""
    given = {name: inputs[name][0] if bound.lead else inputs[name] for name in bound.spec.constants}
    return bound.mapped(bound.step) if frames is None else bound.scan, bound.start(given or None)


def _differences(
    calls: Sequence[tuple[Callable[..., Any], State]], frames: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Compare the outputs of a step in low and in full precision over the same inputs, each with a separate state."""
    outputs: list[dict[str, list[np.ndarray]]] = []
    for function, state in calls:
        step, arrays = jax.jit(function), defaultdict(list)
        for frame in frames:
            found, state = step(state, frame)
            for name, value in found.items():
                if value is not None and jax.numpy.issubdtype(value.dtype, jax.numpy.floating):
                    arrays[name].append(np.asarray(value, np.float64))
        outputs.append(arrays)
    low, full = outputs
    return [_difference(name, np.stack(low[name]), np.stack(known)) for name, known in full.items()]


def _difference(name: str, low: np.ndarray, full: np.ndarray) -> dict[str, Any]:
    noise, energy = float(np.square(low - full).sum()), float(np.square(full).sum())
    decibels = math.inf if noise == 0 else 10 * math.log10(energy / noise) if energy else -math.inf
    largest, scale = (float(np.abs(array).max(initial=0)) for array in (low - full, full))
    return {"name": name, "largest": largest, "scale": scale, "decibels": decibels}
