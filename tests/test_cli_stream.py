"""`jaxrnn stream` and `jaxrnn compile`: the state carried, what is written, what is reported, and how they fail."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_models import graph_of, layers_model, make_model
from test_cli import call, call_json
from tiers import of_tiers
from verifier import peer_outputs

import jaxrnn
import jaxrnn.runtime.compiled
from jaxrnn.audio import write_wav
from jaxrnn.cli.errors import MISMATCH
from jaxrnn.runtime.compiled.format import MAGIC
from jaxrnn.steps import numpy_step

FEATURES, HIDDEN, FRAMES = 3, 4, 9


def gru_step_model(batch: int | str = 1) -> onnx.ModelProto:
    """One step of a GRU: ``x``, ``gain`` and ``h`` to ``y`` and ``h_out``."""
    rng = np.random.default_rng(7)
    shapes = {"W": (1, 3 * HIDDEN, FEATURES), "R": (1, 3 * HIDDEN, HIDDEN), "P": (HIDDEN, 2)}
    weights = {name: (0.5 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Mul", ["x", "gain"], ["scaled"]),
        helper.make_node("GRU", ["scaled", "W", "R", "", "", "h"], ["Y", "h_out"], hidden_size=HIDDEN),
        helper.make_node("MatMul", ["Y", "P"], ["y"]),
    ]
    inputs = {"x": [1, batch, FEATURES], "gain": [1], "h": [1, batch, HIDDEN]}
    results = {"y": [1, 1, batch, 2], "h_out": [1, batch, HIDDEN]}
    return make_model(graph_of(nodes, inputs, results, weights, "gru_step"))


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


def test_stream_times_one_stream(tmp_path):
    """An open batch has size 1, also beside a recording without a batch; the help says so."""
    path, gain = tmp_path / "open.onnx", tmp_path / "gain.npy"
    onnx.save(gru_step_model("streams"), path)
    np.save(gain, np.ones((4, 1), np.float32))
    for given in ((), ("--input", f"gain={gain}")):
        found = call_json("stream", path, *STATE, "--random", *given, "--steps", 4)
        assert found["dims"] == {"streams": 1}
        assert [entry["shape"] for entry in found["state"]] == [[1, 1, HIDDEN]]
        assert [entry["shape"] for entry in found["outputs"]] == [[4, 1, 1, 1, 2]]
    assert "of one stream" in " ".join(call("stream", "--help").stdout.split())


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
    assert "loaded again: a step or the flush differs" in text
    elsewhere = call("compile", gru, "-o", tmp_path / "tpu.jaxrnn", *STATE, "--platform", "tpu").stdout
    assert "not verified" in elsewhere


def test_compile_writes_nothing_that_differs(gru, tmp_path, wrong_compiled_files):
    said = call_json("compile", gru, "-o", tmp_path / "gru.jaxrnn", *STATE, status=MISMATCH)
    assert "nothing was written: a step or the flush of the compiled file differs" in said["error"]
    assert [path.name for path in tmp_path.iterdir()] == ["gru.onnx"]


MISTAKES = {
    "a wrong name": (
        ["{gru}", "--input", "X={dir}/x.npy"],
        "there is no input 'X' (did you mean 'x'?); the inputs are: x: ",
    ),
    "state as input": (["{gru}", "--input", "h={dir}/x.npy"], "'h' is state"),
    "one frame only": (
        ["{gru}", "--random", "--input", "x={dir}/one.npy"],
        "float32[frames, 1, 1, 3] has rank 4, but got float32[1, 1, 3]",
    ),
    "two lengths": (["{gru}", "--inputs", "{dir}/uneven.npz"], "different numbers of frames: x: 9, gain: 4"),
    "no frames": (["{gru}", "--input", "x={dir}/empty.npy"], "no frames"),
    "a missing input": (["{gru}", "--input", "x={dir}/x.npy"], "no recording of input(s) gain: float32[1]"),
    "too many steps": (["{gru}", "--random", "--input", "x={dir}/x.npy", "--steps", "10"], "have 9 frames"),
    "a wrong type": (["{gru}", "--random", "--input", "x={dir}/double.npy"], ".astype('float32')"),
    "half a duration": (["{gru}", "--random", "--rate", "16000"], "--rate and --hop go together"),
    "two rates": (
        ["{gru}", "--input", "x={dir}/x.wav", "--rate", "1", "--hop", "1"],
        "x.wav has 8000 samples per second, but --rate is 1: --resample 1 resamples it",
    ),
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
    write_wav(folder / "x.wav", x.ravel(), 8000)
    np.savez(folder / "uneven.npz", x=x, gain=np.zeros((4, 1), np.float32))
    model = jaxrnn.load(folder / "gru.onnx", state={"h": "h_out"})
    jaxrnn.save_compiled(model, folder / "good.jaxrnn")
    good = bytearray((folder / "good.jaxrnn").read_bytes())
    (folder / "cut.jaxrnn").write_bytes(good[:-100])
    (folder / "later.jaxrnn").write_bytes(good.replace(MAGIC, MAGIC.replace(b"2", b"3"), 1))
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
    path, out = tmp_path / "layers.onnx", tmp_path / "out.npz"
    onnx.save(layers_model(), path)
    options = ("--random",) if command == "stream" else ("--dim", "T=1")
    result = call(command, path, "-o", out, *options, status=2)
    (line,) = result.stderr.splitlines()
    assert "forgets its state after every call (node(s) lstm)" in line
    assert "stream" in line
    assert "Here, in pulses of the recording: --symbol T" in line
    assert [left.name for left in tmp_path.iterdir()] == ["layers.onnx"]


def held_model() -> onnx.ModelProto:
    """Rows of a table, times a gain that is constant in time, summed up to each frame and over all of them."""
    table = np.random.default_rng(2).standard_normal((7, FEATURES)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Mul", ["rows", "gain"], ["scaled"]),
        helper.make_node("CumSum", ["scaled", "axis"], ["sums"]),
        helper.make_node("ReduceSum", ["scaled", "axes"], ["total"], keepdims=0),
    ]
    inputs = {"ids": (TensorProto.INT64, ["batch", "frames"]), "gain": ["width"]}
    outputs = {"sums": ["batch", "frames", FEATURES], "total": ["batch", FEATURES]}
    constants = {"table": table, "axis": np.array(1), "axes": np.array([1])}
    return make_model(graph_of(nodes, inputs, outputs, constants, "constants"))


@pytest.fixture
def layers(tmp_path):
    """A model over a whole recording of T frames, and a recording of two streams."""
    path = tmp_path / "layers.onnx"
    onnx.save(layers_model(), path)
    np.save(tmp_path / "x.npy", np.random.default_rng(3).standard_normal((23, 2, 3)).astype(np.float32))
    return path


@pytest.mark.thorough
def test_pulses_give_what_the_model_gives_for_the_whole_recording(layers, tmp_path):
    out, recording = tmp_path / "out.npz", np.load(tmp_path / "x.npy")
    given = ("--symbol", "T", "--input", f"x={tmp_path / 'x.npy'}", "-o", out)
    found = call_json("stream", layers, *given, "--pulse", 4, "--rate", 16_000, "--hop", 160, "--verify")
    expected = jaxrnn.load(layers)(x=recording)
    with np.load(out) as written:
        assert written.files == ["logits", "Y_h"]
        for name in written.files:
            np.testing.assert_allclose(written[name], expected[name], atol=1e-6)
    assert (found["frames"], found["steps"], found["pulse"], found["smallest_pulse"]) == (23, 5, 4, 1)
    assert (found["random"], found["dims"], found["not_finite"]) == ([], {"T": 23, "batch": 2}, [])
    assert [(item["name"], item["delay"], item["frames_per_pulse"]) for item in found["outputs"]] == [
        ("logits", 0, 4),
        ("Y_h", None, None),
    ]
    assert (found["look_ahead"], found["receptive_field"]) == (0, None)
    assert found["state_bytes"] == sum(entry["bytes"] for entry in found["state"]) > 2 * 2 * 5 * 4
    times = [found["microseconds"][key] for key in ("p50", "p95", "p99", "max")]
    assert 0 < times[0] <= times[1] <= times[2] <= times[3]
    assert found["step_seconds"] == 0.04
    assert 0.04e6 / times[3] <= found["times_real_time"] <= 5 * 0.04e6 / times[3]
    # One frame, a frame to either side of a pulse, and three pulses and a frame.
    assert [check["frames"] for check in found["checks"]] == [23, 1, 3, 4, 5, 13]
    assert found["verified"]
    assert all(check["ok"] and len(check["outputs"]) == 2 for check in found["checks"])
    # Fewer frames than a pulse: all of them come from the flush.
    found = call_json("stream", layers, *given, "--pulse", 4, "--frames", 3)
    assert (found["steps"], found["microseconds"], found["verified"]) == (0, None, None)
    with np.load(out) as written:
        np.testing.assert_allclose(written["logits"], expected["logits"][:3], atol=1e-6)
    assert "pulses" in call("stream", layers, *given, "--pulse", 4, "--frames", 3).stdout


@pytest.mark.thorough
def test_pulses_hold_what_does_not_move(tmp_path):
    path = tmp_path / "held.onnx"
    onnx.save(held_model(), path)
    np.save(tmp_path / "gain.npy", np.array([1, -2, 0.5], np.float32))
    options = ("--random", "--symbol", "frames", "--frames", 20, "--dim", "batch=2", "--pulse", 3)
    given = ("--input", f"gain={tmp_path / 'gain.npy'}")
    found = call_json("stream", path, *options, *given, "--verify")
    assert found["verified"]
    assert (found["random"], found["dims"]) == (["ids"], {"width": 3, "batch": 2, "frames": 20})
    text = call("stream", path, *options, *given, "--verify", "--rate", 100, "--hop", 1).stdout
    for word in ("3 input frames of frames", "all of the past", "at the end", "a pulse, 95th percentile", "30 ms"):
        assert word in text
    assert text.rstrip().endswith(f"\nagrees in {found['compared']} elements")


@pytest.mark.parametrize(
    ("name", "pulse", "smallest", "delay"),
    of_tiers(
        [
            ("keyword_net", None, 2, {"logits": 1}),
            ("wave_net", 128, 64, {"clean": 0}),
        ],
        [],
        [("wave_net", 128, 64, {"clean": 0})],
    ),
)
def test_pulses_of_real_models(models, name, pulse, smallest, delay):
    options = () if pulse is None else ("--pulse", pulse)
    frames = 10 * (pulse or smallest) + 1
    path = models / f"{name}.onnx"
    found = call_json("stream", path, "--symbol", "S", *options, "--random", "--frames", frames, "--verify")
    assert found["verified"]
    assert (found["pulse"], found["smallest_pulse"], found["steps"]) == (pulse or smallest, smallest, 10)
    assert {item["name"]: item["delay"] for item in found["outputs"]} == delay


def test_pulses_that_differ(layers, monkeypatch):
    joined = numpy_step.joined_output
    monkeypatch.setattr(numpy_step, "joined_output", lambda *arguments: 1.01 * joined(*arguments))
    options = ("--symbol", "T", "--random", "--frames", 5)
    found = call_json("stream", layers, *options, "--verify", status=1)
    assert not found["verified"]
    assert [item["ok"] for item in found["checks"][0]["outputs"]] == [False, False]
    text = call("stream", layers, *options, "--verify", status=1).stdout
    assert "elements differ" in text
    assert text.rstrip().endswith("differs")
    call("stream", layers, *options)


PULSE_MISTAKES = {
    "no such dimension": (
        ["--symbol", "S", "--random"],
        "no input has a dimension 'S'; --symbol takes one of: T, batch",
    ),
    "a wrong letter": (["--symbol", "bach", "--random"], "no input has a dimension 'bach' (did you mean 'batch'?)"),
    "no recording": (["--symbol", "T"], "no recording of input(s) x: float32[T, batch, 3]"),
    "a wrong rank": (["--symbol", "T", "--input", "x={dir}/flat.npy"], "rank"),
    "a wrong name": (["--symbol", "T", "--random", "--input", "y={dir}/x.npy"], "the inputs are: x"),
    "no frames": (["--symbol", "T", "--input", "x={dir}/empty.npy"], "no frames"),
    "too many frames": (["--symbol", "T", "--input", "x={dir}/x.npy", "--frames", "24"], "have 23 frames"),
    "frames as a size": (["--symbol", "T", "--random", "--dim", "T=9"], "--frames"),
    "an uneven length": (["--symbol", "T", "--random", "--multiple", "4", "--frames", "10"], "not a multiple of 4"),
    "a pulse between": (
        ["--symbol", "T", "--random", "--multiple", "4", "--pulse", "6"],
        "a multiple of 4 frames, such as 4, 8",
    ),
    "too short": (
        ["--symbol", "T", "--random", "--shortest", "9", "--frames", "8"],
        "a recording of 8 frames is too short: the stream of",
    ),
    "steps": (["--symbol", "T", "--random", "--steps", "9"], "--steps is for steps"),
    "pulses of steps": (["--random", "--pulse", "9"], "--pulse needs --symbol NAME"),
    "nothing to verify": (["--random", "--verify"], "--symbol NAME"),
    "no folder": (["--symbol", "T", "--random", "-o", "{dir}/none/out.npz"], "there is no folder"),
}


@pytest.mark.parametrize("mistake", PULSE_MISTAKES)
def test_mistakes_about_pulses_are_one_clear_error(layers, tmp_path, mistake):
    x = np.load(tmp_path / "x.npy")
    np.save(tmp_path / "flat.npy", x[0])
    np.save(tmp_path / "empty.npy", x[:0])
    arguments, message = PULSE_MISTAKES[mistake]
    result = call("stream", layers, *(argument.format(dir=tmp_path) for argument in arguments), status=2)
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.thorough
def test_pulses_of_a_compiled_file(layers, tmp_path):
    """A compiled stream runs as the ONNX file does with --symbol."""
    model, out = jaxrnn.load(layers), tmp_path / "out.npz"
    jaxrnn.save_compiled(model.stream("T", 2), tmp_path / "layers.jaxrnn", params=model.params)
    x = np.load(tmp_path / "x.npy")[:, :1]
    np.save(tmp_path / "one.npy", x)
    found = call_json("stream", tmp_path / "layers.jaxrnn", "--input", f"x={tmp_path / 'one.npy'}", "-o", out)
    assert (found["frames"], found["steps"], found["pulse"], found["random"]) == (23, 11, 2, [])
    expected = model(x=x)
    with np.load(out) as written:
        assert set(written.files) == expected.keys()
        for name in written.files:
            np.testing.assert_allclose(written[name], expected[name], atol=1e-6)


@pytest.mark.thorough
def test_a_compiled_file_with_a_symbol_or_a_bidirectional_model_is_refused(models, mistaken):
    result = call("stream", mistaken / "good.jaxrnn", "--symbol", "S", "--random", status=2)
    assert "--symbol needs the ONNX file" in result.stderr
    said = call_json("stream", models / "ocr_net.onnx", "--symbol", "width", "--random", status=2)["error"]
    assert "node '/lstm/LSTM'" in said
    assert "backwards in time" in said
    result = call("stream", models / "keyword_net.onnx", "--symbol", "S", "--pulse", 3, "--random", status=2)
    assert "a multiple of 2 frames, such as 2, 4, 6" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.thorough
def test_compile_names_a_missing_size(models, tmp_path):
    model = models / "silero_vad_16k_op15.onnx"
    arguments = ("compile", model, "-o", tmp_path / "vad.jaxrnn", "--static", "sr=16000")
    assert "give the size of sequence" in call(*arguments, status=2).stderr
    assert not list(tmp_path.iterdir())
    assert call_json(*arguments, "--dim", "sequence=576")["verified"]
    repeated = call("compile", tmp_path / "vad.jaxrnn", "-o", tmp_path / "again.jaxrnn", status=2)
    assert "is already compiled" in repeated.stderr


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


def test_sizes_that_nothing_holds(models):
    path = models / "keyword_net.onnx"
    for options, said in (
        (["--frames", 10**13], "is too large: 2.8 PiB, of at most 8.0 GiB"),
        (["--frames", 10, "--pulse", 10**12], "a pulse of 1,000,000,000,000 frames takes 145 TiB for feats"),
    ):
        assert said in call("stream", path, "--symbol", "S", "--random", *options, status=2).stderr
