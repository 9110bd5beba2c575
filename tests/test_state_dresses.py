"""State whose next value leaves in another shape or type: asked about, and converted in each step if it is declared."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from onnx import TensorProto
from refusals import check_refused
from state_graphs import (
    BOOL,
    ONE,
    ROW,
    C,
    N,
    check_asked,
    example_of,
    graph_of,
    gru,
    internal,
    lstm,
    model_of,
    node,
    pairs,
)
from verifier import session

import jaxrnn

THREE, TWICE = [1, 1, 1, 3], [2, 1, N]
CONSTANTS = C | {"P": np.ones((N, 3), np.float32) / N, "flat": np.array([-1]), "ones": np.array([0, 1])}
Y = node("MatMul", ["Y", "P"], ["y"])


def of_gru(kind, out, batch=1, **attributes):
    """A GRU from h, whose final value leaves through a node of this kind as ``out``."""
    given = {"Squeeze": ["end", "ones"], "Reshape": ["end", "flat"]}.get(kind, ["end"])
    nodes = [gru("gru", "x", "h", "Y", "end"), Y, node(kind, given, ["out"], **attributes)]
    return nodes, {"x": [1, batch, N], "h": [1, batch, N]}, {"y": [1, 1, batch, 3], "out": out}, CONSTANTS


def of_lstm(given, h, c, after, states, outputs):
    """An LSTM from h and c that may be parts of an input, whose final values leave through the nodes ``after``."""
    before = [node("Split", [given], [h, c], axis=0)] if given else []
    nodes = [*before, lstm("lstm", "x", h, c, ["Y", "h1", "c1"]), Y, *after]
    return nodes, {"x": ONE, **states}, {"y": THREE, **outputs}, CONSTANTS


TURNED = (
    [
        node("Reshape", ["h", "rows"], ["h0"]),
        gru("gru", "x", "h0", "Y", "end"),
        Y,
        node("Reshape", ["end", "pairs"], ["paired"]),
        node("Transpose", ["paired"], ["out"], perm=[1, 2, 0]),
    ],
    {"x": [1, 3, N], "h": [3, 2, 2]},
    {"y": [1, 1, 3, 3], "out": [2, 2, 3]},
    CONSTANTS | {"rows": np.array([1, 3, N]), "pairs": np.array([3, 2, 2])},
)
ONLY_Y = [gru("gru", "x", "h", "Y")], {"x": ONE, "h": ONE}, {"Y": [1, *ONE]}, CONSTANTS
CELL = (
    [
        node("MatMul", ["x", "V"], ["a"]),
        node("MatMul", ["h", "U"], ["b"]),
        node("Add", ["a", "b"], ["s"]),
        node("Tanh", ["s"], ["new"]),
        node("MatMul", ["new", "P"], ["y"]),
        node("Squeeze", ["new", "zero"], ["h_out"]),
    ],
    {"x": ROW, "h": ROW},
    {"y": [1, 3], "h_out": [N]},
    CONSTANTS,
)
JOINED = [node("Concat", ["h1", "c1"], ["out"], axis=0)]
HANDED = [
    node("Identity", ["h1"], ["p"]),
    node("Squeeze", ["c1", "ones"], ["q_32"]),
    node("Cast", ["q_32"], ["q"], to=TensorProto.FLOAT16),
    node("Identity", ["Y"], ["also"]),
]


def alone(convert, output="out"):
    return {"h": output}, lambda found: {"h": convert(found[output])}


#: By dress: the graph, the declaration that the question proposes, and the next state from the outputs of the file.
DRESSES = {
    "squeezed": (of_gru("Squeeze", [N]), *alone(lambda out: out[None, None])),
    "flattened": (of_gru("Reshape", [3 * N], batch=3), *alone(lambda out: out.reshape(1, 3, N))),
    "open batch": (of_gru("Reshape", ["D"], batch="B"), *alone(lambda out: out.reshape(1, 3, N))),
    "transposed": (of_gru("Transpose", [N, 3, 1], 3, perm=[2, 1, 0]), *alone(lambda out: out.transpose(2, 1, 0))),
    "open batch first": (
        of_gru("Transpose", ["B", N, 1], "B", perm=[1, 2, 0]),
        *alone(lambda out: out.transpose(2, 0, 1)),
    ),
    "turned": (TURNED, *alone(lambda out: out.transpose(2, 0, 1))),
    "float16": (
        of_gru("Cast", (TensorProto.FLOAT16, ONE), to=TensorProto.FLOAT16),
        *alone(lambda out: out.astype("f4")),
    ),
    "double": (of_gru("Cast", (TensorProto.DOUBLE, ONE), to=TensorProto.DOUBLE), *alone(lambda out: out.astype("f4"))),
    "two states in one output": (
        of_lstm("", "h", "c", JOINED, {"h": ONE, "c": ONE}, {"out": TWICE}),
        {"h": "out", "c": "out"},
        lambda found: {"h": found["out"][:1], "c": found["out"][1:]},
    ),
    "one state in two outputs": (
        of_lstm(
            "both", "h", "c", HANDED, {"both": TWICE}, {"also": [1, *ONE], "q": (TensorProto.FLOAT16, [N]), "p": ONE}
        ),
        {"both": "p, q"},
        lambda found: {"both": np.concatenate([found["p"], found["q"][None, None].astype("f4")])},
    ),
    "the output itself": (ONLY_Y, *alone(lambda out: out[0], "Y")),
    "a cell of single operators": (CELL, *alone(lambda out: out[None], "h_out")),
}


@pytest.mark.parametrize("name", DRESSES)
def test_another_dress_is_asked_about_and_converted(name, tmp_path):
    """The question proposes a declaration, with which steps agree with a loop around ONNX Runtime."""
    graph, proposed, next_of = DRESSES[name]
    asking = model_of(*graph)
    check_asked("leave in another shape or type: ", asking)
    assert example_of(asking) == proposed
    model = jaxrnn.load(asking.proto, state=proposed)
    assert pairs(model) == pairs(pickle.loads(pickle.dumps(model))) == proposed
    rng, peer, batch = np.random.default_rng(0), session(asking.proto), {"B": 3}

    def drawn(spec):
        return rng.standard_normal([batch.get(str(size), size) for size in spec.shape]).astype(np.float32)

    ours = theirs = start = {spec.name: drawn(spec) for spec in model.spec.state}
    frames, outputs = [drawn(model.spec.inputs[0]) for _ in range(4)], [spec.name for spec in model.outputs]
    for frame in frames:
        values, ours = model.step(model.params, ours, {"x": frame})
        found = dict(zip(outputs, peer.run(outputs, {"x": frame, **theirs}), strict=True))
        theirs = next_of(found)
        for each, value in {**values, **ours}.items():
            np.testing.assert_allclose(value, {**found, **theirs}[each], atol=1e-6, err_msg=each)
    assert {each: (value.shape, value.dtype) for each, value in ours.items()} == {
        each: (value.shape, value.dtype) for each, value in start.items()
    }
    if name in ("two states in one output", "one state in two outputs", "float16"):
        path = tmp_path / "step.onnx"
        jaxrnn.export_onnx(model, model.params, path, step=True)
        exported = jaxrnn.load(path)
        _, last = exported.scan(exported.params, start, {"x": np.stack(frames)})
        for each, value in last.items():
            np.testing.assert_allclose(value, theirs[each], atol=1e-6)


@pytest.mark.parametrize("names", [("past", "past_out"), ("puffer", "puffer_neu"), ("in_3", "res_8")])
def test_other_state_in_another_dress_is_asked_about(names):
    """Buffers, averages and counters that names or the flow know; the flow alone knows no order of other arithmetic."""
    before, after = names
    buffer = [
        node("Concat", [before, "x"], ["window"], axis=1),
        node("ReduceMean", ["window"], ["y"], axes=[1]),
        node("Slice", ["window", "one", "far", "axis1"], ["new"]),
        node("Cast", ["new"], [after], to=TensorProto.FLOAT16),
    ]
    average = [
        node("Mul", [before, "half"], ["kept"]),
        node("Mul", ["x", "half"], ["added"]),
        node("Add", ["kept", "added"], ["new"]),
        node("MatMul", ["new", "P"], ["y"]),
        node("Squeeze", ["new", "zero"], [after]),
    ]
    counter = [
        node("Add", [before, "one"], ["new"]),
        node("Cast", [before], ["place"], to=TensorProto.FLOAT),
        node("Add", ["x", "place"], ["y"]),
        node("Squeeze", ["new", "zero"], [after]),
    ]
    for nodes, x, y, old, new in (
        (buffer, [1, 1, N], [1, 1, N], [1, 2, N], (TensorProto.FLOAT16, [1, 2, N])),
        (average, ROW, [1, 3], ROW, [N]),
        (counter, ROW, ROW, (TensorProto.INT64, [1]), (TensorProto.INT64, [])),
    ):
        graph = nodes, {"x": x, before: old}, {"y": y, after: new}, CONSTANTS
        check_asked("leave in another shape or type", model_of(*graph))
        assert example_of(model_of(*graph)) == {before: after}
        assert pairs(model_of(*graph, load={"state": {before: after}})) == {before: after}


def test_the_question_proposes_doubtful_pairs_too():
    """The declaration is complete, so that a state that is asked about for another reason must be in the example."""
    nodes, inputs, outputs, constants = of_gru("Squeeze", [N])
    nodes = [*nodes, node("MatMul", ["end", "V"], ["moved"]), node("Add", ["moved", "in_3"], ["res_8"])]
    graph = nodes, {**inputs, "in_3": ONE}, {**outputs, "res_8": ONE}, constants
    assert example_of(model_of(*graph)) == {"h": "out", "in_3": "res_8"}


def test_a_growing_cache_that_turns_does_not_fix_its_length():
    nodes = [node("Concat", ["past", "x"], ["grown"], axis=1), node("ReduceMean", ["grown"], ["y"], axes=[1])]
    nodes.append(node("Transpose", ["grown"], ["past_out"], perm=[1, 0, 2]))
    model = model_of(nodes, {"x": ONE, "past": [1, "P", N]}, {"y": ONE, "past_out": ["S", 1, N]})
    assert model.dimensions == {"P": "P"}


def test_dresses_that_hold_more_than_the_state_stay_outputs():
    for name, wanted in (("squeezed", ["y"]), ("two states in one output", ["y", "out"]), ("the output itself", ["Y"])):
        graph, proposed, _ = DRESSES[name]
        model = model_of(*graph, load={"state": proposed})
        assert [spec.name for spec in model.spec.outputs] == wanted


def test_what_is_not_the_state_in_another_dress():
    """Parts of the final value, values in no order of axes and functions of the final value cannot be declared."""
    nodes, inputs, outputs, constants = of_gru("Neg", ONE)
    for made, shape in (
        (node("Slice", ["end", "zero", "one", "two"], ["out"]), [1, 1, 1]),
        (node("Gather", ["end", "mixed"], ["out"], axis=-1), [1, 1, 1, N]),
        (node("MatMul", ["end", "P"], ["out"]), [1, 1, 3]),
    ):
        more = constants | {"mixed": np.array([[1, 0, 3, 2]])}
        graph = [*nodes[:2], made], inputs, {**outputs, "out": shape}, more
        check_refused(
            jaxrnn.InputError, "differ in shape.*where the elements", model_of, *graph, load={"state": {"h": "out"}}
        )
        check_asked("h of GRU 'gru' starts from the input 'h'.*after a single frame.*state={}", model_of(*graph))
        assert model_of(*graph, load={"state": {}}).state == ()
    nodes, inputs, outputs, constants = of_gru("Squeeze", [N])
    masked = [node("Mul", ["h", "alive"], ["start"]), gru("gru", "x", "start", "Y", "end"), *nodes[1:]]
    graph = masked, {**inputs, "alive": ONE}, outputs, constants
    assert example_of(model_of(*graph)) == {"h": "out"}
    check_refused(jaxrnn.InputError, "one output", model_of, *graph, load={"state": {"h": "out", "alive": "out"}})


def test_a_first_state_over_an_open_number_of_frames_is_data():
    """Unless names pair, a final value in another shape may be the result of a whole recording."""
    nodes, inputs, outputs, constants = of_gru("Squeeze", [N])
    inputs, outputs = inputs | {"x": ["T", 1, N]}, outputs | {"y": ["T", 1, 1, 3]}
    assert internal(model_of(nodes, inputs, outputs, constants)) == {"gru.h": (1, 1, N)}
    renamed = [*nodes[:2], node("Squeeze", ["end", "ones"], ["h_out"])]
    outputs = {"y": outputs["y"], "h_out": [N]}
    check_asked("'h' -> 'h_out'", model_of(renamed, inputs, outputs, constants))


def test_a_reset_by_a_branch_tells_how_to_declare():
    """A recurrence from zeros in one branch looks like one that each step resets."""
    again = graph_of([gru("again", "x", "", "", "a")], {}, {"a": ONE}, name="then")
    on = graph_of([gru("on", "x", "h", "", "b")], {}, {"b": ONE}, name="else")
    nodes = [
        node("If", ["reset"], ["h_out"], then_branch=again, else_branch=on),
        node("MatMul", ["h_out", "V"], ["y"]),
    ]
    ends = {"x": ONE, "h": ONE, "reset": (BOOL, [])}, {"y": ONE, "h_out": ONE}, C
    model = model_of(nodes, *ends)
    check_refused(jaxrnn.StateError, r"node\(s\) again.*state={'h': 'h_out'}", model.init)
    assert pairs(model_of(nodes, *ends, load={"state": {"h": "h_out"}})) == {"h": "h_out"}


def test_a_first_value_in_the_file_and_another_dress():
    """An input that has a value in the file and that a caller may override is asked about by its name."""
    nodes = [gru("gru", "x", "h", "Y", "end"), Y, node("Squeeze", ["end", "ones"], ["h_out"])]
    first = np.full([1, 1, N], 0.5, np.float32)
    graph = {"x": [1, 1, N], "h": [1, 1, N]}, {"y": [1, 1, 1, 3], "h_out": [N]}, CONSTANTS | {"h": first}
    asking = model_of(nodes, *graph)
    check_asked("leave in another shape or type: 'h' -> 'h_out'", asking)
    model = jaxrnn.load(asking.proto, state=example_of(asking))
    np.testing.assert_array_equal(model.init()["h"], first)
