"""A stepper in pulses against a function of whole recordings, at the lengths where streaming goes wrong first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrnn.errors import InputError, JaxrnnError
from jaxrnn.steps.recordings import part
from jaxrnn.steps.stepspec import StepSpec
from jaxrnn.verification.comparison import Comparison, compare
from jaxrnn.verification.running import Arrays, Ready, run

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
