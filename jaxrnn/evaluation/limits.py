"""How large the numbers of an evaluation may be, wherever they come from: settings, a call, a recording's header."""

from __future__ import annotations

import math

from jaxrnn.errors import InputError

#: Samples a second. Sound has up to 768,000, what bats say included.
MAX_RATE = 1_000_000
#: How many times as long, or as short, resampling may make a recording.
MAX_RATIO = 100
#: What remains of two rates without their common divisor: so many phases has the filter between them.
MAX_PHASES = 100_000
#: Frames of all recordings of a batch that are on the device at once; a gibibyte of sound.
MAX_FRAMES = 2**28
#: Samples of one frame of a chain.
MAX_SIZE = 2**20


def check_rate(rate: int, what: str) -> None:
    """Refuse a number of samples a second that nothing has.

    Raises:
        InputError: it is none, or above `MAX_RATE`.
    """
    if not 0 < rate <= MAX_RATE:
        raise InputError(f"{what} must be from 1 to {MAX_RATE:,} samples a second, not {rate:,}")


def resampling(own: int, wanted: int) -> tuple[int, int]:
    """By how much sound of a rate is stretched, and then thinned out, to get another rate.

    Raises:
        InputError: a rate is none, or the way from one to the other is too long.
    """
    check_rate(own, "its sample rate")
    check_rate(wanted, "the rate that is asked for")
    if max(own, wanted) > MAX_RATIO * min(own, wanted):
        raise InputError(
            f"it says that it has {own:,} samples a second, and the {wanted:,} that are asked for are more than "
            f"{MAX_RATIO} times away; correct its header, or resample it"
        )
    common = math.gcd(own, wanted)
    up, down = wanted // common, own // common
    if max(up, down) > MAX_PHASES:
        raise InputError(
            f"from {own:,} samples a second to {wanted:,} a filter of {max(up, down):,} phases is needed, and no more "
            f"than {MAX_PHASES:,} are allowed; resample it to a rate with a larger common divisor"
        )
    return up, down


def chunk_frames(seconds: float, rate: int, multiple: int, batch: int) -> int:
    """Frames of a chunk of so many seconds: whole multiples, and one at least.

    Raises:
        InputError: chunk or batch is none, or both are too much together.
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
