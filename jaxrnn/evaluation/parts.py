"""Parts of an evaluation: Parquet files with the rows of a unit. A unit is done if its part exists.

A part is a pure function of some recordings and of the facts, which the metadata of each part contain. A part is
written aside and moved into place, so that any number of kills leaves whole parts only.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrnn._files.stores import Location, files_below, local_copy
from jaxrnn._files.writing import in_place_of, locked
from jaxrnn.errors import InputError, StoreError
from jaxrnn.evaluation.corpus import Item, polars_errors
from jaxrnn.evaluation.tables import COLUMNS, OK, Row, frame_of, load_polars, save, scan_all

if TYPE_CHECKING:
    import polars

#: The folder of parts in a folder of results, and the key of the facts in the metadata of a part.
PARTS, FACTS = "parts", "jaxrnn"
#: The key of the versions and devices in the facts.
ENVIRONMENT = "environment"
#: Files of the finished work of jaxrnn 0.2.
OLD = ("run.json", "units")


@contextlib.contextmanager
def writing_to(path: Location) -> Iterator[None]:
    """Convert errors of the operating system to errors of jaxrnn that say what to do next."""
    try:
        yield
    except StoreError as error:
        raise StoreError(f"{error}. Finished units are kept; run again") from error
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{path} cannot be written, because a file is in place of the folder") from error
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}. Finished units are kept; make room and run again"
        ) from error


def write_whole(path: Location, write: Callable[[Path], Any]) -> None:
    """Write a file whole or not at all, with a function of the path to write to; create the folder if needed."""
    with writing_to(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with in_place_of(path) as unfinished:
            write(unfinished)


def row_of(item: Item, seconds: float | None, error: str | None) -> Row:
    """Return the first columns of a recording's row."""
    reference = None if item.reference is None else str(item.reference)
    values = (item.id, str(item.path), reference, seconds, OK if error is None else "error", error, None)
    return dict(zip(COLUMNS, values, strict=True))


def check_format(folder: Location) -> None:
    """Refuse a folder with the finished work of jaxrnn 0.2, which this version can neither read nor continue."""
    if not (folder / PARTS).is_dir() and any((folder / name).exists() for name in OLD):
        raise InputError(
            f"{folder} holds an evaluation of jaxrnn 0.2 ({' and '.join(OLD)}), which this version cannot continue: "
            "choose another folder, or delete this one and evaluate again"
        )


class Parts:
    """The parts of an evaluation in a results folder, written by one process at a time.

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
        """Set the versions and devices that compute; refuse others than those of the parts."""
        self._check(self._facts, environment)
        self.environment = dict(sorted(environment.items()))  # as a run that continues reads them

    def finished(self) -> set[int]:
        """Return the indices of the finished units."""
        return set(self._finished)

    def finish(self, unit: int, places: Sequence[int], rows: Sequence[Row], counts: Iterable[str] = ()) -> None:
        """Write the part of a unit, inside of `writing`.

        ``places`` are the indices of the recordings in the corpus; ``counts`` are the names of columns of counts.
        """
        facts = json.dumps({**self._facts, ENVIRONMENT: self.environment}, sort_keys=True)
        path, frame = self.folder / PARTS / f"{unit:06d}.parquet", frame_of(rows, places, counts)
        local = self._local / path.name

        def write(file: Path) -> None:
            save(lambda target: frame.write_parquet(target, metadata={FACTS: facts}), file)

        write_whole(local, write)
        if local != path:
            with writing_to(path):
                path.put(local)  # pyright: ignore[reportAttributeAccessIssue]
        self._finished[unit] = local

    def scan(self, others: Sequence[tuple[int, Row]] = ()) -> polars.LazyFrame:
        """Return the rows of all parts and of other recordings, given with their indices, in the order of ids."""
        places, rows = [place for place, _ in others], [row for _, row in others]
        return scan_all(sorted(self._finished.values()), frame_of(rows, places))


def facts_of(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the parts in a folder with their facts. A file that Polars cannot read is no part."""
    pl = load_polars()
    for path in files_below(folder, ("*.parquet",)) if folder.is_dir() else ():
        with contextlib.suppress(*polars_errors(), OSError):
            if (text := pl.read_parquet_metadata(path).get(FACTS)) is not None and path.stem.isdecimal():
                yield path, text


def scan_counts(folder: Location, names: Sequence[str]) -> polars.LazyFrame | None:
    """Return the ids and the columns of counts of an evaluation's recordings; None if no recording has counts."""
    check_format(folder)
    paths = [path for path, _ in facts_of(local_copy(folder / PARTS))]
    scan = scan_all(paths, frame_of([], [], names))
    return scan.select("id", *names) if paths else None
