"""The finished units of an evaluation on disk: what is in the journal is whole, and is never computed again."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from jaxrnn._files.stores import Location, files_below, in_place_of, local_copy, open_new
from jaxrnn.errors import InputError, JaxrnnError, StoreError
from jaxrnn.evaluation.corpus import Item

Row = dict[str, Any]

#: The columns that every row begins with, and the ``status`` of a recording with a result.
COLUMNS = ("id", "path", "reference", "seconds", "status", "error", "notes")
OK = "ok"

#: In a folder of results, the folder of finished units, what determines the results, and the lock of who writes.
UNITS, RUN, LOCK = "units", "run.json", "lock"
#: The key of what units were computed on, beside what determines the results.
SURROUNDINGS = "surroundings"
#: Bytes after which a file of finished units is followed by another.
SEGMENT = 2**26


@contextlib.contextmanager
def writing_to(path: Location) -> Iterator[None]:
    """Raise an `InputError` for what the operating system refuses, and say what is kept."""
    try:
        yield
    except StoreError as error:
        raise StoreError(f"{error}. Finished units are kept; run again") from error
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}. Finished units are kept; make room and run again"
        ) from error


def write_whole(path: Location, write: Callable[[Path], Any]) -> None:
    """Write a file whole or not at all, by a function of the path to write to; its folder is created if missing.

    Raises:
        InputError: the disk is full, or the folder cannot be written.
        StoreError: a store cannot be reached or refuses.
    """
    with writing_to(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with in_place_of(path) as unfinished:
            write(unfinished)


def row_of(item: Item, seconds: float | None, error: str | None) -> Row:
    """The columns that the row of every recording begins with."""
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
    """The finished units of an evaluation, which one process at a time writes.

    They are lines of JSON in the files of the folder ``units``, in the order in which they were finished. A file is
    appended to by one run and then never touched; what a killed run has left of its last line is no unit.

    A store has no locks. The first run creates ``run.json``, against which every other is held, each run creates files
    of its own, and an object has the name of the run that began last: all others end before they write again.

    Args:
        folder: the folder of results.
        facts: what determines the results: corpus, models, settings.

    Raises:
        InputError: the folder holds the results of something else.
        StoreError: a store cannot be reached or refuses.
    """

    def __init__(self, folder: Location, facts: Mapping[str, Any]):
        self.folder, self._facts = folder, json.loads(json.dumps(facts, default=str))
        self._finished: set[int] | None = None
        self._segment: IO[bytes] | None = None
        self._name = uuid.uuid4().hex.encode()
        self._check({})

    @property
    def surroundings(self) -> dict[str, Any] | None:
        """What the finished units were computed on; None if no run has begun."""
        return (self._stored() or {}).get(SURROUNDINGS)

    def _stored(self) -> dict[str, Any] | None:
        """The facts of the results in the folder; None where there are none."""
        path = self.folder / RUN
        try:
            facts = json.loads(path.read_text()) if path.exists() else None
        except ValueError as error:
            raise InputError(f"{path} cannot be read: {error}; choose another folder, or delete this one") from error
        if facts is not None and not (isinstance(facts, dict) and isinstance(facts.get(SURROUNDINGS), dict)):
            raise InputError(f"{path} does not belong to an evaluation: choose another folder, or delete this one")
        return facts

    def _check(self, surroundings: Mapping[str, Any]) -> bool:
        """Whether the folder holds results, which must be those of this evaluation."""
        stored = self._stored()
        if stored is None:
            return False
        before = stored.pop(SURROUNDINGS)
        differing = [key for key in stored.keys() | self._facts.keys() if stored.get(key) != self._facts.get(key)]
        differing += [key for key, value in surroundings.items() if before.get(key) != value]
        if differing:
            raise InputError(
                f"{self.folder} holds the results of another evaluation, which differs in "
                f"{', '.join(sorted(differing))}: choose another folder, or delete this one"
            )
        return True

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Keep all other processes from writing while the context lasts; its end closes what `finish` has opened.

        Raises:
            InputError: another process writes, or the folder cannot be written.
        """
        with contextlib.ExitStack() as stack:
            if isinstance(self.folder, Path):
                stack.callback(_locked(self.folder).release)
            self._check({})
            if not isinstance(self.folder, Path):
                with writing_to(self.folder):
                    (self.folder / LOCK).write_bytes(self._name)
            stack.callback(self._close)
            # Others may have written before.
            self._finished = None
            yield
            self._close()
            # Of two that begin at once in a store without conditional writes, one has taken the other's place.
            self._check({})

    def _check_is_last(self) -> None:
        if not isinstance(self.folder, Path) and (self.folder / LOCK).read_bytes() != self._name:
            raise InputError(
                f"another process has begun to run the evaluation in {self.folder}, and goes on with it: this one ends"
            )

    def begin(self, surroundings: Mapping[str, Any]) -> None:
        """Say on what units will be computed, before the first is finished.

        Raises:
            InputError: the folder holds the results of something else, or cannot be written.
        """
        if self._check(surroundings):
            return
        path, facts = self.folder / RUN, {**self._facts, SURROUNDINGS: dict(surroundings)}
        text = json.dumps(facts, indent=1, sort_keys=True)
        if isinstance(path, Path):
            write_whole(path, lambda file: file.write_text(text))
            return
        with writing_to(path), contextlib.suppress(FileExistsError):
            path.create(text.encode())
            return
        self._check(surroundings)

    def finished(self) -> set[int]:
        """The numbers of the finished units."""
        if self._finished is None:
            self._finished = {unit for unit, _ in entries(local_copy(self.folder / UNITS))}
        return self._finished

    def finish(self, unit: int, rows: Iterable[Row]) -> None:
        """Append the rows of a unit, inside of `writing`.

        Raises:
            InputError: the disk is full.
        """
        line = json.dumps({"unit": unit, "rows": list(rows)}, default=str).encode() + b"\n"
        try:
            with writing_to(self.folder / UNITS):
                if self._segment is None:
                    self._segment = self._opened()
                self._segment.write(line)
                self._segment.flush()
        except JaxrnnError:
            self._close()
            raise
        self.finished().add(unit)
        if self._segment.tell() >= SEGMENT:
            self._close()

    def _opened(self) -> IO[bytes]:
        """A new file, so that what was written before is never touched."""
        folder = self.folder / UNITS
        folder.mkdir(exist_ok=True)
        for number in itertools.count(len(_segments(folder))):
            with contextlib.suppress(FileExistsError):
                return open_new(folder / f"{number:06d}.jsonl", self._check_is_last)
        raise AssertionError("numbers do not end")

    def _close(self) -> None:
        if self._segment is not None:
            with contextlib.suppress(OSError):
                self._segment.close()
            self._segment = None


