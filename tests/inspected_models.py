"""Models for tests of pages: a loop over time, external state, and hostile names."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from small_models import make_model

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
FEATURES, HIDDEN = 3, 4
#: A hostile name of a file, node or value.
HOSTILE = "</script><script>document.title = 'foreign'</script><!--'\"\\`${]}\u2028 " + "ü" * 300

node, info = helper.make_node, helper.make_tensor_value_info


def _weight(name: str, *shape: int) -> onnx.TensorProto:
    rng = np.random.default_rng(len(name))
    return numpy_helper.from_array((0.3 * rng.standard_normal(shape)).astype(np.float32), name)


def _number(name: str, value: object, kind: type) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(value, kind), name)


def loop_model() -> onnx.ModelProto:
    """Return a convolution with one frame of look-ahead, a recurrence as a loop over all frames, and a projection."""
    body = helper.make_graph(
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
        "body",
        [info("t", I64, []), info("go", BOOL, []), info("h", F32, [1, HIDDEN]), info("r", F32, [HIDDEN, HIDDEN])],
        [
            info("go_on", BOOL, []),
            info("h_next", F32, [1, HIDDEN]),
            info("r_same", F32, [HIDDEN, HIDDEN]),
            info("collected", F32, [1, HIDDEN]),
        ],
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
    graph = helper.make_graph(
        nodes,
        "loop",
        [info("x", F32, [1, FEATURES, "T"])],
        [info("y", F32, ["T", 1, 2])],
        [
            _weight("window", FEATURES, FEATURES, 3),
            _weight("bias", FEATURES),
            _weight("in", FEATURES, HIDDEN),
            _weight("R", HIDDEN, HIDDEN),
            _weight("out", HIDDEN, 2),
            _number("zeros", np.zeros((1, HIDDEN)), np.float32),
            _number("first", 0, np.int64),
            _number("true", True, np.bool_),
        ],
    )
    return make_model(graph)


def step_model(state: str = "h", updated: str = "h_next", name: str = "cell") -> onnx.ModelProto:
    """Return one step of a recurrence with external state and a branch that doubles the output."""
    twice = helper.make_graph([node("Add", [updated, updated], ["two"], name="add")], "t", [], [info("two", F32, None)])
    once = helper.make_graph([node("Identity", [updated], ["one"], name="same")], "e", [], [info("one", F32, None)])
    nodes = [
        node("MatMul", ["x", "W"], ["a"], name="from_input"),
        node("MatMul", [state, "R"], ["b"], name="from_state"),
        node("Add", ["a", "b"], ["c"], name=name),
        node("Tanh", ["c"], [updated], name="update"),
        node("If", ["loud"], ["y"], name="volume", then_branch=twice, else_branch=once),
    ]
    graph = helper.make_graph(
        nodes,
        "step",
        [info("x", F32, [1, FEATURES]), info(state, F32, [1, HIDDEN]), info("loud", BOOL, [])],
        [info("y", F32, [1, HIDDEN]), info(updated, F32, [1, HIDDEN])],
        [_weight("W", FEATURES, HIDDEN), _weight("R", HIDDEN, HIDDEN)],
    )
    return make_model(graph)


def chain_model(count: int) -> onnx.ModelProto:
    """Return a chain of layers, every second with a shortcut, whose names contain no modules."""
    nodes, last = [], "x"
    for place in range(count):
        taken = [last, last if place % 2 else f"v{max(place - 3, 0)}" if place > 3 else last]
        nodes.append(node("Add", taken, [f"v{place}"], name=f"n{place}"))
        last = f"v{place}"
    nodes.append(node("Identity", [last], ["y"], name="end"))
    return make_model(helper.make_graph(nodes, "chain", [info("x", F32, [1, 2])], [info("y", F32, [1, 2])]))
