"""Bounded futures of files: networks over spectra, comparison with the offline network, evaluation and distillation."""

from __future__ import annotations

import numpy as np
import onnx
import polars
import pytest
import yaml
from small_models import offline_model
from test_cli import call, call_json

import jaxrnn
from jaxrnn import training
from jaxrnn.audio import write_wav
from jaxrnn.audio.sounds import read_sound
from jaxrnn.audio.waveforms import waveform_of
from jaxrnn.signal import si_sdr
from jaxrnn.verification import compare_futures

#: A network over spectra of 16 samples as a function of sound.
FRAMES = {"size": 16, "hop": 8, "window": "sqrt_hann", "gives": "mask"}
STFT = ("--symbol", "time", "--stft", 16, "--hop", 8, "--window", "sqrt_hann", "--gives", "mask")


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    path = tmp_path_factory.mktemp("offline") / "net.onnx"
    onnx.save(offline_model(), path)
    return path


@pytest.fixture(scope="module")
def sound():
    return {"samples": np.random.default_rng(3).normal(size=230).astype(np.float32)}


@pytest.mark.nightly
def test_a_future_of_frames_bounds_a_network_over_spectra(network, sound):
    """Streams are exact, delays include the window, and a future as long as the recording changes nothing."""
    enhance = waveform_of(jaxrnn.load(network), "time", **FRAMES)
    whole = enhance.apply(enhance.params, sound)["audio"]
    delays = []
    for future, block in ((3, 1), (29, None)):
        live = enhance.stream(future=future, block=block)
        offline = live.offline(enhance.params, sound)["audio"]
        np.testing.assert_allclose(live.run(enhance.params, sound)["audio"], offline, atol=1e-6)
        error = np.abs(offline - whole).max()
        assert error < 1e-6 if future == 29 else error > 1e-3, future
        delays.append((live.pulse, live.delay["audio"]))
    # The window is a hop longer than a hop. Both the mean and the recurrence see three later frames.
    assert delays[0] == (8, 8 + 2 * 3 * 8)


@pytest.mark.thorough
def test_commands_bound_a_network_over_spectra(network, sound, tmp_path):
    np.save(tmp_path / "x.npy", sound["samples"])
    options = (*STFT, "--future", 3, "--block", 1)
    given = ("--input", f"samples={tmp_path / 'x.npy'}", "--rate", 8_000)
    streamed = call_json("stream", network, *options, *given, "--verify", "-o", tmp_path / "out.npz")
    assert streamed["verified"]
    # Six hops of later frames, and a hop of the window: 56 samples of 8 kHz, after a pulse of 8.
    (audio,) = streamed["outputs"]
    assert (audio["delay"], audio["delay_ms"], streamed["latency_ms"]) == (56, 7, 8)
    enhance = waveform_of(jaxrnn.load(network), "time", **FRAMES)
    expected = enhance.stream(future=3, block=1).offline(enhance.params, sound)["audio"]
    with np.load(tmp_path / "out.npz") as written:
        np.testing.assert_allclose(written["audio"], expected, atol=1e-6)
    exported = call_json("export", network, *options, "--rate", 8_000, "-o", tmp_path / "live.onnx", "--verify")
    assert exported["latency_ms"] == 8
    call("stream", network, *STFT, "--random", "--block", 2, status=2)


@pytest.mark.nightly
def test_bounds_of_other_commands(network, tmp_path):
    options = (*STFT, "--future", 3, "--block", 1)
    call("compile", network, *options, "-o", tmp_path / "live.jaxrnn")
    assert jaxrnn.load_compiled(tmp_path / "live.jaxrnn").spec.delay == {"audio": 56}
    profiled = call_json("profile", network, *options)
    assert "lstm" in [row["name"] for row in profiled["rows"]]


