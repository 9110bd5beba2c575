"""What a checkpoint holds, and the same as arrays under plain keys and a sealed text."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from jaxrnn.training.facts import digest
from jaxrnn.training.order import Position

#: Raised where the meaning of what is written changes.
FORMAT = 3

Named = dict[str, np.ndarray]
#: What happened in an update: numbers by name.
Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Counters:
    """How far a training is.

    Attributes:
        step: updates done.
        position: the place of the next update.
        best_step: after which update the validation loss was the best.
        best_loss: that loss; None before the first validation.
        patience_counter: validations since then.
        validated_step: after which update the last validation was.
        seconds: of training in the runs before this one.
    """

    step: int = 0
    position: Position = dataclasses.field(default_factory=Position)
    best_step: int = 0
    best_loss: float | None = None
    patience_counter: int = 0
    validated_step: int = 0
    seconds: float = 0.0


@dataclasses.dataclass
class Snapshot:
    """A training after one of its updates: all that it needs to go on as if it had never stopped.

    Attributes:
        settings: what must be the same in a training that goes on from here.
        counters: how far it is.
        trained: the trained parameters.
        frozen: those of the other parameters that are not the file's.
        optimizer: the optimizer's state, by the path in its tree.
        carry: the model's state, where the next update is of a later chunk of the same batch.
        best: the trained parameters of the best validation; empty where they are `trained`, or where there was none.
        history: what happened in every update.
    """

    settings: dict[str, Any]
    counters: Counters
    trained: Named
    frozen: Named
    optimizer: Named
    carry: Named
    best: Named
    history: list[Record]

    def best_or_last(self) -> Named:
        """The trained parameters with the best validation loss, or else the last."""
        return self.best or self.trained


_GROUPS = ("trained", "frozen", "optimizer", "carry", "best")


def encode(snapshot: Snapshot) -> tuple[Named, dict[str, Any]]:
    """A snapshot as arrays under plain keys, and as facts in JSON's types, which say what the keys are.

    The names of parameters may hold any character, so they are not keys. Digests tell a damaged array, which the
    format of the arrays alone does not always.
    """
    arrays: Named = {}
    listed = []
    for group in _GROUPS:
        for name, array in getattr(snapshot, group).items():
            key = f"{len(listed):05d}"
            listed.append([group, name, array.dtype.name, list(array.shape), digest(array)])
            if array.size:  # an empty array is known from its type and shape, and Orbax takes none
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
    """The snapshot that `encode` was given.

    Raises:
        ValueError: something is damaged or missing; says what.
    """
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
    return Snapshot(
        settings=facts["settings"],
        counters=Counters(**{**counters, "position": Position(**counters["position"])}),
        history=facts["history"],
        **groups,
    )
