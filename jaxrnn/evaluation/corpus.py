"""The recordings to evaluate, from a folder or a manifest, each with its reference and further columns."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxrnn.briefs import brief
from jaxrnn.errors import InputError, optional_package
from jaxrnn.locations import Location, bare_name, files_below, joined, location, name_below
from jaxrnn.messages import near

#: The files to search a folder for.
PATTERNS = ("**/*.wav", "**/*.flac", "**/*.npy", "**/*.npz")

#: The columns of a manifest that are read here; all others are passed on.
KEYS = ("id", "path", "reference")


@brief
@dataclass(frozen=True)
class Item:
    """A recording to evaluate.

    Attributes:
        id: its unique name, in results and of the files that are written for it.
        path: the recording.
        reference: the expected output, clean sound or labels; None where there is none.
        columns: the further columns of a manifest, for slices.
    """

    id: str
    path: Location
    reference: Location | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


def from_folder(
    folder: Location | str, *, reference: Location | str | None = None, patterns: Sequence[str] = PATTERNS,
    limit: int | None = None,
) -> tuple[Item, ...]:  # fmt: skip
    """The recordings below a folder, in the order of their names.

    Args:
        folder: the folder, here or by URL.
        reference: the folder of their references, which have the same relative paths but for the suffix.
        patterns: the files to search for.
        limit: the most recordings to take.

    Raises:
        InputError: there is no such folder, nothing in it, or a recording without its reference.
        StoreError: it is in a store that cannot be reached.
    """
    folder = location(folder)
    paths = files_below(folder, patterns)
    if not paths:
        raise InputError(f"{folder} holds nothing that fits {', '.join(patterns)}")
    references = {} if reference is None else _by_name(location(reference))
    items = []
    for path in paths[:limit]:
        name = name_below(folder, path)
        if reference is not None and name not in references:
            raise InputError(f"{reference} holds no reference {name}.* for {path}")
        items.append(Item(name, path, references.get(name)))
    return checked(items)


def _by_name(folder: Location) -> dict[str, Location]:
    return {name_below(folder, path): path for path in reversed(files_below(folder))}


def from_manifest(path: Location | str, *, limit: int | None = None) -> tuple[Item, ...]:
    """The recordings that a table lists.

    Args:
        path: a CSV or Parquet file, here or by URL, with a column ``path`` and optionally ``id`` and ``reference``.
            Paths are URLs, or relative to the folder of the table. Every other column is passed on.
        limit: the most recordings to take.

    Raises:
        InputError: the table cannot be read, has no column ``path``, or an empty path.
        StoreError: it is in a store that cannot be reached.
    """
    path = location(path)
    rows = _read_table(path).head(limit) if limit is not None else _read_table(path)
    if "path" not in rows.columns:
        listed = ", ".join(rows.columns)
        raise InputError(f"{path} has no column 'path'{near('path', rows.columns)}; its columns are {listed}")
    items = []
    for number, row in enumerate(rows.iter_rows(named=True), 1):
        if not row["path"]:
            raise InputError(f"{path}, row {number}: the path is empty")
        name = row.get("id")
        reference = row.get("reference")
        items.append(
            Item(
                bare_name(row["path"]) if name is None else str(name),
                joined(path.parent, row["path"]),
                joined(path.parent, reference) if reference else None,
                {key: value for key, value in row.items() if key not in KEYS},
            )
        )
    if not items:
        raise InputError(f"{path} lists no recording")
    return checked(items)


def _read_table(path: Location) -> Any:
    with optional_package("polars", "reading a manifest", "evaluate"):
        import polars
    # Names stay as they are written, 007 too. The type of a column is inferred from all of its rows.
    names: dict[str, Any] = dict.fromkeys(KEYS, polars.String)
    read_csv = functools.partial(polars.read_csv, infer_schema_length=None, schema_overrides=names)
    readers = {".csv": read_csv, ".parquet": polars.read_parquet}
    if path.suffix.lower() not in readers:
        raise InputError(f"{path}: a manifest is a .csv or .parquet file")
    if not path.is_file():
        raise InputError(f"there is no manifest {path}")
    try:
        with path.open("rb") as file:
            return readers[path.suffix.lower()](file)
    except polars.exceptions.PolarsError as error:
        raise InputError(f"{path} cannot be read as a table: {error}") from error


def checked(items: Iterable[Item]) -> tuple[Item, ...]:
    """Items in the order of their ids, which must be unique and usable as relative paths.

    Raises:
        InputError: two items have one id, or an id leads out of the folder of results.
    """
    result = tuple(sorted(items, key=lambda item: item.id))
    for first, second in itertools.pairwise(result):
        if first.id == second.id:
            raise InputError(
                f"two recordings are called {first.id!r}: {first.path} and {second.path}; give them different ids"
            )
    for item in result:
        if item.id.startswith("/") or ".." in item.id.split("/") or not item.id.strip():
            raise InputError(f"{item.path}: the id {item.id!r} cannot name a file below the folder of results")
    return result
