"""The evaluation of a table that another program wrote: transcripts, or scores, beside references."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from jaxrnn._files.messages import near
from jaxrnn._files.stores import Location, location
from jaxrnn.audio.corpus import COLUMNS, OK, POLARS_ERRORS, Item, read_table
from jaxrnn.errors import InputError
from jaxrnn.evaluation.evaluation import REPORT, check_main, check_packages
from jaxrnn.evaluation.metrics import OF_TABLES, Metric, NoValueError, built
from jaxrnn.evaluation.parts import Parts, Row, frame_of
from jaxrnn.evaluation.report import EXAMPLES, write_report, write_summary
from jaxrnn.evaluation.results import Results, read_results, results_of, write_results
from jaxrnn.evaluation.summary import check_slices
from jaxrnn.version import __version__

#: Types of columns.
_TYPES = {str: pl.String, float: pl.Float64}


class TableEvaluation:
    """The evaluation of a table; arguments as in `evaluate_table`.

    Attributes:
        parts: the finished work, in the results folder.
    """

    def __init__(
        self,
        table: Location | str,
        metrics: Sequence[Metric],
        out: Location,
        *,
        slices: Sequence[str] = (),
        title: str | None = None,
        main: str | None = None,
        examples: int = EXAMPLES,
    ):
        path = location(table)
        self.metrics, self._slices = _of_tables(metrics), tuple(slices)
        self._page = {"title": title, "main": main, "examples": examples}
        reads = {name: kind for metric in self.metrics for name, kind in metric.reads.items()}
        self._rows = _rows_of(path, reads)
        check_slices(slices, [*self._rows.columns, *COLUMNS])
        for metric in self.metrics:
            for name in (metric.name, *(column.name for column in metric.columns)):
                if name in self._rows.columns:
                    raise InputError(
                        f"{path} has a column {name!r}, and so has the metric {metric.name}: give the metric another "
                        "name with 'called'"
                    )
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        self.parts = Parts(out, {"table": digest, "metrics": [metric.facts for metric in self.metrics]})

    def run(self) -> dict[str, Any]:
        """Judge all rows, and return the times for the report.

        Raises:
            InputError: a value does not fit the options of a metric, or the folder cannot be written.
        """
        began = time.monotonic()
        with self.parts.writing():
            self.parts.begin({"jaxrnn": __version__})
            if not self.parts.finished():
                rows = [self._judged(row) for row in self._rows.iter_rows(named=True)]
                counts = [metric.pool.key for metric in self.metrics if metric.pool is not None]
                self.parts.finish(0, frame_of(rows, range(len(rows)), counts))
        return {"seconds": time.monotonic() - began, "seconds_of_recordings": 0.0, "times_real_time": None}

    def _judged(self, row: Row) -> Row:
        """Return the row of the results: the reference, values by metric, counts, and notes with reasons."""
        first = next(iter(self.metrics[0].reads))
        judged = dict.fromkeys(COLUMNS) | {"id": row["id"], "path": row.get("path"), "status": OK}
        judged["reference"] = None if row[first] is None else str(row[first])
        reasons: dict[str, list[str]] = {}
        for metric in self.metrics:
            assert metric.of_row is not None, "others are refused before"
            judged |= dict.fromkeys(column.name for column in metric.columns)
            try:
                values = metric.of_row(*(row[name] for name in metric.reads))
            except NoValueError as error:
                reasons.setdefault(str(error), []).append(metric.name)
                continue
            unknown = [key for key, value in values.items() if isinstance(value, float) and math.isnan(value)]
            judged |= values | dict.fromkeys(unknown)
        judged["notes"] = "; ".join(f"{', '.join(names)}: {note}" for note, names in reasons.items()) or None
        return judged

    def conclude(self, times: Mapping[str, Any], baseline: Results | None = None) -> Results:
        """Write the tables, the report and the summaries, as `Evaluation.conclude`."""
        folder = self.parts.folder
        rows = self._rows.select("id", pl.exclude(COLUMNS)).iter_rows(named=True)
        items = [Item(row.pop("id"), folder, None, row) for row in rows]
        facts = dict(self.parts.environment or {})
        results = results_of(folder.name, self.parts.scan(), items, self.metrics, slices=self._slices, facts=facts)
        write_results(results, folder)
        write_summary(results, folder)
        results = dataclasses.replace(read_results(folder), name=folder.name)
        write_report(results, folder / REPORT, baseline=baseline, times=times, **self._page)
        return results


def evaluate_table(
    table: Location | str,
    metrics: Sequence[Metric | str],
    out: Location | str,
    *,
    slices: Sequence[str] = (),
    against: Location | str | None = None,
    title: str | None = None,
    main: str | None = None,
) -> Results:
    r"""Judge texts or scores that another program wrote, with the intervals, comparison and report of `evaluate`.

    Example::

        with open("whisper.csv", "w") as file:
            print("reference,hypothesis", "good morning,good evening", "go left,go left", sep="\n", file=file)
        results = evaluate_table("whisper.csv", ["wer", "cer"], "runs/whisper")
        print(results.document["corpus"]["wer"]["values"]["wer"])  # 0.25: one of four words

    Args:
        table: a CSV or Parquet file, here or by URL, with a row for each recording or trial. The metrics read the
            columns ``reference`` and ``hypothesis``, or ``label`` and ``score``, or those that their options name. A
            column ``id`` pairs the rows of two tables; by default, rows have numbers. A column ``path`` names
            recordings for the report. All other columns are passed on.
        metrics: metrics that judge rows, such as `wer`, `cer`, `eer` and `detection`, or their names.
        out: the results folder, here or by URL.
        slices: columns of the table to group results by.
        against: the results folder of another table of the same recordings, for a comparison in the report.
        title: the title of the report.
        main: the metric that ranks rows; by default the first.

    Returns:
        The results; values over the whole table are in ``document["corpus"]``.

    Raises:
        InputError: the table cannot be read or lacks a column, a metric judges no rows, or the folder belongs to
            another evaluation.
        MissingPackageError: a metric, tables or the report need a package that is not installed.
    """
    check_packages()
    judges = built(metrics)
    check_main(judges, main)
    baseline = None if against is None else read_results(against)
    evaluation = TableEvaluation(table, judges, location(out), slices=slices, title=title, main=main)
    return evaluation.conclude(evaluation.run(), baseline)


def _of_tables(metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """Return metrics of rows; the rates of a detector have no value for a row, only over the table."""
    if not metrics:
        raise InputError("a table needs metrics that judge its columns, such as wer, cer or eer")
    for metric in metrics:
        if metric.of_row is None:
            able = ", ".join(OF_TABLES)
            raise InputError(f"the metric {metric.name} judges outputs of a system, not a table; for tables: {able}")
        if [each.name for each in metrics].count(metric.name) > 1:
            raise InputError(f"two metrics are called {metric.name!r}: give one of them another name with 'called'")
    return tuple(
        dataclasses.replace(metric, columns=()) if float in metric.reads.values() else metric for metric in metrics
    )


def _rows_of(path: Location, reads: Mapping[str, type]) -> pl.DataFrame:
    """Return the rows of a table with ids, sorted by id, and with the types that the metrics read."""
    rows = read_table(path, [name for name, kind in reads.items() if kind is str], "table")
    for name in reads:
        if name not in rows.columns:
            listed = ", ".join(rows.columns)
            raise InputError(f"{path} has no column {name!r}{near(name, rows.columns)}; its columns are {listed}")
    if rows.is_empty():
        raise InputError(f"{path} has no rows")
    if "id" not in rows.columns:
        width = len(str(rows.height))
        rows = rows.with_columns(id=pl.Series([f"{number:0{width}d}" for number in range(1, rows.height + 1)]))
    try:
        typed = [pl.col(name).cast(_TYPES[kind]) for name, kind in reads.items()]
        rows = rows.with_columns(pl.col("id").cast(pl.String), *typed)
    except POLARS_ERRORS as error:
        numbers = ", ".join(name for name, kind in reads.items() if kind is float)
        raise InputError(f"{path}: expected numbers in {numbers or 'no column'}: {error}") from error
    if rows["id"].has_nulls() or rows["id"].is_duplicated().any():
        raise InputError(f"{path}: each row needs an id of its own")
    return rows.sort("id")
