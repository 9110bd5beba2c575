"""The journal of an evaluation: finished units on disk, which are not computed again."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from jaxrnn._files.stores import Location, files_below, local_copy
from jaxrnn._files.writing import in_place_of, locked
from jaxrnn.errors import InputError, JaxrnnError, StoreError
from jaxrnn.evaluation.corpus import Item

Row = dict[str, Any]

#: The first columns of every row, and the ``status`` of a recording with a result.
COLUMNS = ("id", "path", "reference", "seconds", "status", "error", "notes")
OK = "ok"

#: Names in a folder of results: the folder of finished units, and the facts that determine the results.
UNITS, RUN = "units", "run.json"
#: The key of the versions and devices in ``run.json``.
ENVIRONMENT = "environment"
#: Bytes after which a new file of finished units is begun.
SEGMENT = 2**26
#: Seconds between two uploads of the journal to a store.
PAUSE = 60.0


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
    """Return the first columns of a recording's row, and the columns of the manifest."""
    return {
        "id": item.id,
        "path": str(item.path),
        "reference": None if item.reference is None else str(item.reference),
        "seconds": seconds,
        "status": OK if error is None else "error",
        "error": error,
        "notes": None,
        **item.columns,
    }


class Journal:
    """The finished units of an evaluation, written by one process at a time.

    Units are lines of JSON in the files of the folder ``units``. Each run appends to separate files, so that a kill
    can damage only the last line of a file. For results in a store, the files are written on this machine, and uploaded
    every minute and when the run ends. ``facts`` are the corpus, the models and the settings, which determine the
    results.
    """

    def __init__(self, folder: Location, facts: Mapping[str, Any]):
        self.folder, self._facts = folder, json.loads(json.dumps(facts, default=str))
        self._finished: set[int] | None = None
        self._segment: IO[bytes] | None = None
        self._written: Path | None = None
        self._uploaded = 0.0
        self._check({})

    @property
    def environment(self) -> dict[str, Any] | None:
        """The versions and devices that computed the finished units; None if no run has begun."""
        return (self._stored() or {}).get(ENVIRONMENT)

    def _stored(self) -> dict[str, Any] | None:
        path = self.folder / RUN
        try:
            facts = json.loads(path.read_text()) if path.exists() else None
        except ValueError as error:
            raise InputError(f"{path} cannot be read: {error}; choose another folder, or delete this one") from error
        if facts is not None and not (isinstance(facts, dict) and isinstance(facts.get(ENVIRONMENT), dict)):
            raise InputError(f"{path} does not belong to an evaluation: choose another folder, or delete this one")
        return facts

    def _check(self, environment: Mapping[str, Any]) -> bool:
        """Return True if the folder has results of this evaluation, and refuse results of a different evaluation."""
        stored = self._stored()
        if stored is None:
            return False
        before = stored.pop(ENVIRONMENT)
        differing = [key for key in stored.keys() | self._facts.keys() if stored.get(key) != self._facts.get(key)]
        differing += [key for key, value in environment.items() if before.get(key) != value]
        if differing:
            raise InputError(
                f"{self.folder} holds the results of another evaluation, which differs in "
                f"{', '.join(sorted(differing))}: choose another folder, or delete this one"
            )
        return True

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the folder against other processes; the end of the context closes and uploads the journal."""
        with contextlib.ExitStack() as stack:
            with writing_to(self.folder):
                stack.enter_context(locked(self.folder, "runs an evaluation"))
            self._check({})
            if isinstance(self.folder, Path):
                self._written = self.folder / UNITS
            else:
                self._written = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxrnn-")))
            stack.callback(self._close)
            self._finished = None  # other processes may have written before
            yield

    def begin(self, environment: Mapping[str, Any]) -> None:
        """Write the facts, before the first unit is finished."""
        if not self._check(environment):
            text = json.dumps({**self._facts, ENVIRONMENT: dict(environment)}, indent=1, sort_keys=True)
            write_whole(self.folder / RUN, lambda file: file.write_text(text))

    def finished(self) -> set[int]:
        """Return the indices of the finished units."""
        if self._finished is None:
            self._finished = {unit for unit, _ in entries(local_copy(self.folder / UNITS))}
        return self._finished

    def finish(self, unit: int, rows: Iterable[Row]) -> None:
        """Append the rows of a unit, inside of `writing`."""
        line = json.dumps({"unit": unit, "rows": list(rows)}, default=str).encode() + b"\n"
        try:
            with writing_to(self.folder / UNITS):
                if self._segment is None:
                    assert self._written is not None, "units are finished inside of writing"
                    folder = self.folder / UNITS
                    folder.mkdir(exist_ok=True)
                    names = (f"{number:06d}.jsonl" for number in itertools.count(len(_segments(folder))))
                    name = next(name for name in names if not (folder / name).exists())
                    self._uploaded = time.monotonic()
                    self._segment = (self._written / name).open("xb")
                self._segment.write(line)
                self._segment.flush()
                if time.monotonic() - self._uploaded >= PAUSE:
                    self._upload()
        except JaxrnnError:
            self._close()
            raise
        self.finished().add(unit)
        if self._segment.tell() >= SEGMENT:
            self._close()

    def _upload(self) -> None:
        if self._segment is not None and not isinstance(self.folder, Path):
            written = Path(self._segment.name)
            (self.folder / UNITS / written.name).put(written)
        self._uploaded = time.monotonic()

    def _close(self) -> None:
        if self._segment is not None:
            with contextlib.suppress(OSError):
                self._segment.close()
            with writing_to(self.folder / UNITS):
                self._upload()
            self._segment = None


def _segments(units: Location) -> list[Any]:
    return files_below(units, ("*.jsonl",)) if units.is_dir() else []


def entries(folder: Path) -> Iterator[tuple[int, list[Row]]]:
    """Yield the indices and rows of the finished units in a folder, in the order of completion."""
    units = set()
    for path in _segments(folder):
        with path.open("rb") as lines:
            for line in lines:
                try:
                    entry = json.loads(line)
                except ValueError:
                    break  # after a loss of power, more than the last line may be torn
                if entry["unit"] not in units:
                    units.add(entry["unit"])
                    yield entry["unit"], entry["rows"]


@dataclass(frozen=True)
class UnitRows:
    """Given rows, and the rows of all finished units in a results folder; each iteration reads the journal again."""

    folder: Location
    others: Sequence[Row] = ()

    def __iter__(self) -> Iterator[Row]:
        return itertools.chain(self.others, (row for _, rows in entries(self._units) for row in rows))

    @functools.cached_property
    def _units(self) -> Path:
        return local_copy(self.folder / UNITS)
