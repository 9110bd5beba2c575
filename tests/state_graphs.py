"""Small graphs with state, and what the finder says of them."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from refusals import check_refused
from small_models import graph_of, make_model

import jaxrnn

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
N = 4  # every feature, hidden and state size, so that shapes tell nothing apart
ONE = [1, 1, N]
ROW = [1, N]

node = helper.make_node


def weights(**shapes):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def model_of(nodes, inputs, outputs, constants=(), *, load=(), opset=17):
    """The model of a graph (`graph_of`); ``load`` goes to `jaxrnn.load`."""
    return jaxrnn.load(make_model(graph_of(nodes, inputs, outputs, constants), opset=opset), **dict(load))


def pairs(model):
    """Input to output of the external variables; nothing internal."""
    assert all(variable.kind == "external" for variable in model.state), model.state
    return {variable.input: variable.output for variable in model.state}


def check_asked(words, model):
    """The finder asks for the state, in an error with these words."""
    check_refused(jaxrnn.StateError, words, lambda: model.state)


def example_of(model):
    """The declaration that the finder's question proposes."""
    with pytest.raises(jaxrnn.StateError) as caught:
        _ = model.state
    found = re.search(r"load\(path, state=(\{[^}]*\})\)", str(caught.value))
    assert found is not None, str(caught.value)
    return ast.literal_eval(found[1])


def internal(model):
    assert all(variable.kind == "internal" for variable in model.state), model.state
    assert all(variable.input is None and variable.output is None for variable in model.state)
    return {variable.name: variable.shape for variable in model.state}


CELL = weights(W=(1, 3 * N, N), R=(1, 3 * N, N), LW=(1, 4 * N, N), LR=(1, 4 * N, N), V=(N, N), U=(N, N), A=(N, N))
ZERO = {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "last": np.array([-1])}
C = (
    CELL
    | ZERO
    | {"far": np.array([2**63 - 1]), "half": np.float32(0.5), "double": np.float32(2), "axis1": np.array([1])}
)


def gru(name, x, h, y="", y_h="", **attributes):
    return node("GRU", [x, "W", "R", "", "", h], [y, y_h], name=name, hidden_size=N, **attributes)


def lstm(name, x, h, c, outputs, **attributes):
    return node("LSTM", [x, "LW", "LR", "", "", h, c], outputs, name=name, hidden_size=N, **attributes)


def step_of_two_lstms(**load):
    """Four states of one shape, handed out in another order and under other names than they come in."""
    nodes = [
        lstm("first", "x", "a", "b", ["Y1", "p", "q"]),
        node("Squeeze", ["Y1", "one"], ["y1"]),
        lstm("second", "y1", "c", "d", ["Y2", "r", "s"]),
        node("Squeeze", ["Y2", "one"], ["y"]),
    ]
    inputs = dict.fromkeys(("d", "b", "x", "c", "a"), ONE)
    return model_of(nodes, inputs, dict.fromkeys(("r", "y", "q", "s", "p"), ONE), C, load=load)


class TooMuchWork(BaseException):
    """More work than a test allows. The finder catches an `Exception`, as of sizes that do not fit."""


def check_work(most, call):
    """The call makes at most so many calls from functions of jaxrnn."""
    home, count = str(Path(jaxrnn.__file__).parent), 0

    def watch(frame, event, argument):
        nonlocal count
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(home):
            count += 1
            if count > most:
                sys.setprofile(None)
                raise TooMuchWork(f"more than {most} calls")

    sys.setprofile(watch)
    try:
        return call()
    finally:
        sys.setprofile(None)


def conformer(blocks, width=16, heads=2, past=6, kernel=5):
    """A step of conformer blocks, each with caches of keys, values and frames of a convolution."""
    rng, nodes, constants = np.random.default_rng(0), [], {}
    inputs, outputs = {"x": ["B", 1, width]}, {"y": ["B", 1, 8]}

    def op(kind, *given, out="", **attributes):
        name = out or f"n{len(nodes)}"
        nodes.append(node(kind, list(given), [name], name=f"node{len(nodes)}", **attributes))
        return name

    def constant(array):
        constants[f"c{len(constants)}"] = np.asarray(array)
        return f"c{len(constants) - 1}"

    def weight(*shape):
        return constant((rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32))

    def linear(x, given, wanted):
        return op("Add", op("MatMul", x, weight(given, wanted)), weight(wanted))

    def norm(x):
        return op("LayerNormalization", x, weight(width), weight(width), axis=-1)

    def feed_forward(x):
        inner = linear(norm(x), width, 2 * width)
        return op("Add", x, linear(op("Mul", inner, op("Sigmoid", inner)), 2 * width, width))

    def cached(name, x, shape, axis):
        inputs[name] = outputs[f"{name}_out"] = shape
        joined = op("Concat", name, x, axis=axis)
        bounds = (constant(np.array([number])) for number in (1, 2**31, axis))
        op("Slice", joined, *bounds, out=f"{name}_out")
        return joined

    def by_head(x):
        return op("Transpose", op("Reshape", x, constant([0, -1, heads, width // heads])), perm=[0, 2, 1, 3])

    x = "x"
    for block in range(blocks):
        x = feed_forward(x)
        query, key, value = (linear(norm(x), width, width) for _ in range(3))
        keys, values = (cached(f"{n}{block}", v, ["B", past, width], 1) for n, v in (("k", key), ("v", value)))
        scores = op("MatMul", by_head(query), op("Transpose", by_head(keys), perm=[0, 1, 3, 2]))
        seen = op("MatMul", op("Softmax", scores, axis=-1), by_head(values))
        seen = op("Reshape", op("Transpose", seen, perm=[0, 2, 1, 3]), constant([0, -1, width]))
        x = op("Add", x, linear(seen, width, width))
        turned = op("Transpose", linear(norm(x), width, width), perm=[0, 2, 1])
        window = cached(f"cache{block}", turned, ["B", width, kernel - 1], 2)
        moved = op("Transpose", op("Conv", window, weight(width, 1, kernel), group=width), perm=[0, 2, 1])
        x = norm(feed_forward(op("Add", x, linear(op("Mul", moved, op("Sigmoid", moved)), width, width))))
    op("Identity", linear(x, width, 8), out="y")
    return model_of(nodes, inputs, outputs, constants)
