"""The work divided into units: recordings of similar length that run as one batch, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from jaxrnn._files.ranges import at_once
from jaxrnn.errors import InputError, optional_package
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.recordings import Recording

#: Chunks to read in advance, and threads that read them.
PREFETCH, THREADS = 8, 4


@dataclass(frozen=True)
class Unit:
    """Recordings that are evaluated together.

    The corpus alone determines what is in a unit. Its results are therefore equal bit by bit whoever computes them,
    also after an interruption.

    Attributes:
        index: its number.
        items: its recordings.
        lengths: frames of each recording.
        rate: frames a second.
        streams: size of the batch. Streams without a recording stay empty, as a batch of another size would have to be
            compiled.
    """

    index: int
    items: tuple[Item, ...]
    lengths: tuple[int, ...]
    rate: int
    streams: int

    @property
    def seconds(self) -> float:
        """The length of its recordings together."""
        return sum(self.lengths) / self.rate


class Units(Sequence[Unit]):
    """The units of a corpus, longest recordings first, so that none comes last; each is made when it is asked for.

    Args:
        corpus: the recordings.
        lengths: frames of each, ``int64[recordings]``; below 0 for one that cannot be read and is in no unit.
        rate: frames a second.
        batch: the most recordings in a unit.
    """

    def __init__(self, corpus: Sequence[Item], lengths: np.ndarray, rate: int, batch: int):
        self._corpus, self._lengths, self._rate, self._batch = corpus, lengths, rate, batch
        order = np.argsort(-lengths, kind="stable")
        self._order = order[lengths[order] >= 0]
        count = len(self._order)
        self._streams = batch if count > batch else min(batch, 1 << max(count - 1, 0).bit_length())

    def __len__(self) -> int:
        return -(-len(self._order) // self._batch)

    @overload
    def __getitem__(self, index: int) -> Unit: ...
    @overload
    def __getitem__(self, index: slice) -> list[Unit]: ...
    def __getitem__(self, index: int | slice) -> Unit | list[Unit]:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        number = range(len(self))[index]
        members = self._order[number * self._batch : (number + 1) * self._batch].tolist()
        return Unit(
            number,
            tuple(self._corpus[member] for member in members),
            tuple(self._lengths[members].tolist()),
            self._rate,
            self._streams,
        )

    @property
    def seconds(self) -> float:
        """The length of all recordings together."""
        return int(self._lengths[self._order].sum()) / self._rate


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

        def read(recording: Recording) -> Mapping[str, np.ndarray] | str | None:
            if start - self._before >= recording.length:
                return None
            try:
                return recording.part(start - self._before, start + self._chunk)
            except InputError as error:
                return str(error)

        results = at_once(read, self._recordings, [item.path for item in self._unit.items])
        errors = {place: result for place, result in enumerate(results) if isinstance(result, str)}
        parts = [None if isinstance(result, str) else result for result in results]
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
