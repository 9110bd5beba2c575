"""Models for tests of pages: a loop over time, external state, and hostile names."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper
from small_models import graph_of, make_model

I64, BOOL = TensorProto.INT64, TensorProto.BOOL
FEATURES, HIDDEN = 3, 4
#: A hostile name of a file, node or value.
HOSTILE = "</script><script>document.title = 'foreign'</script><!--'\"\\`${]}\u2028 " + "ü" * 300

node = helper.make_node


def _weights(**shapes):
    """Random weights, by the length of their names."""
    draw = {name: np.random.default_rng(len(name)).standard_normal(shape) for name, shape in shapes.items()}
    return {name: (0.3 * array).astype(np.float32) for name, array in draw.items()}


def loop_model() -> onnx.ModelProto:
    """Return a convolution with one frame of look-ahead, a recurrence as a loop over all frames, and a projection."""
    body = graph_of(
        [
            node("Gather", ["rows", "t"], ["frame"], name="read", axis=0),
            node("MatMul", ["frame", "in"], ["a"], name="from_input"),
            node("MatMul", ["h", "r"], ["b"], name="from_state"),
            node("Add", ["a", "b"], ["c"], name="sum"),
            node("Tanh", ["c"], ["h_next"], name="update"),
            node("Identity", ["h_next"], ["collected"], name="collect"),
            node("Identity", ["go"], ["go_on"], name="go_on"),
            node("Identity", ["r"], ["r_same"], name="hand_on"),
        ],
        {"t": (I64, []), "go": (BOOL, []), "h": [1, HIDDEN], "r": [HIDDEN, HIDDEN]},
        {"go_on": (BOOL, []), "h_next": [1, HIDDEN], "r_same": [HIDDEN, HIDDEN], "collected": [1, HIDDEN]},
    )
    nodes = [
        node("Conv", ["x", "window", "bias"], ["features"], name="enc/look_ahead", pads=[1, 1]),
        node("Relu", ["features"], ["positive"], name="enc/relu"),
        node("Transpose", ["positive"], ["rows"], name="enc/rows", perm=[2, 0, 1]),
        node("Shape", ["rows"], ["sizes"], name="sizes"),
        node("Gather", ["sizes", "first"], ["frames"], name="frames"),
        node("Loop", ["frames", "true", "zeros", "R"], ["h_last", "r_last", "hs"], name="walk", body=body),
        node("MatMul", ["hs", "out"], ["y"], name="project"),
    ]
    shapes = {"window": (FEATURES, FEATURES, 3), "bias": FEATURES, "in": (FEATURES, HIDDEN)}
    constants = _weights(**shapes, R=(HIDDEN, HIDDEN), out=(HIDDEN, 2))
    constants |= {"zeros": np.zeros((1, HIDDEN), np.float32), "first": np.array(0), "true": np.array(True)}
    return make_model(graph_of(nodes, {"x": [1, FEATURES, "T"]}, {"y": ["T", 1, 2]}, constants, "loop"))


def step_model(state: str = "h", updated: str = "h_next", name: str = "cell") -> onnx.ModelProto:
    """Return one step of a recurrence with external state and a branch that doubles the output."""
    twice = graph_of([node("Add", [updated, updated], ["two"], name="add")], {}, {"two": None}, name="t")
    once = graph_of([node("Identity", [updated], ["one"], name="same")], {}, {"one": None}, name="e")
    nodes = [
        node("MatMul", ["x", "W"], ["a"], name="from_input"),
        node("MatMul", [state, "R"], ["b"], name="from_state"),
        node("Add", ["a", "b"], ["c"], name=name),
        node("Tanh", ["c"], [updated], name="update"),
        node("If", ["loud"], ["y"], name="volume", then_branch=twice, else_branch=once),
    ]
    inputs = {"x": [1, FEATURES], state: [1, HIDDEN], "loud": (BOOL, [])}
    constants = _weights(W=(FEATURES, HIDDEN), R=(HIDDEN, HIDDEN))
    return make_model(graph_of(nodes, inputs, {"y": [1, HIDDEN], updated: [1, HIDDEN]}, constants, "step"))


def chain_model(count: int) -> onnx.ModelProto:
    """Return a chain of layers, every second with a shortcut, whose names contain no modules."""
    nodes, last = [], "x"
    for place in range(count):
        taken = [last, last if place % 2 else f"v{max(place - 3, 0)}" if place > 3 else last]
        nodes.append(node("Add", taken, [f"v{place}"], name=f"n{place}"))
        last = f"v{place}"
    nodes.append(node("Identity", [last], ["y"], name="end"))
    return make_model(graph_of(nodes, {"x": [1, 2]}, {"y": [1, 2]}, name="chain"))
