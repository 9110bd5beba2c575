"""The command that evaluates: what it says, where it goes on, and mistakes in its settings and options."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import polars
import pytest
import soundfile
from click.testing import CliRunner
from evaluation_cases import CONFIG, leftovers, make_corpus, outputs, write_config
from quick_compiling import QUICK_COMPILER

from jaxrnn.cli import main
from jaxrnn.demo import PACKAGED

LENGTHS = [400 * number for number in range(1, 25)]


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


@pytest.mark.nightly
def test_rows_of_four_devices_are_those_of_one(corpus, whole, tmp_path):
    flags = f"{QUICK_COMPILER} --xla_force_host_platform_device_count=4"
    config = config_in(tmp_path, corpus, CONFIG.replace("batch: 4", "batch: 8"))
    ran = subprocess.run(
        [sys.executable, "-m", "jaxrnn", "evaluate", str(config)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": flags},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    found, one = (polars.read_parquet(folder / "results.parquet") for folder in (tmp_path / "out", whole))
    assert found.drop("si_sdr").equals(one.drop("si_sdr"))
    np.testing.assert_allclose(found["si_sdr"], one["si_sdr"], atol=1e-3)
    kept, wanted = outputs(tmp_path / "out"), outputs(whole)
    assert kept.keys() == wanted.keys()
    for name, samples in kept.items():
        np.testing.assert_allclose(samples, wanted[name], atol=1e-5)
    assert json.loads((tmp_path / "out" / "results.json").read_text())["facts"]["devices"] == 4


def invoke(*arguments):
    return CliRunner().invoke(main, ["evaluate", *map(str, arguments)])


@pytest.mark.thorough
def test_the_command_says_what_it_did_as_json_and_goes_on_where_it_was(corpus, whole, tmp_path):
    config = config_in(tmp_path, corpus)
    first = invoke(config, "--set", "corpus.limit=5", "--set", "out=few", "--json")
    assert first.exit_code == 0, first.output
    said = json.loads(first.stdout)
    assert said["recordings"]["all"] == 5
    assert said["times"]["seconds_of_recordings"] == pytest.approx(sum(LENGTHS[:5]) / 16_000)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "few" / "parts").iterdir()}
    table = (tmp_path / "few" / "results.parquet").read_bytes()
    again = invoke(config, "--set", "corpus.limit=5", "--set", "out=few")
    assert again.exit_code == 0, again.output
    assert "5 recordings" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "few" / "parts").iterdir()} == written
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
        ("gives: mask", "gives: masks", "samples, mask, magnitude, spectrum, result"),
        (MANIFEST, "folder: noisy, manifest: a.csv", "either folder or manifest"),
        (MANIFEST, "limit: 3", "either folder or manifest"),
        (MANIFEST, "folder: nowhere", "there is no folder"),
        (MANIFEST, "manifest: nowhere.csv", "there is no manifest"),
        (MANIFEST, "folder: noisy, reference: empty", "holds no reference f00"),
        ("stages: [{model: MODEL", "stages: [{model: nothing.onnx", "nothing.onnx"),
        ("hop: 128", "hop: 100", "a hop of 100 does not divide the 256 samples"),
        ("hop: 128", "hop: 300", "the hop must be from 1 to the 256 samples"),
        ("size: 256", "size: 512", "does not fit"),
        ("window: sqrt_hann", "window: sqrt_hamn", "hamn"),
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
        (["--workers", "0"], "range x>=1"),
        (["--against", "nowhere"], "nowhere"),
        (["--set", "corpus.limits=1"], "limit"),
    ],
)
def test_a_mistake_in_the_options_is_named(tmp_path, options, said):
    make_corpus(tmp_path, [3000])
    result = invoke(write_config(tmp_path), *options)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert not (tmp_path / "out" / "parts").exists(), "nothing has run"


def test_help_and_a_file_that_is_not_there():
    assert "--workers" in invoke("--help").stdout
    missing = invoke("nowhere.yaml")
    assert missing.exit_code == 2
    assert "nowhere.yaml" in missing.stderr


@pytest.mark.thorough
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


@pytest.mark.thorough
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
    (stage,) = json.loads((tmp_path / "out" / "results.json").read_text())["facts"]["system"]["stages"]
    assert stage["model"] == PACKAGED.name