def teaching(network, tmp_path, **keys):
    """A file of settings in which a student of the network learns from noise, with these keys."""
    rng = np.random.default_rng(1)
    for number in range(4):
        np.savez(tmp_path / f"example_{number}.npz", x=rng.normal(size=(40, 1, 9)).astype(np.float32))
    settings = {
        "model": str(network),
        "data": {"npz": "example_*.npz"},
        "validation": {"npz": "example_*.npz", "every": 20},
        "loss": {"name": "mse", "output": "mask", "target": "mask"},
        "optimizer": {"learning_rate": 0.01},
        "steps": 20,
        "batch_size": 4,
        "sequences": {"time_axis": 0},
        "future": 1,
        "teacher": str(network),
        **keys,
    }
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def test_a_student_learns_the_outputs_of_the_teacher(network, tmp_path):
    """From the parameters of the file on; both files have the new weights, and the stream is that of the student."""
    path = teaching(network, tmp_path, export="tuned.onnx", export_stream="live.onnx")
    result = call_json("finetune", path)
    model, tuned = jaxrnn.load(network), jaxrnn.load(tmp_path / "tuned.onnx")
    student = model.stream(future=1)
    recordings = [dict(np.load(tmp_path / f"example_{number}.npz")) for number in range(4)]
    losses = [
        np.mean([np.square(student.offline(params, x)["mask"] - model(x)["mask"]).mean() for x in recordings])
        for params in (model.params, tuned.params)
    ]
    found = [result[key]["loss"] for key in ("validation_before", "validation_after")]
    np.testing.assert_allclose(found, losses, rtol=1e-3)
    assert losses[1] < 0.8 * losses[0]
    assert tuned.outputs == model.outputs  # the offline graph
    report = jaxrnn.export.verify_export(
        student, tuned.params, tmp_path / "live.onnx", flush=tmp_path / "live_flush.onnx"
    )
    assert report.ok


@pytest.mark.nightly
def test_a_student_of_sound_learns_in_the_types_that_it_is_given(network, sound):
    """The transforms are those of the waveform, and the compute type reaches its network."""
    enhance = waveform_of(jaxrnn.load(network), "time", **FRAMES)
    student = training.Student(enhance, future=2, teacher=enhance)
    expected = enhance.stream(future=2).offline(enhance.params, sound)["audio"]
    np.testing.assert_allclose(student.apply(enhance.params, sound)["audio"], expected, atol=1e-6)
    rounded = student.apply(enhance.params, sound, dtype="bfloat16")["audio"]
    assert 1e-4 < np.abs(rounded - expected).max() < 0.1
    target = student.taught(sound)["audio"]
    np.testing.assert_allclose(target, enhance.apply(enhance.params, sound)["audio"], atol=1e-6)


def test_mistakes_about_teachers_are_one_clear_error(network, tmp_path):
    other, wider = tmp_path / "other.onnx", tmp_path / "wider.onnx"
    proto = offline_model()
    proto.graph.output[0].name = proto.graph.node[-1].output[0] = "gains"
    onnx.save(proto, other)
    onnx.save(offline_model(bins=10), wider)
    mistakes = {
        "teacher goes with future": {"future": None},
        "other.onnx has the outputs gains, and the student mask": {"teacher": str(other)},
        "wider.onnx has x: float32[time, 1, 10] among the inputs": {"teacher": str(wider)},
        "future: Input should be": {"future": -1},
        "a student with bounded futures computes whole recordings": {"sequences": {"mode": "scan", "time_axis": 0}},
        "no array 'clean'; there are: x, mask": {"loss": {"name": "mse", "output": "mask", "target": "clean"}},
    }
    for message, keys in mistakes.items():
        assert message in call("finetune", teaching(network, tmp_path, **keys), status=2).output, keys


@pytest.mark.thorough
def test_a_training_resumes_with_the_same_bounds_only(network, tmp_path):
    """And examples of different lengths are refused, because padding changes what the student and the teacher see."""
    call("finetune", teaching(network, tmp_path, checkpoints="kept", steps=2))
    other = teaching(network, tmp_path, checkpoints="kept", future=2)
    assert "of another training: student" in call("finetune", other, status=2).output
    path = teaching(network, tmp_path)
    np.savez(tmp_path / "example_0.npz", x=np.ones((30, 1, 9), np.float32))
    assert "was padded from 30 to 40 frames, and the outputs of a student" in call("finetune", path, status=2).output


