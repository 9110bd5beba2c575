"""What a page is made of: sections of text, tables, plots, facts and sounds. The template shows them, and no more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxrnn.evaluation.report.plots import Plot
from jaxrnn.evaluation.report.sounds import Sound
from jaxrnn.evaluation.report.wording import NONE, cell, decimals, is_number, number, text


@dataclass(frozen=True)
class Tile:
    """A figure at the head of the page."""

    label: str
    text: str
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what it shows.
        numeric: whether that is a number.
        sort: what it is sorted by, where that is not the text; empty for nothing.
        hint: what is said on pointing at it.
        low: of an interval around the number, with ``high``.
    """

    text: str
    numeric: bool = False
    sort: str | None = None
    hint: str = ""
    low: str = ""
    high: str = ""


@dataclass(frozen=True)
class Column:
    """The head of a column."""

    label: str
    numeric: bool = False
    hint: str = ""


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row is its head."""

    label: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    name: str = ""
    sortable: bool = False
    filter: bool = False
    kind: str = "table"


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    note: bool = False
    kind: str = "text"


@dataclass(frozen=True)
class Heading:
    """A heading below the section's."""

    text: str
    kind: str = "heading"


@dataclass(frozen=True)
class Beside:
    """Small tables side by side, each below its label."""

    tables: Sequence[Table]
    kind: str = "beside"


@dataclass(frozen=True)
class Plots:
    """Plots side by side."""

    plots: Sequence[Plot]
    kind: str = "plots"


@dataclass(frozen=True)
class Facts:
    """Names and what they stand for."""

    facts: Sequence[tuple[str, str]]
    kind: str = "facts"


@dataclass(frozen=True)
class Example:
    """One recording to look at and listen to."""

    id: str
    values: Sequence[tuple[str, str]]
    sounds: Sequence[Sound]


@dataclass(frozen=True)
class Examples:
    """Recordings one below the other."""

    examples: Sequence[Example]
    kind: str = "examples"


@dataclass(frozen=True)
class Section:
    """A part of the page with a title, and a name for links to it."""

    name: str
    title: str
    parts: list[Any] = field(default_factory=list)


def numeric_cell(value: Any, places: int | None = None, *, sign: bool = False) -> Cell:
    """A number, or none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return Cell(NONE, True, "")
    kept = repr(value) if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
    return Cell(number(value, places, sign=sign), True, kept)


def column_of(label: str, values: Sequence[Any], unit: str = "", hint: str = "") -> tuple[Column, list[Cell]]:
    """A column of a table: of numbers where all are, else of words."""
    shown = text(f"{label} ({unit})" if unit else label, 60)
    present = [value for value in values if value is not None]
    if present and all(map(is_number, present)):
        places = decimals(present)
        return Column(shown, True, hint), [numeric_cell(value, places) for value in values]
    return Column(shown, False, hint), [Cell(cell(value), sort="" if value is None else None) for value in values]


def table_of(
    label: str,
    columns: Sequence[tuple[Column, Sequence[Cell]]],
    *,
    name: str = "",
    sortable: bool = False,
    filtered: bool = False,
) -> Table:
    """A table of its columns."""
    rows = list(zip(*(cells for _, cells in columns), strict=True))
    return Table(label, [head for head, _ in columns], rows, name, sortable, filtered)


def flat(facts: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Facts within facts as one list: ``models.dtln_1.onnx``."""
    found: list[tuple[str, str]] = []
    for name, value in facts.items():
        label = f"{before}{name}"
        if isinstance(value, Mapping) and value:
            found += flat(value, f"{label}.")
        elif isinstance(value, list | tuple) and any(isinstance(entry, Mapping) for entry in value):
            found += flat({str(place): entry for place, entry in enumerate(value, 1)}, f"{label}.")
        elif isinstance(value, list | tuple):
            found.append((text(label), ", ".join(cell(entry) for entry in value) or NONE))
        else:
            found.append((text(label), cell(value) if not isinstance(value, str) else text(value, 2000)))
    return found
