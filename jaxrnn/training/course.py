"""How far a training is: everything that an update or a validation changes, and that in a checkpoint."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxrnn.errors import TrainingError
from jaxrnn.training.examples import Position
from jaxrnn.training.history import Record
from jaxrnn.training.sharding import Placement, as_key, host
from jaxrnn.training.snapshots import Snapshot
from jaxrnn.training.updates import TrainState


@dataclasses.dataclass
class Course:
    """A training behind its last update that is known to be good.

    Attributes:
        state: what updates change.
        step: updates done.
        position: the place of the next update.
        history: one record for each update.
        best: the trained parameters with the best validation loss; empty before the first validation.
        best_step: behind which update they were.
        best_loss: their validation loss, or None.
        waited: validations since then.
        validated: the last update behind which there was a validation.
    """

    state: TrainState
    step: int = 0
    position: Position = dataclasses.field(default_factory=Position)
    history: list[Record] = dataclasses.field(default_factory=list)
    best: dict[str, Any] = dataclasses.field(default_factory=dict)
    best_step: int = 0
    best_loss: float | None = None
    waited: int = 0
    validated: int = 0
    _seconds_before: float = 0.0
    _began: float = dataclasses.field(default_factory=time.monotonic)

    def start_clock(self) -> None:
        """Count the seconds of training from here on."""
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Of training, in all runs."""
        return self._seconds_before + time.monotonic() - self._began

    def add(self, state: TrainState, position: Position, record: Record) -> None:
        """Count an update as done."""
        self.history.append(record)
        self.state, self.step, self.position = state, record["step"], position

    def forget_uncounted(self) -> None:
        """Drop the record of an update that was interrupted between being recorded and being counted."""
        del self.history[self.step :]

    def judge(self, found: Mapping[str, float]) -> None:
        """Take note of a validation behind the last update."""
        self.history[-1] |= {f"validation_{name}": value for name, value in found.items()}
        if self.best_loss is None or found["loss"] < self.best_loss:
            self.best, self.best_step, self.best_loss = host(self.state.trained), self.step, found["loss"]
            self.waited = 0
        else:
            self.waited += 1
        self.validated = self.step

    def snapshot(self, placement: Placement, settings: dict[str, Any], frozen: Mapping[str, Any]) -> Snapshot:
        """All of it in host memory, to be written to a checkpoint."""
        optimizer, _ = _named(self.state.optimizer)
        return Snapshot(
            settings=settings,
            step=self.step,
            position=self.position,
            trained=host(self.state.trained),
            frozen=host(dict(frozen)),
            optimizer=host(optimizer),
            carry=placement.gather(self.state.carry),
            best={} if self.best_step == self.step else dict(self.best),
            best_step=self.best_step,
            best_loss=self.best_loss,
            waited=self.waited,
            validated=self.validated,
            seconds=self.seconds,
            history=self.history,
        )

    def restore(self, snapshot: Snapshot, placement: Placement) -> None:
        """Go on from a checkpoint.

        Raises:
            TrainingError: the state of the optimizer is of another kind.
        """
        named, structure = _named(self.state.optimizer)
        here = {name: (array.dtype.name, array.shape) for name, array in host(named).items()}
        there = {name: (array.dtype.name, array.shape) for name, array in snapshot.optimizer.items()}
        if here != there:
            name = next(name for name in {**there, **here} if there.get(name) != here.get(name))
            raise TrainingError(
                f"the checkpoint was written with another optimizer: its state has {_kind(there.get(name))} for "
                f"{name}, and here it has {_kind(here.get(name))}; choose another folder, or the same optimizer"
            )
        self.state = TrainState(
            placement.replicate(snapshot.trained),
            placement.replicate(structure.unflatten([as_key(snapshot.optimizer[n], x) for n, x in named.items()])),
            placement.replicate(np.int32(snapshot.step)),
            placement.spread(placement.own(snapshot.carry)),
        )
        for field in ("step", "position", "best_step", "best_loss", "waited", "validated"):
            setattr(self, field, getattr(snapshot, field))
        self.history = list(snapshot.history)
        self.best = snapshot.best_or_last() if snapshot.best_loss is not None else {}
        self._seconds_before = snapshot.seconds


def _named(tree: Any) -> tuple[dict[str, Any], Any]:
    """The arrays of a tree by their paths, and its structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}, structure


def _kind(found: tuple[str, tuple[int, ...]] | None) -> str:
    return "nothing" if found is None else f"{found[0]}{list(found[1])}"
