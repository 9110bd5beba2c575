"""The metric protocol, and metrics of functions that judge whole recordings."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from jaxrnn._files.messages import brief
from jaxrnn.errors import InputError, JaxrnnError


class NoValueError(JaxrnnError):
    """A metric has no value for a recording: its column is null, and the row's notes give this message."""


class Accumulator(Protocol):
    """A metric of one recording that comes in pieces."""

    def add(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> None:
        """Add the next frames.

        Args:
            output: frames ``[frames, ...]`` of the output.
            reference: the same frames of the reference; None where there is none.
            source: the same frames of the recording itself; None unless the metric needs them.

        Raises:
            NoValueError: the metric has no value for this recording.
        """
        ...

    def result(self) -> dict[str, Any]:
        """Values by column, NaN where one is not defined; and the counts of a metric with a `Pool`.

        Raises:
            NoValueError: the metric has no value for this recording.
        """
        ...


@dataclass(frozen=True)
class Pool:
    """How the counts of many recordings become values of the corpus: they are added before anything is divided.

    A recording's counts are ``{"at": [...], "counts": [...]}``: the places and values of those that are not 0.

    Attributes:
        key: of the counts in a result; they are in no table.
        size: the number of counts.
        values: from sums of counts ``float64[..., size]`` to values ``float64[...]`` by column, NaN where one is not
            defined.
        curve: from sums of counts ``float64[size]`` to a curve, as columns of equal length; None for no curve.
    """

    key: str
    size: int
    values: Callable[[np.ndarray], dict[str, np.ndarray]]
    curve: Callable[[np.ndarray], dict[str, list[float]]] | None = None

    def sums(self, counts: Mapping[str, Any]) -> np.ndarray:
        """The counts of a recording as ``float64[size]``."""
        sums = np.zeros(self.size)
        sums[counts["at"]] = counts["counts"]
        return sums

    def counts(self, sums: np.ndarray) -> dict[str, list[int]]:
        """Sums ``float64[size]`` as the counts of a recording."""
        at = np.flatnonzero(sums)
        return {"at": at.tolist(), "counts": sums[at].astype(int).tolist()}


@brief
@dataclass(frozen=True)
class Column:
    """A column that a metric gives.

    Attributes:
        name: its name.
        unit: its unit, for people.
        higher_is_better: None where neither direction is better.
    """

    name: str
    unit: str = ""
    higher_is_better: bool | None = True


@brief
@dataclass(frozen=True)
class Metric:
    """A metric by name.

    Attributes:
        name: the name of its column, or the common prefix of its columns.
        columns: its columns.
        start: from the frames a second of the output to an accumulator for one recording. It raises InputError for a
            rate that does not fit.
        output: the output that it judges; None for the first.
        needs_reference: whether a recording without a reference has no value.
        needs_source: whether it compares with the recording's own frames, which are then read again.
        by_key: whether it may return several values in place of its one column. The names of their columns, which begin
            with the metric's name and an underscore, are known only after it has run; unit and direction are the same.
        pool: how its counts add up over a corpus; None for a metric without counts.
        options: what determines its values besides its name.
    """

    name: str
    columns: tuple[Column, ...]
    start: Callable[[Any], Accumulator]
    output: str | None = None
    needs_reference: bool = True
    needs_source: bool = False
    by_key: bool = False
    pool: Pool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """What distinguishes its values from another metric's, for a run's fingerprint."""
        return {"name": self.name, "output": self.output, **self.options}


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
