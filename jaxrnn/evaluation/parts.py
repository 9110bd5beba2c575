"""Rows of recordings as tables, and parts of an evaluation: Parquet files with the rows of a unit.

A unit is done if the part of the unit exists. A part is a pure function of some recordings and of the facts, which the
metadata of each part contain. A part is written aside and moved into place, so that any number of kills leaves whole
parts only.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from jaxrnn._files.messages import first_line
from jaxrnn._files.stores import Location, files_below, local_copy
from jaxrnn._files.writing import in_place_of, locked
from jaxrnn.audio.corpus import COLUMNS, OK, PLACE, POLARS_ERRORS, Item, plain_text
from jaxrnn.errors import InputError, StoreError

Row = dict[str, Any]

#: The folder of parts in a folder of results, and the key of the facts in the metadata of a part.
PARTS, FACTS = "parts", "jaxrnn"
#: The key of the versions and devices in the facts.
ENVIRONMENT = "environment"
#: Files of the finished work of jaxrnn 0.2.
OLD = ("run.json", "units")


def row_of(item: Item, seconds: float | None, error: str | None) -> Row:
    """Return the first columns of a recording's row."""
    reference = None if item.reference is None else str(item.reference)
    values = (item.id, str(item.path), reference, seconds, OK if error is None else "error", error, None)
    return dict(zip(COLUMNS, values, strict=True))


def frame_of(rows: Sequence[Row], places: Sequence[int], counts: Iterable[str] = ()) -> pl.DataFrame:
    """Return rows as a table: text in `COLUMNS`, counts in the columns ``counts``, numbers in all other columns.

    ``places`` are the indices of the recordings in the corpus.
    """
    names = [*COLUMNS, *counts, *(key for row in rows for key in row)]
    sums = pl.Struct({"at": pl.List(pl.Int32), "counts": pl.List(pl.Int64)})
    schema: dict[str, Any] = {PLACE: pl.Int64} | dict.fromkeys(names, pl.Float64)
    schema |= dict.fromkeys(COLUMNS, pl.String) | {"seconds": pl.Float64} | dict.fromkeys(counts, sums)
    texts = [{key: plain_text(value) for key, value in row.items() if isinstance(value, str)} for row in rows]
    data = [{PLACE: place} | row | text for place, row, text in zip(places, rows, texts, strict=True)]
    return pl.DataFrame(data, schema)


def scan_all(paths: list[Path], first: pl.DataFrame) -> pl.LazyFrame:
    """Return the rows of a table and of Parquet files, with the columns of all, in the order of ids."""
    tables = [first.lazy()]
    if paths:
        schema: dict[str, Any] = {}
        for path in paths:
            schema |= pl.read_parquet_schema(path)
        tables.append(pl.scan_parquet(paths, glob=False, schema=schema, missing_columns="insert"))
    return pl.concat(tables, how="diagonal").sort("id", PLACE)


def collected(table: pl.LazyFrame, *, in_blocks: bool = False) -> pl.DataFrame:
    """Read a table of results; raise InputError for a damaged file, or a table without the columns.

    ``in_blocks`` computes block by block, for a table that does not fit into memory.
    """
    try:
        return table.collect(engine="streaming" if in_blocks else "auto")
    except POLARS_ERRORS as error:
        raise InputError(f"a table of results cannot be read: {first_line(error)}; evaluate again") from error


@contextlib.contextmanager
def writing_to(path: Location) -> Iterator[None]:
    """Convert errors of the operating system to errors of jaxrnn that name the next step."""
    try:
        yield
    except StoreError as error:
        raise StoreError(f"{error}. Finished units are kept; run again") from error
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{path} cannot be written, because a file is in place of the folder") from error
    except (OSError, *POLARS_ERRORS) as error:  # Polars has its own errors, such as of a full disk
        reason = getattr(error, "strerror", None) or first_line(error)
        raise InputError(
            f"{path} cannot be written: {reason}. Finished units are kept; make room and run again"
        ) from error


