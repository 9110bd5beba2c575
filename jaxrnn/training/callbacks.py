"""What watches a training: the protocol of callbacks, and loggers to files, TensorBoard and Weights & Biases."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from jaxrnn._files.messages import as_json
from jaxrnn._files.stores import Url, location
from jaxrnn.errors import InputError, check_count, optional_package

#: The record of an update: named numbers, as in `Fitted.history`.
Record = Mapping[str, Any]
#: The names of files in the folder of a training.
JSONL, CSV, TENSORBOARD, WANDB = "history.jsonl", "history.csv", "tensorboard", "wandb.id"
#: Rows of an array that are logged as sounds.
MAX_ROWS = 8


@dataclasses.dataclass(frozen=True)
class Running:
    """A training in progress, as callbacks see it.

    Attributes:
        history: The records so far, of earlier runs too.
        params: A function that returns all parameters after the update of the record; averages, if there are any.
        examples: A function that returns the first validation examples, up to a number, each with the arrays of the
            example and the outputs of the model.
    """

    history: Sequence[Record]
    params: Callable[[], dict[str, Any]]
    examples: Callable[[int], Iterator[dict[str, Any]]]


class Callback:
    """What is called while `fit` trains; subclasses replace the methods that they need.

    In several processes, only the first process calls callbacks. An exception ends the training.
    """

    def begin(self, training: Running) -> None:
        """Begin, before the first update of this run. A resumed training has a history."""

    def update(self, record: Record, training: Running) -> None:
        """Take the record of an update, with the validation after it. The call follows while the next one computes."""

    def end(self) -> None:
        """End, also after an error."""


class _File(Callback):
    """A log in a file, which at first holds the history of earlier runs: no update is there twice."""

    def __init__(self, path: str | os.PathLike[str]):
        if isinstance(location(path), Url):
            raise InputError(f"a training is logged to a file on this machine, not to the URL {path}")
        self.path = Path(path).absolute()
        self._file: IO[str] | None = None

    def begin(self, training: Running) -> None:
        self.end()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", encoding="utf-8", newline="")
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror or error}") from error
        self._write(training.history)

    def update(self, record: Record, training: Running) -> None:
        self._write([record])

    def _write(self, records: Sequence[Record]) -> None:
        assert self._file is not None, "it has begun"
        self._file.writelines(map(self._line, records))
        self._file.flush()

    def _line(self, record: Record) -> str:
        raise NotImplementedError

    def end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class JsonLines(_File):
    """Log a JSON object per update to a file. Numbers that are not finite become null.

    Args:
        path: The file. A resumed training replaces what is there by the history.

    Raises:
        InputError: The path is a URL.
    """

    def _line(self, record: Record) -> str:
        return json.dumps(as_json(record)) + "\n"


class Csv(_File):
    """Log a row per update to a CSV file. Columns of numbers that come later, as of validations, are empty before.

    Args:
        path: The file. A resumed training replaces what is there by the history.

    Raises:
        InputError: The path is a URL.
    """

    def begin(self, training: Running) -> None:
        """Write the history."""
        self._columns: list[str] = []
        super().begin(training)

    def update(self, record: Record, training: Running) -> None:
        """Add a row, or write the file again with new columns."""
        if record.keys() <= set(self._columns):
            super().update(record, training)
        else:
            super().begin(training)

    def _write(self, records: Sequence[Record]) -> None:
        assert self._file is not None, "it has begun"
        table = csv.writer(self._file)
        if not self._file.tell():
            self._columns = list(dict.fromkeys(key for record in records for key in record))
            table.writerow(self._columns)
        table.writerows([record.get(key, "") for key in self._columns] for record in records)
        self._file.flush()


@dataclasses.dataclass
class _Sounds(Callback):
    """A log that also has sounds: examples of the validation after each validation."""

    folder: str | os.PathLike[str]
    sounds: int = 0
    rate: int = 16_000

    def __post_init__(self):
        check_count("sounds", self.sounds, 0)
        check_count("rate", self.rate)
        if isinstance(location(self.folder), Url):
            raise InputError(f"a training is logged to a folder on this machine, not to the URL {self.folder}")

    def named_sounds(self, record: Record, training: Running) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the name and the samples of each sound of a record with a validation."""
        if not self.sounds or "validation_loss" not in record:
            return
        for number, arrays in enumerate(training.examples(self.sounds)):
            for name, array in arrays.items():
                rows = np.atleast_2d(np.squeeze(np.asarray(array)))
                if rows.dtype.kind != "f" or rows.ndim > 2 or len(rows) > MAX_ROWS or rows.shape[1] < 2:
                    continue
                for place, row in enumerate(rows):
                    which = name if len(rows) == 1 else f"{name}_{place}"
                    yield f"example_{number}/{which}", np.clip(np.nan_to_num(row), -1, 1)


class TensorBoard(_Sounds):
    """Log numbers and sounds for TensorBoard, by the package tensorboardX.

    Args:
        folder: The folder of event files, for ``tensorboard --logdir``.
        sounds: The number of validation examples whose sounds are logged after each validation: all real arrays of
            samples of the example and of the outputs.
        rate: Samples per second of the sounds.

    Raises:
        InputError: A number is out of range, or the folder is a URL.
        MissingPackageError: tensorboardX is missing.
    """

    def __post_init__(self):
        super().__post_init__()
        with optional_package("tensorboardX", "logging to TensorBoard", "log"):
            self._package: Any = importlib.import_module("tensorboardX")

    def begin(self, training: Running) -> None:
        """Open an event file, which hides events of updates that a resumed training repeats."""
        done = len(training.history)
        self._writer = self._package.SummaryWriter(str(self.folder), purge_step=done + 1 if done else None)

    def update(self, record: Record, training: Running) -> None:
        """Add the numbers, and the sounds of a validation."""
        step = record["step"]
        for name, value in record.items():
            if name != "step":
                self._writer.add_scalar(name.replace("validation_", "validation/", 1), value, step)
        for name, samples in self.named_sounds(record, training):
            self._writer.add_audio(name, samples[:, None], step, sample_rate=self.rate)

    def end(self) -> None:
        """Close the event file."""
        if (writer := getattr(self, "_writer", None)) is not None:
            writer.close()


@dataclasses.dataclass
class WandB(_Sounds):
    """Log numbers and sounds to Weights & Biases, by the package wandb. A resumed training continues its run.

    Args:
        folder: The folder for the files of wandb, and for ``wandb.id`` with the name of the run.
        sounds: As in `TensorBoard`.
        rate: Samples per second of the sounds.
        project: The project of the run.

    Raises:
        InputError: A number is out of range, or the folder is a URL.
        MissingPackageError: wandb is missing.
    """

    project: str = "jaxrnn"

    def __post_init__(self):
        super().__post_init__()
        with optional_package("wandb", "logging to Weights & Biases"):
            self._package: Any = importlib.import_module("wandb")

    def begin(self, training: Running) -> None:
        """Begin the run, or continue it."""
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        known = folder / WANDB
        if not training.history or not known.is_file():
            known.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
        self._run = self._package.init(
            project=self.project, dir=str(folder), id=known.read_text(encoding="utf-8").strip(), resume="allow"
        )

    def update(self, record: Record, training: Running) -> None:
        """Add the numbers, and the sounds of a validation. Weights & Biases ignores updates that it already has."""
        make = self._package.Audio
        sounds = {name: make(x, sample_rate=self.rate) for name, x in self.named_sounds(record, training)}
        self._run.log({**record, **sounds}, step=record["step"])

    def end(self) -> None:
        """End the run."""
        if (run := getattr(self, "_run", None)) is not None:
            run.finish()
