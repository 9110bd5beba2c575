"""A system on units of recordings, in this process: chunk by chunk, and a row for each recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from jaxrnn._files.locations import Location
from jaxrnn._files.ranges import at_once
from jaxrnn.errors import InputError
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.devices import Devices
from jaxrnn.evaluation.identity import surroundings
from jaxrnn.evaluation.journal import Row
from jaxrnn.evaluation.limits import chunk_frames
from jaxrnn.evaluation.metrics import Metric, open_reference
from jaxrnn.evaluation.recording_worker import RecordingWorker
from jaxrnn.evaluation.recordings import Recording, open_recording
from jaxrnn.evaluation.systems import System
from jaxrnn.evaluation.units import ChunkSource, Unit, prefetched


class Computing(Protocol):
    """Whoever computes units, a context: an `Evaluator` in this process, or a `WorkerPool` of others."""

    @property
    def workers(self) -> int:
        """How many compute at the moment."""
        ...

    @property
    def surroundings(self) -> Mapping[str, Any]:
        """What results depend on besides the evaluation, known inside of the context."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

    def compute(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, list[Row]]]:
        """Units with their rows, as they are finished; a unit is taken when there is somebody to compute it.

        Raises:
            InputError: outputs cannot be written.
        """
        ...


class Evaluator:
    """Computes units in this process, on all of its devices.

    Args:
        system: what is evaluated.
        metrics: by which each recording is judged.
        batch: recordings in a batch.
        chunk: seconds of each recording in a chunk.
        outputs: a folder for outputs; None to write none.
    """

    workers = 1

    def __init__(
        self, system: System, metrics: Sequence[Metric], *, batch: int, chunk: float, outputs: Location | None = None
    ):
        self._chunk = chunk_frames(chunk, system.rate, system.multiple, batch)
        self._system, self._metrics, self._outputs = system, metrics, outputs
        self._devices = Devices(system, batch)

    @property
    def surroundings(self) -> Mapping[str, Any]:
        """Versions and devices of this process."""
        return surroundings()

    def __enter__(self) -> Self:
        # A store is the same for all.
        if isinstance(self._outputs, Path) and not self._outputs.parent.is_dir():
            raise InputError(
                f"there is no folder {self._outputs.parent} here: all who compute must see it, to write to it"
            )
        self._judge = ThreadPoolExecutor(1)
        return self

    def __exit__(self, *exception: object) -> None:
        self._judge.shutdown()

    def compute(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, list[Row]]]:
        """As `Computing` has it: the recordings of a unit are judged while the next unit is computed."""
        last: tuple[Unit, Future[list[Row]]] | None = None
        for unit in units:
            begun = unit, self.begin(unit)
            if last is not None:
                yield last[0], last[1].result()
            last = begun
        if last is not None:
            yield last[0], last[1].result()

    def begin(self, unit: Unit) -> Future[list[Row]]:
        """Compute a unit; the future holds its rows once its outputs are judged and written."""
        places = [place for item in unit.items for place in (item.path, item.reference)]
        workers = at_once(self._worker, zip(unit.items, unit.lengths, strict=True), places)
        recordings = [worker.recording for worker in workers]
        source = ChunkSource(unit, recordings, [worker.frames for worker in workers], self._chunk, self._system.before)
        try:
            self._compute(unit, workers, source)
        except BaseException:
            # After the shutdown, no new file is begun.
            self._judge.shutdown()
            _discard(workers)
            raise
        return self._judge.submit(_rows, workers)

    def _open(self, item: Item, length: int) -> Recording:
        recording = open_recording(item.path, self._system.rate)
        if recording.length != length:
            raise InputError(
                f"{item.path} has {recording.length} frames, but had {length} when the evaluation began: let no "
                "recording change, and run again"
            )
        return recording

    def _worker(self, member: tuple[Item, int]) -> RecordingWorker:
        """A recording of a unit and its reference, opened."""
        item, length = member
        recording = self._open(item, length)
        reference, problem = None, None
        if item.reference is not None:
            try:
                reference = open_reference(item.reference, self._system.rate)
            except InputError as error:
                problem = str(error)
        worker = RecordingWorker(item, recording, reference, self._system, self._metrics, self._outputs)
        if problem is not None:
            worker.fail(f"reference: {problem}")
        return worker

    def _compute(self, unit: Unit, workers: Sequence[RecordingWorker], source: ChunkSource) -> None:
        carry = self._system.start(unit.streams)
        pending: list[Any] = []
        for chunk in prefetched(source):
            # It is the judge alone that touches the files of a recording.
            pending += [self._judge.submit(workers[place].fail, reason) for place, reason in chunk.errors.items()]
            active = [
                place not in chunk.errors and not worker.ended and worker.error is None
                for place, worker in enumerate(workers)
            ]
            if not any(active):
                break
            ending = bool((chunk.frames[: len(workers)] < self._chunk).any()) or unit.streams > len(workers)
            pieces, carry = self._devices.run(unit.streams, ending)(carry, chunk.parts, chunk.frames)
            for worker, frames in zip(workers, chunk.frames, strict=False):
                worker.ended = worker.ended or frames < self._chunk
            # One chunk is judged while the next is computed; the loop waits for the one before, to bound memory.
            while len(pending) > 1:
                pending.pop(0).result()
            pending.append(self._judge.submit(_distribute, workers, active, pieces))
        for future in pending:
            future.result()


def _rows(workers: Sequence[RecordingWorker]) -> list[Row]:
    try:
        return at_once(RecordingWorker.row, workers, _places(workers))
    except BaseException:
        _discard(workers)
        raise


def _discard(workers: Sequence[RecordingWorker]) -> None:
    for worker in workers:
        worker.discard()


def _distribute(workers: Sequence[RecordingWorker], active: Sequence[bool], pieces: Mapping[str, Any]) -> None:
    """Give every active worker its part of a chunk's outputs."""
    arrays = {name: (np.asarray(piece.values), np.asarray(piece.counts)) for name, piece in pieces.items()}

    def add(place: int) -> None:
        workers[place].add({name: (values[place], int(counts[place])) for name, (values, counts) in arrays.items()})

    at_once(add, np.flatnonzero(active).tolist(), _places(workers))


def _places(workers: Sequence[RecordingWorker]) -> Iterator[Location | None]:
    """Where the files are that are read and written while recordings are judged."""
    return (place for worker in workers for place in (worker.item.path, worker.item.reference, worker.outputs))
