"""Named recordings in a folder or a table, checked, and measured by their headers."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxrnn._files.messages import near, short_repr
from jaxrnn._files.stores import REQUESTS, Location, Url, bare_name, files_below, location, name_below, resolved
from jaxrnn.audio.recordings import THREADS, open_recording, recordings_below
from jaxrnn.errors import InputError, optional_package

with optional_package("polars", "tables of recordings", "evaluate"):
    import polars as pl

#: Some damaged files end in a panic of Polars' code in Rust, which is no `Exception`.
POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)

#: Recordings in a folder.
PATTERNS = ("**/*.wav", "**/*.flac", "**/*.npy", "**/*.npz")

#: The columns of a manifest with a meaning. Further columns are passed on.
KEYS = ("id", "path", "reference")

#: The first columns of a table of results, and the ``status`` of a recording with a result.
COLUMNS = ("id", "path", "reference", "seconds", "status", "error", "notes")
OK = "ok"

#: The column of the index in the corpus; no column of a manifest or of a metric has this name.
PLACE = "\N{NUMBER SIGN}place"


@short_repr
@dataclass(frozen=True, slots=True)
class Item:
    """A recording to evaluate.

    Attributes:
        id: the unique name, used in results and for output files.
        path: the recording.
        reference: the expected output: clean sound or labels; None without a reference.
        columns: further columns of a manifest, for slices.
    """

    id: str
    path: Location
    reference: Location | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


def from_folder(
    folder: Location | str, *, reference: Location | str | None = None, patterns: Sequence[str] = PATTERNS,
    limit: int | None = None,
) -> Sequence[Item]:  # fmt: skip
    """List the recordings below a folder, sorted by their names.

    Args:
        folder: the folder, here or by URL.
        reference: the folder of references, with the same relative paths apart from the suffix.
        patterns: glob patterns of recordings, in any case. A line on standard error counts all other files.
        limit: the largest number of recordings.

    Raises:
        InputError: the folder does not exist or has no recordings, or a recording has no reference.
        StoreError: the store cannot be reached.
    """
    folder = location(folder)
    paths = recordings_below(folder, patterns)
    references: dict[str, Location] = {}
    if reference is not None:
        below = location(reference)
        references = {name_below(below, path): path for path in reversed(files_below(below))}
    items = []
    for path in paths[:limit]:
        name = name_below(folder, path)
        if reference is not None and name not in references:
            raise InputError(f"{reference} holds no reference {name}.* for {path}")
        items.append(Item(name, path, references.get(name)))
    return checked(items)


class Manifest(Sequence[Item]):
    """The recordings that a table lists, sorted by id; each item is made on demand.

    `table` has the text columns `KEYS` and any further columns. Relative paths start from `folder`.
    """

    def __init__(self, folder: Location, table: pl.DataFrame):
        self._folder, self.table = folder, table.sort("id")

    def __len__(self) -> int:
        return self.table.height

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(map(self._item, self.table[index].iter_rows(named=True)))
        return self._item(self.table.row(index, named=True))

    def __iter__(self) -> Iterator[Item]:
        return map(self._item, self.table.iter_rows(named=True))

    def _item(self, row: dict[str, Any]) -> Item:
        name, path, reference = (row.pop(key) for key in KEYS)
        return Item(name, resolved(self._folder, path), resolved(self._folder, reference) if reference else None, row)


def from_manifest(path: Location | str, *, limit: int | None = None) -> Sequence[Item]:
    """List the recordings of a table, which stays in memory as a table.

    Args:
        path: a CSV or Parquet file, here or by URL, with a column ``path`` and optionally ``id`` and ``reference``.
            Paths are URLs, or relative to the folder of the table. All other columns are passed on.
        limit: the largest number of recordings.

    Raises:
        InputError: the table cannot be read, has no column ``path``, or has an empty path.
        StoreError: the store cannot be reached.
    """
    path = location(path)
    rows = read_table(path).head(limit) if limit is not None else read_table(path)
    if "path" not in rows.columns:
        listed = ", ".join(rows.columns)
        raise InputError(f"{path} has no column 'path'{near('path', rows.columns)}; its columns are {listed}")
    if rows.is_empty():
        raise InputError(f"{path} lists no recording")

    texts = {key: (rows[key] if key in rows.columns else pl.repeat(None, rows.height)) for key in KEYS}
    try:
        rows = rows.with_columns(**{key: column.cast(pl.String) for key, column in texts.items()})
    except POLARS_ERRORS as error:
        raise InputError(f"{path}: the columns {', '.join(KEYS)} must hold text: {error}") from error
    for number in (rows["path"].fill_null("") == "").arg_true():
        raise InputError(f"{path}, row {number + 1}: the path is empty")
    if rows["id"].has_nulls():
        rows = rows.with_columns(id=rows["id"].fill_null(rows["path"].map_elements(bare_name, pl.String)))
    result = Manifest(path.parent, rows)
    _check_ids(result.table["id"], result)
    return result


def read_table(path: Location, texts: Sequence[str] = (), what: str = "manifest") -> pl.DataFrame:
    """Read a CSV or Parquet table, with `KEYS` and other columns of a CSV file as text."""
    # Names stay text: 007 is not 7. The types of other columns are inferred from all rows.
    names: dict[str, Any] = dict.fromkeys((*KEYS, *texts), pl.String)
    read_csv = functools.partial(pl.read_csv, infer_schema_length=None, schema_overrides=names)
    readers = {".csv": read_csv, ".parquet": pl.read_parquet}
    if path.suffix.lower() not in readers:
        raise InputError(f"{path}: a {what} is a .csv or .parquet file")
    if not path.is_file():
        raise InputError(f"there is no {what} {path}")
    try:
        with path.open("rb") as file:
            return readers[path.suffix.lower()](file)
    except POLARS_ERRORS as error:
        raise InputError(f"{path} cannot be read as a table: {error}") from error


def columns_of(corpus: Iterable[Item]) -> list[str]:
    """Return the names of the further columns of the recordings."""
    if isinstance(corpus, Manifest):
        return corpus.table.drop(KEYS).columns
    return list(dict.fromkeys(key for item in corpus for key in item.columns))


def extra_columns(corpus: Sequence[Item]) -> pl.DataFrame:
    """Return the further columns of a corpus, a row for each recording, as Boolean, Int64, Float64, or else text."""
    if isinstance(corpus, Manifest):
        return pl.DataFrame(map(_typed, corpus.table.drop(KEYS)))
    columns = {name: [item.columns.get(name) for item in corpus] for name in columns_of(corpus)}
    return pl.DataFrame(_typed(pl.Series(name, values, pl.Object)) for name, values in columns.items())


def _typed(column: pl.Series) -> pl.Series:
    if column.dtype in (pl.Boolean, pl.Int64, pl.Float64, pl.String):
        return column
    name, values = column.name, list(column)
    kinds = {type(value) for value in values} - {type(None)}
    if any(type(value) is int and not -(2**63) <= value < 2**63 for value in values):
        kinds.add(object)
    for own, kind in (({bool}, pl.Boolean), ({int}, pl.Int64), ({int, float}, pl.Float64)):
        if kinds and kinds <= own:
            return pl.Series(name, values, kind, strict=False)
    return pl.Series(name, [None if value is None else _text(value) for value in values], pl.String)


def _text(value: Any) -> str:
    # Lists and dictionaries become JSON.
    return plain_text(json.dumps(value, default=str) if isinstance(value, bool | list | tuple | dict) else str(value))


def plain_text(text: str) -> str:
    """Return text as valid Unicode: bytes of file names that are not UTF-8 become question marks."""
    return text.encode("utf-8", "replace").decode()


def checked(items: Iterable[Item]) -> Sequence[Item]:
    """Return items sorted by id, with ids that are unique and usable as relative paths."""
    if isinstance(items, Manifest):
        return items
    result = tuple(sorted(items, key=lambda item: item.id))
    _check_ids((item.id for item in result), result)
    return result


def _check_ids(ids: Iterable[str], items: Sequence[Item]) -> None:
    before = None
    for place, name in enumerate(ids):
        if name == before:
            first, second = items[place - 1].path, items[place].path
            raise InputError(f"two recordings are called {name!r}: {first} and {second}; change one of the ids")
        if name.startswith("/") or ".." in name.split("/") or not name.strip():
            raise InputError(f"{items[place].path}: the id {name!r} cannot name a file below the folder of results")
        before = name


#: Recordings that are submitted together.
BLOCK = 4096

#: The shapes of the frames of a recording's arrays, and the kinds of their numbers, by name.
Frame = tuple[tuple[tuple[str, Any], ...], ...]


def probe(corpus: Sequence[Item], rate: int) -> tuple[np.ndarray, dict[int, str]]:
    """Read the lengths of all recordings in frames, ``int64[recordings]``, and errors by index.

    Recordings with an error have length -1. Frames of all recordings must have the same shape and kind of numbers,
    because recordings share a batch; the most frequent wins. Sound is resampled to ``rate``.
    """
    lengths, shapes = np.full(len(corpus), -1), np.full(len(corpus), -1)
    errors: dict[int, str] = {}
    known: dict[Frame, int] = {}

    def opened(item: Item) -> tuple[int, Frame] | str:
        try:
            recording = open_recording(item.path, rate)
        except InputError as error:
            return str(error)
        return recording.length, tuple(tuple(sorted(each.items())) for each in (recording.frame, recording.kinds))

    is_far = any(isinstance(item.path, Url) for item in corpus)
    with ThreadPoolExecutor(REQUESTS if is_far else THREADS) as threads:
        for start in range(0, len(corpus), BLOCK):
            for place, result in enumerate(threads.map(opened, corpus[start : start + BLOCK]), start):
                if isinstance(result, str):
                    errors[place] = result
                else:
                    lengths[place], shapes[place] = result[0], known.setdefault(result[1], len(known))
    if len(known) > 1:
        frames = list(known)
        most = int(np.bincount(shapes[shapes >= 0]).argmax())
        for place in np.flatnonzero((shapes >= 0) & (shapes != most)).tolist():
            lengths[place] = -1
            own, others = next(
                pair for pair in zip(frames[shapes[place]], frames[most], strict=True) if len({*pair}) > 1
            )
            errors[place] = f"a frame holds {dict(own)}, but that of most recordings {dict(others)}"
    return lengths, errors
