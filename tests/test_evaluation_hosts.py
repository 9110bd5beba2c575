"""Evaluations by several processes and devices: nothing is lost, and what comes out is the same to the last bit."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import numpy as np
import polars
import pytest
import soundfile
from click.testing import CliRunner
from evaluation_cases import CONFIG, evaluation_of, leftovers, make_corpus, outputs, write_config
from quick_compiling import QUICK_COMPILER

from jaxrnn.cli import main
from jaxrnn.demo import PACKAGED
from jaxrnn.errors import InputError
from jaxrnn.evaluation import Host, hosts, shared
from jaxrnn.evaluation.hosts import Leases
from jaxrnn.evaluation.workers import workers

LENGTHS = [400 * number for number in range(1, 25)]


def start(config, *arguments, **environment):
    """An evaluation as a process group of its own, compiled as in this process, so that results are the same bits."""
    compiled = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": QUICK_COMPILER}
    return subprocess.Popen(
        [sys.executable, "-m", "jaxrnn", "evaluate", str(config), *map(str, arguments)],
        env={**os.environ, **compiled, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process):
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"), LENGTHS)


def config_in(folder, corpus, text=CONFIG, **values):
    text = text.replace("folder: noisy, reference: clean", f"folder: {corpus}/noisy, reference: {corpus}/clean")
    for key, value in values.items():
        text += f"{key}: {value}\n"
    return write_config(folder, text)


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """The evaluation in this process, not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    ran = invoke(config_in(folder, corpus))
    assert ran.exit_code == 0, ran.output
    return folder / "out"


def children(process):
    """The processes that a process has started."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False)
    return [int(each) for each in found.stdout.split()]


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


def end(process, number):
    """Kill a process as a whole, if it is there still."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    process.communicate(timeout=60)


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
@pytest.mark.parametrize("processes", [2])
def test_killed_at_random_moments_it_ends_with_the_same_bytes(corpus, whole, tmp_path, processes):
    """All processes at once; then one worker, whose recordings others do; then it runs to its end."""
    chance = random.Random(processes)
    config, units = config_in(tmp_path, corpus), tmp_path / "out" / "units"

    process = start(config, "--processes", processes)
    try:
        wait_for(lambda: len(list(units.glob("*.json"))) >= 2 or process.poll() is not None)
        time.sleep(chance.uniform(0, 0.05))
    finally:
        end(process, signal.SIGKILL)
    process = start(config, "--processes", processes)
    try:
        wait_for(lambda: len(children(process.pid)) == processes - 1 or process.poll() is not None)
        time.sleep(chance.uniform(0, 1))
        for child in children(process.pid)[:1]:
            os.kill(child, signal.SIGKILL)
        finish(process)
    finally:
        end(process, signal.SIGKILL)
    assert (tmp_path / "out" / "results.parquet").read_bytes() == (whole / "results.parquet").read_bytes()
    kept, wanted_files = ({path.name: path.read_bytes() for path in (folder / "outputs").iterdir()}
                          for folder in (tmp_path / "out", whole))  # fmt: skip
    assert kept == wanted_files


@pytest.mark.thorough
def test_rows_of_four_devices_are_those_of_one(corpus, whole, tmp_path):
    flags = f"{QUICK_COMPILER} --xla_force_host_platform_device_count=4"
    config = config_in(tmp_path, corpus, CONFIG.replace("batch: 4", "batch: 8"))
    finish(start(config, XLA_FLAGS=flags))
    found, one = (polars.read_parquet(folder / "results.parquet") for folder in (tmp_path / "out", whole))
    assert found.drop("si_sdr").equals(one.drop("si_sdr"))
    np.testing.assert_allclose(found["si_sdr"], one["si_sdr"], atol=1e-3)
    kept, wanted = outputs(tmp_path / "out"), outputs(whole)
    assert kept.keys() == wanted.keys()
    for name, samples in kept.items():
        np.testing.assert_allclose(samples, wanted[name], atol=1e-5)
    assert json.loads((tmp_path / "out" / "run.json").read_text())["devices"] == 4


