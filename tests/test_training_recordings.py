"""Training on recordings: what mixtures are, from waveform to waveform, and what is logged."""

from __future__ import annotations

import csv
import functools
import json
import re
import shutil
import sys
import types

import jax
import numpy as np
import onnx
import pytest
import soundfile
import yaml
from click.testing import CliRunner
from onnx import helper
from refusals import check_refused
from small_models import graph_of, make_model
from stores import new_bucket, upload
from training_cases import examples, mean_square, recurrent_model, same

import jaxrnn
from jaxrnn.audio import Frames, Network, Waveform
from jaxrnn.cli import main
from jaxrnn.training import Callback, Mixtures, Optimizer, Validation, fit, load_checkpoint, logs, losses, validate
from jaxrnn.training.examples import NpzFiles

RATE = 8_000
FRAMES = {"size": 16, "hop": 8, "window": "sqrt_hann"}


def decibels(sound):
    return 10 * np.log10(np.mean(np.square(sound, dtype=np.float64)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three voices (a tone each), two noises, a room, a table, and a network from magnitudes to a mask."""
    folder = tmp_path_factory.mktemp("sounds")
    rng = np.random.default_rng(0)
    for kind in ("clean", "noise", "rooms"):
        (folder / kind).mkdir()
    for number, (suffix, rate, seconds) in enumerate((("wav", RATE, 1), ("flac", 2 * RATE, 0.5), ("wav", RATE, 0.1))):
        times = np.arange(round(rate * seconds)) / rate
        soundfile.write(folder / "clean" / f"{number}.{suffix}", 0.3 * np.sin(600 * (number + 1) * times), rate)
    for number, seconds in enumerate((1, 0.05)):
        noise = 0.1 * rng.standard_normal(round(RATE * seconds))
        soundfile.write(folder / "noise" / f"{number}.wav", noise, RATE, subtype="FLOAT")
    response = np.zeros(40)
    response[[3, 10]] = -0.5, 0.25
    soundfile.write(folder / "rooms" / "room.wav", response, RATE, subtype="FLOAT")
    (folder / "table.csv").write_text("path,note\nclean/0.wav,first\n")
    onnx.save(mask_network(), folder / "net.onnx")
    return folder


def mask_network():
    """A GRU from magnitudes ``[1, 1, 9]`` to a mask, with external state."""
    rng = np.random.default_rng(1)
    weights = {"W": (1, 18, 9), "R": (1, 18, 6), "P": (6, 9)}
    constants = {name: 0.3 * rng.standard_normal(shape).astype(np.float32) for name, shape in weights.items()}
    nodes = [
        helper.make_node("GRU", ["x", "W", "R", "", "", "h"], ["Y", "h_out"], hidden_size=6),
        helper.make_node("Squeeze", ["Y", "one"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "P"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["mask"]),
    ]
    return make_model(
        graph_of(
            nodes,
            {"x": [1, 1, 9], "h": [1, 1, 6]},
            {"mask": [1, 1, 9], "h_out": [1, 1, 6]},
            constants | {"one": np.array([1])},
            "masking",
        )
    )


def mixtures(folder, **options):
    usual = {"clean": folder / "clean", "noise": folder / "noise", "rate": RATE, "seconds": 0.2}
    return Mixtures(**usual | options)


def test_mixtures_have_the_levels_that_are_asked_for(folder):
    draw = mixtures(folder, snr=(3, 3), level=(-30, -30))
    for number in range(8):
        mixed = draw(np.random.default_rng(number))
        clean, noise = mixed["clean"], mixed["samples"] - mixed["clean"]
        assert clean.dtype == mixed["samples"].dtype == np.float32
        assert clean.shape == mixed["samples"].shape == (1600,)
        np.testing.assert_allclose([decibels(clean), decibels(clean) - decibels(noise)], [-30, 3], atol=1e-3)
    again = draw(np.random.default_rng(7))
    assert same(again, mixed)
    assert not same(draw(np.random.default_rng(8)), mixed)


def test_mixtures_above_full_scale_are_scaled_down(folder):
    loud = {"level": (-15, -15), "snr": (-20, -20)}
    for number in range(4):
        kept, scaled, low = (
            mixtures(folder, **loud, peak=peak)(np.random.default_rng(number)) for peak in (None, 1.0, 0.25)
        )
        loudest = np.abs(kept["samples"]).max()
        assert loudest > 1
        for mixed, peak in ((scaled, 1.0), (low, 0.25)):
            for name in ("samples", "clean"):
                np.testing.assert_allclose(mixed[name], kept[name] * (peak / loudest), rtol=1e-6)
    check_refused(jaxrnn.InputError, "`peak` is the largest magnitude", mixtures, folder, peak=0.0)


def test_parts_are_those_of_the_files(folder):
    whole, _ = soundfile.read(folder / "clean" / "0.wav")
    draw = mixtures(folder, clean=folder / "table.csv", snr=(200, 200))
    assert same(
        draw(np.random.default_rng(0)),
        mixtures(folder, clean=[f"{folder}/clean/0.*"], snr=(200, 200))(np.random.default_rng(0)),
    )
    part = draw(np.random.default_rng(0))["clean"]
    places = np.lib.stride_tricks.sliding_window_view(whole, part.size)
    scaled = places * np.sqrt(np.mean(np.square(part)) / np.mean(np.square(places), axis=1))[:, None]
    assert np.abs(scaled - part).max(1).min() < 1e-4
    # A short voice is whole, with silence around it; a short noise fills the part.
    part = mixtures(folder, clean=folder / "clean" / "2.wav", noise=folder / "noise" / "1.wav")(
        np.random.default_rng(1)
    )
    there = np.flatnonzero(part["clean"])
    assert 790 <= np.ptp(there) + 1 <= 800
    noise = part["samples"] - part["clean"]
    np.testing.assert_allclose(noise[:400], noise[400:800], atol=1e-5)


def test_rooms_keep_the_direct_sound(folder):
    options = {"clean": folder / "clean" / "0.wav", "noise": None, "rooms": [folder / "rooms"], "dry": True}
    mixed = mixtures(folder, **options)(np.random.default_rng(3))
    # From the direct sound on, and with the echo of what is before the part.
    np.testing.assert_allclose(mixed["samples"][7:], (mixed["clean"][7:] - 0.5 * mixed["clean"][:-7]), atol=1e-6)
    assert np.abs(mixed["samples"][:7] - mixed["clean"][:7]).max() > 1e-3
    wet = mixtures(folder, **{**options, "noise": folder / "noise", "dry": False, "snr": (200, 200)})
    mixed = wet(np.random.default_rng(3))
    np.testing.assert_allclose(mixed["samples"], mixed["clean"], atol=1e-6)


def test_several_speakers_and_shapes(folder):
    draw = mixtures(folder, noise=None, speakers=3, balance=(-6, -6), input="x", shape=(1, 1, -1), level=(-20, -20))
    mixed = draw(np.random.default_rng(0))
    assert mixed["x"].shape == (1, 1, 1600)
    np.testing.assert_allclose(mixed["x"][0, 0], mixed["clean"].sum(0), atol=1e-6)
    np.testing.assert_allclose([decibels(voice) for voice in mixed["clean"]], [-20, -26, -26], atol=1e-3)
    peaks = {int(np.abs(np.fft.rfft(voice)).argmax()) for voice in mixed["clean"]}
    assert len(peaks) == 3, "three recordings"


def test_refusals(folder, tmp_path):
    soundfile.write(tmp_path / "silent.wav", np.zeros(RATE), RATE)
    (tmp_path / "table.csv").write_text("path\nnotes.txt\n")
    (tmp_path / "empty").mkdir()
    for words, options in (
        ("there is no folder", {"clean": folder / "cleen"}),
        ("`noise`: .* has no sounds", {"noise": tmp_path / "empty"}),
        ("has other files than sounds: notes.txt", {"clean": tmp_path / "table.csv"}),
        ("`rooms`: there is no folder or file", {"rooms": [folder / "rooms", tmp_path / "absent.wav"]}),
        ("`snr` is the lowest and the highest", {"snr": (3, 1)}),
        ("`level` is the lowest", {"level": (float("nan"), 1)}),
        ("mixtures equal the clean sound", {"noise": None, "rooms": folder / "rooms"}),
        ("`reverberant` is a share", {"reverberant": 1.5}),
        ("`speakers=4` of 3 recordings", {"speakers": 4}),
        ("`seconds=0.0` must give", {"seconds": 0.0}),
        ("`shape=.* does not hold 1600 samples", {"shape": (7, -1)}),
        ("is the name of the clean sound", {"input": "clean"}),
    ):
        check_refused(jaxrnn.InputError, words, mixtures, folder, **options)
    draw = mixtures(folder, clean=tmp_path / "silent.wav")
    check_refused(jaxrnn.InputError, "`clean`: 100 parts of 0.2 s were silent", draw, np.random.default_rng(0))
    check_refused(jaxrnn.InputError, "have more than", mixtures(folder).drawn, 10**6)


def settings_of(folder, out, **changes):
    """A settings file that trains the network from waveform to waveform."""
    sounds = {"clean": str(folder / "clean"), "noise": str(folder / "noise"), "rate": RATE, "seconds": 0.1}
    content = {
        "model": str(folder / "net.onnx"),
        "stft": {**FRAMES, "gives": "mask"},
        "data": {"recordings": sounds},
        "loss": [
            {"name": "si_sdr", "output": "audio", "target": "clean"},
            {"name": "mse", "output": "audio", "target": "clean", "weight": 3},
        ],
        "metrics": {"gain": {"name": "si_sdr_improvement", "output": "audio", "target": "clean", "mixture": "samples"}},
        "steps": 6,
        "batch_size": 2,
        "optimizer": {"average": 0.9, "learning_rate": 0.01},
        "validation": {"recordings": sounds, "count": 2, "every": 2},
        "checkpoints": {"folder": "run", "every": 2},
        "log": "csv",
        **changes,
    }
    out.mkdir(exist_ok=True)
    (out / "settings.yaml").write_text(yaml.safe_dump(content))
    return out / "settings.yaml"


def finetune(path, *options, status=0):
    result = CliRunner().invoke(main, ["finetune", str(path), *options])
    assert result.exit_code == status, result.output
    return result


@pytest.mark.thorough
def test_a_settings_file_trains_on_folders_and_resumes(folder, tmp_path):
    whole = json.loads(finetune(settings_of(folder, tmp_path / "whole"), "--json").stdout)
    assert [record["step"] for record in whole["history"]] == [1, 2, 3, 4, 5, 6]
    assert whole["validation_after"]["gain"] > whole["validation_before"]["gain"]
    parts = settings_of(folder, tmp_path / "parts", export="tuned.onnx")
    finetune(parts, "--set", "steps=4")
    (parts.parent / "run" / "4").rename(parts.parent / "lost")  # as if it was killed after update 3
    second = finetune(parts)
    assert "Resumed from update 2\n" in second.stderr
    for name in ("history.jsonl", "history.csv"):
        first, again = ((tmp_path / each / "run" / name).read_text().splitlines() for each in ("whole", "parts"))
        without = [re.sub(r'"seconds": [^,}]+|(?<=,)[\d.]+(?=,[^,]*,[^,]*$)', "", line) for line in (*first, *again)]
        assert without[: len(first)] == without[len(first) :], name
    rows = list(csv.DictReader((parts.parent / "run" / "history.csv").read_text().splitlines()))
    assert [row["step"] for row in rows] == list("123456")
    assert [bool(row["validation_gain"]) for row in rows] == [False, True] * 3
    model = jaxrnn.load(folder / "net.onnx")
    averages = load_checkpoint(tmp_path / "whole" / "run", model)
    assert same(jaxrnn.load(parts.parent / "tuned.onnx").params, averages)
    assert not same(averages, load_checkpoint(tmp_path / "whole" / "run", model, best=False))
    # Other recordings are another training.
    said = finetune(parts, "--set", f"data.recordings.noise={folder / 'noise' / '0.wav'}", status=2).output
    assert "are of another training: data.noise is" in said


def test_other_recordings_with_equal_names_are_noticed(folder, tmp_path):
    """A resumed training has the same contents, or is told to trust that the contents are the same."""
    shutil.copytree(folder / "noise", tmp_path / "noise")
    draw = functools.partial(mixtures, folder, noise=tmp_path / "noise")
    before, file = draw().identity, tmp_path / "noise" / "0.wav"
    content = file.read_bytes()
    file.touch()
    assert draw().identity == before, "a copy has another time"
    for place in (60, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert draw().identity["noise"] != before["noise"], place
    file.write_bytes(content[:-4])
    assert draw().identity["noise"] != before["noise"]
    file.unlink()
    model, data, store = recurrent_model("time"), examples([4] * 4), upload(folder / "noise", new_bucket() / "noise")

    class Drawn(list):
        identity = draw(noise=store).identity

    assert Drawn.identity["unknown_contents"] == 2
    train = functools.partial(
        fit, model, Drawn(data), mean_square, batch_size=2, checkpoints=tmp_path / "run", progress=False
    )
    train(steps=1)
    with pytest.raises(jaxrnn.TrainingError, match="2 recordings may have changed since the checkpoints"):
        train(steps=2)
    Drawn.trust_names = True
    assert train(steps=2).resumed_from == 1


def test_other_examples_with_equal_names_are_noticed(tmp_path):
    """Examples in files have the same identity as recordings, also in a pattern."""
    data, model = examples([4] * 4), recurrent_model("time")
    (tmp_path / "data").mkdir()
    for number, example in enumerate(data):
        np.savez(tmp_path / "data" / f"{number}.npz", **example)

    def train(steps, files=tmp_path / "data"):
        options = {"batch_size": 2, "checkpoints": tmp_path / "run", "progress": False, "seed": 0}
        return fit(model, NpzFiles(files), mean_square, steps=steps, **options)

    train(1)
    resumed = train(3, tmp_path / "data" / "?.npz")
    assert resumed.resumed_from == 1
    alone = fit(model, data, mean_square, steps=3, batch_size=2, progress=False, seed=0)
    assert same(resumed.params, alone.params)
    np.savez(tmp_path / "data" / "3.npz", **{name: 2 * array for name, array in data[3].items()})
    with pytest.raises(jaxrnn.TrainingError, match=r"of another training: data\.npz is .*4 examples"):
        train(4)


def test_options_of_the_command_are_keys(folder, tmp_path):
    """``--stft`` and its options are the key ``stft``."""
    path = settings_of(folder, tmp_path, stft=None, steps=1, validation=None, checkpoints=None, log=None)
    options = ("--stft", "16", "--hop", "8", "--window", "sqrt_hann", "--gives", "mask")
    said = json.loads(finetune(path, *options, "--json").stdout)
    assert said["history"][0]["loss"] < 50
    said = finetune(path, "--hop", "8", status=2).output
    assert "needs --stft SAMPLES" in said


def test_mistakes_of_a_settings_file_are_reported_together(folder, tmp_path):
    sounds = {"clen": str(folder / "clean"), "noise": str(folder / "noise"), "seconds": "long"}
    loss = [{"name": "si_sd"}, {"name": "mse", "output": "audio", "target": "clean", "weight": "big"}]
    bad = {"data": {"recordings": sounds}, "loss": loss, "checkpoints": None, "symbol": 3}
    said = finetune(settings_of(folder, tmp_path, **bad), status=2).output
    for line in (
        "data.recordings.clen: unknown key (did you mean 'clean'?)",
        "data.recordings.seconds: Input should be a valid number",
        "loss.1.weight: Input should be a valid number",
        "symbol: Input should be a valid string",
    ):
        assert line in said
    said = finetune(settings_of(folder, tmp_path, log=["csv", "tensorbord"], loss=[{"name": "si_sd"}]), status=2).output
    assert "log: there is no log 'tensorbord' (did you mean 'tensorboard'?)" in said
    assert "loss.0: there is no loss 'si_sd' (did you mean 'si_sdr'?)" in said
    said = finetune(settings_of(folder, tmp_path, stft=None, symbol="T"), status=2).output
    assert "symbol: this key goes with stft" in said
    said = finetune(settings_of(folder, tmp_path, checkpoints=None), status=2).output
    assert "log: logs need a folder, or checkpoints" in said


def test_waveforms_train_like_the_network_inside(folder):
    """From waveform to waveform, the gradients are those of the network with the transforms around it."""
    model = jaxrnn.load(folder / "net.onnx")
    waveform = Waveform(Network(model, gives="mask"), Frames(**FRAMES))
    data, loss = mixtures(folder, seconds=0.05).drawn(3), losses.mse("audio", "clean")

    def mean(params):
        outputs = [waveform.apply(params, {"samples": each["samples"]})["audio"] - each["clean"] for each in data]
        return sum((error**2).mean() for error in outputs) / len(data)

    fitted = fit(waveform, data, loss, steps=1, batch_size=3, optimizer=Optimizer("sgd", 0.5), progress=False)
    gradients = jax.grad(mean)(model.params)
    for name, value in model.params.items():
        np.testing.assert_allclose(fitted.params[name], value - 0.5 * gradients[name], atol=1e-6)
    assert validate(waveform, fitted.params, data, loss)["loss"] < fitted.history[0]["loss"]
    remat = fit(
        waveform,
        data,
        loss,
        steps=1,
        batch_size=3,
        optimizer=Optimizer("sgd", 0.5),
        sequences=jaxrnn.training.Sequences(remat="sqrt"),
        progress=False,
    )
    np.testing.assert_allclose(remat.params["R"], fitted.params["R"], atol=1e-6)
    two = Waveform([Network(model, gives="mask")] * 2, Frames(**FRAMES))
    check_refused(jaxrnn.InputError, "has 2 networks: train each one", fit, two, data, loss, steps=1)
    check_refused(
        jaxrnn.InputError, "model must be a Model, .* or a jaxrnn.training.Student", fit, mean, data, loss, steps=1
    )
    for each in data:
        each["samples"][5] = np.inf
    check_refused(
        jaxrnn.TrainingError, "'samples' of example . holds infinity", fit, waveform, data, loss, steps=1, batch_size=3
    )


class Watching(Callback):
    def __init__(self):
        self.calls, self.records, self.outputs = [], [], []

    def begin(self, training):
        self.calls.append(("begin", len(training.history)))

    def update(self, record, training):
        assert record is training.history[record["step"] - 1]
        self.records.append(dict(record))
        if "validation_loss" in record:
            self.outputs += training.examples(1)
            self.params = training.params()

    def end(self):
        self.calls.append(("end", len(self.records)))


def test_callbacks_see_each_update_once(tmp_path):
    model, data, watching = recurrent_model("time"), examples([4] * 4), Watching()

    def train(steps, **options):
        validation = Validation(data[:2], every=2)
        return fit(
            model,
            data,
            mean_square,
            steps=steps,
            batch_size=2,
            validation=validation,
            checkpoints=tmp_path / "run",
            callbacks=[watching],
            progress=False,
            **options,
        )

    train(3)
    fitted = train(5)
    assert watching.calls == [("begin", 0), ("end", 3), ("begin", 3), ("end", 5)]
    assert watching.records == fitted.history
    assert fitted.resumed_from == 3
    outputs, _ = model.step(watching.params, model.init(), {"x": data[0]["x"]})
    np.testing.assert_allclose(watching.outputs[-1]["y"], outputs["y"], atol=1e-6)
    assert same(watching.params, fitted.last_params)
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == fitted.history

    class Failing(Watching):
        def update(self, record, training):
            raise ValueError("no more")

    failing = Failing()
    with pytest.raises(ValueError, match="no more"):
        fit(model, data, mean_square, steps=3, batch_size=2, callbacks=[failing], progress=False)
    assert failing.calls == [("begin", 0), ("end", 0)]
    check_refused(jaxrnn.InputError, "each of callbacks", fit, model, data, mean_square, steps=1, callbacks=[print])


class Board:
    """What stands for tensorboardX and wandb."""

    def __init__(self, *arguments, **options):
        self.opened, self.calls = (arguments, options), []

    def add_scalar(self, name, value, step):
        self.calls.append((step, name, value))

    def add_audio(self, name, samples, step, sample_rate):
        self.calls.append((step, name, samples.shape, sample_rate))

    def log(self, values, step):
        self.calls.append((step, values))

    def close(self):
        self.calls.append("closed")

    finish = close


def test_logs_of_other_packages(tmp_path, monkeypatch):
    made = []
    make = lambda *arguments, **options: made.append(Board(*arguments, **options)) or made[-1]  # noqa: E731
    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=make))
    audio = lambda samples, sample_rate: (len(samples), sample_rate)  # noqa: E731
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=make, Audio=audio))
    record = {"step": 3, "loss": 0.5, "validation_loss": 0.25}
    sounds = {"samples": np.ones(20), "clean": np.zeros((2, 20)), "many": np.zeros((9, 20)), "words": np.arange(20)}
    history = [{"step": 1, "loss": float("nan")}, {"step": 2, "loss": 1.0}]
    running = jaxrnn.training.Running(history, dict, lambda count: iter([sounds] * count))
    for log in logs(["tensorboard", "wandb"], tmp_path, sounds=1, rate=RATE):
        log.begin(running)
        log.update(record, running)
        log.end()
    board, run = made
    alone = jaxrnn.training.Running(history, dict, lambda count: iter(()))
    for log in logs(["tensorboard", "wandb"], tmp_path, sounds=1)[:2]:
        with pytest.warns(UserWarning, match="no sounds are logged, because there are no validation examples"):
            log.begin(alone)
    assert board.opened == ((str(tmp_path / "tensorboard"),), {"purge_step": 3, "flush_secs": 1})
    names = [f"example_0/{name}" for name in ("samples", "clean_0", "clean_1")]
    resumed = ["(1, 'loss', nan)", "(2, 'loss', 1.0)"]
    assert sorted(map(str, board.calls[:4])) == [*resumed, "(3, 'loss', 0.5)", "(3, 'validation/loss', 0.25)"]
    assert board.calls[4:] == [*((3, name, (20, 1), RATE) for name in names), "closed"]
    assert run.calls == [(3, {**record, **dict.fromkeys(names, (20, RATE))}), "closed"]
    assert run.opened[1]["id"] == (tmp_path / "wandb.id").read_text()
    assert json.loads((tmp_path / "history.jsonl").read_text().splitlines()[0]) == {"step": 1, "loss": None}
    monkeypatch.setitem(sys.modules, "wandb", None)
    check_refused(
        jaxrnn.MissingPackageError, "wandb is needed for the log WandB: pip install wandb", logs, "wandb", "x"
    )
    check_refused(jaxrnn.InputError, "no log 'tensorbord' .did you mean 'tensorboard'", logs, "tensorbord", "x")
    check_refused(jaxrnn.InputError, "logs need a folder", logs, "csv")


def test_event_files_are_read_back(tmp_path):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed: pip install tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    running = jaxrnn.training.Running([], dict, lambda count: iter([{"audio": np.linspace(-2, 2, 400)}] * count))
    log, _ = logs("tensorboard", tmp_path, sounds=1, rate=RATE)
    log.begin(running)
    log.update({"step": 1, "loss": 0.5, "validation_loss": 0.25}, running)
    log.end()

    def events():
        found = []
        for file in sorted((tmp_path / "tensorboard").iterdir()):
            rest = file.read_bytes()
            while len(rest) > 12:
                size = int.from_bytes(rest[:8], "little")
                event = Event.FromString(rest[12 : 12 + size])
                found += [
                    (event.step, each.tag, each.audio.sample_rate or each.simple_value) for each in event.summary.value
                ]
                rest = rest[12 + size + 4 :]
        return sorted(found)

    first = [(1, "example_0/audio", RATE), (1, "loss", 0.5), (1, "validation/loss", 0.25)]
    assert events() == first
    # A killed process has not written its last updates, and the last of what it wrote is incomplete.
    (file,) = (tmp_path / "tensorboard").iterdir()
    file = file.rename(file.with_name("events.out.tfevents.1.first"))  # names have seconds
    file.write_bytes(file.read_bytes() + bytes([200, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5]))
    history = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}, {"step": 3, "loss": 0.125}]
    # A process that is killed at once leaves the first event of its session.
    killed, _ = logs("tensorboard", tmp_path)
    killed.opened(jaxrnn.training.Running(history[:1], dict, lambda count: iter(()))).close()
    (left,) = {*(tmp_path / "tensorboard").iterdir()} - {file}
    left.rename(left.with_name("events.out.tfevents.1.second"))
    resumed, _ = logs("tensorboard", tmp_path)
    resumed.begin(jaxrnn.training.Running(history, dict, lambda count: iter(())))
    resumed.update({"step": 4, "loss": 1.0}, running)
    resumed.end()
    file.write_bytes(file.read_bytes()[:-13])
    assert events() == [*first, (2, "loss", 0.25), (3, "loss", 0.125), (4, "loss", 1.0)]
