"""`model.state` is complete or an error, whatever a recurrence begins from and whatever a step replaces."""

from __future__ import annotations

import itertools
import pickle
import re

import jax
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from refusals import check_refused
from small_models import graph_of, make_model
from state_graphs import (
    BOOL,
    F32,
    I64,
    ONE,
    ROW,
    C,
    N,
    check_asked,
    check_work,
    conformer,
    example_of,
    gru,
    internal,
    lstm,
    model_of,
    node,
    pairs,
)
from verifier import session

import jaxrnn
from jaxrnn.answers import Unknown, any_of
from jaxrnn.cli import main
from jaxrnn.model.inspection import inspect_model
from jaxrnn.onnx.operators import operator_table
from jaxrnn.onnx.state.names import affinity

#: By name, the nodes that make the initial value ``h0`` of shape [1, 1, N], and the constants that they take.
STARTS = {
    "missing": ([], {}),
    "initializer": ([], {"h0": np.zeros((1, 1, N), np.float32)}),
    "trained": ([], {"h0": np.full((1, 1, N), 0.3, np.float32)}),
    "constant of shape": ([node("ConstantOfShape", ["shape"], ["h0"])], {}),
    "constant node": (
        [node("Constant", [], ["h0"], value=onnx.numpy_helper.from_array(np.zeros((1, 1, N), np.float32)))],
        {},
    ),
    "scalar through Expand": ([node("Expand", ["nought", "shape"], ["h0"])], {"nought": np.float32(0)}),
    "row through Unsqueeze and Tile": (
        [node("Unsqueeze", ["row", "zero"], ["rows"]), node("Tile", ["rows", "thrice"], ["h0"])],
        {"row": np.zeros((1, N), np.float32), "thrice": np.ones(3, np.int64)},
    ),
    "batch of the input": (
        [
            node("Shape", ["x"], ["sizes"]),
            node("Gather", ["sizes", "one"], ["batch"]),
            node("Concat", ["one", "batch", "features"], ["wanted"], axis=0),
            node("Expand", ["nought", "wanted"], ["h0"]),
        ],
        {"nought": np.float32(0), "features": np.array([N])},
    ),
}


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
@pytest.mark.parametrize("frames", [1, "T"])
@pytest.mark.parametrize("start", STARTS)
def test_every_beginning_is_state(start, frames, kind):
    """A recurrence begins anew at each call whatever its initial value is made of; its end has no name here."""
    nodes, constants = STARTS[start]
    initial = "" if start == "missing" else "h0"
    cell = gru("cell", "x", initial, "Y") if kind == "GRU" else lstm("cell", "x", initial, initial, ["Y"])
    constants = C | constants | {"shape": np.array([1, 1, N])}
    model = model_of([*nodes, cell], {"x": [frames, 1, N]}, {"Y": [frames, 1, 1, N]}, constants)
    carries = {"GRU": ("h",), "LSTM": ("h", "c")}[kind]
    assert internal(model) == {f"cell.{carry}": (1, 1, N) for carry in carries}
    assert ("h0" in model.params) == (start == "trained")
    assert not {"nought", "row"} & set(model.params)
    check_refused(jaxrnn.StateError, "forgets its state", model.init)


def test_zeros_that_something_else_reads_stay_parameters():
    """A bias that is still zero, and zeros that a loop only hands on, are trained."""
    nodes = [gru("cell", "x", "h0", "Y"), node("Squeeze", ["Y", "one"], ["y"]), node("Add", ["y", "h0"], ["z"])]
    constants = C | {"h0": np.zeros((1, 1, N), np.float32)}
    assert "h0" in model_of(nodes, {"x": ["T", 1, N]}, {"z": None}, constants).params


def replaced_model(names):
    """A step that replaces what it keeps: the last input, and a mixture of the input with what it kept; no gate."""
    (x, kept, last), (y, new, now) = names
    nodes = [
        node("Concat", [kept, last], ["joined"], axis=1),
        node("MatMul", ["joined", "B"], ["hidden"]),
        node("Relu", ["hidden"], ["active"]),
        node("MatMul", ["active", "U"], ["mixed"]),
        node("MatMul", [x, "A"], ["seen"]),
        node("Add", ["mixed", "seen"], ["sum"]),
        node("Softmax", ["sum"], [new]),
        node("Mul", [x, "double"], [now]),
        node("MatMul", [new, "V"], [y]),
    ]
    constants = C | {"B": np.random.default_rng(1).normal(size=(2 * N, N)).astype(np.float32)}
    return nodes, {x: ROW, kept: ROW, last: ROW}, {y: ROW, new: ROW, now: ROW}, constants


def test_what_a_step_replaces_is_state_where_names_pair_it():
    for old, new in (("{}", "new_{}"), ("{}_in", "{}_out"), ("prev_{}", "{}"), ("{}", "{}_next")):
        pairing = {old.format(word): new.format(word) for word in ("weights", "context")}
        names = ("frame", *pairing), ("result", *pairing.values())
        assert pairs(model_of(*replaced_model(names))) == pairing


def test_without_data_names_pair_nothing():
    """If every input were state, nothing would come in."""
    names = ("alignment", "weights", "context"), ("alignment_out", "weights_out", "context_out")
    check_asked("may be incomplete", model_of(*replaced_model(names)))
    assert pairs(model_of(*replaced_model(names), load={"state": {}})) == {}


