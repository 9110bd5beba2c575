"""A table of a report: columns of words and of numbers, for the template to show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxrnn.evaluation.report.wording import NONE, decimals, is_number, labelled, number, words

#: Digits of the values of a corpus as a whole.
POOLED = 4


class Number(NamedTuple):
    """A number of a table, with its interval if it has one.

    Attributes:
        value: None or NaN where there is none.
        low: of its interval.
        high: of its interval.
        places: digits after the point; by default as many as this number needs.
        sign: whether to show a plus.
        instead: a text to show in its place.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    places: int | None = None
    sign: bool = False
    instead: str = ""

    @property
    def text(self) -> str:
        """The number for people."""
        return self.instead or number(self.value, self.places, sign=self.sign)

    @property
    def interval(self) -> str:
        """The ends of its interval; empty where there is none."""
        low, high = (number(end, self.places, sign=self.sign) for end in (self.low, self.high))
        return "" if NONE in (low, high) else f"{low} … {high}"

    @property
    def exact(self) -> str:
        """The number for JavaScript; empty where there is none."""
        missing = self.value is None or math.isnan(self.value)
        return "" if missing else repr(self.value).replace("inf", "Infinity")


class FileName(NamedTuple):
    """A recording's id in a table, the path of its file, and its number on the page."""

    text: str
    path: str
    file: int


@dataclass(frozen=True)
class ReportTable:
    """A table by columns, each a head and its cells: words, `Number` or `FileName`."""

    label: str
    columns: Sequence[tuple[str, Sequence[Any]]]

    @property
    def heads(self) -> list[tuple[str, bool]]:
        """Heads, and whether their columns are of numbers."""
        return [(head, any(isinstance(cell, Number) for cell in cells)) for head, cells in self.columns]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The cells of each row."""
        return list(zip(*(cells for _, cells in self.columns), strict=True))


def column(label: str, values: Sequence[Any], unit: str = "") -> tuple[str, list[Any]]:
    """A column of a table of results: of numbers where all values are, else of words."""
    present = [value for value in values if value is not None]
    if present and all(map(is_number, present)):
        places = decimals(present)
        return labelled(label, unit), [Number(value, places=places) for value in values]
    return labelled(label, unit), [words(value) for value in values]


def estimate(entry: Mapping[str, Any], value: str, places: int, *, sign: bool = False) -> Number:
    """A number of an entry, by its name, with its interval."""
    return Number(entry[value], entry["low"], entry["high"], places, sign)


def places_of(*numbers: float | None) -> int:
    """Digits for means of numbers: at least two, as means of integers are not whole."""
    return max(2, decimals(numbers))
