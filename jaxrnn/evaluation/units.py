"""The work divided into units: recordings of similar length that run as one batch, in any process at any time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """Recordings that are evaluated together.

    The corpus alone determines what is in a unit. Its results are therefore equal bit by bit whichever process
    computes them, also after an interruption.

    Attributes:
        index: its number.
        members: the indices of its recordings in the corpus.
        streams: size of the batch. Streams without a recording stay empty, as a batch of another size would have to be
            compiled.
    """

    index: int
    members: tuple[int, ...]
    streams: int


def plan_units(lengths: Sequence[int | None], batch: int) -> tuple[Unit, ...]:
    """Units of at most ``batch`` recordings, longest first, so that no long recording comes last.

    Args:
        lengths: frames of each recording; None for one that cannot be read and is in no unit.
        batch: recordings in a unit.
    """
    order = sorted(
        (place for place, length in enumerate(lengths) if length is not None),
        key=lambda place: (-(lengths[place] or 0), place),
    )
    groups = [tuple(order[start : start + batch]) for start in range(0, len(order), batch)]
    streams = batch if len(groups) > 1 else min(batch, 1 << (len(order) - 1).bit_length())
    return tuple(Unit(index, group, streams) for index, group in enumerate(groups))