def test_data_is_no_state_by_name():
    """A frame that goes in and a frame that comes out are called alike, too."""
    names = ("input_frame", "weights", "context"), ("output_frame", "weights_out", "context_out")
    assert set(pairs(model_of(*replaced_model(names)))) == {"weights", "context"}


def test_a_cell_alone():
    """One output, which is the new state: names that say so make an error, as flow alone decides nothing."""
    cell = [
        node("MatMul", ["x", "A"], ["a"]),
        node("MatMul", ["{h}", "V"], ["b"]),
        node("Add", ["a", "b"], ["c"]),
        node("Tanh", ["c"], ["{y}"]),
    ]
    for given, updated in (("h", "y"), ("state", "embedding"), ("0", "1"), ("prev_alignment", "scores")):
        nodes = []
        for each in cell:
            copy = onnx.NodeProto()
            copy.CopyFrom(each)
            copy.input[:] = [name.format(h=given, y=updated) for name in each.input]
            copy.output[:] = [name.format(h=given, y=updated) for name in each.output]
            nodes.append(copy)
        check_asked(f"'{given}' -> '{updated}'", model_of(nodes, {"x": ROW, given: ROW}, {updated: ROW}, C))


def test_a_cache_that_grows(tmp_path):
    """Its length is no batch; steps begin with a cache of any length."""
    nodes = [
        node("Concat", ["past_key", "frame"], ["present_key"], axis=1),
        node("ReduceMean", ["present_key"], ["y"], axes=[1], keepdims=0),
    ]
    inputs = {"frame": [1, 1, N], "past_key": [1, "P", N]}
    model = model_of(nodes, inputs, {"y": ROW, "present_key": [1, "Q", N]}, C)
    assert pairs(model) == {"past_key": "present_key"}
    assert model.growing_dimensions == {"P"}
    assert model.spec.batch_symbol is None
    onnx.save(model.proto, tmp_path / "cache.onnx")
    shown = CliRunner().invoke(main, ["inspect", str(tmp_path / "cache.onnx")]).stdout
    assert "--dim P=SIZE sizes the state" in shown
    state = model.init(dims={"P": 0})
    frames = np.arange(3 * N, dtype=np.float32).reshape(3, 1, 1, N)
    for count, frame in enumerate(frames, 1):
        outputs, state = model.step(model.params, state, {"frame": frame})
        np.testing.assert_allclose(outputs["y"], frames[:count].mean(0)[0])


def test_flags_and_counters_by_name():
    """A flag that every step sets, and single letters that mean another thing elsewhere."""
    nodes = [
        node("Identity", ["true"], ["started_out"]),
        node("Where", ["started", "n", "x"], ["first"]),
        node("Max", ["first", "x"], ["n_new"]),
        node("MatMul", ["n_new", "V"], ["y"]),
    ]
    constants = C | {"true": np.array(True)}
    inputs = {"x": ROW, "started": (BOOL, []), "n": ROW}
    model = model_of(nodes, inputs, {"y": ROW, "started_out": (BOOL, []), "n_new": ROW}, constants)
    assert pairs(model) == {"started": "started_out", "n": "n_new"}


def masked_model(name, **load):
    nodes = [
        gru("gru", "frame", "h", "Y", "h_out"),
        node("Squeeze", ["h_out", "zero"], ["row"]),
        node("Sigmoid", ["row"], ["mask"]),
        node("Mul", [name, "mask"], [f"{name}_out"]),
    ]
    inputs, outputs = {name: ROW, "frame": ONE, "h": ONE}, {f"{name}_out": ROW, "mask": ROW, "h_out": ONE}
    return model_of(nodes, inputs, outputs, C, load=load)


def test_masks_of_data_are_asked_about():
    """A spectrum times a mask could be a gain that every step updates: its name pairs, but says data."""
    check_asked(r"'spec' -> 'spec_out'; found: 'h' -> 'h_out'", masked_model("spec"))
    assert pairs(masked_model("spec", state={"h": "h_out"})) == {"h": "h_out"}
    assert pairs(masked_model("gain")) == {"h": "h_out", "gain": "gain_out"}


def test_neither_flow_nor_names():
    """What has the shape of state and is neither found nor named is an error; every spelling of the hint works."""
    nodes, inputs, outputs, constants = replaced_model((("in0", "in1", "in2"), ("out0", "out1", "out2")))
    nodes = [*nodes, gru("gru", "in3", "in4", "out3", "out4")]
    inputs, outputs = inputs | {"in3": ONE, "in4": ONE}, outputs | {"out3": [1, 1, 1, N], "out4": ONE}

    def load(state):
        return model_of(nodes, inputs, outputs, constants, load={"state": state})

    with pytest.raises(jaxrnn.StateError) as caught:
        _ = load(None).state
    message = str(caught.value)
    for given, updated in itertools.product(("in1", "in2"), ("out1", "out2")):
        assert f"'{given}' -> '{updated}'" in message
    assert "'in4' -> 'out4'" in message
    assert "state={'" in message
    said = {"in1": "out1", "in2": "out2", "in4": "out4"}
    assert pairs(load(said)) == said
    assert pairs(load({})) == {}


