"""One recording's way through an evaluation: its outputs are aligned with it, judged, written and made a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jaxrnn._files.locations import Location
from jaxrnn.errors import InputError
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.journal import Row, row_of
from jaxrnn.evaluation.judging import Judge
from jaxrnn.evaluation.metrics import Metric, Segments
from jaxrnn.evaluation.recordings import Recording
from jaxrnn.evaluation.systems import System
from jaxrnn.evaluation.writers import Writer


class RecordingWorker:
    """One recording. An error while it is read becomes its row; an error while its outputs are written ends the run.

    Args:
        item: the recording.
        recording: the same, opened.
        reference: what its output is judged by, opened.
        system: what runs.
        metrics: by which it is judged.
        outputs: a folder for its outputs; None to write none.

    Attributes:
        item: the recording.
        recording: the same, opened.
        outputs: the folder for its outputs.
        frames: the frames that the system takes for it, the zeros that flush it included.
        ended: whether all its frames have been through the system.
        error: why it has no result, or None.
    """

    def __init__(
        self,
        item: Item,
        recording: Recording,
        reference: Recording | Segments | None,
        system: System,
        metrics: Sequence[Metric],
        outputs: Location | None,
    ):
        self.item, self.recording, self.outputs, self._system = item, recording, outputs, system
        self.frames = system.padded(recording.length)
        self.ended = False
        self.error: str | None = None
        self._judge = Judge(metrics, recording, reference, system)
        self._writers: dict[str, Writer] = {}
        self._position: dict[str, int] = {}

    def add(self, pieces: Mapping[str, tuple[np.ndarray, int]]) -> None:
        """Add the outputs of a chunk: by name, ``[frames, ...]`` and how many of the frames are this recording's."""
        for name, (values, count) in pieces.items():
            if self.error is None:
                self._add(name, values[:count])

    def _add(self, name: str, values: np.ndarray) -> None:
        position = self._position.get(name, -self._system.delay[name])
        self._position[name] = position + len(values)
        expected = self._system.expected(name, self.recording.length)
        stop = len(values) if expected is None else max(0, min(len(values), expected - position))
        start = min(max(0, -position), stop)
        values, first = values[start:stop], max(position, 0)
        if not len(values):
            return
        if self.outputs is not None:
            self._writer(self.outputs, name, values).add(values)
        try:
            self._judge.take(name, values, first)
        except InputError as error:
            self.fail(str(error))

    def _writer(self, folder: Location, name: str, values: np.ndarray) -> Writer:
        if name not in self._writers:
            sound = values.ndim == 1 and self._system.per_frame[name] == 1
            several = len(self._system.delay) > 1
            file = f"{self.item.id}{'.' + name if several else ''}{'.wav' if sound else '.npy'}"
            self._writers[name] = Writer(folder, file, self._system.rate)
        return self._writers[name]

    def fail(self, reason: str) -> None:
        """End with an error, which becomes the row of the recording."""
        self.error = reason
        self.discard()

    def discard(self) -> None:
        """Remove every file that is not finished."""
        for writer in self._writers.values():
            writer.discard()

    def row(self) -> Row:
        """Finish the files, and make the row of the recording."""
        if self.error is None:
            for writer in self._writers.values():
                writer.finish()
        values = self._judge.row() if self.error is None else {}
        return row_of(self.item, self.recording.length / self._system.rate, self.error) | values
