"""Results as files: a table with a row for each recording, and a JSON document with their summary."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrnn.errors import InputError, optional_package
from jaxrnn.evaluation.counted import counting_metrics, with_counts
from jaxrnn.evaluation.journal import Row, write_whole
from jaxrnn.evaluation.metrics.checking import RESERVED
from jaxrnn.evaluation.metrics.protocol import Column, Metric
from jaxrnn.evaluation.slices import as_text
from jaxrnn.evaluation.statistics import Resampling
from jaxrnn.evaluation.summary import overview

if TYPE_CHECKING:
    import polars

#: The files in a folder of results.
TABLE, DOCUMENT, CSV = "results.parquet", "results.json", "results.csv"

#: The version of what `results.json` holds.
FORMAT = 1


def _polars() -> Any:
    with optional_package("polars", "tables of results", "evaluate"):
        import polars
    return polars


def metric_columns(rows: Sequence[Row], metrics: Sequence[Metric]) -> tuple[Column, ...]:
    """The columns of the metrics: those that they declare, and those that a caller's own functions have named."""
    known = {column.name for metric in metrics for column in metric.columns}
    known |= {key for metric in metrics for key in (metric.name, metric.counts) if key} | set(RESERVED)
    columns: list[Column] = []
    for metric in metrics:
        named = ()
        if not metric.columns and all(row.get(metric.name) is None for row in rows):
            keys = dict.fromkeys(key for row in rows for key in row if key.startswith(f"{metric.name}_"))
            named = tuple(
                Column(key, metric.unit, metric.higher_is_better)
                for key in sorted(keys)
                if key not in known and all(isinstance(row.get(key), int | float | None) for row in rows)
            )
        columns += named or metric.known_columns
    return tuple(columns)


def frame(rows: Sequence[Row], metrics: Sequence[Metric] = ()) -> polars.DataFrame:
    """Rows as a table in the order of their ids: the common columns, the manifest's columns, the metrics' columns.

    The columns of metrics are always ``Float64``, null where there is no value. Counts are left out.
    """
    pl = _polars()
    rows = sorted(rows, key=lambda row: row["id"])
    measured = [column.name for column in metric_columns(rows, metrics)]
    hidden = {metric.counts for metric in metrics} | {metric.name for metric in metrics} - set(measured)
    others = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in {*RESERVED, *measured}]
    series = [
        pl.Series(name, [row.get(name) for row in rows], pl.Float64)
        if name == "seconds"
        else _texts(pl, name, [row.get(name) for row in rows])
        for name in RESERVED
    ]
    series += [_other(pl, key, [row.get(key) for row in rows]) for key in others if key not in hidden]
    for name in measured:
        values = [row.get(name) for row in rows]
        series.append(pl.Series(name, [None if value is None else float(value) for value in values], pl.Float64))
    return pl.DataFrame(series)


def _other(pl: Any, name: str, values: Sequence[Any]) -> Any:
    """A column of the manifest: Boolean, Int64, Float64, or else text."""
    known = [value for value in values if value is not None]
    kinds = {type(value) for value in known}
    if kinds == {bool}:
        return pl.Series(name, values, pl.Boolean)
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in known):
        return pl.Series(name, values, pl.Int64)
    if kinds and kinds <= {int, float}:
        return pl.Series(name, [None if value is None else float(value) for value in values], pl.Float64)
    return _texts(pl, name, [None if value is None else as_text(value) for value in values])


def _texts(pl: Any, name: str, values: Sequence[str | None]) -> Any:
    """A column of text. Bytes of file names that are not UTF-8 become question marks."""
    texts = [None if value is None else value.encode("utf-8", "replace").decode() for value in values]
    return pl.Series(name, texts, pl.String)


def plain(value: Any) -> Any:
    """A value as plain JSON; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def document(
    rows: Sequence[Row],
    metrics: Sequence[Metric],
    *,
    slices: Sequence[str] = (),
    facts: Mapping[str, Any] | None = None,
    resampling: Resampling | None = None,
) -> dict[str, Any]:
    """The whole summary of results, as plain values.

    Args:
        rows: as `Evaluation.rows` gives them.
        metrics: by which they were judged.
        slices: columns to group results by.
        facts: what is known of the run, such as its latency.
        resampling: how confidence intervals are computed.

    Returns:
        ``format``; ``facts``; ``metrics``, each with its facts and ``columns``; what `overview` gives (``recordings``,
        ``summary``, ``corpus``, ``slices``); and ``rows`` as the table has them.
    """
    table = frame(rows, metrics)
    return plain(
        {
            "format": FORMAT,
            "facts": dict(facts or {}),
            "metrics": [
                metric.facts
                | {
                    "columns": [
                        {"name": column.name, "unit": column.unit, "higher_is_better": column.higher_is_better}
                        for column in metric_columns(rows, [metric])
                    ]
                }
                for metric in metrics
            ],
            **overview(rows, metrics, metric_columns(rows, metrics), slices=slices, resampling=resampling),
            "rows": table.to_dicts(),
        }
    )


def write_results(
    folder: Path,
    rows: Sequence[Row],
    metrics: Sequence[Metric],
    *,
    slices: Sequence[str] = (),
    facts: Mapping[str, Any] | None = None,
    resampling: Resampling | None = None,
    csv: bool = False,
) -> dict[str, Any]:
    """Write ``results.parquet`` and ``results.json``, each whole or not at all. Equal rows give equal bytes.

    Args:
        folder: the folder of results.
        rows: as `Evaluation.rows` gives them.
        metrics: by which they were judged.
        slices: columns to group results by.
        facts: what is known of the run, but not its times, which differ from run to run.
        resampling: how confidence intervals are computed.
        csv: whether to write ``results.csv`` too.

    Returns:
        What `document` gives.

    Raises:
        InputError: there is no such column to slice by, or the disk is full.
        MissingPackageError: Polars is not installed.
    """
    results = document(rows, metrics, slices=slices, facts=facts, resampling=resampling)
    table = frame(rows, metrics)
    write_whole(folder / TABLE, table.write_parquet)
    if csv:
        write_whole(folder / CSV, table.write_csv)
    text = json.dumps(results, indent=1, allow_nan=False)
    write_whole(folder / DOCUMENT, lambda file: file.write_text(text, encoding="ascii"))
    return results


def read_results(folder: Path) -> tuple[list[Row], tuple[Column, ...], tuple[Metric, ...]]:
    """Read what `write_results` wrote: the rows, the metrics' columns, and the metrics that count.

    The rows have counts if the evaluation ran in this folder.

    Raises:
        InputError: the folder holds no results, or they cannot be read.
    """
    pl = _polars()
    for name in (TABLE, DOCUMENT):
        if not (folder / name).is_file():
            raise InputError(f"{folder} holds no results: there is no {name} in it")
    try:
        rows = pl.read_parquet(folder / TABLE).to_dicts()
        metrics = json.loads((folder / DOCUMENT).read_text())["metrics"]
        columns = tuple(_columns(metrics))
        counting = counting_metrics(metrics)
    except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise InputError(f"the results in {folder} cannot be read: {error}") from error
    return with_counts(folder, rows, counting), columns, counting


def _columns(metrics: Iterable[Mapping[str, Any]]) -> Iterable[Column]:
    for metric in metrics:
        for column in metric["columns"]:
            yield Column(column["name"], column["unit"], column["higher_is_better"])
