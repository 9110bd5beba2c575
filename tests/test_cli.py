"""The command line: what it prints for people and programs, what it writes, and how it fails."""

from __future__ import annotations

import errno
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
import warnings
from typing import Literal

import click
import ml_dtypes
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper
from small_models import FEATURES, a_little_wrong, graph_of, layers_model, make_model, operator_replaced

from jaxrnn import Model, load
from jaxrnn._files.arguments import arguments_of
from jaxrnn.cli import COMMANDS, keep_programs, main
from jaxrnn.cli.output import Table, console, fields, print_block
from jaxrnn.runtime.compiled.format import MAGIC

COUNTS = {"dtln_1": 363_393, "dtln_2": 624_384, "filter_net": 258_300, "silero_vad_16k_op15": 309_633}


def call(*arguments, status: int = 0):
    """Run the command in this process; the result holds standard output and error apart."""
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert not isinstance(result.exception, Exception), result.exception
    assert result.exit_code == status, result.output
    return result


def call_json(*arguments, status: int = 0):
    """What the command prints with ``--json``: one object and nothing else."""
    return json.loads(call(*arguments, "--json", status=status).stdout, parse_constant=pytest.fail)


@pytest.fixture
def layers(tmp_path):
    """A small model's file."""
    path = tmp_path / "layers.onnx"
    onnx.save(layers_model(), path)
    return path


def test_help_and_version_say_enough():
    assert "Exit status" in call("--help").stdout
    for name in COMMANDS:
        assert f"jaxrnn {name}" in call(name, "--help").stdout
    version = call("--version").stdout
    assert [line.split()[0] for line in version.splitlines()] == ["jaxrnn", "jax", "onnx", "numpy", "devices"]
    assert "cpu:0" in version or "gpu:0" in version or "cuda:0" in version


def test_every_option_is_described():
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        options = [each for each in command.params if isinstance(each, click.Option)]
        assert not [each.name for each in options if not (each.help or "").strip()], name


def test_options_without_a_default_are_asked_for():
    asked = []
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        arguments = ["x" for each in command.params if isinstance(each, click.Argument)]
        needed = [each.opts[0] for each in command.params if isinstance(each, click.Option) and each.required]
        asked += needed
        if needed:
            assert f"Missing option '{needed[0]}'" in call(name, *arguments, status=2).stderr
    assert asked == ["--output", "--output"]  # of compile and export


@pytest.mark.parametrize(
    "function",
    [
        "jaxrnn.audio.waveforms:waveform_of",
        "jaxrnn.export:export_onnx",
        "jaxrnn.profiling:profile_model",
        "jaxrnn.runtime.compiled:save_compiled",
        "jaxrnn.verification:verify",
    ],
)
def test_arguments_of_functions_are_read_without_an_import(function):
    found = pkgutil.resolve_name(function)
    parameters = inspect.signature(found).parameters
    read = arguments_of(function, parameters)
    assert list(read) == list(parameters)
    described = " ".join(found.__doc__.split())
    for name, argument in read.items():
        default = parameters[name].default
        assert argument.default == default or not isinstance(default, int | float | str | None)
        assert argument.text
        assert f"{name}: {argument.text}" in described
    types = {name: argument.type for name, argument in read.items()}
    assert types.get("norm") in (None, Literal["none", "ortho", "window"])
    assert types.get("batches") in (None, tuple[int, ...])
    assert types.get("opset") in (None, int)


