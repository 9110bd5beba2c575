"""The state of a training: everything that an update or a validation changes, and that in a checkpoint."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import jax

from jaxrnn.errors import TrainingError
from jaxrnn.training.order import Position
from jaxrnn.training.sharding import Placement, as_key, host
from jaxrnn.training.snapshots import Counters, Record, Snapshot
from jaxrnn.training.updates import UpdateState


@dataclasses.dataclass
class TrainState:
    """A training after its last update that is known to be good.

    Attributes:
        arrays: what updates change.
        settings: what decides its course, which a checkpoint must have in common with it.
        frozen: the frozen parameters that are not the file's.
        counters: how far it is.
        history: one record for each update.
        best: the trained parameters with the best validation loss; empty before the first validation.
    """

    arrays: UpdateState
    settings: dict[str, Any]
    frozen: Mapping[str, Any]
    counters: Counters = dataclasses.field(default_factory=Counters)
    history: list[Record] = dataclasses.field(default_factory=list)
    best: dict[str, Any] = dataclasses.field(default_factory=dict)
    _began: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def step(self) -> int:
        """Updates done."""
        return self.counters.step

    def start_clock(self) -> None:
        """Count the seconds of training from here on."""
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Of training, in all runs."""
        return self.counters.seconds + time.monotonic() - self._began

    def add(self, arrays: UpdateState, position: Position, record: Record) -> None:
        """Count an update as done."""
        counters = dataclasses.replace(self.counters, step=record["step"], position=position)
        self.history.append(record)
        self.arrays, self.counters = arrays, counters

    def forget_uncounted(self) -> None:
        """Drop the record of an update that was interrupted between being recorded and being counted."""
        del self.history[self.step :]

    def judge(self, measured: Mapping[str, float]) -> None:
        """Take note of a validation after the last update."""
        self.history[-1] |= {f"validation_{name}": value for name, value in measured.items()}
        counters, loss = dataclasses.replace(self.counters, validated_step=self.step), measured["loss"]
        if counters.best_loss is None or loss < counters.best_loss:
            self.best = host(self.arrays.trained)
            best = {"best_step": self.step, "best_loss": loss, "patience_counter": 0}
            self.counters = dataclasses.replace(counters, **best)
        else:
            self.counters = dataclasses.replace(counters, patience_counter=counters.patience_counter + 1)

    def snapshot(self, placement: Placement) -> Snapshot:
        """All of it in host memory, to be written to a checkpoint."""
        optimizer, _ = _named(self.arrays.optimizer)
        return Snapshot(
            settings=self.settings,
            counters=dataclasses.replace(self.counters, seconds=self.seconds),
            trained=host(self.arrays.trained),
            frozen=host(dict(self.frozen)),
            optimizer=host(optimizer),
            carry=placement.gather(self.arrays.carry),
            best={} if self.counters.best_step == self.step else dict(self.best),
            history=self.history,
        )

    def restore(self, snapshot: Snapshot, placement: Placement) -> None:
        """Go on from a checkpoint.

        Raises:
            TrainingError: the state of the optimizer is of another kind.
        """
        named, structure = _named(self.arrays.optimizer)
        here = {name: (array.dtype.name, array.shape) for name, array in host(named).items()}
        there = {name: (array.dtype.name, array.shape) for name, array in snapshot.optimizer.items()}
        if here != there:
            name = next(name for name in {**there, **here} if there.get(name) != here.get(name))
            raise TrainingError(
                f"the checkpoint was written with another optimizer: its state has {_kind(there.get(name))} for "
                f"{name}, and here it has {_kind(here.get(name))}; choose another folder, or the same optimizer"
            )
        self.arrays = UpdateState(
            placement.replicate(snapshot.trained),
            placement.replicate(structure.unflatten([as_key(snapshot.optimizer[n], x) for n, x in named.items()])),
            placement.spread(placement.own(snapshot.carry)),
        )
        self.counters, self.history = snapshot.counters, list(snapshot.history)
        self.best = snapshot.best_or_last() if snapshot.counters.best_loss is not None else {}


def _named(tree: Any) -> tuple[dict[str, Any], Any]:
    """The arrays of a tree by their paths, and its structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}, structure


def _kind(array: tuple[str, tuple[int, ...]] | None) -> str:
    return "nothing" if array is None else f"{array[0]}{list(array[1])}"
