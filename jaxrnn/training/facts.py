"""What decides the course of a training: what a checkpoint and the training that resumes it share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrnn.training.arguments import Function
from jaxrnn.training.layout import ExampleLayout
from jaxrnn.training.optimizers import PROBED, Optimizer

if TYPE_CHECKING:
    from jaxrnn.model import Model

#: Facts whose values say nothing to a reader.
_DIGESTS = ("starting parameters", "frozen parameters", "parameters", "examples in data", "examples in validation")


def training_facts(
    model: Model,
    layout: ExampleLayout,
    start: Mapping[str, Any],
    trained: tuple[str, ...],
    optimizer: Optimizer,
    loss: Function,
    **plain: Any,
) -> dict[str, Any]:
    """What decides the course of a training, in JSON's types: it must be the same where a checkpoint goes on.

    Not in it is what may change: how long the training runs, how often it is validated, where its files are, on which
    devices it runs.
    """
    return {
        "model": {
            "inputs": [str(info) for info in model.inputs],
            "outputs": [str(info) for info in model.outputs],
            "parameters": {name: [array.dtype.name, *array.shape] for name, array in model.program.parameters.items()},
        },
        "starting parameters": digest_of_all(start),
        "frozen parameters": digest_of_all({name: value for name, value in start.items() if name not in trained}),
        "trained": list(trained),
        **optimizer.facts,
        "loss": getattr(loss, "__qualname__", type(loss).__name__),
        "mode": layout.mode,
        "time_axis": layout.axes,
        "chunk": layout.sequences.chunk,
        "bucket": layout.sequences.bucket,
        **plain,
    }


def digest(array: np.ndarray) -> str:
    """A digest of an array's elements."""
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()


def digest_of_all(arrays: Mapping[str, Any]) -> str:
    """One digest of arrays by name."""
    parts = "".join(f"{name}:{digest(np.asarray(arrays[name]))};" for name in sorted(arrays))
    return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], there: str = "in the checkpoint", here: str = "here"
) -> list[str]:
    """What differs between the settings of a checkpoint, or of another process, and those of a training: lines."""
    # As they come back from a file: tuples are lists there.
    return list(_differences(json.loads(json.dumps(before)), json.loads(json.dumps(now)), "", there, here))


def _differences(before: Any, now: Any, path: str, there: str, here: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            yield from _differences(before.get(key), now.get(key), f"{path}.{key}" if path else key, there, here)
    elif before == now:
        return
    elif path in _DIGESTS:
        yield f"the {path} have other values"
    elif _are_names(before) and _are_names(now):
        only = {
            there: [name for name in before if name not in now],
            here: [name for name in now if name not in before],
        }
        parts = [f"{_some(names)} only {where}" for where, names in only.items() if names]
        yield f"{path}: {', '.join(parts) or 'another order'}"
    elif path == "learning_rate" and isinstance(before, list) and isinstance(now, list):
        update, then, today = next(each for each in zip(PROBED, before, now, strict=True) if each[1] != each[2])
        yield f"{path} at update {update} is {then:.6g} {there} and {today:.6g} {here}"
    else:
        yield f"{path} is {_brief(before, path)} {there} and {_brief(now, path)} {here}"


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _some(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more


def _brief(value: Any, path: str) -> str:
    if path == "learning_rate" and isinstance(value, list):
        return "a schedule"
    text = "absent" if value is None else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
