"""`StepFile`: what an exported file says of itself, so that a person and a program can carry its state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from jaxrnn.briefs import brief
from jaxrnn.stepper import StepSpec

#: What a file is: a step with its state in and out, the flush after the last step, or a function without state.
STEP, FLUSH, FUNCTION = "step", "flush", "function"


@brief
@dataclass(frozen=True)
class StateNames:
    """Where an entry of the state goes in and comes out.

    Attributes:
        input: the file's input.
        output: the file's output; None in a flush, after which there is no state.
    """

    input: str
    output: str | None


@brief
@dataclass(frozen=True)
class StepFile:
    """The facts about an exported file: its arrays by name, and its place in time.

    The keys of all mappings are names of the stepper that was exported. The values are those of the file, which differ
    only where the file could not have the stepper's.

    Attributes:
        kind: ``"step"``, ``"flush"`` or ``"function"``.
        spec: that of the stepper, with its arrays as the file has them: the batch in front, no dimension open.
        batch: how many streams the file is for; None for one without a batch axis.
        inputs: the file's inputs besides the state.
        outputs: the file's outputs besides the state. A step lacks those that only a flush gives.
        state: where every entry of the state goes in and comes out.
        first: every entry of the state before the first frame; empty in a flush.
        valid: a flush's input for the number of frames of its tail that exist, ``int32``; None where it has no tail.
        counts: a flush's outputs for the number of frames that exist, by the output that has them, ``int32``.
        files: the names of the files that belong together, in one folder: ``"step"``, ``"flush"``, ``"first_state"``.
    """

    kind: str
    spec: StepSpec
    batch: int | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    state: Mapping[str, StateNames] = field(default_factory=dict)
    first: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    valid: str | None = None
    counts: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def with_files(self, files: Mapping[str, str]) -> StepFile:
        """The same beside files of these names."""
        return dataclasses.replace(self, files=dict(files))
