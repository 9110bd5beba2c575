"""Results: a table with a row per recording and a JSON summary, written as files and read again."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from jaxrnn._files.messages import as_json, short_repr
from jaxrnn._files.stores import Location, local_copy, location
from jaxrnn.audio.corpus import COLUMNS, PLACE, POLARS_ERRORS, Item, extra_columns
from jaxrnn.audio.waveforms import AUDIO
from jaxrnn.errors import InputError
from jaxrnn.evaluation.metrics import METRICS, Column, Metric, Pool
from jaxrnn.evaluation.parts import Row, collected, scan_counts, write_whole
from jaxrnn.evaluation.summary import check_slices, summary_of
from jaxrnn.steps.schemas import check, is_flag, is_size, is_text, or_none

#: The files in a folder of results, and the folder of outputs in it.
TABLE, DOCUMENT, OUTPUTS = "results.parquet", "results.json", "outputs"

#: Rows in a group of a Parquet file.
BLOCK = 100_000

#: The version of the document.
FORMAT = 1

#: The kinds of metrics that count.
_COUNTING = ("detection", "class_accuracy", "wer", "cer")

_number = or_none(lambda value: isinstance(value, (int, float)) and not isinstance(value, bool))
_STATISTICS = dict.fromkeys(("n", "missing", "infinite"), is_size) | dict.fromkeys(
    ("mean", "low", "high", "median", "deviation", "minimum", "maximum"), _number
)
_PART = {
    "recordings": {"all": is_size, "failed": is_size, "noted": is_size, "seconds": _number},
    "summary": {},
    "corpus": {},
}
#: The schema of a document.
_DOCUMENT = {
    **_PART,
    "facts": {},
    "metrics": [
        {"name": is_text, "columns": [{"name": is_text, "unit": is_text, "higher_is_better": or_none(is_flag)}]}
    ],
    "slices": {},
}


@short_repr
@dataclass(frozen=True)
class Results:
    """The results of a system on a corpus.

    Attributes:
        name: the name of the system.
        scan: the table, a row per recording in the order of ids; columns are read on demand.
        document: the summary, as in ``results.json``: ``format``; ``facts``; ``metrics``, each with facts and
            ``columns``; ``recordings``, numbers of recordings (``all``, ``failed``, ``noted``) and ``seconds``;
            ``summary``, statistics by column; ``corpus``, by metric that counts, the ``values`` over all recordings, by
            column with ``value``, ``low`` and ``high``, and a ``curve``; and ``slices``, by column a list of slices,
            each with a ``label`` and the same entries, without curves.
        pools: a dict from the name of each metric that counts to the pool.
        counted: the ids of recordings and their counts, in any order; None without counts.
        outputs: the folder of outputs; None if outputs were not kept.
    """

    name: str
    scan: pl.LazyFrame = field(repr=False)
    document: Mapping[str, Any] = field(repr=False)
    pools: Mapping[str, Pool] = field(default_factory=dict, repr=False)
    counted: pl.LazyFrame | None = field(default=None, repr=False)
    outputs: Location | None = None

    @cached_property
    def table(self) -> pl.DataFrame:
        """The table in memory."""
        return collected(self.scan)

    def column(self, name: str) -> pl.Series:
        """Return a column of the table."""
        return collected(self.scan.select(name))[name]

    @cached_property
    def rows(self) -> Sequence[Row]:
        """A row per recording in the order of ids, with the counts of metrics."""
        if self.counted is None:
            return self.table.to_dicts()
        counts = {row["id"]: row for row in collected(self.counted).to_dicts()}
        return [row | counts.get(row["id"], {}) for row in self.table.to_dicts()]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the metrics."""
        return tuple(column for metric in self.document["metrics"] for column in document_columns(metric))

    def output(self, name: str) -> Location | str:
        """Return the output sound of a recording, or the reason for its absence."""
        if self.outputs is None:
            return "Outputs were not kept."
        paths = [self.outputs / f"{name}.wav", self.outputs / f"{name}.{AUDIO}.wav"]
        # Unlike Path.is_file, os.path takes names that are too long for any file.
        are = [os.path.isfile(path) if isinstance(path, Path) else path.is_file() for path in paths]
        return paths[are.index(True)] if any(are) else paths[0]


def document_columns(metric: Mapping[str, Any]) -> list[Column]:
    """Return the columns of a metric in a document."""
    return [Column(column["name"], column["unit"], column["higher_is_better"]) for column in metric["columns"]]


def results_of(
    name: str,
    scan: pl.LazyFrame,
    corpus: Sequence[Item],
    metrics: Sequence[Metric],
    *,
    slices: Sequence[str] = (),
    facts: Mapping[str, Any] | None = None,
    outputs: Location | None = None,
) -> Results:
    """Make results of the rows of parts. ``facts`` leave out times, which differ from run to run."""
    pools = {metric.name: metric.pool for metric in metrics if metric.pool is not None}
    columns = {metric.name: columns_in(scan, metric) for metric in metrics}
    table = _joined(scan, corpus, metrics, [column.name for each in columns.values() for column in each])
    check_slices(slices, table.collect_schema().names())
    keys = [pool.key for pool in pools.values() if pool.key in scan.collect_schema()]
    counted = scan.select("id", *keys) if keys else None
    described = [metric.facts | {"columns": [vars(column) for column in columns[metric.name]]} for metric in metrics]
    document = {"format": FORMAT, "facts": dict(facts or {}), "metrics": described}
    measured = [column["name"] for metric in described for column in metric["columns"]]
    document |= summary_of(table, counted, measured, pools, slices)
    # Facts of the user may have any type: arrays become lists, and other objects text.
    text = json.dumps(document, default=lambda value: getattr(value, "tolist", value.__str__)())
    return Results(name, table, as_json(json.loads(text)), pools, counted, outputs)