def test_module_runs_and_help_imports_little():
    script = (
        "import sys; from jaxrnn.cli import COMMANDS, main; "
        "[main([*name, '--help'], standalone_mode=False) for name in ([], *zip(COMMANDS))]; "
        "sys.exit(repr({'jax', 'onnx', 'numpy', 'rich'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert run.stderr.strip() == "set()"
    arguments = [sys.executable, "-m", "jaxrnn", "inspect", "missing.onnx"]
    run = subprocess.run(arguments, capture_output=True, text=True, env=environment, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == "error: missing.onnx: the file cannot be read: No such file or directory\n"


@pytest.mark.thorough
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_an_error_that_cannot_be_printed_is_no_traceback():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "jaxrnn", "inspect", "missing.onnx", "--json"]
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert run.stderr == "error: missing.onnx: the file cannot be read: No such file or directory\n"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_interrupt_is_no_failed_comparison(monkeypatch, options):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxrnn.cli.options.ModelFile.load", interrupted)
    result = call("run", "model.onnx", *options, status=130)
    assert result.stderr == "error: interrupted\n"
    assert result.stdout == ('{\n  "error": "interrupted"\n}\n' if options else "")


@pytest.mark.nightly
def test_programs_are_kept_for_the_next_command(tmp_path):
    """In the user's cache folder or where JAX is told to, each program once; or not at all."""
    onnx.save(layers_model(), tmp_path / "model.onnx")
    own = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMPILATION", "JAX_PERSIST"))}
    environment = {**own, "PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": str(tmp_path / "home")}

    def kept(folder, *options, **more):
        command = [sys.executable, "-m", "jaxrnn", "run", tmp_path / "model.onnx", "--random", "--dim", "T=3", *options]
        run = subprocess.run(command, capture_output=True, text=True, env=environment | more, check=False)
        assert run.returncode == 0, run.stderr
        return {path.name for path in (tmp_path / folder).rglob("*-cache")}

    assert not kept("home", "--no-cache")
    first = kept("home")
    assert first
    assert kept("home") == first
    told = kept("told", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "told"))
    assert len(told) == len(first)  # under other names, because JAX hashes the folder too


