"""The state of a running training, and the form of the state in checkpoints."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

import jax
import ml_dtypes
import numpy as np

from jaxrnn.errors import TrainingError
from jaxrnn.training.agreement import digest
from jaxrnn.training.batches import Position
from jaxrnn.training.sharding import Placement, as_key, host
from jaxrnn.training.updates import UpdateState

#: Version of the format of checkpoints.
FORMAT = 3

Named = dict[str, np.ndarray]
#: The record of an update: named numbers.
Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Counters:
    """The progress of a training."""

    step: int = 0
    position: Position = dataclasses.field(default_factory=Position)
    best_step: int = 0
    best_loss: float | None = None
    validated_step: int = 0
    seconds: float = 0.0


@dataclasses.dataclass
class Snapshot:
    """The state of a training after an update, complete enough to continue to the same result."""

    settings: dict[str, Any]
    counters: Counters
    trained: Named
    frozen: Named
    optimizer: Named
    carry: Named
    best: Named
    history: list[Record]

    def best_or_last(self) -> Named:
        """Return the trained parameters with the best validation loss, or else the last."""
        return self.best or self.trained


_GROUPS = ("trained", "frozen", "optimizer", "carry", "best")


def encode(snapshot: Snapshot) -> tuple[Named, dict[str, Any]]:
    """Return a snapshot as arrays under plain keys, and as sealed facts in JSON's types that describe the keys.

    Names of parameters may contain any character and cannot be keys. Digests detect damaged arrays.
    """
    arrays: Named = {}
    listed = []
    for group in _GROUPS:
        for name, array in getattr(snapshot, group).items():
            key = f"{len(listed):05d}"
            listed.append([group, name, array.dtype.name, list(array.shape), digest(array)])
            if array.size:  # Orbax does not store empty arrays; type and shape suffice
                arrays[key] = array
    facts = {
        "format": FORMAT,
        "counters": dataclasses.asdict(snapshot.counters),
        "settings": snapshot.settings,
        "history": snapshot.history,
        "arrays": listed,
    }
    text = json.dumps(facts)
    return arrays, {"facts": text, "digest": hashlib.sha256(text.encode()).hexdigest()}


def decode(arrays: Mapping[str, Any], sealed: Mapping[str, Any]) -> Snapshot:
    """Return the snapshot that `encode` received; a ValueError names damaged or missing parts."""
    text = str(sealed.get("facts"))
    if hashlib.sha256(text.encode()).hexdigest() != sealed.get("digest"):
        raise ValueError("its facts do not have the digest that they give")
    facts = json.loads(text)
    if facts["format"] != FORMAT:
        raise ValueError(f"it has format {facts['format']}, and this version of jaxrnn reads {FORMAT}")
    groups: dict[str, Named] = {name: {} for name in _GROUPS}
    for index, (group, name, dtype, shape, expected) in enumerate(facts["arrays"]):
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        array = np.asarray(arrays[f"{index:05d}"]) if np.prod(shape, dtype=int) else np.zeros(shape, kind)
        if array.dtype != kind or list(array.shape) != shape or digest(array) != expected:
            raise ValueError(f"{group} {name!r} does not have the digest that it gives")
        groups[group][name] = array
    counters = facts["counters"]
    counters.pop("patience_counter", None)  # of versions in which early stopping was no callback
    return Snapshot(
        settings=facts["settings"],
        counters=Counters(**{**counters, "position": Position(**counters["position"])}),
        history=facts["history"],
        **groups,
    )


@dataclasses.dataclass
class TrainState:
    """The state of a training after the last good update."""

    arrays: UpdateState
    settings: dict[str, Any]
    frozen: Mapping[str, Any]
    counters: Counters = dataclasses.field(default_factory=Counters)
    history: list[Record] = dataclasses.field(default_factory=list)
    best: dict[str, Any] = dataclasses.field(default_factory=dict)
    _began: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def step(self) -> int:
        """Return the number of updates."""
        return self.counters.step

    def start_clock(self) -> None:
        """Count the seconds of training from now on."""
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return the seconds of training in all runs."""
        return self.counters.seconds + time.monotonic() - self._began

    def add(self, arrays: UpdateState, position: Position, record: Record) -> None:
        """Count an update."""
        counters = dataclasses.replace(self.counters, step=record["step"], position=position)
        self.history.append(record)
        self.arrays, self.counters = arrays, counters

    def forget_uncounted(self) -> None:
        """Remove the record of an update that was interrupted between recording and counting."""
        del self.history[self.step :]

    def judge(self, measured: Mapping[str, float]) -> None:
        """Record a validation after the last update."""
        best, loss, facts = self.best, measured["loss"], dataclasses.replace(self.counters, validated_step=self.step)
        if facts.best_loss is None or loss < facts.best_loss:
            best = host(self.arrays.judged)
            facts = dataclasses.replace(facts, best_step=self.step, best_loss=loss)
        self.history[-1] |= {f"validation_{name}": value for name, value in measured.items()}
        # Together, so that an interrupt leaves the state before or after the validation.
        self.best, self.counters = best, facts

    def snapshot(self, placement: Placement) -> Snapshot:
        """Return a snapshot in host memory."""
        optimizer, _ = _named(self.arrays.optimizer)
        return Snapshot(
            settings=self.settings,
            counters=dataclasses.replace(self.counters, seconds=self.seconds),
            trained=host(self.arrays.trained),
            frozen=host(dict(self.frozen)),
            optimizer=host(optimizer),
            carry=placement.gather(self.arrays.carry),
            best=self._best(),
            history=self.history,
        )

    def _best(self) -> Named:
        """Return the best parameters, or the averages without validation; empty for the parameters of this update."""
        if self.counters.best_loss is not None and self.counters.best_step != self.step:
            return dict(self.best)
        return {} if self.arrays.judged is self.arrays.trained else host(self.arrays.judged)

    def restore(self, snapshot: Snapshot, placement: Placement) -> None:
        """Continue from a checkpoint; a TrainingError reports a different optimizer."""
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
    """Return the arrays of a tree by path, and the structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}, structure


def _kind(array: tuple[str, tuple[int, ...]] | None) -> str:
    return "nothing" if array is None else f"{array[0]}{list(array[1])}"
