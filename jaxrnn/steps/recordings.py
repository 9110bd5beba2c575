"""A recording through a stepper: its frames cut into steps, many steps in one call, and the outputs joined again.

The arrays of a recording hold its frames along the time axes of the inputs, and what has no time axis once. For a step
without any time axis they hold the frames stacked along a first axis. Outputs have theirs in the same places. All of it
is about one stream: ``jax.vmap`` makes it a batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn._jax import varying
from jaxrnn.errors import InputError
from jaxrnn.steps.specs import ArraySpec
from jaxrnn.steps.stepper import State, Stepper
from jaxrnn.steps.stepspec import OutputSpec, StepSpec

Arrays = Mapping[str, Any]
Step = Callable[[State, Arrays], tuple[Arrays, State]]


def recording_specs(spec: StepSpec, frames: str, lead: tuple[Any, ...] = ()) -> list[ArraySpec]:
    """The arrays of recordings, with a name for the number of input frames.

    A batch is in front of the arrays of a stream; where frames are stacked, it comes after them.
    """
    if not spec.streams:
        return [each.batched((frames, *lead)) for each in spec.inputs]
    times = {each.name: _frames_of(spec, each, 1) for each in spec.inputs}
    sizes = {name: frames if count == 1 else f"{count}*{frames}" for name, count in times.items()}
    return [each.with_frames(sizes[each.name]).batched(lead) for each in spec.inputs]


def time_axis(spec: StepSpec, each: ArraySpec) -> int | None:
    """The axis that holds the frames in a recording; None for what it holds once."""
    return each.time_axis if spec.streams else 0


def _frames_of(spec: StepSpec, each: ArraySpec, frames: int) -> int:
    """How many frames of an input go with so many input frames."""
    return frames * each.sizes[each.time_axis] // spec.pulse if each.time_axis is not None else frames


def part(spec: StepSpec, arrays: Arrays, begin: int, end: int | None = None) -> dict[str, Any]:
    """The input frames from ``begin`` to ``end`` of a recording."""
    result = dict(arrays)
    for each in spec.inputs:
        axis = time_axis(spec, each)
        if axis is not None:
            frames = slice(*(None if at is None else _frames_of(spec, each, at) for at in (begin, end)))
            result[each.name] = arrays[each.name][(slice(None),) * axis + (frames,)]
    return result


def one_step(spec: StepSpec, arrays: Arrays, index: int) -> dict[str, Any]:
    """The inputs of one step, by its number."""
    if spec.streams:
        return part(spec, arrays, index * spec.pulse, (index + 1) * spec.pulse)
    return {name: array[index] for name, array in arrays.items()}


def scan(stepper: Stepper, params: Any, state: State, inputs: Arrays) -> tuple[dict[str, Any], State]:
    """Many steps of any stepper in one call, by its own ``scan`` where it has one.

    Args:
        stepper: what runs.
        params: its parameters.
        state: before the first step.
        inputs: a recording of whole steps.

    Returns:
        The outputs of a recording, None for those that only a flush gives, and the state after the last step.
    """
    if hasattr(stepper, "scan"):
        return stepper.scan(params, state, inputs)  # pyright: ignore[reportAttributeAccessIssue]
    return scan_steps(stepper.spec, functools.partial(stepper.step, params), state, inputs)


def scan_steps(
    spec: StepSpec, step: Step, state: State, inputs: Arrays, steps: Any = None
) -> tuple[dict[str, Any], State]:
    """As `scan`, by ``lax.scan`` over a step.

    Args:
        spec: of the step.
        step: ``(state, inputs) -> (outputs, state)``.
        state: before the first step.
        inputs: a recording of whole steps.
        steps: how many of them exist, ``int32``: the others leave the state alone. None for all.

    Raises:
        InputError: the recording has no frames, or no whole number of pulses.
    """
    frames = spec.count_frames(inputs)
    if not frames or frames % spec.pulse:
        raise InputError(
            f"{spec.label}: {frames or 0} input frame(s) are no whole number of pulses of {spec.pulse}: give flush the "
            "rest as its tail"
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
    return {output.name: concatenated(spec, output, pieces[output.name]) for output in spec.outputs}, state


def _stacked(spec: StepSpec, each: ArraySpec, array: Any) -> Any:
    """An array of a recording as its steps, along a new first axis."""
    axis = each.time_axis
    if not spec.streams or axis is None:
        return array
    whole = each.sizes[axis]
    cut = array.reshape(*array.shape[:axis], array.shape[axis] // whole, whole, *array.shape[axis + 1 :])
    return cut.transpose(axis, *(place for place in range(cut.ndim) if place != axis))


def concatenated(spec: StepSpec, output: OutputSpec, pieces: Any) -> Any:
    """What steps gave of one output, stacked along a first axis, as in a recording; the last of what is no stream."""
    if pieces is None or not spec.streams:
        return pieces
    axis = output.time_axis
    if axis is None:
        return pieces[-1]
    moved = pieces.transpose(*range(1, axis + 1), 0, *range(axis + 1, pieces.ndim))
    frames = moved.shape[axis] * moved.shape[axis + 1]
    return moved.reshape(*moved.shape[:axis], frames, *moved.shape[axis + 2 :])


def whole(output: OutputSpec, body: Any, rest: Any, frames: int | None = None) -> Any:
    """All of one output of a recording, from its frame 0 on.

    Args:
        output: the output.
        body: what its steps gave, joined; None where there was no step.
        rest: what its flush gave; None where it gave nothing of it, or there was none.
        frames: how many it has after its delay; None for all that came.
    """
    parts = [each for each in (body, rest) if each is not None]
    if output.time_axis is None or not parts:
        return parts[-1] if parts else None
    modules = np if isinstance(parts[-1], np.ndarray) else jnp
    array = modules.concatenate(parts, output.time_axis) if parts[1:] else parts[0]
    first = output.delay or 0
    end = None if frames is None else first + frames
    return array[(slice(None),) * output.time_axis + (slice(first, end),)]


def advance(
    stepper: Stepper, params: Any, state: State, inputs: Arrays, frames: Any, *, ending: bool
) -> tuple[dict[str, Any], dict[str, Any], State]:
    """Frames of a recording that follow on those before; where fewer exist than there are, it ends with them.

    Args:
        stepper: what runs.
        params: its parameters.
        state: before these frames.
        inputs: a recording of whole steps, padded with anything.
        frames: how many of its input frames exist, ``int32``.
        ending: whether the recording may end here. Where it does, it is flushed, and its state is of no use then.

    Returns:
        The outputs that have frames of time, as in a recording; how many frames of each exist, which come first; and
        the state.

    Raises:
        InputError: a flush gives nothing of an output of which frames may be left.
    """
    spec = stepper.spec
    timed = [each for each in spec.outputs if not each.at_end and time_axis(spec, each) is not None]
    room = spec.count_frames(inputs) or 0
    if not spec.streams or not ending:
        outputs, state = scan(stepper, params, state, inputs)
        counts = {
            each.name: frames if each.time_axis is None else jnp.int32(outputs[each.name].shape[each.time_axis])
            for each in timed
        }
        return {each.name: outputs[each.name] for each in timed}, counts, state
    steps = frames // np.int32(spec.pulse)
    outputs, after = scan_steps(spec, functools.partial(stepper.step, params), state, inputs, steps)
    last = jnp.minimum(steps, np.int32(room // spec.pulse - 1))
    tail = {each.name: _pulse_at(each, inputs[each.name], last) for each in spec.inputs}
    rest = stepper.flush(params, after, tail, frames - steps * np.int32(spec.pulse))
    arrays, counts = {}, {}
    for each in timed:
        body, certain = outputs[each.name], steps * np.int32(each.sizes[each.time_axis or 0])
        if each.name in rest.outputs:
            arrays[each.name] = _followed(body, rest.outputs[each.name], certain, each.time_axis or 0)
            counts[each.name] = certain + jnp.where(frames < room, rest.counts[each.name], np.int32(0))
        elif spec.pulse > spec.multiple or each.delay:
            raise InputError(f"{spec.label}: its flush gives nothing of {each.name!r}, of which frames may be left")
        else:
            arrays[each.name], counts[each.name] = body, certain
    return arrays, counts, after


def _pulse_at(each: ArraySpec, array: Any, index: Any) -> Any:
    """The frames of one pulse of a stream."""
    axis = each.time_axis
    if axis is None:
        return array
    whole = each.sizes[axis]
    return lax.dynamic_slice_in_dim(array, index * np.int32(whole), whole, axis)


def _followed(body: Any, rest: Any, place: Any, axis: int) -> Any:
    """An array with another one written into it at a place, and room for all of that."""
    room = jnp.concatenate([body, jnp.zeros_like(rest)], axis)
    return lax.dynamic_update_slice_in_dim(room, rest.astype(room.dtype), place, axis)
