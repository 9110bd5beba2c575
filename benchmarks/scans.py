"""Whole recordings: one scan in jaxrnn, a loop of calls in other engines, and the speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

import jaxrnn
from benchmarks.peers import Arrays, Stepper


def scanner(model: jaxrnn.Model, dims: Mapping[str, int]) -> Callable[[Arrays], dict[str, np.ndarray]]:
    """Return a function from the frames of a recording to the outputs, with ``Model.scan`` and constant parameters."""
    packed, start = model.pack(model.params, dims=dims), model.init()
    scan = jax.jit(lambda frames: model.scan(packed, start, frames)[0])

    def over(frames: Arrays) -> dict[str, np.ndarray]:
        return {name: np.asarray(value) for name, value in scan(frames).items()}

    return over


def loop(stepper: Stepper) -> Callable[[Arrays], dict[str, np.ndarray]]:
    """Return a function like that of `scanner`, with a call per frame from a fresh state."""

    def over(frames: Arrays) -> dict[str, np.ndarray]:
        stepper.reset()
        count = len(next(iter(frames.values())))
        found = [stepper({name: array[index] for name, array in frames.items()}) for index in range(count)]
        return {name: np.stack([values[name] for values in found]) for name in found[0]}

    return over


def speed(microseconds: float, length: float, cores: int, streams: int = 1) -> dict[str, Any]:
    """Return the speed on ``length`` seconds of audio per stream; ``microseconds`` are for one stream."""
    return {
        "ms a second of audio": microseconds / 1000 / length,
        "times real time, a core": length / (microseconds / 1e6) / cores,
        "streams": streams,
    }
