"""A stepper over recordings, each step timed: what ``jaxrnn stream`` runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.errors import InputError
from jaxrnn.guards import exact_types
from jaxrnn.messages import bytes_of
from jaxrnn.model import Model
from jaxrnn.onnx.limits import Limits
from jaxrnn.recordings import joined, one_step, part, whole
from jaxrnn.runtime.bound import Bound, packed
from jaxrnn.stepper import OutputSpec, Stepper, StepSpec
from jaxrnn.streaming import Streamed

Arrays = Mapping[str, Any]

#: What is said of the times of all steps, besides the longest.
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Ready:
    """A stepper compiled for arrays of one shape.

    Attributes:
        stream: the stepper with its parameters.
        start: the state before the first frame.
        step: ``(state, inputs) -> (outputs, state)``.
        seconds: how long packing and compiling took.
    """

    stream: Bound
    start: Any
    step: Callable[[Any, Arrays], Any]
    seconds: float


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


def stream_model(
    model: Model, symbol: str, pulse: int | None, dims: Mapping[str, int], multiple: int, shortest: int
) -> Streamed:
    """`Model.stream`, by default with the smallest pulse that fits.

    Args:
        model: the model.
        symbol: the dimension that is time.
        pulse: frames; None for the smallest that fit.
        dims: sizes of the other open dimensions.
        multiple: what every number of frames is a multiple of.
        shortest: the fewest frames that a recording has.
    """
    constraints = [f"S >= {-(-shortest // multiple)}"] if shortest > multiple else []
    return model.stream(symbol, pulse, dims=dims, multiple=multiple, constraints=constraints)


def check_size(spec: StepSpec) -> None:
    """Refuse a pulse that no memory holds.

    Raises:
        InputError: names the input.
    """
    for each in spec.inputs:
        if spec.streams and each.nbytes > Limits.value_bytes:
            raise InputError(
                f"a pulse of {spec.pulse:,} frames takes {bytes_of(each.nbytes)} for {each.name}, and no more than "
                f"{bytes_of(Limits.value_bytes)} are allowed; give a smaller --pulse"
            )


def make_ready(stepper: Stepper, params: Any, recordings: Arrays, dims: Mapping[str, int]) -> Ready:
    """Pack the parameters, compile the step and the flush with them as constants, and call each of them once.

    Args:
        stepper: a model in steps, a streamed function or a compiled file.
        params: its parameters; None for its own.
        recordings: whole, by name.
        dims: sizes of the open dimensions.
    """
    began = time.perf_counter()
    spec = stepper.spec
    stream = Bound(stepper, packed(stepper, getattr(stepper, "params", None) if params is None else params, dims))
    constants = {name: recordings[name] for name in spec.constants}
    batch = None if spec.batch_symbol is None else dims.get(spec.batch_symbol, 1)
    with exact_types():
        start = stepper.init(batch, params=stream.params, constants=constants or None)
        one = {each.name: np.zeros(each.sized(dims).sizes, each.dtype) for each in spec.inputs}
        step = jax.jit(stream.step).lower(start, one).compile()
        # What the first call sets up is no part of a step; its results are dropped.
        jax.block_until_ready(step(start, one))
        if spec.streams:
            stream.flush(start, one, 0)
    return Ready(stream, start, step, time.perf_counter() - began)


def run(ready: Ready, recordings: Arrays, total: int, indices: Iterable[int] | None = None) -> Run:
    """Run over the first frames of recordings with the state carried on, each step timed.

    Args:
        ready: the compiled stepper.
        recordings: whole, by name.
        total: frames to take.
        indices: the numbers of the steps, wrapped in a progress bar, say.
    """
    spec = ready.stream.spec
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
        if spec.streams:
            tail = _contiguous(part(spec, recordings, total - rest, total))
            began = time.perf_counter()
            last = ready.stream.flush(state, tail, rest)
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


def times_of(seconds: np.ndarray) -> dict[str, float] | None:
    """Percentiles of the times of steps and the longest, in microseconds; None where there was no step."""
    if not len(seconds):
        return None
    figures = {f"p{level}": float(np.percentile(1e6 * seconds, level)) for level in PERCENTILES}
    return {**figures, "max": float(1e6 * seconds.max())}


def has_no_number(array: np.ndarray) -> bool:
    """Whether an element is NaN or infinite."""
    return bool(jnp.issubdtype(array.dtype, jnp.inexact)) and not np.isfinite(array.astype(np.complex128)).all()
