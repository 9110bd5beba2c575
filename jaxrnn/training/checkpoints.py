"""A folder of checkpoints written by Orbax, each complete or absent: the newest and the best are kept."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

from jaxrnn._files.messages import first_line
from jaxrnn._files.stores import check_regular
from jaxrnn._files.writing import deferred_interrupts, locked, remove_folder
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError, TrainingError, optional_package
from jaxrnn.model import Model
from jaxrnn.training.agreement import check_shared, digest_of_all
from jaxrnn.training.options import Checkpoints
from jaxrnn.training.sharding import Placement, is_primary
from jaxrnn.training.train_state import Snapshot, decode, encode

#: New name of the folder of an unreadable checkpoint, which is then neither read nor counted.
UNREADABLE = "unreadable-{step}"
#: The folders inside a checkpoint. Orbax takes any folder with a number as name for a checkpoint.
ITEMS = ("arrays", "facts")


@dataclasses.dataclass
class _Kept:
    newest: int
    is_ours: Callable[[int], bool]
    best: int | None = None

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        steps = [checkpoint.step for checkpoint in checkpoints]
        ours = sorted(filter(self.is_ours, steps))
        return [step in ours[-self.newest :] or step == self.best or step not in ours for step in steps]


@contextlib.contextmanager
def open_folder(options: Checkpoints, placement: Placement) -> Iterator[Folder]:
    """Open a folder of checkpoints as the only training that writes to it. All processes raise an error together."""
    path, problem = Path(options.folder).absolute(), None
    check_shared(placement, path)
    with contextlib.ExitStack() as stack:
        try:
            check_folder(path)
            if is_primary():
                stack.enter_context(locked(path, "keeps the checkpoints of a training"))
        except InputError as error:
            problem = error
        except OSError as error:
            problem = InputError(f"checkpoints: the folder {path} cannot be used: {error.strerror or error}")
        placement.agree([], problem)
        yield stack.enter_context(closing(Folder(options)))


def check_folder(path: Path) -> None:
    """Check that a path can be a folder of checkpoints."""
    if path.exists() and not path.is_dir():
        raise InputError(f"checkpoints: {path} is a file, not a folder")


class Folder:
    """The checkpoints of a training. With ``reading``, the folder must exist and is not changed."""

    def __init__(self, options: Checkpoints, *, reading: bool = False):
        self.options = options
        self.path = Path(options.folder).absolute()
        self._kept = _Kept(options.keep, self._is_ours)
        check_folder(self.path)
        if reading and not self.path.is_dir():
            raise InputError(f"there is no folder {self.path}")
        ocp = _orbax()
        policies = ocp.CheckpointManagerOptions(
            create=not reading,
            read_only=reading,
            save_interval_steps=0 if reading else 1,
            cleanup_tmp_directories=not reading,
            # Checkpoints are on the disk before the next update, and no thread remains.
            enable_async_checkpointing=False,
            preservation_policy=self._kept,
            # A damaged checkpoint must not prevent reading other checkpoints.
            lightweight_initialize=True,
        )
        try:
            with _quiet():
                self._manager = ocp.CheckpointManager(self.path, options=policies, item_names=ITEMS)
        except OSError as error:
            raise InputError(f"checkpoints: the folder {self.path} cannot be used: {error}") from error

    def close(self) -> None:
        """Release Orbax's resources."""
        with _quiet():
            self._manager.close()

    def steps(self) -> list[int]:
        """Return the updates with a checkpoint, oldest first."""
        return sorted(filter(self._is_ours, self._manager.all_steps()))

    def _is_ours(self, step: int) -> bool:
        return any((self.where(step) / item).is_dir() for item in ITEMS)

    def where(self, step: int) -> Path:
        """Return the path of the checkpoint after an update."""
        return self.path / str(step)

    def save(self, snapshot: Snapshot, best_step: int | None) -> None:
        """Write a checkpoint, and remove old checkpoints. An error leaves earlier checkpoints unchanged."""
        step, ocp = snapshot.counters.step, _orbax()
        arrays, facts = encode(snapshot)
        before = self._kept.best
        self._kept.best = best_step
        contents = ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), facts=ocp.args.JsonSave(facts))
        try:
            with _quiet(), deferred_interrupts():
                self._manager.save(step, args=contents, force=True)
        except Exception as error:
            self._kept.best = before
            if is_primary():
                for partial in self.path.glob("*.orbax-checkpoint-tmp*"):
                    remove_folder(partial)
            reason = first_line(error, 300).rstrip(".")
            raise TrainingError(
                f"the checkpoint after update {step} could not be written to {self.path}: {reason}. "
                f"{self.describe_last(step)}"
            ) from error

    def describe_last(self, before: int | None = None) -> str:
        """Return a sentence about the newest checkpoint."""
        written = [step for step in self.steps() if before is None or step < before]
        return f"The last good checkpoint is {self.where(written[-1])}." if written else "There is no checkpoint yet."

    def load(self, step: int) -> Snapshot:
        """Read a checkpoint. A damaged checkpoint raises exceptions of many types."""
        for path in self.where(step).rglob("*"):
            if not path.is_dir():
                check_regular(path)
        ocp = _orbax()
        contents = ocp.args.Composite(arrays=ocp.args.StandardRestore(), facts=ocp.args.JsonRestore())
        with _quiet():
            restored = self._manager.restore(step, args=contents)
        return decode(restored["arrays"], restored["facts"])

    def newest(self, *, set_aside: bool) -> Snapshot | None:
        """Return the newest readable checkpoint, or None without checkpoints; warn of skipped folders.

        ``set_aside`` renames unreadable checkpoints. A TrainingError reports that no checkpoint is readable.
        """
        steps, damaged = self.steps(), []
        for step in sorted(set(self._manager.all_steps()) - set(steps)):
            warnings.warn(
                f"{self.where(step)} is not a checkpoint of a training: the folder has neither {' nor '.join(ITEMS)}; "
                "it is skipped, and not changed",
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
            for step, _ in damaged if is_primary() else ():
                aside = self.path / UNREADABLE.format(step=step)
                remove_folder(aside)
                self.where(step).rename(aside)
            self._manager.reload()
        return snapshot


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _orbax() -> Any:
    with optional_package("orbax-checkpoint", "checkpoints", "train"):
        import orbax.checkpoint as ocp
    return ocp


def load_checkpoint(
    folder: str | os.PathLike[str], model: Model | None = None, *, step: int | None = None, best: bool = True
) -> dict[str, jax.Array]:
    """Return the parameters of a training with ``checkpoints=folder``.

    Args:
        folder: The folder of checkpoints.
        model: The trained model, to get all parameters. Without a model, the result has only the trained parameters,
            and frozen parameters that differ from the file.
        step: The update to load; by default the newest readable checkpoint.
        best: True for the parameters with the best validation loss so far, if there was validation; False for the last
            parameters. With ``step``, the parameters after that update in any case.

    Returns:
        A dict of arrays, in the types of the file.

    Raises:
        InputError: The folder or the checkpoint does not exist, or belongs to another model.
        TrainingError: The checkpoint is damaged.
        MissingPackageError: Orbax is missing.
    """
    with closing(Folder(Checkpoints(folder), reading=True)) as opened:
        steps = opened.steps()
        if not steps:
            raise InputError(f"there is no checkpoint in {opened.path}")
        if step is None:
            snapshot = opened.newest(set_aside=False)
        elif step not in steps:
            raise InputError(f"there is no checkpoint after update {step} in {opened.path}; there are: {steps}")
        else:
            try:
                snapshot = opened.load(step)
            except Exception as error:
                raise TrainingError(f"the checkpoint {opened.where(step)} cannot be read: {error}") from error
        where = opened.path
    assert snapshot is not None, "there are checkpoints"
    trained = snapshot.best_or_last() if best and step is None else snapshot.trained
    with exact_types():
        types = {
            name: np.dtype(getattr(ml_dtypes, kind, kind))
            for name, (kind, *_) in snapshot.settings["model"]["parameters"].items()
        }
        arrays = {name: jax.device_put(x.astype(types[name])) for name, x in {**snapshot.frozen, **trained}.items()}
    return arrays if model is None else _completed(arrays, model, snapshot, f"the checkpoints in {where}")


def _completed(arrays: dict[str, jax.Array], model: Model, snapshot: Snapshot, what: str) -> dict[str, jax.Array]:
    expected = model.program.parameters
    for name, array in arrays.items():
        if name not in expected or array.shape != expected[name].shape or array.dtype != expected[name].dtype:
            have = "has none" if name not in expected else f"has {expected[name].dtype}{list(expected[name].shape)}"
            raise InputError(
                f"{what} are of another model: they have {array.dtype}{list(array.shape)} for parameter {name!r}, and "
                f"{model.label} {have}"
            )
    values = {**model.params, **arrays}
    frozen = {name: values[name] for name in expected if name not in snapshot.trained}
    if digest_of_all(frozen) != snapshot.settings["frozen parameters"]:
        raise InputError(
            f"{what} were written for a model whose frozen parameters have other values than those of {model.label}"
        )
    return {name: values[name] for name in expected}
