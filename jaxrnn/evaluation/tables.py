"""Rows of an evaluation as a table in the order of ids, with one type per column.

Rows come in any order, and may exceed memory: the first pass learns the columns, the second pass writes the table.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrnn._files.messages import first_line
from jaxrnn._files.stores import Location, local_copy
from jaxrnn.errors import InputError, optional_package
from jaxrnn.evaluation.journal import COLUMNS, Row, write_whole
from jaxrnn.evaluation.metrics import Column, Metric

if TYPE_CHECKING:
    import polars

#: Rows that are in memory at once as dictionaries.
BLOCK = 100_000


def load_polars() -> Any:
    """Import Polars."""
    with optional_package("polars", "tables of results", "evaluate"):
        import polars
    return polars


class Columns:
    """The columns of a table: common columns, columns of the manifest, and columns of metrics.

    Columns of metrics are always ``Float64``, null without a value. Counts are left out.
    """

    def __init__(self, rows: Iterable[Row], metrics: Sequence[Metric] = ()):
        self._metrics = metrics
        hidden = {metric.name for metric in metrics} | {metric.pool.key for metric in metrics if metric.pool}
        self._known = {*COLUMNS, *hidden, *(column.name for metric in metrics for column in metric.columns)}
        #: By key, the types of values, and the position in the first row, by id, with this key.
        self._kinds: dict[str, set[type]] = {}
        self._first: dict[str, tuple[str, int]] = {}
        self._valued: set[str] = set()
        self.count = 0
        for row in rows:
            self.count += 1
            for place, (key, value) in enumerate(row.items()):
                if key in self._known:
                    if value is not None:
                        self._valued.add(key)
                    continue
                # Integers beyond 64 bits count as objects.
                is_huge = type(value) is int and not -(2**63) <= value < 2**63
                self._kinds.setdefault(key, set()).add(object if is_huge else type(value))
                self._first[key] = min(self._first.get(key, (row["id"], place)), (row["id"], place))
        measured = {column.name for metric in metrics for column in self.of(metric)}
        self.others = [key for key in sorted(self._first, key=self._first.__getitem__) if key not in measured]

    def of(self, metric: Metric) -> tuple[Column, ...]:
        """Return the columns of a metric: declared columns, or the columns that a function of the user has named."""
        if not metric.by_key or metric.name in self._valued:
            return metric.columns
        numbers = {int, float, bool, type(None)}
        named = sorted(
            key for key, kinds in self._kinds.items() if key.startswith(f"{metric.name}_") and kinds <= numbers
        )
        return tuple(dataclasses.replace(metric.columns[0], name=key) for key in named) or metric.columns

    @property
    def measured(self) -> list[Column]:
        """The columns of all metrics."""
        return [column for metric in self._metrics for column in self.of(metric)]

    def frame(self, rows: Iterable[Row]) -> polars.DataFrame:
        """Return rows as a table in the order of ids."""
        pl = load_polars()
        rows = sorted(rows, key=lambda row: plain_text(row["id"]))
        types = {name: pl.Float64 if name == "seconds" else pl.String for name in COLUMNS}
        types |= {name: self._type(name) for name in self.others}
        types |= {column.name: pl.Float64 for column in self.measured}
        return pl.DataFrame(
            [
                pl.Series(name, [_value(pl, row.get(name), dtype) for row in rows], dtype)
                for name, dtype in types.items()
            ]
        )

    def _type(self, name: str) -> Any:
        """Return the type of a manifest's column: Boolean, Int64, Float64, or else text."""
        pl, kinds = load_polars(), self._kinds[name] - {type(None)}
        if kinds == {bool}:
            return pl.Boolean
        if kinds == {int}:
            return pl.Int64
        return pl.Float64 if kinds and kinds <= {int, float} else pl.String


def _value(pl: Any, value: Any, dtype: Any) -> Any:
    if value is None:
        return None
    if dtype == pl.String:
        # Lists and dictionaries become JSON, the same text before and after a round trip through a JSON file.
        return plain_text(
            json.dumps(value, default=str) if isinstance(value, bool | list | tuple | dict) else str(value)
        )
    return float(value) if dtype == pl.Float64 else value


def plain_text(text: str) -> str:
    """Return text as valid Unicode: bytes of file names that are not UTF-8 become question marks."""
    return text.encode("utf-8", "replace").decode()


def write_table(path: Location, rows: Iterable[Row], columns: Columns) -> None:
    """Write rows as a Parquet file; the same rows in any order give the same bytes.

    ``columns`` are learned from the same rows. The rows may exceed memory.
    """

    def write(file: Path) -> None:
        if columns.count <= BLOCK:
            save(columns.frame(rows).write_parquet, file)
            return
        # The folder is temporary. Polars sorts on disk what does not fit into memory.
        left, blocks = iter(rows), []
        while block := list(itertools.islice(left, BLOCK)):
            blocks.append(file.with_name(f"{len(blocks)}.{file.name}"))
            save(columns.frame(block).write_parquet, blocks[-1])
        table = load_polars().scan_parquet(blocks, glob=False).sort("id", "path")
        save(functools.partial(table.sink_parquet, row_group_size=BLOCK), file)

    write_whole(path, write)


def save(write: Callable[[Path], object], file: Path) -> None:
    """Call a writer of Polars, and convert errors such as a full disk to `OSError`."""
    try:
        write(file)
    except load_polars().exceptions.PolarsError as error:
        raise OSError(first_line(error)) from error


def read_table(path: Location) -> polars.LazyFrame:
    """Scan the table that `write_table` wrote; columns are read on demand."""
    return load_polars().scan_parquet(local_copy(path), glob=False)


def collected(table: polars.LazyFrame) -> polars.DataFrame:
    """Read a table of results; raise InputError for a damaged file, or a table without the columns."""
    try:
        return table.collect()
    except load_polars().exceptions.PolarsError as error:
        raise InputError(f"a table of results cannot be read: {first_line(error)}; evaluate again") from error
