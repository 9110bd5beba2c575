"""`jaxrnn stream` and `jaxrnn compile`: the state carried, what is written, what is reported, and how they fail."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import layers_model, make_model
from test_cli import call, call_json
from verifier import peer_outputs

import jaxrnn
from jaxrnn.ahead import MAGIC
from jaxrnn.cli import compile as compile_command

FEATURES, HIDDEN, FRAMES = 3, 4, 9


def gru_step_model(batch: int | str = 1) -> onnx.ModelProto:
    """One step of a GRU: ``x``, ``gain`` and ``h`` to ``y`` and ``h_out``."""
    rng = np.random.default_rng(7)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((0.5 * rng.standard_normal(shape)).astype(np.float32), name)

    nodes = [
        helper.make_node("Mul", ["x", "gain"], ["scaled"]),
        helper.make_node("GRU", ["scaled", "W", "R", "", "", "h"], ["Y", "h_out"], hidden_size=HIDDEN),
        helper.make_node("MatMul", ["Y", "P"], ["y"]),
    ]
    shapes = {"x": [1, batch, FEATURES], "gain": [1], "h": [1, batch, HIDDEN]}
    results = {"y": [1, 1, batch, 2], "h_out": [1, batch, HIDDEN]}
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "gru_step",
        [info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [info(name, TensorProto.FLOAT, shape) for name, shape in results.items()],
        [weight("W", 1, 3 * HIDDEN, FEATURES), weight("R", 1, 3 * HIDDEN, HIDDEN), weight("P", HIDDEN, 2)],
    )
    return make_model(graph)


@pytest.fixture
def gru(tmp_path):
    path = tmp_path / "gru.onnx"
    onnx.save(gru_step_model(), path)
    return path


@pytest.fixture
def recordings(tmp_path):
    """Frames of the small model, in files: the options that name them, and the arrays."""
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(FRAMES, 1, 1, FEATURES)), "gain": rng.normal(size=(FRAMES, 1))}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    np.save(tmp_path / "x.npy", arrays["x"])
    np.savez(tmp_path / "rest.npz", gain=arrays["gain"])
    return ["--input", f"x={tmp_path / 'x.npy'}", "--inputs", tmp_path / "rest.npz"], arrays


def by_hand(path, arrays):
    """The other engine's outputs and last state, the state carried here."""
    h, outputs = np.zeros((1, 1, HIDDEN), np.float32), []
    for x, gain in zip(arrays["x"], arrays["gain"], strict=True):
        result = peer_outputs(path, {"x": x, "gain": gain, "h": h})
        outputs.append(result["y"])
        h = result["h_out"]
    return {"y": np.stack(outputs), "state/h": h}


STATE = ("--state", "h=h_out")


def test_stream_carries_the_state_of_either_file(gru, recordings, tmp_path):
    options, arrays = recordings
    expected = by_hand(gru, arrays)
    compiled, out = tmp_path / "gru.jaxrnn", tmp_path / "out.npz"
    call("compile", gru, "-o", compiled, *STATE)
    for file, extra in ((gru, STATE), (compiled, ())):
        found = call_json("stream", file, *extra, *options, "-o", out, "--rate", 16_000, "--hop", 160)
        with np.load(out) as written:
            assert sorted(written.files) == sorted(expected)
            for name in expected:
                np.testing.assert_allclose(written[name], expected[name], atol=1e-6)
        assert (found["steps"], found["random"], found["output"]) == (FRAMES, [], str(out))
        times = [found["microseconds"][key] for key in ("p50", "p95", "p99", "max")]
        assert 0 < times[0] <= times[1] <= times[2] <= times[3]
        assert found["compile_seconds"] > 0
        assert found["step_seconds"] == 0.01
        # The mean of nine steps lies between their longest and a ninth of it.
        assert 0.01e6 / times[3] <= found["times_real_time"] <= FRAMES * 0.01e6 / times[3]
        out.unlink()
    left = {"gru.onnx", "gru.jaxrnn", "x.npy", "rest.npz"}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_stream_at_random_takes_the_steps_and_batch_asked_for(tmp_path, recordings):
    path, out = tmp_path / "open.onnx", tmp_path / "out.npz"
    onnx.save(gru_step_model("streams"), path)
    random = ("--random", "--seed", 3, "--output", out)
    found = call_json("stream", path, *STATE, *random, "--steps", 5, "--dim", "streams=2")
    assert (found["steps"], found["random"], found["dims"]) == (5, ["x", "gain"], {"streams": 2})
    assert (found["step_seconds"], found["times_real_time"], found["not_finite"]) == (None, None, [])
    with np.load(out) as written:
        assert written["y"].shape == (5, 1, 1, 2, 2)
        assert written["state/h"].shape == (1, 2, HIDDEN)
    text = call("stream", path, *STATE, *random, *recordings[0][:2], "--step-seconds", 0.01).stdout
    assert "random: gain (seed 3, streams=1)" in text
    assert "a step, 99th percentile" in text
    assert "times real time" in text
    assert f"written to {out}" in text


