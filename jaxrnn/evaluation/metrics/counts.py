"""Metrics of detectors and classifiers: scores of frames against labels, counted over a corpus."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrnn._files.stores import Location, check_file
from jaxrnn.errors import InputError
from jaxrnn.evaluation.metrics.protocol import Column, Metric, NoValueError, Pool, Sums, SumsOf, real

#: The rates of a detector.
RATES = ("accuracy", "precision", "recall", "f1", "auc")
#: The equal error rate has a metric of its own, as lower is better.
EER = "eer"

#: The number of bins of scores: for probabilities, a bin per thousandth.
BINS = 1001


def _counted(
    called: str, output: str | None, pool: Pool, of: SumsOf, columns: tuple[Column, ...], options: dict[str, Any]
) -> Metric:
    """Make a metric of counts, which also add up over a corpus."""

    def values(sums: np.ndarray) -> dict[str, Any]:
        return {column: float(value) for column, value in pool.values(sums).items()} | {pool.key: pool.counts(sums)}

    return Metric(called, columns, lambda rate: Sums(pool.size, of, values), output, pool=pool, options=options)


def _labels(output: np.ndarray, reference: np.ndarray | None) -> np.ndarray:
    assert reference is not None
    labels = real(reference)
    if len(labels) != len(output):
        raise NoValueError(f"a label has the shape {np.shape(reference)[1:]}, but one number is expected")
    return labels


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(np.shape(part), math.nan), where=whole > 0)


@dataclass(frozen=True)
class Detector:
    """Counts of a detector: the confusion at a threshold, and a histogram of scores for each label.

    Counts are true negatives, false positives, false negatives and true positives, then scores of negatives by bin,
    then scores of positives by bin. Bins are centred on ``low`` to ``high``.
    """

    threshold: float
    bins: int
    low: float
    high: float
    columns: Mapping[str, str]

    def counts(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> np.ndarray:
        """Return the counts of labelled frames."""
        scores, labels = real(output), _labels(output, reference)
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
        """Return rates by column, with NaN without a denominator.

        Precision needs detections, recall and F1 need positives, and AUC and EER need positives and negatives.
        """
        true_negatives, false_positives, false_negatives, true_positives = np.moveaxis(sums[..., :4], -1, 0)
        positives = true_positives + false_negatives
        negative, positive = sums[..., 4 : 4 + self.bins], sums[..., 4 + self.bins :]
        below = np.cumsum(negative, -1) - negative
        # A positive beats negatives of lower bins, and half of the negatives of the same bin (Hanley and McNeil, 1982).
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
        if EER in self.columns:
            rates[EER] = _equal_error_rate(negative, positive)
        return {column: rates[rate] for rate, column in self.columns.items()}

    def curve(self, sums: np.ndarray) -> dict[str, list[float]]:
        """Return the receiver operating characteristic, from the strictest to the mildest threshold.

        Fawcett, "An introduction to ROC analysis", 2006. The first point has an infinite threshold, no detections, and
        no precision. Without positives or without negatives, the curve is empty.
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


