"""How late a system is: a fact of it, the same for every recording."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from jaxrnn.evaluation.systems import System


def frame_rate(system: System, output: str) -> int | float:
    """Frames a second of an output; whole where it is."""
    # A hop of 1/3 as a float is meant as a third.
    rate = system.rate * Fraction(system.per_frame[output]).limit_denominator(1_000_000)
    return int(rate) if rate.denominator == 1 else float(rate)


def latency(system: System) -> dict[str, dict[str, Any]]:
    """By output, how late it is, however fast the machine.

    Returns:
        ``delay_frames``, the output's frames that come before its frame 0, ``delay_milliseconds``, the same as time,
        and ``block_milliseconds``, the least that the system takes at once; a live stream waits for the sum of both.
    """
    return {
        output: {
            "delay_frames": int(delay),
            "delay_milliseconds": 1000 * int(delay) / frame_rate(system, output),
            "block_milliseconds": 1000 * system.multiple / system.rate,
        }
        for output, delay in system.delay.items()
    }