@pytest.mark.parametrize("finished", [True, False])
def test_a_killed_command_does_not_end_the_keeping_of_programs(tmp_path, monkeypatch, finished):
    """JAX writes a program, and then the time of its use; without the time, JAX would keep no other program."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.delitem(sys.modules, "jax")
    for variable in ("MAX_SIZE", "MIN_COMPILE_TIME_SECS", "MIN_ENTRY_SIZE_BYTES"):
        for name in (f"JAX_COMPILATION_CACHE_{variable}", f"JAX_PERSISTENT_CACHE_{variable}"):
            monkeypatch.setenv(name, "0")  # so that the values of the command do not outlast this test
    (tmp_path / "jit_f-1-cache").write_bytes(b"program")
    if finished:
        (tmp_path / "jit_f-1-atime").write_bytes(bytes(8))
    keep_programs()
    assert (tmp_path / "jit_f-1-cache").exists() == finished


def test_tables_write_values_by_their_kind(capsys):
    rows = [
        {
            "name": "a",
            "shape": [1, "S"],
            "size": 12345,
            "largest_change": 0.123456,
            "dims": {"S": 2, "batch": 1},
            "exact": True,
        },
        {"name": "b", "shape": [], "size": 7, "largest_change": None, "dims": {}, "exact": False},
    ]
    columns = {
        **fields("name", "shape", "size", "largest change", "dims", "exact"),
        "twice": lambda row: 2 * row["size"],
    }
    print_block(console(), Table("Things", columns, rows))
    print_block(console(), Table("Nothing", columns))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "",
        "Things",
        "name   shape      size   largest change   dims           exact    twice",
        "───────────────────────────────────────────────────────────────────────",
        "a      [1, S]   12,345           0.1235   S=2, batch=1   yes     24,690",
        "b      []            7                -                  no          14",
        "",
        "Nothing",
    ]


def test_inspect_tells_everything(layers):
    found = call_json("inspect", layers)
    assert found["producer"] == "tests"
    assert found["opsets"] == {"": 17}
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["T", "batch", FEATURES]}]
    assert [item["name"] for item in found["outputs"]] == ["logits", "Y_h"]
    assert found["dimensions"] == ["T", "batch"]
    assert {item["name"]: item["shape"] for item in found["parameters"]} == {
        name: list(array.shape) for name, array in load(layers).params.items()
    }
    assert found["parameter_bytes"] == 4 * found["parameter_count"] == 4 * sum(p["size"] for p in found["parameters"])
    assert {item["name"]: item["count"] for item in found["operators"]} == dict.fromkeys(
        ("Mul", "Tanh", "LSTM", "Squeeze", "MatMul"), 1
    )
    (lstm,) = found["recurrent"]
    assert (lstm["name"], lstm["direction"], lstm["input_size"], lstm["hidden_size"]) == ("lstm", "forward", 3, 5)
    assert lstm["weights"] == 20 * 3 + 20 * 5 + 40
    assert (found["unsupported"], found["problem"]) == ([], None)
    (streams,) = found["streams"]
    assert (streams["symbol"], streams["smallest_pulse"], streams["problem"]) == ("T", 1, None)
    assert (streams["delay"], streams["look_ahead"]) == ({"logits": 0, "Y_h": None}, 0)
    text = call("inspect", layers, "--params").stdout
    for word in ("T, batch", "lstm", "scale", "[1, 20, 5]", "Y_h at the end", "Every node can be run"):
        assert word in text
    assert "\x1b" not in text


def test_inspect_lists_all_that_cannot_run(tmp_path):
    """Unknown operators in the outer graph and in a branch, of two domains, among nodes that are fine."""

    def branch(name: str, *nodes) -> onnx.GraphProto:
        return graph_of(nodes, {}, {f"{name}_y": None}, name=name)

    then = branch("then", helper.make_node("Gelou", ["x"], ["then_y"], name="inner", domain="my.ops"))
    other = branch("other", helper.make_node("Mul", ["x", "w"], ["other_y"]))
    nodes = [
        helper.make_node("Sigmoidal", ["x"], ["a"]),
        helper.make_node("If", ["flag"], ["b"], name="choice", then_branch=then, else_branch=other),
        helper.make_node("Add", ["a", "b"], ["y"], name="add"),
    ]
    inputs = {"x": ["N", 2], "flag": (TensorProto.BOOL, [])}
    graph = graph_of(nodes, inputs, {"y": None}, {"w": np.ones(2, np.float32)}, "odd")
    path = tmp_path / "odd.onnx"
    onnx.save(make_model(graph, "my.ops"), path)

    found = call_json("inspect", path)
    listed = [(item["name"], item["operator"], item["domain"], item["opset"]) for item in found["unsupported"]]
    assert listed == [("a", "Sigmoidal", "", 17), ("inner", "Gelou", "my.ops", 1)]
    assert [item["where"] for item in found["unsupported"]] == ["", "choice.then_branch/"]
    assert "Sigmoid" in found["unsupported"][0]["reason"]
    assert found["parameters"][0]["name"] == "w"
    assert found["streams"] == []
    assert {item["name"] for item in found["operators"]} == {"Sigmoidal", "Gelou", "If", "Mul", "Add"}
    text = " ".join(call("inspect", path).stdout.split())
    assert "Cannot be run: 2 nodes" in text
    assert all(reason in text for reason in (item["reason"] for item in found["unsupported"]))
    assert "Gelou" in call_json("run", path, "--random", status=2)["error"]


@pytest.mark.parametrize("name", COUNTS)
def test_inspect_real_models(models, name):
    found = call_json("inspect", models / f"{name}.onnx")
    assert found["parameter_count"] == COUNTS[name]
    assert found["problem"] is None
    assert all(node["weights"] and node["hidden_size"] for node in found["recurrent"])
    assert bool(found["recurrent"]) == (name != "dtln_2")


@pytest.mark.thorough
def test_inspect_says_what_can_be_streamed(models):
    (streams,) = call_json("inspect", models / "keyword_net.onnx")["streams"]
    assert (streams["symbol"], streams["smallest_pulse"], streams["delay"]) == ("S", 2, {"logits": 1})
    assert (streams["look_ahead"], streams["receptive_field"], streams["problem"]) == (3, None, None)
    assert streams["state_bytes"] > 0
    (streams,) = call_json("inspect", models / "ocr_net.onnx")["streams"]
    assert (streams["symbol"], streams["smallest_pulse"]) == ("width", None)
    assert "backwards in time" in streams["problem"]
    text = call("inspect", models / "ocr_net.onnx").stdout
    assert f"Cannot be streamed over width {streams['problem']} " in " ".join(text.split())
    # A step already: its state is among its inputs and outputs.
    assert call_json("inspect", models / "silero_vad_16k_op15.onnx")["streams"] == []


@pytest.mark.thorough
def test_inspect_takes_what_load_takes(models):
    """Renamed and fixed dimensions and fixed inputs show in the report; wrong names are errors of use."""
    path = models / "silero_vad.onnx"
    found = call_json(
        "inspect", path, "--static", "sr=16000", "--dim", "input_dim_1=512", "--dim", "input_dim_0=voices"
    )
    assert {item["name"]: item["shape"] for item in found["inputs"]} == {
        "input": ["voices", 512],
        "state": [2, "state_dim_1", 128],
    }
    assert [item["name"] for item in found["state"]] == ["state"]
    for option, value in (("--dim", "time=3"), ("--static", "rate=3"), ("--state", "h=y")):
        assert value.partition("=")[0] in call_json("inspect", path, option, value, status=2)["error"]


def test_inspect_survives_what_streaming_cannot(layers, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("first line, " + 100 * "long " + "\nsecond line")

    monkeypatch.setattr(Model, "stream", fail)
    (streams,) = call_json("inspect", layers)["streams"]
    assert streams["problem"].endswith("second line")
    text = call("inspect", layers).stdout
    assert "RuntimeError: first line" in text
    assert "... (in full with --json)\n" in text.replace("\n  ", " ")
    assert "second line" not in text


@pytest.mark.thorough
def test_run_reads_and_writes_arrays(layers, tmp_path):
    x = np.random.default_rng(0).standard_normal((4, 2, FEATURES)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    expected = load(layers)(x=x)
    output = tmp_path / "out.npz"
    for option in (("--input", f"x={tmp_path / 'x.npy'}"), ("--inputs", tmp_path / "x.npz")):
        result = call_json("run", layers, *option, "--output", output)
        with np.load(output) as written:
            assert {name: written[name].tolist() for name in written.files} == {
                name: np.asarray(array).tolist() for name, array in expected.items()
            }
        assert [fact["name"] for fact in result["outputs"]] == ["logits", "Y_h"]
        fact, logits = result["outputs"][0], np.asarray(expected["logits"])
        assert (fact["dtype"], fact["shape"], fact["not_finite"]) == ("float32", [4, 2, 2], 0)
        assert [fact["min"], fact["max"]] == [logits.min(), logits.max()]
        assert fact["mean"] == pytest.approx(logits.mean(), abs=1e-6)
        output.unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layers.onnx", "x.npy", "x.npz"]


def test_run_at_random_is_repeatable(layers, tmp_path):
    first = call_json("run", layers, "--random", "--dim", "T=7", "--seed", 3)
    assert (first["dims"], first["random"]) == ({"T": 7, "batch": 1}, ["x"])
    assert first["outputs"] == call_json("run", layers, "--random", "--dim", "T=7", "--seed", 3)["outputs"]
    assert first["outputs"] != call_json("run", layers, "--random", "--dim", "T=7")["outputs"]
    text = call("run", layers, "--random", "-o", tmp_path / "o.npz").stdout
    assert "[16, 1, 2]" in text
    assert "T=16" in text


def test_types_unknown_to_numpy_make_the_round_trip(tmp_path):
    """Outputs of names that cannot be keywords, in bfloat16, not finite: written, and read again as inputs."""
    names = {"file": "allow_pickle", "a/b": "args"}
    nodes = [helper.make_node("Identity", [given], [name]) for given, name in names.items()]
    shapes = ({key: [2] for key in each} for each in (names, names.values()))
    graph = graph_of(nodes, *shapes, kind=TensorProto.BFLOAT16)
    path, out = tmp_path / "copy.onnx", tmp_path / "out.npz"
    onnx.save(make_model(graph), path)
    values = np.array([1.5, np.inf], ml_dtypes.bfloat16)
    np.savez(tmp_path / "in.npz", **{"a/b": values})
    np.save(tmp_path / "file.npy", values)
    given = ("--input", f"file={tmp_path / 'file.npy'}", "--inputs", tmp_path / "in.npz")
    facts = call_json("run", path, *given, "-o", out)["outputs"]
    assert [(fact["dtype"], fact["max"], fact["not_finite"]) for fact in facts] == [("bfloat16", 1.5, 1)] * 2
    with np.load(out) as written:
        assert sorted(written.files) == sorted(names.values())
        assert all(np.array_equal(written[name].view(values.dtype), values) for name in written.files)
    assert call_json("verify", path, *given)["ok"]


def test_strings_are_written_and_compared(tmp_path):
    """Two strings, moved inside the graph: a file without pickles, and agreement with ONNX Runtime on every node."""
    nodes = [helper.make_node("Identity", ["x"], ["moved"]), helper.make_node("Identity", ["moved"], ["y"])]
    path, out = tmp_path / "strings.onnx", tmp_path / "out.npz"
    onnx.save(make_model(graph_of(nodes, {"x": [2]}, {"y": [2]}, kind=TensorProto.STRING)), path)
    np.save(tmp_path / "x.npy", np.array(["a", "ü日本"]))
    given = ("--input", f"x={tmp_path / 'x.npy'}")
    call("run", path, *given, "-o", out)
    assert np.load(out)["y"].tolist() == ["a", "ü日本"]
    report = call_json("verify", path, *given, "--nodes", "--outputs", out)
    assert (report["ok"], report["notes"]) == (True, [])
    assert "ONNX Runtime" in report["engine"]


def test_verify_with_recorded_outputs(layers, tmp_path):
    """The report and the JSON say that the file is at fault; an array that does not fit is one line."""
    x = np.ones((4, 2, FEATURES), np.float32)
    outputs = {name: np.asarray(array) for name, array in load(layers)(x=x).items()}
    given = ("--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz")
    np.savez(tmp_path / "in.npz", x=x)
    np.savez(tmp_path / "out.npz", **outputs)
    assert re.search(r"\nagrees in \d+ elements$", call("verify", layers, *given).stdout.rstrip())
    np.savez(tmp_path / "out.npz", **outputs | {"logits": outputs["logits"] + 0.5})
    found = call_json("verify", layers, *given, status=1)
    assert (found["ok"], found["cases"][0]["ok"], found["cases"][0]["fault"]) == (False, False, "file")
    assert {each["name"]: each["here"]["ok"] for each in found["cases"][0]["recorded"]} == {
        "Y_h": True,
        "logits": False,
    }
    text = call("verify", layers, *given, "--nodes", status=1).stdout
    assert found["conclusion"].startswith("The file is at fault: jaxrnn and ONNX Runtime")
    assert "6 values inside the graph agree" in text
    assert "16 of 16 elements differ" in text
    np.savez(tmp_path / "out.npz", logits=outputs["logits"][0])
    error = call_json("verify", layers, *given, status=2)["error"]
    assert "'logits' is float32[2, 2], and the file computes float32[4, 2, 2]" in error


def test_verify_tells_agreement_from_departure(layers):
    sizes = ("--dim", "T=1,6", "--dim", "batch=2", "--nodes")
    report = call_json("verify", layers, *sizes)
    assert report["ok"]
    assert report["engine"].startswith("ONNX Runtime")
    assert [case["dims"] for case in report["cases"]] == [{"T": 1, "batch": 2}, {"T": 6, "batch": 2}]
    assert "6 values inside the graph agree" in call("verify", layers, *sizes, "--engine", "reference").stdout
    with operator_replaced("Tanh", a_little_wrong):
        report = call_json("verify", layers, *sizes, status=1)
        text = call("verify", layers, *sizes, status=1).stdout
        call("verify", layers, "--atol", 0.1)
    first = report["cases"][0]["first"]
    assert (first["node"], first["operator"], first["comparison"]["name"]) == ("squash", "Tanh-13", "squashed")
    assert not report["ok"]
    assert "first mismatch: node 'squash' (Tanh-13), value 'squashed'" in text
    assert text.rstrip().endswith("differs")


MISTAKES = {
    "no such file": (["inspect", "{dir}/none.onnx"], "No such file"),
    "a folder": (["verify", "{dir}"], "a folder, not a regular file"),
    "not ONNX": (["inspect", "{dir}/text.npy"], "not an ONNX model"),
    "no inputs": (["run", "{model}"], "missing input(s): x"),
    "wrong name": (["run", "{model}", "--input", "y={dir}/x.npy"], "the inputs are: x"),
    "wrong type": (["run", "{model}", "--input", "x={dir}/double.npy"], ".astype('float32')"),
    "wrong rank": (["verify", "{model}", "--input", "x={dir}/x.npy"], "rank"),
    "missing array": (["run", "{model}", "--input", "x={dir}/none.npy"], "none.npy cannot be read"),
    "not an array": (["run", "{model}", "--input", "x={dir}/text.npy"], "text.npy does not hold"),
    "a pickle": (["run", "{model}", "--input", "x={dir}/pickle.npy"], "pickle.npy does not hold"),
    "archive for array": (["run", "{model}", "--input", "x={dir}/x.npz"], "--inputs"),
    "array for archive": (["run", "{model}", "--inputs", "{dir}/x.npy"], "--input NAME="),
    "no pair": (["run", "{model}", "--input", "x.npy"], "NAME=VALUE"),
    "unknown dimension": (["verify", "{model}", "--dim", "S=4"], "the open dimensions are: T, batch"),
    "bad dimension": (["verify", "{model}", "--dim", "T=4.5"], "T=50"),
    "several sizes": (["run", "{model}", "--random", "--dim", "T=4,5"], "one size"),
    "sizes for nothing": (["run", "{model}", "--dim", "T=4"], "--random"),
    "unknown static": (["run", "{model}", "--static", "sr=1"], "there is no input 'sr'"),
    "bad static": (["run", "{model}", "--static", "x=abc"], "neither a number"),
    "number for array": (["run", "{model}", "--static", "x=0"], "A JSON list or a .npy file"),
    "no file to write": (["run", "{model}", "--random", "-o", "{dir}/fifo"], "is a FIFO, not a regular file"),
    "no folder": (["run", "{model}", "--random", "-o", "{dir}/none/out.npz"], "there is no folder"),
    "no format of outputs": (["run", "{model}", "--random", "-o", "{dir}/out.flac"], "must end in .npz"),
    "a symbol for nothing": (["run", "{model}", "--random", "--symbol", "T"], "--symbol needs --stft"),
    "a hop for nothing": (["run", "{model}", "--random", "--hop", "4"], "--hop needs --stft"),
    "a compiled file": (["inspect", "{dir}/compiled"], "this is a compiled file"),
    "bad option": (["inspect", "{model}", "--bogus"], "--bogus"),
    "a near command": (["strem", "{model}"], "there is no command 'strem' (did you mean 'stream'?)"),
    "a near choice": (["profile", "{model}", "--what", "aply"], "'stream' (did you mean 'apply'?)"),
    "a near choice of a list": (["compile", "{model}", "-o", "o", "--platform", "cpus"], "(did you mean 'cpu'?)"),
    "a near dimension": (["run", "{model}", "--random", "--dim", "bach=2"], "(did you mean 'batch'?)"),
    "a near time": (["card", "{model}", "--symbol", "bach"], "(did you mean 'batch'?)"),
    "no tolerance": (["verify", "{model}", "--atol", "nan"], "nan is not a number"),
    "no duration": (["demo", "--seconds", "nan"], "nan is not a number"),
    "bad engine": (["verify", "{model}", "--engine", "tract"], "tract"),
}


@pytest.mark.filterwarnings("default:.*looks like a batch axis")
def test_a_batch_as_time_warns(layers):
    for command in ("inspect", "card"):
        assert "'batch' looks like a batch axis" in call(command, layers, "--symbol", "batch").stderr
        assert "looks like" not in call(command, layers, "--symbol", "T").stderr
    named = layers_model()
    for value in (*named.graph.input, *named.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    with warnings.catch_warnings(action="error"):
        load(named).stream("N")  # along which the recurrence runs
    model = load(layers)
    with pytest.warns(UserWarning, match="'batch' looks like a batch axis.*give another `symbol=NAME`") as given:
        model.stream("batch", dims={"T": 2})
    assert given[0].filename == __file__


def test_names_of_a_file_do_not_control_the_terminal(tmp_path):
    """Escapes, bells, a change of direction and line ends in names are shown as in JSON, or in quotes."""
    evil = "\x1b[31m\x07\u202e\x9b2J\r"
    nodes = [helper.make_node("Neg", [f"x{evil}"], ["y"], name=f"n{evil}\nerror: none")]
    proto = make_model(graph_of(nodes, {f"x{evil}": [f"T{evil}", 2]}, {"y": [f"T{evil}", 2]}, name=f"g{evil}"))
    path, other = tmp_path / "model.onnx", tmp_path / f"other{evil}.onnx"
    onnx.save(proto, path)
    other.write_bytes(b"no model")
    proto.graph.node[0].op_type = f"Neg{evil}"
    onnx.save(proto, tmp_path / "unknown.onnx")
    results = [
        call("inspect", path),
        call("inspect", path, "--json"),
        call("inspect", tmp_path / "unknown.onnx"),
        call("inspect", other, status=2),
        call("run", path, status=2),
        call("run", path, "--random"),
        call("run", path, "--input", f"{evil}=x.npy", status=2),
        call("export", path, "-o", tmp_path / "out.onnx", status=2),
        call("inspect", f"--{evil}", status=2),
    ]
    for result in results:
        assert not set(evil) - set("[31m2J") & set(result.output)
        assert "error: none" not in result.output.splitlines()
    assert r"x\u001b[31m\u0007\u202e\u009b2J" in results[0].output
    assert json.loads(results[1].stdout)["inputs"][0]["name"] == f"x{evil}"


def test_a_full_disk_is_named(layers, monkeypatch):
    """Of printing, which has no name of a file."""
    secho = click.secho

    def print_on_full_disk(text, *, err=False, **style):
        if not err:
            raise OSError(errno.ENOSPC, "No space left on device")
        secho(text, err=err, **style)

    monkeypatch.setattr(click, "secho", print_on_full_disk)
    result = CliRunner().invoke(main, ["inspect", str(layers), "--json"])
    assert (result.exit_code, result.stderr) == (2, "error: standard output: No space left on device\n")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_clear_error(layers, tmp_path, mistake):
    np.save(tmp_path / "x.npy", np.zeros(3, np.float32))
    np.save(tmp_path / "double.npy", np.zeros((2, 1, FEATURES)))
    np.savez(tmp_path / "x.npz", x=np.zeros(3, np.float32))
    np.save(tmp_path / "pickle.npy", np.array([{}], object))
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "compiled").write_bytes(MAGIC)
    os.mkfifo(tmp_path / "fifo")
    arguments, message = MISTAKES[mistake]
    arguments = [argument.format(dir=tmp_path, model=layers) for argument in arguments]
    result = call(*arguments, status=2)
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert message in call_json(*arguments, status=2)["error"]
