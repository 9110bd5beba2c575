"""What exported files are compared with: the stepper, and the function over whole recordings, in the files' layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrnn.onnx.stepfile import StepFile
from jaxrnn.steps.specs import ArraySpec
from jaxrnn.steps.stepper import Stepper
from jaxrnn.steps.stepspec import StepSpec
from jaxrnn.verification.running import Ready, make_ready, run
from jaxrnn.verification.streams import Offline, offline_outputs

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Results:
    """What a recording gave.

    Attributes:
        outputs: by name, from frame 0 on; None for what has not come.
        state: after the last step; empty of a stream, whose outputs to the end say more.
        problem: why there are no outputs: the function does not run on so few frames.
    """

    outputs: dict[str, Any]
    state: dict[str, Any] = dataclasses.field(default_factory=dict)
    problem: str | None = None


def results_of(ready: Ready, recordings: Arrays, frames: int) -> Results:
    """What a stepper gives on the first frames of a recording."""
    ran = run(ready, recordings, frames)
    return Results(ran.outputs, {} if ready.spec.streams else ran.state)


class Reference:
    """The stepper that was exported, and the function that it is the stream of.

    The streams of a batch run one after another, so that those of the files touch each other nowhere unseen.

    Args:
        stepper: what was exported.
        params: its parameters.
        facts: of the file of the step.
        flushed: whether there is one of the flush, too.
        offline: the function over whole recordings; None where there is none.
    """

    def __init__(self, stepper: Stepper, params: Any, facts: StepFile, flushed: bool, offline: Offline | None):
        self._offline = offline
        lead = _lead(stepper.spec, facts.spec)
        self._batch = facts.batch if lead else None
        ready = make_ready(stepper, params, {}, _sizes(stepper.spec, facts.spec, lead))
        self._ready = dataclasses.replace(
            ready, spec=_in_time(ready.spec, facts.spec, lead), flush=ready.flush if flushed else None
        )
        #: The axis of a batch in a recording: frames that are stacked come first.
        self._axis = 0 if facts.spec.streams else 1

    def step(self, recordings: Arrays, frames: int) -> Results:
        """What the stepper gives on the first frames of recordings in the files' layout."""
        rows = [results_of(self._ready, row, frames) for row in self._rows(recordings)]
        state = self._joined([row.state for row in rows], 0)
        return Results(self._joined([row.outputs for row in rows], self._axis), state)

    def whole(self, recordings: Arrays, frames: int) -> Results | None:
        """What the function gives on the first frames; None where there is no function."""
        if self._offline is None:
            return None
        rows = [offline_outputs(self._offline, self._ready.spec, row, frames) for row in self._rows(recordings)]
        if (problem := rows[0][1]) is not None:
            return Results({}, problem=problem)
        return Results(self._joined([outputs for outputs, _ in rows], self._axis))

    def _rows(self, recordings: Arrays) -> list[dict[str, np.ndarray]]:
        """A recording for each stream, as the stepper takes it."""
        indices = [None] if self._batch is None else range(self._batch)
        return [
            {each.name: self._row(each, recordings[each.name], index) for each in self._ready.spec.inputs}
            for index in indices
        ]

    def _row(self, each: ArraySpec, array: np.ndarray, index: int | None) -> np.ndarray:
        row = array if index is None else array.take(index, self._axis)
        return (row[..., 0] + 1j * row[..., 1]).astype(each.dtype) if _is_complex(each.dtype) else row

    def _joined(self, rows: Sequence[Arrays], axis: int) -> dict[str, Any]:
        return {name: self._of_file([row[name] for row in rows], axis) for name in rows[0]}

    def _of_file(self, arrays: Sequence[Any], axis: int) -> Any:
        """An array of every stream, or one of them, as the files have it."""
        if arrays[0] is None:
            return None
        joined: Any = arrays[0] if self._batch is None else np.stack(arrays, axis)
        return np.stack([joined.real, joined.imag], -1) if _is_complex(joined.dtype) else joined


def _is_complex(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.complexfloating)


def _lead(stepper: StepSpec, file: StepSpec) -> int:
    """How many axes of a batch a file has in front of what its stepper has."""
    pairs = zip((*stepper.inputs, *stepper.state), (*file.inputs, *file.state), strict=True)
    leads = (len(there.sizes) - len(here.shape or ()) - _is_complex(here.dtype) for here, there in pairs)
    return next(leads, 0)


def _in_time(stepper: StepSpec, file: StepSpec, lead: int) -> StepSpec:
    """The facts of a stepper with the place in time that its file has: a step of a stream may be a model of its own."""
    if stepper.streams == file.streams:
        return stepper

    def timed(here: Any, there: Any) -> Any:
        axis = None if there.time_axis is None else there.time_axis - lead
        return dataclasses.replace(there, shape=here.shape, dtype=here.dtype, time_axis=axis)

    return dataclasses.replace(
        file,
        inputs=tuple(map(timed, stepper.inputs, file.inputs)),
        outputs=tuple(map(timed, stepper.outputs, file.outputs)),
        state=stepper.state,
        joined=stepper.joined,
    )


def _sizes(stepper: StepSpec, file: StepSpec, lead: int) -> dict[str, int]:
    """The sizes of a stepper's open dimensions, as its file has them after so many axes of a batch."""
    sizes = {}
    for named, sized in zip((*stepper.inputs, *stepper.state), (*file.inputs, *file.state), strict=True):
        # The pairs of complex numbers are the file's last axis.
        pairs = zip(named.shape or (), (sized.shape or ())[lead:], strict=False)
        sizes |= {name: size for name, size in pairs if isinstance(name, str)}
    return sizes
