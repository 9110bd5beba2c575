"""State that recurrent operators carry, in graphs made to fool the finder, and what only looks like it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from small_models import graph_of
from state_graphs import (
    BOOL,
    F32,
    ONE,
    C,
    N,
    check_asked,
    gru,
    internal,
    lstm,
    model_of,
    node,
    pairs,
    step_of_two_lstms,
)

import jaxrnn


def test_two_lstms_with_swapped_outputs():
    model = step_of_two_lstms()
    assert pairs(model) == {"a": "p", "b": "q", "c": "r", "d": "s"}
    assert [variable.name for variable in model.state] == ["d", "b", "c", "a"]
    assert {variable.name: variable.node for variable in model.state} == {
        "a": "first", "b": "first", "c": "second", "d": "second",
    }  # fmt: skip


def test_residuals_around_the_state():
    """Neither the residual output nor the sum that the recurrence starts from hides the state."""
    nodes = [
        node("MatMul", ["x", "V"], ["shift"]),
        node("Add", ["h", "shift"], ["start"]),
        gru("gru", "x", "start", "Y", "end"),
        node("Squeeze", ["Y", "one"], ["y"]),
        node("Add", ["y", "x"], ["with_x"]),
        node("Add", ["y", "h"], ["with_h"]),
    ]
    outputs = dict.fromkeys(("with_h", "with_x", "end"), ONE)
    assert pairs(model_of(nodes, {"h": ONE, "x": ONE}, outputs, C)) == {"h": "end"}


def test_reset_by_the_caller():
    """A state that is multiplied by a mask before it is read, as reinforcement learning does after an episode.

    Of one shape, the mask and the state are told apart by name alone.
    """
    for alive, h, end in (([1, 1, 1], "s", "e"), (ONE, "h", "h_new")):
        nodes = [node("Mul", [h, "alive"], ["start"]), gru("gru", "x", "start", "Y", end)]
        model = model_of(nodes, {"alive": alive, "x": ONE, h: ONE}, {"Y": [1, 1, 1, N], end: ONE}, C)
        assert pairs(model) == {h: end}


@pytest.mark.parametrize("batch", [1, 3])
def test_a_bound_state_fixes_the_batch(batch):
    """What starts from a bound input is forgotten, and has the size of that input where the file leaves one open."""
    start = np.zeros((1, batch, N), np.float32)
    inputs, outputs = {"x": ["time", "batch", N], "h": [1, "batch", N]}, {"Y": ["time", 1, "batch", N], "end": None}
    model = model_of([gru("gru", "x", "h", "Y", "end")], inputs, outputs, C, load={"static": {"h": start}})
    assert internal(model) == {"gru.h": (1, batch, N)}


def test_outputs_of_the_shape_of_the_state():
    """The sequence itself, and weights of attention, are not what the recurrence continues from."""
    nodes = [
        gru("gru", "x", "h", "Y", "end"),
        node("Squeeze", ["Y", "one"], ["h_out"]),
        node("MatMul", ["end", "V"], ["logits"]),
        node("Softmax", ["logits"], ["attention"]),
    ]
    outputs = dict.fromkeys(("attention", "h_out", "end"), ONE)
    assert pairs(model_of(nodes, {"x": ONE, "h": ONE}, outputs, C)) == {"h": "end"}


def test_the_last_output_serves_where_nothing_else_does():
    nodes = [
        lstm("cell", "x", "h", "c", ["Y", "", "c2"]),
        node("Squeeze", ["Y", "one"], ["y"]),
        node("MatMul", ["y", "V"], ["logits"]),
    ]
    model = model_of(nodes, dict.fromkeys(("x", "h", "c"), ONE), dict.fromkeys(("logits", "y", "c2"), ONE), C)
    assert pairs(model) == {"h": "y", "c": "c2"}
    assert "last output" in model.state[0].reason


def test_read_but_never_updated():
    """An input that starts a recurrence and comes back nowhere may still be state: another output has its shape."""
    nodes = [gru("gru", "x", "h", "Y"), node("MatMul", ["Y", "V"], ["z"]), node("Squeeze", ["z", "one"], ["y"])]
    others = [gru("gru", "x", "h", "Y"), node("Squeeze", ["Y", "one"], ["z"]), node("Add", ["z", "x"], ["y"])]
    for graph in (nodes, others):
        check_asked("'h' -> 'y'; found: none", model_of(graph, {"x": ONE, "h": ONE}, {"y": ONE}, C))
        assert model_of(graph, {"x": ONE, "h": ONE}, {"y": ONE}, C, load={"state": {}}).state == ()


def test_never_updated_over_many_steps_is_forgotten():
    model = model_of([gru("gru", "x", "h", "Y")], {"x": ["S", 1, N], "h": ONE}, {"Y": ["S", 1, 1, N]}, C)
    assert internal(model) == {"gru.h": (1, 1, N)}
    assert "computed from 'h'" in model.state[0].reason


def test_handed_on_is_no_state():
    nodes = [gru("gru", "x", "h", "", "h_out"), node("Identity", ["mask"], ["mask_out"])]
    model = model_of(nodes, dict.fromkeys(("mask", "x", "h"), ONE), {"mask_out": ONE, "h_out": ONE}, C)
    assert pairs(model) == {"h": "h_out"}


@pytest.mark.parametrize(("order", "is_buffer"), [([1, 2, 3], True), ([2, 3, 1], False)])
def test_elements_that_change_places_are_no_buffer(order, is_buffer):
    """A buffer moves along as a whole. The finder asks about an input that is shuffled."""
    nodes = [
        node("Gather", ["p", "order"], ["kept"], axis=1),
        node("Concat", ["kept", "x"], ["q"], axis=1),
        node("Relu", ["q"], ["y"]),
    ]
    model = model_of(nodes, {"x": [1, 1], "p": [1, N]}, {"y": [1, N], "q": [1, N]}, {"order": np.array(order)})
    if is_buffer:
        assert pairs(model) == {"p": "q"}
    else:
        check_asked(r"state=\{'p': 'q'\}", model)


SCALED = [gru("gru", "x", "h", "Y", "end"), node("Mul", ["end", "double"], ["h_out"])]


def test_scaled_by_two():
    """Twice the final value is not what the recurrence would continue from: the finder asks."""
    ends = {"x": ONE, "h": ONE}, {"Y": [1, 1, 1, N], "h_out": ONE}, C
    model = model_of(SCALED, *ends)
    check_asked(r"after arithmetic with constants.*state=\{'h': 'h_out'\}", model)
    assert pairs(model_of(SCALED, *ends, load={"state": {"h": "h_out"}})) == {"h": "h_out"}
    beside = {"h_out": ONE, "end": ONE}
    check_asked("disagree.*'h' -> 'end', 'h' -> 'h_out'", model_of(SCALED, ends[0], beside, C))
    other = [SCALED[0], node("Mul", ["end", "double"], ["level"])]
    assert pairs(model_of(other, ends[0], {"level": ONE, "end": ONE}, C)) == {"h": "end"}


def test_names_that_lie():
    nodes = [
        gru("gru", "state", "u", "Y", "v"),
        node("Squeeze", ["Y", "one"], ["y"]),
        node("MatMul", ["y", "V"], ["state_out"]),
    ]
    model = model_of(nodes, {"state": ONE, "u": ONE}, {"state_out": ONE, "v": ONE}, C)
    assert pairs(model) == {"u": "v"}


def packed_model(order):
    """h and c of one LSTM in one tensor, handed back in the given order."""
    nodes = [
        node("Split", ["packed"], ["h", "c"], axis=0),
        lstm("lstm", "x", "h", "c", ["Y", "h2", "c2"]),
        node("Concat", order, ["packed_out"], axis=0),
    ]
    return model_of(nodes, {"x": ONE, "packed": [2, 1, N]}, {"Y": [1, 1, 1, N], "packed_out": [2, 1, N]}, C)


def test_packed_in_one_tensor():
    model = packed_model(["h2", "c2"])
    assert pairs(model) == {"packed": "packed_out"}
    assert "h and c of LSTM 'lstm'" in model.state[0].reason
    check_asked("not at the places where it is read", packed_model(["c2", "h2"]))


def test_packed_along_different_axes():
    nodes = [
        node("Split", ["first"], ["h", "c"], axis=0),
        node("Gather", ["second", "i0"], ["h_2"], axis=3),
        node("Slice", ["second", "one", "two", "three"], ["c_2_"]),
        node("Squeeze", ["c_2_", "three"], ["c_2"]),
        lstm("one_", "x", "h", "c", ["", "h_", "c_"]),
        lstm("two_", "x", "h_2", "c_2", ["Y", "g_", "d_"]),
        node("Concat", ["h_", "c_"], ["p"], axis=0),
        node("Unsqueeze", ["g_", "three"], ["g"]),
        node("Unsqueeze", ["d_", "three"], ["d"]),
        node("Concat", ["g", "d"], ["q"], axis=-1),
    ]
    inputs = {"second": [1, 1, N, 2], "x": ONE, "first": [2, 1, N]}
    outputs = {"q": [1, 1, N, 2], "p": [2, 1, N], "Y": [1, 1, 1, N]}
    model = model_of(nodes, inputs, outputs, C | {"i0": np.array(0), "three": np.array([3])})
    assert pairs(model) == {"first": "p", "second": "q"}


def test_written_by_scatter_and_read_through_transpose():
    nodes = [
        node("Transpose", ["cache"], ["turned"], perm=[1, 0, 2]),
        node("Slice", ["turned", "zero", "one", "zero"], ["h1"]),
        node("Slice", ["turned", "one", "two", "zero"], ["h2"]),
        gru("first", "x", "h1", "Y", "e1"),
        node("Squeeze", ["Y", "one"], ["y"]),
        gru("second", "y", "h2", "", "e2"),
        node("ScatterND", ["turned", "at0", "e1"], ["t1"]),
        node("ScatterND", ["t1", "at1", "e2"], ["t2"]),
        node("Transpose", ["t2"], ["kept"], perm=[1, 0, 2]),
    ]
    places = {"at0": np.array([[0]]), "at1": np.array([[1]])}
    model = model_of(nodes, {"x": ONE, "cache": [1, 2, N]}, {"y": ONE, "kept": [1, 2, N]}, C | places)
    assert pairs(model) == {"cache": "kept"}
    assert model.state[0].node == "first, second"


def test_through_float16_and_back():
    half = TensorProto.FLOAT16
    nodes = [
        node("Cast", ["h"], ["h16"], to=half),
        node("Cast", ["h16"], ["h32"], to=F32),
        gru("gru", "x", "h32", "Y", "end"),
        node("Cast", ["end"], ["end16"], to=half),
        node("Cast", ["end16"], ["h_out"], to=F32),
    ]
    assert pairs(model_of(nodes, {"x": ONE, "h": ONE}, {"Y": [1, 1, 1, N], "h_out": ONE}, C)) == {"h": "h_out"}


def test_inside_both_branches():
    """Read in either branch of an If, by a node of its own; or updated in one and kept in the other."""

    def branch(name, nodes, output):
        return graph_of(nodes, {}, {output: ONE}, name=name)

    then = branch("then", [gru("slow", "x", "h", "", "t")], "t")
    other = branch("else", [node("Identity", ["h"], ["kept"]), gru("fast", "x", "kept", "", "e")], "e")
    keep = branch("keep", [node("Identity", ["h"], ["k"])], "k")
    for branches, owner in (((then, other), "slow, fast"), ((then, keep), "slow")):
        nodes = [
            node("If", ["flag"], ["end"], then_branch=branches[0], else_branch=branches[1]),
            node("MatMul", ["end", "V"], ["y"]),
        ]
        model = model_of(nodes, {"x": ONE, "h": ONE, "flag": (BOOL, [])}, {"y": ONE, "end": ONE}, C)
        assert pairs(model) == {"h": "end"}
        assert model.state[0].node == owner


def test_names_take_no_pair_from_data():
    """What arithmetic makes of data has no claim on an input that a state with a name of its own needs.

    The masked update is no cell to the flow of elements, and the data look as if they went through one.
    """
    nodes = [
        node("MatMul", ["x", "V"], ["mixed"]),
        node("Mul", ["h", "decay"], ["kept"]),
        node("Add", ["mixed", "kept"], ["sum"]),
        node("Tanh", ["sum"], ["y"]),
        node("Greater", ["count", "half"], ["some"]),
        node("Where", ["some", "y", "h"], ["h_next"]),
        node("Add", ["count", "double"], ["count_next"]),
        node("Neg", ["y"], ["z"]),
    ]
    constants = {**C, "decay": np.arange(N, dtype=np.float32)}
    inputs = {"x": ONE, "h": ONE, "count": [1]}
    model = model_of(nodes, inputs, dict.fromkeys(("y", "z", "h_next"), ONE) | {"count_next": [1]}, constants)
    assert pairs(model) == {"h": "h_next", "count": "count_next"}


def test_steps_that_give_nothing_but_state():
    """The last frame, say, which is handed out when a recording has ended."""
    nodes = [node("Tanh", ["x"], ["tap.last_next"]), gru("gru", "x", "h", "", "h_next")]
    model = model_of(nodes, {"x": ONE, "tap.last": ONE, "h": ONE}, dict.fromkeys(("tap.last_next", "h_next"), ONE), C)
    assert pairs(model) == {"tap.last": "tap.last_next", "h": "h_next"}


def test_parts_without_elements():
    """A split off part may be empty; the others are followed all the same."""
    constants = {**C, "sizes": np.array([0, 1], np.int64)}
    nodes = [
        node("Split", ["h", "sizes"], ["nothing", "start"], axis=1),
        gru("gru", "x", "start", "Y", "h_next"),
    ]
    model = model_of(nodes, {"x": ONE, "h": ONE}, {"Y": [1, 1, 1, N], "h_next": ONE}, constants)
    assert pairs(model) == {"h": "h_next"}


@pytest.mark.parametrize(("mask", "batch"), [("float[1, 1, 3] mask = {1, 1, 1}", "N"), ("float[1, 6, 3] mask", 1)])
def test_a_value_without_elements_at_any_size(mask, batch):
    """A pad of no frames, as the zipformer of icefall joins to a chunk; an exporter may have fixed the batch to 1."""
    ones = "" if "=" in mask else f" = {{{', '.join('1' * 18)}}}"
    axis = 1 if ones else 0
    model = jaxrnn.load(
        onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 17]>
        m (float[N, 4, 3] x, float[N, 2, 3] cached_key) => (float[M] y, float[N, 2, 3] new_cached_key)
        <{mask}{ones}, int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] three = {{3}},
         int64[1] four = {{4}}, int64[1] six = {{6}}> {{
            shape = Shape (x)
            n = Slice (shape, zero, one)
            sizes = Concat <axis = 0> (n, zero, three)
            last = Slice (x, three, four, one)
            pad = Expand (last, sizes)
            joined = Concat <axis = 1> (cached_key, x, pad)
            new_cached_key = Slice (joined, four, six, one)
            {"masked = Concat <axis = 2> (joined, mask)" if axis else "masked = Mul (joined, mask)"}
            y = ReduceMax <keepdims = 0, axes = [1, 2]> (masked)
        }}""")
    )
    (variable,) = model.state
    assert (variable.output, variable.shape) == ("new_cached_key", (batch, 2, 3))
    assert "buffer" in variable.reason
