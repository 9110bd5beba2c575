"""Ten seconds of audio through the speech networks: one scan here, a call a frame with carried state elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

import jaxrnn
from benchmarks import batches, pipeline
from benchmarks.networks import RATE, SPEECH, Entry, describe, load, random_frames
from benchmarks.peers import Arrays, Stepper, open_all
from benchmarks.plan import Cases, Plan, timed
from benchmarks.results import Row
from benchmarks.timing import Call

TITLE = "a recording, NumPy in and out"
UNIT = "ms"


def seconds(plan: Plan) -> float:
    """The length of the recordings."""
    return 1.0 if plan.quick else 10.0


def cases(plan: Plan) -> Cases:
    """A network each; DTLN with its transforms; many streams at once."""
    networks = {entry.file: functools.partial(_rows, plan, entry) for entry in SPEECH}
    return networks | pipeline.cases(plan, seconds(plan)) | batches.cases(plan)


def _rows(plan: Plan, entry: Entry) -> Iterator[Row]:
    model = load(entry)
    frames = random_frames(model, entry.dims, round(seconds(plan) * RATE) // entry.hop)
    peers, refused = open_all(describe(entry, model), plan.threads)
    calls: dict[str, Call] = {"jaxrnn": functools.partial(scanner(model, entry.dims), frames)}
    calls |= {name: functools.partial(loop(stepper), frames) for name, stepper in peers.items()}
    row = timed(entry.file, "scan", calls, plan.effort(15), refused=refused)
    row.facts |= speed(row.timings["jaxrnn"].median, seconds(plan), plan.threads)
    yield row


def scanner(model: jaxrnn.Model, dims: Mapping[str, int]) -> Callable[[Arrays], dict[str, np.ndarray]]:
    """A function from the frames of a recording to their outputs by ``Model.scan``, the parameters compiled in."""
    packed, start = model.pack(model.params, dims=dims), model.init_state()
    scan = jax.jit(lambda frames: model.scan(packed, start, frames)[0])

    def over(frames: Arrays) -> dict[str, np.ndarray]:
        return {name: np.asarray(value) for name, value in scan(frames).items()}

    return over


def loop(stepper: Stepper) -> Callable[[Arrays], dict[str, np.ndarray]]:
    """The same by one call a frame, from a fresh state."""

    def over(frames: Arrays) -> dict[str, np.ndarray]:
        stepper.reset()
        count = len(next(iter(frames.values())))
        found = [stepper({name: array[index] for name, array in frames.items()}) for index in range(count)]
        return {name: np.stack([values[name] for values in found]) for name in found[0]}

    return over


def speed(microseconds: float, length: float, cores: int, streams: int = 1) -> dict[str, Any]:
    """How fast that is, of ``length`` seconds of audio for each stream.

    Args:
        microseconds: for one stream.
        length: seconds of audio of a stream.
        cores: on which it ran.
        streams: that ran at once.
    """
    return {
        "ms a second of audio": microseconds / 1000 / length,
        "times real time, a core": length / (microseconds / 1e6) / cores,
        "streams": streams,
    }
