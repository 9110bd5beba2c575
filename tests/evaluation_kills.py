"""Evaluations whose workers, nodes and drivers are killed at random moments: their bytes are those of one that was not.

``python -m tests.evaluation_kills --kills 50`` kills a worker, a node and a driver in turn until it has killed so many.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import soundfile

from jaxrnn.demo import PACKAGED

SETTINGS = """
corpus: {folder: noisy, reference: clean}
system:
  frames: {size: 256, hop: 128, window: sqrt_hann}
  stages: [{model: MODEL, takes: magnitude, gives: mask}]
metrics: [si_sdr, level]
batch: 4
keep: true
resources: {tries: 10}
out: out
"""
KINDS = ("worker", "node", "driver")


def write_corpus(folder: Path, files: int, seconds: float) -> Path:
    """Recordings and references of up to so many seconds; the settings that evaluate them."""
    generator = np.random.default_rng(0)
    for number in range(files):
        samples = generator.normal(0, 0.1, int(16_000 * seconds * generator.uniform(0.5, 1)))
        for kind in ("noisy", "clean"):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            soundfile.write(folder / kind / f"{number:04d}.wav", samples.astype(np.float32), 16_000, subtype="FLOAT")
            samples = np.convolve(samples, [0.5, 0.5], "same")
    (folder / "settings.yaml").write_text(SETTINGS.replace("MODEL", str(PACKAGED)))
    return folder / "settings.yaml"


def start(settings: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    """The command that evaluates."""
    command = [sys.executable, "-m", "jaxrnn", "evaluate", str(settings), "--json", "--set", f"out={out}", *options]
    environment = {"JAX_PLATFORMS": "cpu"} | os.environ
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for the end of a command, which must go well."""
    said = process.communicate(timeout=600)[0]
    assert process.returncode == 0, said


def written(out: Path) -> dict[str, bytes]:
    """The bytes of all results that do not depend on times."""
    files = [path for path in out.rglob("*") if path.is_file() and path.suffix in (".parquet", ".json", ".wav")]
    return {str(path.relative_to(out)): path.read_bytes() for path in files if path.name != "times.json"}


def descendants(process: int) -> Iterator[tuple[int, str]]:
    """The processes that a process has started, directly or not, with their names."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    parents = [process]
    for parent in parents:
        for pid, other, name in rows:
            if int(other) == parent:
                parents.append(int(pid))
                yield int(pid), name


def workers_of(process: int) -> list[int]:
    """Those of the processes that compute."""
    return [pid for pid, name in descendants(process) if name.startswith("ray::Worker")]


def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def kill_workers(settings: Path, out: Path, chance: random.Random, kills: int) -> int:
    """Kill a worker, and another some time later, while the evaluation runs; how many were killed."""
    process, killed = start(settings, out, "--workers", "2"), 0
    while killed < kills and process.poll() is None:
        until(lambda: workers_of(process.pid) or process.poll() is not None)
        time.sleep(chance.uniform(0, 5))
        if found := workers_of(process.pid):
            os.kill(chance.choice(found), signal.SIGKILL)
            killed += 1
    finish(process)
    return killed


def kill_driver(settings: Path, out: Path, chance: random.Random, kills: int) -> int:
    """Kill the command itself some times; all that it had started ends with it. Then let it end."""
    for _ in range(kills):
        process = start(settings, out, "--workers", "2")
        until(lambda process=process: workers_of(process.pid) or process.poll() is not None)
        time.sleep(chance.uniform(0, 8))
        left = [pid for pid, _ in descendants(process.pid)]
        process.kill()
        process.communicate()
        until(lambda left=left: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in left))
    finish(start(settings, out, "--workers", "2"))
    return kills


def kill_nodes(settings: Path, out: Path, chance: random.Random, kills: int) -> int:
    """Kill one of two nodes of a cluster, and let another join, while the evaluation runs."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes, killed = [cluster.add_node(num_cpus=1) for _ in range(2)], 0
        process = start(settings, out, "--ray", cluster.address)
        until(lambda: (out / "run.json").exists() or process.poll() is not None)
        while killed < kills and process.poll() is None:
            time.sleep(chance.uniform(0, 5))
            cluster.remove_node(nodes.pop(chance.randrange(2)), allow_graceful=False)
            killed += 1
            nodes.append(cluster.add_node(num_cpus=1))
        finish(process)
    finally:
        cluster.shutdown()
    return killed


KILL = {"worker": kill_workers, "node": kill_nodes, "driver": kill_driver}


def main() -> None:
    """Kill until it is enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--each", type=int, default=3, help="kills in one evaluation")
    parser.add_argument("--files", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, killed = random.Random(options.seed), Counter[str]()
    with tempfile.TemporaryDirectory() as made:
        settings = write_corpus(Path(made), options.files, options.seconds)
        finish(start(settings, Path(made, "whole", "out")))
        whole, number = written(Path(made, "whole", "out")), 0
        while killed.total() < options.kills:
            kind = KINDS[number % len(KINDS)]
            number += 1
            out = Path(made, str(number), "out")
            killed[kind] += KILL[kind](settings, out, chance, options.each)
            assert written(out) == whole, f"evaluation {number}, in which a {kind} was killed, gave other bytes"
            print(f"{number} evaluations, killed: {dict(killed)}", flush=True)


if __name__ == "__main__":
    main()
