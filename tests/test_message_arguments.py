"""Messages speak to their reader: of arguments in Python, of options on the command line, of keys in settings."""

from __future__ import annotations

import ast
import pathlib
import re

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper
from plain_graphs import RELU, model, node

import jaxrnn
from jaxrnn._files.arguments import NAME, OPTIONS, SIZE, argument, called, either, static_or_eager, writing_for
from jaxrnn.cli import main

PACKAGE = pathlib.Path(jaxrnn.__file__).parent
#: What no command reaches: Flax modules, and a training's own options, which are keys of its settings too.
PYTHON_ONLY = ("nnx", "training")
IN_PYTHON = re.compile(rf"\b({'|'.join((*OPTIONS, 'constraints', 'limits', 'operators'))})=|\bload\(")


def literals(tree):
    """The texts of a module that are no docstrings, nor what is said in Python alone, each with its line."""
    silent = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
            silent.add(each.value)  # a docstring
        if isinstance(each, ast.FunctionDef) and each.name == "__repr__":
            silent.update(ast.walk(each))
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in ("either", "argument"):
            silent.update(ast.walk(each))
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each not in silent:
            yield each.lineno, each.value


def test_no_message_has_arguments_in_the_syntax_of_python():
    """What may reach a command is written by `argument` or `either`."""
    said = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in PYTHON_ONLY
        for line, text in literals(ast.parse(path.read_text()))
        if " " in text and IN_PYTHON.search(text)
    ]
    assert not said, "\n".join(said)


def test_arguments_in_each_voice():
    assert argument("dims", {"T": SIZE}, "init()") == "init(dims={'T': SIZE})"
    assert argument("state", {}, "jaxrnn.load(path)") == "jaxrnn.load(path, state={})"
    assert (called("batch"), either("here", "there")) == ("batch", "here")
    with writing_for("command"):
        assert argument("dims", {"T": SIZE, "F": 4}, "init()") == "--dim T=SIZE --dim F=4"
        assert argument("state", {}, "jaxrnn.load(path)") == "--state none"
        assert argument("multiple", 160) == "--multiple 160"
        assert argument("limits", NAME, "jaxrnn.load(path)") == "in Python, jaxrnn.load(path, limits=NAME)"
        assert (called("batch"), either("here", "there")) == ("--batch", "there")
        assert static_or_eager() == "--static NAME=VALUE"
    with writing_for("settings"):
        assert argument("static", {"sr": 16000}, "jaxrnn.load(path)") == "static: {sr: 16000}"
        assert argument("steps", 100) == "steps: 100"
        assert argument("limits", NAME, "jaxrnn.load(path)") == "in Python, jaxrnn.load(path, limits=NAME)"
    assert called("batch") == "batch"


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
    "what is profiled": (
        model(RELU),
        ["profile", "--batch", "2", "--what", "apply"],
        "--batch is for .* --dim NAME=",
    ),
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
    with pytest.raises(jaxrnn.StreamError, match=r"constraints=\['S >= 4'\]"):
        jaxrnn.load(MIRRORED).stream("T")
