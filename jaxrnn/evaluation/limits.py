"""Limits of the numbers of an evaluation, from settings, calls and the headers of recordings."""

from __future__ import annotations

import math

from jaxrnn.errors import InputError

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
