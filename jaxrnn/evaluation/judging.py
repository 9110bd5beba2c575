"""One recording's outputs under all metrics: each sees the frames that it needs, and fails alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxrnn.evaluation.journal import Row
from jaxrnn.evaluation.metrics.checking import output_of
from jaxrnn.evaluation.metrics.labels import Segments
from jaxrnn.evaluation.metrics.latency import frame_rate
from jaxrnn.evaluation.metrics.protocol import Metric, NoValueError
from jaxrnn.evaluation.recordings import Recording
from jaxrnn.evaluation.systems import System

#: A reference may be so many frames, or such a part, shorter than an output. Labels may be as much longer.
FRAMES, PART = 2, 0.02


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
        wanted = [
            metric for metric in self._metrics if metric.name in self._open and self._outputs[metric.name] == output
        ]
        if not wanted:
            return
        reference = self._part(output, first, len(values))
        source = None
        if any(metric.needs_source for metric in wanted):
            source = _array(self._recording.part(first, first + len(values)), output)
        for metric in wanted:
            if reference is None or not metric.needs_reference:
                self._add(metric, values, reference, source)
                continue
            # What the reference does not have, it does not judge.
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
        """What a call gives; what a metric raises ends that metric for this recording."""
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
        """A reference that does not fit is told."""
        if self._reference is None or isinstance(self._reference, Segments):
            return
        for output, frames in self._frames.items():
            wanting = [
                metric for metric in self._metrics if metric.needs_reference and self._outputs[metric.name] == output
            ]
            found = self._reference.length
            if not wanting or abs(found - frames) <= 1:
                continue
            said = f"the reference has {found} frames, the output {frames}"
            labels, allowed = self._system.per_frame[output] != 1, max(FRAMES, PART * frames)
            if frames - found > allowed or (labels and found - frames > allowed):
                needed = f"labels need its {frame_rate(self._system, output):g} a second"
                for metric in wanting:
                    self._end(metric, f"{said}: {needed if labels else 'it is too short to judge by'}")
            else:
                self._notes[""] = f"{said}; judged are the first {min(found, frames)}"

    def row(self) -> Row:
        """Values by column, None where there is none; counts; and ``notes``, why there is no value, or None."""
        self._compare_lengths()
        found: Row = {}
        for metric in self._metrics:
            values = self._guarded(metric, self._open[metric.name].result) if metric.name in self._open else None
            # The columns of a function that gives a dictionary are known only where it has.
            names = [column.name for column in metric.columns] or ([] if values else [metric.name])
            found |= dict.fromkeys(names)
            found |= {key: _plain(value) for key, value in (values or {}).items()}
        return {"notes": self._note(), **found}

    def _note(self) -> str | None:
        """Each reason once, with the metrics that it is of, in their order."""
        reasons: dict[str, list[str]] = {}
        for name in ["", *(metric.name for metric in self._metrics)]:
            if name in self._notes:
                reasons.setdefault(self._notes[name], []).append(name)
        return "; ".join(f"{', '.join(names)}: {said}".removeprefix(": ") for said, names in reasons.items()) or None


def _array(parts: dict[str, np.ndarray], output: str) -> np.ndarray:
    """The array with the output's name, or the first."""
    return parts[output] if output in parts else next(iter(parts.values()))


def _plain(value: Any) -> Any:
    """A number as JSON has it, None where it is not one; counts stay."""
    if isinstance(value, int | float | np.number):
        return None if math.isnan(value) else float(value)
    return value