def generic(path, prefix=("in", "out")):
    """A file whose inputs and outputs have numbers for names."""
    proto = onnx.load(path)
    renamed = {}
    for kind, infos in zip(prefix, (proto.graph.input, proto.graph.output), strict=True):
        renamed |= {info.name: f"{kind}{index}" for index, info in enumerate(infos)}
    for info in (*proto.graph.input, *proto.graph.output):
        info.name = renamed[info.name]
    for each in proto.graph.node:
        each.input[:] = [renamed.get(name, name) for name in each.input]
        each.output[:] = [renamed.get(name, name) for name in each.output]
    return proto, renamed


@pytest.mark.parametrize("exporter", ["script", "dynamo"])
def test_real_steps_without_names(models, exporter):
    """Linear attention is found by its flow. The decoder's replaced values are not, and that is an error."""
    proto, names = generic(models / "exports" / f"step_wkv_{exporter}.onnx")
    assert pairs(jaxrnn.load(proto)) == {names["state"]: names["new_state"]}
    proto, names = generic(models / "exports" / f"step_attend_{exporter}.onnx")
    check_asked(f"may be incomplete.*'{names['context']}' -> '{names['out_context']}'", jaxrnn.load(proto))


def test_sizes_of_one_batch_under_many_names():
    """What nodes need to be equal is one dimension, which `init`, steps and scans take as the batch."""
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        gru("a", "t", "g", "Y", "g_out"),
        node("Squeeze", ["Y", "one"], ["y"]),
        gru("b", "y", "h", "Z", "h_out"),
        node("Add", ["s", "k"], ["s_out"]),
    ]
    inputs = {"x": ["b1", "T", N], "g": [1, "b2", N], "h": [1, "b3", N], "s": ["other", N], "k": ["other", N]}
    outputs = {"Z": None, "g_out": [1, "b7", N], "h_out": [1, "b8", N], "s_out": ["b9", N]}
    model = model_of(nodes, inputs, outputs, C)
    assert model.dimensions == {"b1": "b1", "T": "T", "b2": "b1", "b3": "b1", "other": "other"}
    model = model_of(nodes[:-1], {k: inputs[k] for k in "xgh"}, {k: outputs[k] for k in ("Z", "g_out", "h_out")}, C)
    assert {variable.name: variable.shape for variable in model.state} == {"g": (1, "b1", N), "h": (1, "b1", N)}
    assert model.spec.batch_symbol == "b1"
    state = model.init(3)
    outputs, state = jax.jit(model.step)(model.params, state, {"x": np.ones((3, 2, N), np.float32)})
    assert state["h"].shape == (1, 3, N)


def test_sizes_that_are_no_batch_are_asked_for():
    """The length of a memory is no number of streams."""
    nodes = [
        node("Einsum", ["memory", "q"], ["scores"], equation="sn,n->s"),
        node("Add", ["scores", "weights"], ["sum"]),
        node("Softmax", ["sum"], ["weights_out"], axis=-1),
        node("Einsum", ["weights_out", "memory"], ["context"], equation="s,sn->n"),
        node("MatMul", ["h", "V"], ["moved"]),
        node("Add", ["moved", "frame"], ["h_sum"]),
        node("Tanh", ["h_sum"], ["h_out"]),
    ]
    constants = C | {"q": np.ones(N, np.float32)}
    inputs = {"frame": ROW, "memory": ["S", N], "weights": ["S"], "h": ROW}
    model = model_of(nodes, inputs, {"context": None, "weights_out": ["S"], "h_out": ROW}, constants)
    assert pairs(model) == {"weights": "weights_out", "h": "h_out"}
    with pytest.raises(jaxrnn.StateError, match=r"init\(dims=\{'S': SIZE\}\)"):
        model.init()
    assert model.init(dims={"S": 5})["weights"].shape == (5,)


def branches_of_two_sizes(**load):
    """A GRU that starts from zeros, in a branch that returns fewer frames than the other branch."""
    zeros = [gru("inner", "x", "", "a")]
    more = [node("Concat", ["x", "x"], ["d"], axis=0), gru("other", "d", "", "b")]
    then, other = (graph_of(nodes, {}, {name: None}, name=name) for nodes, name in ((zeros, "a"), (more, "b")))
    nodes = [
        node("If", ["flag"], ["y"], name="choice", then_branch=then, else_branch=other),
        gru("outer", "x", "h", "", "h_out"),
    ]
    return model_of(nodes, {"x": ONE, "h": ONE, "flag": (BOOL, [])}, {"y": None, "h_out": ONE}, C, load=load)


def test_recurrences_that_cannot_be_followed_are_asked_about():
    """Beside state that is found, too. With a known condition, the branch is followed."""
    check_asked(r"node 'other' cannot be found: node 'choice' fails.*equal types.*static=", branches_of_two_sizes())
    assert example_of(branches_of_two_sizes()) == {"h": "h_out"}
    declared = branches_of_two_sizes(state={"h": "h_out"})
    assert declared.state[0].output == "h_out"
    assert "node 'inner', which cannot be followed" in declared.frame_recurrences
    known = branches_of_two_sizes(static={"flag": np.array(True)})
    assert [(each.name, each.kind) for each in known.state] == [("h", "external"), ("inner.h", "internal")]


