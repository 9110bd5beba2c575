"""What watches a training: callbacks, and logs in files, TensorBoard and Weights & Biases."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxrnn._files.messages import as_json
from jaxrnn.errors import InputError, check_count, optional_package

#: The logs of `make_log`.
Name = Literal["csv", "jsonl", "tensorboard", "wandb"]
#: The file of the history, which a folder of checkpoints always has.
HISTORY = "history.jsonl"
#: The most rows of an array that are logged as sounds.
MAX_ROWS = 8


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


class Callback:
    """What `fit` calls while it trains; subclasses define the methods that they need.

    In several processes, only the first process calls callbacks. An exception ends the training.
    """

    def begin(self, training: Running) -> None:
        """Begin, before the first update of this run. A resumed training has a history."""

    def update(self, record: Mapping[str, Any], training: Running) -> None:
        """Take the record of an update, with the validation after it, if any."""

    def end(self) -> None:
        """End, also after an error."""


class LogFile(Callback):
    """Log the history to a file: a JSON object or a CSV row per update.

    A resumed training replaces the file by the history, so that no update is there twice.

    Args:
        path: The file, with the suffix ``.jsonl`` (numbers that are not finite are null) or ``.csv``.

    Raises:
        InputError: The suffix is another, or, when the training begins, the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path, self._columns, self._file = Path(path).absolute(), [], None
        if self.path.suffix not in (".jsonl", ".csv"):
            raise InputError(f"a log is a .jsonl or .csv file, not {path}")

    def begin(self, training: Running) -> None:
        """Write the history."""
        self.end()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", encoding="utf-8", newline="")
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror or error}") from error
        if self.path.suffix == ".csv":
            self._columns = list(dict.fromkeys(key for record in training.history for key in record))
            csv.writer(self._file).writerow(self._columns)
        self._write(training.history)

    def update(self, record: Mapping[str, Any], training: Running) -> None:
        """Add a line. New columns, as of a validation, are written for all updates."""
        if self.path.suffix == ".csv" and not record.keys() <= set(self._columns):
            self.begin(training)
        else:
            self._write([record])

    def _write(self, records: Sequence[Mapping[str, Any]]) -> None:
        assert self._file is not None, "it has begun"
        if self.path.suffix == ".csv":
            csv.writer(self._file).writerows([record.get(key, "") for key in self._columns] for record in records)
        else:
            self._file.writelines(json.dumps(as_json(record)) + "\n" for record in records)
        self._file.flush()

    def end(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class TensorBoard(Callback):
    """Log numbers and sounds for TensorBoard, by the package tensorboardX.

    Args:
        folder: The folder of event files, for ``tensorboard --logdir``.
        sounds: The number of validation examples that are logged as sounds after each validation: all arrays of real
            samples, of the example and of the outputs.
        rate: Samples per second of the sounds.

    Raises:
        InputError: A number is out of range.
        MissingPackageError: The package is missing.
    """

    _package, _extras = "tensorboardX", ("log",)

    def __init__(self, folder: str | os.PathLike[str], sounds: int = 0, rate: int = 16_000):
        self.folder, self.sounds, self.rate = Path(folder), check_count("sounds", sounds, 0), check_count("rate", rate)
        with optional_package(self._package, f"the log {type(self).__name__}", *self._extras):
            self._made: Any = importlib.import_module(self._package)
        self._log: Any = None

    def begin(self, training: Running) -> None:
        """Open an event file, which hides earlier events of updates that a resumed training repeats."""
        done = len(training.history)
        self._log = self._made.SummaryWriter(str(self.folder), purge_step=done + 1 if done else None)

    def update(self, record: Mapping[str, Any], training: Running) -> None:
        """Add the numbers, and the sounds of a validation."""
        sounds = list(self._sounds(training)) if self.sounds and "validation_loss" in record else []
        self._add(record, sounds, record["step"])

    def _add(self, record: Mapping[str, Any], sounds: Sequence[tuple[str, np.ndarray]], step: int) -> None:
        for name in record.keys() - {"step"}:
            self._log.add_scalar(name.replace("validation_", "validation/", 1), record[name], step)
        for name, samples in sounds:
            self._log.add_audio(name, samples[:, None], step, sample_rate=self.rate)

    def _sounds(self, training: Running) -> Iterator[tuple[str, np.ndarray]]:
        for number, arrays in enumerate(training.examples(self.sounds)):
            for name, array in arrays.items():
                rows = np.atleast_2d(np.squeeze(array))
                if rows.dtype.kind == "f" and rows.ndim == 2 and len(rows) <= MAX_ROWS < rows.shape[1]:
                    for place, row in enumerate(rows):
                        which = name if len(rows) == 1 else f"{name}_{place}"
                        yield f"example_{number}/{which}", np.clip(np.nan_to_num(row), -1, 1)

    def end(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()


class WandB(TensorBoard):
    """Log numbers and sounds to Weights & Biases, by the package wandb. A resumed training continues its run.

    Args:
        folder: The folder of the files of wandb, and of ``wandb.id`` with the name of the run.
        sounds: As in `TensorBoard`.
        rate: Samples per second of the sounds.
        project: The project of the run.

    Raises:
        InputError: A number is out of range.
        MissingPackageError: The package is missing.
    """

    _package, _extras = "wandb", ()

    def __init__(self, folder: str | os.PathLike[str], sounds: int = 0, rate: int = 16_000, project: str = "jaxrnn"):
        super().__init__(folder, sounds, rate)
        self.project = project

    def begin(self, training: Running) -> None:
        """Begin the run, or continue it; Weights & Biases ignores updates that it already has."""
        self.folder.mkdir(parents=True, exist_ok=True)
        known = self.folder / "wandb.id"
        if not training.history or not known.is_file():
            known.write_text(uuid.uuid4().hex, encoding="utf-8")
        run = known.read_text(encoding="utf-8")
        self._log = self._made.init(project=self.project, dir=str(self.folder), id=run, resume="allow")

    def _add(self, record: Mapping[str, Any], sounds: Sequence[tuple[str, np.ndarray]], step: int) -> None:
        heard = {name: self._made.Audio(samples, sample_rate=self.rate) for name, samples in sounds}
        self._log.log({**record, **heard}, step=step)

    def end(self) -> None:
        """End the run."""
        if self._log is not None:
            self._log.finish()


def make_log(
    to: Name | list[Name],
    folder: str | os.PathLike[str] | None = None,
    sounds: int = 0,
    rate: int | None = None,
    project: str = "jaxrnn",
) -> list[Callback]:
    """Return the logs of a training with a settings file.

    Args:
        to: The logs: `csv`, `jsonl`, `tensorboard` and `wandb`. A run folder always has `history.jsonl`.
        folder: The run folder; by default the folder of checkpoints.
        sounds: Number of validation examples that `tensorboard` and `wandb` log as sounds after each validation.
        rate: Samples per second of the sounds; by default the rate of `data.recordings`, or 16000.
        project: The project of `wandb`.
    """
    place, heard = Path(folder or ""), (sounds, rate or 16_000)
    make: dict[str, Callable[[], Callback]] = {
        "csv": lambda: LogFile(place / "history.csv"),
        "jsonl": lambda: LogFile(place / HISTORY),
        "tensorboard": lambda: TensorBoard(place / "tensorboard", *heard),
        "wandb": lambda: WandB(place, *heard, project),
    }
    return [make[name]() for name in dict.fromkeys([*([to] if isinstance(to, str) else to), "jsonl"])]
