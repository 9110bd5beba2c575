"""Comparisons of steppers over recordings with functions of whole recordings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxrnn._jax.context import exact_types
from jaxrnn.comparison import Check, Comparison, Verdict, compare
from jaxrnn.errors import InputError, JaxrnnError
from jaxrnn.steps.numpy_step import NumpyStep, run
from jaxrnn.steps.recordings import part, recording_specs
from jaxrnn.steps.specs import Arrays, bind, check_names
from jaxrnn.steps.stepper import Bound, Stepper
from jaxrnn.steps.stepspec import StepSpec
from jaxrnn.verification.arbiter import Whole
from jaxrnn.verification.sampling import restore_types


def numpy_step(stepper: Stepper, params: Any, recordings: Arrays, dims: Mapping[str, int]) -> NumpyStep:
    """Pack the parameters, compile step and flush with the packed parameters as constants, and call both once.

    The recordings supply inputs that are constant in time; `dims` sizes the open dimensions.
    """
    bound = Bound(stepper, params, dims=dims).packed()
    with exact_types():
        return NumpyStep(bound, {name: recordings[name] for name in bound.spec.constants} or None).warm_up()


#: The reference of a comparison: the function of whole recordings.
WHOLE = "the whole recording"
#: A function of whole recordings, from a dict of arrays to a dict of arrays.
Offline = Callable[[dict[str, Any]], Mapping[str, Any]]


def given_recordings(spec: StepSpec, inputs: Arrays) -> dict[str, np.ndarray]:
    """Return the recordings of a caller after a check of names and shapes, in the types of a stepper's inputs.

    Raises:
        InputError: a name or a shape does not fit, the recordings have different numbers of frames or no frames, or
            the stepper does not take their length.
    """
    check_names(spec.inputs, inputs)
    arrays = restore_types(spec.inputs, inputs)
    for each in spec.inputs:
        if each.name in arrays and np.issubdtype(each.dtype, np.floating):
            arrays[each.name] = np.asarray(arrays[each.name]).astype(each.dtype)
    frames = spec.count_frames(arrays)
    if frames is not None and (
        frames % spec.multiple or not max(1, spec.shortest) <= frames <= (spec.longest or frames)
    ):
        raise InputError(f"{spec.label}: the recordings have {frames:,} frames, and the stream takes no such length")
    with exact_types():
        bind([each for each in recording_specs(spec, "frames") if each.name in arrays], arrays)
    return arrays


def check_lengths(offline: Offline, step: NumpyStep, recordings: Arrays, total: int, outputs: Arrays) -> Verdict:
    """Compare a stream with the offline function, on `total` frames and on short lengths near multiples of the pulse.

    `outputs` are the outputs of the stream for `total` frames.
    """
    whole = _check(offline, step, recordings, total, outputs)
    if whole.problem is not None:
        raise InputError(f"nothing to compare with: {whole.problem}")
    lengths = awkward_lengths(step.spec, total)
    cases = (whole, *(_check(offline, step, recordings, length) for length in lengths))
    return Verdict(step.spec.label, WHOLE, (), cases)


def awkward_lengths(spec: StepSpec, total: int) -> list[int]:
    """Return lengths that often reveal errors: a frame, about a pulse, and several pulses with a rest."""
    pulse, multiple = spec.pulse, spec.multiple
    lengths = {multiple, pulse - multiple, pulse, pulse + multiple, 3 * pulse + multiple}
    return sorted(length for length in lengths if max(1, spec.shortest) <= length < total)


def offline_outputs(
    offline: Offline, spec: StepSpec, recordings: Arrays, frames: int | None
) -> tuple[dict[str, np.ndarray], str | None]:
    """Return the outputs of the offline function on the first `frames` frames, by default all, or the error message."""
    try:
        results = offline(part(spec, recordings, 0, frames))
    except JaxrnnError as error:
        return {}, str(error)
    return {name: np.asarray(value) for name, value in results.items()}, None


def _check(offline: Offline, step: NumpyStep, recordings: Arrays, total: int, outputs: Arrays | None = None) -> Check:
    """Compare a stream with the offline function on the first `total` frames."""
    expected, problem = offline_outputs(offline, step.spec, recordings, total)
    if problem is not None:
        return Check({"frames": total}, (), WHOLE, problem)
    streamed = run(step, recordings, total).outputs if outputs is None else outputs
    axes = {output.name: output.time_axis for output in step.spec.outputs}
    arbiter = offline.arbiter(part(step.spec, recordings, 0, total)) if isinstance(offline, Whole) else None

    def compared(name: str, value: Any) -> Comparison:
        found = compare(name, streamed[name], value, time_axis=axes[name])
        return found if arbiter is None else arbiter.judge(found, streamed[name], value, ("the stream", "the model"))

    return Check({"frames": total}, tuple(itertools.starmap(compared, expected.items())), WHOLE)
