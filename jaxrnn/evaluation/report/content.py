"""What a report is made from, looked up in the ways its sections need."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxrnn.errors import InputError
from jaxrnn.evaluation.chain import AUDIO
from jaxrnn.evaluation.compare import PairedComparison
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.journal import OK, Row
from jaxrnn.evaluation.metrics.protocol import Column
from jaxrnn.evaluation.report.wording import defined, is_number, text
from jaxrnn.messages import near

#: Columns that every row has, and that have places of their own on the page.
OWN = ("id", "path", "reference", "seconds", "status", "error", "notes")


@dataclass(frozen=True)
class Results:
    """What one system gave.

    Attributes:
        name: of the system.
        rows: as `Evaluation.rows` or `read_results` gives them.
        said: what the rows say together: what `write_results` gives, or ``results.json`` holds.
        outputs: the folder of its outputs; None where they were not kept.
    """

    name: str
    rows: Sequence[Row]
    said: Mapping[str, Any]
    outputs: Path | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """What its metrics gave."""
        return tuple(columns_of(self.said["metrics"]))

    def output(self, name: str) -> Path | str:
        """The sound that came out for a recording, or why there is none."""
        if self.outputs is None:
            return "Outputs were not kept."
        paths = [self.outputs / f"{name}.wav", self.outputs / f"{name}.{AUDIO}.wav"]
        return next((path for path in paths if os.path.isfile(path)), paths[0])


@dataclass(frozen=True)
class PageLimits:
    """What a page holds at most.

    Attributes:
        examples: recordings to listen to, of the worst and of the best each.
        seconds: of each sound.
        megabytes: of sound in all, as it is encoded.
        rows: of the table of files.
    """

    examples: int = 5
    seconds: float = 10.0
    megabytes: float = 16.0
    rows: int = 10_000

    def __post_init__(self) -> None:
        for name in ("examples", "seconds", "megabytes", "rows"):
            if not getattr(self, name) >= 0:
                raise InputError(f"limits: {name} must be at least 0, not {getattr(self, name)}")


@dataclass(frozen=True)
class Content:
    """All that a report shows.

    Attributes:
        results: of the system.
        main: the metrics' column that tells best and worst; None where there is no metric.
        baseline: of a system that it is compared with.
        comparison: of both, the baseline first.
        corpus: the recordings, for their sounds.
        rate: samples a second of the system.
        limits: of the page.
    """

    results: Results
    main: Column | None
    baseline: Results | None = None
    comparison: PairedComparison | None = None
    corpus: Mapping[str, Item] = field(default_factory=dict)
    rate: int = 16_000
    limits: PageLimits = field(default_factory=PageLimits)

    @cached_property
    def names(self) -> tuple[str, str]:
        """The system's and the baseline's as the page shows them, never the same."""
        one, two = (text(each.name, 60) if each else "" for each in (self.results, self.baseline))
        return one, f"{two} (baseline)" if one == two else two

    @cached_property
    def rows(self) -> list[Row]:
        """All rows, by id; the index of a row in it is the number of its file on the page."""
        return sorted(self.results.rows, key=lambda row: row["id"])

    @cached_property
    def metrics(self) -> list[Column]:
        """The columns that recordings are judged by, the main one first."""
        return sorted(self.results.columns, key=lambda metric: metric != self.main)

    @cached_property
    def good(self) -> list[Row]:
        """Rows without an error, in the order in which they came."""
        return [row for row in self.results.rows if _is_good(row)]

    @cached_property
    def failed(self) -> list[Row]:
        """Rows with one."""
        return [row for row in self.results.rows if not _is_good(row)]

    @cached_property
    def columns(self) -> list[str]:
        """Columns besides the metrics and those that every row has, in the order in which they come."""
        metrics = (metric.name for metric in self.results.columns)
        known = {*OWN, *metrics, *(entry["name"] for entry in self.results.said["metrics"])}
        # What detectors count is a mapping, and no column for people.
        found = dict.fromkeys(
            name for row in self.results.rows for name, value in row.items() if not isinstance(value, Mapping)
        )
        return [name for name in found if name not in known]

    @cached_property
    def _values(self) -> dict[str, list[Any]]:
        return {}

    @cached_property
    def _others(self) -> dict[str, Row]:
        rows = self.baseline.rows if self.baseline is not None else ()
        return {row["id"]: row for row in rows if _is_good(row)}

    def values(self, name: str) -> list[Any]:
        """A column of all rows, always the same list; None for those with an error."""
        return self._values.setdefault(name, [row.get(name) if _is_good(row) else None for row in self.rows])

    def beside(self, name: str) -> list[Any]:
        """The same column of the baseline, where both systems had no error."""
        return [self._others.get(row["id"], {}).get(name) if _is_good(row) else None for row in self.rows]

    def change(self, name: str) -> list[float | None]:
        """How much more it is than of the baseline, where both have a finite one."""
        both = [defined(pair) for pair in zip(self.values(name), self.beside(name), strict=True)]
        return [pair[0] - pair[1] if len(pair) == 2 else None for pair in both]

    def ranked(self) -> list[Row]:
        """Rows that have the main metric, worst first; lowest first where no end of it is the better one."""
        if self.main is None:
            return []
        name, sign = self.main.name, -1 if self.main.higher_is_better is False else 1
        rows = [row for row in self.good if is_number(row.get(name)) and not math.isnan(row[name])]
        return sorted(rows, key=lambda row: (sign * row[name], row["id"]))

    def sounds(self, row: Row) -> dict[str, Path | str]:
        """The sounds of a recording by what they are, or why there is none."""
        name, item = row["id"], self.corpus.get(row["id"])
        found: dict[str, Path | str] = {"input": item.path if item is not None else Path(row["path"])}
        if self.baseline is None:
            found["output"] = self.results.output(name)
        else:
            for shown, results in zip(self.names, (self.results, self.baseline), strict=True):
                found[f"output of {shown}"] = results.output(name)
        if item is not None and item.reference is not None:
            found["reference"] = item.reference
        return found


def _is_good(row: Row) -> bool:
    return row.get("status", OK) == OK


def pooled_in(said: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Values that all recordings together have, by column, of a corpus or a slice."""
    return {name: value for metric in said["corpus"].values() for name, value in metric["values"].items()}


def main_of(said: Mapping[str, Any], name: str | None) -> Column | None:
    """The column of a metric's name or of its own; by default the first.

    Raises:
        InputError: there is none of that name.
    """
    columns = list(columns_of(said["metrics"]))
    if name is None:
        return columns[0] if columns else None
    found = {column.name: column for column in columns}
    for metric in said["metrics"]:
        for column in columns_of([metric]):
            found.setdefault(metric["name"], column)
    if name not in found:
        raise InputError(
            f"main: there is no metric {name!r}{near(name, found)}; there are: {', '.join(found) or 'none'}"
        )
    return found[name]


def columns_of(metrics: Iterable[Mapping[str, Any]]) -> Iterator[Column]:
    """The metrics' columns, as the results' document has them."""
    for metric in metrics:
        for column in metric["columns"]:
            yield Column(column["name"], column["unit"], column["higher_is_better"])
