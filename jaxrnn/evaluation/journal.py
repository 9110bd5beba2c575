"""The finished units of an evaluation on disk, each a file that is written whole or not at all."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxrnn.errors import InputError
from jaxrnn.evaluation.corpus import Item
from jaxrnn.writing import in_place_of

Row = dict[str, Any]

#: The columns that every row begins with, and the ``status`` of a recording with a result.
COLUMNS = ("id", "path", "reference", "seconds", "status", "error", "notes")
OK = "ok"

#: The folder of finished units in a folder of results.
UNITS = "units"


@contextlib.contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Raise an `InputError` for what the operating system refuses."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}. Finished units are kept; make room and run again"
        ) from error


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file whole or not at all, by a function of the path to write to; its folder is created if missing.

    Raises:
        InputError: the disk is full, or the folder cannot be written.
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
    """The finished units of an evaluation.

    Args:
        folder: the folder of results; created if missing.
        facts: what determines the results: corpus, models, settings.

    Raises:
        InputError: the folder holds the results of something else, or cannot be written.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any]):
        self.folder, self._units = folder, folder / UNITS
        text = json.dumps(facts, indent=1, sort_keys=True, default=str)
        with writing_to(folder):
            self._units.mkdir(parents=True, exist_ok=True)
            stored = self._stored_facts()
        if stored is None:
            write_whole(folder / "run.json", lambda file: file.write_text(text))
            return
        plain = json.loads(text)
        if stored != plain:
            differing = sorted(key for key in stored.keys() | plain.keys() if stored.get(key) != plain.get(key))
            raise InputError(
                f"{folder} holds the results of another evaluation, which differs in {', '.join(differing)}: choose "
                "another folder, or delete this one"
            )

    def _stored_facts(self) -> dict[str, Any] | None:
        """The facts of the results in the folder; None where there are none."""
        path = self.folder / "run.json"
        try:
            facts = json.loads(path.read_text()) if path.exists() else None
        except ValueError as error:
            raise InputError(f"{path} cannot be read: {error}; choose another folder, or delete this one") from error
        if facts is not None and not isinstance(facts, dict):
            raise InputError(f"{path} does not belong to an evaluation: choose another folder, or delete this one")
        return facts

    def finished(self) -> set[int]:
        """The numbers of the finished units."""
        return {int(path.stem) for path in self._units.glob("*.json")}

    def finish(self, unit: int, rows: Iterable[Row]) -> None:
        """Write the rows of a unit.

        Raises:
            InputError: the disk is full; no partial file stays.
        """
        text = json.dumps(list(rows), default=str)
        write_whole(self._units / f"{unit:06d}.json", lambda file: file.write_text(text))

    def rows(self) -> list[Row]:
        """The rows of all finished units, in the order of their ids."""
        return sorted(unit_rows(self.folder), key=lambda row: row["id"])


def unit_rows(folder: Path) -> list[Row]:
    """The rows of all finished units in a folder of results."""
    return [row for path in sorted((folder / UNITS).glob("*.json")) for row in json.loads(path.read_text())]
