"""Steppers over recordings, with each step timed, and their comparison with a function of whole recordings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError, JaxrnnError
from jaxrnn.runtime.bound import Bound, packed
from jaxrnn.steps.recordings import joined, one_step, part, whole
from jaxrnn.steps.stepper import Stepper
from jaxrnn.steps.stepspec import OutputSpec, StepSpec
from jaxrnn.verification.comparison import Comparison, compare

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Ready:
    """A stepper as functions of NumPy arrays, ready to run.

    Attributes:
        spec: its arrays, of which no dimension is open.
        start: the state before the first frame.
        step: ``(state, inputs) -> (outputs, state)``.
        flush: ``(state, tail, valid) -> outputs``, of frames that exist; None where what a delay keeps back is lost.
        seconds: how long packing and compiling took.
    """

    spec: StepSpec
    start: Any
    step: Callable[[Any, Arrays], Any]
    flush: Callable[[Any, Arrays, int], Mapping[str, np.ndarray]] | None
    seconds: float = 0.0


@dataclass(frozen=True)
class Run:
    """What a run over recordings gave.

    Attributes:
        outputs: by name, whole: of frames in front for a model in steps; of a stream without the delay, to its end.
        state: by name, after the last step.
        seconds: ``float64[steps]``, of each step: NumPy arrays in, NumPy arrays out.
        flush_seconds: of the flush; None where there is none.
    """

    outputs: dict[str, np.ndarray]
    state: dict[str, np.ndarray]
    seconds: np.ndarray
    flush_seconds: float | None


def make_ready(stepper: Stepper, params: Any, recordings: Arrays, dims: Mapping[str, int]) -> Ready:
    """Pack the parameters, compile the step and the flush with them as constants, and call each of them once.

    Args:
        stepper: a model in steps, a streamed function or a compiled file.
        params: its parameters; None for its own.
        recordings: whole, by name.
        dims: sizes of the open dimensions.
    """
    began = time.perf_counter()
    stream = Bound(stepper, packed(stepper, getattr(stepper, "params", None) if params is None else params, dims))
    symbol = stepper.spec.batch_symbol
    spec = stepper.spec.sized(dims if symbol is None else {symbol: 1, **dims})
    constants = {name: recordings[name] for name in spec.constants}
    batch = None if symbol is None else dims.get(symbol, 1)
    open_sizes = {name for entry in stepper.spec.state for name in entry.symbols if name != symbol}
    sizes: dict[str, Any] = {"dims": dims} if open_sizes else {}
    with exact_types():
        start = stepper.init(batch, params=stream.params, constants=constants or None, **sizes)
        one = {each.name: np.zeros(each.sizes, each.dtype) for each in spec.inputs}
        step = jax.jit(stream.step).lower(start, one).compile()
        # What the first call sets up is no part of a step; its results are dropped.
        jax.block_until_ready(step(start, one))
        if spec.streams:
            stream.flush(start, one, 0)
    return Ready(spec, start, step, stream.flush, time.perf_counter() - began)


def run(ready: Ready, recordings: Arrays, total: int, indices: Iterable[int] | None = None) -> Run:
    """Run over the first frames of recordings with the state carried on, each step timed.

    Args:
        ready: what runs.
        recordings: whole, by name.
        total: frames to take. Without a flush, those that do not fill a pulse are left out.
        indices: the numbers of the steps, wrapped in a progress bar, say.
    """
    spec = ready.spec
    count, rest = divmod(total, spec.pulse)
    seconds, pieces, state = [], [], ready.start
    last, flush_seconds = {}, None
    with exact_types():
        for index in range(count) if indices is None else indices:
            inputs = _contiguous(one_step(spec, recordings, index))
            began = time.perf_counter()
            results, state = ready.step(state, inputs)
            outputs = {name: np.asarray(value) for name, value in results.items()}
            seconds.append(time.perf_counter() - began)
            pieces.append(outputs)
        if spec.streams and ready.flush is not None:
            tail = _contiguous(part(spec, recordings, total - rest, total))
            began = time.perf_counter()
            last = ready.flush(state, tail, rest)
            flush_seconds = time.perf_counter() - began
        entries = {name: np.asarray(value) for name, value in spec.entries(state).items()}
    outputs = {
        output.name: _whole(spec, output, [piece[output.name] for piece in pieces if output.name in piece], last)
        for output in spec.outputs
    }
    return Run(outputs, entries, np.array(seconds), flush_seconds)


def _contiguous(arrays: Arrays) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}


def _whole(spec: StepSpec, output: OutputSpec, pieces: Sequence[np.ndarray], last: Arrays) -> np.ndarray:
    """All frames of an output: of a stream from frame 0 to the last that exists, of a model in steps stacked."""
    return whole(output, joined(spec, output, np.stack(pieces)) if pieces else None, last.get(output.name))


#: What is compared with: the function over whole recordings.
WHOLE = "the whole recording"
#: A function of a whole recording: arrays by name to arrays by name.
Offline = Callable[[dict[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Check:
    """The outputs of a stepper over one recording against others.

    Attributes:
        frames: input frames of the recording; of a step without a time axis, steps.
        outputs: how each output compares.
        problem: why there is nothing to compare with: the function over whole recordings does not run on so few frames.
        against: what with.
    """

    frames: int
    outputs: tuple[Comparison, ...]
    problem: str | None = None
    against: str = WHOLE

    @property
    def ok(self) -> bool:
        """Whether every output agrees."""
        return all(output.ok for output in self.outputs)


def check_lengths(
    offline: Offline, ready: Ready, recordings: Arrays, total: int, outputs: Arrays, shortest: int
) -> list[Check]:
    """Compare a recording, then parts of it whose lengths do not fit the pulse, with a function on the whole of it.

    Args:
        offline: over whole recordings.
        ready: the same in pulses.
        recordings: inputs of the function.
        total: frames to take.
        outputs: what the pulses gave for so many.
        shortest: the fewest frames that a recording has.

    Raises:
        InputError: the function does not run on the whole recording.
    """
    whole = _check(offline, ready, recordings, total, outputs)
    if whole.problem is not None:
        raise InputError(f"nothing to compare with: {whole.problem}")
    lengths = awkward_lengths(ready.spec, total, shortest)
    return [whole, *(_check(offline, ready, recordings, length) for length in lengths)]


def awkward_lengths(spec: StepSpec, total: int, shortest: int) -> list[int]:
    """Lengths of recordings at which streaming goes wrong first: a frame, about a pulse, and some pulses and a rest."""
    pulse, multiple = spec.pulse, spec.multiple
    lengths = {multiple, pulse - multiple, pulse, pulse + multiple, 3 * pulse + multiple}
    return sorted(length for length in lengths if max(1, shortest) <= length < total)


def offline_outputs(
    offline: Offline, spec: StepSpec, recordings: Arrays, frames: int
) -> tuple[dict[str, np.ndarray], str | None]:
    """What a function gives on the first frames of a recording; or why it does not run on so few."""
    try:
        results = offline(part(spec, recordings, 0, frames))
    except JaxrnnError as error:
        return {}, str(error)
    return {name: np.asarray(value) for name, value in results.items()}, None


def _check(offline: Offline, ready: Ready, recordings: Arrays, total: int, outputs: Arrays | None = None) -> Check:
    """By the rule of ``jaxrnn verify``."""
    expected, problem = offline_outputs(offline, ready.spec, recordings, total)
    if problem is not None:
        return Check(total, (), problem)
    streamed = run(ready, recordings, total).outputs if outputs is None else outputs
    axes = {output.name: output.time_axis for output in ready.spec.outputs}
    return Check(
        total, tuple(compare(name, streamed[name], value, time_axis=axes[name]) for name, value in expected.items())
    )
