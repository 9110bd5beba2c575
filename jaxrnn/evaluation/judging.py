"""The outputs of a recording: alignment, metrics, files, and the row in the results."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrnn._files.stores import Location, place
from jaxrnn.errors import InputError
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.metrics import Metric, NoValueError, frame_rate, output_of
from jaxrnn.evaluation.metrics.counts import Segments
from jaxrnn.evaluation.parts import Row, row_of
from jaxrnn.evaluation.recordings import Recording
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
        self.item, self.recording, self.outputs, self._system = item, recording, outputs, system
        self.frames = system.padded(recording.length)
        self.ended = False
        self.error: str | None = None
        self._judge = Judge(metrics, recording, reference, system)
        self._writers: dict[str, OutputWriter] = {}
        self._position: dict[str, int] = {}

    def add(self, pieces: Mapping[str, tuple[np.ndarray, int]]) -> None:
        """Add the outputs of a chunk: a dict of ``[frames, ...]`` and the number of valid frames."""
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
            if name not in self._writers:
                is_sound = values.ndim == 1 and self._system.per_frame[name] == 1
                is_sound = is_sound and jnp.issubdtype(values.dtype, jnp.floating)
                prefix = f".{name}" if len(self._system.delay) > 1 else ""
                file = f"{self.item.id}{prefix}{'.wav' if is_sound else '.npy'}"
                self._writers[name] = OutputWriter(self.outputs, file, self._system.rate)
            self._writers[name].add(values)
        try:
            self._judge.take(name, values, first)
        except InputError as error:
            self.fail(str(error))

    def fail(self, reason: str) -> None:
        """End with an error, which becomes the row of the recording."""
        self.error = reason
        self.discard()

    def discard(self) -> None:
        """Remove all unfinished files."""
        for writer in self._writers.values():
            writer.discard()

    def row(self) -> Row:
        """Finish the files, and return the row of the recording."""
        if self.error is None:
            for writer in self._writers.values():
                writer.finish()
        values = self._judge.row() if self.error is None else {}
        return row_of(self.item, self.recording.length / self._system.rate, self.error) | values


#: Frames, or share of frames, by which a reference may be shorter than the output, and labels also longer.
TOLERANCE_FRAMES, TOLERANCE = 2, 0.02


class Judge:
    """All metrics of a recording. A metric that fails does not affect other metrics."""

    def __init__(
        self,
        metrics: Sequence[Metric],
        recording: Recording,
        reference: Recording | Segments | None,
        system: System,
    ):
        self._metrics, self._recording, self._reference, self._system = metrics, recording, reference, system
        self._outputs = {metric.name: output_of(metric, system) for metric in metrics}
        self._open = {
            metric.name: metric.start(frame_rate(system, self._outputs[metric.name]))
            for metric in metrics
            if reference is not None or not metric.needs_reference
        }
        self._notes: dict[str, str] = {}
        self._frames: dict[str, int] = {}

    def take(self, output: str, values: np.ndarray, first: int) -> None:
        """Judge frames ``[frames, ...]`` of an output, beginning with frame number ``first``."""
        self._frames[output] = first + len(values)
        judging = [
            metric for metric in self._metrics if metric.name in self._open and self._outputs[metric.name] == output
        ]
        if not judging:
            return
        reference = self._part(output, first, len(values))
        source = None
        if any(metric.needs_source for metric in judging):
            source = _array(self._recording.part(first, first + len(values)), output)
        for metric in judging:
            # Frames after the end of the reference are not judged.
            count = len(values) if reference is None or not metric.needs_reference else len(reference)
            if count:
                recorded = None if source is None else source[:count]
                self._guarded(metric, self._open[metric.name].add, values[:count], reference, recorded)

    def _part(self, output: str, first: int, count: int) -> np.ndarray | None:
        if self._reference is None:
            return None
        if isinstance(self._reference, Segments):
            return self._reference.labels(first, first + count, frame_rate(self._system, output))
        stop = min(first + count, self._reference.length)
        return _array(self._reference.part(min(first, stop), stop), output)

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

    def _compare_lengths(self) -> None:
        """Note references that differ in length from the output, and end metrics that cannot be judged."""
        if self._reference is None or isinstance(self._reference, Segments):
            return
        for output, frames in self._frames.items():
            judging = [
                metric for metric in self._metrics if metric.needs_reference and self._outputs[metric.name] == output
            ]
            length = self._reference.length
            if not judging or abs(length - frames) <= 1:
                continue
            note = f"the reference has {length} frames, the output {frames}"
            labels, allowed = self._system.per_frame[output] != 1, max(TOLERANCE_FRAMES, TOLERANCE * frames)
            if frames - length > allowed or (labels and length - frames > allowed):
                needed = f"labels need its {frame_rate(self._system, output):g} a second"
                for metric in judging:
                    self._end(metric, f"{note}: {needed if labels else 'it is too short to judge by'}")
            else:
                notes = [self._notes.get(""), f"{note}; judged are the first {min(length, frames)}"]
                self._notes[""] = "; ".join(dict.fromkeys(filter(None, notes)))

    def _plain(self, metric: Metric, key: str, value: Any) -> Any:
        """Return a number as float, NaN as None, and counts unchanged; note other values."""
        if isinstance(value, int | float | np.number):
            return None if math.isnan(value) else float(value)
        if value is not None and (metric.pool is None or key != metric.pool.key):
            self._notes[metric.name] = f"TypeError: {key} must be a number, not {type(value).__name__}"
            return None
        return value

    def row(self) -> Row:
        """Return values by column, None if missing, counts, and ``notes``, the reasons for missing values."""
        self._compare_lengths()
        row: Row = {}
        for metric in self._metrics:
            values = self._guarded(metric, self._open[metric.name].result) if metric.name in self._open else None
            if not (metric.by_key and values):
                row |= dict.fromkeys(column.name for column in metric.columns)
            row |= {key: self._plain(metric, key, value) for key, value in (values or {}).items()}
        # Each reason once, with its metrics in order.
        reasons: dict[str, list[str]] = {}
        for name in ["", *(metric.name for metric in self._metrics)]:
            if name in self._notes:
                reasons.setdefault(self._notes[name], []).append(name)
        notes = [f"{', '.join(names)}: {note}".removeprefix(": ") for note, names in reasons.items()]
        return {"notes": "; ".join(notes) or None, **row}


def _array(parts: dict[str, np.ndarray], output: str) -> np.ndarray:
    """Return the array with the name of the output, or the first array."""
    return parts[output] if output in parts else next(iter(parts.values()))


def partial_of(folder: Location) -> Path:
    """Return the folder of unfinished files: beside the output folder, or the folder for temporary files."""
    return folder.with_name(f"{folder.name}.partial") if isinstance(folder, Path) else Path(tempfile.gettempdir())


def discard_partial(folder: Location) -> None:
    """Remove unfinished files of killed processes."""
    if isinstance(folder, Path):
        shutil.rmtree(partial_of(folder), ignore_errors=True)


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
            self.discard()
            raise InputError(f"{self.path} cannot be written: {error}") from error

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
            self.discard()
            raise InputError(f"{self.path} cannot be written: {error}") from error

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