@pytest.mark.thorough
def test_the_command_compares_futures_with_the_offline_network(network, tmp_path):
    """By the definition of the error, for each future and recording; the offline limit differs by roundings."""
    folder, rng = tmp_path / "noisy", np.random.default_rng(2)
    folder.mkdir()
    recordings = {f"{number}.npy": rng.normal(size=(20 + number, 1, 9)).astype(np.float32) for number in range(2)}
    for name, array in recordings.items():
        np.save(folder / name, array)
    options = ("--symbol", "time", "--future", "0,3,all", "--block", 1, "--inputs", folder, "--against")
    plot = tmp_path / "loss.png"
    result = call_json("stream", network, *options, "offline", "--rate", 100, "--plot", plot)
    model = jaxrnn.load(network)
    for each in result["losses"][:2]:
        live = model.stream("time", future=each["future"], block=1)
        errors = {}
        for name, x in recordings.items():
            known, found = model(x=x)["mask"], live.offline(model.params, {"x": x})["mask"]
            errors[name] = 10 * np.log10(np.square(known).sum() / np.square(known - found).sum())
        assert each["mean"] == pytest.approx(np.mean(list(errors.values())), abs=1e-3)
        assert each["worst"] == pytest.approx(min(errors.values()), abs=1e-3)
        assert errors[each["worst_recording"]] == min(errors.values())
        assert (each["count"], each["delay"], each["delay_ms"]) == (2, live.delay["mask"], 10 * live.delay["mask"])
    limit = result["losses"][2]
    assert (limit["future"], limit["delay"]) == ("all", None)
    assert limit["mean"] > 110 > 60 > result["losses"][1]["mean"] > result["losses"][0]["mean"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    # A network of other weights is another reference.
    other = tmp_path / "other.onnx"
    jaxrnn.export_onnx(model, {name: 2 * array for name, array in model.params.items()}, other)
    assert call_json("stream", network, *options, other)["losses"][2]["mean"] < 60


@pytest.mark.thorough
def test_the_offline_limit_is_not_a_future_of_as_many_frames(network):
    """The limit of 16 frames has its own block, so that the delay of a future of 16 frames is that of its stream."""
    model = jaxrnn.load(network)
    recordings = {"a": {"x": np.random.default_rng(0).normal(size=(16, 1, 9)).astype(np.float32)}}
    limit, bounded = compare_futures(model, recordings, ["all", 16], block=2)
    assert bounded.delay == model.stream(future=16, block=2).delay["mask"]
    assert limit.delay is None
    assert limit.mean > 100
    with pytest.raises(jaxrnn.InputError, match="a whole number of frames from 0 on or 'all', not -1"):
        compare_futures(model, recordings, [-1])
    with pytest.raises(jaxrnn.InputError, match="there are no recordings"):
        compare_futures(model, {}, [1])


def test_a_comparison_that_compared_nothing_fails(network, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((0, 1, 9), np.float32))
    options = ("stream", network, "--symbol", "time", "--against", "offline", "--input", f"x={tmp_path / 'x.npy'}")
    assert "nothing was compared of mask" in call(*options, "--future", 1, status=2).output
    (tmp_path / "empty").mkdir()
    mistakes = {
        "has no recordings": ("--future", 1, "--inputs", tmp_path / "empty"),
        "needs --future": (),
        "is no number of frames": ("--future", "1,x"),
        "--verify is for a stream that runs": ("--future", 1, "--verify"),
    }
    for message, more in mistakes.items():
        assert message in call(*options, *more, status=2).output, more
    assert "is for --against" in call(*options[:4], "--random", "--future", "0,1", status=2).output
    assert "is a folder" in call(*options[:4], "--future", 1, "--inputs", tmp_path, status=2).output


@pytest.mark.thorough
def test_an_evaluation_bounds_the_system(network, tmp_path):
    """The metrics are those of the bounded function; a future as long as the recordings gives the offline network."""
    rng = np.random.default_rng(5)
    enhance = waveform_of(jaxrnn.load(network), "time", **FRAMES)
    for folder in ("noisy", "clean"):
        (tmp_path / folder).mkdir()
        for number in range(2):
            write_wav(tmp_path / folder / f"{number}.wav", rng.uniform(-0.5, 0.5, 300 + 7 * number), 16_000)
    settings = {
        "corpus": {"folder": "noisy", "reference": "clean"},
        "system": {"stream": {"model": str(network), "symbol": "time", "stft": FRAMES, "future": 3, "block": 1}},
        "metrics": ["si_sdr"],
        "out": "results",
    }
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(settings))
    found = {}
    for future, block in ((3, 1), (64, None)):
        bounds = ("--set", f"system.stream.future={future}", "--set", f"system.stream.block={block or 'null'}")
        out = tmp_path / f"{future}_{block}"
        call("evaluate", path, *bounds, "--set", f"out={out}")
        found[future, block] = sorted(polars.read_parquet(out / "results.parquet")["si_sdr"])
        functions = [enhance.stream(future=future, block=block).offline]
        functions += [enhance.apply] if future == 64 else []
        for function in functions:
            expected = []
            for number in range(2):
                noisy, clean = (read_sound(tmp_path / folder / f"{number}.wav")[0] for folder in ("noisy", "clean"))
                output = function(enhance.params, {"samples": noisy})["audio"]
                expected.append(si_sdr(np.asarray(output), clean))
            np.testing.assert_allclose(found[future, block], sorted(expected), atol=1e-3)
    assert found[3, 1] != found[64, None]
    # Kept results are not those of another block.
    other = ("--set", f"out={tmp_path / '3_1'}", "--set", "system.stream.block=2")
    assert "of another" in call("evaluate", path, *other, status=2).output
