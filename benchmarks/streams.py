"""One frame of many live streams: one call of a pool beside one step per stream, and what a pool costs besides."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import jaxrnn
from benchmarks.networks import PACKAGED_NAME, SPEECH, Entry, load, random_frames
from benchmarks.plan import Cases, Plan, timed
from benchmarks.processes import forget_peak, peak_bytes
from benchmarks.results import Row
from benchmarks.timing import Call

TITLE = "one frame of every live stream, NumPy in and out"
UNIT = "us"

STREAMS = 64
DENOISER, COUNTS = Entry(PACKAGED_NAME, 128, dims={"batch": 1, "time": 1}), (1, 10, 100, 1000, 10_000)
MANY = "jaxrnn, push_many"


def cases(plan: Plan) -> Cases:
    """Return a case for each network of DTLN, and cases for more and more streams of the denoiser of the package."""
    sizes = [*((entry, STREAMS) for entry in SPEECH[:2]), *((DENOISER, count) for count in COUNTS)]
    return {
        f"{entry.file}, {count} live streams": functools.partial(_rows, plan, entry, count) for entry, count in sizes
    }


def contenders(entry: Entry, streams: int) -> dict[str, Call]:
    """Return contenders that take a frame of each stream: pools with single and joint pushes, and compiled steps."""
    model = load(entry)
    packed = model.pack(model.params, dims=entry.dims)
    frames = [random_frames(model, entry.dims, seed=index) for index in range(streams)]
    blocks = {name: np.stack([frame[name] for frame in frames]) for name in frames[0]}
    pools = [jaxrnn.StreamPool(model, packed, streams, warm=frames[0]) for _ in range(2)]
    (callers, same) = ([pool.open() for _ in frames] for pool in pools)
    assert callers == same

    def pooled(pool: jaxrnn.StreamPool, push: Callable[[jaxrnn.StreamPool], None]) -> dict[str, np.ndarray]:
        push(pool)
        results = pool.run()
        return {f"{i}/{name}": value for i, caller in enumerate(callers) for name, value in results[caller].items()}

    def push(pool: jaxrnn.StreamPool) -> None:
        for caller, frame in zip(callers, frames, strict=True):
            pool.push(caller, frame)

    def push_many(pool: jaxrnn.StreamPool) -> None:
        pool.push_many(callers, blocks)

    step = jax.jit(model.step).lower(packed, model.init(), frames[0]).compile()
    states = [model.init() for _ in frames]

    def single() -> dict[str, np.ndarray]:
        made: dict[str, Any] = {}
        for index, frame in enumerate(frames):
            outputs, states[index] = step(packed, states[index], frame)
            made |= {f"{index}/{name}": np.asarray(value) for name, value in outputs.items()}
        return made

    single_pushes, joint = (functools.partial(pooled, *each) for each in zip(pools, (push, push_many), strict=True))
    return {"jaxrnn": single_pushes, MANY: joint, "jaxrnn, single steps": single}


def life(entry: Entry, streams: int) -> dict[str, float]:
    """Return the costs of a pool that grows tenfold: milliseconds to grow, to open streams and for states, and MB."""
    model, few = load(entry), max(streams // 10, 1)
    before, frame = forget_peak(), random_frames(model, entry.dims)
    pool = jaxrnn.StreamPool(model, model.pack(model.params, dims=entry.dims), few, warm=frame)
    callers = [pool.open() for _ in range(few)]
    pool.push_many(callers, {name: np.stack([array] * few) for name, array in frame.items()})
    pool.run()

    def rounds() -> None:
        pool.push_many(callers, {name: np.stack([array] * streams) for name, array in frame.items()})
        pool.run()

    facts = {}
    for name, call in {
        "ms to grow tenfold": lambda: pool.grow(streams),
        "ms to open": lambda: callers.extend(pool.open() for _ in range(streams - few)),
        "ms of the next run": rounds,
        "ms for all states": lambda: [pool.state(caller) for caller in callers],
    }.items():
        start = time.perf_counter()
        call()
        facts[name] = 1e3 * (time.perf_counter() - start)
    return {**facts, "MB": max(peak_bytes() - before, 0) / 1e6}


def _rows(plan: Plan, entry: Entry, streams: int) -> Iterator[Row]:
    calls = contenders(entry, streams)
    # Both take the same number of steps, so their states must agree too.
    several = {name: [call() for _ in range(5)] for name, call in calls.items()}
    outputs = {name: {key: np.stack([r[key] for r in found]) for key in found[0]} for name, found in several.items()}
    row = timed(f"{entry.file}, {streams} live streams", "pool", calls, plan.effort(31), outputs=outputs)
    row.facts["us a stream"] = row.timings["jaxrnn"].median / streams
    row.facts["us a stream, push_many"] = row.timings[MANY].median / streams
    row.facts |= life(entry, streams)
    yield row
