"""Many live streams: all of them in one pool, one call a frame, beside a step a stream."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import jaxrnn
from benchmarks.recording import EXAMPLES, Network, load_network, random_frames
from benchmarks.step import AGREEMENT
from benchmarks.timing import Call, Timing, interleaved, largest_difference

STREAMS = 64


def contenders(network: Network, streams: int) -> dict[str, Call]:
    """One frame for every stream: in the pool, and each by a compiled step; both carry their states on."""
    _, model = load_network(network)
    packed = model.pack(model.params, dims=network.dims)
    frames = [random_frames(model, network.dims, seed=index) for index in range(streams)]
    pool = jaxrnn.Streams(model, packed, capacity=streams)
    callers = [pool.open() for _ in frames]

    def pooled() -> dict[str, np.ndarray]:
        for caller, frame in zip(callers, frames, strict=True):
            pool.push(caller, frame)
        results = pool.run()
        return {f"{i}/{name}": value for i, caller in enumerate(callers) for name, value in results[caller].items()}

    step = jax.jit(model.step).lower(packed, model.init_state(), frames[0]).compile()
    states = [model.init_state() for _ in frames]

    def single() -> dict[str, np.ndarray]:
        made: dict[str, Any] = {}
        for index, frame in enumerate(frames):
            outputs, states[index] = step(packed, states[index], frame)
            made |= {f"{index}/{name}": np.asarray(value) for name, value in outputs.items()}
        return made

    return {"pool": pooled, "single steps": single}


def run(quick: bool) -> dict[str, dict[str, Timing | float]]:
    """Timings of one frame of every stream, for both networks of DTLN, with the largest difference of the outputs."""
    results: dict[str, dict[str, Timing | float]] = {}
    for network in EXAMPLES["dtln_denoise"]:
        calls = contenders(network, STREAMS)
        # Both have taken as many steps, so that their states are to agree too.
        difference = max(largest_difference(calls) for _ in range(5))
        if not difference <= AGREEMENT:
            raise RuntimeError(f"{network.file}: pool and single steps differ by {difference}")
        timings = interleaved(calls, rounds=5 if quick else 31, calls_a_round=10 if quick else 40)
        results[f"{network.file}, {STREAMS} streams"] = {**timings, "difference": difference}
    return results
