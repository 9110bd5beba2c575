"""Callbacks of a training: early stopping, and logs in files, TensorBoard and Weights & Biases."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import io
import json
import math
import os
import uuid
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrnn._files.messages import as_json, near_or_all, short_repr
from jaxrnn.errors import InputError, check_count, optional_package

#: The file of the history, which a folder of checkpoints always has.
HISTORY = "history.jsonl"
#: The most rows of an array that are logged as sounds.
MAX_ROWS = 8


@short_repr
@dataclasses.dataclass(frozen=True)
class Running:
    """A training in progress, as callbacks see it.

    Attributes:
        history: The records so far, of earlier runs too.
        params: A function that returns all parameters after the update of the record; averages, if there are any.
        examples: A function that yields the first validation examples up to a number, with the outputs of the model.
    """

    history: Sequence[Mapping[str, Any]]
    params: Callable[[], dict[str, Any]]
    examples: Callable[[int], Iterator[dict[str, Any]]]


class StopTraining(Exception):  # noqa: N818 - as Python names StopIteration
    """Raised by the `begin` or `update` of a callback: the training ends as at its last update.

    After a validation it ends at once, and otherwise at most two updates later. A text becomes `Fitted.stopped`.
    """


class Callback:
    """Methods that `fit` calls while it trains, in the first of several processes; define the methods that you need.

    `StopTraining` ends the training. Another exception ends it as an error, after a checkpoint of all updates.
    """

    def begin(self, training: Running) -> None:
        """Begin, before the first update of this run. A resumed training has a history."""

    def update(self, record: Mapping[str, Any], training: Running) -> None:
        """Take the record of an update, with the validation after it, if any."""

    def end(self) -> None:
        """End, also after an error."""


class EarlyStopping(Callback):
    """A callback that stops a training after ``patience`` validations in a row without a better loss.

    A resumed training counts all validations of its history. `Fitted.stopped` is ``"patience"``.

    Raises:
        InputError: ``patience`` is not a whole number from 1 on.
    """

    def __init__(self, patience: int):
        self.patience = check_count("patience", patience)
        self._best, self._since = math.inf, 0

    def begin(self, training: Running) -> None:
        """Count the validations so far."""
        self._best, self._since = math.inf, 0
        self._count(training.history)

    def update(self, record: Mapping[str, Any], training: Running) -> None:
        """Count a validation."""
        self._count([record])

    def _count(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Count validations, and stop the training if the last ones gave no better loss."""
        for loss in (record["validation_loss"] for record in records if "validation_loss" in record):
            self._best, self._since = min(loss, self._best), 0 if loss < self._best else self._since + 1
        if self._since >= self.patience:
            raise StopTraining("patience")


def logs(
    to: str | list[str],
    folder: str | os.PathLike[str] | None = None,
    *,
    sounds: int = 0,
    rate: int | None = None,
    project: str = "jaxrnn",
) -> list[Callback]:
    """Return callbacks that log each update: losses, metrics, learning rate and norms, and examples of sound.

    A resumed training continues its logs, in which no update is there twice. Numbers that are not finite are null in
    JSON.

    Args:
        to: The logs: `csv`, `jsonl`, `tensorboard` (by tensorboardX) and `wandb`. A run folder always has
            `history.jsonl`.
        folder: The run folder; by default the folder of checkpoints.
        sounds: Number of validation examples that `tensorboard` and `wandb` log as sounds after each validation: all
            real samples of an example and of the outputs. Without validation examples, a warning says that no sounds
            are logged.
        rate: Samples per second of the sounds; by default 16000, or the rate of `data.recordings`.
        project: The project of `wandb`.

    Raises:
        InputError: There is no folder, or an argument does not fit.
        MissingPackageError: tensorboardX or wandb is missing.
    """
    if folder is None:
        raise InputError("logs need a folder, or checkpoints")
    place, heard = (
        Path(folder),
        (check_count("sounds", sounds, 0), check_count("rate", 16_000 if rate is None else rate)),
    )
    make: dict[str, Callable[[], Callback]] = {
        "csv": lambda: LogFile(place / "history.csv"),
        "jsonl": lambda: LogFile(place / HISTORY),
        "tensorboard": lambda: _TensorBoard("tensorboardX", ["log"], place / "tensorboard", *heard),
        "wandb": lambda: _WandB("wandb", [], place, *heard, project),
    }
    names = dict.fromkeys([*([to] if isinstance(to, str) else to), "jsonl"])
    if unknown := [name for name in names if name not in make]:
        raise InputError(f"there is no log {unknown[0]!r}{near_or_all(unknown[0], make)}")
    return [make[name]() for name in names]


