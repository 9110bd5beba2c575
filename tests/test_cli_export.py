"""Export and compilation of files and steps by the command."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import soundfile
from export_models import TIMES, check_reads_back, model_of, tensor
from exported_files import facts_of
from onnx import TensorProto, helper
from scipy import signal
from small_models import a_little_wrong, graph_of, layers_model, look_ahead_model, make_model, operator_replaced
from test_cli import call, call_json
from tiers import of_tiers

import jaxrnn
import jaxrnn.runtime.compiled
from jaxrnn.audio import read_sound, write_wav
from jaxrnn.cli import export_writing
from jaxrnn.cli.arrays import save_archive
from jaxrnn.cli.errors import MISMATCH
from jaxrnn.demo import PACKAGED


@pytest.fixture
def layers(tmp_path):
    """A small model's file, and parameters for it, two of which are the file's own."""
    path = tmp_path / "layers.onnx"
    onnx.save(layers_model(), path)
    params = {name: np.asarray(value) for name, value in jaxrnn.load(path).params.items()}
    return path, params | {name: params[name] + np.float32(0.25) for name in ("W", "B", "P")}


def archive_of(path, params):
    save_archive(path, params)
    return path


@pytest.mark.thorough
def test_an_archive_of_parameters(layers, tmp_path):
    file, params = layers
    archive, out = archive_of(tmp_path / "params.npz", params), tmp_path / "out.onnx"
    found = call_json("export", file, "--params", archive, "-o", out, "--verify", "--dim", "T=3,7")
    check_reads_back(out, params)
    assert (found["output"], found["bytes"], found["changed"]) == (str(out), out.stat().st_size, 3)
    changes = {each["name"]: each for each in found["parameters"]}
    assert list(changes) == list(params)
    for name, each in changes.items():
        assert (each["shape"], each["dtype"]) == (list(params[name].shape), "float32")
        assert each["changed"] == (name in "WBP")
        assert each["largest_change"] == pytest.approx(0.25 if each["changed"] else 0, abs=1e-6)
    assert "ONNX Runtime" in found["verified"]["engine"]
    assert [case["dims"]["T"] for case in found["verified"]["cases"]] == [3, 7]
    text = call("export", file, "--params", archive, "-o", file, "--verify").stdout  # over the source
    check_reads_back(file, params)
    for word in ("3 changed, 2 as they were", "[1, 20, 3]", "0.25", "Verified against ONNX Runtime", "Y_h"):
        assert word in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layers.onnx", "out.onnx", "params.npz"]
    assert call_json("export", file, "--params", archive, "-o", out)["verified"] is None


def test_a_file_that_departs_is_not_written(layers, tmp_path):
    file, params = layers
    archive, out = archive_of(tmp_path / "params.npz", params), tmp_path / "out.onnx"
    with operator_replaced("Tanh", a_little_wrong):
        result = call("export", file, "--params", archive, "-o", out, "--verify", status=1)
        assert "nothing was written: the output" in result.stderr
        assert "differs from ONNX Runtime" in result.stderr
        found = call_json("export", file, "--params", archive, "-o", out, "--verify", status=1)
    assert "'Y_h' differs" in found["error"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layers.onnx", "params.npz"]


def test_checkpoints_are_chosen(layers, tmp_path, monkeypatch):
    file, params = layers
    asked = []

    def load_checkpoint(folder, model=None, *, step=None, best=True):
        asked.append((folder.name, model.label, step, best))
        return params

    monkeypatch.setattr("jaxrnn.training.load_checkpoint", load_checkpoint)
    out = tmp_path / "out.onnx"
    for options in ((), ("--best",), ("--last",), ("--step", "40")):
        call("export", file, "--checkpoint", tmp_path / "run", *options, "-o", out)
        check_reads_back(out, params)
    chosen = [(None, True), (None, True), (None, False), (40, True)]
    assert asked == [("run", str(file), step, best) for step, best in chosen]


def test_types_that_archives_do_not_know(tmp_path):
    file, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(model_of([TIMES], [tensor(kind=TensorProto.BFLOAT16)], TensorProto.BFLOAT16), file)
    params = {"w": np.asarray((1, 2, 3), ml_dtypes.bfloat16)}
    found = call_json("export", file, "--params", archive_of(tmp_path / "p.npz", params), "-o", out, "--verify")
    check_reads_back(out, params)
    assert "reference" in found["verified"]["engine"]  # which exchanges bfloat16 with Python


def test_what_is_said_about_mistakes(layers, tmp_path):
    file, params = layers
    archive = archive_of(tmp_path / "params.npz", params)
    few = archive_of(tmp_path / "few.npz", {"W": params["W"]})
    wrong = archive_of(tmp_path / "nan.npz", params | {"P": params["P"] * np.float32(np.nan)})
    out, step = ("-o", tmp_path / "out.onnx"), ("--step", "3")
    mistakes = [
        ((file, "--params", archive, "--checkpoint", tmp_path, *out), "either --checkpoint DIR or --params"),
        ((file, "--params", archive, *step, *out), "--step needs --checkpoint DIR"),
        ((file, "--checkpoint", tmp_path, *step, "--last", *out), "--step and --last exclude each other"),
        ((file, "--params", archive, "--dim", "T=3", *out), "it needs --verify"),
        ((file, "--params", archive, "--dim", "Q=3", "--verify", *out), "no dimension 'Q'"),
        ((file, "--params", archive, "-o", tmp_path), "is a folder"),
        ((file, "--params", archive, "-o", tmp_path / "out.bin"), "'out.bin' must end in .onnx"),
        ((file, "--params", archive, "-o", tmp_path / "no" / "out.onnx"), "no folder"),
        ((file, "--params", tmp_path / "no.npz", *out), "no.npz cannot be read"),
        ((file, "--params", archive, "--batch", "2", *out), "but --params and --checkpoint alone write the graph"),
        (
            (file, "--dtype", "float16", "--opset", "18", *out),
            "a model without steps, --dtype and --quantize write the",
        ),
        ((file, "--params", few, *out), "params: 'scale' is missing (and 3 more)"),
        ((file, "--params", wrong, *out), "params['P'][0, 0] = nan is NaN, but the file has a number there"),
    ]
    before = sorted(tmp_path.iterdir())
    for arguments, words in mistakes:
        assert words in call_json("export", *arguments, status=2)["error"]
    assert sorted(tmp_path.iterdir()) == before


STREAM = ("--symbol", "T", "--pulse", 2)


@pytest.fixture
def offline(tmp_path):
    """A model over whole recordings of T frames."""
    path = tmp_path / "offline.onnx"
    onnx.save(look_ahead_model(), path)
    return path


@pytest.fixture
def step(tmp_path):
    """A step of an exponential mean, for a batch that is left open."""
    nodes = [
        helper.make_node("Mul", ["mean", "decay"], ["old"]),
        helper.make_node("Add", ["old", "x"], ["new_mean"]),
        helper.make_node("Tanh", ["new_mean"], ["y"]),
    ]
    row, weights = ["streams", 2], {"decay": np.array([0.9, 0.5], np.float32)}
    graph = graph_of(nodes, {"x": row, "mean": row}, {"y": row, "new_mean": row}, weights, "mean")
    path = tmp_path / "step.onnx"
    onnx.save(make_model(graph), path)
    return path


def archive(path, model, factor=1.5):
    """Other parameters of a model in a file."""
    save_archive(
        path, {name: np.asarray(value) * np.float32(factor) for name, value in jaxrnn.load(model).params.items()}
    )
    return path


@pytest.mark.thorough
def test_a_stream_and_its_flush(offline, tmp_path):
    out, flush = tmp_path / "s.onnx", tmp_path / "f.onnx"
    arguments = ("export", offline, *STREAM, "-o", out, "--flush", flush, "--verify")
    found = call_json(*arguments)
    sizes = {each["file"]: each["bytes"] for each in found["files"]}
    assert sizes == {str(path): path.stat().st_size for path in (out, flush, tmp_path / "s.first_state.npz")}
    assert (found["pulse"], found["look_ahead"], found["batch"]) == (2, 1, None)
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": [1, 3, 2], "time_axis": 2}]
    (output,) = found["outputs"]
    assert (output["name"], output["shape"], output["delay"], output["rate"]) == ("y", [1, 2, 2], 1, "1")
    history = next(each for each in found["state"] if each["name"] == "window.history")
    assert (history["input"], history["output"]) == ("window.history", "window.history_next")
    step, rest = found["graphs"]
    assert (step["kind"], rest["kind"], step["opset"], step["operators"]["Tanh"]) == ("step", "flush", 17, 1)
    assert step["nodes"] == sum(step["operators"].values()) == len(onnx.load(out).graph.node)
    assert found["verified"]
    assert found["lost"] == []
    assert {check["against"] for check in found["checks"]} == {"the whole recording", "the steps in jaxrnn"}
    text = call(*arguments, "--opset", 18, "--batch", 3).stdout
    for word in ("opset 18", "3 stream(s)", "look-ahead: 1", "[3, 1, 2, 2]", "window.history_next", "Verified in ONNX"):
        assert word in text
    assert re.search(r"\nagrees in [\d,]+ elements$", text.rstrip())
    compared = sum(each["compared"] for check in found["checks"] for each in check["outputs"])
    assert found["compared"] == compared >= sum(check["frames"] for check in found["checks"])
    text = call("export", offline, *STREAM, "-o", out).stdout
    assert "the last frames of total, y stay inside: --flush FLUSH.onnx" in text


@pytest.mark.thorough
def test_a_stream_with_other_parameters(offline, tmp_path):
    params = archive(tmp_path / "params.npz", offline)
    plain, tuned = tmp_path / "plain.onnx", tmp_path / "tuned.onnx"
    call("export", offline, *STREAM, "-o", plain)
    assert call_json("export", offline, *STREAM, "--params", params, "-o", tuned, "--verify")["verified"]
    assert tuned.read_bytes() != plain.read_bytes()
    assert call_json("export", offline, "--params", params, "-o", tuned)["changed"] == 2  # the graph that it was


def test_a_step(step, tmp_path):
    out, params = tmp_path / "out.onnx", archive(tmp_path / "params.npz", step)
    found = call_json("export", step, "-o", out, "--verify", "--batch", 3)
    assert (found["verified"], found["batch"], found["streams"]) == (True, 3, False)
    assert [(each["input"], each["output"]) for each in found["state"]] == [("mean", "new_mean")]
    assert found["inputs"][0]["shape"] == [3, 2]
    text = call("export", step, "--as-step", "--params", params, "-o", out, "--verify").stdout
    assert "state mean" in text
    (decay,) = onnx.load(out).graph.initializer
    np.testing.assert_allclose(onnx.numpy_helper.to_array(decay).ravel(), [1.35, 0.75])


def test_a_file_that_differs_is_not_written(offline, tmp_path, monkeypatch):
    write = export_writing.export_onnx

    def write_another(stepper, params, path, **options):
        return write(stepper, {name: 1.01 * array for name, array in params.items()}, path, **options)

    monkeypatch.setattr(export_writing, "export_onnx", write_another)
    arguments = ("export", offline, *STREAM, "-o", tmp_path / "s.onnx", "--flush", tmp_path / "f.onnx", "--verify")
    text = call(*arguments, status=1).stdout
    for word in ("elements differ, first in frame 0", "differs", "nothing was written"):
        assert word in text
    found = call_json(*arguments, status=1)
    assert (found["verified"], found["files"]) == (False, [])
    assert [path.name for path in tmp_path.iterdir()] == ["offline.onnx"]


MISTAKES = {
    "no steps": ((), "give --symbol T for a stream"),
    "no such dimension": (("--symbol", "S"), "'S'"),
    "a pulse of steps": (("--pulse", 2), "--pulse needs --symbol NAME"),
    "the flush of a step": (("--flush", "{}/f.onnx"), "--flush is for a stream"),
    "a flush in no folder": ((*STREAM, "--flush", "{}/no/f.onnx"), "no folder"),
    "two sizes": ((*STREAM, "--dim", "batch=2,3"), "needs one size"),
    "an opset of the past": ((*STREAM, "--opset", 7), "give --opset "),
    "an opset of the future": ((*STREAM, "--opset", 99), "opset 99 is newer"),
    "two ways": ((*STREAM, "--as-step"), "--as-step is the step of the model"),
    "the opset of a graph": (("--params", "{}/params.npz", "--opset", 18), "--as-step for a step"),
    "parameters of another": ((*STREAM, "--params", "{}/other.npz"), "params"),
}


@pytest.mark.thorough
def test_a_start_that_is_an_input_is_fixed(tmp_path):
    arguments = ("export", PACKAGED, "--symbol", "time", "-o", tmp_path / "s.onnx")
    assert "--static h=0" in call_json(*arguments, status=2)["error"]
    assert call_json(*arguments, "--static", "h=0", "--verify")["files"]  # as the error says
    np.save(tmp_path / "h.npy", np.full((1, 1, 80), 0.5, np.float32))
    found = call_json(
        *arguments, "--static", f"h={tmp_path / 'h.npy'}", "--pulse", 2, "--flush", tmp_path / "f.onnx", "--verify"
    )
    assert found["verified"]
    assert found["graphs"][0]["operators"]["GRU"] == 1
    with np.load(tmp_path / "s.first_state.npz") as first:
        assert (first["hidden_by_time.carry"] == 0.5).all()


@pytest.mark.parametrize("mistake", of_tiers(MISTAKES, ["no steps", "the flush of a step", "the opset of a graph"]))
def test_mistakes(offline, tmp_path, mistake):
    archive(tmp_path / "params.npz", offline)
    onnx.save(layers_model(), tmp_path / "other.onnx")
    archive(tmp_path / "other.npz", tmp_path / "other.onnx")
    arguments, words = MISTAKES[mistake]
    before = sorted(tmp_path.iterdir())
    options = [str(each).format(tmp_path) for each in arguments]
    result = call_json("export", offline, *options, "-o", tmp_path / "out.onnx", status=2)
    assert words in result["error"]
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "options", "pulse"),
    of_tiers(
        [("keyword_net", ("--pulse", 4), 4), ("wave_net", (), 64)],
        [("wave_net", (), 64)],
        [],
    ),
)
def test_says_what_it_wrote_and_has_verified(models, tmp_path, name, options, pulse):
    path, out = models / f"{name}.onnx", tmp_path / "out.jaxrnn"
    found = call_json("compile", path, "-o", out, "--symbol", "S", *options)
    model, loaded = jaxrnn.load(path), jaxrnn.load_compiled(out)
    streamed = model.stream(pulse=pulse)
    assert [left.name for left in tmp_path.iterdir()] == ["out.jaxrnn"]
    assert found["bytes"] == out.stat().st_size
    assert found["functions"] == ["init", "step", "flush"]
    assert (found["pulse"], found["look_ahead"], found["delay"]) == (pulse, streamed.look_ahead, streamed.delay)
    assert found["rate"] == {output: str(rate) for output, rate in streamed.rate.items()}
    assert found["outputs"] == [info.name for info in model.outputs]
    assert found["verified"]
    assert found["largest_difference"] < 1e-5
    assert (loaded.spec.label, loaded.spec.pulse) == (path.name, pulse)
    rng = np.random.default_rng(0)
    x = {each.name: rng.normal(size=each.shape).astype(np.float32) for each in loaded.spec.inputs}
    outputs, _ = loaded.step(None, loaded.init(), x)
    wanted, _ = streamed.step(model.params, streamed.init(), x)
    for output, value in wanted.items():
        np.testing.assert_allclose(outputs[output], value, atol=1e-5)


@pytest.mark.thorough
def test_text_for_people(offline, tmp_path):
    text = call("compile", offline, "-o", tmp_path / "k.jaxrnn", "--symbol", "T", "--platform", "cpu").stdout
    for said in ("init, step, flush, for cpu", "pulse: 1 input", "y by 1 of its", "loaded again: a step or the"):
        assert said in text
    elsewhere = call("compile", offline, "-o", tmp_path / "t.jaxrnn", "--symbol", "T", "--platform", "tpu").stdout
    assert "not verified" in elsewhere


@pytest.mark.thorough
def test_nothing_that_differs_is_written(models, tmp_path, wrong_compiled_files):
    arguments = ("compile", models / "wave_net.onnx", "-o", tmp_path / "w.jaxrnn", "--symbol", "S")
    said = call_json(*arguments, status=MISMATCH)
    assert "nothing was written: a step or the flush of the compiled file differs" in said["error"]
    assert "clean of " in said["error"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "Here, in pulses of the recording: --symbol S"),
        (("--pulse", 4), "--pulse needs --symbol NAME"),
        (("--multiple", 2), "--multiple needs --symbol NAME"),
        (("--symbol", "T"), "no input has a dimension 'T'; dimensions left open: S"),
        (("--symbol", "S", "--pulse", 3), "a pulse of 3 frame(s) does not fit"),
        (("--symbol", "S", "--dim", "S=4"), "--dim: 'S' is time, and stays open"),
    ],
)
def test_mistakes_are_one_clear_error(models, tmp_path, options, said):
    result = call("compile", models / "keyword_net.onnx", "-o", tmp_path / "k.jaxrnn", *options, status=2)
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_machine_code_is_kept_and_run_where_it_is_asked_for(tmp_path):
    out = tmp_path / "denoiser.jaxrnn"
    arguments = ["compile", PACKAGED, "-o", out, "--dim", "time=1"]
    made = call_json(*arguments, "--native", "--streams", 2)
    assert made["native"] == ["step", "step_2", "pool_run_2", "pool_take_2", "pool_clear_2"]
    assert made["verified"]
    assert "--streams needs --native" in call_json(*arguments, "--streams", 2, status=2)["error"]
    stream = ["stream", out, "--random", "--steps", 3]
    native, portable = (call_json(*stream, "-o", tmp_path / "out.npz", *more) for more in (["--native"], []))
    assert native.keys() == portable.keys()
    assert "not compiled" in call_json("stream", PACKAGED, "--random", "--native", status=2)["error"]
    assert not call_json(*arguments)["native"]
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # no error, as outside of tests
        warned = call(*stream, "--native").stderr
    assert re.match(r"warning: \S+ holds no machine code", warned), warned


def test_smaller_types_and_what_is_said_of_a_stream(layers, tmp_path):
    file, _ = layers
    out, stream = tmp_path / "out.onnx", ("--symbol", "T", "--dim", "batch=1", "--rate", "16000", "--hop", "160")
    plain = call_json("export", file, *stream, "-o", out)
    assert plain["latency_ms"] == 10  # of the pulse alone
    assert plain["first_not_zero"] == []
    assert not any("/" in each["input"] for each in plain["state"])
    said = call("export", file, *stream, "--dtype", "float16", "--verify", "-o", out).stdout
    assert "latency: 10 ms" in said
    assert "first state: zero (out.first_state.npz); to reset a stream, pass the first state again" in said
    half = call_json("export", file, *stream, "--dtype", "float16", "-o", out)
    floats = sum(4 * np.prod(each["shape"]) for each in plain["state"] if each["dtype"] == "float32")
    assert plain["state_bytes"] - half["state_bytes"] == floats / 2
    call_json("export", file, *stream, "--target", "tract", "--verify", "-o", out)
    assert facts_of(out)["target"] == "tract"
    said = call_json("export", file, "--params", out, "--target", "tract", "-o", out, status=2)["error"]
    assert "--target is for a stream or a step" in said
    for options in ((*stream,), ("--dim", "T=9")):  # the stream, and the whole graph
        said = call("export", file, *options, "--quantize", "dynamic", "--verify", "-o", out).stdout
        assert "agrees with an error of quantisation of " in said
    flush = tmp_path / "rest.onnx"
    call("export", file, *stream, "--shared-weights", "--flush", flush, "--verify", "-o", out)
    said = call_json("export", file, *stream, "--shared-weights", "-o", out, status=2)["error"]
    assert "shared_weights is for a step and a flush in the same folder" in said
    said = call_json("export", file, *stream, "--quantize", "dynamic", "--quantize-exclude", "mas", "-o", out, status=2)
    assert "--quantize-exclude: the name of no product, convolution or LSTM starts with 'mas'" in said["error"]


@pytest.fixture
def logs(tmp_path):
    """The running sum of logarithms of samples, and recordings on which the sum is a number, and NaN."""
    nodes = [helper.make_node("Log", ["x"], ["l"]), helper.make_node("CumSum", ["l", "axis"], ["y"])]
    graph = graph_of(nodes, {"x": [1, "T"]}, {"y": [1, "T"]}, {"axis": np.array(1)})
    onnx.save(make_model(graph), tmp_path / "logs.onnx")
    x = np.random.default_rng(0).uniform(0.1, 0.9, 80).astype(np.float32)
    write_wav(tmp_path / "right.wav", x, 8000)
    np.savez(tmp_path / "wrong.npz", x=-x[None])
    return tmp_path


@pytest.mark.parametrize(
    ("command", "options"),
    of_tiers(
        [
            ("verify", ()),
            ("stream", ("--symbol", "T", "--verify")),
            ("export", ("--symbol", "T", "-o", "out.onnx", "--flush", "flush.onnx", "--verify")),
            ("export", ("--params", "params.npz", "-o", "out.onnx", "--verify")),
            ("compile", ("--symbol", "T", "-o", "out.jaxrnn")),
        ],
        quick=[("stream", ("--symbol", "T", "--verify")), ("compile", ("--symbol", "T", "-o", "out.jaxrnn"))],
        thorough=[("verify", ())],
    ),
)
def test_a_command_that_compares_nothing_fails(logs, monkeypatch, command, options):
    """Random inputs are positive, so that there is something to compare; and so are the samples of a WAV file."""
    monkeypatch.chdir(logs)
    np.savez("params.npz", **jaxrnn.load("logs.onnx").params)
    random = ("--random",) if command == "stream" else ()
    found = call_json(command, "logs.onnx", *options, *random)
    assert found.get("verified", True)
    assert found.get("compared", 1) > 0
    if command == "stream":
        assert found["drawn"] == {"x": "positive"}
    text = call(command, "logs.onnx", *options, "--inputs", "right.wav").stdout
    if command != "compile" and "--params" not in options:
        assert re.search(r"\nagrees in \d+ elements\n", text)
    for file in logs.glob("out*"):
        file.unlink()
    failed = call(command, "logs.onnx", *options, "--inputs", "wrong.npz", status=MISMATCH)
    assert "nothing was compared" in failed.stdout + failed.stderr
    assert not [*logs.glob("out*")]


RATED = [
    ("run", ()),
    ("stream", ("--symbol", "T")),
    ("verify", ()),
    ("profile", ()),
    ("compile", ("--symbol", "T", "-o", "out.jaxrnn")),
    ("export", ("--symbol", "T", "-o", "out.onnx", "--verify")),
]


@pytest.mark.parametrize(("command", "options"), of_tiers(RATED, quick=RATED[:1], thorough=RATED[1:3]))
def test_a_sound_of_another_rate_is_resampled_or_refused(logs, monkeypatch, command, options):
    monkeypatch.chdir(logs)
    x = np.random.default_rng(0).uniform(0.3, 0.6, 80).astype(np.float32)
    for file in ("x.flac", "x.mp3"):
        soundfile.write(file, x, 8000)
    Path("bad.mp3").write_bytes(b"nothing")
    refused: dict[tuple[str, ...], str] = {
        ("--inputs", "bad.mp3"): "bad.mp3 cannot be read as MP3 by soundfile: ",
        ("--inputs", "none.flac"): "there is no file none.flac",
    }
    if command in ("stream", "export"):
        refused[("--inputs", "x.flac", "--rate", "16000")] = "but --rate is 16000: --resample 16000 resamples it"
        refused[("--inputs", "x.flac", "--rate", "16000", "--resample", "9")] = "--resample 9 differs from --rate 16000"
    refused[("--inputs", "right.wav", "--static", "sr=16000")] = (
        "right.wav has 8000 samples per second, but --static sr is"
    )
    for given, words in refused.items():
        failed = call(command, "logs.onnx", *options, *given, status=2)
        assert words in " ".join(failed.stderr.split())
    rated = ("--rate", "16000") if command in ("stream", "export") else ()
    call(command, "logs.onnx", *options, *rated, "--inputs", "x.flac", "--resample", "16000")
    if command == "run":
        results = {}
        for file in ("right.wav", "x.flac", "x.mp3"):
            for more in ((), ("--resample", "16000")):
                call("run", "logs.onnx", "--inputs", file, *more, "-o", "out.npz")
                results[file, len(more)] = np.load("out.npz")["y"]
        assert results["x.flac", 0].shape == (1, 80)
        expected = np.cumsum(np.log(signal.resample_poly(read_sound("x.flac")[0].astype(np.float64), 2, 1)))
        np.testing.assert_allclose(results["x.flac", 2][0], expected, rtol=1e-4)
        assert results["x.mp3", 2].shape[1] == 2 * results["x.mp3", 0].shape[1]


def test_recordings_to_verify_with_need_a_verification(logs):
    arguments = ("export", logs / "logs.onnx", "--symbol", "T", "-o", logs / "out.onnx", "--inputs", logs / "wrong.npz")
    assert "they need --verify" in call(*arguments, status=2).stderr
    np.savez(logs / "two.npz", x=np.ones((1, 3), np.float32), z=np.ones(3))
    said = call(*arguments[:-1], logs / "two.npz", "--verify", status=2).stderr
    assert "there is no input 'z'" in said
    compiling = ("compile", logs / "logs.onnx", "--symbol", "T", "-o", logs / "out.jaxrnn", "--inputs")
    np.savez(logs / "short.npz", x=np.ones((1, 3), np.float32))
    assert (
        "the recordings to compare with have 3 frames; 4 steps need 4"
        in call(*compiling, logs / "short.npz", status=2).stderr
    )
