"""A system over a corpus: batches of recordings, chunk by chunk, a row for each, and nothing done twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from jaxrnn.errors import InputError
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.devices import Devices
from jaxrnn.evaluation.identity import identity_of, surroundings
from jaxrnn.evaluation.journal import Journal, Row
from jaxrnn.evaluation.lanes import Lane, row_of
from jaxrnn.evaluation.limits import chunk_frames
from jaxrnn.evaluation.loading import Reads, chunks
from jaxrnn.evaluation.metrics import Metric, check_metrics, open_reference
from jaxrnn.evaluation.recordings import Recording, open_recording
from jaxrnn.evaluation.systems import System
from jaxrnn.evaluation.units import Unit, plan_units

#: Recordings at once, and seconds of each that are on the device at once.
BATCH, CHUNK = 16, 4.0

#: Where outputs are kept, in the folder of results.
OUTPUTS = "outputs"


class Evaluation:
    """One system over one corpus.

    Args:
        system: what is evaluated.
        corpus: the recordings.
        metrics: by which each is judged.
        out: a folder for results; what is finished there is not done again.
        facts: what else decides on the results (files, settings of a system of one's own), so that another evaluation
            is not mixed with it. What a `Chain` or an `Offline` is, with its parameters, is known without.
        batch: recordings at once.
        chunk: seconds of each that are on the device at once; of arrays, frames over the system's rate.
        keep: whether the outputs are written.
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
        self.system, self.corpus, self.metrics = system, tuple(corpus), tuple(metrics)
        check_metrics(self.metrics, system, self.corpus)
        #: What decides on the results besides the corpus and how it is cut.
        self.facts: dict[str, Any] = {**surroundings(), **(facts or {}), **identity_of(system)}
        #: The folder of the outputs; None where they are not kept.
        self.outputs = out / OUTPUTS if keep else None
        self._devices = Devices(system, batch)
        self._recordings = _alike([self._open(item) for item in self.corpus])
        lengths = [None if isinstance(recording, str) else recording.length for recording in self._recordings]
        self.units = plan_units(lengths, batch)
        self.journal = Journal(
            out,
            {
                "corpus": [[item.id, str(item.path), str(item.reference), dict(item.columns)] for item in self.corpus],
                # They decide what is in a unit: a recording that has changed since is another corpus.
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
        """Do what is not done yet.

        Args:
            units: which units, in which order; None for one says that there is none now, so that what was begun is
                finished. By default all that are not finished.
            watch: called with each unit that was done, and its rows.
        """
        finished = self.journal.finished()
        left = (unit for unit in self.units if unit.index not in finished)
        with ThreadPoolExecutor(1) as judge:
            last: tuple[Unit, Future[list[Row]]] | None = None
            for unit in left if units is None else units:
                # A unit's recordings are judged while the next unit is computed.
                begun = None if unit is None else (unit, self._begin(unit, judge))
                if last is not None:
                    self._finish(*last, watch)
                last = begun
            if last is not None:
                self._finish(*last, watch)

    def _finish(self, unit: Unit, rows: Future[list[Row]], watch: Callable[[Unit, list[Row]], Any] | None) -> None:
        found = rows.result()
        self.journal.finish(unit.index, found)
        if watch is not None:
            watch(unit, found)

    def seconds(self, unit: Unit) -> float:
        """Seconds of the recordings of a unit."""
        return sum(self._length(member) for member in unit.members) / self.system.rate

    def _length(self, member: int) -> int:
        recording = self._recordings[member]
        return 0 if isinstance(recording, str) else recording.length

    def _begin(self, unit: Unit, judge: ThreadPoolExecutor) -> Future[list[Row]]:
        """Compute a unit; its rows, when its outputs are judged and written, which others wait for."""
        lanes = [self._lane(member) for member in unit.members]
        reads = Reads(
            unit,
            [recording for member in unit.members if not isinstance(recording := self._recordings[member], str)],
            [lane.left for lane in lanes],
            self._chunk,
            self.system.before,
        )
        try:
            self._compute(unit, lanes, reads, judge)
        except BaseException:
            # No file is begun after these are gone.
            judge.shutdown()
            _discard(lanes)
            raise
        return judge.submit(_rows, lanes)

    def _compute(self, unit: Unit, lanes: Sequence[Lane], reads: Reads, judge: ThreadPoolExecutor) -> None:
        carry = self.system.start(unit.lanes)
        pending: list[Any] = []
        for chunk in chunks(reads):
            for place, reason in chunk.errors.items():
                lanes[place].fail(reason)
            active = [not lane.ended and lane.error is None for lane in lanes]
            if not any(active):
                break
            ending = bool((chunk.frames[: len(lanes)] < self._chunk).any()) or unit.lanes > len(lanes)
            pieces, carry = self._devices.run(unit.lanes, ending)(carry, chunk.parts, chunk.frames)
            for lane, frames in zip(lanes, chunk.frames, strict=False):
                lane.ended = lane.ended or frames < self._chunk
            # One chunk is judged while the next is computed, and no more: memory does not grow.
            while len(pending) > 1:
                pending.pop(0).result()
            pending.append(judge.submit(_hand_out, lanes, active, pieces))
        for future in pending:
            future.result()

    def _lane(self, member: int) -> Lane:
        item, recording = self.corpus[member], self._recordings[member]
        assert not isinstance(recording, str)
        reference, problem = None, None
        if item.reference is not None:
            try:
                reference = open_reference(item.reference, self.system.rate)
            except InputError as error:
                problem = str(error)
        lane = Lane(item, recording, reference, self.system, self.metrics, self.outputs)
        if problem is not None:
            lane.fail(f"reference: {problem}")
        return lane

    def rows(self) -> list[Row]:
        """All rows that there are, those of recordings that cannot be read among them, in the order of ids."""
        unread = [
            row_of(item, None, recording)
            for item, recording in zip(self.corpus, self._recordings, strict=True)
            if isinstance(recording, str)
        ]
        return sorted([*self.journal.rows(), *unread], key=lambda row: row["id"])

    @property
    def is_complete(self) -> bool:
        """Whether every unit is done, by whomever."""
        return {unit.index for unit in self.units} <= self.journal.finished()


def _alike(recordings: list[Recording | str]) -> list[Recording | str]:
    """Those that can be one batch; of one whose frames are not shaped as most are, why it cannot."""
    shapes = [None if isinstance(each, str) else tuple(sorted(each.frame.items())) for each in recordings]
    most = Counter(shape for shape in shapes if shape is not None).most_common(1)
    return [
        recording
        if shape is None or shape == most[0][0]
        else f"a frame holds {dict(shape)}, but that of most recordings {dict(most[0][0])}"
        for recording, shape in zip(recordings, shapes, strict=True)
    ]


def _rows(lanes: Sequence[Lane]) -> list[Row]:
    try:
        return [lane.row() for lane in lanes]
    except BaseException:
        _discard(lanes)
        raise


def _discard(lanes: Sequence[Lane]) -> None:
    for lane in lanes:
        lane.discard()


def _hand_out(lanes: Sequence[Lane], active: Sequence[bool], pieces: Mapping[str, Any]) -> None:
    """Give every lane that was not ended its part of a chunk's outputs."""
    found = {name: (np.asarray(piece.values), np.asarray(piece.counts)) for name, piece in pieces.items()}
    for place, lane in enumerate(lanes):
        if active[place]:
            lane.take({name: (values[place], int(counts[place])) for name, (values, counts) in found.items()})
