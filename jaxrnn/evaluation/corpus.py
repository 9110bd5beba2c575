"""The recordings to evaluate, from a folder or a manifest, each with its reference and further columns."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxrnn.briefs import brief
from jaxrnn.errors import InputError, optional_package
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
    path: Path
    reference: Path | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


def from_folder(
    folder: Path, *, reference: Path | None = None, patterns: Sequence[str] = PATTERNS, limit: int | None = None
) -> tuple[Item, ...]:
    """The recordings below a folder, in the order of their names.

    Args:
        folder: the folder.
        reference: the folder of their references, which have the same relative paths but for the suffix.
        patterns: the files to search for.
        limit: the most recordings to take.

    Raises:
        InputError: there is no such folder, nothing in it, or a recording without its reference.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    paths = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
    if not paths:
        raise InputError(f"{folder} holds nothing that fits {', '.join(patterns)}")
    references = {} if reference is None else _by_name(reference)
    items = []
    for path in paths[:limit]:
        name = path.relative_to(folder).with_suffix("").as_posix()
        if reference is not None and name not in references:
            raise InputError(f"{reference} holds no reference {name}.* for {path}")
        items.append(Item(name, path, references.get(name)))
    return checked(items)


def _by_name(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.rglob("*"), reverse=True)
        if path.is_file()
    }


def from_manifest(path: Path, *, limit: int | None = None) -> tuple[Item, ...]:
    """The recordings that a table lists.

    Args:
        path: a CSV or Parquet file with a column ``path`` and optionally ``id`` and ``reference``. Paths are relative
            to the folder of the table. Every other column is passed on.
        limit: the most recordings to take.

    Raises:
        InputError: the table cannot be read, has no column ``path``, or an empty path.
    """
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
                Path(row["path"]).with_suffix("").as_posix() if name is None else str(name),
                path.parent / row["path"],
                path.parent / reference if reference else None,
                {key: value for key, value in row.items() if key not in KEYS},
            )
        )
    if not items:
        raise InputError(f"{path} lists no recording")
    return checked(items)


def _read_table(path: Path) -> Any:
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
        return readers[path.suffix.lower()](path)
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
