"""What is evaluated on recordings: anything that takes a batch of them chunk by chunk and carries its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax

from jaxrnn._files.messages import brief


@brief
class Piece(NamedTuple):
    """What one output has to say on one chunk.

    Attributes:
        values: ``[batch, frames, ...]``.
        counts: ``int32[batch]``, how many of the frames are each stream's; they come first.
    """

    values: jax.Array
    counts: jax.Array


class System(Protocol):
    """Recordings in, outputs out, a batch at a time and a chunk of each at a time.

    `run` takes the frames that follow on those of the call before. A stream whose frames have ended is filled up with
    zeros; that changes nothing in the others.

    A system may also have ``identity``, plain values of all that decides on what it gives, its parameters among them:
    the results of another are then not mixed with its own.
    """

    @property
    def rate(self) -> int:
        """Samples a second of the sound that it takes."""
        ...

    @property
    def multiple(self) -> int:
        """The frames of a chunk are a multiple of it."""
        ...

    @property
    def before(self) -> int:
        """Frames of the past that each chunk begins with; zeros before frame 0."""
        ...

    @property
    def delay(self) -> Mapping[str, int]:
        """By output, how many of its first frames come before its frame 0."""
        ...

    @property
    def per_frame(self) -> Mapping[str, Any]:
        """By output, its frames for each input frame, as a fraction or a number."""
        ...

    def start(self, batch: int) -> Any:
        """The carry before the first chunk."""
        ...

    def padded(self, frames: int) -> int:
        """How many frames a recording of so many takes, zeros after it included, until all of it has come out."""
        ...

    def expected(self, output: str, frames: int) -> int | None:
        """How many frames an output of a recording has, after its delay; None for all that come."""
        ...

    def run(
        self, carry: Any, parts: Mapping[str, jax.Array], frames: jax.Array, *, ending: bool
    ) -> tuple[dict[str, Piece], Any]:
        """One chunk.

        Args:
            carry: as `start` or the last call gave it.
            parts: by the name of the recording's array, ``[batch, before + chunk, ...]``.
            frames: ``int32[batch]``, how many frames of the chunk are each stream's.
            ending: whether any stream ends inside this chunk.
        """
        ...