def test_compile_says_what_it_wrote_and_has_verified(gru, tmp_path):
    out = tmp_path / "gru.jaxrnn"
    found = call_json("compile", gru, "-o", out, *STATE, "--platform", "cpu", "--platform", "cuda")
    assert found["bytes"] == out.stat().st_size
    assert found["platforms"] == ["cpu", "cuda"]
    assert [entry["name"] for entry in found["inputs"]] == ["x", "gain"]
    assert [(entry["name"], entry["shape"]) for entry in found["state"]] == [("h", [1, 1, HIDDEN])]
    assert found["outputs"] == ["y"]
    assert found["verified"]
    assert found["largest_difference"] < 1e-6
    text = call("compile", gru, "-o", out, *STATE).stdout
    assert "loaded again: one step differs" in text
    elsewhere = call("compile", gru, "-o", tmp_path / "tpu.jaxrnn", *STATE, "--platform", "tpu").stdout
    assert "not verified" in elsewhere


def test_compile_writes_nothing_that_departs(gru, tmp_path, monkeypatch):
    load = jaxrnn.ahead.load_compiled

    def load_wrongly(path):
        compiled = load(path)
        compiled.params = tuple(1.01 * array for array in compiled.params)
        return compiled

    monkeypatch.setattr(jaxrnn.ahead, "load_compiled", load_wrongly)
    said = call_json("compile", gru, "-o", tmp_path / "gru.jaxrnn", *STATE, status=compile_command.MISMATCH)
    assert "nothing was written: one step of the compiled file differs" in said["error"]
    assert [path.name for path in tmp_path.iterdir()] == ["gru.onnx"]


