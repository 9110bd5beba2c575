"""A folder of checkpoints, written by Orbax: each whole or not at all, the last ones and the best kept."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from jaxrnn._files.files import check_regular
from jaxrnn._files.messages import first_line
from jaxrnn.errors import InputError, TrainingError, optional_package
from jaxrnn.training.options import Checkpoints
from jaxrnn.training.sharding import is_primary
from jaxrnn.training.snapshots import Snapshot, decode, encode

#: What the folder of a checkpoint that cannot be read is renamed to, so that it is neither read nor counted again.
UNREADABLE = "unreadable-{step}"
#: The folders in that of a checkpoint. Orbax also counts folders of others whose names are numbers.
ITEMS = ("arrays", "facts")


@dataclasses.dataclass
class _Kept:
    """Which checkpoints stay: the newest ones, the best, and what is not ours. It is Orbax's ``PreservationPolicy``."""

    newest: int
    is_ours: Callable[[int], bool]
    best: int | None = None

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        steps = [checkpoint.step for checkpoint in checkpoints]
        ours = sorted(filter(self.is_ours, steps))
        return [step in ours[-self.newest :] or step == self.best or step not in ours for step in steps]


class Folder:
    """The checkpoints of one training.

    Args:
        options: the folder, which is made if it is not there, and how many of the newest ones stay besides the best.
        reading: only read; the folder must be there.

    Raises:
        InputError: the path is no folder and cannot be made one.
        MissingPackageError: Orbax is not installed.
    """

    def __init__(self, options: Checkpoints, *, reading: bool = False):
        self.options = options
        self.path = Path(options.folder).absolute()
        self._kept = _Kept(options.keep, self._is_ours)
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"checkpoints: {self.path} is a file, not a folder")
        if reading and not self.path.is_dir():
            raise InputError(f"there is no folder {self.path}")
        ocp = _orbax()
        policies = ocp.CheckpointManagerOptions(
            create=not reading,
            read_only=reading,
            save_interval_steps=0 if reading else 1,
            cleanup_tmp_directories=not reading,
            # Written before the next update begins: what a caller sees is on the disk, and no thread is left over.
            enable_async_checkpointing=False,
            preservation_policy=self._kept,
            # Of other checkpoints only their numbers count; a damaged one must not keep the others from being read.
            lightweight_initialize=True,
        )
        try:
            with _quiet():
                self._manager = ocp.CheckpointManager(self.path, options=policies, item_names=ITEMS)
        except OSError as error:
            raise InputError(f"checkpoints: the folder {self.path} cannot be used: {error}") from error

    def close(self) -> None:
        """Give back what Orbax holds."""
        with _quiet():
            self._manager.close()

    def steps(self) -> list[int]:
        """The updates after which there is a checkpoint, the oldest first."""
        return sorted(filter(self._is_ours, self._manager.all_steps()))

    def _is_ours(self, step: int) -> bool:
        """Whether a folder is that of a checkpoint, be it a damaged one."""
        return any((self.where(step) / item).is_dir() for item in ITEMS)

    def where(self, step: int) -> Path:
        """The checkpoint after an update."""
        return self.path / str(step)

    def save(self, snapshot: Snapshot, best_step: int | None) -> None:
        """Write a checkpoint, and remove those that are not kept any longer.

        Raises:
            TrainingError: it could not be written; earlier ones are as they were.
        """
        if (step := snapshot.counters.step) in self.steps():
            return  # an interrupt came while it was written, and what it asks for is there
        ocp = _orbax()
        arrays, facts = encode(snapshot)
        before = self._kept.best
        self._kept.best = best_step
        contents = ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), facts=ocp.args.JsonSave(facts))
        try:
            with _quiet(), _deferred_interrupts():
                self._manager.save(step, args=contents, force=True)
        except Exception as error:
            self._kept.best = before
            self._remove_partial()
            reason = first_line(error, 300).rstrip(".")
            raise TrainingError(
                f"the checkpoint after update {step} could not be written to {self.path}: {reason}. "
                f"{self.describe_last(step)}"
            ) from error

    def describe_last(self, before: int | None = None) -> str:
        """A sentence on the newest checkpoint, for a message of what went wrong after it."""
        written = [step for step in self.steps() if before is None or step < before]
        return f"The last good checkpoint is {self.where(written[-1])}." if written else "There is no checkpoint yet."

    def load(self, step: int) -> Snapshot:
        """Read one checkpoint.

        Raises:
            Exception: of many kinds, if it is damaged.
        """
        for path in self.where(step).rglob("*"):
            if not path.is_dir():
                check_regular(path)
        ocp = _orbax()
        contents = ocp.args.Composite(arrays=ocp.args.StandardRestore(), facts=ocp.args.JsonRestore())
        with _quiet():
            restored = self._manager.restore(step, args=contents)
        return decode(restored["arrays"], restored["facts"])

    def newest(self, *, set_aside: bool) -> Snapshot | None:
        """The newest checkpoint that can be read, or None where there is none; the others are skipped with a warning.

        Args:
            set_aside: rename those that cannot be read.

        Raises:
            TrainingError: there are checkpoints, and none can be read.
        """
        steps, damaged = self.steps(), []
        for step in sorted(set(self._manager.all_steps()) - set(steps)):
            warnings.warn(
                f"{self.where(step)} is no checkpoint of a training: it holds neither {' nor '.join(ITEMS)}; it is "
                "passed over, and left as it is",
                stacklevel=2,
            )
        snapshot = None
        for step in reversed(steps):
            try:
                snapshot = self.load(step)
                break
            except Exception as error:
                damaged.append((step, first_line(error, 300).rstrip(".")))
        if snapshot is None and damaged:
            reasons = "; ".join(f"{step}: {reason}" for step, reason in damaged)
            raise TrainingError(f"none of the {len(damaged)} checkpoint(s) in {self.path} can be read ({reasons})")
        for step, reason in damaged:
            warnings.warn(
                f"the checkpoint {self.where(step)} cannot be read ({reason}); going back to that after update "
                f"{snapshot.counters.step if snapshot else 0}",
                stacklevel=2,
            )
        if damaged and set_aside:
            self._set_aside([step for step, _ in damaged])
        return snapshot

    def _set_aside(self, steps: Sequence[int]) -> None:
        if is_primary():
            for step in steps:
                aside = self.path / UNREADABLE.format(step=step)
                shutil.rmtree(aside, ignore_errors=True)
                self.where(step).rename(aside)
        self._manager.reload()

    def _remove_partial(self) -> None:
        """Remove what a write that failed has left."""
        if is_primary():
            for left in self.path.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No messages of Orbax below an error on the console."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def _deferred_interrupts() -> Iterator[None]:
    """An interrupt (Ctrl-C) inside is delivered after it: what is being written is written to its end."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    caught: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: caught.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if caught:
        before(*caught[0])


def _orbax() -> Any:
    with optional_package("orbax-checkpoint", "checkpoints", "train"):
        import orbax.checkpoint as ocp
    return ocp
