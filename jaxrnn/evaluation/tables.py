"""Rows of an evaluation as Polars tables, with one type per column."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrnn._files.messages import first_line
from jaxrnn._files.stores import Location, local_copy
from jaxrnn.errors import InputError, optional_package
from jaxrnn.evaluation.corpus import Item, Manifest, columns_of, polars_errors

if TYPE_CHECKING:
    import polars

Row = dict[str, Any]

#: The first columns of every row, and the ``status`` of a recording with a result.
COLUMNS = ("id", "path", "reference", "seconds", "status", "error", "notes")
OK = "ok"

#: The column of the index in the corpus; no column of a manifest or of a metric has this name.
PLACE = "\N{NUMBER SIGN}place"

#: Rows in a group of a Parquet file, and rows with counts that are in memory at once.
BLOCK = 100_000


def load_polars() -> Any:
    """Import Polars."""
    with optional_package("polars", "tables of results", "evaluate"):
        import polars
    return polars


def frame_of(rows: Sequence[Row], places: Sequence[int], counts: Iterable[str] = ()) -> polars.DataFrame:
    """Return rows as a table: text in `COLUMNS`, counts in the columns ``counts``, numbers in all other columns."""
    pl, counts = load_polars(), tuple(counts)
    sums = pl.Struct({"at": pl.List(pl.Int32), "counts": pl.List(pl.Int64)})
    types = dict.fromkeys(COLUMNS, pl.String) | {"seconds": pl.Float64} | dict.fromkeys(counts, sums)
    names = dict.fromkeys([*COLUMNS, *counts, *(key for row in rows for key in row)])
    texts = {name for name in COLUMNS if types[name] == pl.String}
    columns = [pl.Series(PLACE, places, pl.Int64)]
    for name in names:
        values = [row.get(name) for row in rows]
        if name in texts:
            values = [None if value is None else plain_text(value) for value in values]
        columns.append(pl.Series(name, values, types.get(name, pl.Float64)))
    return pl.DataFrame(columns)


def scan_all(paths: Sequence[Path], first: polars.DataFrame) -> polars.LazyFrame:
    """Return the rows of a table and of Parquet files, with the columns of all, in the order of ids."""
    pl = load_polars()
    tables = [first.lazy()]
    if paths:
        schema: dict[str, Any] = {}
        for path in paths:
            schema |= pl.read_parquet_schema(path)
        tables.append(pl.scan_parquet(paths, glob=False, schema=schema, missing_columns="insert"))
    return pl.concat(tables, how="diagonal").sort("id", PLACE)


def extra_columns(corpus: Sequence[Item]) -> polars.DataFrame:
    """Return the further columns of a corpus, a row for each recording."""
    names = columns_of(corpus)
    if isinstance(corpus, Manifest):
        return load_polars().DataFrame([_typed(name, corpus.column(name)) for name in names])
    return load_polars().DataFrame([_typed(name, [item.columns.get(name) for item in corpus]) for name in names])


def _typed(name: str, values: Any) -> polars.Series:
    """Return a column of a manifest as Boolean, Int64, Float64, or else text."""
    pl = load_polars()
    if isinstance(values, pl.Series) and values.dtype in (pl.Boolean, pl.Int64, pl.Float64, pl.String):
        return values
    kinds = {type(value) for value in values} - {type(None)}
    if any(type(value) is int and not -(2**63) <= value < 2**63 for value in values):
        kinds.add(object)
    if kinds == {bool}:
        return pl.Series(name, list(values), pl.Boolean)
    if kinds == {int}:
        return pl.Series(name, list(values), pl.Int64)
    if kinds and kinds <= {int, float}:
        return pl.Series(name, [None if value is None else float(value) for value in values], pl.Float64)
    return pl.Series(name, [None if value is None else _text(value) for value in values], pl.String)


def _text(value: Any) -> str:
    # Lists and dictionaries become JSON.
    return plain_text(json.dumps(value, default=str) if isinstance(value, bool | list | tuple | dict) else str(value))


def plain_text(text: str) -> str:
    """Return text as valid Unicode: bytes of file names that are not UTF-8 become question marks."""
    return text.encode("utf-8", "replace").decode()


def save(write: Callable[[Path], object], file: Path) -> None:
    """Call a writer of Polars, and convert errors such as a full disk to `OSError`."""
    try:
        write(file)
    except polars_errors() as error:
        raise OSError(first_line(error)) from error


def read_table(path: Location) -> polars.LazyFrame:
    """Scan a table of results; columns are read on demand."""
    return load_polars().scan_parquet(local_copy(path), glob=False)


def collected(table: polars.LazyFrame) -> polars.DataFrame:
    """Read a table of results; raise InputError for a damaged file, or a table without the columns."""
    try:
        return table.collect()
    except polars_errors() as error:
        raise InputError(f"a table of results cannot be read: {first_line(error)}; evaluate again") from error
