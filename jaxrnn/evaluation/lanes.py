"""One recording's way through an evaluation: its outputs in time with it, judged, written, and made a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxrnn.errors import InputError
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.journal import Row
from jaxrnn.evaluation.judging import Judge
from jaxrnn.evaluation.metrics import Metric, Segments
from jaxrnn.evaluation.recordings import Recording
from jaxrnn.evaluation.systems import System
from jaxrnn.evaluation.writers import Writer

#: The row of a recording begins with these.
OK = "ok"


class Lane:
    """One recording. What it cannot read ends in its row; what it cannot write ends the run.

    Args:
        item: the recording.
        recording: the same, opened.
        reference: what its output is judged by, opened.
        system: what runs.
        metrics: by which it is judged.
        keep: a folder for its outputs, or None.
    """

    def __init__(
        self,
        item: Item,
        recording: Recording,
        reference: Recording | Segments | None,
        system: System,
        metrics: Sequence[Metric],
        keep: Path | None,
    ):
        self.item, self._recording, self._system = item, recording, system
        self.left = system.padded(recording.length)
        self.ended = False
        self.error: str | None = None
        self._keep = keep
        self._judge = Judge(metrics, recording, reference, system)
        self._writers: dict[str, Writer] = {}
        self._seen: dict[str, int] = {}

    def take(self, pieces: Mapping[str, tuple[np.ndarray, int]]) -> None:
        """What came out of a chunk: by output, ``[frames, ...]`` and how many of the frames are this recording's."""
        for name, (values, count) in pieces.items():
            if self.error is None:
                self._take(name, values[:count])

    def _take(self, name: str, values: np.ndarray) -> None:
        seen = self._seen.get(name, -self._system.delay[name])
        self._seen[name] = seen + len(values)
        expected = self._system.expected(name, self._recording.length)
        stop = len(values) if expected is None else max(0, min(len(values), expected - seen))
        start = min(max(0, -seen), stop)
        values, first = values[start:stop], max(seen, 0)
        if not len(values):
            return
        if self._keep is not None:
            self._writer(name, values).add(values)
        try:
            self._judge.take(name, values, first)
        except InputError as error:
            self.fail(str(error))

    def _writer(self, name: str, values: np.ndarray) -> Writer:
        if name not in self._writers:
            assert self._keep is not None
            sound = values.ndim == 1 and self._system.per_frame[name] == 1
            several = len(self._system.delay) > 1
            path = self._keep / f"{self.item.id}{'.' + name if several else ''}{'.wav' if sound else '.npy'}"
            self._writers[name] = Writer(path, self._system.rate)
        return self._writers[name]

    def fail(self, reason: str) -> None:
        """The recording ends in an error: that is its row."""
        self.error = reason
        self.discard()

    def discard(self) -> None:
        """Leave no file that is not whole."""
        for writer in self._writers.values():
            writer.discard()

    def row(self) -> Row:
        """Its row; the files are in their place after it."""
        if self.error is None:
            for writer in self._writers.values():
                writer.finish()
        found = self._judge.row() if self.error is None else {}
        return row_of(self.item, self._recording.length / self._system.rate, self.error) | found


def row_of(item: Item, seconds: float | None, error: str | None) -> Row:
    """What every recording's row begins with."""
    return {
        "id": item.id,
        "path": str(item.path),
        "reference": None if item.reference is None else str(item.reference),
        "seconds": seconds,
        "status": OK if error is None else "error",
        "error": error,
        "notes": None,
        **item.columns,
    }
