"""What a metric is: a name, its columns, and an accumulator that takes a recording piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from jaxrnn.errors import JaxrnnError

#: What one recording counted, to be added up over a corpus: lists of whole numbers by name.
Counts = Mapping[str, Any]


class NoValueError(JaxrnnError):
    """A metric has no value for a recording: it is null in its row, and the message, which says why, the row's note."""


class Accumulator(Protocol):
    """A metric of one recording that comes in pieces."""

    def add(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> None:
        """The frames that follow.

        Args:
            output: frames ``[frames, ...]`` of the output.
            reference: the same frames of the reference; None where there is none.
            source: the same frames of the recording itself; None unless the metric asks for them.

        Raises:
            NoValueError: the metric has no value for this recording.
        """
        ...

    def result(self) -> dict[str, Any]:
        """Values by column of the recording's row, NaN where one is not defined; and, under its own name, counts.

        Raises:
            NoValueError: the metric has no value for this recording.
        """
        ...


class Pool(Protocol):
    """What the counts of many recordings say together."""

    def values(self, counts: Sequence[Counts], weights: np.ndarray) -> dict[str, np.ndarray]:
        """Values by column, each ``float64[draws]``.

        Args:
            counts: of each recording.
            weights: ``[draws, recordings]``, how often each recording is in a draw.
        """
        ...

    def curve(self, counts: Sequence[Counts]) -> dict[str, list[float]]:
        """A curve over the whole corpus, as columns of equal length."""
        ...


@dataclass(frozen=True)
class Column:
    """A column that a metric gives.

    Attributes:
        name: of the column.
        unit: what it is in, for people.
        higher_is_better: None where neither is.
    """

    name: str
    unit: str = ""
    higher_is_better: bool | None = True


@dataclass(frozen=True)
class Metric:
    """A metric by name.

    Attributes:
        name: of its column, or of what its columns have in common.
        start: given the frames a second of the output, an accumulator for one recording. It raises InputError for a
            rate that it cannot serve.
        output: which output it judges; None for the sound, or the only one.
        needs_reference: whether a recording without one has no result.
        unit: what it is in, for people.
        higher_is_better: None where neither is.
        needs_source: whether it wants the recording's own frames besides, which then are read once more.
        columns: what it gives, where that is not one column of its own name; those of a function that gives a
            dictionary are not known before, and begin with the name and an underscore.
        counts: the key in its results that holds counts; they are in no table.
        pool: what the counts of a corpus say together.
        options: what decides on its values besides its name.
    """

    name: str
    start: Callable[[Any], Accumulator]
    output: str | None = None
    needs_reference: bool = True
    unit: str = ""
    higher_is_better: bool | None = True
    needs_source: bool = False
    columns: tuple[Column, ...] = ()
    counts: str | None = None
    pool: Pool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def known_columns(self) -> tuple[Column, ...]:
        """Its columns as far as they are known before it has run."""
        return self.columns or (Column(self.name, self.unit, self.higher_is_better),)

    @property
    def facts(self) -> dict[str, Any]:
        """What distinguishes its values from another metric's, for a run's fingerprint."""
        return {"name": self.name, "output": self.output, **self.options}
