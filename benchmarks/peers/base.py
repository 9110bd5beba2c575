"""The interface of peers: a network in an engine, called frame by frame, with the state carried by the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Arrays = Mapping[str, np.ndarray]

_LONGEST = 200


class RefusedError(RuntimeError):
    """An error for a network that an engine refuses."""


@dataclass(frozen=True)
class Network:
    """A file with the roles of its inputs and outputs, for processes without JAX too.

    Attributes:
        path: the ONNX file; files for other engines are beside it.
        frame: an example of the inputs of one call by name, without state and fixed inputs.
        declared: names of all outputs, in the file's order.
        outputs: names of the outputs that are not state.
        state: pairs of a state input and the output with its updated value.
        start: the state before the first call, by input.
        fixed: inputs that are the same in every call.
    """

    path: Path
    frame: Arrays
    declared: tuple[str, ...]
    outputs: tuple[str, ...]
    state: tuple[tuple[str, str], ...] = ()
    start: Arrays = field(default_factory=dict)
    fixed: Arrays = field(default_factory=dict)

    @property
    def wanted(self) -> list[str]:
        """The names of the outputs of a frame, then of the state."""
        return [*self.outputs, *(updated for _, updated in self.state)]

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        """The arrays of the first call, by input."""
        return {**self.frame, **self.start, **self.fixed}


class Stepper(Protocol):
    """A network in an engine, with its state; without state, a plain function."""

    def __call__(self, frame: Arrays) -> dict[str, Any]:
        """Return the outputs of one call by name, as NumPy arrays that later calls do not change."""
        ...

    def reset(self) -> None:
        """Restore the state before the first call."""
        ...


def outputs_over(stepper: Stepper, frames: Sequence[Arrays]) -> dict[str, np.ndarray]:
    """Return the outputs of a fresh stream over some frames, stacked along a new first axis."""
    stepper.reset()
    found = [stepper(frame) for frame in frames]
    return {name: np.stack([np.asarray(values[name]) for values in found]) for name in found[0]}


def one_line(error: BaseException) -> str:
    """Shorten the message of an engine to one line, because engines append whole stacks."""
    text = str(error).split("Stack backtrace")[0]
    line = " ".join(text.split()) or type(error).__name__
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
