"""Programs at random."""

from __future__ import annotations

import random

from stream_fuzzing.frames import FRAMES
from stream_fuzzing.moments import MOMENTS
from stream_fuzzing.writing import Program, Writer

KINDS = {**FRAMES, **MOMENTS}


def program_of(seed: int, number: int) -> Program:
    """A program; the same for the same numbers."""
    draw = random.Random(f"{seed}/{number}")
    writer = Writer(draw, draw.choice([1, 10, 10, 10]))
    wanted = draw.randint(4, 12)
    for _ in range(100):
        (kind,) = draw.choices(list(KINDS), list(KINDS.values()))
        line = kind(writer)
        if line is not None:
            writer.write(*line)
        if len(writer.lines) == wanted:
            break
    return writer.finish()
