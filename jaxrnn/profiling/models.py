"""`profile_model` and `profile_stepper`: profiles of whole graphs, steps, scans and pulses on random inputs."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrnn._files.messages import VALUE, check_word, pairs_of
from jaxrnn._jax.context import compute_type, exact_types
from jaxrnn.errors import InputError, check_count, check_kind
from jaxrnn.model import Model
from jaxrnn.model.streaming import time_symbols
from jaxrnn.profiling.peaks import Peaks, measure_peaks, time_calls
from jaxrnn.profiling.recording import profile
from jaxrnn.profiling.results import LowPrecision, OutputDifference, Profile
from jaxrnn.steps.stepper import Bound, State, Stepper
from jaxrnn.streaming import Streamed
from jaxrnn.streaming.transform import with_dtype
from jaxrnn.verification.sampling import Sample, integer_ranges, random_arrays, random_inputs

if TYPE_CHECKING:
    from jaxrnn.audio.waveforms import Waveform

KINDS = ("apply", "step", "scan", "stream")
#: Default number of frames of a scan.
LENGTH = 100
#: Steps for the comparison of low with full precision.
STEPS = 50


def profile_model(
    model: Model | Waveform,
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
        model: the model, or a `jaxrnn.audio.Waveform` of a single network.
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
    if not isinstance(model, Model):
        from jaxrnn.audio.waveforms import Waveform  # needs SciPy, which a profile of a model does not

        check_kind("model", model, Waveform, "a Model, as jaxrnn.load returns, or a jaxrnn.audio.Waveform")
    network: Any = model  # a waveform has the functions of a model
    if what is None:
        kinds = {variable.kind for variable in network.state}
        what = "stream" if stream is not None else "step" if kinds == {"external"} else "apply"
    check_word("`what`", what, KINDS)
    if stream is not None and what != "stream":
        raise InputError(f"stream is given, but {what!r} is profiled; use `what='stream'`")
    for name, count in {"batch": batch, "length": length}.items():
        if count is not None:
            check_count(name, count)
    if length is not None and what in ("step", "stream"):
        raise InputError(f"`length` is for the whole graph and scans, not for a {what}")
    dtype, inputs, dims = compute_type(dtype), inputs or {}, dims or {}
    nodes = {node.name: str(node.operator) for node in network.program.block.all_nodes()}
    if what == "apply":
        for name, value in {"batch": batch, "dtype": dtype}.items():
            if value is not None:
                sizes = "; for the whole graph give `dims={NAME: SIZE}`"
                instead = sizes if name == "batch" else ", not for the whole graph"
                raise InputError(f"`{name}` is for steps, scans and streams{instead}")
        if text := [info for info in network.inputs if info.is_text]:
            bound = f"`jaxrnn.load(path, static={ {text[0].name: VALUE} })`"
            raise InputError(
                f"{text[0].as_input}: JAX cannot compile functions of strings; bind the input with {bound}"
            )
        sample = random_inputs(
            network, inputs, dims=dims if length is None else _timed(network, dims, length), seed=seed
        )
        label = _label(network.label, "apply", pairs_of(sample.dims))
        # Without exact types, JAX narrows 64-bit arguments before the call.
        with exact_types(), sample.naming_assumptions():
            return profile(network.apply, network.params, sample.inputs, label=label, nodes=nodes, peaks=peaks)
    streamed = (stream or network.stream(dims=dims)) if what == "stream" else None
    stepper, sizes = (network, dims) if streamed is None else (streamed, {})
    steps = _Steps(
        _bound(stepper, network.params, sizes, batch), inputs, (length or LENGTH) if what == "scan" else None
    )
    steps.ranges = integer_ranges(network, {**steps.dims, **dims})
    details = [
        pairs_of({**steps.draw(seed).dims, **(dims if streamed else {})}),
        "" if batch is None else f"batch {batch}",
    ]
    if dtype is None:
        return steps.profiled(_label(network.label, steps.what, *details), nodes, peaks, seed)
    known = {name: size for name, size in steps.draw(seed).dims.items() if name != stepper.spec.batch_symbol}
    options = {"dims": known} if known else {}
    full = steps.of(stepper, stepper.pack(network.params, **options))
    if streamed is None:
        low = steps.of(stepper, stepper.pack(network.params, **options, dtype=dtype))
    else:
        lowered = with_dtype(streamed, dtype)
        low = steps.of(lowered, lowered.pack(network.params))
    label = _label(network.label, steps.what, *details, f"products in {dtype.name}")
    profiled = low.profiled(label, nodes, measure_peaks(dtype) if peaks is True else peaks, seed)
    return dataclasses.replace(profiled, low_precision=_low_precision(dtype.name, low, full, seed))


def _timed(model: Model, dims: Mapping[str, int], length: int) -> dict[str, int]:
    """Return the sizes with `length` for the only open dimension that can be time."""
    symbols = time_symbols(model)
    if len(symbols) != 1:
        listed = ", ".join(symbols) or "none"
        raise InputError(f"`length` needs exactly one dimension that can be time, not {listed}; use `dims`")
    if dims.get(symbols[0], length) != length:
        raise InputError(f"`length` is {length}, but `dims` gives {symbols[0]}={dims[symbols[0]]}")
    return {**dims, symbols[0]: length}


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
    steps = _Steps(_bound(stepper, params, dims or {}, batch), inputs or {})
    details = [pairs_of(steps.draw(seed).dims), "" if batch is None else f"batch {batch}"]
    return steps.profiled(_label(stepper.spec.label, steps.what, *details), {}, peaks, seed)


def _label(name: str, what: str, *details: str) -> str:
    text = ", ".join(filter(None, details))
    return f"{name}: {what}" + (f" ({text})" if text else "")


def _bound(stepper: Stepper, params: Any, dims: Mapping[str, int], batch: int | None) -> Bound:
    bound = Bound(stepper, params, batch=batch, dims=dims)
    symbol = stepper.spec.batch_symbol
    if symbol is not None and symbol in dims and batch not in (None, dims[symbol]):
        raise InputError(
            f"`dims` gives the batch as {symbol}={dims[symbol]}, but `batch` is {batch}; give only `batch`"
        )
    return bound if symbol is None or bound.batch is not None else Bound(stepper, params, batch=1, dims=dims)


@dataclass
class _Steps:
    """A step, or a scan of `frames` steps, with random inputs."""

    bound: Bound
    given: Mapping[str, Any]
    frames: int | None = None
    #: The numbers that an integer input takes.
    ranges: Mapping[str, range] = field(default_factory=dict)

    @property
    def what(self) -> str:
        spec = self.bound.spec
        one = f"pulse of {spec.pulse}" if spec.streams else "step"
        return one if self.frames is None else f"scan of {self.frames} frames"

    @property
    def dims(self) -> dict[str, int]:
        """The sizes of open dimensions with the batch of the spec."""
        symbol = self.bound.stepper.spec.batch_symbol
        used = any(symbol in each.symbols for each in self.bound.stepper.spec.inputs)
        return {**self.bound.dims, **({str(symbol): int(self.bound.batch or 1)} if used else {})}

    def of(self, stepper: Any, params: Any) -> _Steps:
        """Return the step of the same sizes with other parameters."""
        return replace(self, bound=Bound(stepper, params, batch=self.bound.batch, dims=self.bound.dims))

    def draw(self, seed: int) -> Sample:
        specs = [each.batched(self.bound.lead) for each in self.bound.stepper.spec.inputs]
        return random_arrays(specs, self.given, dims=self.dims, seed=seed, ranges=self.ranges, frames=self.frames)

    def call(self, inputs: Mapping[str, Any]) -> tuple[Callable[..., Any], State]:
        """Return the function of state and inputs, and the state before the first frame."""
        bound, constants = self.bound, self.bound.spec.constants
        given = {name: inputs[name][0] if bound.lead else inputs[name] for name in constants}
        with exact_types():
            return bound.mapped(bound.step) if self.frames is None else bound.scan, bound.start(given or None)

    def profiled(self, label: str, nodes: Mapping[str, str], peaks: Peaks | bool, seed: int) -> Profile:
        sample = self.draw(seed)
        function, state = self.call(sample.inputs)
        with exact_types(), sample.naming_assumptions():
            found = profile(function, state, sample.inputs, label=label, nodes=nodes, peaks=peaks)
        return dataclasses.replace(found, past=self.bound.spec.past)


def _low_precision(dtype: str, low: _Steps, full: _Steps, seed: int) -> LowPrecision:
    """Compare a step in a compute dtype with full precision over the same inputs, each with a separate state."""
    sample = full.draw(seed)
    inputs = sample.inputs
    errors: dict[str, list[np.ndarray]] = defaultdict(list)
    outputs: dict[str, list[np.ndarray]] = defaultdict(list)
    with exact_types(), sample.naming_assumptions():
        calls = [each.call(inputs) for each in (low, full)]
        steps = [jax.jit(function).lower(state, inputs).compile() for function, state in calls]
        states = [state for _, state in calls]
        jax.block_until_ready(steps[1](states[1], inputs))
        times = time_calls(lambda: steps[1](states[1], inputs))
        for number in range(seed, seed + STEPS):
            frame = full.draw(number).inputs
            (found, first), (known, second) = (step(state, frame) for step, state in zip(steps, states, strict=True))
            states = [first, second]
            for name, value in known.items():
                if value is not None and jax.numpy.issubdtype(value.dtype, jax.numpy.floating):
                    outputs[name].append(np.asarray(value, np.float64))
                    errors[name].append(np.asarray(found[name], np.float64) - outputs[name][-1])
    differences = tuple(_difference(name, np.stack(errors[name]), np.stack(outputs[name])) for name in outputs)
    nbytes, full_nbytes = (sum(array.nbytes for array in each.bound.params.folded) for each in (low, full))
    return LowPrecision(dtype, nbytes, full_nbytes, statistics.median(times), STEPS, differences)


def _difference(name: str, error: np.ndarray, output: np.ndarray) -> OutputDifference:
    noise, energy = float(np.square(error).sum()), float(np.square(output).sum())
    decibels = math.inf if noise == 0 else 10 * math.log10(energy / noise) if energy else -math.inf
    largest, scale = (float(np.abs(array).max(initial=0)) for array in (error, output))
    return OutputDifference(name, largest, scale, decibels)