def test_lost_recurrences_that_start_from_state_are_carried():
    """The names pair what a layer starts from, so that its state is known although its input has no shape."""
    nodes = [
        node("NonZero", ["x"], ["places"]),
        node("Cast", ["places"], ["found"], to=F32),
        node("Unsqueeze", ["found", "one"], ["frames"]),
        lstm("cell", "frames", "h", "{c}", ["", "h_out", "c_out"]),
    ]
    constants = C | {"LW": np.ones((1, 4 * N, 3), np.float32)}
    for cell in ("c", ""):
        nodes[-1].input[6] = cell
        inputs = {"x": [1, 1, N], "h": ONE} | ({"c": ONE} if cell else {})
        model = model_of(nodes, inputs, {"h_out": ONE, "c_out": ONE}, constants)
        if cell:
            assert pairs(model) == {"h": "h_out", "c": "c_out"}
        else:
            check_asked("'cell' cannot be found.*'places' fails.*depends on data", model)


def test_a_body_that_reads_what_cannot_be_followed():
    """The reason is that of the value, and not the error of the body."""
    proto = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 17]> m (float[T, 3] x) => (float[3] z, float[T, 3] zz)
        <float[3] h = {0, 0, 0}> {
            u = Unique (x)
            d = ReduceSum <keepdims = 0> (u)
            z, zz = Scan <num_scan_inputs: int = 1, body: graph = b (float[3] a, float[3] b) => (float[3] n, float[3] o)
                { n = Add (a, d)  o = Add (b, n) }> (h, x)
        }""")
    check_asked(r"'z' cannot be found: node 'u' fails: .*depends on data\. ", jaxrnn.load(proto))


def test_a_size_that_may_grow_is_no_batch():
    """The next value of a cache comes from a node that cannot be followed; one name for both sizes says enough."""
    nodes = [
        node("NonZero", ["x"], ["places"]),
        node("Cast", ["places"], ["found"], to=F32),
        node("Unsqueeze", ["found", "zero"], ["frames"]),
        node("Concat", ["cache", "frames"], ["cache_out"], axis=1),
        node("Tanh", ["x"], ["y"]),
    ]
    for size, batch in (("Q", None), ("P", "P")):
        outputs = {"y": [N], "cache_out": [1, size, "k"]}
        model = model_of(nodes, {"x": [N], "cache": [1, "P", N]}, outputs, C)
        assert pairs(model) == {"cache": "cache_out"}
        assert model.spec.batch_symbol == batch


def test_growth_that_no_size_shows_is_asked_about():
    """A recurrence over a size that the file accepts alone, and a loop whose trips depend on data."""
    nodes = [
        node("Reshape", ["x", "flat"], ["s"]),
        node("MatMul", ["s", "wide"], ["level"]),
        gru("bands", "x", "", "", "end"),
        node("Add", ["end", "level"], ["y"]),
        gru("time", "z", "h", "", "h_out"),
    ]
    constants = C | {"flat": np.array([1, 1, -1]), "wide": np.ones((16 * N, N), np.float32)}
    inputs, outputs = {"x": ["T", 1, N], "z": ONE, "h": ONE}, {"y": ONE, "h_out": ONE}
    words = r"not known whether h of GRU 'bands' runs along time: with 'T' of 32, .*dims="
    check_asked(words, model_of(nodes, inputs, outputs, constants))
    fixed = model_of(nodes, inputs | {"x": [16, 1, N]}, outputs, constants)
    assert fixed.frame_recurrences == ("h of GRU 'bands'",)
    body = graph_of(
        [node("Identity", ["go"], ["go2"]), node("Add", ["s", "level"], ["t"]), node("Tanh", ["t"], ["s2"])],
        {"i": (I64, []), "go": (BOOL, []), "s": ROW},
        {"go2": (BOOL, []), "s2": ROW},
    )
    nodes = [
        node("ReduceMean", ["x"], ["level"], axes=[0], keepdims=1),
        node("Loop", ["count", "", "nought"], ["y"], name="loop", body=body),
        node("Add", ["h", "level"], ["h_out"]),
    ]
    ends = {"x": ["T", N], "count": (I64, []), "h": ROW}, {"y": ROW, "h_out": ROW}
    constants = {"nought": np.zeros((1, N), np.float32)}
    words = "s of Loop 'loop' runs along time: the number of steps depends on data"
    for frames in ("T", 3):
        ends[0]["x"] = [frames, N]
        check_asked(words, model_of(nodes, *ends, constants))
    assert model_of(nodes, *ends, constants, load={"state": {"h": "h_out"}}).frame_recurrences == ("s of Loop 'loop'",)


def test_an_unknown_answer_is_neither_yes_nor_no():
    unknown = Unknown("nobody looked")
    assert any_of([False, unknown, True]) is True
    assert any_of([False, unknown, Unknown("later"), False]) == unknown
    assert any_of([False]) is False
    check_refused(TypeError, "neither as yes nor as no: nobody looked", bool, unknown)


def cell(tag, h, new, kept):
    """A cell in single operators: a GRU if a part of the state is kept, else an RNN."""
    nodes = [
        *(node("MatMul", [given, by], [f"{given}{by}{tag}"]) for given, by in (("x", "V"), (h, "U"))),
        node("Add", [f"xV{tag}", f"{h}U{tag}"], [f"sum{tag}"]),
    ]
    if not kept:
        return [*nodes, node("Tanh", [f"sum{tag}"], [new])]
    return [
        *nodes,
        node("Sigmoid", [f"sum{tag}"], [f"gate{tag}"]),
        node("Sub", [h, f"xV{tag}"], [f"gap{tag}"]),
        node("Mul", [f"gate{tag}", f"gap{tag}"], [f"part{tag}"]),
        node("Add", [f"xV{tag}", f"part{tag}"], [new]),
    ]


#: Functions from two inputs and two outputs in the flow's order to nodes; the shapes of states and of the data.
EXCHANGED = {
    "an LSTM": (lambda a, b, p, q: [lstm("cell", "x", a, b, ["Y", p, q])], ONE, ONE),
    "two layers": (
        lambda a, b, p, q: [gru("a", "x", a, "Y", p), node("Squeeze", ["Y", "one"], ["y"]), gru("b", "y", b, "", q)],
        ONE,
        ONE,
    ),
    "two rings": (
        lambda a, b, p, q: [
            node("ScatterElements", [a, "at", "x"], [p], axis=0),
            node("Neg", ["x"], ["z"]),
            node("ScatterElements", [b, "at", "z"], [q], axis=0),
        ],
        [N],
        [1],
    ),
    "two GRUs in single operators": (lambda a, b, p, q: [*cell(1, a, p, True), *cell(2, b, q, True)], ROW, ROW),
    "two RNNs in single operators": (lambda a, b, p, q: [*cell(1, a, p, False), *cell(2, b, q, False)], ROW, ROW),
    "a delay line and an average": (
        lambda a, b, p, q: [
            node("Slice", [a, "one", "far", "one"], ["rest"]),
            node("Concat", ["rest", "x"], [p], axis=1),
            node("Mul", [b, "half"], ["kept"]),
            node("Add", ["kept", "x"], [q]),
        ],
        ROW,
        [1, 1],
    ),
    "two caches that fade": (
        lambda a, b, p, q: [
            *(node("Mul", [given, "half"], [f"{given}_half"]) for given in (a, b)),
            node("Concat", [f"{a}_half", "x"], [p], axis=1),
            node("Concat", [f"{b}_half", "x"], [q], axis=1),
        ],
        [1, "P"],
        [1, 1],
    ),
    "a double buffer": (
        lambda a, b, p, q: [node("Identity", ["x"], [p]), node("Identity", [a], [q]), node("Sub", [a, b], ["d"])],
        ROW,
        ROW,
    ),
}
#: Names of a state variable in four languages and another script, before and after a step.
LANGUAGES = {
    "English": ("ring_{}", "ring_{}_out"),
    "German": ("zustand_{}", "zustand_{}_neu"),
    "French": ("etat{}", "etat{}_suivant"),
    "Spanish": ("viejo_estado_{}", "nuevo_estado_{}"),
    "Russian": ("память_{}", "новая_память_{}"),
}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", EXCHANGED)
def test_names_against_the_flow_are_asked_about(name, language):
    """In any language. The question proposes what the flow proves, which loads. The names' own order is not refused."""
    function, shape, given = EXCHANGED[name]
    before, after = ([form.format(side) for side in "ab"] for form in LANGUAGES[language])

    def model(outputs, state=None):
        nodes = [*function(*before, *outputs), node("Sum", ["x", *outputs], ["end"])]
        at = {"at": (I64, [1])} if name == "two rings" else {}
        ends = {"d": shape} if name == "a double buffer" else {}
        inputs = {"x": given, **at, **dict.fromkeys(before, shape)}
        grown = [1, "Q"] if shape[-1] == "P" else shape
        ends |= {"end": None, **dict.fromkeys(after, grown)}
        return model_of(nodes, inputs, ends, C, load={"state": state})

    check_asked(r"state=\{'", model(after[::-1]))
    exchanged = dict(zip(before, after[::-1], strict=True))
    if language == "English":
        check_asked(f"flow of data and names disagree.*'{before[0]}' -> '{after[0]}'", model(after[::-1]))
        assert pairs(model(after)) == dict(zip(before, after, strict=True))
        assert example_of(model(after[::-1])) == exchanged
    assert pairs(model(after[::-1], exchanged)) == exchanged


