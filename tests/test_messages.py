"""Messages: their wording, arguments in the reader's terms, missing packages, and what is shown at a prompt."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from jax import lax
from onnx import TensorProto, helper
from plain_graphs import RELU, model, node
from small_models import graph_of, make_model

import jaxrnn
from jaxrnn import Limits, demo, errors, evaluation, profiling, verification
from jaxrnn._files.messages import (
    SIZE,
    bytes_of,
    first_line,
    near,
    near_or_all,
    pairs_of,
    short,
    short_repr,
    whole_message,
)
from jaxrnn._files.progress import progress_bar
from jaxrnn._files.readers import OPTIONS, for_reader
from jaxrnn.cli import main
from jaxrnn.errors import install_command, optional_package, source_folder
from jaxrnn.model.inspection import inspect_model
from jaxrnn.streaming import Flushed


def test_sizes_names_and_errors():
    sizes = {3: "3 bytes", 2048: "2.0 KiB", 40 << 20: "40 MiB", 3 << 61: "6.0 EiB"}
    assert {size: bytes_of(size) for size in sizes} == sizes
    assert pairs_of({"S": 20, "batch": 1}) == "S=20, batch=1"
    assert near("HIDEN", ["hidden", "input"]) == " (did you mean 'hidden'?)"
    assert near_or_all("?", ["hidden", "input"]) == "; there is: hidden, input"
    assert near_or_all("?", []) == ""
    assert first_line(ValueError("\n one \ntwo\n")) == "one "
    assert first_line(AssertionError()) == "AssertionError"
    assert first_line(ValueError("x" * 20), 10) == "xxxxxxx..."
    assert whole_message(ValueError("\n one \n\ntwo\n")) == "one\n\ntwo"
    assert whole_message(AssertionError(), "; do that") == "AssertionError; do that"


def test_what_jax_explains_is_not_cut_off():
    """The first line says where, and all that JAX says stands after it."""

    def drifts(x):
        return lax.scan(lambda carry, _: (carry.astype(jnp.float16), None), x, length=2)[0]

    node = helper.make_node("Drift", ["x"], ["y"], name="drift", domain="own")
    proto = make_model(graph_of([node], {"x": [2]}, {"y": [2]}, name="drift"), "own")
    model = jaxrnn.load(proto, operators={("own", "Drift"): drifts})
    with pytest.raises(jaxrnn.NodeError) as raised:
        model.apply({}, {"x": jnp.zeros(2)})
    _holds_its_cause(raised.value, "node 'drift' (own::Drift-1) on float32[2]: scan body function carry input")
    with pytest.raises(jaxrnn.StreamError) as raised:
        jaxrnn.stream(drifts, jnp.zeros(5), axes=0)
    _holds_its_cause(raised.value, "the function cannot be traced")


def _holds_its_cause(error, beginning):
    first, *rest = str(error).splitlines()
    cause = str(error.__cause__).strip().splitlines()
    assert len(cause) > 1
    assert first.startswith(beginning)
    assert cause[0].strip(" .") in first
    assert rest == cause[1:]


def test_a_missing_package_says_what_installs_it():
    said = {
        (
            "one",
            "this",
            "train",
            "evaluate",
        ): "one is needed for this: pip install 'jaxrnn[train]' or pip install",
        ("one", "this"): "one is needed for this: pip install one",
        (None, "a page", "evaluate"): "not_there is needed for a page: pip install 'jaxrnn[evaluate]'",
    }
    for arguments, words in said.items():
        with pytest.raises(jaxrnn.MissingPackageError) as raised, optional_package(*arguments):
            import not_there  # noqa: F401  # pyright: ignore[reportMissingImports]
        assert str(raised.value).startswith(words)


def test_a_package_whose_import_fails_is_not_missing(monkeypatch):
    for error in (ImportError("no symbol"), ModuleNotFoundError("No module named 'inner'", name="inner")):
        with pytest.raises(jaxrnn.MissingPackageError) as raised, optional_package("pydantic", "settings", "train"):
            raise error
        assert str(raised.value).startswith(f"pydantic is installed, and its import fails ({error}), but it is needed")
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(jaxrnn.MissingPackageError) as raised, optional_package("pydantic", "settings", "train"):
        import pydantic  # noqa: F401
    assert str(raised.value) == "pydantic is needed for settings: pip install 'jaxrnn[train]'"


def test_extras_of_a_folder_of_source_are_installed_from_there(monkeypatch):
    assert install_command("train") == "pip install 'jaxrnn[train]'"
    monkeypatch.setattr(errors, "source_folder", source_folder)  # as it is outside of the tests
    if (folder := source_folder()) is not None:
        assert (pathlib.Path(folder) / "pyproject.toml").is_file()
        assert install_command("train") == f"pip install -e '{folder}[train]'"


@pytest.mark.nightly
@pytest.mark.parametrize("package", ["pydantic", "omegaconf"])
def test_commands_that_read_settings_name_a_missing_package(tmp_path, package):
    (tmp_path / "a.yaml").write_text("model: a.onnx\n")
    script = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from jaxrnn.cli import main\n"
        "for command in ('finetune', 'evaluate'):\n"
        "    main([command, 'a.yaml'], standalone_mode=False)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False, cwd=tmp_path
    )
    commands = (
        f"pip install -e '{folder}[{extra}]'" if (folder := source_folder()) else f"pip install 'jaxrnn[{extra}]'"
        for extra in ("train", "evaluate")
    )
    install = " or ".join(commands)
    line = f"error: {package} is needed for files of settings: {install}"
    assert run.stderr.splitlines() == [line] * 2


def test_progress_is_shown_where_it_is_wanted(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for shown, terminal, texts in (
        (None, True, {"counting", "at start", "at item 3"}),
        (None, False, set()),
        (True, False, {"counting", "at item 3"}),
        (False, True, set()),
    ):
        stream = Terminal() if terminal else io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        with progress_bar("counting", 3, "at {task.fields[place]}", shown=shown, place="start") as show:
            for done in (1, 2, 3):
                show(done, place=f"item {done}")
        written = stream.getvalue()
        assert {text for text in ("counting", "at start", "at item 3") if text in written} == texts
        assert bool(written) == bool(texts)


PACKAGE = pathlib.Path(jaxrnn.__file__).parent
IN_PYTHON = re.compile(rf"\b({'|'.join((*OPTIONS, 'constraints', 'limits', 'operators'))})=|\b(load|init)\(")


def literals(tree):
    """The texts of a module that are not docstrings, each with its line; X is in place of values."""
    silent = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
            silent.add(each.value)  # a docstring
        if isinstance(each, ast.FunctionDef) and each.name == "__repr__":
            silent.update(ast.walk(each))
        if isinstance(each, ast.JoinedStr):
            silent.update(each.values)
            yield each.lineno, "".join(part.value if isinstance(part, ast.Constant) else "X" for part in each.values)
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each not in silent:
            yield each.lineno, each.value


@pytest.mark.thorough
def test_arguments_in_messages_are_in_backticks():
    """Where a message leaves Python, only code in backticks becomes an option or a key."""
    said = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in literals(ast.parse(path.read_text()))
        if " " in text and IN_PYTHON.search(re.sub("`[^`]*`", "", text))
    ]
    assert not said, "\n".join(said)


def test_arguments_for_each_reader():
    names, keys = dict.fromkeys(["T", "F"], SIZE), "multiple: 4, constraints: ['S >= 3', 'S <= 9']"
    for code, command, settings in (
        ("pulse=4", "--pulse 4", "pulse: 4"),
        ("batch", "--batch", "batch"),
        (f"init(dims={names})", "--dim T=SIZE --dim F=SIZE", "dims: {T: SIZE, F: SIZE}"),
        ("jaxrnn.load(path, state={})", "--state none", "state: {}"),
        ("jaxrnn.load(path, static={'sr': 16000})", "--static sr=16000", "static: {sr: 16000}"),
        ("model.stream('T', dims={'F': '4*T'})", "--symbol T --dim F=4*T", None),
        ("multiple=4, constraints=['S >= 3', 'S <= 9']", "--multiple 4 --shortest 12 --longest 36", keys),
        ("constraints=['mod(S, 2) == 1']", None, "constraints: ['mod(S, 2) == 1']"),
        ("jaxrnn.load(path, limits=NAME)", None, None),
        ("sequences=Sequences(mode='scan', time_axis=...)", None, "sequences: {mode: scan, time_axis: ...}"),
        ("resume=False", "--fresh", "--fresh"),
    ):
        wanted = {"command": command, "settings": settings}
        for reader, written in wanted.items():
            assert for_reader(f"give `{code}` here", reader) == f"give {written or f'in Python, {code}'} here"
    for text in ("``pulse=4``", "`pulse`=4`", "a `name", "`(`", "`pulse=4", "`forward`", "`x + 1`", "`f(**{'a': 1})`"):
        assert for_reader(text, "command") in (text, "--pulse=4`", "in Python, f(**{'a': 1})")


def frames(name, *shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


MIRRORED = model(
    helper.make_node("Constant", [], ["pads"], value_ints=[3, 0, 3, 0]),
    helper.make_node("Pad", ["x", "pads"], ["y"], mode="reflect", name="edges"),
    inputs=[frames("x", "T", 3)],
    outputs=[frames("y", "U", 3)],
)
AMBIGUOUS = model(
    helper.make_node("Add", ["a", "x"], ["b1"]),
    helper.make_node("Mul", ["a", "x"], ["b2"]),
    inputs=[frames("x", 3), frames("a", 3)],
    outputs=[frames("b1", 3), frames("b2", 3)],
)
RESHAPED = model(
    node("Reshape", ["x", "shape"], name="fold"),
    inputs=[frames("x", 2, 3), helper.make_tensor_value_info("shape", TensorProto.INT64, [1])],
)

COMMANDS = {
    "the least length": (MIRRORED, ["stream", "--symbol", "T", "--random"], "--shortest 4"),
    "which pairs are state": (AMBIGUOUS, ["stream", "--random"], "--state a=b"),
    "an input that shapes depend on": (RESHAPED, ["stream", "--random"], "--static"),
    "what is profiled": (model(RELU), ["profile", "--batch", "2", "--what", "apply"], "--batch is for .* --dim NAME="),
}


@pytest.mark.parametrize("what", COMMANDS)
def test_commands_speak_of_options(what, tmp_path):
    proto, (command, *options), words = COMMANDS[what]
    onnx.save(proto, tmp_path / "a.onnx")
    said = CliRunner().invoke(main, [command, str(tmp_path / "a.onnx"), *options]).stderr
    assert re.search(words, said), said
    assert not IN_PYTHON.search(said), said


def test_python_says_the_same_of_arguments():
    assert np.shape(jaxrnn.load(model(RELU))(x=np.ones((2, 3), np.float32))["y"]) == (2, 3)
    with pytest.raises(jaxrnn.StreamError, match=r"constraints=\['T >= 4'\]"):
        jaxrnn.load(MIRRORED).stream("T")
    for constraint in ("T >= 4", "S >= 4"):
        assert jaxrnn.load(MIRRORED).stream("T", constraints=[constraint]).look_ahead > 0
    with pytest.raises(jaxrnn.StreamError, match=r"like 'T >= 3'.*not 'U >= 4': 'U' is not 'T'"):
        jaxrnn.load(MIRRORED).stream("T", constraints=["U >= 4"])


LINES, COLUMNS = 10, 120
MANY = [f"an_input_with_quite_a_long_name_{number}" for number in range(40)]


def doubled_frames(name, shape=("a_dimension_of_many_letters", 3)):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    """Whatever functions give and users print, by name."""
    large = model(
        *(node("Relu", [name], [f"{name}_out"], name=name) for name in MANY),
        inputs=[doubled_frames(name) for name in MANY],
        outputs=[doubled_frames(f"{name}_out") for name in MANY],
    )
    path = tmp_path_factory.mktemp("compiled") / "denoiser.jaxrnn"
    # Wherever a file lies, what is shown is its name.
    deep = path.parent / ("a_folder_with_a_long_name" * 6)
    deep.mkdir()
    denoiser = jaxrnn.load(shutil.copy(demo.PACKAGED, deep))
    inputs = {"magnitude": jnp.zeros((1, 4, 129)), "h": jnp.zeros((1, 1, 80))}
    streamed = denoiser.stream("time", pulse=4)
    state = streamed.init(constants={"h": inputs["h"]})
    wide = {name: jax.ShapeDtypeStruct((20, 3), np.float32) for name in MANY}
    jaxrnn.save_compiled(denoiser, path, dims={"time": 1})
    sound = demo.mixture(np.random.default_rng(0), 0.1, 5.0)
    return {
        "a model": denoiser,
        "a model of many inputs": jaxrnn.load(large, state={}),
        "an inspection": inspect_model(large),
        "a description": denoiser.inputs[0],
        "a state": denoiser.state[0],
        "facts": jaxrnn.load(large, state={}).spec,
        "a streamed function": streamed,
        "a streamed function of many inputs": jaxrnn.stream(lambda x: x, wide, axes=0),
        "facts of a stream": streamed.spec,
        "an entry of a state": streamed.state[-1],
        "packed parameters": denoiser.pack(denoiser.params, dims={"time": 1}),
        "a flush": streamed.flush(denoiser.params, state, inputs, 4),
        "a live stream": jaxrnn.Runner(denoiser, denoiser.params),
        "a pool": jaxrnn.StreamPool(denoiser, denoiser.params, 4),
        "a compiled file": jaxrnn.load_compiled(path),
        "limits": Limits(),
        "a comparison with another engine": verification.verify(demo.PACKAGED),
        "sound": sound,
        "sound without its noise": demo.denoise(sound.noisy),
    }


@pytest.mark.thorough
def test_values_are_short(values):
    for name, value in values.items():
        lines = repr(value).splitlines()
        assert len(lines) <= LINES, f"{name}: {value!r}"
        assert max(map(len, lines)) <= COLUMNS, f"{name}: {value!r}"
        assert lines[0].startswith(type(value).__name__), f"{name}: {value!r}"
    for name in ("a model", "a streamed function", "a live stream", "a pool", "a compiled file"):
        assert "denoiser" in repr(values[name])
        assert "a_folder" not in repr(values[name])


def test_public_records_have_short_representations():
    """None writes its fields out as they are, which may be arrays, or a table of a thousand rows."""
    records = {
        item
        for module in (jaxrnn, *(getattr(jaxrnn, name) for name in jaxrnn._PACKAGES))
        for item in (getattr(module, name) for name in module.__all__)
        if inspect.isclass(item) and (dataclasses.is_dataclass(item) or hasattr(item, "_fields"))
    }
    assert {Limits, profiling.Profile, Flushed, evaluation.Results} <= records
    generated = {each for each in records if hasattr(each.__repr__, "__wrapped__") or "_fields" in vars(each)}
    assert not sorted(each.__name__ for each in generated if each.__repr__ is not short)


def test_parts_are_shortened():
    @short_repr
    @dataclasses.dataclass
    class Record:
        text: str
        table: dict
        loss: float
        array: object = None
        count: int = 3

    shown = repr(Record("long " * 100, {n: [n] * 9 for n in range(9)}, 1 / 3, np.zeros((4, 5)), 3))
    assert "array=float64[4, 5]" in shown
    assert "loss=0.333333" in shown
    assert "3: (3, 3, 3, 3, ... 9 in all), ... 9 in all}" in shown.replace("\n ", "")
    assert "count" not in shown
    assert len(shown) < 300
