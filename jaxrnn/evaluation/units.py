"""The work cut into units: recordings of like length that run as one batch, whoever runs them and whenever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """Recordings that are evaluated together.

    The corpus alone decides what is in a unit, so that its results are the same to the last bit whichever process
    computes them, after whatever was interrupted before.

    Attributes:
        index: its number.
        members: places of its recordings in the corpus.
        lanes: streams of the batch; those without a recording stay empty, for a batch of another size would have to be
            compiled.
    """

    index: int
    members: tuple[int, ...]
    lanes: int


def plan_units(lengths: Sequence[int | None], batch: int) -> tuple[Unit, ...]:
    """Units of at most ``batch`` recordings, longest first, so that no long one is left for the end.

    Args:
        lengths: frames of each recording; None for one that cannot be read, which is in no unit.
        batch: recordings at once.
    """
    order = sorted(
        (place for place, length in enumerate(lengths) if length is not None),
        key=lambda place: (-(lengths[place] or 0), place),
    )
    groups = [tuple(order[start : start + batch]) for start in range(0, len(order), batch)]
    lanes = batch if len(groups) > 1 else min(batch, 1 << (len(order) - 1).bit_length())
    return tuple(Unit(index, group, lanes) for index, group in enumerate(groups))
