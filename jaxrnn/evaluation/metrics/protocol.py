"""The metric protocol, the accumulator of sums, and metrics of functions that judge whole recordings."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from jaxrnn._files.messages import short_repr
from jaxrnn.errors import InputError, JaxrnnError


class NoValueError(JaxrnnError):
    """A metric has no value for a recording: the column is null, and the notes of the row hold this message."""


class Accumulator(Protocol):
    """The protocol of accumulators, which compute a metric of a recording from pieces."""

    def add(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> None:
        """Add the next frames.

        Args:
            output: frames ``[frames, ...]`` of the output.
            reference: the same frames of the reference; None without a reference.
            source: the same frames of the recording; None unless the metric needs them.

        Raises:
            NoValueError: the metric has no value for this recording.
        """
        ...

    def result(self) -> dict[str, Any]:
        """Return values by column, with NaN for undefined values, and the counts of a metric with a `Pool`.

        Raises:
            NoValueError: the metric has no value for this recording.
        """
        ...


@short_repr
@dataclass(frozen=True)
class Pool:
    """Addition of counts over recordings: counts of a corpus are added before values are computed.

    The counts of a recording are ``{"at": [...], "counts": [...]}``, indices and values of nonzero counts.

    Attributes:
        key: the name of the counts in a result; tables leave counts out.
        size: the number of counts.
        values: a function from sums of counts ``float64[..., size]`` to values ``float64[...]`` by column, with NaN for
            undefined values.
        curve: a function from sums of counts ``float64[size]`` to a curve, as columns of equal length; None without a
            curve.
    """

    key: str
    size: int
    values: Callable[[np.ndarray], dict[str, np.ndarray]]
    curve: Callable[[np.ndarray], dict[str, list[float]]] | None = None

    def sums(self, counts: Mapping[str, Any]) -> np.ndarray:
        """Convert the counts of a recording to ``float64[size]``."""
        sums = np.zeros(self.size)
        sums[counts["at"]] = counts["counts"]
        return sums

    def counts(self, sums: np.ndarray) -> dict[str, list[int]]:
        """Convert sums ``float64[size]`` to the counts of a recording."""
        at = np.flatnonzero(sums)
        return {"at": at.tolist(), "counts": sums[at].astype(int).tolist()}


@short_repr
@dataclass(frozen=True)
class Column:
    """A column of a metric.

    Attributes:
        name: the name.
        unit: the unit, for people.
        higher_is_better: None if neither direction is better.
    """

    name: str
    unit: str = ""
    higher_is_better: bool | None = True


@short_repr
@dataclass(frozen=True)
class Metric:
    """A metric with a name.

    Attributes:
        name: the name of the column, or the common prefix of several columns.
        columns: the columns.
        start: a function from the frames per second of the output to an accumulator for one recording. Raises
            InputError for an unsuitable rate.
        output: the judged output; by default the first output.
        needs_reference: True if a recording without a reference has no value.
        needs_source: True if the metric also needs the frames of the recording, which are then read again.
        by_key: True if the metric may return several values in place of one column. Names of these columns begin with
            the name of the metric and an underscore; the run determines the names. Unit and direction are shared.
        pool: the addition of counts over a corpus; None if the metric has no counts.
        options: values besides the name that determine the metric.
        reads: the columns of a table that the metric can judge in place of an output, by name, with the type of values,
            `str` or `float`.
        of_row: a function from the values of these columns, in order, to values by column and counts, like the result
            of an `Accumulator`; None if the metric judges outputs only. Raises NoValueError, or InputError for a value
            that does not fit the options.
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
    reads: Mapping[str, type] = field(default_factory=dict)
    of_row: Callable[..., dict[str, Any]] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Values that identify the metric in the fingerprint of a run."""
        return {"name": self.name, "output": self.output, **self.options}


#: The prefix of the columns of `of_recording`.
UNPROCESSED = "unprocessed_"


def of_recording(metric: Metric) -> Metric:
    """Return the metric of the recording in place of the output, under the name ``unprocessed_NAME``."""
    return dataclasses.replace(
        metric,
        name=f"{UNPROCESSED}{metric.name}",
        columns=tuple(dataclasses.replace(column, name=f"{UNPROCESSED}{column.name}") for column in metric.columns),
        start=lambda rate: _OfRecording(metric.start(rate)),
        needs_source=True,
        options={"of": "recording", **metric.options},
    )


class _OfRecording:
    """An accumulator that passes the recording as the output."""

    def __init__(self, judge: Accumulator):
        self._judge = judge

    def add(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> None:
        assert source is not None
        self._judge.add(source, reference, None)

    def result(self) -> dict[str, Any]:
        return {f"{UNPROCESSED}{name}": value for name, value in self._judge.result().items()}


def real(array: np.ndarray) -> np.ndarray:
    """Return numbers of frames as ``float64[numbers]``."""
    if np.iscomplexobj(array):
        raise NoValueError("there are complex numbers, and this metric judges real ones")
    return np.asarray(array, np.float64).ravel()


#: A function from a piece of the output, the reference and the recording to sums ``float64[size]``.
SumsOf = Callable[[np.ndarray, np.ndarray | None, np.ndarray | None], Any]


class Sums:
    """An accumulator of sums over pieces.

    ``of`` returns the sums ``float64[size]`` of a piece, ``join`` combines two sums, and ``values`` computes the
    result.
    """

    def __init__(self, size: int, of: SumsOf, values: Callable[[np.ndarray], dict[str, Any]], join: Any = np.add):
        self._sums, self._of, self._values, self._join = np.zeros(size), of, values, join

    def add(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> None:
        """Add the sums of a piece."""
        self._sums = self._join(self._sums, self._of(output, reference, source))

    def result(self) -> dict[str, Any]:
        """Return the values of the sums."""
        return self._values(self._sums)


#: The longest recording in seconds, to bound memory.
LIMIT = 120.0

#: A function of a whole output ``[frames, ...]``, the reference (None without a reference) and frames per second.
Judgement = Callable[[np.ndarray, "np.ndarray | None", Any], Any]


class WholeRecording:
    """An accumulator that keeps the frames of a recording up to a limit, for a function of whole recordings."""

    def __init__(self, name: str, function: Judgement, rate: float, limit: float):
        self._name, self._function, self._rate, self._limit = name, function, rate, limit
        self._outputs: list[np.ndarray] = []
        self._references: list[np.ndarray] = []
        self._count = 0

    def add(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> None:
        """Keep the frames."""
        self._count += len(output)
        if self._count > self._limit * self._rate:
            self._outputs, self._references = [], []
            raise NoValueError(f"the recording is longer than {self._limit:g} s, this metric's limit")
        self._outputs.append(np.array(output))
        if reference is not None:
            self._references.append(np.array(reference))

    def result(self) -> dict[str, Any]:
        """Return the number or numbers of the function, by column."""
        if not self._outputs:
            raise NoValueError("the output is empty")
        reference = np.concatenate(self._references) if self._references else None
        result = self._function(np.concatenate(self._outputs), reference, self._rate)
        if isinstance(result, Mapping):
            return {f"{self._name}_{key}": _number(f"{self._name}[{key!r}]", value) for key, value in result.items()}
        return {self._name: _number(self._name, result)}


def _number(what: str, value: Any) -> float:
    """Convert a number or an array with one number to float, and None to NaN."""
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
    """Make a metric from a function of whole recordings.

    Args:
        function: a function from the output ``[frames, ...]``, the reference (None without a reference) and the frames
            per second to a number, or a dict of numbers. The message of an exception becomes a note of the row.
        called: the name of the column; for a dict of numbers, columns are called this name, an underscore, and the key.
        output: the judged output; by default the first output.
        limit: seconds of the longest judged recording. Memory must hold this length for each recording of a batch.
        needs_reference: True if a recording without a reference has no value.
        unit: the unit, for people.
        higher_is_better: None if neither direction is better.
        options: values besides the name that determine the metric.

    Raises:
        InputError: the limit is not positive.
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
        options={"function": _identity(function), **(options or {}), "limit": limit},
    )


def _identity(function: Any) -> list[Any]:
    """Return the name of a function, and the arguments that are bound to the function."""
    if isinstance(function, functools.partial):
        return [*_identity(function.func), list(function.args), function.keywords]
    kind = function if hasattr(function, "__qualname__") else type(function)
    return [f"{kind.__module__}:{kind.__qualname__}"]
