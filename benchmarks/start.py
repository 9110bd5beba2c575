"""From the start of a process to the first output, and the seconds of compiling in it; every sample a fresh process.

jaxrnn starts from the ONNX file with nothing kept, from it with JAX's persistent cache of compiled functions, and from
a file that ``jaxrnn compile`` wrote; each peer from its own file. ``import jax`` alone is what no start can go below.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import jaxrnn
from benchmarks.networks import SPEECH, Entry, describe, load
from benchmarks.peers import READERS, is_installed
from benchmarks.plan import Cases, Plan
from benchmarks.results import SUBJECT, Row, row_of
from benchmarks.timing import check

TITLE = "from the start of a process to the first output"
UNIT = "ms"

IMPORT_JAX = "jaxrnn, import jax alone"
COLD = "jaxrnn, from ONNX, nothing kept"
CACHED = "jaxrnn, from ONNX, persistent cache"
COMPILED_CACHED = "jaxrnn, compiled file, persistent cache"

#: By contender: what the child does, and whether JAX has its persistent cache.
MODES = {
    SUBJECT: ("compiled", False),
    COMPILED_CACHED: ("compiled", True),
    COLD: ("onnx", False),
    CACHED: ("onnx", True),
    IMPORT_JAX: ("import jax", False),
}
OVER_IMPORT, COMPILING = "s over import jax", "s compiling: "


def cases(plan: Plan) -> Cases:
    """A network each."""
    entries = SPEECH[:1] if plan.quick else SPEECH
    return {f"{entry.file}, start": functools.partial(_rows, plan, entry) for entry in entries}


def _rows(plan: Plan, entry: Entry) -> Iterator[Row]:
    name = f"{entry.file}, start"
    with tempfile.TemporaryDirectory() as folder:
        jobs = _jobs(plan, entry, Path(folder))
        refused: dict[str, str] = {}
        first: dict[str, dict[str, Any]] = {}
        for contender, job in list(jobs.items()):
            # Once untimed: files come into memory, and the cache is filled.
            if job["cache"] or not plan.quick:
                _measure(job, Path(folder))
            made = _measure(job, Path(folder))
            if "refused" in made:
                refused[contender] = made["refused"]
                del jobs[contender]
            else:
                first[contender] = made
        outputs = {contender: found["outputs"] for contender, found in first.items() if found["outputs"]}
        apart = check(name, outputs)
        found = {contender: [made] for contender, made in first.items()}
        for _ in range(0 if plan.quick else 6):
            for contender, job in jobs.items():
                found[contender].append(_measure(job, Path(folder)))
    samples = {contender: [made["us"] for made in several] for contender, several in found.items()}
    row = row_of(name, "start", samples, difference=apart, refused=refused)
    row.facts[OVER_IMPORT] = row.margins[IMPORT_JAX] / 1e6
    for contender, several in found.items():
        if "compiling" in several[0]:
            row.facts[f"{COMPILING}{contender.removeprefix('jaxrnn, ')}"] = statistics.median(
                made["compiling"] for made in several
            )
    yield row


def _jobs(plan: Plan, entry: Entry, folder: Path) -> dict[str, dict[str, Any]]:
    """What each child is to do, by contender."""
    model = load(entry)
    network = describe(entry, model)
    compiled = folder / "model.jaxrnn"
    platforms = None if plan.platform is None else (plan.platform,)
    jaxrnn.save_compiled(
        model,
        compiled,
        dims={name: size for name, size in entry.dims.items() if name != model.spec.batch_symbol},
        platforms=platforms,
    )
    shared = {
        "network": network,
        "static": dict(entry.static),
        "compiled": compiled,
        "threads": plan.threads,
        "platform": plan.platform,
    }
    jobs = {contender: {**shared, "mode": mode, "cache": cache} for contender, (mode, cache) in MODES.items()}
    for engine in READERS if plan.platform == "cpu" else ():
        if is_installed(engine):
            jobs[engine] = {**shared, "mode": engine, "cache": False}
    return jobs


class ChildError(RuntimeError):
    """A child process failed."""


def _measure(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Run one child: microseconds to its first output, seconds of compiling in JAX, and the outputs."""
    path = folder / "job.pickle"
    path.write_bytes(pickle.dumps(dict(job)))
    began = time.monotonic_ns()
    cache = folder / "cache" if job["cache"] else None
    report = run_child("benchmarks.start_child", str(path), cache=cache, platform=job["platform"])
    outputs = {name: np.asarray(values, np.float32) for name, values in report.pop("outputs").items()}
    return {**report, "us": (report["first"] - began) / 1000, "outputs": outputs}


def run_child(module: str, *arguments: str, cache: Path | None = None, platform: str | None = "cpu") -> dict[str, Any]:
    """Run a module in a fresh process and read the JSON object in the last line that it prints.

    Args:
        module: its name.
        arguments: of its command line.
        cache: where JAX keeps compiled functions; nowhere by default.
        platform: on which JAX runs; None for its own choice.

    Raises:
        ChildError: it failed; holds the end of what it said.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("JAX_COMPILATION_CACHE")}
    if cache is not None:
        kept |= {
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    if platform is not None:
        kept["JAX_PLATFORMS"] = platform
    # Where this package lies, so that the child finds it from any folder.
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent.parent), kept.get("PYTHONPATH")]))
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=kept, check=False)
    if done.returncode:
        raise ChildError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])