def test_a_name_that_another_output_continues_is_asked_about():
    """An output with the name of the state that does not follow from it; the sum with the state is no such output."""
    nodes = [gru("gru", "x", "zustand", "Y", "ende"), node("MatMul", ["frame", "V"], ["neu"])]
    inputs, outputs = dict.fromkeys(("x", "frame", "zustand"), ONE), {"Y": None, "ende": ONE}

    def model(last):
        return model_of([*nodes, node(*last)], inputs, {**outputs, last[2][0]: ONE}, C)

    check_asked("disagree.*'zustand' -> 'zustand_neu'", model(("Relu", ["neu"], ["zustand_neu"])))
    assert pairs(model(("Add", ["neu", "zustand"], ["mit_zustand"]))) == {"zustand": "ende"}
    assert pairs(model(("Relu", ["neu"], ["zustand_mask"]))) == {"zustand": "ende"}


@pytest.mark.parametrize("kind", ["", "decoder.", "encoder."])
def test_names_of_transformers(kind):
    """Keys and values of two layers under the names that Optimum writes, of fixed and of open lengths."""
    names = [f"{layer}.{kind}{word}" for layer in (0, 1) for word in ("key", "value")]
    pairing = {f"past_key_values.{name}": f"present.{name}" for name in names}
    for one, other in itertools.product(pairing.items(), repeat=2):
        assert (affinity(one[0], other[1]) == 2) == (one == other)
    for past, now in (("past", "past + 1"), (3, 3)):
        nodes = [node("Mul", [given, "double"], [updated]) for given, updated in pairing.items()]
        if past == "past":
            nodes = [node("Concat", [given, "frame"], [updated], axis=1) for given, updated in pairing.items()]
        total = [node("ReduceMean", [updated], [f"{updated}.m"], axes=[1]) for updated in pairing.values()]
        nodes += [*total, node("Sum", [f"{updated}.m" for updated in pairing.values()] + ["frame"], ["y"])]
        inputs = {"frame": [1, 1, N]} | {name: [1, past, N] for name in pairing}
        outputs = {"y": [1, 1, N]} | {name: [1, now, N] for name in pairing.values()}
        assert pairs(model_of(nodes, inputs, outputs, C)) == pairing