def write_whole(path: Location, write: Callable[[Path], Any]) -> None:
    """Write a file whole or not at all, with a function of the path to write to; create the folder if needed."""
    with writing_to(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with in_place_of(path) as unfinished:
            write(unfinished)


def check_format(folder: Location) -> None:
    """Refuse a folder with the finished work of jaxrnn 0.2, which this version can neither read nor continue."""
    if not (folder / PARTS).is_dir() and any((folder / name).exists() for name in OLD):
        raise InputError(
            f"{folder} holds an evaluation of jaxrnn 0.2 ({' and '.join(OLD)}), which this version cannot continue: "
            "choose another folder, or delete this one and evaluate again"
        )


class Parts:
    """The parts of an evaluation in a results folder, written by a single process at a time.

    ``facts`` are the corpus, the models, the metrics with their options, and the settings, which determine the results.

    Attributes:
        folder: the results folder.
        environment: the versions and devices that computed the parts; None without a part.
    """

    def __init__(self, folder: Location, facts: Mapping[str, Any]):
        self.folder, self.environment = folder, None
        self._facts: dict[str, Any] = json.loads(json.dumps(facts, default=str))
        check_format(folder)
        self._read()

    def _read(self) -> None:
        """Find the finished units, and refuse parts of a different evaluation."""
        self._local = local_copy(self.folder / PARTS)
        self._finished: dict[int, Path] = {}
        known: set[str] = set()
        for path, text in facts_of(self._local):
            if text not in known:
                stored = json.loads(text)
                self._check(stored, stored[ENVIRONMENT])
                self.environment = stored[ENVIRONMENT]
                known.add(text)
            self._finished[int(path.stem)] = path

    def _check(self, stored: dict[str, Any], environment: Mapping[str, Any]) -> None:
        """Refuse facts of a different evaluation, or of other versions or devices."""
        facts = {**self._facts, ENVIRONMENT: self.environment or environment}
        differing = [key for key in (stored.keys() | facts.keys()) - {ENVIRONMENT} if stored.get(key) != facts.get(key)]
        differing += [key for key, value in environment.items() if facts[ENVIRONMENT].get(key) != value]
        if differing:
            raise InputError(
                f"{self.folder} holds the results of another evaluation, which differs in "
                f"{', '.join(sorted(differing))}: choose another folder, or delete this one"
            )

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the folder against other processes."""
        with contextlib.ExitStack() as stack:
            with writing_to(self.folder):
                stack.enter_context(locked(self.folder, "runs an evaluation"))
            self._read()  # other processes may have written before
            yield

    def begin(self, environment: Mapping[str, Any]) -> None:
        """Set the versions and devices that compute; refuse a difference from the versions and devices of the parts."""
        self._check(self._facts, environment)
        self.environment = dict(sorted(environment.items()))  # as a run that continues reads them

    def finished(self) -> set[int]:
        """Return the indices of the finished units."""
        return set(self._finished)

    def finish(self, unit: int, rows: pl.DataFrame) -> None:
        """Write the part of a unit, inside of `writing`."""
        facts = json.dumps({**self._facts, ENVIRONMENT: self.environment}, sort_keys=True)
        path = self.folder / PARTS / f"{unit:06d}.parquet"
        local = self._local / path.name
        write_whole(local, lambda file: rows.write_parquet(file, metadata={FACTS: facts}))
        if local != path:
            with writing_to(path):
                path.put(local)  # pyright: ignore[reportAttributeAccessIssue]
        self._finished[unit] = local

    def scan(self, others: pl.DataFrame | None = None) -> pl.LazyFrame:
        """Return the rows of all parts and other rows, in the order of ids."""
        return scan_all(sorted(self._finished.values()), frame_of([], []) if others is None else others)


def facts_of(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the parts in a folder with their facts. A file that Polars cannot read is not a part."""
    for path in files_below(folder, ("*.parquet",)) if folder.is_dir() else ():
        with contextlib.suppress(*POLARS_ERRORS, OSError):
            if (text := pl.read_parquet_metadata(path).get(FACTS)) is not None and path.stem.isdecimal():
                yield path, text


def scan_counts(folder: Location, names: Sequence[str]) -> pl.LazyFrame | None:
    """Return the ids and the columns of counts of an evaluation's recordings; None if no recording has counts."""
    check_format(folder)
    paths = [path for path, _ in facts_of(local_copy(folder / PARTS))]
    return scan_all(paths, frame_of([], [], names)).select("id", *names) if paths else None
