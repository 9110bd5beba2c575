"""Programs at random."""

from __future__ import annotations

import random

from stream_fuzzing.frames import FRAMES
from stream_fuzzing.moments import MOMENTS, around
from stream_fuzzing.writing import Program, Writer

KINDS = {**FRAMES, **MOMENTS}

#: Where few streams stand beside their own past and future again and again, and so share what delays them.
CROWDED = {**KINDS, around: 100}


def program_of(seed: int, number: int) -> Program:
    """A program; the same for the same numbers."""
    draw = random.Random(f"{seed}/{number}")
    writer = Writer(draw, draw.choice([1, 10, 10, 10]))
    kinds, wanted = draw.choice([KINDS, KINDS, CROWDED]), draw.randint(4, 12)
    for _ in range(100):
        (kind,) = draw.choices(list(kinds), list(kinds.values()))
        line = kind(writer)
        if line is not None:
            writer.write(*line)
        if len(writer.lines) == wanted:
            break
    return writer.finish()
