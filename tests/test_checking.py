"""Recordings with faults: all are listed before work begins, or left out up to a share, and named in the result."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import soundfile
import yaml
from click.testing import CliRunner
from evaluation_cases import evaluation_of, make_corpus, write_config
from refusals import check_refused
from training_cases import examples, mean_square, recurrent_model, same

import jaxrnn
from jaxrnn.cli import main
from jaxrnn.errors import InputError
from jaxrnn.training import Mixtures, fit
from jaxrnn.training.examples import NpzFiles

RATE = 16_000
#: What the error of each fault says.
FAULTS = {
    "nan.wav": "sample 4,000 is nan",
    "infinite.wav": "sample 7,999 is inf",
    "empty.wav": "cannot be read",
    "text.wav": "cannot be read: Format not recognised",
    "cut.flac": "cannot be read from sample 0 on",
    "short.wav": r"is cut: its header says 16,036 bytes, but 8,014 are there",
    "silence.WAV": "is empty: it holds no frame",
}
#: Faults that are only in the samples.
INSIDE = {"nan.wav", "infinite.wav", "cut.flac"}


def tone(number, length=8000):
    return 0.3 * np.sin(np.arange(length) * (0.05 + 0.02 * number))


def spoil(folder):
    """Write a file for each fault."""
    for name, place, value in (("nan.wav", 4000, np.nan), ("infinite.wav", 7999, np.inf)):
        samples = tone(0)
        samples[place] = value
        soundfile.write(folder / name, samples, RATE, subtype="FLOAT")
    (folder / "empty.wav").write_bytes(b"")
    (folder / "text.wav").write_text("RIF, which is text")
    soundfile.write(folder / "silence.WAV", tone(0, 0), RATE)
    for name in ("cut.flac", "short.wav"):
        soundfile.write(folder / name, tone(0), RATE)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])


@pytest.fixture
def folder(tmp_path):
    """Five good recordings in ``good``, and the same with all faults in ``voices``."""
    (tmp_path / "good").mkdir()
    for number in range(5):
        soundfile.write(tmp_path / "good" / f"{number}.wav", tone(number), RATE)
    shutil.copytree(tmp_path / "good", tmp_path / "voices")
    spoil(tmp_path / "voices")
    return tmp_path


def check(*arguments, status):
    ran = CliRunner().invoke(main, ["check", *map(str, arguments), "--json"])
    assert ran.exit_code == status, ran.output
    return json.loads(ran.stdout)


def test_all_faults_are_listed_at_once(folder):
    voices = folder / "voices"
    found = check(voices, status=1)
    assert found["recordings"] == 12
    assert {path.rpartition("/")[2]: True for path in found["faults"]} == dict.fromkeys(FAULTS, True)
    for name, said in FAULTS.items():
        assert said in found["faults"][str(voices / name)]
    by_headers = check(voices, "--headers", status=1)["faults"]
    assert {path.rpartition("/")[2] for path in by_headers} == FAULTS.keys() - INSIDE
    assert check(folder / "good", status=0)["faults"] == {}
    assert check(folder / "good", "--rate", 3, status=1)["faults"].keys() == {
        str(path) for path in (folder / "good").iterdir()
    }
    lines = CliRunner().invoke(main, ["check", str(voices)]).output.splitlines()
    assert lines[-1] == "read all samples of 12 recordings: 7 with a fault"


def test_other_rates_and_channels_are_said_and_are_no_faults(folder):
    soundfile.write(folder / "good" / "other.flac", np.stack([tone(0)] * 2, 1), 44_100)
    found = check(folder / "good", status=0)
    (said,) = found["others"].values()
    assert (
        "44,100 samples a second in 2 channels, and most recordings have 16,000 samples a second in 1 channel" in said
    )
    check(folder / "good", "--same", status=1)


def test_the_length_of_a_pipe_is_no_fault(folder):
    """A program that writes a WAV file into a pipe declares the largest length."""
    path = folder / "good" / "0.wav"
    content = bytearray(path.read_bytes())
    place = content.index(b"data") + 4
    content[4:8] = content[place : place + 4] = b"\xff" * 4
    path.write_bytes(content)
    check(path, status=0)


def test_recordings_of_settings_are_checked(folder):
    data = {"recordings": {"clean": str(folder / "good"), "noise": str(folder / "voices"), "rate": RATE}}
    np.savez(folder / "bad.npz", x=np.array([1, np.inf]), label=np.int32(3))
    training = {"model": "x.onnx", "loss": "mse", "steps": 1, "data": data, "validation": {"npz": str(folder)}}
    (folder / "training.yaml").write_text(yaml.safe_dump(training))
    found = check(folder / "training.yaml", status=1)
    assert (found["recordings"], len(found["faults"])) == (18, 8)
    make_corpus(folder / "corpus", [9000, 9000])
    (folder / "corpus" / "clean" / "f01.wav").write_text("text")
    config = write_config(folder / "corpus")
    assert list(check(config, status=1)["faults"]) == [str(folder / "corpus" / "clean" / "f01.wav")]
    training["data"] = {"function": "x.py:f"}
    (folder / "training.yaml").write_text(yaml.safe_dump(training))
    ran = CliRunner().invoke(main, ["check", str(folder / "training.yaml")])
    assert (ran.exit_code, "data.function: the examples of a function cannot be checked" in ran.output) == (2, True)


def test_mixtures_leave_out_what_has_a_fault(folder):
    """The mixtures are those of the good recordings, in every run; more faults than the share are an error."""
    options = {"noise": folder / "good", "rate": RATE, "seconds": 0.2}
    good = Mixtures(folder / "good", **options)
    for _ in range(2):
        mixed = Mixtures(folder / "voices", **options, skip=0.5)
        assert {path.name for path in mixed.left_out} == FAULTS.keys()
        assert same(mixed(np.random.default_rng(3)), good(np.random.default_rng(3)))
    assert mixed.identity["clean"].startswith("5 sounds")
    with pytest.raises(InputError) as error:
        Mixtures(folder / "voices", **options, skip=0.4)
    assert str(error.value).startswith(
        "7 of 17 recordings cannot be used (more than the share of 0.4 that `skip` allows"
    )
    assert all(name in str(error.value) for name in FAULTS)
    check_refused(InputError, "7 of 17 recordings cannot be used", Mixtures, folder / "voices", **options, check=True)
    check_refused(InputError, "`skip` is the largest share", Mixtures, folder / "good", **options, skip=2.0)
    for path in (folder / "good").iterdir():
        (folder / "voices" / path.name).unlink()
    check_refused(InputError, "`clean`: each of the 7 recordings", Mixtures, folder / "voices", **options, skip=1.0)


def test_a_training_leaves_out_examples_and_resumes(tmp_path, caplog):
    model, data = recurrent_model("time"), examples([4] * 6)
    for number, example in enumerate(data):
        np.savez(tmp_path / f"{number}.npz", **example)
    (tmp_path / "2.npz").write_bytes(b"PK, and no archive")
    good = [data[number] for number in (0, 1, 3, 4, 5)]

    def train(steps, of, folder=None):
        return fit(model, of, mean_square, steps=steps, batch_size=2, checkpoints=folder, progress=False)

    caplog.set_level("INFO", "jaxrnn.training")
    train(2, NpzFiles(tmp_path, skip=0.2), tmp_path / "run")
    assert f"left out: {tmp_path / '2.npz'}" in caplog.text
    resumed = train(5, NpzFiles(tmp_path, skip=0.2), tmp_path / "run")
    assert resumed.resumed_from == 2
    assert same(resumed.params, train(5, good).params)
    np.savez(tmp_path / "2.npz", **data[2])
    with pytest.raises(jaxrnn.TrainingError, match="of another training"):
        train(6, NpzFiles(tmp_path, skip=0.2), tmp_path / "run")


def test_an_evaluation_ends_above_a_share_of_errors(tmp_path):
    make_corpus(tmp_path, [9000, 4000, 4000, 4000])
    for name, length in (("f01.wav", 4000), ("f02.wav", 4000)):
        soundfile.write(tmp_path / "noisy" / name, np.full(length, np.nan), RATE, subtype="FLOAT")
    options = {"batch": 2, "keep": False}
    with pytest.raises(InputError, match=r"(?s)2 of 4 recordings cannot be used .*f01\.wav.*f02\.wav"):
        evaluation_of(tmp_path, check=True, **options)
    with pytest.raises(InputError, match=r"1 of 4 recordings cannot be used .*\n.*f01\.wav: sample 0 is nan"):
        evaluation_of(tmp_path, skip=0.2, **options).run()
    kept = evaluation_of(tmp_path, skip=0.2, **options)
    assert len(kept.parts.finished()) == 1
    with pytest.raises(InputError, match="1 of 4 recordings cannot be used"):
        kept.run()
    allowed = evaluation_of(tmp_path, skip=0.5, check=True, **options)
    allowed.run()
    assert [row["status"] for row in allowed.rows()] == ["ok", "error", "error", "ok"]
    said = allowed.conclude({"seconds": 1.0, "seconds_of_recordings": 1.0, "times_real_time": 1.0, "workers": 1})
    assert said.document["recordings"]["failed"] == 2
    assert "f02.wav: sample 0 is nan" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
