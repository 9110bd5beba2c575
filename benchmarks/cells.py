"""Cells of the results page: medians and ratios as text, and tables of several machines as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.results import SUBJECT, Result, Row, geometric_mean, is_peer
from benchmarks.tables import UNITS, digits

NONE = "-"


@dataclass(frozen=True)
class Table:
    """A table of the page: a title with the unit, and cells by the name of the row and the heading."""

    title: str
    rows: Mapping[str, Mapping[str, str]]


def merged(tables: Mapping[str, Table]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of one table from tables by machine, with rows of the machines one below the other."""
    headings = list(dict.fromkeys(key for table in tables.values() for cells in table.rows.values() for key in cells))
    names = list(dict.fromkeys(name for table in tables.values() for name in table.rows))
    rows = [
        [name, machine, *(table.rows[name].get(heading, NONE) for heading in headings)]
        for name in names
        for machine, table in tables.items()
        if name in table.rows
    ]
    return ["", "machine", *headings], rows


def beside(
    result: Result,
    rows: Sequence[Row],
    forms: Sequence[str] | None = None,
    *,
    unit: str | None = None,
    facts: Sequence[str] = (),
) -> dict[str, dict[str, str]]:
    """Return a table row for each result row: medians, and the ratio of jaxrnn to each contender.

    ``forms`` are the forms of jaxrnn, by default all forms. ``unit`` is the unit of times, by default the unit of the
    result. ``facts`` are further columns.
    """
    names = [name for name in result.contenders if is_peer(name) or forms is None or name in forms]
    names = [name for name in names if any(name in row.timings for row in rows)]
    return {
        row.name: {name: median_and_ratio(row, name, unit or result.unit) for name in names}
        | {key: fact(row.facts, key) for key in facts}
        for row in rows
    }


def median_and_ratio(row: Row | None, contender: str, unit: str) -> str:
    """Format the median of a contender, and the ratio of jaxrnn to this contender."""
    found = ratio(row, contender)
    return median(row, contender, unit) + ("" if found == NONE else f" [{found}]")


def median(row: Row | None, contender: str, unit: str) -> str:
    """Format the median of a contender."""
    timing = row.timings.get(contender) if row is not None else None
    return NONE if timing is None else digits(timing.median / UNITS[unit])


def ratio(row: Row | None, contender: str) -> str:
    """Format the ratio of jaxrnn to a contender."""
    value = row.ratios.get(contender) if row is not None else None
    return NONE if value is None else f"{value:.2f}"


def mean(rows: Iterable[Row | None], contender: str) -> str:
    """Format the geometric mean of the ratios to a contender over the rows with this contender."""
    ratios = [row.ratios[contender] for row in rows if row is not None and contender in row.ratios]
    return f"{geometric_mean(ratios):.2f}" if ratios else NONE


def means(rows: Sequence[Row], cells: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return a last row for `beside`: the means over some of its rows."""
    names = dict.fromkeys(name for row in rows for name in cells[row.name] if name != SUBJECT)
    return {name: f"[{found}]" for name in names if (found := mean(rows, name)) != NONE}


def fact(facts: Mapping[str, object], key: str) -> str:
    """Format a fact."""
    value = facts.get(key)
    return digits(value) if isinstance(value, float) else NONE if value is None else str(value)
