"""Chunks of recordings, read and resampled ahead of the device by Grain's threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrnn.errors import InputError, MissingPackageError
from jaxrnn.evaluation.recordings import Recording
from jaxrnn.evaluation.units import Unit

#: Chunks that are ready before they are asked for, and threads that read them.
AHEAD, THREADS = 8, 4


@dataclass(frozen=True)
class Chunk:
    """A chunk of every recording of a unit.

    Attributes:
        parts: by array, ``[lanes, before + chunk, ...]``.
        frames: ``int32[lanes]``, frames of the chunk that each lane has, the zeros that flush it included.
        errors: by place in the unit, what could not be read.
    """

    parts: dict[str, np.ndarray]
    frames: np.ndarray
    errors: dict[int, str]


class Reads:
    """What Grain takes: every chunk of a unit, each on its own.

    Args:
        unit: which recordings.
        recordings: those of the unit.
        totals: frames that each takes, the zeros that flush it included.
        chunk: frames at once.
        before: frames of the past in front.
    """

    def __init__(self, unit: Unit, recordings: Sequence[Recording], totals: Sequence[int], chunk: int, before: int):
        self._unit, self._recordings, self._totals = unit, recordings, totals
        self._chunk, self._before = chunk, before

    def __len__(self) -> int:
        # One chunk more than full ones: a stream that ends where a chunk does is flushed in the next.
        return max(self._totals) // self._chunk + 1

    def __getitem__(self, index: Any) -> Chunk:
        start = int(index) * self._chunk
        found: list[Mapping[str, np.ndarray] | None] = []
        errors = {}
        for place, recording in enumerate(self._recordings):
            part = None
            if start - self._before < recording.length:
                try:
                    part = recording.part(start - self._before, start + self._chunk)
                except InputError as error:
                    errors[place] = str(error)
            found.append(part)
        frames = np.zeros(self._unit.lanes, np.int32)
        frames[: len(self._totals)] = np.clip(np.asarray(self._totals) - start, 0, self._chunk)
        return Chunk(self._stacked(found), frames, errors)

    def _stacked(self, found: Sequence[Mapping[str, np.ndarray] | None]) -> dict[str, np.ndarray]:
        like = next((part for part in found if part is not None), None)
        if like is None:
            like = self._recordings[0].part(-self._before - self._chunk, 0)
        return {
            name: np.stack(
                [np.zeros_like(array) if part is None else part[name] for part in found]
                + [np.zeros_like(array)] * (self._unit.lanes - len(found))
            )
            for name, array in like.items()
        }


def chunks(reads: Reads) -> Iterator[Chunk]:
    """The chunks in order, read ahead.

    Raises:
        MissingPackageError: Grain is not installed.
    """
    try:
        import grain
    except ImportError as error:
        raise MissingPackageError("evaluating a corpus needs grain: pip install 'jaxrnn[evaluate]'") from error
    options = grain.ReadOptions(num_threads=min(THREADS, len(reads)), prefetch_buffer_size=AHEAD)
    return iter(grain.MapDataset.source(reads).to_iter_dataset(options))
