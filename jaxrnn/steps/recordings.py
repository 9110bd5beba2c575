"""Recordings in steps: frames cut into pulses, many steps in one call, and joined outputs.

The arrays of a recording have all frames along the time axes of the inputs. An array without a time axis is stored
once. If no input of a step has a time axis, the frames are stacked along a new first axis. Outputs have the same
layout. All functions handle a single stream; use ``jax.vmap`` for a batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn._jax import varying
from jaxrnn.errors import InputError
from jaxrnn.steps.specs import Arrays, ArraySpec
from jaxrnn.steps.stepspec import OutputSpec, State, StepSpec

Step = Callable[[State, Arrays], tuple[Arrays, State]]


def recording_specs(spec: StepSpec, frames: str, lead: tuple[Any, ...] = ()) -> list[ArraySpec]:
    """Return the specs of recordings, with a name for the number of input frames.

    The batch axes ``lead`` come first; if frames are stacked, they come after the axis of frames.
    """
    if not spec.streams:
        return [each.batched((frames, *lead)) for each in spec.inputs]
    times = {each.name: _frames_of(spec, each, 1) for each in spec.inputs}
    sizes = {name: frames if count == 1 else f"{count}*{frames}" for name, count in times.items()}
    return [each.with_frames(sizes[each.name]).batched(lead) for each in spec.inputs]


def time_axis(spec: StepSpec, each: ArraySpec) -> int | None:
    """Return the axis of frames in a recording, or None if the array has no frames."""
    return each.time_axis if spec.streams else 0


def _frames_of(spec: StepSpec, each: ArraySpec, frames: int) -> int:
    """Return the number of frames of an input for a number of input frames."""
    return frames * each.sizes[each.time_axis] // spec.pulse if each.time_axis is not None else frames


def part(spec: StepSpec, arrays: Arrays, begin: int, end: int | None = None) -> dict[str, Any]:
    """Return the input frames from ``begin`` to ``end`` of a recording."""
    result = dict(arrays)
    for each in spec.inputs:
        axis = time_axis(spec, each)
        if axis is not None:
            frames = slice(*(None if at is None else _frames_of(spec, each, at) for at in (begin, end)))
            result[each.name] = arrays[each.name][(slice(None),) * axis + (frames,)]
    return result


def padded(spec: StepSpec, arrays: Arrays, pulses: int) -> dict[str, Any]:
    """Pad the frames of a recording with zeros to this number of pulses, with NumPy."""
    result = dict(arrays)
    for each in spec.inputs:
        if each.time_axis is not None:
            array, axis = np.asarray(arrays[each.name]), each.time_axis
            missing = pulses * each.sizes[axis] - array.shape[axis]
            result[each.name] = np.pad(array, [(0, missing if axis == place else 0) for place in range(array.ndim)])
    return result


def one_step(spec: StepSpec, arrays: Arrays, index: int) -> dict[str, Any]:
    """Return the inputs of the step with this index."""
    if spec.streams:
        return part(spec, arrays, index * spec.pulse, (index + 1) * spec.pulse)
    return {name: array[index] for name, array in arrays.items()}


def scan_steps(
    spec: StepSpec, step: Step, state: State, inputs: Arrays, steps: Any = None
) -> tuple[dict[str, Any], State]:
    """Run many steps in one call, with ``lax.scan``.

    ``step`` is ``(state, inputs) -> (outputs, state)``, and ``inputs`` is a recording of whole steps. ``steps``,
    ``int32``, is the number of steps that exist, by default all; later steps keep the state. Returns the outputs of
    the recording, with None in place of outputs of the flush, and the state after the last step. Raises InputError for
    a recording without frames, or without a whole number of pulses.
    """
    frames = spec.count_frames(inputs)
    if not frames or frames % spec.pulse:
        raise InputError(
            f"{spec.label}: {frames or 0} input frame(s) are not a whole number of pulses of {spec.pulse}: pass the "
            "rest to flush as its tail"
        )
    moving = {
        each.name: _stacked(spec, each, inputs[each.name]) for each in spec.inputs if time_axis(spec, each) is not None
    }
    constant = {name: array for name, array in inputs.items() if name not in moving}

    def one(state: State, at: tuple[Any, Arrays]) -> tuple[State, Arrays]:
        index, frames = at
        outputs, after = step(state, {**constant, **frames})
        if steps is not None:
            after = jax.tree.map(functools.partial(lax.select, index < steps), dict(after), dict(state))
        return after, outputs

    count = frames // spec.pulse
    places = jnp.arange(count, dtype=jnp.int32)
    if spec.streams and count == 1:  # no loop for one pulse
        state, outputs = one(state, jax.tree.map(lambda array: array[0], (places, moving)))
        return dict(outputs), state
    state, pieces = varying.scan(one, dict(state), (places, moving))
    return {output.name: concatenated(spec, output, pieces.get(output.name)) for output in spec.outputs}, state


def scan_first(spec: StepSpec, step: Step, state: State, inputs: Arrays, count: Any) -> tuple[dict[str, Any], State]:
    """Run the first `count` steps of a recording of a stream, as `scan_steps`; ``count`` can be traced.

    One program thus serves recordings of many lengths. The other frames are not read, and their outputs are zeros.
    """
    moving = {
        each.name: _stacked(spec, each, jnp.asarray(inputs[each.name]))
        for each in spec.inputs
        if time_axis(spec, each) is not None
    }
    constant = {name: array for name, array in inputs.items() if name not in moving}
    steps = spec.count_frames(inputs) or 0

    def at(index: Any, state: State) -> tuple[Arrays, State]:
        return step(state, {**constant, **jax.tree.map(lambda array: array[index], moving)})

    def one(carried: Any) -> Any:
        index, state, pieces = carried
        outputs, after = at(index, state)
        made = {name: pieces[name].at[index].set(each) for name, each in outputs.items() if each is not None}
        return index + np.int32(1), dict(after), made

    kinds, _ = jax.eval_shape(at, np.int32(0), state)
    room = {
        name: jnp.zeros((steps // spec.pulse, *each.shape), each.dtype)
        for name, each in kinds.items()
        if each is not None
    }
    first = jnp.zeros((), jnp.int32), dict(state), room
    _, state, pieces = varying.while_loop(lambda carried: carried[0] < count, one, first)
    return {output.name: concatenated(spec, output, pieces.get(output.name)) for output in spec.outputs}, state


def _stacked(spec: StepSpec, each: ArraySpec, array: Any) -> Any:
    """Cut an array of a recording into steps along a new first axis."""
    axis = each.time_axis
    return array if not spec.streams or axis is None else cut_frames(array, axis, each.sizes[axis])


def cut_frames(array: Any, axis: int, size: int) -> Any:
    """Cut the frames along an axis into parts of this size, along a new first axis."""
    cut = array.reshape(*array.shape[:axis], array.shape[axis] // size, size, *array.shape[axis + 1 :])
    return cut.transpose(axis, *(place for place in range(cut.ndim) if place != axis))


def join_frames(parts: Any, axis: int) -> Any:
    """Invert `cut_frames`."""
    moved = parts.transpose(*range(1, axis + 1), 0, *range(axis + 1, parts.ndim))
    return moved.reshape(*moved.shape[:axis], moved.shape[axis] * moved.shape[axis + 1], *moved.shape[axis + 2 :])


def concatenated(spec: StepSpec, output: OutputSpec, pieces: Any) -> Any:
    """Join the values of an output, stacked by step, along time; without a time axis, return the last value."""
    if pieces is None or not spec.streams:
        return pieces
    return pieces[-1] if output.time_axis is None else join_frames(pieces, output.time_axis)


def joined_output(output: OutputSpec, body: Any, rest: Any, frames: int | None = None) -> Any:
    """Return an output of a whole recording, from frame 0 on.

    ``body`` has the joined values of the steps, and ``rest`` the value of the flush; each may be None. ``frames`` is
    the number of frames after the delay, by default all frames.
    """
    parts = [each for each in (body, rest) if each is not None]
    if output.time_axis is None or not parts:
        return parts[-1] if parts else None
    modules = np if isinstance(parts[-1], np.ndarray) else jnp
    array = modules.concatenate(parts, output.time_axis) if parts[1:] else parts[0]
    first = output.delay or 0
    end = None if frames is None else first + frames
    return array[(slice(None),) * output.time_axis + (slice(first, end),)]
