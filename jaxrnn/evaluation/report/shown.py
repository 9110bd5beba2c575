"""What a report shows: one table of the recordings of the page, beside those of a baseline.

A small corpus has all rows on the page. A large corpus has errors, the worst and the best recordings, and a random
sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from jaxrnn._files.messages import near
from jaxrnn._files.stores import Location, location
from jaxrnn.errors import InputError
from jaxrnn.evaluation.compare import PairedComparison
from jaxrnn.evaluation.corpus import COLUMNS, OK, Item
from jaxrnn.evaluation.metrics import Column
from jaxrnn.evaluation.parts import Row, collected
from jaxrnn.evaluation.report.table import text
from jaxrnn.evaluation.results import Results, document_columns

#: Recordings in the table of files, and those in the plots.
ROWS, DRAWN = 10_000, 10_000

#: The seed of the recordings in the plots.
SEED = 0

#: Columns beside those of the results, whose names begin with a sign that no other column has: the number of a file on
#: the page, whether the file has no error, and whether the plots have the file.
FILE, GOOD, IS_DRAWN = "\N{NUMBER SIGN}file", "\N{NUMBER SIGN}good", "\N{NUMBER SIGN}drawn"


def of_baseline(name: str) -> str:
    """Return the name of the column with the baseline's values of a metric."""
    return f"\N{NUMBER SIGN}baseline {name}"


def change_of(name: str) -> str:
    """Return the name of the column with the values of a metric minus those of the baseline."""
    return f"\N{NUMBER SIGN}change {name}"


class Shown:
    """Everything that a report shows.

    ``main`` ranks recordings; the comparison has the baseline first.

    Attributes:
        names: the names of the system and of the baseline on the page, always different.
        metrics: the columns of metrics, the main column first.
        rows: a table with the rows of the page, by id.
    """

    def __init__(
        self,
        results: Results,
        main: Column | None,
        baseline: Results | None,
        comparison: PairedComparison | None,
        corpus: Iterable[Item],
        rate: int,
        examples: int,
    ):
        self.results, self.main, self.baseline, self.comparison = results, main, baseline, comparison
        self.rate, self.examples, self._corpus = rate, examples, corpus
        one, two = (text(each.name, 60) if each else "" for each in (results, baseline))
        self.names = one, f"{two} (baseline)" if one == two else two
        self.metrics = sorted(results.columns, key=lambda metric: metric != main)
        self.count: int = results.document["recordings"]["all"]
        known = {*COLUMNS, *(column.name for column in results.columns)}
        #: The columns of the manifest.
        self.columns = [name for name in results.scan.collect_schema().names() if name not in known]
        self.rows = self._beside_baseline(self._selected()).with_row_index(FILE)

    def _selected(self) -> pl.DataFrame:
        table = self.results.scan.with_columns((pl.col("status") == OK).fill_null(False).alias(GOOD))
        if self.count <= max(ROWS, DRAWN):
            return collected(table).with_columns(pl.lit(True).alias(IS_DRAWN))
        table = table.with_row_index(FILE)
        places = [collected(part.select(FILE))[FILE] for part in (table.filter(~pl.col(GOOD)), self.ranked(table))]
        drawn = np.random.default_rng(SEED).choice(self.count, DRAWN, replace=False)
        chosen = [places[0][:ROWS], places[1][:ROWS], places[1].tail(self.examples), drawn]
        table = collected(table.filter(pl.col(FILE).is_in(np.unique(np.concatenate(chosen)).tolist())))
        return table.with_columns(pl.col(FILE).is_in(drawn.tolist()).alias(IS_DRAWN)).drop(FILE)

    def _beside_baseline(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add columns of the baseline's values of metrics, and of the changes of finite values."""
        if self.baseline is None:
            return rows
        theirs, names = self.baseline.scan, [metric.name for metric in self.metrics]
        types = theirs.collect_schema()
        numbers = [pl.col(name) if types.get(name, pl.Null).is_numeric() else pl.lit(None) for name in names]
        others = theirs.filter(pl.col("status") == OK, pl.col("id").is_in(rows["id"].implode())).select(
            "id", *(each.cast(pl.Float64).alias(of_baseline(name)) for name, each in zip(names, numbers, strict=True))
        )
        rows = rows.join(collected(others), on="id", how="left", maintain_order="left")
        rows = rows.with_columns(pl.when(GOOD).then(pl.col(map(of_baseline, names))))
        both = [(pl.col(name), pl.col(of_baseline(name)), change_of(name)) for name in names]
        return rows.with_columns(pl.when(a.is_finite() & b.is_finite()).then(a - b).alias(name) for a, b, name in both)

    @cached_property
    def drawn(self) -> int:
        """The number of recordings in the plots."""
        return int(self.rows[IS_DRAWN].sum())

    @cached_property
    def failed(self) -> pl.DataFrame:
        """The rows with an error."""
        return self.rows.filter(~pl.col(GOOD))

    def ranked(self, table: Any) -> Any:
        """Return rows without an error, worst first; lowest first if neither direction is better."""
        table = table.filter(pl.col(GOOD))
        if self.main is None:
            return table
        value = pl.col(self.main.name)
        known = table.filter(value.is_not_null() & value.is_not_nan())
        return known.sort(value, descending=self.main.higher_is_better is False, maintain_order=True)

    @cached_property
    def _items(self) -> dict[str, Item]:
        shown = set(self.rows["id"])
        return {item.id: item for item in self._corpus if item.id in shown}

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
