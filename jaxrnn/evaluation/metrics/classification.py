"""Classifiers: the class with the highest score of each frame against its label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrnn.evaluation.metrics.protocol import Counts, Metric, NoValueError


class Classification:
    """Counts of one recording."""

    def __init__(self, name: str, key: str):
        self._name, self._key, self._right, self._judged = name, key, 0, 0

    def add(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> None:
        """Count the frames that are labelled.

        Raises:
            NoValueError: scores and labels do not fit, or a score is not a number.
        """
        assert reference is not None
        scores, labels = np.asarray(output).reshape(len(output), -1), np.asarray(reference, np.float64).ravel()
        if len(labels) != len(output):
            raise NoValueError(f"a label has the shape {np.shape(reference)[1:]}, but one number is expected")
        labels, scores = labels[labels >= 0], scores[labels >= 0]
        if np.isnan(scores).any():
            raise NoValueError("there are scores that are not a number")
        if np.any(labels >= scores.shape[1]) or np.any(labels != np.rint(labels)):
            raise NoValueError(f"labels must be whole numbers below {scores.shape[1]}, the number of classes")
        self._right += int(np.sum(np.argmax(scores, 1) == labels))
        self._judged += len(labels)

    def result(self) -> dict[str, Any]:
        """The share of frames that are right, and counts."""
        share = self._right / self._judged if self._judged else math.nan
        return {self._name: share, self._key: {"right": self._right, "judged": self._judged}}


class ClassificationPool:
    """What the counts of many recordings say together."""

    def __init__(self, name: str):
        self._name = name

    def values(self, counts: Sequence[Counts], weights: np.ndarray) -> dict[str, np.ndarray]:
        """The share of frames that are right ``float64[draws]``."""
        found = np.array([[entry["right"], entry["judged"]] for entry in counts], np.float64).reshape(-1, 2)
        right, judged = (weights @ found).T
        return {self._name: np.divide(right, judged, out=np.full(len(weights), math.nan), where=judged > 0)}

    def curve(self, counts: Sequence[Counts]) -> dict[str, list[float]]:
        """There is none."""
        return {}


def class_accuracy(called: str = "class_accuracy", output: str | None = None) -> Metric:
    """The share of frames whose highest score is that of their class; no unit; higher is better.

    Args:
        called: name of the column.
        output: which output holds the scores ``[frames, classes]``. The reference holds the number of each frame's
            class; a negative one, or NaN, is not judged. Over a corpus, frames are counted.
    """
    key = f"{called}_counts"
    return Metric(
        called,
        lambda rate: Classification(called, key),
        output,
        counts=key,
        pool=ClassificationPool(called),
        options={"kind": "class_accuracy"},
    )
