"""A system over a corpus: batches of recordings, chunk by chunk, and a row for each recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from jaxrnn.errors import InputError
from jaxrnn.evaluation.corpus import Item, checked
from jaxrnn.evaluation.devices import Devices
from jaxrnn.evaluation.identity import identity_of, surroundings
from jaxrnn.evaluation.journal import Journal, Row, row_of
from jaxrnn.evaluation.limits import chunk_frames
from jaxrnn.evaluation.metrics import Metric, check_metrics, latency, open_reference
from jaxrnn.evaluation.recording_worker import RecordingWorker
from jaxrnn.evaluation.recordings import Recording, open_recording
from jaxrnn.evaluation.results import OUTPUTS, Results, results_of
from jaxrnn.evaluation.systems import System
from jaxrnn.evaluation.units import ChunkSource, Unit, plan_units, prefetched

#: Recordings in a batch, and seconds of each in a chunk.
BATCH, CHUNK = 16, 4.0


class Evaluation:
    """One system over one corpus.

    Args:
        system: what is evaluated.
        corpus: the recordings, with different ids.
        metrics: by which each is judged.
        out: a folder for results; units that are finished there are not computed again.
        facts: what else determines the results (files, settings of a system of one's own), so that another evaluation
            is not mixed with this one. A `Chain` and an `Offline` are identified without it, parameters included;
            a stepper of one's own by its `fingerprint`, or by its spec where it has none.
        batch: recordings in a batch.
        chunk: seconds of each recording in a chunk; for arrays, frames over the system's rate.
        keep: whether to write the outputs.
    """

    def __init__(
        self,
        system: System,
        corpus: Sequence[Item],
        metrics: Sequence[Metric],
        out: Path,
        *,
        facts: Mapping[str, Any] | None = None,
        batch: int = BATCH,
        chunk: float = CHUNK,
        keep: bool = False,
    ):
        self._chunk = chunk_frames(chunk, system.rate, system.multiple, batch)
        self.system, self.corpus, self.metrics = system, checked(corpus), tuple(metrics)
        check_metrics(self.metrics, system, self.corpus)
        #: What determines the results besides the corpus and how it is divided.
        self.facts: dict[str, Any] = {**surroundings(), **(facts or {}), **identity_of(system)}
        #: The folder of outputs; None where they are not written.
        self.outputs = out / OUTPUTS if keep else None
        self._devices = Devices(system, batch)
        self._recordings = _alike([self._open(item) for item in self.corpus])
        lengths = [None if isinstance(recording, str) else recording.length for recording in self._recordings]
        self.units = plan_units(lengths, batch)
        self.journal = Journal(
            out,
            {
                "corpus": [[item.id, str(item.path), str(item.reference), dict(item.columns)] for item in self.corpus],
                # They determine the units: a recording of another length makes another corpus.
                "lengths of recordings": lengths,
                "metrics": [metric.facts for metric in self.metrics],
                "batch": batch,
                "chunk": self._chunk,
                "keep": keep,
                **self.facts,
            },
        )

    def _open(self, item: Item) -> Recording | str:
        try:
            return open_recording(item.path, self.system.rate)
        except InputError as error:
            return str(error)

    def run(
        self, units: Iterable[Unit | None] | None = None, watch: Callable[[Unit, list[Row]], Any] | None = None
    ) -> None:
        """Compute what is not finished yet.

        Args:
            units: the units in order; by default all that are not finished. At a None among them, units that were begun
                are finished before the next is requested.
            watch: called with each finished unit and its rows.
        """
        finished = self.journal.finished()
        unfinished = (unit for unit in self.units if unit.index not in finished)
        with ThreadPoolExecutor(1) as judge:
            last: tuple[Unit, Future[list[Row]]] | None = None
            for unit in unfinished if units is None else units:
                # The recordings of a unit are judged while the next unit is computed.
                begun = None if unit is None else (unit, self._begin(unit, judge))
                if last is not None:
                    self._finish(*last, watch)
                last = begun
            if last is not None:
                self._finish(*last, watch)

    def _finish(self, unit: Unit, future: Future[list[Row]], watch: Callable[[Unit, list[Row]], Any] | None) -> None:
        rows = future.result()
        self.journal.finish(unit.index, rows)
        if watch is not None:
            watch(unit, rows)

    def seconds(self, unit: Unit) -> float:
        """The length of the recordings of a unit in seconds."""
        return sum(self._length(member) for member in unit.members) / self.system.rate

    def _length(self, member: int) -> int:
        recording = self._recordings[member]
        return 0 if isinstance(recording, str) else recording.length

    def _begin(self, unit: Unit, judge: ThreadPoolExecutor) -> Future[list[Row]]:
        """Compute a unit; the future holds its rows once its outputs are judged and written."""
        workers = [self._worker(member) for member in unit.members]
        source = ChunkSource(
            unit,
            [recording for member in unit.members if not isinstance(recording := self._recordings[member], str)],
            [worker.frames for worker in workers],
            self._chunk,
            self.system.before,
        )
        try:
            self._compute(unit, workers, source, judge)
        except BaseException:
            # After the shutdown, no new file is begun.
            judge.shutdown()
            _discard(workers)
            raise
        return judge.submit(_rows, workers)

    def _compute(
        self, unit: Unit, workers: Sequence[RecordingWorker], source: ChunkSource, judge: ThreadPoolExecutor
    ) -> None:
        carry = self.system.start(unit.streams)
        pending: list[Any] = []
        for chunk in prefetched(source):
            # It is the judge alone that touches the files of a recording.
            pending += [judge.submit(workers[place].fail, reason) for place, reason in chunk.errors.items()]
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
            pending.append(judge.submit(_distribute, workers, active, pieces))
        for future in pending:
            future.result()

    def _worker(self, member: int) -> RecordingWorker:
        item, recording = self.corpus[member], self._recordings[member]
        assert not isinstance(recording, str)
        reference, problem = None, None
        if item.reference is not None:
            try:
                reference = open_reference(item.reference, self.system.rate)
            except InputError as error:
                problem = str(error)
        worker = RecordingWorker(item, recording, reference, self.system, self.metrics, self.outputs)
        if problem is not None:
            worker.fail(f"reference: {problem}")
        return worker

    def rows(self) -> list[Row]:
        """All rows in the order of ids, those of unreadable recordings included."""
        unread = [
            row_of(item, None, recording)
            for item, recording in zip(self.corpus, self._recordings, strict=True)
            if isinstance(recording, str)
        ]
        return sorted([*self.journal.rows(), *unread], key=lambda row: row["id"])

    def results(self, slices: Sequence[str] = ()) -> Results:
        """The results of the finished units, summarised over the corpus and by the values of some columns.

        Raises:
            InputError: there is no such column.
            MissingPackageError: Polars is not installed.
        """
        facts = self.facts | {"latency": latency(self.system)}
        name = self.journal.folder.name
        return results_of(name, self.rows(), self.metrics, slices=slices, facts=facts, outputs=self.outputs)

    @property
    def is_complete(self) -> bool:
        """Whether every unit is finished, by any process."""
        return {unit.index for unit in self.units} <= self.journal.finished()


def _alike(recordings: list[Recording | str]) -> list[Recording | str]:
    """The recordings that fit one batch; for one whose frames have another shape than most, an error message."""
    shapes = [None if isinstance(each, str) else tuple(sorted(each.frame.items())) for each in recordings]
    most = Counter(shape for shape in shapes if shape is not None).most_common(1)
    return [
        recording
        if shape is None or shape == most[0][0]
        else f"a frame holds {dict(shape)}, but that of most recordings {dict(most[0][0])}"
        for recording, shape in zip(recordings, shapes, strict=True)
    ]


def _rows(workers: Sequence[RecordingWorker]) -> list[Row]:
    try:
        return [worker.row() for worker in workers]
    except BaseException:
        _discard(workers)
        raise


def _discard(workers: Sequence[RecordingWorker]) -> None:
    for worker in workers:
        worker.discard()


def _distribute(workers: Sequence[RecordingWorker], active: Sequence[bool], pieces: Mapping[str, Any]) -> None:
    """Give every active worker its part of a chunk's outputs."""
    arrays = {name: (np.asarray(piece.values), np.asarray(piece.counts)) for name, piece in pieces.items()}
    for place, worker in enumerate(workers):
        if active[place]:
            worker.add({name: (values[place], int(counts[place])) for name, (values, counts) in arrays.items()})
