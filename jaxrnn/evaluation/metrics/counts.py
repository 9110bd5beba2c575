"""Metrics of detectors and classifiers: scores of frames against labels, counted over a corpus."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxrnn._files.stores import Location, check_file
from jaxrnn.errors import InputError
from jaxrnn.evaluation.metrics.protocol import Column, Metric, NoValueError, Pool
from jaxrnn.evaluation.metrics.sound import counted
from jaxrnn.evaluation.recordings import Recording, open_recording

#: The rates of a detector.
RATES = ("accuracy", "precision", "recall", "f1", "auc")

#: The number of bins that scores are counted in: for probabilities, one every thousandth.
BINS = 1001


def _labels(output: np.ndarray, reference: np.ndarray | None) -> np.ndarray:
    assert reference is not None
    labels = np.asarray(reference, np.float64).ravel()
    if len(labels) != len(output):
        raise NoValueError(f"a label has the shape {np.shape(reference)[1:]}, but one number is expected")
    return labels


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(np.shape(part), math.nan), where=whole > 0)


@dataclass(frozen=True)
class Detector:
    """How a detector's scores are counted: its confusion at a threshold, and a histogram of scores for each label.

    Counts are true negatives, false positives, false negatives and true positives; then the scores of negatives by
    bin; then those of positives.

    Attributes:
        threshold: a score at or above it is a detection.
        bins: the number of bins.
        low: the score of the first bin.
        high: the score of the last bin.
        columns: column by rate.
    """

    threshold: float
    bins: int
    low: float
    high: float
    columns: Mapping[str, str]

    def counts(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> np.ndarray:
        """The counts of the frames that are labelled.

        Raises:
            NoValueError: a frame has not one score and one label, or a score is outside ``low`` to ``high``.
        """
        scores, labels = np.asarray(output, np.float64).ravel(), _labels(output, reference)
        if len(scores) != len(output):
            raise NoValueError(f"a frame of the output has the shape {np.shape(output)[1:]}, but one score is expected")
        judged = labels >= 0
        scores, labels = scores[judged], labels[judged] >= 0.5
        places = np.rint((scores - self.low) * ((self.bins - 1) / (self.high - self.low)))
        outside = ~((places >= 0) & (places < self.bins))
        if outside.any():
            raise NoValueError(
                f"there are scores such as {scores[outside][0]:g}, not of {self.low:g} to {self.high:g}: set low and "
                "high"
            )
        confusion = np.bincount(2 * labels + (scores >= self.threshold), minlength=4)
        histogram = np.bincount(places.astype(np.int64) + self.bins * labels, minlength=2 * self.bins)
        return np.concatenate([confusion, histogram])

    def values(self, sums: np.ndarray) -> dict[str, np.ndarray]:
        """Rates by column; NaN without a denominator.

        Precision needs detections, recall and F1 positives, AUC positives and negatives.
        """
        true_negatives, false_positives, false_negatives, true_positives = np.moveaxis(sums[..., :4], -1, 0)
        positives = true_positives + false_negatives
        negative, positive = sums[..., 4 : 4 + self.bins], sums[..., 4 + self.bins :]
        below = np.cumsum(negative, -1) - negative
        # A positive beats the negatives of lower bins, and half of those of its own (Hanley and McNeil, 1982).
        beaten = np.sum(positive * (below + negative / 2), -1)
        rates = {
            "accuracy": _ratio(true_positives + true_negatives, sums[..., :4].sum(-1)),
            "precision": _ratio(true_positives, true_positives + false_positives),
            "recall": _ratio(true_positives, positives),
            "f1": _ratio(
                2 * true_positives, np.where(positives > 0, positives + true_positives + false_positives, 0.0)
            ),
            "auc": _ratio(beaten, negative.sum(-1) * positive.sum(-1)),
        }
        return {column: rates[rate] for rate, column in self.columns.items()}

    def curve(self, sums: np.ndarray) -> dict[str, list[float]]:
        """The receiver operating characteristic, from the strictest threshold to the mildest.

        Fawcett, "An introduction to ROC analysis", 2006. It begins where nothing is detected, at an infinite threshold,
        without a precision. Empty where there are no positives or no negatives.
        """
        names = ("threshold", "false_positive_rate", "true_positive_rate", "precision")
        histogram = sums[4:].reshape(2, self.bins)
        if not histogram.sum(1).all():
            return {name: [] for name in names}
        used = np.flatnonzero(histogram.any(0))[::-1]
        false, true = np.cumsum(histogram[:, used], 1)
        columns = (
            [math.inf, *(self.low + used * ((self.high - self.low) / (self.bins - 1)))],
            [0.0, *(false / false[-1])],
            [0.0, *(true / true[-1])],
            [math.nan, *(true / (true + false))],
        )
        return {name: [float(value) for value in column] for name, column in zip(names, columns, strict=True)}


def detection(
    called: str = "detection",
    output: str | None = None,
    threshold: float = 0.5,
    rates: Sequence[str] = RATES,
    bins: int = BINS,
    low: float = 0.0,
    high: float = 1.0,
) -> Metric:
    """A detector's scores against labels: accuracy, precision, recall, F1 and the area under the ROC curve.

    The reference has a label for each frame of the output: an array of 0 and 1, where a negative number or NaN means
    that a frame is not judged; or a table of segments (`Segments`). All but AUC are exact at the threshold; AUC and the
    ROC curve come from histograms of scores, and count two scores of one bin as equal. Over a corpus, frames are
    counted, not recordings averaged. No unit; higher is better.

    Args:
        called: the prefix of its columns, where it is not ``"detection"``.
        output: the output that holds the scores, one a frame.
        threshold: a score at or above it is a detection.
        rates: the columns that it gives.
        bins: the number of bins.
        low: the lowest possible score.
        high: the highest possible score; a recording with others has no value.

    Raises:
        InputError: there is no such rate, or no range of scores.
    """
    if not rates or any(rate not in RATES for rate in rates) or len(set(rates)) != len(rates):
        raise InputError(f"{called}: rates must be some of {', '.join(RATES)}, not {', '.join(map(str, rates))}")
    if not (math.isfinite(low) and math.isfinite(high) and low < high) or bins < 2 or math.isnan(threshold):
        raise InputError(
            f"{called}: expected low < high, at least 2 bins and a threshold, not {low}, {high}, {bins} and {threshold}"
        )
    prefix = "" if called == "detection" else f"{called}_"
    columns = {rate: called if len(rates) == 1 else f"{prefix}{rate}" for rate in rates}
    detector = Detector(threshold, bins, float(low), float(high), columns)
    return counted(
        called,
        output,
        Pool(f"{called}_counts", 4 + 2 * bins, detector.values, detector.curve),
        detector.counts,
        tuple(map(Column, columns.values())),
        {
            "kind": "detection",
            "threshold": threshold,
            "rates": list(rates),
            "bins": bins,
            "low": detector.low,
            "high": detector.high,
        },
    )


def _one_rate(rate: str) -> Callable[..., Metric]:
    """The metric that gives one rate only, with its name."""

    def metric(
        called: str = rate,
        output: str | None = None,
        threshold: float = 0.5,
        bins: int = BINS,
        low: float = 0.0,
        high: float = 1.0,
    ) -> Metric:
        return detection(called, output, threshold, (rate,), bins, low, high)

    metric.__name__ = metric.__qualname__ = rate
    metric.__doc__ = f"The {rate} of a detector; see `detection`."
    return metric


accuracy, precision, recall, f1, auc = map(_one_rate, RATES)


def class_accuracy(called: str = "class_accuracy", output: str | None = None) -> Metric:
    """The share of frames whose highest score is that of their class; no unit; higher is better.

    Args:
        called: name of the column.
        output: the output that holds the scores ``[frames, classes]``. The reference holds the number of each frame's
            class; a frame with a negative number or NaN is not judged. Over a corpus, frames are counted.
    """

    def counts(output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> list[int]:
        labels = _labels(output, reference)
        judged = labels >= 0
        scores, labels = np.asarray(output).reshape(len(output), -1)[judged], labels[judged]
        if np.isnan(scores).any():
            raise NoValueError("there are scores that are not a number")
        if np.any(labels >= scores.shape[1]) or np.any(labels != np.rint(labels)):
            raise NoValueError(f"labels must be whole numbers below {scores.shape[1]}, the number of classes")
        return [int(np.sum(np.argmax(scores, 1) == labels)), len(labels)]

    def values(sums: np.ndarray) -> dict[str, np.ndarray]:
        return {called: _ratio(sums[..., 0], sums[..., 1])}

    pool = Pool(f"{called}_counts", 2, values)
    return counted(called, output, pool, counts, (Column(called),), {"kind": "class_accuracy"})


class Segments:
    """A CSV file with the columns ``start`` and ``end`` in seconds; where they overlap, a time counts once."""

    def __init__(self, path: Location):
        ends = _joined(_read(path)).ravel()
        self._times = np.concatenate([[0.0], ends])
        #: The seconds that are labelled up to each of the times.
        self._labelled = np.concatenate([[0.0], np.cumsum(np.diff(ends, prepend=0.0) * (np.arange(len(ends)) % 2))])

    def labels(self, start: int, stop: int, rate: float) -> np.ndarray:
        """Labels ``float32[stop - start]`` of frames: 1 where at least half of a frame's time is in a segment.

        Args:
            start: the first frame; frame k is the time from ``k / rate`` to ``(k + 1) / rate``.
            stop: the frame after the last.
            rate: frames a second.
        """
        until = np.interp(np.arange(start, stop + 1) / rate, self._times, self._labelled)
        # Half a frame is half a frame, whatever the rounding of its ends.
        return (np.diff(until) * rate >= 0.5 - 1e-6).astype(np.float32)


def _read(path: Location) -> list[tuple[float, float]]:
    try:
        with check_file(path).open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, skipinitialspace=True)
            columns = [name.strip() for name in rows.fieldnames or ()]
            if not {"start", "end"} <= set(columns):
                raise InputError(
                    f"{path}: a table of segments has the columns start and end, in seconds, in its first line; "
                    f"found {', '.join(columns) or 'nothing'}"
                )
            rows.fieldnames = columns
            return [_segment(path, rows.line_num, row["start"], row["end"]) for row in rows]
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a table of segments: {error}") from error


def _segment(path: Location, line: int, start: str | None, end: str | None) -> tuple[float, float]:
    try:
        first, last = float(start or ""), float(end or "")
    except ValueError:
        raise InputError(
            f"{path}, line {line}: expected a start and an end in seconds, not {start!r}, {end!r}"
        ) from None
    if not 0 <= first <= last < math.inf:
        raise InputError(f"{path}, line {line}: expected 0 <= start <= end, not {first:g} and {last:g}")
    return first, last


def _joined(segments: list[tuple[float, float]]) -> np.ndarray:
    """Segments ``float64[segments, 2]`` in order; those that touch are one."""
    joined: list[list[float]] = []
    for first, last in sorted(segments):
        if joined and first <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return np.array(joined, np.float64).reshape(-1, 2)


def open_reference(path: Location, rate: int) -> Recording | Segments:
    """A reference: a recording, or with the ending ``.csv`` a table of segments.

    Raises:
        InputError: it cannot be read.
    """
    return Segments(path) if path.suffix.lower() == ".csv" else open_recording(path, rate)
