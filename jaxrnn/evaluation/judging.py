"""The outputs of a recording: alignment, metrics, files, and the row in the results."""

from __future__ import annotations

import contextlib
import math
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrnn._files.stores import Location, place
from jaxrnn._files.writing import remove_folder
from jaxrnn.audio.corpus import Item
from jaxrnn.audio.recordings import Recording
from jaxrnn.errors import InputError
from jaxrnn.evaluation.metrics import Metric, NoValueError, frame_rate, output_of
from jaxrnn.evaluation.metrics.counts import Segments
from jaxrnn.evaluation.parts import Row, row_of
from jaxrnn.evaluation.systems import System


class UnitMember:
    """A recording of a unit, whose outputs are aligned, judged and written while the unit is computed.

    A read error becomes the row of the recording; a write error ends the run.
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
        self.item, self.recording, self.outputs, self._rate = item, recording, outputs, system.rate
        self.frames = system.padded(recording.length)
        self.ended = False
        self.error: str | None = None
        self._judges = {name: JudgedOutput(name, recording, reference, system, metrics) for name in system.delay}
        self._metrics = [(metric, self._judges[output_of(metric, system)]) for metric in metrics]
        self._writers: dict[str, OutputWriter] = {}

    def add(self, pieces: Mapping[str, tuple[np.ndarray, int]]) -> None:
        """Add the outputs of a chunk: a dict of ``[frames, ...]`` and the number of valid frames."""
        for name, (values, count) in pieces.items():
            judge = self._judges[name]
            values, first = judge.aligned(values[:count])
            if self.error is not None or not len(values):
                continue
            if self.outputs is not None:
                if name not in self._writers:
                    is_sound = values.ndim == 1 and judge.is_sound and jnp.issubdtype(values.dtype, jnp.floating)
                    prefix = f".{name}" if len(self._judges) > 1 else ""
                    file = f"{self.item.id}{prefix}{'.wav' if is_sound else '.npy'}"
                    self._writers[name] = OutputWriter(self.outputs, file, self._rate)
                self._writers[name].add(values)
            try:
                judge.take(values, first)
            except InputError as error:
                self.fail(str(error))

    def fail(self, reason: str) -> None:
        """End with an error, the first of which becomes the row of the recording."""
        self.error = self.error or reason
        self.discard()

    def discard(self) -> None:
        """Remove all unfinished files."""
        for writer in self._writers.values():
            writer.discard()

    def row(self) -> Row:
        """Finish the files, and return the row: values by column, None if missing, counts, and notes with reasons."""
        row = row_of(self.item, self.recording.length / self._rate, self.error)
        if self.error is not None:
            return row
        for writer in self._writers.values():
            writer.finish()
        lengths = dict.fromkeys(judge.compare_lengths() for judge in self._judges.values())
        # Each reason once, with its metrics in order.
        reasons: dict[str, list[str]] = {note: [] for note in ["; ".join(filter(None, lengths))] if note}
        for metric, judge in self._metrics:
            values, reason = judge.result(metric)
            if not (metric.by_key and values):
                row |= dict.fromkeys(column.name for column in metric.columns)
            row |= values
            if reason is not None:
                reasons.setdefault(reason, []).append(metric.name)
        notes = [f"{', '.join(names)}: {note}".removeprefix(": ") for note, names in reasons.items()]
        return row | {"notes": "; ".join(notes) or None}


#: Frames, or share of frames, by which a reference may be shorter than the output, and labels also longer.
TOLERANCE_FRAMES, TOLERANCE = 2, 0.02


class JudgedOutput:
    """An output of a recording: aligned with the recording, and judged by the metrics of this output.

    A metric that fails does not affect other metrics. ``is_sound`` is True for an output with a frame for each frame of
    the recording.
    """

    def __init__(
        self,
        name: str,
        recording: Recording,
        reference: Recording | Segments | None,
        system: System,
        metrics: Sequence[Metric],
    ):
        self.is_sound = system.per_frame[name] == 1
        self._name, self._recording, self._reference, self._rate = name, recording, reference, frame_rate(system, name)
        self._position, self._expected = -system.delay[name], system.expected(name, recording.length)
        self._frames = 0
        metrics = [metric for metric in metrics if output_of(metric, system) == name]
        self._compared = [metric for metric in metrics if metric.needs_reference]
        self._open = {
            metric.name: (metric, metric.start(self._rate))
            for metric in metrics
            if reference is not None or not metric.needs_reference
        }
        self._notes: dict[str, str] = {}

    def aligned(self, values: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the next frames without frames outside of the recording, and the number of the first frame."""
        begin, self._position = self._position, self._position + len(values)
        stop = len(values) if self._expected is None else max(0, min(len(values), self._expected - begin))
        return values[min(max(0, -begin), stop) : stop], max(begin, 0)

    def take(self, values: np.ndarray, first: int) -> None:
        """Judge frames ``[frames, ...]``, beginning with frame number ``first``."""
        self._frames = first + len(values)
        judging = list(self._open.values())
        reference = self._part(first, self._frames) if judging else None
        source = None
        if any(metric.needs_source for metric, _ in judging):
            source = _array(self._recording.part(first, self._frames), self._name)
        for metric, accumulator in judging:
            # Frames after the end of the reference are not judged.
            count = len(values) if reference is None or not metric.needs_reference else len(reference)
            if count:
                recorded = None if source is None else source[:count]
                self._guarded(metric, accumulator.add, values[:count], reference, recorded)

    def _part(self, first: int, end: int) -> np.ndarray | None:
        if self._reference is None:
            return None
        if isinstance(self._reference, Segments):
            return self._reference.labels(first, end, self._rate)
        stop = min(end, self._reference.length)
        return _array(self._reference.part(min(first, stop), stop), self._name)

    def _guarded(self, metric: Metric, call: Callable[..., Any], *frames: Any) -> Any:
        """Return the result of a call; an error ends the metric for this recording."""
        try:
            return call(*frames)
        except NoValueError as error:
            self._end(metric, str(error))
        except Exception as error:
            self._end(metric, f"{type(error).__name__}: {error}")
        return None

    def _end(self, metric: Metric, reason: str) -> None:
        self._notes[metric.name] = reason
        self._open.pop(metric.name, None)

    def compare_lengths(self) -> str | None:
        """End the metrics that cannot be judged by a reference of another length, or return a note on the length."""
        if not self._compared or not self._frames or self._reference is None or isinstance(self._reference, Segments):
            return None
        length, frames = self._reference.length, self._frames
        if abs(length - frames) <= 1:
            return None
        note = f"the reference has {length} frames, the output {frames}"
        allowed = max(TOLERANCE_FRAMES, TOLERANCE * frames)
        if frames - length <= allowed and (self.is_sound or length - frames <= allowed):
            return f"{note}; judged are the first {min(length, frames)}"
        needed = "it is too short to judge by" if self.is_sound else f"labels need its {self._rate:g} a second"
        for metric in self._compared:
            self._end(metric, f"{note}: {needed}")
        return None

    def result(self, metric: Metric) -> tuple[Row, str | None]:
        """Return the values of a metric by column, NaN as None, counts unchanged; and the reason for missing values."""
        values = self._guarded(metric, self._open[metric.name][1].result) if metric.name in self._open else None
        row: Row = {}
        for key, value in (values or {}).items():
            if isinstance(value, int | float | np.number):
                row[key] = None if math.isnan(value) else float(value)
            elif value is None or (metric.pool is not None and key == metric.pool.key):
                row[key] = value
            else:
                row[key] = None
                self._notes[metric.name] = f"TypeError: {key} must be a number, not {type(value).__name__}"
        return row, self._notes.get(metric.name)


