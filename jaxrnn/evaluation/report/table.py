"""A table of a report: columns of words and of numbers, as they are before the template shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxrnn.evaluation.report.wording import NONE, decimals, is_number, labelled, number, words


class Number(NamedTuple):
    """A number of a table, with its interval if it has one.

    Attributes:
        value: None or NaN for none.
        low: of its interval.
        high: of its interval.
        places: digits after the point; None for as many as it needs alone.
        sign: whether a plus is shown.
        instead: what is shown in its place.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    places: int | None = None
    sign: bool = False
    instead: str = ""

    @property
    def text(self) -> str:
        """It as people read it."""
        return self.instead or number(self.value, self.places, sign=self.sign)

    @property
    def interval(self) -> str:
        """Its ends; empty for none."""
        low, high = (number(end, self.places, sign=self.sign) for end in (self.low, self.high))
        return "" if NONE in (low, high) else f"{low} … {high}"

    @property
    def exact(self) -> str:
        """It as JavaScript reads it; empty for none."""
        missing = self.value is None or math.isnan(self.value)
        return "" if missing else repr(self.value).replace("inf", "Infinity")


class FileName(NamedTuple):
    """A recording's id in a table, where its file lay, and its number on the page."""

    text: str
    path: str
    file: int


@dataclass(frozen=True)
class Table:
    """A table by columns, each a head and its cells: words, `Number` or `FileName`."""

    label: str
    columns: Sequence[tuple[str, Sequence[Any]]]

    @property
    def heads(self) -> list[tuple[str, bool]]:
        """Heads, and whether numbers are below them."""
        return [(head, any(isinstance(cell, Number) for cell in cells)) for head, cells in self.columns]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The cells of each row."""
        return list(zip(*(cells for _, cells in self.columns), strict=True))


def column(label: str, values: Sequence[Any], unit: str = "") -> tuple[str, list[Any]]:
    """A column of foreign values: of numbers where all are, else of words."""
    present = [value for value in values if value is not None]
    if present and all(map(is_number, present)):
        places = decimals(present)
        return labelled(label, unit), [Number(value, places=places) for value in values]
    return labelled(label, unit), [words(value) for value in values]


def estimate(entry: Mapping[str, Any], value: str, places: int, *, sign: bool = False) -> Number:
    """A number of that name with the interval beside it."""
    return Number(entry[value], entry["low"], entry["high"], places, sign)


def places_of(*numbers: float | None) -> int:
    """Digits for means of such numbers: two at least, as integers have means that are none."""
    return max(2, decimals(numbers))
