"""What a metric is: a name, its columns, and an accumulator that takes a recording piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from jaxrnn._files.messages import brief
from jaxrnn.errors import JaxrnnError


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