@pytest.mark.parametrize("count", [2])
def test_processes_join_through_jax(corpus, whole, tmp_path, count):
    """Each ends when all is done; the first of them writes the table."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    config = config_in(tmp_path, corpus)
    for process in [start(config, "--host", f"{index}/{count}", "--coordinator", address) for index in range(count)]:
        finish(process)
    assert (tmp_path / "out" / "results.parquet").read_bytes() == (whole / "results.parquet").read_bytes()


def test_a_host_that_is_gone_or_silent_loses_its_unit_and_one_that_is_alive_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "RENEWAL", 0.05)
    evaluation = evaluation_of(make_corpus(tmp_path, [2000] * 12), batch=2)
    unit, path = evaluation.units[0], tmp_path / "leases" / "000000"
    with Leases(tmp_path / "leases", patience=0.3) as leases:
        assert leases.is_free(unit)
        leases.take(unit)
        assert not leases.is_free(unit)
        before = path.stat().st_mtime_ns
        wait_for(lambda: path.stat().st_mtime_ns > before, 5)
        assert leases.release({1, 2})
        assert path.exists()
        assert not leases.release({0})
        assert not path.exists()
        for gone in (f"{socket.gethostname()}:999999999", f"{socket.gethostname()}:{os.getpid()}"):
            path.write_text(gone)
            assert leases.is_free(unit), "the process is gone"
        path.write_text(f"{socket.gethostname()}:{os.getppid()}")
        assert not leases.is_free(unit)
        path.write_text("elsewhere:1")
        assert not leases.is_free(unit)
        wait_for(lambda: leases.is_free(unit), 5)
        path.touch()
        assert not leases.is_free(unit), "it was renewed"

    order: Any = shared(evaluation, Host(1, 3))
    assert [next(order).index for _ in evaluation.units] == [1, 4, 5, 3, 2, 0]
    assert next(order) is None, "all of them are begun"
    evaluation.journal.finish(4, [])
    assert next(order) is None
    assert sorted(path.name for path in (tmp_path / "out" / "leases").iterdir()) == [
        f"{n:06d}" for n in (0, 1, 2, 3, 5)
    ]
    order.close()
    assert not list((tmp_path / "out" / "leases").iterdir())


def test_a_process_waits_for_a_unit_that_another_works_at_and_then_does_it(tmp_path):
    evaluation = evaluation_of(make_corpus(tmp_path, [2000] * 4), batch=2)
    other = tmp_path / "out" / "leases" / "000001"
    other.parent.mkdir(parents=True)
    other.write_text("elsewhere:1")
    seen = []
    evaluation.run(shared(evaluation, Host(0, 2), patience=0.5), lambda unit, rows: seen.append(unit.index))
    assert seen == [0, 1]
    assert evaluation.is_complete
    assert not list(other.parent.iterdir())


WORKER = """#!/bin/sh
for last; do :; done
if [ "$last" = 1/3 ]; then echo $$ > PID; kill -9 $$; fi
yes said | head -c 1000000 >&2
for each in $(seq 100); do
    sleep 0.05
    if [ -s PID ] && ! kill -0 $(cat PID) 2>/dev/null; then exit 3; fi
