"""Metrics of whole recordings: their frames are kept until the end; a recording beyond a limit has no value."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxrnn.errors import InputError
from jaxrnn.evaluation.metrics.protocol import Column, Metric, NoValueError

#: Seconds of a recording that are kept at most, so that memory is bounded.
LIMIT = 120.0

#: A function of a whole output ``[frames, ...]``, its reference (None where there is none) and its frames a second.
Judgement = Callable[[np.ndarray, "np.ndarray | None", Any], Any]


class WholeRecording:
    """An accumulator that keeps the frames of a recording up to a limit, for a function that judges the whole."""

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
        """What the function returns: a number, or numbers by name.

        Raises:
            NoValueError: the output is empty, or the function returns something else.
        """
        if not self._outputs:
            raise NoValueError("the output is empty")
        reference = np.concatenate(self._references) if self._references else None
        result = self._function(np.concatenate(self._outputs), reference, self._rate)
        if isinstance(result, Mapping):
            return {f"{self._name}_{key}": _number(f"{self._name}[{key!r}]", value) for key, value in result.items()}
        return {self._name: _number(self._name, result)}


def _number(what: str, value: Any) -> float:
    """A number, or an array of one number, as float; NaN for None."""
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
        function: from the output ``[frames, ...]``, the reference (None where there is none) and the frames a second to
            a number, or numbers by name. What it raises becomes the row's note.
        called: name of its column; for a dictionary, each column's name is this one, an underscore, and the key.
        output: the output that it judges; None for the first.
        limit: seconds of the longest recording that is judged; as much is kept in memory for each recording of a batch.
        needs_reference: whether a recording without a reference has no value.
        unit: its unit, for people.
        higher_is_better: None where neither direction is better.
        options: what determines its values besides its name.

    Raises:
        InputError: the limit is not above 0.
    """
    if not limit > 0:
        raise InputError(f"{called}: limit must be above 0 seconds, not {limit}")
    return Metric(
        called,
        (Column(called, unit, higher_is_better),),
        lambda rate: WholeRecording(called, function, rate, limit),
        output,
        needs_reference,
        by_key=True,
        options={**(options or {}), "limit": limit},
    )
