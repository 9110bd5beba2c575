"""A stepper over recordings, each step timed, in host loops: what ``jaxrnn stream`` runs, and verification compares."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxrnn._jax.context import exact_types
from jaxrnn.runtime.bound import Bound, packed
from jaxrnn.steps.recordings import joined, one_step, part, whole
from jaxrnn.steps.stepper import Stepper
from jaxrnn.steps.stepspec import OutputSpec, StepSpec

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