done
exit 4
"""


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_a_worker_may_say_much_and_one_that_was_killed_is_seen_as_gone_by_the_others(tmp_path, monkeypatch):
    worker = tmp_path / "worker"
    worker.write_text(WORKER.replace("PID", str(tmp_path / "pid")))
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    with workers([], [{}, {}]) as failures:
        gone, heard = failures()
    assert gone == f"process 1 ended with status {-signal.SIGKILL}"
    start, log = heard.split(": ")
    assert start == "process 2 ended with status 3"
    assert set(log.split()) == {"said"}
    assert len(log) < 3000


def invoke(*arguments):
    return CliRunner().invoke(main, ["evaluate", *map(str, arguments)])


def test_the_command_says_what_it_did_as_json_and_goes_on_where_it_was(corpus, whole, tmp_path):
    config = config_in(tmp_path, corpus)
    first = invoke(config, "--set", "corpus.limit=5", "--set", "out=few", "--json")
    assert first.exit_code == 0, first.output
    said = json.loads(first.stdout)
    assert said["recordings"]["all"] == 5
    assert said["times"]["seconds_of_recordings"] == pytest.approx(sum(LENGTHS[:5]) / 16_000)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "few" / "units").iterdir()}
    table = (tmp_path / "few" / "results.parquet").read_bytes()
    again = invoke(config, "--set", "corpus.limit=5", "--set", "out=few")
    assert again.exit_code == 0, again.output
    assert "5 recordings" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "few" / "units").iterdir()} == written
    assert (tmp_path / "few" / "results.parquet").read_bytes() == table
    rows = polars.read_parquet(whole / "results.parquet")
    assert polars.read_parquet(tmp_path / "few" / "results.parquet")["id"].to_list() == rows["id"].to_list()[:5]
    other = invoke(config, "--set", "corpus.limit=6", "--set", "out=few")
    assert other.exit_code == 2
    assert "differs in corpus" in other.stderr
    assert not leftovers(tmp_path / "few")


MANIFEST = "folder: noisy, reference: clean"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("metrics: [si_sdr]", "metrics: [si_sd]", "si_sdr"),
        ("metrics: [si_sdr]", "metrics: [si_sdr, si_sdr]", "two metrics are called 'si_sdr'"),
        ("metrics:", "metric:", "metrics"),
        ("takes: magnitude", "takes: magnitudes", "samples, magnitude, spectrum"),
        ("gives: mask", "gives: masks", "samples, spectrum, mask, result"),
        (MANIFEST, "folder: noisy, manifest: a.csv", "either folder or manifest"),
        (MANIFEST, "limit: 3", "either folder or manifest"),
        (MANIFEST, "folder: nowhere", "there is no folder"),
        (MANIFEST, "manifest: nowhere.csv", "there is no manifest"),
        (MANIFEST, "folder: noisy, reference: empty", "holds no reference f00"),
        ("stages: [{model: MODEL", "stages: [{model: nothing.onnx", "nothing.onnx"),
        ("hop: 128", "hop: 100", "no divisor"),
        ("hop: 128", "hop: 300", "a hop of 1 to 256"),
        ("size: 256", "size: 512", "does not fit"),
        ("window: sqrt_hann", "window: sqrt_han", "window"),
        ("batch: 4", "batch: 0", "batch"),
        ("chunk: 0.25", "chunk: .nan", "chunk"),
        ("out: out", "out: noisy/f00.wav", "f00.wav"),
        ("out: out", "main: stoi\nout: out", "there is no metric 'stoi'"),
    ],
)
def test_a_mistake_in_a_configuration_is_named(tmp_path, old, new, said):
    make_corpus(tmp_path, [3000, 2000])
    (tmp_path / "empty").mkdir()
    assert old in CONFIG
    result = invoke(write_config(tmp_path, CONFIG.replace(old, new)), "--json")
    assert result.exit_code == 2, result.output
    assert said in json.loads(result.stdout)["error"]
    assert "Traceback" not in result.output
    assert not (tmp_path / "out" / "results.parquet").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "4/4"], "from 0 on"),
        (["--host", "4"], "expected I/N"),
        (["--host", "a/4"], "expected I/N"),
        (["--host", "0/0"], "from 0 on"),
        (["--processes", "2", "--host", "0/2"], "--processes are of this machine alone"),
        (["--coordinator", "localhost:1"], "--coordinator needs --host"),
        (["--against", "nowhere"], "nowhere"),
        (["--set", "corpus.limits=1"], "limit"),
    ],
)
def test_a_mistake_in_the_options_is_named(tmp_path, options, said):
    make_corpus(tmp_path, [3000])
    result = invoke(write_config(tmp_path), *options)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert not (tmp_path / "out").exists(), "nothing has run"


def test_help_and_a_file_that_is_not_there():
    assert "--processes" in invoke("--help").stdout
    missing = invoke("nowhere.yaml")
    assert missing.exit_code == 2
    assert "nowhere.yaml" in missing.stderr


def test_a_full_disk_at_a_claim_is_said(tmp_path, monkeypatch):
    evaluation = evaluation_of(make_corpus(tmp_path, [2000]))

    def failing(self, text, *args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", failing)
    with pytest.raises(InputError, match="No space left on device"):
        evaluation.run(shared(evaluation, Host()))


def test_a_recording_that_nobody_can_read_is_in_the_table_of_the_command(tmp_path):
    make_corpus(tmp_path, [3000, 2000])
    (tmp_path / "noisy" / "f00.wav").write_bytes(b"")
    result = invoke(write_config(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)["recordings"]
    assert (said["all"], said["failed"], said["seconds"]) == (2, 1, 2000 / 16_000)
    table = polars.read_parquet(tmp_path / "out" / "results.parquet")
    assert table["status"].to_list() == ["error", "ok"]
    assert "f00.wav" in table["error"][0]
    (tmp_path / "noisy" / "f01.wav").write_bytes(b"")
    none = invoke(write_config(tmp_path, CONFIG.replace("out: out", "out: none")), "--json")
    assert none.exit_code == 0, none.output
    assert json.loads(none.stdout)["recordings"]["failed"] == 2


def test_every_kind_of_file_is_one_corpus(tmp_path):
    """A folder of WAV, FLAC of another rate and two channels, NPY and NPZ."""
    samples = 0.1 * np.sin(np.arange(4000) / 9).astype(np.float32)
    folder = tmp_path / "noisy"
    folder.mkdir()
    soundfile.write(folder / "a.wav", samples, 16_000, subtype="FLOAT")
    soundfile.write(folder / "b.flac", np.stack([samples, samples], 1), 44_100)
    np.save(folder / "c.npy", samples.astype(np.float64))
    np.savez(folder / "d.npz", samples=samples)
    text = CONFIG.replace(", reference: clean", "").replace("[si_sdr]", "[]")
    result = invoke(write_config(tmp_path, text), "--json")
    assert result.exit_code == 0, result.output
    kept = outputs(tmp_path / "out")
    assert [len(kept[f"{name}.wav"]) for name in "abcd"] == [4000, -(-4000 * 160 // 441), 4000, 4000]
    np.testing.assert_array_equal(kept["a.wav"], kept["c.wav"])
    np.testing.assert_array_equal(kept["a.wav"], kept["d.wav"])
    (stage,) = json.loads((tmp_path / "out" / "run.json").read_text())["system"]["stages"]
    assert stage["model"] == PACKAGED.name
