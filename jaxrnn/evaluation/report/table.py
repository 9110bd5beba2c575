"""Tables of a report, and the texts of their cells."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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


#: What stands for no value.
NONE = "\N{EN DASH}"

#: Characters of a foreign text that are shown; an ellipsis stands for the rest.
LONGEST = 160


def is_number(value: Any) -> bool:
    """Whether a cell is a number; a truth value is a word."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def defined(values: Sequence[Any]) -> list[float]:
    """The finite numbers among the cells of a column."""
    return [float(value) for value in values if is_number(value) and math.isfinite(value)]


def decimals(values: Sequence[Any]) -> int:
    """Digits after the point for a column of numbers: four significant digits of the largest, none for integers."""
    numbers = defined(values)
    if all(number == round(number) for number in numbers):
        return 0
    largest = max(map(abs, numbers))
    return min(8, max(1, 3 - math.floor(math.log10(largest))))


def number(value: Any, places: int | None = None, *, sign: bool = False) -> str:
    """A number with digits after the point; by default as many as it needs."""
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if places is None:
        places = decimals([value])
    if abs(value) >= 1e12:
        return f"{value:.4g}"
    text = f"{value:{'+' if sign else ''}.{places}f}"
    return text.lstrip("+-") if not float(text) else text


def whole(count: int) -> str:
    """A count, in groups of three digits."""
    return f"{count:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def text(value: Any, longest: int = LONGEST) -> str:
    """Foreign text that can be shown and written: without control characters, valid Unicode, and not too long."""
    shown = "".join(character if _is_shown(character) else "\N{REPLACEMENT CHARACTER}" for character in str(value))
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def _is_shown(character: str) -> bool:
    # Cc: control, Cs: halves of pairs, as undecodable file names have them.
    return character in "\t\n" or unicodedata.category(character) not in ("Cc", "Cs")


def words(value: Any) -> str:
    """A cell of a table, whatever it holds."""
    if value is None:
        return NONE
    return number(value) if is_number(value) else text(value)


def labelled(label: str, unit: str) -> str:
    """A foreign name with its unit."""
    return text(f"{label} ({unit})" if unit else label, 80)


def duration(seconds: float | None) -> str:
    """A length of time: ``4.2 s``, ``3 min 05 s``, ``2.31 h``."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    if round(seconds) < 3600:
        return f"{round(seconds) // 60} min {round(seconds) % 60:02d} s"
    return f"{seconds / 3600:.2f} h"


def size(count: int) -> str:
    """A number of bytes."""
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.1f} kB"


def flat(facts: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Nested facts as one list of names and values; a name is ``models.dtln_1.onnx``."""
    entries: list[tuple[str, str]] = []
    for name, value in facts.items():
        label = f"{before}{name}"
        if isinstance(value, list | tuple) and any(isinstance(entry, Mapping) for entry in value):
            value = {str(place): entry for place, entry in enumerate(value, 1)}
        if isinstance(value, Mapping) and value:
            entries += flat(value, f"{label}.")
        elif isinstance(value, list | tuple):
            entries.append((text(label), ", ".join(map(words, value)) or NONE))
        else:
            entries.append((text(label), text(value, 2000) if isinstance(value, str) else words(value)))
    return entries
