"""The protocol of systems under evaluation, and limits of rates and sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax

from jaxrnn._files.messages import short_repr
from jaxrnn.errors import InputError


@short_repr
class Piece(NamedTuple):
    """An output of a system for one chunk.

    Attributes:
        values: ``[batch, frames, ...]``.
        counts: ``int32[batch]``, the number of valid frames of each stream; valid frames come first.
    """

    values: jax.Array
    counts: jax.Array


class System(Protocol):
    """The protocol of systems, which map batches of recordings to outputs, chunk by chunk.

    Each call of `run` takes the frames that follow the previous call. The frames of a stream that has ended are zeros,
    and do not influence other streams.

    A system may have an ``identity``, plain values of everything that determines the outputs, parameters included.
    Results of different identities are never mixed.
    """

    @property
    def rate(self) -> int:
        """Samples per second of the sound that the system takes."""
        ...

    @property
    def multiple(self) -> int:
        """The number of frames in a chunk is a multiple of this number."""
        ...

    @property
    def before(self) -> int:
        """Frames of the past at the beginning of each chunk; zeros before frame 0."""
        ...

    @property
    def delay(self) -> Mapping[str, int]:
        """By output, the number of frames before frame 0 of the output."""
        ...

    @property
    def per_frame(self) -> Mapping[str, Any]:
        """By output, frames per input frame, as a fraction or a number."""
        ...

    def start(self, batch: int) -> Any:
        """Return the carry before the first chunk."""
        ...

    def padded(self, frames: int) -> int:
        """Return the number of frames that a recording takes with the zeros that flush the outputs."""
        ...

    def expected(self, output: str, frames: int) -> int | None:
        """Return the number of output frames of a recording after the delay; None to keep all frames."""
        ...

    def run(
        self, carry: Any, parts: Mapping[str, jax.Array], frames: jax.Array, *, ending: bool
    ) -> tuple[dict[str, Piece], Any]:
        """Process a chunk.

        Args:
            carry: the carry of `start` or of the last call.
            parts: by array of the recording, ``[batch, before + chunk, ...]``.
            frames: ``int32[batch]``, the number of frames of the chunk that belong to each stream.
            ending: True if a stream ends inside this chunk.
        """
        ...


#: The highest sample rate; sound has up to 768,000 samples per second, including ultrasound of bats.
MAX_RATE = 1_000_000
#: The largest ratio of two sample rates.
MAX_RATIO = 100
#: The largest number of phases of a resampling filter: the larger rate over the greatest common divisor.
MAX_PHASES = 100_000
#: The largest number of frames in a chunk of all recordings of a batch: a gibibyte of sound.
MAX_FRAMES = 2**28
#: The largest number of samples in a frame of a chain.
MAX_SIZE = 2**20


def check_rate(rate: int, what: str) -> None:
    """Refuse an impossible sample rate."""
    if not 0 < rate <= MAX_RATE:
        raise InputError(f"{what} must be from 1 to {MAX_RATE:,} samples a second, not {rate:,}")


def resampling(rate: int, target: int) -> tuple[int, int]:
    """Return the factors of upsampling and downsampling between two sample rates."""
    check_rate(rate, "the sample rate")
    check_rate(target, "the requested rate")
    if max(rate, target) > MAX_RATIO * min(rate, target):
        raise InputError(
            f"the header says {rate:,} samples a second, and the requested rate is {target:,}: more than a factor of "
            f"{MAX_RATIO}; correct the header, or resample the recording"
        )
    common = math.gcd(rate, target)
    up, down = target // common, rate // common
    if max(up, down) > MAX_PHASES:
        raise InputError(
            f"resampling from {rate:,} to {target:,} samples a second needs a filter of {max(up, down):,} phases, and "
            f"at most {MAX_PHASES:,} are allowed; resample the recording to a rate with a larger common divisor"
        )
    return up, down


def chunk_frames(system: System, seconds: float, batch: int) -> int:
    """Return the number of frames in a chunk of some seconds, rounded to a positive multiple of the system's."""
    rate, multiple = system.rate, system.multiple
    if batch < 1 or not seconds > 0:
        raise InputError(f"batch must be at least 1 and chunk above 0 seconds, not {batch} and {seconds}")
    check_rate(rate, "the system's rate")
    allowed = MAX_FRAMES // batch
    frames = seconds * rate
    if frames <= allowed:
        frames = max(1, round(frames / multiple)) * multiple
    if not frames <= allowed:
        raise InputError(
            f"a chunk of {seconds:g} seconds at {rate:,} frames a second, in multiples of {multiple:,}, for a batch of "
            f"{batch:,} holds {frames * batch:.3g} frames, and no more than {MAX_FRAMES:,} are allowed; give a smaller "
            "chunk or batch"
        )
    return int(frames)
