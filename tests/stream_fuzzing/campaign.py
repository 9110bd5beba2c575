"""Many programs: how they end."""

from __future__ import annotations

import gc
import re
from collections import Counter
from dataclasses import dataclass, field

import jax

from stream_fuzzing import offline
from stream_fuzzing.programs import program_of
from stream_fuzzing.trial import try_one

#: What a program may be refused for.
REASONS = (
    "it reads frames in an order that is not a fixed step forward",
    "it reverses time, so its first frame is the last of the stream",
    "it runs backwards in time, from the last frame",
    "it uses a value in every frame that is known only when the stream has ended",
    "frames arrive at a rate that differs from this length|its windows advance at a rate that differs",
    "its places are .*, which does not hold",
    "its products with later frames are those of other queries",
    "it rounds frames to .*, which lacks values of",
    "it uses a value that is known only when the stream has ended, such as the length",
    # JAX cannot say whether two lengths are equal.
    "cannot be traced for every length of its time axis: AssertionError: Incompatible reduction dimensions",
    "depends on the length of the recording",
    # Of recordings so short that a length does not grow with them yet.
    "does not grow with the input",
    "it starts at frame .*, which depends on the length of the stream",
)

#: Programs after which what JAX keeps of them is dropped.
OFTEN = 50


@dataclass
class Findings:
    """What a campaign saw: how many programs came to which end, why they were refused, and the defects as text."""

    ends: Counter = field(default_factory=Counter)
    refusals: Counter = field(default_factory=Counter)
    defects: list = field(default_factory=list)

    @property
    def unexpected(self):
        """Refusals for other reasons than `REASONS`."""
        return [why for why in self.refusals if not any(re.search(reason, why) for reason in REASONS)]


def run(seed, first, count, on_end=None, *, bounded=False):
    """Try programs from a number on; ``on_end`` sees each of them with its outcome and a text of both.

    With `bounded`, the programs need all frames, and get bounded futures.
    """
    found = Findings()
    for number in range(first, first + count):
        if bounded:
            program, limits = offline.program_of(seed, number)
            outcome, about = offline.try_one((program, limits)), f" {limits}"
        else:
            program, about = program_of(seed, number), ""
            outcome = try_one(program)
        found.ends[outcome.end] += 1
        text = f"# {seed}/{number}{about} {outcome.end}: {outcome.why}\n{program.source}"
        if outcome.end == "refused":
            found.refusals[outcome.why] += 1
        elif not outcome.fine:
            found.defects.append(text)
        if on_end is not None:
            on_end(outcome, text)
        if number % OFTEN == OFTEN - 1:
            jax.clear_caches()
            gc.collect()
    return found
