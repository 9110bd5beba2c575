"""The content of a report: results, a comparison, and the rows of the page.

A small corpus has all rows on the page. A large corpus has errors, the worst and the best recordings, and a random
sample.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrnn._files.messages import near
from jaxrnn._files.stores import Location, location
from jaxrnn.errors import InputError
from jaxrnn.evaluation.compare import PairedComparison
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.metrics import Column
from jaxrnn.evaluation.report.table import defined, is_number, text
from jaxrnn.evaluation.results import Results, document_columns
from jaxrnn.evaluation.tables import COLUMNS, OK, PLACE, Row, collected

if TYPE_CHECKING:
    import polars

#: Recordings to listen to, of the worst and of the best each.
EXAMPLES = 5


@dataclass(frozen=True)
class Content:
    """Everything that a report shows. ``main`` ranks recordings; the comparison has the baseline first."""

    results: Results
    main: Column | None
    baseline: Results | None = None
    comparison: PairedComparison | None = None
    corpus: Iterable[Item] = ()
    rate: int = 16_000
    examples: int = EXAMPLES
    _columns: dict[tuple[str, bool], list[Any]] = field(default_factory=dict, init=False)
    _plotted: dict[int, tuple[Sequence[Any], list[Any]]] = field(default_factory=dict, init=False)

    @cached_property
    def names(self) -> tuple[str, str]:
        """The names of the system and of the baseline on the page, always different."""
        one, two = (text(each.name, 60) if each else "" for each in (self.results, self.baseline))
        return one, f"{two} (baseline)" if one == two else two

    @cached_property
    def _selected(self) -> tuple[list[Row], list[bool]]:
        return select(self.results, self.main, self.examples)

    @property
    def rows(self) -> Sequence[Row]:
        """The rows of the page, by id; the index of a row is the file number on the page."""
        return self._selected[0]

    @cached_property
    def count(self) -> int:
        """The number of all recordings."""
        return self.results.document["recordings"]["all"]

    @cached_property
    def drawn(self) -> int:
        """The number of recordings in the plots."""
        return sum(self._selected[1])

    @cached_property
    def metrics(self) -> list[Column]:
        """The columns of metrics, the main column first."""
        return sorted(self.results.columns, key=lambda metric: metric != self.main)

    @cached_property
    def good(self) -> list[Row]:
        """Rows without an error."""
        return [row for row in self.rows if _is_good(row)]

    @cached_property
    def failed(self) -> list[Row]:
        """Rows with an error."""
        return [row for row in self.rows if not _is_good(row)]

    @cached_property
    def columns(self) -> list[str]:
        """The columns of the manifest."""
        known = {*COLUMNS, *(column.name for column in self.results.columns)}
        return [name for name in self.results.scan.collect_schema().names() if name not in known]

    @cached_property
    def _baseline_rows(self) -> dict[str, Row]:
        rows = rows_at(self.baseline.scan, "id", [row["id"] for row in self.rows]) if self.baseline is not None else ()
        return {row["id"]: row for row in rows if _is_good(row)}

    def values(self, name: str, *, baseline: bool = False) -> list[Any]:
        """Return a column of the rows, or of the baseline, with None for errors; always the same list object."""
        if (name, baseline) not in self._columns:
            others = self._baseline_rows
            rows = [others.get(row["id"], {}) if baseline else row for row in self.rows]
            self._columns[name, baseline] = [
                other.get(name) if _is_good(row) else None for row, other in zip(self.rows, rows, strict=True)
            ]
        return self._columns[name, baseline]

    def plotted(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return values of the random sample, and None for other rows, which were chosen by value."""
        if all(self._selected[1]):
            return values
        pairs = zip(values, self._selected[1], strict=True)
        return self._plotted.setdefault(id(values), (values, [value if drawn else None for value, drawn in pairs]))[1]

    def change(self, name: str) -> list[float | None]:
        """Return a column minus the column of the baseline; None unless both are finite."""
        pairs = map(defined, zip(self.values(name), self.values(name, baseline=True), strict=True))
        return [pair[0] - pair[1] if len(pair) == 2 else None for pair in pairs]

    def ranked(self) -> list[Row]:
        """Return rows with the main metric, worst first; lowest first if neither direction is better."""
        if self.main is None:
            return []
        name, sign = self.main.name, -1 if self.main.higher_is_better is False else 1
        rows = [row for row in self.good if is_number(row.get(name)) and not math.isnan(row[name])]
        return sorted(rows, key=lambda row: (sign * row[name], row["id"]))

    @cached_property
    def _items(self) -> dict[str, Item]:
        shown = {row["id"] for row in self.rows}
        return {item.id: item for item in self.corpus if item.id in shown}

    def sounds(self, row: Row) -> dict[str, Location | str]:
        """Return the sounds of a recording by label, or the reason for the absence of a sound."""
        name, item = row["id"], self._items.get(row["id"])
        sounds: dict[str, Location | str] = {"input": item.path if item is not None else location(row["path"])}
        if self.baseline is None:
            sounds["output"] = self.results.output(name)
        else:
            for system, results in zip(self.names, (self.results, self.baseline), strict=True):
                sounds[f"output of {system}"] = results.output(name)
        if item is not None and item.reference is not None:
            sounds["reference"] = item.reference
        return sounds


def _is_good(row: Row) -> bool:
    return row.get("status", OK) == OK


def pooled_in(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return values over all recordings by column, from the summary of a corpus or a slice."""
    return {name: value for metric in summary["corpus"].values() for name, value in metric["values"].items()}


def main_of(results: Results, name: str | None) -> Column | None:
    """Return the column that ranks recordings, by the name of a column or metric; by default the first."""
    if name is None:
        return next(iter(results.columns), None)
    known = {column.name: column for column in results.columns}
    for metric in results.document["metrics"]:
        for column in document_columns(metric):
            known.setdefault(metric["name"], column)
    if name not in known:
        raise InputError(
            f"main: there is no metric {name!r}{near(name, known)}; there are: {', '.join(known) or 'none'}"
        )
    return known[name]


#: Recordings in the table of files, and those in the plots.
ROWS, DRAWN = 10_000, 10_000

#: The seed of the recordings in the plots.
SEED = 0


def select(results: Results, main: Column | None, examples: int) -> tuple[list[Row], list[bool]]:
    """Return rows in the order of ids, and a mask of the rows in the plots."""
    count = results.document["recordings"]["all"]
    if count <= max(ROWS, DRAWN):
        rows = results.table.to_dicts()
        return rows, [True] * len(rows)
    is_good = (results.column("status") == OK).to_numpy()
    failed = np.flatnonzero(~is_good)[:ROWS]
    order = np.flatnonzero(is_good)
    if main is not None:
        values = results.column(main.name).to_numpy()[order]
        # Worst first, without NaN; lowest first if neither direction is better.
        ranks = np.argsort(-values if main.higher_is_better is False else values, kind="stable")
        order = order[ranks[: len(ranks) - int(np.isnan(values).sum())]]
    drawn = np.random.default_rng(SEED).choice(count, DRAWN, replace=False)
    places = np.unique(np.concatenate([failed, order[:ROWS], order[len(order) - min(len(order), examples) :], drawn]))
    rows = rows_at(results.scan.with_row_index(PLACE), PLACE, places.tolist())
    chosen = set(drawn.tolist())
    return rows, [row.pop(PLACE) in chosen for row in rows]


def rows_at(table: polars.LazyFrame, key: str, values: Collection[Any]) -> list[Row]:
    """Return the rows of a table with one of the values in a column."""
    import polars

    return collected(table.filter(polars.col(key).is_in(list(values)))).to_dicts()
