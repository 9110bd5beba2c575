"""The work divided into units: recordings of similar length that run as one batch, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrnn.errors import InputError, optional_package
from jaxrnn.evaluation.recordings import Recording

#: Chunks to read in advance, and threads that read them.
PREFETCH, THREADS = 8, 4


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


@dataclass(frozen=True)
class UnitChunk:
    """A chunk of every recording of a unit.

    Attributes:
        parts: by array, ``[streams, before + chunk, ...]``.
        frames: ``int32[streams]``, the frames of the chunk that each stream has, the zeros that flush it included.
        errors: why a recording cannot be read, by its place in the unit.
    """

    parts: dict[str, np.ndarray]
    frames: np.ndarray
    errors: dict[int, str]


class ChunkSource:
    """The chunks of a unit by number: a data source for Grain.

    Args:
        unit: the unit.
        recordings: its recordings.
        totals: the frames that the system takes of each, the zeros that flush it included.
        chunk: frames in a chunk.
        before: past frames that each chunk begins with.
    """

    def __init__(self, unit: Unit, recordings: Sequence[Recording], totals: Sequence[int], chunk: int, before: int):
        self._unit, self._recordings, self._totals = unit, recordings, totals
        self._chunk, self._before = chunk, before

    def __len__(self) -> int:
        # One more than the full chunks: a stream that ends with a chunk is flushed in the next one.
        return max(self._totals) // self._chunk + 1

    def __getitem__(self, index: Any) -> UnitChunk:
        start = int(index) * self._chunk
        parts: list[Mapping[str, np.ndarray] | None] = []
        errors = {}
        for place, recording in enumerate(self._recordings):
            part = None
            if start - self._before < recording.length:
                try:
                    part = recording.part(start - self._before, start + self._chunk)
                except InputError as error:
                    errors[place] = str(error)
            parts.append(part)
        frames = np.zeros(self._unit.streams, np.int32)
        frames[: len(self._totals)] = np.clip(np.asarray(self._totals) - start, 0, self._chunk)
        return UnitChunk(self._stacked(parts), frames, errors)

    def _stacked(self, parts: Sequence[Mapping[str, np.ndarray] | None]) -> dict[str, np.ndarray]:
        """One array of all streams for each name, zeros for those without a part."""
        template = next((part for part in parts if part is not None), None)
        if template is None:
            template = self._recordings[0].part(-self._before - self._chunk, 0)
        empty = self._unit.streams - len(parts)
        return {
            name: np.stack(
                [np.zeros_like(array) if part is None else part[name] for part in parts]
                + [np.zeros_like(array)] * empty
            )
            for name, array in template.items()
        }


def prefetched(source: ChunkSource) -> Iterator[UnitChunk]:
    """The chunks in order, read in advance.

    Raises:
        MissingPackageError: Grain is not installed.
    """
    with optional_package("grain", "evaluating a corpus", "evaluate"):
        import grain
    options = grain.ReadOptions(num_threads=min(THREADS, len(source)), prefetch_buffer_size=PREFETCH)
    return iter(grain.MapDataset.source(source).to_iter_dataset(options))
