"""The protocol of systems under evaluation, the limits of their numbers, and what identifies them."""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxrnn._files.messages import brief
from jaxrnn.errors import InputError
from jaxrnn.steps.stepper import Stepper
from jaxrnn.version import __version__


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


#: Samples a second. Sound has up to 768,000, ultrasound of bats included.
MAX_RATE = 1_000_000
#: The largest factor by which resampling may make a recording longer or shorter.
MAX_RATIO = 100
#: The most phases of a resampling filter: the larger of two rates over their greatest common divisor.
MAX_PHASES = 100_000
#: Frames of a chunk in all recordings of a batch; a gibibyte of sound.
MAX_FRAMES = 2**28
#: Samples in one frame of a chain.
MAX_SIZE = 2**20


def check_rate(rate: int, what: str) -> None:
    """Refuse an impossible sample rate.

    Raises:
        InputError: ``rate`` is below 1 or above `MAX_RATE`.
    """
    if not 0 < rate <= MAX_RATE:
        raise InputError(f"{what} must be from 1 to {MAX_RATE:,} samples a second, not {rate:,}")


def resampling(rate: int, target: int) -> tuple[int, int]:
    """The factors of upsampling and downsampling from one sample rate to another.

    Raises:
        InputError: a rate is impossible, or the ratio of the two has too large factors.
    """
    check_rate(rate, "its sample rate")
    check_rate(target, "the rate that is asked for")
    if max(rate, target) > MAX_RATIO * min(rate, target):
        raise InputError(
            f"it says that it has {rate:,} samples a second, and the {target:,} that are asked for are more than "
            f"{MAX_RATIO} times away; correct its header, or resample it"
        )
    common = math.gcd(rate, target)
    up, down = target // common, rate // common
    if max(up, down) > MAX_PHASES:
        raise InputError(
            f"from {rate:,} samples a second to {target:,} a filter of {max(up, down):,} phases is needed, and no more "
            f"than {MAX_PHASES:,} are allowed; resample it to a rate with a larger common divisor"
        )
    return up, down


def chunk_frames(seconds: float, rate: int, multiple: int, batch: int) -> int:
    """The number of frames in a chunk of some seconds, rounded to a multiple, at least one.

    Raises:
        InputError: ``seconds`` or ``batch`` is not positive, or a batch of chunks has too many frames.
    """
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


def identity_of(system: System) -> dict[str, Any]:
    """The ``identity`` of a system as plain values; empty where it has none."""
    return {"system": system.identity} if hasattr(system, "identity") else {}  # pyright: ignore[reportAttributeAccessIssue]


def stepper_identity(stepper: Stepper, params: Any) -> dict[str, Any]:
    """A stepper with its parameters as plain values, which change with its program, its bound values and its weights.

    A stepper without a ``fingerprint`` is known by its spec.

    Args:
        stepper: what runs.
        params: the parameters that it runs with.
    """
    program = getattr(stepper, "fingerprint", None)
    return {
        "model": PurePath(stepper.spec.label).name,
        "program": stepper.spec.to_json() if program is None else program,
        "params": _digest(params),
    }


def _digest(arrays: Any) -> str:
    digest = hashlib.sha256()
    for place, array in jax.tree_util.tree_leaves_with_path(arrays):
        values = np.asarray(array)
        digest.update(f"{jax.tree_util.keystr(place)} {values.dtype} {values.shape}\n".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def surroundings() -> dict[str, Any]:
    """What else results may depend on. Another version or kind of device makes another evaluation."""
    device = jax.devices()[0]
    return {
        "jaxrnn": __version__,
        "jax": jax.__version__,
        "device": device.platform,
        "kind of device": device.device_kind,
        "devices": jax.local_device_count(),
        "machine": platform.machine(),
    }
