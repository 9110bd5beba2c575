"""Small models for tests, and a way to make the library compute one operator wrongly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import jaxrnn
from jaxrnn.onnx import operators
from jaxrnn.onnx.registry import Versions

HIDDEN, FEATURES = 5, 3
#: Of the input and the state of `step_model`.
WIDTH = 4


def layers_model(kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Scale, Tanh, LSTM over an open time and batch, and a projection; every node has a name."""
    rng = np.random.default_rng(1)
    dtype = helper.tensor_dtype_to_np_dtype(kind)

    def weight(*shape: int) -> np.ndarray:
        return (0.3 * rng.standard_normal(shape)).astype(dtype)

    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["scaled"], name="scale"),
        helper.make_node("Tanh", ["scaled"], ["squashed"], name="squash"),
        helper.make_node("LSTM", ["squashed", "W", "R", "B"], ["Y", "Y_h", ""], name="lstm", hidden_size=HIDDEN),
        helper.make_node("Squeeze", ["Y", "one"], ["y"], name="squeeze"),
        helper.make_node("MatMul", ["y", "P"], ["logits"], name="project"),
    ]
    constants = {
        "scale": weight(FEATURES),
        "W": weight(1, 4 * HIDDEN, FEATURES),
        "R": weight(1, 4 * HIDDEN, HIDDEN),
        "B": weight(1, 8 * HIDDEN),
        "P": weight(HIDDEN, 2),
        "one": np.array([1]),
    }
    inputs, outputs = {"x": ["T", "batch", FEATURES]}, {"logits": ["T", "batch", 2], "Y_h": [1, "batch", HIDDEN]}
    graph = graph_of(nodes, inputs, outputs, constants, "layers", kind)
    return make_model(graph, opset=22 if kind == TensorProto.BFLOAT16 else 17)


def look_ahead_model() -> onnx.ModelProto:
    """A convolution that looks a frame ahead, Tanh and a running sum over an open time; and the sum of all of it."""
    rng = np.random.default_rng(4)

    def weight(*shape: int) -> np.ndarray:
        return (0.3 * rng.standard_normal(shape)).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["x", "W", "B"], ["a"], name="window", pads=[1, 1]),
        helper.make_node("Tanh", ["a"], ["b"], name="squash"),
        helper.make_node("CumSum", ["b", "axis"], ["y"], name="sums"),
        helper.make_node("ReduceSum", ["b", "axis"], ["total"], name="sum", keepdims=0),
    ]
    constants = {"W": weight(2, FEATURES, 3), "B": weight(2), "axis": np.array([2])}
    outputs = {"y": [1, 2, "T"], "total": [1, 2]}
    return make_model(graph_of(nodes, {"x": [1, FEATURES, "T"]}, outputs, constants, "look_ahead"))


def offline_model(bins: int = 9, hidden: int = 3) -> onnx.ModelProto:
    """A mask for spectra ``x[time, 1, bins]`` that needs all of time: less the mean, through a bidirectional LSTM."""
    rng = np.random.default_rng(6)
    weights = {"W": (2, 4 * hidden, bins), "R": (2, 4 * hidden, hidden), "P": (2 * hidden, bins)}
    constants = {name: rng.normal(size=shape).astype(np.float32) for name, shape in weights.items()}
    constants["shape"] = np.array([0, 0, 2 * hidden])
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], name="mean", axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["centred"], name="centre"),
        helper.make_node(
            "LSTM", ["centred", "W", "R"], ["both"], name="lstm", hidden_size=hidden, direction="bidirectional"
        ),
        helper.make_node("Transpose", ["both"], ["frames"], name="transpose", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["frames", "shape"], ["joined"], name="join"),
        helper.make_node("MatMul", ["joined", "P"], ["logits"], name="project"),
        helper.make_node("Sigmoid", ["logits"], ["mask"], name="squash"),
    ]
    sizes = ["time", 1, bins]
    return make_model(graph_of(nodes, {"x": sizes}, {"mask": sizes}, constants, "offline"))


def make_model(graph: onnx.GraphProto, *domains: str, opset: int = 17) -> onnx.ModelProto:
    """The graph as a model that every engine takes."""
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="tests")


def graph_of(nodes, inputs, outputs, constants=(), name="g", kind=TensorProto.FLOAT):
    """A graph; inputs and outputs are name: shape, or name: (type, shape); constants are arrays by name."""

    def infos(given):
        for key, shape in given.items():
            own, dims = shape if isinstance(shape, tuple) else (kind, shape)
            yield helper.make_tensor_value_info(key, own, dims)

    tensors = [numpy_helper.from_array(np.asarray(value), key) for key, value in dict(constants).items()]
    return helper.make_graph(nodes, name, list(infos(inputs)), list(infos(outputs)), tensors)


def step_model(*, transposed=False, seed=0, rows=1, by_size=False):
    """``h' = tanh(x @ W + h @ R)`` with square weights: what is folded of W has one shape, transposed or not.

    With ``by_size``, W is multiplied with the number of elements of x.
    """
    rng = np.random.default_rng(seed)
    weights = {name: rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) for name in "WR"}
    nodes = [
        *([helper.make_node("Transpose", ["W"], ["V"], perm=[1, 0])] if transposed else []),
        *([helper.make_node("Size", ["x"], ["size"])] if by_size else []),
        *([helper.make_node("Cast", ["size"], ["number"], to=TensorProto.FLOAT)] if by_size else []),
        *([helper.make_node("Mul", ["W", "number"], ["V"])] if by_size else []),
        helper.make_node("MatMul", ["x", "V" if transposed or by_size else "W"], ["a"]),
        helper.make_node("ReduceSum", ["a", "axis"], ["one"], keepdims=1),
        helper.make_node("MatMul", ["h", "R"], ["b"]),
        helper.make_node("Add", ["one", "b"], ["s"]),
        helper.make_node("Tanh", ["s"], ["h_next"]),
        helper.make_node("Identity", ["h_next"], ["y"]),
    ]
    inputs, outputs = {"x": [rows, WIDTH], "h": [1, WIDTH]}, {"y": [1, WIDTH], "h_next": [1, WIDTH]}
    graph = graph_of(nodes, inputs, outputs, weights | {"axis": np.array([0])}, "rnn")
    return jaxrnn.load(make_model(graph), state={"h": "h_next"})


def frames_of(count, rows=1, seed=3):
    """Frames of `step_model`, stacked."""
    return {"x": np.random.default_rng(seed).standard_normal((count, rows, WIDTH)).astype(np.float32)}


def draws(infos, seed=0, **sizes):
    """Uniform random arrays for inputs; open dimensions are 1, or have the sizes given by name."""
    rng = np.random.default_rng(seed)
    shapes = {info.name: [sizes.get(s, 1) if isinstance(s, str) else s for s in info.shape] for info in infos}
    return {info.name: rng.uniform(0, 1, shapes[info.name]).astype(info.dtype) for info in infos}


@contextlib.contextmanager
def operator_replaced(name: str, wrap: Callable[[Callable], Callable]) -> Iterator[None]:
    """Inside, every version of an operator is what ``wrap`` makes of its function."""
    table = operators.operator_table()
    versions = table["", name]
    table["", name] = Versions({since: wrap(function) for since, function in versions.items()}, versions.traits)
    operators.find_operator.cache_clear()
    try:
        yield
    finally:
        table["", name] = versions
        operators.find_operator.cache_clear()


def a_little_wrong(function: Callable) -> Callable:
    """A function of one array with an error of one in a thousand."""

    def wrong(x):
        y = function(x)
        return y * y.dtype.type(1.001)

    return wrong