def test_names_that_a_file_continues_are_asked_about():
    """Beside a pair by convention as well, where other names are names of data."""
    nodes = [
        node("Add", ["x", "zustand"], ["zustand_neu"]),
        node("Add", ["speaker", "zustand_neu"], ["conditioned"]),
        gru("gru", "conditioned", "h", "", "h_out"),
    ]
    inputs = dict.fromkeys(("x", "zustand", "speaker", "h"), ONE)
    outputs = dict.fromkeys(("zustand_neu", "conditioned", "h_out"), ONE)
    check_asked("'zustand' -> 'zustand_neu'; found: 'h' -> 'h_out'", model_of(nodes, inputs, outputs, C))
    outputs = {"conditioned": ONE, "h_out": ONE}
    assert pairs(model_of(nodes, inputs, outputs, C)) == {"h": "h_out"}


def test_a_part_of_the_pairs_says_what_became_data(tmp_path):
    """The question proposes all pairs that can be state together."""
    nodes, inputs, outputs, constants = replaced_model((("in0", "in1", "in2"), ("out0", "out1", "out2")))
    whole = example_of(model_of(nodes, inputs, outputs, constants))
    assert len(whole) == 2
    assert model_of(nodes, inputs, outputs, constants, load={"state": whole}).undeclared_pairs == ()
    (kept, updated), (left, candidate) = whole.items()
    model = model_of(nodes, inputs, outputs, constants, load={"state": {kept: updated}})
    assert (left, candidate) in model.undeclared_pairs
    assert inspect_model(model.proto, state={kept: updated}).undeclared_pairs == model.undeclared_pairs
    onnx.save(model.proto, tmp_path / "model.onnx")
    shown = CliRunner().invoke(main, ["inspect", str(tmp_path / "model.onnx"), "--state", f"{kept}={updated}"]).output
    (told,) = re.findall("leaves them out: (.*?). They could be state", " ".join(shown.split()))
    assert f"'{left}' -> '{candidate}'" in told


@pytest.mark.filterwarnings("ignore:.*the file declares the output")
def test_what_the_file_does_not_declare():
    """The type and the shape of an output are those that it has; a state without a rank cannot begin."""
    nodes = [node("Add", ["x", "h"], ["h_out"]), node("Tanh", ["h_out"], ["y"])]
    proto = model_of(nodes, {"x": ROW, "h": ROW}, {"y": ROW, "h_out": ROW}).proto
    for change in (
        lambda value: value.ClearField("type"),
        lambda value: value.type.tensor_type.ClearField("shape"),
        lambda value: setattr(value.type.tensor_type.shape.dim[1], "dim_value", N + 1),
    ):
        changed = onnx.ModelProto()
        changed.CopyFrom(proto)
        change(changed.graph.output[1])
        assert pairs(jaxrnn.load(changed)) == {"h": "h_out"}
    for value in (proto.graph.input[1], proto.graph.output[1]):
        value.type.tensor_type.ClearField("shape")
    for state in (None, {"h": "h_out"}):
        check_asked("'h' is state.*does not declare its shape.*static=", jaxrnn.load(proto, state=state))


GATES = {"W": [1, 3 * N, N], "R": [1, 3 * N, N]}
#: Nodes, the state with its update, its shape and its first value in the file, and the other inputs with a value.
DEFAULTS = {
    "said": (
        [
            node("Mul", ["m", "half"], ["kept"]),
            node("Add", ["kept", "x"], ["m_out"]),
            node("Sub", ["x", "m_out"], ["y"]),
        ],
        {"m": "m_out"},
        ROW,
        2,
        {"half": []},
    ),
    "proved": ([gru("gru", "x", "s", "y", "e")], {"s": "e"}, ONE, 0.5, GATES),
    "zeros": ([gru("gru", "x", "s", "y", "e")], {"s": "e"}, ONE, 0, GATES),
    "data": ([node("Add", ["x", "bias"], ["u"]), node("Tanh", ["u"], ["y"])], {}, ROW, 0, {"bias": ROW, "far": [1]}),
}


