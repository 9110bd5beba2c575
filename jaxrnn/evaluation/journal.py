"""What is done, on disk: a file for every finished unit, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxrnn.errors import InputError
from jaxrnn.writing import in_place_of

Row = dict[str, Any]


def fingerprint(facts: Any) -> str:
    """A short name for what decides on results."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


class Journal:
    """The finished units of an evaluation.

    Args:
        folder: where results go; made where it is not there.
        facts: what decides on results: corpus, models, settings.

    Raises:
        InputError: the folder holds the results of something else, or cannot be written.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any]):
        self.folder, self._units = folder, folder / "units"
        try:
            self._units.mkdir(parents=True, exist_ok=True)
            known = self._known()
            if known is None:
                self._write(folder / "run.json", json.dumps(facts, indent=1, sort_keys=True, default=str))
        except OSError as error:
            raise InputError(f"{folder} cannot be written: {error.strerror or error}") from error
        plain = json.loads(json.dumps(facts, sort_keys=True, default=str))
        if known is not None and known != plain:
            differing = sorted(key for key in known.keys() | plain.keys() if known.get(key) != plain.get(key))
            raise InputError(
                f"{folder} holds the results of another evaluation, which differs in {', '.join(differing)}: choose "
                "another folder, or delete this one"
            )

    def _known(self) -> dict[str, Any] | None:
        """What decided on the results that are there; None where there are none."""
        path = self.folder / "run.json"
        try:
            known = json.loads(path.read_text()) if path.exists() else None
        except ValueError as error:
            raise InputError(f"{path} cannot be read: {error}; choose another folder, or delete this one") from error
        if known is not None and not isinstance(known, dict):
            raise InputError(f"{path} is not of an evaluation: choose another folder, or delete this one")
        return known

    def _write(self, path: Path, text: str) -> None:
        with in_place_of(path) as written:
            written.write_text(text)

    def finished(self) -> set[int]:
        """The numbers of the units that are done."""
        return {int(path.stem) for path in self._units.glob("*.json")}

    def finish(self, unit: int, rows: Iterable[Row]) -> None:
        """Keep the rows of a unit.

        Raises:
            InputError: the disk is full; nothing half-written stays.
        """
        try:
            self._write(self._units / f"{unit:06d}.json", json.dumps(list(rows), default=str))
        except OSError as error:
            raise InputError(
                f"the results cannot be written to {self._units}: {error.strerror or error}. What is finished is kept; "
                "make room and run again"
            ) from error

    def rows(self) -> list[Row]:
        """The rows of all finished units, in the order of their ids."""
        rows = [row for path in sorted(self._units.glob("*.json")) for row in json.loads(path.read_text())]
        return sorted(rows, key=lambda row: row["id"])