def _array(parts: dict[str, np.ndarray], output: str) -> np.ndarray:
    """Return the array with the name of the output, or the first array."""
    return parts[output] if output in parts else next(iter(parts.values()))


def partial_of(folder: Location) -> Path:
    """Return the folder of unfinished files: beside the output folder, or the folder for temporary files."""
    return folder.with_name(f"{folder.name}.partial") if isinstance(folder, Path) else Path(tempfile.gettempdir())


def discard_partial(folder: Location) -> None:
    """Remove unfinished files of killed processes."""
    if isinstance(folder, Path):
        remove_folder(partial_of(folder))


class OutputWriter:
    """A file for an output of a recording: sound as WAV, other outputs as NPY, moved into place when complete."""

    def __init__(self, folder: Location, name: str, rate: int):
        self.path, self._rate = folder / name, rate
        # A unique name, because another process may compute the same unit.
        self._partial = partial_of(folder) / f"{uuid.uuid4().hex}{self.path.suffix}"
        self._file: Any = None
        self._header: dict[str, Any] = {}

    def add(self, values: np.ndarray) -> None:
        """Append frames ``[frames, ...]``."""
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._partial.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._open(values)
            if self.path.suffix == ".wav":
                self._file.write(np.clip(values, -1, 1).astype(np.float32))
            else:
                self._file.write(np.ascontiguousarray(values).tobytes())
                count, *frame = self._header["shape"]
                self._header["shape"] = (count + len(values), *frame)
        except (OSError, RuntimeError) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> InputError:
        """Remove the partial file, and return an error with the cause."""
        if isinstance(error, RuntimeError):  # libsndfile says "System error", and the next write says which
            try:
                with open(self._partial, "ab") as file:
                    file.write(bytes(2**16))
            except OSError as found:
                error = found
        self.discard()
        return InputError(f"{self.path} cannot be written: {getattr(error, 'strerror', None) or error}")

    def _open(self, values: np.ndarray) -> Any:
        if self.path.suffix == ".wav":
            import soundfile

            return soundfile.SoundFile(self._partial, "w", self._rate, 1, subtype="FLOAT", format="WAV")
        self._header = np.lib.format.header_data_from_array_1_0(values[:0])
        file = open(self._partial, "wb+")  # noqa: SIM115 - closed by finish or discard
        np.lib.format.write_array_header_1_0(file, self._header)
        return file

    def finish(self) -> None:
        """Complete the file and move it into place."""
        if self._file is None:
            return
        try:
            if self.path.suffix != ".wav":
                # NumPy leaves room in a header for any number of frames.
                self._file.seek(0)
                np.lib.format.write_array_header_1_0(self._file, self._header)
            self._file.close()
            if self.path.suffix == ".wav":
                _clear_time(self._partial)
            place(self._partial, self.path)
        except (OSError, RuntimeError) as error:
            raise self._failed(error) from error

    def discard(self) -> None:
        """Remove the partial file."""
        with contextlib.suppress(OSError, RuntimeError):
            if self._file is not None:
                self._file.close()
        self._file = None
        self._partial.unlink(missing_ok=True)


def _clear_time(wav: Path) -> None:
    """Clear the time stamp in the ``PEAK`` chunk of a WAV file, so that equal sounds are equal files."""
    with open(wav, "r+b") as file:
        chunk = file.read(256).find(b"PEAK")
        if chunk >= 0:
            # Four fields of four bytes: name, size, version, time.
            file.seek(chunk + 12)
            file.write(bytes(4))
