"""Evaluations by workers of Ray: what comes out is the same to the last byte, whoever computes and whoever dies.

``python tests/test_evaluation_workers.py --kills 50`` kills a worker, a node and a driver in turn, so many
times.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner
from evaluation_cases import (
    CONFIG,
    ONCE,
    Fragile,
    begin_with,
    evaluation_of,
    leftovers,
    make_corpus,
    write_config,
)
from quick_compiling import QUICK_COMPILER

from jaxrnn.cli import main
from jaxrnn.demo import PACKAGED
from jaxrnn.errors import InputError
from jaxrnn.evaluation import compare, evaluate, from_folder

ray = pytest.importorskip("ray")

# Ray's processes replace themselves at once; what JAX warns of are forks that go on.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")

LENGTHS = [400 * number for number in range(1, 25)]


@pytest.fixture(scope="module")
def environment():
    """Workers compile as this process does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setenv("XLA_FLAGS", QUICK_COMPILER)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        yield


def items_of(corpus):
    return from_folder(corpus / "noisy", reference=corpus / "clean")


OPTIONS = {"batch": 4, "chunk": 0.25, "keep": True, "facts": {"system": "fragile"}}


@pytest.mark.nightly
def test_workers_give_the_same_bytes_though_one_of_them_dies(environment, tmp_path):
    corpus = make_corpus(tmp_path, LENGTHS)
    begin_with(corpus / "noisy" / "f20.wav", ONCE)
    evaluate(Fragile(None), items_of(corpus), ["si_sdr"], tmp_path / "alone" / "out", **OPTIONS)
    evaluate(Fragile(tmp_path), items_of(corpus), ["si_sdr"], tmp_path / "both" / "out", workers=2, **OPTIONS)
    assert (tmp_path / "died").exists()
    assert written(tmp_path / "both" / "out") == written(tmp_path / "alone" / "out")
    assert not leftovers(tmp_path / "both" / "out")


class Failing:
    """What the workers make in place of a system."""

    def __init__(self, corpus):
        self._corpus = corpus

    def __call__(self):
        if multiprocessing.parent_process() is not None:  # in a worker
            (self._corpus / "noisy" / "f00.wav").unlink()
        return Fragile(None)


@pytest.mark.nightly
def test_what_goes_wrong_in_a_worker_is_said_as_in_this_process(environment, tmp_path):
    corpus = make_corpus(tmp_path, LENGTHS[:4])
    with pytest.raises(InputError, match=r"cannot be pickled .* give a function that makes the system"):
        evaluate(Fragile(threading.Lock()), items_of(corpus), [], tmp_path / "out", workers=1)
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "outputs").write_text("")
    with pytest.raises(InputError, match=r"f03\.wav cannot be written"):
        evaluate(Fragile(None), items_of(corpus), [], tmp_path / "blocked", workers=1, **OPTIONS)
    with pytest.raises(InputError, match=r"there is no file .*f00\.wav"):
        evaluate(Failing(corpus), items_of(corpus), [], tmp_path / "out", workers=1, **OPTIONS)


def test_one_process_writes_at_a_time(tmp_path):
    corpus = make_corpus(tmp_path, LENGTHS[:4])
    one, other = (evaluation_of(corpus, system=Fragile(None)) for _ in range(2))
    with one.parts.writing(), pytest.raises(InputError, match=r"another process runs an evaluation in .*out"):
        other.run()
    other.run()
    one.run()
    assert one.is_complete


SAME_NUMBER = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from evaluation_cases import Fragile, evaluation_of
from jaxrnn.errors import InputError
evaluation = evaluation_of(Path({corpus!r}), system=Fragile(None))
try:
    evaluation.run(watch=lambda unit, rows: time.sleep(0.5))
    print(os.getpid(), "has run")
except InputError as error:
    print(os.getpid(), error)
