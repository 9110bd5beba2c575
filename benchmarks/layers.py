"""Recurrent layers as ONNX files: one node of the operator, or a ``Scan`` over a cell of plain operators."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}

#: The number of frames and the batch: numbers, or the names of open dimensions.
Size = int | str

_FLOAT = functools.partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)


def name_of(kind: str, hidden: int, frames: int, batch: int) -> str:
    """Return the name of the row of a layer."""
    return f"{kind} H{hidden} T{frames} B{batch}"


def weights(kind: str, hidden: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return weights of one direction by ONNX's names, initialised as in PyTorch; inputs have the size of hidden."""
    rng, gates = np.random.default_rng(seed), GATES[kind]
    shapes = {"W": (1, gates * hidden, hidden), "R": (1, gates * hidden, hidden), "B": (1, 2 * gates * hidden)}
    bound = hidden**-0.5
    return {name: rng.uniform(-bound, bound, shape).astype(np.float32) for name, shape in shapes.items()}


def onnx_layer(kind: str, hidden: int, frames: Size = "time", batch: Size = "batch", layers: int = 1) -> Any:
    """Return stacked nodes of the operator, with the input ``X`` and the output ``Y``, ``[frames, batch, hidden]``."""
    attributes: dict[str, Any] = {"hidden_size": hidden} | ({"linear_before_reset": 1} if kind == "GRU" else {})
    nodes, tensors = [], [numpy_helper.from_array(np.array([1]), "direction")]
    value = "X"
    for layer in range(layers):
        names = {key: key if layers == 1 else f"{key}{layer}" for key in ("W", "R", "B")}
        tensors += [numpy_helper.from_array(array, names[key]) for key, array in weights(kind, hidden, layer).items()]
        after = "Y" if layer == layers - 1 else f"H{layer}"
        nodes.append(helper.make_node(kind, [value, *names.values()], [f"D{layer}"], f"layer_{layer}", **attributes))
        nodes.append(helper.make_node("Squeeze", [f"D{layer}", "direction"], [after]))
        value = after
    shape = [frames, batch, hidden]
    graph = helper.make_graph(nodes, "layers", [_FLOAT("X", shape=shape)], [_FLOAT("Y", shape=shape)], tensors)
    return _model(graph)


def scan_layer(kind: str, hidden: int, frames: Size, batch: int) -> Any:
    """Return the cell as the body of a ``Scan``: one matrix product per gate, and no hoisted work.

    The input ``X`` and the output ``Y`` have shape ``[frames, batch, hidden]``. The GRU's reset gate is applied to the
    state before the product.
    """
    given = weights(kind, hidden)
    joined = np.concatenate([given["W"][0], given["R"][0]], 1).reshape(GATES[kind], hidden, 2 * hidden)
    bias = given["B"][0].reshape(2, GATES[kind], hidden).sum(0)
    tensors = [numpy_helper.from_array(np.zeros((batch, hidden), np.float32), "start")]
    for gate in range(GATES[kind]):
        tensors.append(numpy_helper.from_array(np.ascontiguousarray(joined[gate].T), f"M{gate}"))
        tensors.append(numpy_helper.from_array(bias[gate], f"b{gate}"))
    carried = ["h", "c"] if kind == "LSTM" else ["h"]
    state = functools.partial(_FLOAT, shape=[batch, hidden])
    body = helper.make_graph(
        [*_BODIES[kind](), helper.make_node("Identity", ["h_new"], ["y"])],
        "cell",
        [*map(state, carried), state("x")],
        [*(state(f"{name}_new") for name in carried), state("y")],
    )
    ends = [f"{name}_end" for name in carried]
    scan = helper.make_node("Scan", ["start"] * len(carried) + ["X"], [*ends, "Y"], body=body, num_scan_inputs=1)
    shape = [frames, batch, hidden]
    graph = helper.make_graph([scan], "scan", [_FLOAT("X", shape=shape)], [_FLOAT("Y", shape=shape)], tensors)
    return _model(graph)


def _gate(index: int, joined: str, function: str) -> list[NodeProto]:
    return [
        helper.make_node("MatMul", [joined, f"M{index}"], [f"p{index}"]),
        helper.make_node("Add", [f"p{index}", f"b{index}"], [f"s{index}"]),
        helper.make_node(function, [f"s{index}"], [f"g{index}"]),
    ]


def _join(first: str, second: str, result: str) -> NodeProto:
    return helper.make_node("Concat", [first, second], [result], axis=1)


def _lstm() -> Sequence[NodeProto]:
    gates = [node for index in range(3) for node in _gate(index, "xh", "Sigmoid")]
    return [
        _join("x", "h", "xh"),
        *gates,
        *_gate(3, "xh", "Tanh"),
        helper.make_node("Mul", ["g2", "c"], ["kept"]),
        helper.make_node("Mul", ["g0", "g3"], ["fresh"]),
        helper.make_node("Add", ["kept", "fresh"], ["c_new"]),
        helper.make_node("Tanh", ["c_new"], ["t"]),
        helper.make_node("Mul", ["g1", "t"], ["h_new"]),
    ]


def _gru() -> Sequence[NodeProto]:
    return [
        _join("x", "h", "xh"),
        *_gate(0, "xh", "Sigmoid"),
        *_gate(1, "xh", "Sigmoid"),
        helper.make_node("Mul", ["g1", "h"], ["rh"]),
        _join("x", "rh", "xrh"),
        *_gate(2, "xrh", "Tanh"),
        # (1 - z) n + z h, as n + z (h - n)
        helper.make_node("Sub", ["h", "g2"], ["apart"]),
        helper.make_node("Mul", ["g0", "apart"], ["moved"]),
        helper.make_node("Add", ["g2", "moved"], ["h_new"]),
    ]


def _rnn() -> Sequence[NodeProto]:
    return [_join("x", "h", "xh"), *_gate(0, "xh", "Tanh"), helper.make_node("Identity", ["g0"], ["h_new"])]


_BODIES = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made
