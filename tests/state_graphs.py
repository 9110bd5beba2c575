"""Small graphs with state, and what the finder says of them."""

from __future__ import annotations

import numpy as np
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