"""


@pytest.mark.nightly
def test_two_containers_of_one_name_with_the_same_process_numbers(tmp_path):
    """One of them is refused, and the results of the other are whole."""
    unshare = ["unshare", "--pid", "--fork", sys.executable, "-c"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, ""], check=False, capture_output=True).returncode:
        pytest.skip("processes cannot be numbered anew here")
    corpus = make_corpus(tmp_path, LENGTHS)
    script = SAME_NUMBER.format(tests=str(Path(__file__).parent), corpus=str(corpus))
    both = [subprocess.Popen([*unshare, script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(process.communicate(timeout=120)[0].strip() for process in both)
    assert said[0].startswith("1 another process runs an evaluation in")
    assert said[1] == "1 has run"
    evaluation = evaluation_of(corpus, system=Fragile(None))
    assert evaluation.is_complete
    assert len(evaluation.rows()) == len(LENGTHS)
    assert not leftovers(corpus / "out")


def test_without_ray_the_option_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    make_corpus(tmp_path, LENGTHS[:2])
    result = CliRunner().invoke(main, ["evaluate", str(write_config(tmp_path)), "--ray", "auto"])
    assert result.exit_code == 2, result.output
    assert "ray is needed for workers on a cluster: pip install 'jaxrnn[cluster]'" in result.stderr
    assert CliRunner().invoke(main, ["evaluate", str(write_config(tmp_path))]).exit_code == 0


def invoke(settings, out, *options):
    """The command in this process."""
    result = CliRunner().invoke(main, ["evaluate", str(settings), "--set", f"out={out}", *options])
    assert result.exit_code == 0, result.output


@pytest.mark.nightly
def test_the_command_gives_the_same_in_every_way(environment, tmp_path):
    """Its report, slices, and a comparison with what another way has given; then it finds all of it finished."""
    corpus = make_corpus(tmp_path, LENGTHS)
    lines = "id,path,reference,kind\n" + "".join(
        f"f{n:02d},noisy/f{n:02d}.wav,clean/f{n:02d}.wav,{'ab'[n % 2]}\n" for n in range(len(LENGTHS))
    )
    (corpus / "corpus.csv").write_text(lines)
    text = CONFIG.replace("{folder: noisy, reference: clean}", "{manifest: corpus.csv}")
    settings = write_config(corpus, f"{text.replace('[si_sdr]', '[si_sdr, level]')}slices: [kind]\n")
    invoke(settings, tmp_path / "alone" / "out")
    finish(start(settings, tmp_path / "two" / "out", "--workers", "2"))
    assert written(tmp_path / "two" / "out") == written(tmp_path / "alone" / "out")
    pages = [(tmp_path / name / "out" / "report.html").read_text() for name in ("alone", "two")]
    assert all("By kind" in page for page in pages)
    (found, _) = compare(tmp_path / "two" / "out", tmp_path / "alone" / "out").differences
    assert (found.n, found.mean) == (len(LENGTHS), 0.0)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "two" / "out" / "parts").iterdir()}
    invoke(settings, tmp_path / "two" / "out", "--against", str(tmp_path / "alone" / "out"))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "two" / "out" / "parts").iterdir()} == before
    assert "paired by file" in (tmp_path / "two" / "out" / "report.html").read_text()


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
    environment = {"JAX_PLATFORMS": "cpu", "PYTHONFAULTHANDLER": "1"} | os.environ
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
    return [pid for pid, name in descendants(process) if "spawn_main" in name]


def until(condition: Callable[[], object], process: subprocess.Popen[str], seconds: float = 300.0) -> None:
    """Wait until something is so, or a process has ended; where that takes too long, it says where it is."""
    end = time.monotonic() + seconds
    while not condition() and process.poll() is None:
        if time.monotonic() > end:
            process.send_signal(signal.SIGABRT)
            raise AssertionError(process.communicate()[0])
        time.sleep(0.05)


def kill_workers(settings: Path, out: Path, chance: random.Random, kills: int) -> int:
    """Kill a worker, and another some time later, while the evaluation runs; how many were killed."""
    process, killed = start(settings, out, "--workers", "2"), 0
    while killed < kills and process.poll() is None:
        until(lambda: workers_of(process.pid), process)
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
        until(lambda process=process: workers_of(process.pid), process)
        time.sleep(chance.uniform(0, 8))
        left = [pid for pid, _ in descendants(process.pid)]
        process.kill()
        process.communicate()
        assert process.returncode in (0, -signal.SIGKILL)
        end = time.monotonic() + 120
        while any(Path(f"/proc/{pid}/cmdline").exists() for pid in left):
            assert time.monotonic() < end, "what the command has started does not end"
            time.sleep(0.05)
    finish(start(settings, out, "--workers", "2"))
    return kills


def kill_nodes(settings: Path, out: Path, chance: random.Random, kills: int) -> int:
    """Kill one of two nodes of a cluster, and let another join, while the evaluation runs."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes, killed = [cluster.add_node(num_cpus=1) for _ in range(2)], 0
        process = start(settings, out, "--ray", cluster.address)
        until((out / "parts").exists, process)
        while killed < kills and process.poll() is None:
            time.sleep(chance.uniform(0, 5))
            cluster.remove_node(nodes.pop(chance.randrange(2)), allow_graceful=False)
            killed += 1
            nodes.append(cluster.add_node(num_cpus=1))
        finish(process)
    finally:
        cluster.shutdown()
    return killed


@pytest.mark.nightly
def test_an_interrupt_ends_the_workers(environment, tmp_path):
    settings = write_corpus(tmp_path, 60, 4.0)
    process = start(settings, tmp_path / "out", "--workers", "2")
    until((tmp_path / "out" / "parts").exists, process)
    left = [pid for pid, _ in descendants(process.pid)]
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert "Traceback" not in process.communicate()[0]
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in left):
        assert time.monotonic() < end, "workers do not end"
        time.sleep(0.05)


KILL = {"worker": kill_workers, "node": kill_nodes, "driver": kill_driver}


def kill_many() -> None:
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
    kill_many()
