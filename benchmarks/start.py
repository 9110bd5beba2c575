"""From the start of a process to its first output, stage by stage; each sample is a fresh process.

Networks in steps, and streamed offline networks. jaxrnn starts from the ONNX file without a cache, from the ONNX file
with JAX's persistent cache, and from compiled files with and without machine code; each peer starts from its file.
``import jax`` is a lower bound.
"""

from __future__ import annotations

import functools
import pickle
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import jaxrnn
from benchmarks.networks import OFFLINE, SPEECH, Entry, Offline, describe, load, offline_file
from benchmarks.peers import READERS, RefusedError, is_installed, one_line
from benchmarks.plan import Cases, Plan
from benchmarks.processes import ChildError, run_child
from benchmarks.pulses import pulse_of, recordings
from benchmarks.results import SUBJECT, Row, is_peer, row_of
from benchmarks.timing import Timing, check

TITLE = "from the start of a process to the first output"
UNIT = "ms"

IMPORT_JAX = "jaxrnn, import jax alone"
COLD = "jaxrnn, from ONNX, nothing kept"
CACHED = "jaxrnn, from ONNX, persistent cache"
NATIVE = "jaxrnn, compiled file with machine code"

#: The mode of the child process by contender, and True with the persistent cache of JAX.
MODES = {
    SUBJECT: ("compiled", False),
    NATIVE: ("native", False),
    COLD: ("onnx", False),
    CACHED: ("onnx", True),
    IMPORT_JAX: ("import jax", False),
}
OVER_IMPORT, COMPILING = "s over import jax", "s compiling: "


def cases(plan: Plan) -> Cases:
    """Return a case for each network."""
    entries = SPEECH[:1] if plan.quick else SPEECH
    streams = OFFLINE[1:2] if plan.quick else OFFLINE
    found: Cases = {f"{entry.file}, start": functools.partial(_steps, plan, entry) for entry in entries}
    found |= {f"{each.name}, streamed, start": functools.partial(_streams, plan, each) for each in streams}
    return found


def _steps(plan: Plan, entry: Entry) -> Iterator[Row]:
    """Time the start of a network in steps, beside all engines."""
    model = load(entry)
    network = describe(entry, model)
    job = {"path": network.path, "frame": network.frame, "pulse": None, "network": network}
    dims = {name: size for name, size in entry.dims.items() if name != model.spec.batch_symbol}
    with tempfile.TemporaryDirectory() as folder:
        job |= _compiled(plan, Path(folder), model, model.params, dims)
        job |= {"static": dict(entry.static)}
        yield _row(plan, f"{entry.file}, start", "start", job, READERS, Path(folder))


def _streams(plan: Plan, network: Offline) -> Iterator[Row]:
    """Time the start of a network with a time axis up to the first streamed frames, beside tract."""
    with offline_file(network) as path, tempfile.TemporaryDirectory() as folder:
        model = jaxrnn.load(path)
        frame = pulse_of(model, recordings(model, network.pulse), 0, network.pulse)
        names = [[info.name for info in infos] for infos in (model.inputs, model.outputs)]
        job = {"path": path, "frame": frame, "pulse": network.pulse, "names": names, "static": None}
        job |= _compiled(plan, Path(folder), model.stream(pulse=network.pulse), model.params, {})
        yield _row(plan, f"{network.name}, streamed, start", "streamed start", job, ("tract",), Path(folder))


def _compiled(plan: Plan, folder: Path, stepper: Any, params: Any, dims: Mapping[str, int]) -> dict[str, Any]:
    """Write the compiled files of a stepper, without and with machine code, and return the entries of a job."""
    platforms = None if plan.platform is None else (plan.platform,)
    paths = {mode: folder / f"{mode}.jaxrnn" for mode in ("compiled", "native")}
    for mode, path in paths.items():
        native = mode == "native"
        jaxrnn.save_compiled(stepper, path, params=params, dims=dims, platforms=platforms, native=native)
    return dict(paths)


def _row(plan: Plan, name: str, group: str, job: Mapping[str, Any], engines: tuple[str, ...], folder: Path) -> Row:
    """Time the kinds of start in turns.

    ``job`` is the common input of all child processes, and ``folder`` has temporary files for the measurement.
    """
    shared = {**job, "threads": plan.threads, "platform": plan.platform}
    jobs = {
        contender: {**shared, "mode": mode, "cache": cache}
        for contender, (mode, cache) in MODES.items()
        if not (cache and plan.quick)  # which takes two processes
    }
    for engine in engines if plan.platform == "cpu" else ():
        if is_installed(engine):
            jobs[engine] = {**shared, "mode": engine, "cache": False}
    refused: dict[str, str] = {}
    found: dict[str, list[dict[str, Any]]] = {}
    for contender, one in list(jobs.items()):
        # The first run is not timed: it fills caches, and reads the files of engines into memory.
        try:
            if one["cache"] or is_peer(contender):
                _measure(one, folder)
            found[contender] = [_measure(one, folder)]
        except RefusedError as error:
            refused[contender] = str(error)
            del jobs[contender]
    apart = check(name, {contender: made[0]["outputs"] for contender, made in found.items() if made[0]["outputs"]})
    for _ in range(0 if plan.quick else plan.effort(5).rounds - 1):
        for contender, one in jobs.items():
            found[contender].append(_measure(one, folder))
    samples = {
        contender: [sum(made["stages"].values()) * 1e6 for made in several] for contender, several in found.items()
    }
    row = row_of(name, group, samples, difference=apart, refused=refused)
    row.facts[OVER_IMPORT] = row.margins[IMPORT_JAX] / 1e6
    for contender, several in found.items():
        if "compiling" in several[0] and contender != IMPORT_JAX:
            compiling = statistics.median(made["compiling"] for made in several)
            row.facts[f"{COMPILING}{contender.removeprefix('jaxrnn, ')}"] = compiling
            row.stages[contender] = {
                stage: Timing.of([made["stages"][stage] * 1e6 for made in several]) for stage in several[0]["stages"]
            }
    return row


def _measure(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Run a child process, and return the seconds of its stages, the seconds of compiling, and the outputs.

    A RefusedError reports a failure of a peer, a ChildError a failure of jaxrnn.
    """
    path = folder / "job.pickle"
    path.write_bytes(pickle.dumps({**job, "began": time.monotonic()}))
    cache = folder / "cache" if job["cache"] else None
    try:
        report = run_child("benchmarks.start_child", str(path), cache=cache, platform=job["platform"])
    except ChildError as error:
        if job["mode"] in READERS:
            raise RefusedError(one_line(error)) from error
        raise
    if "refused" in report:
        raise RefusedError(report["refused"])
    return {**report, "outputs": {name: np.asarray(value, np.float32) for name, value in report["outputs"].items()}}