def with_defaults(name):
    """The model of `DEFAULTS`, whose initializers are inputs, and its state."""
    nodes, state, shape, first, others = DEFAULTS[name]
    values = C | dict.fromkeys(state, np.full(shape, first, np.float32)) | {"bias": np.ones(ROW, np.float32)}
    kinds = {other: (I64, size) if other == "far" else size for other, size in others.items()}
    inputs = {"x": shape, **dict.fromkeys(state, shape), **kinds}
    outputs = {"y": None, **dict.fromkeys(state.values())} | ({} if state else {"u": ROW})
    graph = graph_of(nodes, inputs, outputs, values)
    return make_model(graph), state, shape


@pytest.mark.parametrize("name", DEFAULTS)
def test_an_input_with_a_default_is_state_that_starts_there(name, tmp_path):
    """As of an engine whose caller feeds the output back, and gives nothing in the first step. Weights stay weights."""
    proto, state, shape = with_defaults(name)
    model, file, rng = jaxrnn.load(proto), session(proto), np.random.default_rng(0)
    assert pairs(model) == state
    assert {each.name for each in model.inputs} == {"x", *state}
    assert not state.keys() & set(model.params)
    if state:
        frames = rng.normal(size=(5, *shape)).astype(np.float32)
        scanned, end = model.scan(model.params, model.init(), {"x": frames})
        runner, carried = jaxrnn.Runner(pickle.loads(pickle.dumps(model))), {}
        for index, frame in enumerate(frames):
            names = [each.name for each in file.get_outputs()]
            expected = dict(zip(names, file.run(None, {"x": frame, **carried}), strict=True))
            carried = {given: expected[new] for given, new in state.items()}
            np.testing.assert_allclose(scanned["y"][index], expected["y"], atol=1e-5)
            np.testing.assert_allclose(runner({"x": frame})["y"], expected["y"], atol=1e-5)
        for given, array in carried.items():
            np.testing.assert_allclose(end[given], array, atol=1e-5)
    for options in ({"state": {}}, {"static": {key: np.ones(shape, np.float32) for key in state}}):
        changed = jaxrnn.load(proto, **options)
        assert [each.name for each in changed.inputs] == ["x"]
        assert not any(each.kind == "external" for each in changed.state)
    jaxrnn.export_onnx(model, model.params, tmp_path / "same.onnx")
    assert onnx.load(tmp_path / "same.onnx") == proto
    proto.ir_version = 3  # no caller may override a value
    assert [each.name for each in jaxrnn.load(proto).inputs] == ["x"]


@pytest.mark.parametrize("frames", [1, "T"])
def test_a_cell_that_does_not_return(frames):
    """An LSTM takes back h, and its cell state leaves through no output; the output is no candidate by its shape."""
    weights = {"W": np.ones((1, 4 * N, N), np.float32), "R": np.ones((1, 4 * N, N), np.float32)}
    weights |= {"P": np.ones((N, 3), np.float32)}
    nodes = [
        node("LSTM", ["x", "W", "R", "", "", "h", "c"], ["Y", "h_out"], name="lstm", hidden_size=N),
        node("MatMul", ["Y", "P"], ["y"]),
    ]
    inputs = {"x": [frames, 1, N], "h": [1, 1, N], "c": [1, 1, N]}
    model = model_of(nodes, inputs, {"y": None, "h_out": [1, 1, N]}, weights)
    check_asked("c of LSTM 'lstm' starts from the input 'c'.*state={'h': 'h_out'}", model)
    declared = jaxrnn.load(model.proto, state={"h": "h_out"})
    assert declared.state[0].output == "h_out"


def lists_model(before, after):
    """Two GRUs whose states are the items of a list."""
    draw = np.random.default_rng(0).standard_normal
    arrays = {name: draw((1, 3 * N, N)).astype(np.float32) for name in ("W0", "R0", "W1", "R1")}
    arrays |= {"first": np.array(0), "second": np.array(1), "axis": np.array([1])}
    nodes = [
        node("SequenceAt", [before, "second"], ["h1"]),
        node("SequenceAt", [before, "first"], ["h0"]),
        node("GRU", ["x", "W0", "R0", "", "", "h0"], ["Y0", "new0"], name="lower", hidden_size=N),
        node("Squeeze", ["Y0", "axis"], ["between"]),
        node("GRU", ["between", "W1", "R1", "", "", "h1"], ["Y1", "new1"], name="upper", hidden_size=N),
        node("Squeeze", ["Y1", "axis"], ["y"]),
        node("SequenceConstruct", ["new0", "new1"], [after]),
    ]
    graph = graph_of(nodes, {"x": ["T", 1, N]}, {"y": ["T", 1, N]}, arrays)
    for values, name in ((graph.input, before), (graph.output, after)):
        values.append(onnx.helper.make_tensor_sequence_value_info(name, onnx.TensorProto.FLOAT, [1, 1, N]))
    return make_model(graph)


