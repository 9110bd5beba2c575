"""Functions that compute a number from the rows of a result, or None if rows are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks.results import BEST, Row, geometric_mean
from benchmarks.start import IMPORT_JAX

Found = Callable[[list[Row]], float | None]


def mean_of_named(names: tuple[str, ...], contender: str) -> Found:
    """Find the geometric mean of the ratios to a contender over the rows of these names; all names are required."""

    def found(rows: list[Row]) -> float | None:
        ratios = {row.name: row.ratios[contender] for row in rows if row.name in names and contender in row.ratios}
        return geometric_mean(ratios.values()) if len(ratios) == len(names) else None

    return found


def mean_of_groups(*groups: str, contender: str = BEST, rows_at_least: int = 4) -> Found:
    """Find the geometric mean of the ratios to a contender over all rows of these groups; none can be empty."""

    def found(rows: list[Row]) -> float | None:
        ratios = [(row.group, row.ratios[contender]) for row in rows if contender in row.ratios]
        kept = {group: [ratio for of, ratio in ratios if of == group] for group in groups}
        if any(len(those) < rows_at_least for those in kept.values()):
            return None
        return geometric_mean(ratio for those in kept.values() for ratio in those)

    return found


def whole(name: str, contender: str) -> Found:
    """Find the seconds of a start."""
    return lambda rows: _seconds(row.timings[contender].median for row in rows if _has(row, name, contender))


def stages(name: str, contender: str, *parts: str) -> Found:
    """Find the seconds of some stages of a start."""
    return lambda rows: _seconds(
        sum(row.stages[contender][part].median for part in parts)
        for row in rows
        if row.name == name and set(parts) <= row.stages.get(contender, {}).keys()
    )


def over_import(names: tuple[str, ...], contender: str) -> Found:
    """Find the seconds by which the slowest start of these networks exceeds ``import jax``."""

    def found(rows: list[Row]) -> float | None:
        over = [
            (row.timings[contender].median - row.timings[IMPORT_JAX].median) / 1e6
            for row in rows
            if any(_has(row, f"{name}, start", contender) for name in names)
        ]
        return max(over) if len(over) == len(names) else None

    return found


def smallest_fact(names: tuple[str, ...], fact: str) -> Found:
    """Find the smallest value of a fact over rows of these names; all rows must have the fact."""

    def found(rows: list[Row]) -> float | None:
        values = [row.facts[fact] for row in rows if row.name in names and row.facts.get(fact) is not None]
        return min(values) if len(values) == len(names) else None

    return found


def mean_fact(group: str, fact: str, rows_at_least: int) -> Found:
    """Find the geometric mean of a fact over the rows of a group."""

    def found(rows: list[Row]) -> float | None:
        values = [row.facts[fact] for row in rows if row.group == group and row.facts.get(fact) is not None]
        return geometric_mean(values) if len(values) >= rows_at_least else None

    return found


def _has(row: Row, name: str, contender: str) -> bool:
    return row.name == name and contender in row.timings


def _seconds(microseconds: Iterable[float]) -> float | None:
    return next((value / 1e6 for value in microseconds), None)