MISTAKES = {
    "a wrong name": (["{gru}", "--input", "X={dir}/x.npy"], "there is no input 'X'; the inputs of a step are: x: "),
    "state as input": (["{gru}", "--input", "h={dir}/x.npy"], "'h' is state"),
    "one frame only": (["{gru}", "--input", "x={dir}/one.npy"], "[frames, 1, 1, 3], not float32[1, 1, 3]"),
    "two lengths": (["{gru}", "--inputs", "{dir}/uneven.npz"], "different numbers of frames: {{'x': 9, 'gain': 4}}"),
    "no frames": (["{gru}", "--input", "x={dir}/empty.npy"], "no frames"),
    "a missing input": (["{gru}", "--input", "x={dir}/x.npy"], "no recording of input(s) gain: float32[1]"),
    "too many steps": (["{gru}", "--random", "--input", "x={dir}/x.npy", "--steps", "10"], "have 9 frames"),
    "a wrong type": (["{gru}", "--random", "--input", "x={dir}/double.npy"], ".astype('float32')"),
    "half a duration": (["{gru}", "--random", "--rate", "16000"], "--rate and --hop go together"),
    "two durations": (["{gru}", "--random", "--rate", "1", "--hop", "1", "--step-seconds", "1"], "not both"),
    "sizes for nothing": (["{gru}", "--dim", "T=2"], "--random"),
    "no folder": (["{gru}", "--random", "-o", "{dir}/none/out.npz"], "there is no folder"),
    "no file": (["{dir}/none.jaxrnn", "--random"], "cannot be read"),
    "damaged": (["{dir}/damaged.jaxrnn", "--random"], "is damaged"),
    "cut off": (["{dir}/cut.jaxrnn", "--random"], "is damaged"),
    "of another format": (["{dir}/later.jaxrnn", "--random"], "not a model compiled by this version"),
    "of another kind": (["{dir}/foreign.jaxrnn", "--random"], "not an ONNX model"),
    "fixed already": (["{dir}/good.jaxrnn", "--random", "--static", "x=1"], "is compiled"),
}


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory):
    """A folder of files that are wrong in one way each."""
    folder = tmp_path_factory.mktemp("mistaken")
    onnx.save(gru_step_model(), folder / "gru.onnx")
    x = np.zeros((FRAMES, 1, 1, FEATURES), np.float32)
    arrays = {"x": x, "one": x[0], "empty": x[:0], "double": x.astype(np.float64)}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.savez(folder / "uneven.npz", x=x, gain=np.zeros((4, 1), np.float32))
    model = jaxrnn.load(folder / "gru.onnx", state={"h": "h_out"})
    jaxrnn.save_compiled(model, folder / "good.jaxrnn")
    good = bytearray((folder / "good.jaxrnn").read_bytes())
    (folder / "cut.jaxrnn").write_bytes(good[:-100])
    (folder / "later.jaxrnn").write_bytes(good.replace(MAGIC, MAGIC.replace(b"1", b"2"), 1))
    (folder / "foreign.jaxrnn").write_bytes(b"\x89PNG\r\n" + bytes(100))
    good[len(good) // 2] ^= 1
    (folder / "damaged.jaxrnn").write_bytes(good)
    return folder


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_clear_error(mistaken, mistake):
    arguments, message = MISTAKES[mistake]
    arguments = [argument.format(dir=mistaken, gru=mistaken / "gru.onnx") for argument in arguments]
    extra = STATE if arguments[0].endswith("gru.onnx") else ()
    result = call("stream", *arguments, *extra, status=2)
    assert result.stdout == ""
    assert message.format() in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["stream", "compile"])
def test_a_model_that_forgets_its_state_is_refused(tmp_path, command):
    path, out = tmp_path / "layers.onnx", tmp_path / "out"
    onnx.save(layers_model(), path)
    options = ("--random",) if command == "stream" else ("--dim", "T=1")
    result = call(command, path, "-o", out, *options, status=2)
    (line,) = result.stderr.splitlines()
    assert "forgets its state after every call (node(s) lstm)" in line
    assert "stream" in line
    assert [left.name for left in tmp_path.iterdir()] == ["layers.onnx"]


def test_compile_names_a_missing_size(models, tmp_path):
    model = models / "silero_vad_16k_op15.onnx"
    arguments = ("compile", model, "-o", tmp_path / "vad.jaxrnn", "--static", "sr=16000")
    assert "give the size of sequence" in call(*arguments, status=2).stderr
    assert not list(tmp_path.iterdir())
    assert call_json(*arguments, "--dim", "sequence=576")["verified"]
    repeated = call("compile", tmp_path / "vad.jaxrnn", "-o", tmp_path / "again.jaxrnn", status=2)
    assert "is compiled already" in repeated.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dtln_1", "adds a leading axis"),
        ("predictor_net", "Runs in steps; batch is the batch."),
        ("wave_net", "forgets the internal state"),
    ],
)
def test_inspect_says_how_a_model_steps(models, name, said):
    assert said in call("inspect", models / f"{name}.onnx").stdout
