"""Ten seconds of audio through the speech networks: one scan here, a call a frame with carried state elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from benchmarks import batches, pipeline
from benchmarks.networks import RATE, SPEECH, Entry, describe, load, random_frames
from benchmarks.peers import open_all
from benchmarks.plan import Cases, Plan, timed
from benchmarks.results import Row
from benchmarks.scans import loop, scanner, speed
from benchmarks.timing import Call

TITLE = "a recording, NumPy in and out"
UNIT = "ms"


def seconds(plan: Plan) -> float:
    """Return the length of the recordings."""
    return 1.0 if plan.quick else 10.0


def cases(plan: Plan) -> Cases:
    """Return a case for each network, for DTLN with its transforms, and for a batch of streams."""
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
