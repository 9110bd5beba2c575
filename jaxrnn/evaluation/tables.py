"""The rows of an evaluation as a Polars table, with one type for each column."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxrnn.errors import optional_package
from jaxrnn.evaluation.journal import COLUMNS, Row
from jaxrnn.evaluation.metrics import Column, Metric

if TYPE_CHECKING:
    import polars


def load_polars() -> Any:
    """The package Polars.

    Raises:
        MissingPackageError: it is not installed.
    """
    with optional_package("polars", "tables of results", "evaluate"):
        import polars
    return polars


def metric_columns(rows: Sequence[Row], metrics: Sequence[Metric]) -> tuple[Column, ...]:
    """The columns of metrics: those that they declare, and those that a caller's own functions have named."""
    known = {column.name for metric in metrics for column in metric.columns}
    known |= {*COLUMNS, *_not_in_tables(metrics)}
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


def _not_in_tables(metrics: Sequence[Metric]) -> set[str]:
    """Keys of rows that are no columns: counts, and the common names of several columns."""
    return {metric.name for metric in metrics} | {metric.pool.key for metric in metrics if metric.pool}


def frame(rows: Sequence[Row], metrics: Sequence[Metric] = ()) -> polars.DataFrame:
    """Rows as a table in the order of their ids: the common columns, the manifest's columns, the metrics' columns.

    The columns of metrics are always ``Float64``, null where there is no value. Counts are left out.
    """
    pl = load_polars()
    rows = sorted(rows, key=lambda row: row["id"])
    measured = [column.name for column in metric_columns(rows, metrics)]
    hidden = {*COLUMNS, *measured, *_not_in_tables(metrics)}
    others = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in hidden]
    types = {name: pl.Float64 if name == "seconds" else pl.String for name in COLUMNS}
    types |= {name: _type(pl, [row.get(name) for row in rows]) for name in others}
    types |= dict.fromkeys(measured, pl.Float64)
    return pl.DataFrame(
        [
            pl.Series(name, [None if row.get(name) is None else _value(pl, row[name], dtype) for row in rows], dtype)
            for name, dtype in types.items()
        ]
    )


def _type(pl: Any, values: Sequence[Any]) -> Any:
    """The type of a manifest's column: Boolean, Int64, Float64, or else text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pl.Boolean
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in values if value is not None):
        return pl.Int64
    return pl.Float64 if kinds and kinds <= {int, float} else pl.String


def _value(pl: Any, value: Any, dtype: Any) -> Any:
    if dtype == pl.String:
        # Lists and the like are the same text before and after they were in a file of JSON.
        text = json.dumps(value, default=str) if isinstance(value, bool | list | tuple | dict) else str(value)
        # Bytes of file names that are not UTF-8 become question marks.
        return text.encode("utf-8", "replace").decode()
    return float(value) if dtype == pl.Float64 else value
