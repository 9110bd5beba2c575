"""Tables of a report, and the texts of their cells."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxrnn.evaluation.summary import LEAST

#: Digits of the values of a corpus as a whole.
POOLED = 4


class TableCell(NamedTuple):
    """A cell of a table: a number with an interval, or a recording's id.

    ``exact`` is a number for JavaScript, empty without a value; ``file`` is the file number on the page.
    """

    text: str
    interval: str = ""
    exact: str | None = None
    file: int | None = None
    path: str = ""


def numeric(
    value: float | None,
    low: float | None = None,
    high: float | None = None,
    places: int | None = None,
    *,
    sign: bool = False,
    is_few: bool = False,
) -> TableCell:
    """Return a cell with a number and an optional interval; ``is_few`` is True for too few values for an interval.

    ``places`` are digits after the point, by default as many as the number needs.
    """
    ends = [number(end, places, sign=sign) for end in (low, high)]
    interval = ("too few" if is_few else "") if NONE in ends else " … ".join(ends)
    exact = "" if value is None or math.isnan(value) else repr(value).replace("inf", "Infinity")
    return TableCell(number(value, places, sign=sign), interval, exact)


@dataclass(frozen=True)
class ReportTable:
    """A table by columns, each a header and cells: words, or a `TableCell`."""

    label: str
    columns: Sequence[tuple[str, Sequence[Any]]]

    @property
    def heads(self) -> list[tuple[str, bool]]:
        """Headers, and True for columns of numbers."""
        return [(head, any(getattr(cell, "exact", None) is not None for cell in cells)) for head, cells in self.columns]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The cells of each row."""
        return list(zip(*(cells for _, cells in self.columns), strict=True))


def column(label: str, values: Sequence[Any], unit: str = "") -> tuple[str, list[Any]]:
    """Return a column of numbers if all values are numbers, else of words."""
    present = [value for value in values if value is not None]
    if present and all(map(is_number, present)):
        places = decimals(present)
        return labelled(label, unit), [numeric(value, places=places) for value in values]
    return labelled(label, unit), [words(value) for value in values]


def estimate(entry: Mapping[str, Any], value: str, places: int, *, sign: bool = False) -> TableCell:
    """Return the number of an entry under a key, with the interval."""
    is_few = 0 < entry.get("n", LEAST) < LEAST
    return numeric(entry[value], entry["low"], entry["high"], places, sign=sign, is_few=is_few)


def numbers(
    entries: Sequence[Mapping[str, Any]], key: str, places: Sequence[int | None] | None = None, *, sign: bool = False
) -> list[TableCell]:
    """Return the numbers of entries under a key; ``places`` are digits for each entry."""
    digits = places or [None] * len(entries)
    return [numeric(entry[key], places=each, sign=sign) for entry, each in zip(entries, digits, strict=True)]


def places_of(*numbers: float | None) -> int:
    """Return the digits for means of numbers: at least two, because means of integers are not integers."""
    return max(2, decimals(numbers))


#: The spelling of characters in LaTeX that have a meaning there, or no sign.
LATEX_ESCAPES = {
    **{each: f"\\{each}" for each in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\N{EN DASH}": "--",
    "\N{INFINITY}": r"$\infty$",
    "\n": " ",
}

#: The text for a missing value.
NONE = "\N{EN DASH}"

#: Characters of a foreign text that are shown; an ellipsis stands for the rest.
LONGEST = 160


def is_number(value: Any) -> bool:
    """Return True for numbers; booleans are words."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def defined(values: Sequence[Any]) -> list[float]:
    """Return the finite numbers among cells."""
    return [float(value) for value in values if is_number(value) and math.isfinite(value)]


def decimals(values: Sequence[Any]) -> int:
    """Return the digits after the point for a column: four significant digits of the largest, 0 for integers."""
    numbers = defined(values)
    if all(number == round(number) for number in numbers):
        return 0
    largest = max(map(abs, numbers))
    return min(8, max(1, 3 - math.floor(math.log10(largest))))


def number(value: Any, places: int | None = None, *, sign: bool = False) -> str:
    """Format a number, by default with as many digits as needed."""
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
    """Format a count in groups of three digits."""
    return f"{count:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def text(value: Any, longest: int = LONGEST) -> str:
    """Return foreign text without control characters, as valid Unicode of limited length."""
    # Cc: control, Cs: halves of pairs, as undecodable file names have them.
    hidden = {each for each in set(str(value)) - {"\t", "\n"} if unicodedata.category(each) in ("Cc", "Cs")}
    shown = "".join("\N{REPLACEMENT CHARACTER}" if each in hidden else each for each in str(value))
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def words(value: Any) -> str:
    """Format any cell."""
    if value is None:
        return NONE
    return number(value) if is_number(value) else text(value)


def labelled(label: str, unit: str) -> str:
    """Return a foreign name with a unit."""
    return text(f"{label} ({unit})" if unit else label, 80)


def duration(seconds: float | None) -> str:
    """Format a duration: ``4.2 s``, ``3 min 05 s``, ``2.31 h``."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    if round(seconds) < 3600:
        return f"{round(seconds) // 60} min {round(seconds) % 60:02d} s"
    return f"{seconds / 3600:.2f} h"


def size(count: int) -> str:
    """Format a number of bytes."""
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.1f} kB"


def flat(facts: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Flatten nested facts to names and values, with names such as ``models.dtln_1.onnx``."""
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