@pytest.mark.parametrize("declared", [False, True])
def test_lists_of_states(declared, tmp_path):
    before, after = ("memory", "result") if declared else ("states", "new_states")
    proto = lists_model(before, after)
    model = jaxrnn.load(proto, state={before: after} if declared else None)
    found = {f"{before}[{index}]": f"{after}[{index}]" for index in range(2)}
    assert pairs(model) == found
    draw = np.random.default_rng(1).standard_normal
    x, state = draw((5, 1, N)).astype(np.float32), [draw((1, 1, N)).astype(np.float32) for _ in range(2)]
    y, new = session(proto).run(None, {"x": x, before: state})
    outputs = model({"x": x, **dict(zip(found, state, strict=True))})
    for name, array in zip(["y", *found.values()], [y, *new], strict=True):
        np.testing.assert_allclose(outputs[name], array, atol=1e-6)
    assert pairs(pickle.loads(pickle.dumps(model))) == found
    jaxrnn.export_onnx(model, model.params, tmp_path / "step.onnx", step=True, dims={"T": 1})
    assert pairs(jaxrnn.load(tmp_path / "step.onnx")) == found
    assert [str(each) for each in jaxrnn.load(proto, state={}).inputs][1] == f"{before}: sequence or optional"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("att_cache", "r_att_cache"),
        ("hin", "hout"),
        ("h", "hout"),
        ("cin", "cout"),
        ("r1i", "r1o"),
        ("память", "память_out"),
    ],
)
def test_names_of_one_word_and_of_returned_values(before, after):
    nodes = [node("Sign", [before], [after]), node("Add", ["x", before], ["y"])]
    model = model_of(nodes, {"x": ROW, before: ROW}, {"y": ROW, after: ROW})
    assert pairs(model) == {before: after}


def test_numbers_have_no_equal_sizes():
    """Damaged files concatenate numbers, which have no axis; the node is refused when it is evaluated."""
    rule = operator_table()["", "Concat"].traits.equal_sizes
    assert rule is not None
    assert list(rule({"axis": 0}, [np.float32(1), np.float32(2)], ())) == []


@pytest.mark.parametrize("shape", [[0, 1, N], [1, 0, N]])
def test_sizes_of_nothing(shape):
    """A file may fix a size at 0: no frames, or no streams."""
    state = [1, shape[1], N]
    model = model_of([gru("gru", "x", "h", "Y", "h_out")], {"x": shape, "h": state}, {"Y": None, "h_out": state}, C)
    assert pairs(model) == {"h": "h_out"}
    assert model.state[0].shape == tuple(state)


def test_residuals_behind_a_lost_node_take_work_in_proportion():
    """Each addition of two lost values counts what they are computed from once."""
    nodes = [node("NonZero", ["x"], ["places"]), node("Cast", ["places"], ["a0"], to=F32)]
    for index in range(100):
        nodes += [node("Tanh", [f"a{index}"], [f"f{index}"])]
        nodes += [node("Add", [f"a{index}", f"f{index}"], [f"a{index + 1}"])]
    model = model_of([*nodes, node("Tanh", ["x"], ["y"])], {"x": ROW}, {"a100": None, "y": ROW})
    assert check_work(100_000, lambda: model.state) == ()


@pytest.mark.thorough
def test_a_damaged_file_takes_bounded_work(models):
    """No cell is looked for in its two loops of 33 trips, although the sizes to try are large."""
    model = jaxrnn.load(models / "damaged" / "slow_state.onnx")
    check_work(1_500_000, lambda: model.state)
    assert len(model.frame_recurrences) == 2


@pytest.mark.nightly
def test_large_steps_take_bounded_work():
    """Each of 36 caches may follow from all inputs."""
    model = conformer(12)
    found = check_work(4_000_000, lambda: pairs(model))
    assert found == {name: f"{name}_out" for name in found}
    assert len(found) == 36


def test_two_phases_of_a_merged_decoder():
    """One file with a flag for the cache, as Optimum writes it: two models with one set of parameters."""
    proto = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 17]>
        m (float[B, T, 2] x, float[B, P, 2] past_key, bool[1] use_cache_branch)
            => (float[B, T, 2] logits, float[B, S, 2] present_key)
        <float[2, 2] w = {1, 0.5, -0.5, 1}> {
            k = MatMul (x, w)
            present_key = If (use_cache_branch) <
                then_branch = a () => (float[B, S, 2] joined) { joined = Concat <axis = 1> (past_key, k) },
                else_branch = b () => (float[B, S, 2] alone) { alone = Identity (k) }>
            kt = Transpose <perm = [0, 2, 1]> (present_key)
            scores = MatMul (x, kt)
            p = Softmax <axis = -1> (scores)
            logits = MatMul (p, present_key)
        }""")
    decoder = jaxrnn.load(proto)
    first, later = (decoder.with_static({"use_cache_branch": [flag]}) for flag in (False, True))
    assert pairs(first) == pairs(later) == {"past_key": "present_key"}
    assert first.params is later.params is decoder.params
    assert [each.name for each in later.inputs] == ["x", "past_key"]
    rng, file, state = np.random.default_rng(0), session(proto), first.init(dims={"B": 1, "P": 0})
    past = np.zeros((1, 0, 2), np.float32)
    for model, frames in ((first, 3), (later, 1), (later, 1)):
        x = rng.standard_normal((1, frames, 2)).astype(np.float32)
        outputs, state = jax.jit(model.step)(decoder.params, state, {"x": x})
        flag = np.array([model is later])
        logits, past = file.run(None, {"x": x, "past_key": past, "use_cache_branch": flag})
        np.testing.assert_allclose(outputs["logits"], logits, atol=1e-6)
        np.testing.assert_allclose(state["past_key"], past, atol=1e-6)
    check_refused(jaxrnn.InputError, "'cache'", decoder.with_static, {"cache": [True]})
    assert pairs(pickle.loads(pickle.dumps(later))) == {"past_key": "present_key"}
