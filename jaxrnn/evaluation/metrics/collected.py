"""Metrics of whole recordings, whose samples are kept until it has ended; of long ones there is no value."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxrnn.errors import InputError
from jaxrnn.evaluation.metrics.protocol import Metric, NoValueError

#: Seconds of a recording that are kept at most, so that memory is bounded.
LIMIT = 120.0

#: A function of a whole output ``[frames, ...]``, its reference (None where there is none) and its frames a second.
Judgement = Callable[[np.ndarray, "np.ndarray | None", Any], Any]


class Collected:
    """Keeps a recording up to a limit, and has a function judge it."""

    def __init__(self, name: str, function: Judgement, rate: float, limit: float):
        self._name, self._function, self._rate, self._limit = name, function, rate, limit
        self._outputs: list[np.ndarray] = []
        self._references: list[np.ndarray] = []
        self._count = 0

    def add(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> None:
        """Keep the frames.

        Raises:
            NoValueError: the recording is too long.
        """
        self._count += len(output)
        if self._count > self._limit * self._rate:
            self._outputs, self._references = [], []
            raise NoValueError(f"the recording is longer than {self._limit:g} s, this metric's limit")
        self._outputs.append(np.array(output))
        if reference is not None:
            self._references.append(np.array(reference))

    def result(self) -> dict[str, Any]:
        """What the function says: a number, or numbers by name.

        Raises:
            NoValueError: there was nothing to judge.
        """
        if not self._outputs:
            raise NoValueError("the output is empty")
        reference = np.concatenate(self._references) if self._references else None
        found = self._function(np.concatenate(self._outputs), reference, self._rate)
        if isinstance(found, Mapping):
            return {f"{self._name}_{key}": _number(f"{self._name}[{key!r}]", value) for key, value in found.items()}
        return {self._name: _number(self._name, found)}


def _number(what: str, value: Any) -> float:
    """A number of any kind of number, or of an array of one; None is not defined."""
    if value is None:
        return math.nan
    if isinstance(value, np.generic | np.ndarray) or hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "biuf":
            return float(array.reshape(()))
    elif isinstance(value, numbers.Real):
        return float(value)
    raise NoValueError(f"{what} must be a number, not {type(value).__name__}")


def over_whole(
    function: Judgement,
    called: str,
    output: str | None = None,
    *,
    limit: float = LIMIT,
    needs_reference: bool = True,
    unit: str = "",
    higher_is_better: bool | None = True,
    options: Mapping[str, Any] | None = None,
) -> Metric:
    """A metric of a function that judges whole recordings.

    Args:
        function: given the output ``[frames, ...]``, the reference (None where there is none) and the frames a second,
            a number, or numbers by name. What it raises becomes the row's note.
        called: name of its column; of a dictionary, each column is called name and key with an underscore between.
        output: which output it judges; None for the sound, or the only one.
        limit: seconds of the longest recording that is judged: so much is kept in memory for each of a batch.
        needs_reference: whether a recording without one has no result.
        unit: what it is in, for people.
        higher_is_better: None where neither is.
        options: what decides on its values besides its name.

    Raises:
        InputError: the limit is not above 0.
    """
    if not limit > 0:
        raise InputError(f"{called}: limit must be above 0 seconds, not {limit}")

    def start(rate: Any) -> Collected:
        return Collected(called, function, rate, limit)

    facts = {**(options or {}), "limit": limit}
    return Metric(called, start, output, needs_reference, unit, higher_is_better, options=facts)
