"""A model over a time axis, run in pulses over recordings: what ``jaxrnn stream --symbol`` runs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrnn.errors import InputError, StreamError
from jaxrnn.messages import bytes_of
from jaxrnn.onnx.limits import Limits

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.specs import ArraySpec
    from jaxrnn.streaming import Streamed

Arrays = Mapping[str, Any]
Axes = Mapping[str, int | None]


@dataclass(frozen=True)
class Pulses:
    """A compiled model in pulses.

    Attributes:
        model: the model over the whole recording.
        streamed: the same in pulses.
        axes: the time axis of every input; None for those that are held constant.
        output_axes: the time axis of every output; None for those that come once, at the end.
        start: the state before the first frame.
        step: ``(state, inputs) -> (outputs, state)``.
        flush: ``(state, tail, valid) -> (outputs, counts)``; a tail has the frames of one pulse.
        seconds: how long compiling took.
    """

    model: Model
    streamed: Streamed
    axes: Axes
    output_axes: Axes
    start: Any
    step: Callable[[Any, Arrays], Any]
    flush: Callable[[Any, Arrays, Any], Any]
    seconds: float


@dataclass(frozen=True)
class Streaming:
    """What a recording in pulses gave.

    Attributes:
        outputs: by name, whole: the delay removed, the flush at the end.
        seconds: ``float64[pulses]``, of each step: NumPy arrays in, NumPy arrays out.
        flush_seconds: of the flush.
    """

    outputs: dict[str, np.ndarray]
    seconds: np.ndarray
    flush_seconds: float


def time_axes(model: Model, symbol: str) -> dict[str, int | None]:
    """The time axis of every input.

    Raises:
        InputError: there is no such dimension, or the size of another depends on it.
    """
    from jaxrnn.verification.sampling import symbols_of

    shapes = {info.name: info.shape or () for info in model.inputs}
    if not any(symbol in shape for shape in shapes.values()):
        names = ", ".join(symbols_of(model.inputs)) or "none"
        raise InputError(f"{model.label}: no input has a dimension {symbol!r}; --symbol takes one of: {names}")
    for info in model.inputs:
        formulas = [
            size for size in info.shape or () if size != symbol and symbol in symbols_of([_of_size(info, size)])
        ]
        if formulas:
            raise InputError(
                f"input {info}: {formulas[0]} depends on {symbol}; only inputs with {symbol} itself, or without it, "
                "can be streamed from a file (jaxrnn.stream takes inputs of several rates)"
            )
    return {name: shape.index(symbol) if symbol in shape else None for name, shape in shapes.items()}


def _of_size(info: ArraySpec, size: Any) -> ArraySpec:
    """The declaration with one dimension only."""
    return dataclasses.replace(info, shape=(size,))


def stream_model(
    model: Model, symbol: str, pulse: int | None, dims: Mapping[str, int], multiple: int, shortest: int
) -> Streamed:
    """`Model.stream`, by default with the smallest pulse that fits; its errors name the options of the command.

    Args:
        model: the model.
        symbol: the dimension that is time.
        pulse: frames; None for the smallest that fit.
        dims: sizes of the other open dimensions.
        multiple: what every number of frames is a multiple of.
        shortest: the fewest frames that a recording has.
    """
    constraints = [f"S >= {-(-shortest // multiple)}"] if shortest > multiple else []
    try:
        return model.stream(symbol, pulse, dims=dims, multiple=multiple, constraints=constraints)
    except StreamError as error:
        hints = {"`multiple`": "--multiple M", "constraints=": "--shortest FRAMES"}
        said = " and ".join(option for word, option in hints.items() if word in str(error))
        raise StreamError(f"{error} (here: {said})" if said else str(error)) from error


def count_frames(axes: Axes, recordings: Mapping[str, np.ndarray]) -> int | None:
    """The number of frames of the recordings that move in time; None where there is none."""
    counts = {
        name: array.shape[axis]
        for name, array in recordings.items()
        if (axis := axes.get(name)) is not None and axis < array.ndim
    }
    if len(set(counts.values())) > 1:
        raise InputError(f"the recordings have different numbers of frames: {counts}")
    return next(iter(counts.values()), None)


def cut(axes: Axes, recordings: Arrays, begin: int, end: int) -> dict[str, np.ndarray]:
    """Frames of every recording; what is held constant as it is."""
    result = {}
    for name, array in recordings.items():
        axis = axes[name]
        kept = array if axis is None else array[(slice(None),) * axis + (slice(begin, end),)]
        result[name] = np.ascontiguousarray(kept).reshape(kept.shape)
    return result


def make_ready(model: Model, streamed: Streamed, axes: Axes, recordings: Arrays) -> Pulses:
    """Compile the step and the flush, with the parameters as constants, and call each of them once."""
    import jax

    from jaxrnn.guards import exact_types
    from jaxrnn.runtime.ports import output_axes

    began = time.perf_counter()
    params = model.params
    with exact_types():
        held = {name: array for name, array in recordings.items() if axes[name] is None}
        start = streamed.init(params=params, held=held)
        pulse = _padded(axes, cut(axes, recordings, 0, streamed.pulse), streamed.pulse)
        step = jax.jit(lambda state, inputs: streamed.step(params, state, inputs)).lower(start, pulse).compile()
        valid = np.int32(0)
        flush = jax.jit(lambda state, tail, valid: streamed.flush(params, state, tail, valid))
        flush = flush.lower(start, pulse, valid).compile()
        # What the first call sets up is no part of a step; its results are dropped.
        jax.block_until_ready((step(start, pulse), flush(start, pulse, valid)))
    return Pulses(model, streamed, axes, output_axes(streamed), start, step, flush, time.perf_counter() - began)


def _padded(axes: Axes, inputs: Mapping[str, np.ndarray], frames: int) -> dict[str, np.ndarray]:
    """Inputs with zeros behind their last frame, up to a number of frames."""
    result = dict(inputs)
    for name, array in inputs.items():
        axis = axes[name]
        if axis is not None:
            needed = array.nbytes // max(array.shape[axis], 1) * frames
            if needed > Limits.value_bytes:
                raise InputError(
                    f"a pulse of {frames:,} frames takes {bytes_of(needed)} for {name}, and no more than "
                    f"{bytes_of(Limits.value_bytes)} are allowed; give a smaller --pulse"
                )
            behind = [(0, frames - array.shape[axis] if place == axis else 0) for place in range(array.ndim)]
            result[name] = np.pad(array, behind)
    return result


def run_pulses(pulses: Pulses, recordings: Arrays, total: int, indices: Iterable[int] | None = None) -> Streaming:
    """Run over the first frames of recordings with the state carried on, each step timed.

    Args:
        pulses: the compiled model.
        recordings: inputs in the file's layout.
        total: frames to take.
        indices: the numbers of the pulses, wrapped in a progress bar, say.
    """
    from jaxrnn.guards import exact_types

    frames, axes = pulses.streamed.pulse, pulses.axes
    count, rest = divmod(total, frames)
    seconds, pieces, state = [], [], pulses.start
    with exact_types():
        for index in range(count) if indices is None else indices:
            inputs = cut(axes, recordings, index * frames, (index + 1) * frames)
            began = time.perf_counter()
            results, state = pulses.step(state, inputs)
            outputs = {name: np.asarray(value) for name, value in results.items() if value is not None}
            seconds.append(time.perf_counter() - began)
            pieces.append(outputs)
        tail = _padded(axes, cut(axes, recordings, total - rest, total), frames)
        began = time.perf_counter()
        flushed = pulses.flush(state, tail, np.int32(rest))
        last = {name: np.asarray(value) for name, value in flushed.outputs.items()}
        flush_seconds = time.perf_counter() - began
    joined = {
        name: last[name]
        if axis is None
        else _joined(
            [*(piece[name] for piece in pieces), last[name]],
            axis,
            pulses.streamed.delay[name],
            int(flushed.counts[name]),
        )
        for name, axis in pulses.output_axes.items()
    }
    # jit sorts the names; the file has an order of its own.
    named = {info.name: joined[info.name] for info in pulses.model.outputs}
    return Streaming(named, np.array(seconds), flush_seconds)


def _joined(pieces: list[np.ndarray], axis: int, delay: int, count: int) -> np.ndarray:
    """Frame 0 to the last one that exists: without the delay, and of the last piece only the frames that count."""
    whole = np.concatenate(pieces, axis)
    end = whole.shape[axis] - pieces[-1].shape[axis] + count
    return whole[(slice(None),) * axis + (slice(delay, end),)]