def _locked(folder: Path) -> FileLock:
    """The operating system holds the lock and ends it with the process, however that ends."""
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, blocking=False)
        try:
            lock.acquire()
        except Timeout as error:
            raise InputError(
                f"another process runs an evaluation in {folder}: wait for its end, or choose another folder"
            ) from error
    return lock


def _segments(units: Location) -> list[Any]:
    return files_below(units, ("*.jsonl",)) if units.is_dir() else []


def entries(folder: Path) -> Iterator[tuple[int, list[Row]]]:
    """The finished units in a folder of them, each with its rows, in the order in which they were finished."""
    units = set()
    for path in _segments(folder):
        with path.open("rb") as lines:
            for line in lines:
                try:
                    entry = json.loads(line)
                except ValueError:
                    break  # torn; a machine that lost its power may have lost more than the last line
                if entry["unit"] not in units:
                    units.add(entry["unit"])
                    yield entry["unit"], entry["rows"]


@dataclass(frozen=True)
class UnitRows:
    """The rows of all finished units in a folder of results, read anew whenever they are gone through, after others."""

    folder: Location
    others: Sequence[Row] = ()

    def __iter__(self) -> Iterator[Row]:
        return itertools.chain(self.others, (row for _, rows in entries(self._units) for row in rows))

    @functools.cached_property
    def _units(self) -> Path:
        return local_copy(self.folder / UNITS)
