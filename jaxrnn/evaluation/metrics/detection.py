"""Detectors: scores for each frame against labels, as whole numbers that add up over a corpus."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxrnn.errors import InputError
from jaxrnn.evaluation.metrics.protocol import Column, Counts, Metric, NoValueError

#: What can be said of a detector.
RATES = ("accuracy", "precision", "recall", "f1", "auc")

#: Recordings whose counts are spread out in memory at once.
_AT_ONCE = 1000

#: Scores are counted in so many classes: for probabilities, one every thousandth.
BINS = 1001


class Detection:
    """Counts of one recording."""

    def __init__(self, names: dict[str, str], key: str, threshold: float, bins: int, scale: tuple[float, float]):
        self._names, self._key, self._threshold = names, key, threshold
        self._bins, self._scale = bins, scale
        self._histogram = np.zeros((2, bins), np.int64)
        self._confusion = np.zeros(4, np.int64)

    def add(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> None:
        """Count the frames that are labelled.

        Raises:
            NoValueError: a frame has not one score and one label, or a score is not in the range given by low and high.
        """
        assert reference is not None
        scores, labels = np.asarray(output, np.float64).ravel(), np.asarray(reference, np.float64).ravel()
        if len(scores) != len(output):
            raise NoValueError(f"a frame of the output has the shape {np.shape(output)[1:]}, but one score is expected")
        if len(labels) != len(output):
            raise NoValueError(f"a label has the shape {np.shape(reference)[1:]}, but one number is expected")
        judged = labels >= 0
        scores, labels = scores[judged], labels[judged] >= 0.5
        low, high = self._scale
        places = np.rint((scores - low) * ((self._bins - 1) / (high - low)))
        outside = ~((places >= 0) & (places < self._bins))
        if outside.any():
            raise NoValueError(
                f"there are scores such as {scores[outside][0]:g}, not of {low:g} to {high:g}: set low and high"
            )
        places = places.astype(np.int64)
        self._histogram += np.bincount(places + self._bins * labels, minlength=2 * self._bins).reshape(2, -1)
        self._confusion += np.bincount(2 * labels + (scores >= self._threshold), minlength=4)

    def result(self) -> dict[str, Any]:
        """Values and counts."""
        used = np.flatnonzero(self._histogram.any(0))
        counts = {
            "confusion": self._confusion.tolist(),
            "bins": used.tolist(),
            "negatives": self._histogram[0, used].tolist(),
            "positives": self._histogram[1, used].tolist(),
        }
        values = rates(self._confusion[None], self._histogram[None])
        return {column: float(values[rate][0]) for rate, column in self._names.items()} | {self._key: counts}


class DetectionPool:
    """What the counts of many recordings say together.

    Args:
        names: column by rate.
        bins: classes of scores.
        scale: the scores of the first class and of the last.
    """

    def __init__(self, names: dict[str, str], bins: int, scale: tuple[float, float]):
        self._names, self._bins, self._scale = names, bins, scale

    def values(self, counts: Sequence[Counts], weights: np.ndarray) -> dict[str, np.ndarray]:
        """Values by column ``float64[draws]``, exact: the counts are added before anything is divided."""
        confusion = np.array([found["confusion"] for found in counts], np.float64).reshape(-1, 4)
        found = rates(weights @ confusion, self._drawn(counts, weights))
        return {column: found[rate] for rate, column in self._names.items()}

    def _drawn(self, counts: Sequence[Counts], weights: np.ndarray) -> np.ndarray:
        """Histograms ``[draws, 2, bins]``, of the classes that any recording has."""
        taken = np.zeros(self._bins, bool)
        taken[0] = True
        for found in counts:
            taken[found["bins"]] = True
        used = np.flatnonzero(taken)
        column = np.cumsum(taken) - 1
        drawn = np.zeros((len(weights), 2 * len(used)))
        for start in range(0, len(counts), _AT_ONCE):
            block = counts[start : start + _AT_ONCE]
            each = np.zeros((len(block), 2, len(used)))
            for spread, found in zip(each, block, strict=True):
                spread[:, column[found["bins"]]] = found["negatives"], found["positives"]
            flat, part = each.reshape(len(block), -1), weights[:, start : start + len(block)]
            # Whole numbers below 2**24 are exact in 32 bits, which is twice as fast.
            exact = np.float32 if part.max() * flat.sum(0).max() < 2**24 else np.float64
            drawn += part.astype(exact) @ flat.astype(exact)
        return drawn.reshape(len(weights), 2, -1)

    def curve(self, counts: Sequence[Counts]) -> dict[str, list[float]]:
        """The receiver operating characteristic, from the strictest threshold to the mildest.

        Fawcett, "An introduction to ROC analysis", 2006. It begins where nothing is detected, at an infinite threshold,
        with no precision. Empty where there are no positives or no negatives.
        """
        histogram = np.zeros((2, self._bins))
        for found in counts:
            histogram[0, found["bins"]] += found["negatives"]
            histogram[1, found["bins"]] += found["positives"]
        names = ("threshold", "false_positive_rate", "true_positive_rate", "precision")
        if not histogram.sum(1).all():
            return {name: [] for name in names}
        used = np.flatnonzero(histogram.any(0))[::-1]
        false, true = np.cumsum(histogram[:, used], 1)
        low, high = self._scale
        columns = (
            [math.inf, *(low + used * ((high - low) / (self._bins - 1)))],
            [0.0, *(false / false[-1])],
            [0.0, *(true / true[-1])],
            [math.nan, *(true / (true + false))],
        )
        return {name: [float(value) for value in column] for name, column in zip(names, columns, strict=True)}


def rates(confusion: np.ndarray, histogram: np.ndarray) -> dict[str, np.ndarray]:
    """Rates of confusions ``[n, 4]`` (true and false negatives and positives) and histograms ``[n, 2, bins]``.

    Returns:
        ``float64[n]`` by name, NaN where a rate has nothing to divide by: precision without detections, recall and F1
        without positives, AUC without positives or negatives.
    """
    true_negatives, false_positives, false_negatives, true_positives = np.asarray(confusion, np.float64).T
    positives = true_positives + false_negatives
    negatives, scored = histogram[:, 0].astype(np.float64), histogram[:, 1].astype(np.float64)
    below = np.cumsum(negatives, 1) - negatives
    # A positive beats the negatives of lower classes, and half of those of its own (Hanley and McNeil, 1982).
    beaten = np.sum(scored * (below + negatives / 2), 1)
    return {
        "accuracy": _over(true_positives + true_negatives, np.asarray(confusion, np.float64).sum(1)),
        "precision": _over(true_positives, true_positives + false_positives),
        "recall": _over(true_positives, positives),
        "f1": _over(2 * true_positives, np.where(positives > 0, positives + true_positives + false_positives, 0.0)),
        "auc": _over(beaten, negatives.sum(1) * scored.sum(1)),
    }


def _over(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(part.shape, math.nan), where=whole > 0)


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
    ROC curve come from scores counted in classes, and count two scores of one class as equal. Over a corpus, frames are
    counted, not recordings averaged. No unit; higher is better.

    Args:
        called: what its columns begin with, where it is not ``"detection"``.
        output: which output holds the scores, one a frame.
        threshold: a score at or above it is a detection.
        rates: which columns it gives.
        bins: classes of scores.
        low: the lowest score that there can be.
        high: the highest score that there can be; a recording with others has no value.

    Raises:
        InputError: there is no such rate, or no range of scores.
    """
    if not rates or any(rate not in RATES for rate in rates) or len(set(rates)) != len(rates):
        raise InputError(f"{called}: rates must be some of {', '.join(RATES)}, not {', '.join(map(str, rates))}")
    if not (math.isfinite(low) and math.isfinite(high) and low < high) or bins < 2 or math.isnan(threshold):
        raise InputError(
            f"{called}: expected low < high, at least 2 bins and a threshold, not {low}, {high}, {bins} and {threshold}"
        )
    alone = len(rates) == 1
    prefix = "" if called == "detection" else f"{called}_"
    names = {rate: called if alone else f"{prefix}{rate}" for rate in rates}
    scale, key = (float(low), float(high)), f"{called}_counts"
    return Metric(
        called,
        lambda rate: Detection(names, key, threshold, bins, scale),
        output,
        columns=tuple(Column(column) for column in names.values()),
        counts=key,
        pool=DetectionPool(names, bins, scale),
        options={
            "kind": "detection",
            "threshold": threshold,
            "rates": list(rates),
            "bins": bins,
            "low": scale[0],
            "high": scale[1],
        },
    )


def one_rate(rate: str) -> Callable[..., Metric]:
    """The metric that gives one rate only, called like it."""

    def made(
        called: str = rate,
        output: str | None = None,
        threshold: float = 0.5,
        bins: int = BINS,
        low: float = 0.0,
        high: float = 1.0,
    ) -> Metric:
        return detection(called, output, threshold, (rate,), bins, low, high)

    made.__name__ = made.__qualname__ = rate
    made.__doc__ = f"The {rate} of a detector; see `detection`."
    return made


accuracy, precision, recall, f1, auc = (one_rate(rate) for rate in RATES)