class LogFile(Callback):
    """A JSON object or a CSV row per update. A resumed training replaces the file by the history."""

    def __init__(self, path: Path):
        self.path, self._file, self._table = path.absolute(), io.StringIO(), None

    def begin(self, training: Running) -> None:
        """Write the history."""
        self.end()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", encoding="utf-8", newline="")
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror or error}") from error
        if self.path.suffix == ".csv":
            columns = dict.fromkeys(key for record in training.history for key in record)
            self._table = csv.DictWriter(self._file, list(columns))
            self._table.writeheader()
        self._write(training.history)

    def update(self, record: Mapping[str, Any], training: Running) -> None:
        """Add a line."""
        if self._table is not None and not record.keys() <= set(self._table.fieldnames):
            self.begin(training)  # with new columns, as of a validation
        else:
            self._write([record])

    def _write(self, records: Sequence[Mapping[str, Any]]) -> None:
        if self._table is not None:
            self._table.writerows(records)
        else:
            self._file.writelines(json.dumps(as_json(record)) + "\n" for record in records)
        self._file.flush()

    def end(self) -> None:
        """Close the file."""
        self._file.close()


@dataclasses.dataclass
class _TensorBoard(Callback):
    package: str
    extras: Sequence[str]
    folder: Path
    sounds: int
    rate: int
    project: str = ""
    log: Any = None

    def __post_init__(self):
        with optional_package(self.package, f"the log {type(self).__name__[1:]}", *self.extras):
            self.made: Any = importlib.import_module(self.package)

    def begin(self, training: Running) -> None:
        if self.sounds and next(training.examples(1), None) is None:
            warnings.warn(
                "no sounds are logged, because there are no validation examples: give `validation`, or `sounds=0`",
                stacklevel=2,
            )
        self.log = self.opened(training)

    def opened(self, training: Running) -> Any:
        # TensorBoard hides earlier events of updates that a resumed training repeats.
        done = len(training.history)
        options = {"purge_step": done + 1, "flush_secs": 1} if done else {"flush_secs": 1}
        known = values_in(self.folder)
        writer = self.made.SummaryWriter(str(self.folder), **options)
        for record in training.history:  # which a killed process had not written yet
            _write_numbers(writer, record, known)
        return writer

    def update(self, record: Mapping[str, Any], training: Running) -> None:
        _write_numbers(self.log, record)
        for name, samples in self.heard(record, training):
            self.log.add_audio(name, samples[:, None], record["step"], sample_rate=self.rate)

    def heard(self, record: Mapping[str, Any], training: Running) -> Iterator[tuple[str, np.ndarray]]:
        count = self.sounds if "validation_loss" in record else 0
        for number, arrays in enumerate(training.examples(count)):
            for name, array in arrays.items():
                rows = np.atleast_2d(np.squeeze(array))
                if rows.dtype.kind == "f" and rows.ndim == 2 and len(rows) <= MAX_ROWS < rows.shape[1]:
                    for place, row in enumerate(rows):
                        which = name if len(rows) == 1 else f"{name}_{place}"
                        yield f"example_{number}/{which}", np.clip(np.nan_to_num(row), -1, 1)

    def end(self) -> None:
        if self.log is not None:
            self.log.close()


def _write_numbers(writer: Any, record: Mapping[str, Any], known: Container[tuple[int, str]] = ()) -> None:
    for name in record.keys() - {"step"}:
        tag = name.replace("validation_", "validation/", 1)
        if (record["step"], tag) not in known:
            writer.add_scalar(tag, record[name], record["step"])


def values_in(folder: Path) -> dict[tuple[int, str], float]:
    """Return the values that TensorBoard shows of the files in a folder, by update and name; 0 for sounds.

    The first event of a resumed training hides earlier events from the same update on.
    """
    found: dict[tuple[int, str], float] = {}
    for event in _events_in(folder):
        if event.HasField("session_log"):
            found = {key: value for key, value in found.items() if key[0] < event.step}
        found |= {(event.step, each.tag): each.simple_value for each in event.summary.value}
    return found


def _events_in(folder: Path) -> Iterator[Any]:
    """Yield the events of TensorBoard's files in a folder.

    A record is its length, a checksum, an event and another checksum. A killed process leaves an incomplete last one.
    """
    for path in sorted(folder.glob("*.tfevents.*")):
        rest = memoryview(path.read_bytes())
        while len(rest) >= 12 and len(rest) >= (size := 16 + int.from_bytes(rest[:8], "little")):
            yield importlib.import_module("tensorboardX.proto.event_pb2").Event.FromString(bytes(rest[12 : size - 4]))
            rest = rest[size:]


class _WandB(_TensorBoard):
    def opened(self, training: Running) -> Any:
        self.folder.mkdir(parents=True, exist_ok=True)
        known = self.folder / "wandb.id"
        if not training.history or not known.is_file():
            known.write_text(uuid.uuid4().hex, encoding="utf-8")
        run = known.read_text(encoding="utf-8")
        return self.made.init(project=self.project, dir=str(self.folder), id=run, resume="allow")

    def update(self, record: Mapping[str, Any], training: Running) -> None:
        # Weights & Biases ignores updates that it already has.
        heard = {name: self.made.Audio(x, sample_rate=self.rate) for name, x in self.heard(record, training)}
        self.log.log({**record, **heard}, step=record["step"])

    def end(self) -> None:
        if self.log is not None:
            self.log.finish()