def columns_in(scan: pl.LazyFrame, metric: Metric) -> tuple[Column, ...]:
    """Return the columns of a metric: declared columns, or the columns that a function of the user has named."""
    names = scan.collect_schema().names()
    if not metric.by_key or (metric.name in names and collected(scan.select(metric.name).drop_nulls().head(1)).height):
        return metric.columns
    named = sorted(name for name in names if name.startswith(f"{metric.name}_"))
    return tuple(dataclasses.replace(metric.columns[0], name=name) for name in named) or metric.columns


def _joined(
    scan: pl.LazyFrame, corpus: Sequence[Item], metrics: Sequence[Metric], measured: Sequence[str]
) -> pl.LazyFrame:
    """Return the table of results: common columns, further columns of the corpus, and columns of metrics."""
    extra = extra_columns(corpus)
    scan = scan.with_columns(
        **{name: pl.lit(None, pl.Float64) for name in measured if name not in scan.collect_schema()}
    )
    if extra.width:
        scan = scan.join(extra.with_row_index(PLACE).cast({PLACE: pl.Int64}).lazy(), on=PLACE, how="left").sort(
            "id", PLACE
        )
    hidden = {PLACE, *COLUMNS, *measured, *(metric.name for metric in metrics)}
    hidden |= {metric.pool.key for metric in metrics if metric.pool is not None}
    others = [name for name in scan.collect_schema().names() if name not in hidden and name not in extra.columns]
    return scan.select(*COLUMNS, *extra.columns, *others, *measured)


def write_results(results: Results, folder: Location) -> None:
    """Write ``results.parquet`` and ``results.json``, each whole or not at all. Equal rows give equal bytes.

    Args:
        results: the results.
        folder: the results folder.

    Raises:
        InputError: the disk is full, or the folder cannot be written.
    """
    # The table is never in memory as a whole.
    write_whole(folder / TABLE, functools.partial(results.scan.sink_parquet, row_group_size=BLOCK))
    text = json.dumps(results.document, indent=1, allow_nan=False)
    write_whole(folder / DOCUMENT, lambda file: file.write_text(text, encoding="ascii"))


def read_table(folder: Location) -> pl.LazyFrame:
    """Scan the table in a results folder; columns are read on demand."""
    return pl.scan_parquet(local_copy(folder / TABLE), glob=False)


def read_results(folder: Location | str) -> Results:
    """Read the results that `write_results` wrote, with the counts of rows if the evaluation ran in this folder.

    Args:
        folder: the results folder, here or by URL.

    Raises:
        InputError: the folder has no results, or the results cannot be read.
        StoreError: the store cannot be reached.
    """
    folder = location(folder)
    for name in (TABLE, DOCUMENT):
        if not (folder / name).exists():
            raise InputError(f"{folder} holds no results: there is no {name} in it")
    try:
        scan = read_table(folder)
        document = json.loads((folder / DOCUMENT).read_text())
        _check_document(document, scan.collect_schema())
        pools = {}
        for metric in document["metrics"]:
            if (kind := metric.get("kind")) in _COUNTING:
                options = {key: value for key, value in metric.items() if key not in ("name", "kind", "columns")}
                options = {key: value for key, value in options.items() if value is not None}
                if (pool := METRICS[kind](called=metric["name"], **options).pool) is not None:
                    pools[metric["name"]] = pool
    except (OSError, ValueError, KeyError, TypeError, RecursionError, *POLARS_ERRORS) as error:
        raise InputError(f"the results in {folder} cannot be read: {error}") from error
    outputs = folder / OUTPUTS
    counted = scan_counts(folder, [pool.key for pool in pools.values()]) if pools else None
    return Results(folder.name, scan, document, pools, counted, outputs if outputs.is_dir() else None)


def _check_document(document: Any, types: Mapping[str, Any]) -> None:
    """Check a document and the columns of the table for all parts that comparisons and reports read."""
    check(document, _DOCUMENT, "")
    measured = [column.name for metric in document["metrics"] for column in document_columns(metric)]
    for name, is_right in {
        **dict.fromkeys(("id", "path", "reference", "status", "error", "notes"), lambda kind: not kind.is_nested()),
        **dict.fromkeys(("seconds", *measured), lambda kind: kind.is_numeric()),
    }.items():
        if name not in types or not (is_right(types[name]) or types[name].is_(pl.Null)):
            raise ValueError(f"the table has no column {name!r} of the type that it needs")
    check(document["slices"], {name: [{**_PART, "label": is_text}] for name in document["slices"]}, "slices")
    for part in (document, *(part for parts in document["slices"].values() for part in parts)):
        check(part["summary"], dict.fromkeys(measured, _STATISTICS), "summary")
        check(part["corpus"], {name: {"values": {}} for name in part["corpus"]}, "corpus")
        for corpus in part["corpus"].values():
            check(
                corpus["values"],
                dict.fromkeys(corpus["values"], dict.fromkeys(("value", "low", "high"), _number)),
                "values",
            )
