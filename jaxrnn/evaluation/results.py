"""Results: rows, their table, and a document that summarises them; written as files and read again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrnn.briefs import brief
from jaxrnn.errors import InputError
from jaxrnn.evaluation.chain import AUDIO
from jaxrnn.evaluation.journal import Row, unit_rows, write_whole
from jaxrnn.evaluation.metrics import METRICS, Column, Metric, Pool
from jaxrnn.evaluation.slices import check_slices, slice_by
from jaxrnn.evaluation.statistics import pooled, summarise
from jaxrnn.evaluation.tables import frame, load_polars, metric_columns
from jaxrnn.locations import Location, location

if TYPE_CHECKING:
    import polars

#: The files in a folder of results, and the folder of outputs in it.
TABLE, DOCUMENT, OUTPUTS = "results.parquet", "results.json", "outputs"

#: The version of the document.
FORMAT = 1

#: The kinds of metrics that count.
_COUNTING = ("detection", "class_accuracy")


@brief
@dataclass(frozen=True)
class Results:
    """The results of one system on a corpus.

    Attributes:
        name: of the system.
        rows: a row for each recording, in the order of ids, with the counts of metrics.
        table: the same as a table, without counts.
        document: their summary, as ``results.json`` holds it: ``format``; ``facts``; ``metrics``, each with its facts
            and ``columns``; ``recordings``, numbers of them (``all``, ``failed``, ``noted``) and ``seconds``;
            ``summary``, statistics by column; ``corpus``, by metric that counts, the ``values`` of all recordings
            together, by column with ``value``, ``low`` and ``high``, and a ``curve``; ``slices``, by column a list of
            slices, each with its ``label`` and the same, without curves; and the ``rows`` of the table.
        pools: of the metrics that count, by name; the rows hold their counts.
        outputs: the folder of outputs; None where they were not kept.
    """

    name: str
    rows: Sequence[Row] = field(repr=False)
    table: polars.DataFrame = field(repr=False)
    document: Mapping[str, Any] = field(repr=False)
    pools: Mapping[str, Pool] = field(default_factory=dict, repr=False)
    outputs: Location | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of its metrics."""
        return tuple(columns_of(*self.document["metrics"]))

    def output(self, name: str) -> Location | str:
        """The sound that came out for a recording, or why there is none."""
        if self.outputs is None:
            return "Outputs were not kept."
        paths = [self.outputs / f"{name}.wav", self.outputs / f"{name}.{AUDIO}.wav"]
        return next((path for path in paths if path.is_file()), paths[0])


def columns_of(*metrics: Mapping[str, Any]) -> Iterator[Column]:
    """The columns of metrics that a document describes."""
    for metric in metrics:
        for column in metric["columns"]:
            yield Column(column["name"], column["unit"], column["higher_is_better"])


def results_of(
    name: str,
    rows: Sequence[Row],
    metrics: Sequence[Metric],
    *,
    slices: Sequence[str] = (),
    facts: Mapping[str, Any] | None = None,
    outputs: Location | None = None,
) -> Results:
    """The results that rows make.

    Args:
        name: of the system.
        rows: as `Evaluation.rows` returns them.
        metrics: by which they were judged.
        slices: columns to group results by.
        facts: of the run, but not its times, which differ from run to run.
        outputs: the folder of outputs; None where they were not kept.

    Raises:
        InputError: there is no such column to slice by.
        MissingPackageError: Polars is not installed.
    """
    rows = sorted(rows, key=lambda row: row["id"])
    table, columns = frame(rows, metrics), metric_columns(rows, metrics)
    check_slices(slices, table.columns)
    pools = {metric.name: metric.pool for metric in metrics if metric.pool is not None}

    def summary(places: np.ndarray, *, curves: bool = False) -> dict[str, Any]:
        part = table[places]
        return {
            "recordings": {
                "all": len(part),
                "failed": part["error"].count(),
                "noted": part["notes"].count(),
                "seconds": sum(part["seconds"].drop_nulls()),
            },
            "summary": {column.name: summarise(part[column.name].to_numpy()) for column in columns},
            "corpus": {
                metric: _corpus(pool, [rows[place] for place in places], curves) for metric, pool in pools.items()
            },
        }

    described = [
        metric.facts | {"columns": [vars(column) for column in metric_columns(rows, [metric])]} for metric in metrics
    ]
    document = {
        "format": FORMAT,
        "facts": dict(facts or {}),
        "metrics": described,
        **summary(np.arange(len(rows)), curves=True),
        "slices": {
            name: [{"label": label, **summary(places)} for label, places in slice_by(table[name]).items()]
            for name in slices
        },
        "rows": table.to_dicts(),
    }
    return Results(name, rows, table, _plain(document), pools, outputs)


def _corpus(pool: Pool, rows: Sequence[Row], curves: bool) -> dict[str, Any]:
    """The values of all rows together, and their curve."""
    counts = [row[pool.key] for row in rows if row.get(pool.key) is not None]
    corpus: dict[str, Any] = {"values": pooled(pool, counts)}
    if curves:
        corpus["curve"] = {} if pool.curve is None else pool.curve(sum(map(pool.sums, counts), np.zeros(pool.size)))
    return corpus


def _plain(value: Any) -> Any:
    """A value as plain JSON; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def write_results(folder: Location, results: Results) -> None:
    """Write ``results.parquet`` and ``results.json``, each whole or not at all. Equal rows give equal bytes.

    Raises:
        InputError: the disk is full, or the folder cannot be written.
    """
    write_whole(folder / TABLE, results.table.write_parquet)
    text = json.dumps(results.document, indent=1, allow_nan=False)
    write_whole(folder / DOCUMENT, lambda file: file.write_text(text, encoding="ascii"))


def read_results(folder: Location | str) -> Results:
    """Read what `write_results` wrote, with the counts of rows if the evaluation ran in this folder.

    Raises:
        InputError: the folder holds no results, or they cannot be read.
        StoreError: it is in a store that cannot be reached.
    """
    pl, folder = load_polars(), location(folder)
    for name in (TABLE, DOCUMENT):
        if not (folder / name).is_file():
            raise InputError(f"{folder} holds no results: there is no {name} in it")
    try:
        with (folder / TABLE).open("rb") as file:
            table = pl.read_parquet(file)
        document = json.loads((folder / DOCUMENT).read_text())
        metrics = [_metric(metric) for metric in document["metrics"] if metric.get("kind") in _COUNTING]
        pools = {metric.name: metric.pool for metric in metrics if metric.pool is not None}
        keys = [pool.key for pool in pools.values()]
        counts = {row["id"]: {key: row[key] for key in keys if key in row} for row in unit_rows(folder) if keys}
    except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise InputError(f"the results in {folder} cannot be read: {error}") from error
    rows = [row | counts.get(row["id"], {}) for row in table.to_dicts()]
    outputs = folder / OUTPUTS
    return Results(folder.name, rows, table, document, pools, outputs if outputs.is_dir() else None)


def _metric(description: Mapping[str, Any]) -> Metric:
    """A metric from its description in a document."""
    options = {key: value for key, value in description.items() if key not in ("name", "kind", "columns")}
    return METRICS[description["kind"]](called=description["name"], **options)