def _equal_error_rate(negative: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """Return the rate at which misses and false alarms are equal, from histograms ``float64[..., bins]``.

    Between two thresholds, both rates are interpolated linearly, which is the crossing of the ROC curve.
    """
    none = np.zeros((*negative.shape[:-1], 1))
    missed = np.concatenate([none, np.cumsum(positive, -1)], -1)
    alarms = np.concatenate([none, np.cumsum(negative, -1)], -1)
    missed, alarms = _ratio(missed, missed[..., -1:]), 1 - _ratio(alarms, alarms[..., -1:])
    above = missed - alarms  # from -1 to 1
    at = np.argmax(above >= 0, -1)[..., None]
    (low, high), (start, end) = (
        [np.take_along_axis(rate, np.maximum(place, 0), -1)[..., 0] for place in (at - 1, at)]
        for rate in (above, missed)
    )
    return start + (end - start) * _ratio(-low, high - low)


def detection(
    called: str = "detection",
    output: str | None = None,
    threshold: float = 0.5,
    rates: Sequence[str] = RATES,
    bins: int = BINS,
    low: float = 0.0,
    high: float = 1.0,
    label: str = "label",
    score: str = "score",
) -> Metric:
    """Make accuracy, precision, recall, F1 and the area under the ROC curve of a detector's scores.

    The reference has a label for each frame of the output: an array of 0 and 1, with a negative number or NaN for
    frames that are not judged, or a table of segments (`Segments`). At the threshold, all rates but AUC are exact. AUC
    and the ROC curve use histograms, in which two scores of a bin are equal. Over a corpus, frames are counted;
    recordings are not averaged. Rates have no unit; higher is better.

    Args:
        called: the prefix of the columns, unless ``"detection"``.
        output: the output with scores, one per frame.
        threshold: a score at or above the threshold is a detection.
        rates: the rates to compute.
        bins: the number of bins.
        low: the lowest possible score.
        high: the highest possible score; a recording with scores outside has no value.
        label: in a table, the column of labels.
        score: in a table, the column of scores.

    Raises:
        InputError: a rate does not exist, or the range of scores is empty.
    """
    if not rates or any(rate not in (*RATES, EER) for rate in rates) or len(set(rates)) != len(rates):
        raise InputError(f"{called}: rates must be some of {', '.join(RATES)}, not {', '.join(map(str, rates))}")
    if not (math.isfinite(low) and math.isfinite(high) and low < high) or bins < 2 or math.isnan(threshold):
        raise InputError(
            f"{called}: expected low < high, at least 2 bins and a threshold, not {low}, {high}, {bins} and {threshold}"
        )
    prefix = "" if called == "detection" else f"{called}_"
    columns = {rate: called if len(rates) == 1 else f"{prefix}{rate}" for rate in rates}
    detector = Detector(threshold, bins, float(low), float(high), columns)
    pool = Pool(f"{called}_counts", 4 + 2 * bins, detector.values, detector.curve)

    def of_row(label: float | None, score: float | None) -> dict[str, Any]:
        if label is None or score is None or math.isnan(label) or math.isnan(score):
            raise NoValueError("there is no label or no score")
        try:
            return {pool.key: pool.counts(detector.counts(np.array([score]), np.array([label]), None))}
        except NoValueError as error:
            raise InputError(f"{called}: {error}") from error

    metric = _counted(
        called,
        output,
        pool,
        detector.counts,
        tuple(Column(column, higher_is_better=rate != EER) for rate, column in columns.items()),
        {
            "kind": "detection",
            "threshold": threshold,
            "rates": list(rates),
            "bins": bins,
            "low": detector.low,
            "high": detector.high,
            "label": label,
            "score": score,
        },
    )
    return dataclasses.replace(metric, reads={label: float, score: float}, of_row=of_row)


def _one_rate(rate: str) -> Callable[..., Metric]:
    """Return the metric with only one rate, under the name of the rate."""

    def metric(
        called: str = rate,
        output: str | None = None,
        threshold: float = 0.5,
        bins: int = BINS,
        low: float = 0.0,
        high: float = 1.0,
        label: str = "label",
        score: str = "score",
    ) -> Metric:
        return detection(called, output, threshold, (rate,), bins, low, high, label, score)

    metric.__name__ = metric.__qualname__ = rate
    metric.__doc__ = f"The {rate} of a detector; see `detection`."
    return metric


accuracy, precision, recall, f1, auc, eer = map(_one_rate, (*RATES, EER))


def class_accuracy(called: str = "class_accuracy", output: str | None = None) -> Metric:
    """Make the share of frames with the highest score for their class, without unit; higher is better.

    Args:
        called: the name of the column.
        output: the output with scores ``[frames, classes]``. The reference holds the class number of each frame; frames
            with a negative number or NaN are not judged. Over a corpus, frames are counted.
    """

    def counts(output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> list[int]:
        labels = _labels(output, reference)
        judged = labels >= 0
        scores, labels = real(output).reshape(len(output), -1)[judged], labels[judged]
        if np.isnan(scores).any():
            raise NoValueError("there are scores that are not a number")
        if np.any(labels >= scores.shape[1]) or np.any(labels != np.rint(labels)):
            raise NoValueError(f"labels must be whole numbers below {scores.shape[1]}, the number of classes")
        return [int(np.sum(np.argmax(scores, 1) == labels)), len(labels)]

    def values(sums: np.ndarray) -> dict[str, np.ndarray]:
        return {called: _ratio(sums[..., 0], sums[..., 1])}

    pool = Pool(f"{called}_counts", 2, values)
    return _counted(called, output, pool, counts, (Column(called),), {"kind": "class_accuracy"})


class Segments:
    """Labels from a CSV file with columns ``start`` and ``end`` in seconds; overlapping times count once."""

    def __init__(self, path: Location):
        ends = _joined(_read(path)).ravel()
        self._times = np.concatenate([[0.0], ends])
        #: The labelled seconds before each time.
        self._labelled = np.concatenate([[0.0], np.cumsum(np.diff(ends, prepend=0.0) * (np.arange(len(ends)) % 2))])

    def labels(self, start: int, stop: int, rate: float) -> np.ndarray:
        """Return labels ``float32[stop - start]`` of frames: 1 if at least half of the frame is in a segment.

        Frame k is the time from ``k / rate`` to ``(k + 1) / rate``.
        """
        until = np.interp(np.arange(start, stop + 1) / rate, self._times, self._labelled)
        # The tolerance absorbs rounding of the ends of a frame.
        return (np.diff(until) * rate >= 0.5 - 1e-6).astype(np.float32)


#: The limit of a table of segments in bytes: millions of segments.
_MOST = 2**28


def _read(path: Location) -> list[tuple[float, float]]:
    try:
        with check_file(path, _MOST).open(newline="", encoding="utf-8-sig") as file:
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
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read as a table of segments: {reason}") from error


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
    """Return sorted segments ``float64[segments, 2]``; touching segments are merged."""
    joined: list[list[float]] = []
    for first, last in sorted(segments):
        if joined and first <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return np.array(joined, np.float64).reshape(-1, 2)
