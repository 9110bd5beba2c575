"""Many recordings in a scan: the time per stream as the number of streams grows."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrnn
from benchmarks.networks import RATE, SPEECH, Entry, load, random_frames
from benchmarks.plan import Cases, Plan
from benchmarks.results import Row, row_of
from benchmarks.scans import speed
from benchmarks.timing import Call, DisagreementError, check, interleaved, largest_difference

#: Numbers of streams; the last two take seconds and gigabytes.
STREAMS = (1, 16, 64, 256)

#: The largest relative difference of outputs with weights in bfloat16, which have 8 bits.
ROUGH = 0.1

#: A single stream, the reference of the other numbers.
ALONE = "jaxrnn, one stream"


def cases(plan: Plan) -> Cases:
    """Return a case for each network. Batch sizes are interleaved within a case."""
    return {f"{entry.file}, streams at once": functools.partial(_rows, plan, entry) for entry in SPEECH}


def _rows(plan: Plan, entry: Entry) -> Iterator[Row]:
    model, seconds = load(entry), 0.25 if plan.quick else 2.0
    counts = STREAMS[:2] if plan.quick else STREAMS
    steps = round(seconds * RATE) // entry.hop
    wide = stacked_frames(model, entry, steps, counts[-1])
    kinds: dict[str, Any] = {"float32": model.pack(model.params, dims=entry.dims)}
    with contextlib.suppress(jaxrnn.InputError):  # a network without weights that could be narrowed
        kinds["bfloat16"] = model.pack(model.params, dims=entry.dims, dtype=jnp.bfloat16)
    calls: dict[tuple[str, int], Call] = {
        (kind, count): _scan(model, packed, count, {name: a[:, :count] for name, a in wide.items()})
        for kind, packed in kinds.items()
        for count in counts
    }
    apart = _compare(entry.file, calls, counts)
    samples = interleaved({f"{kind} {count}": call for (kind, count), call in calls.items()}, plan.effort(9))
    for kind, count in calls:
        mine = [time / count for time in samples[f"{kind} {count}"]]
        contenders = {"jaxrnn": mine, ALONE: samples["float32 1"]}
        what = f"{count} stream{'s' if count > 1 else ''}, {kind}"
        row = row_of(f"{entry.file}, {what}", what, contenders)
        row.difference = apart[kind, count]
        row.facts |= speed(row.timings["jaxrnn"].median, seconds, plan.threads, count)
        yield row


def stacked_frames(model: jaxrnn.Model, entry: Entry, steps: int, count: int) -> dict[str, np.ndarray]:
    """Return frames ``[steps, count, ...]``, with the batch on the file's batch axis or on a leading axis."""
    frames = random_frames(model, entry.dims, steps, count)
    if model.spec.batch_symbol is None:
        return frames
    return {info.name: frames[info.name][:, :, 0] for info in model.spec.inputs}


def _scan(model: jaxrnn.Model, packed: Any, count: int, frames: dict[str, np.ndarray]) -> Call:
    alone = count == 1 and model.spec.batch_symbol is None
    start = model.init(None if alone else count)
    scan = jax.jit(model.scan)
    if alone:
        frames = {name: array[:, 0] for name, array in frames.items()}
    frames = {name: np.ascontiguousarray(array) for name, array in frames.items()}

    def call() -> dict[str, np.ndarray]:
        outputs, _ = scan(packed, start, frames)
        return {name: np.asarray(value) for name, value in outputs.items()}

    return call


def _compare(file: str, calls: dict[tuple[str, int], Call], counts: tuple[int, ...]) -> dict[tuple[str, int], float]:
    """Check that the first stream is equal in all batches, and return the differences, also of bfloat16."""
    found = {key: _first_stream(call(), key[1]) for key, call in calls.items()}
    apart = {}
    for kind, count in calls:
        if kind == "float32":
            apart[kind, count] = check(file, {"one stream": found[kind, 1], f"{count} streams": found[kind, count]})
        else:
            apart[kind, count] = largest_difference({"float32": found["float32", 1], kind: found[kind, count]})
            if not apart[kind, count] <= ROUGH:
                raise DisagreementError(f"{file}: {kind} differs from float32 by {apart[kind, count]:.3g}")
    return apart


def _first_stream(outputs: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Return the first stream of outputs ``[steps, streams, ...]``, or ``[steps, ...]`` for a single stream."""
    return {name: array.reshape(len(array), count, -1)[:, 0] for name, array in outputs.items()}
