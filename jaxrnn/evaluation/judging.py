"""One recording's outputs under all metrics: each gets the frames that it needs, and fails alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxrnn.evaluation.journal import Row
from jaxrnn.evaluation.metrics import Metric, NoValueError, Segments, frame_rate, output_of
from jaxrnn.evaluation.recordings import Recording
from jaxrnn.evaluation.systems import System

#: The frames, or the share of all frames, by which a reference may be shorter than an output; labels also longer.
TOLERANCE_FRAMES, TOLERANCE = 2, 0.02


class Judge:
    """All metrics of one recording.

    Args:
        metrics: by which it is judged.
        recording: the recording, for metrics that compare with it.
        reference: what its output is judged by; None where there is none.
        system: whose outputs are judged.
    """

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
        """Judge frames ``[frames, ...]`` of an output, the first of which is its frame ``first``.

        Raises:
            InputError: the reference or the recording cannot be read.
        """
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
            if reference is None or not metric.needs_reference:
                self._add(metric, values, reference, source)
                continue
            # Frames beyond the end of the reference are not judged.
            common = len(reference)
            if common:
                self._add(metric, values[:common], reference, None if source is None else source[:common])

    def _part(self, output: str, first: int, count: int) -> np.ndarray | None:
        if self._reference is None:
            return None
        if isinstance(self._reference, Segments):
            return self._reference.labels(first, first + count, frame_rate(self._system, output))
        stop = min(first + count, self._reference.length)
        return _array(self._reference.part(min(first, stop), stop), output)

    def _add(self, metric: Metric, *frames: Any) -> None:
        self._guarded(metric, lambda: self._open[metric.name].add(*frames))

    def _guarded(self, metric: Metric, call: Callable[[], Any]) -> Any:
        """The result of a call; an error of a metric ends that metric for this recording."""
        try:
            return call()
        except NoValueError as error:
            self._end(metric, str(error))
        except Exception as error:
            self._end(metric, f"{type(error).__name__}: {error}")
        return None

    def _end(self, metric: Metric, reason: str) -> None:
        self._notes[metric.name] = reason
        self._open.pop(metric.name, None)

    def _compare_lengths(self) -> None:
        """Note the metrics whose reference has another length than the output."""
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
                self._notes[""] = f"{note}; judged are the first {min(length, frames)}"

    def row(self) -> Row:
        """The values by column, None where there is none; counts; and ``notes``, the reasons for missing values."""
        self._compare_lengths()
        row: Row = {}
        for metric in self._metrics:
            values = self._guarded(metric, self._open[metric.name].result) if metric.name in self._open else None
            # The columns of a function that returns a dictionary are known only once it has returned one.
            names = [column.name for column in metric.columns] or ([] if values else [metric.name])
            row |= dict.fromkeys(names)
            row |= {key: _plain(value) for key, value in (values or {}).items()}
        return {"notes": self._note(), **row}

    def _note(self) -> str | None:
        """Each reason once, with its metrics in their order."""
        reasons: dict[str, list[str]] = {}
        for name in ["", *(metric.name for metric in self._metrics)]:
            if name in self._notes:
                reasons.setdefault(self._notes[name], []).append(name)
        return "; ".join(f"{', '.join(names)}: {note}".removeprefix(": ") for note, names in reasons.items()) or None


def _array(parts: dict[str, np.ndarray], output: str) -> np.ndarray:
    """The array with the output's name, or the first one."""
    return parts[output] if output in parts else next(iter(parts.values()))


def _plain(value: Any) -> Any:
    """A number as plain JSON, None for NaN; counts are not changed."""
    if isinstance(value, int | float | np.number):
        return None if math.isnan(value) else float(value)
    return value
