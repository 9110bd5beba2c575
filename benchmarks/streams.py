"""One frame of many live streams: one call of a pool beside one step per stream."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import jaxrnn
from benchmarks.networks import SPEECH, Entry, load, random_frames
from benchmarks.plan import Cases, Plan, timed
from benchmarks.results import Row
from benchmarks.timing import Call

TITLE = "one frame of every live stream, NumPy in and out"
UNIT = "us"

STREAMS = 64


def cases(plan: Plan) -> Cases:
    """Return a case for each network of DTLN."""
    return {
        f"{entry.file}, {STREAMS} live streams": functools.partial(_rows, plan, entry, STREAMS) for entry in SPEECH[:2]
    }


def contenders(entry: Entry, streams: int) -> dict[str, Call]:
    """Return two contenders that take a frame of each stream: a pool, and compiled steps one by one."""
    model = load(entry)
    packed = model.pack(model.params, dims=entry.dims)
    frames = [random_frames(model, entry.dims, seed=index) for index in range(streams)]
    pool = jaxrnn.StreamPool(model, packed, capacity=streams)
    callers = [pool.open() for _ in frames]

    def pooled() -> dict[str, np.ndarray]:
        for caller, frame in zip(callers, frames, strict=True):
            pool.push(caller, frame)
        results = pool.run()
        return {f"{i}/{name}": value for i, caller in enumerate(callers) for name, value in results[caller].items()}

    step = jax.jit(model.step).lower(packed, model.init(), frames[0]).compile()
    states = [model.init() for _ in frames]

    def single() -> dict[str, np.ndarray]:
        made: dict[str, Any] = {}
        for index, frame in enumerate(frames):
            outputs, states[index] = step(packed, states[index], frame)
            made |= {f"{index}/{name}": np.asarray(value) for name, value in outputs.items()}
        return made

    return {"jaxrnn": pooled, "jaxrnn, single steps": single}


def _rows(plan: Plan, entry: Entry, streams: int) -> Iterator[Row]:
    calls = contenders(entry, streams)
    # Both take the same number of steps, so their states must agree too.
    several = {name: [call() for _ in range(5)] for name, call in calls.items()}
    outputs = {name: {key: np.stack([r[key] for r in found]) for key in found[0]} for name, found in several.items()}
    row = timed(f"{entry.file}, {streams} live streams", "pool", calls, plan.effort(31), outputs=outputs)
    row.facts["us a stream"] = row.timings["jaxrnn"].median / streams
    yield row
