"""Small models for tests, and a way to make the library compute one operator wrongly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from jaxrnn.onnx import operators

HIDDEN, FEATURES = 5, 3


def layers_model(kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Scale, Tanh, LSTM over an open time and batch, and a projection; every node has a name."""
    rng = np.random.default_rng(1)
    dtype = helper.tensor_dtype_to_np_dtype(kind)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((0.3 * rng.standard_normal(shape)).astype(dtype), name)

    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["scaled"], name="scale"),
        helper.make_node("Tanh", ["scaled"], ["squashed"], name="squash"),
        helper.make_node("LSTM", ["squashed", "W", "R", "B"], ["Y", "Y_h", ""], name="lstm", hidden_size=HIDDEN),
        helper.make_node("Squeeze", ["Y", "one"], ["y"], name="squeeze"),
        helper.make_node("MatMul", ["y", "P"], ["logits"], name="project"),
    ]
    outputs = {"logits": ["T", "batch", 2], "Y_h": [1, "batch", HIDDEN]}
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", kind, ["T", "batch", FEATURES])],
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in outputs.items()],
        [
            weight("scale", FEATURES),
            weight("W", 1, 4 * HIDDEN, FEATURES),
            weight("R", 1, 4 * HIDDEN, HIDDEN),
            weight("B", 1, 8 * HIDDEN),
            weight("P", HIDDEN, 2),
            numpy_helper.from_array(np.array([1]), "one"),
        ],
    )
    return make_model(graph, opset=22 if kind == TensorProto.BFLOAT16 else 17)


def make_model(graph: onnx.GraphProto, *domains: str, opset: int = 17) -> onnx.ModelProto:
    """The graph as a model that every engine takes."""
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="tests")


@contextlib.contextmanager
def operator_replaced(name: str, wrap: Callable[[Callable], Callable]) -> Iterator[None]:
    """Inside, every version of an operator is what ``wrap`` makes of its function."""
    table = operators.operator_table()
    versions = table["", name]
    table["", name] = {since: wrap(function) for since, function in versions.items()}
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
