"""Loops over time, written by hand and by converters, as scans."""

from __future__ import annotations

import gc

import jax
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from refusals import check_refused
from small_models import graph_of, make_model
from tiers import of_tiers

import jaxrnn
from jaxrnn.onnx.time_loops.body import Positions

F32, I32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
FEATURES = 3
HUGE = np.int64(2**63 - 1)

node, info = helper.make_node, helper.make_tensor_value_info

#: How the frame of a trip is read: nodes of the body that make ``frame`` out of ``x`` at ``t``.
READS = {
    "gather": [node("Gather", ["x", "t"], ["frame"], axis=1)],
    "gather one": [
        node("Unsqueeze", ["t", "zero"], ["t1"]),
        node("Gather", ["x", "t1"], ["frames"], axis=1),
        node("Squeeze", ["frames", "one"], ["frame"]),
    ],
    "slice": [
        node("Unsqueeze", ["t", "zero"], ["t1"]),
        node("Add", ["t1", "one"], ["t2"]),
        node("Slice", ["x", "t1", "t2", "one"], ["frames"]),
        node("Squeeze", ["frames", "one"], ["frame"]),
    ],
    "sequence": [node("SequenceAt", ["frames_of_x", "t"], ["frame"])],
    "window": [
        node("Unsqueeze", ["t", "zero"], ["t1"]),
        node("Add", ["t1", "two"], ["t3"]),
        node("Slice", ["padded", "t1", "t3", "one"], ["frames"]),
        node("ReduceSum", ["frames", "one"], ["frame"], keepdims=0),
    ],
    "branch": [
        node("Mod", ["t", "pair"], ["rest"]),
        node("Equal", ["rest", "none"], ["even"]),
        node(
            "If",
            ["even"],
            ["frame"],
            then_branch=helper.make_graph(
                [node("Gather", ["x", "t"], ["f1"], axis=1)], "then", [], [info("f1", F32, None)]
            ),
            else_branch=helper.make_graph(
                [node("Gather", ["x", "t"], ["f2"], axis=1), node("Neg", ["f2"], ["f3"])],
                "else",
                [],
                [info("f3", F32, None)],
            ),
        ),
    ],
    "squeeze if it can": [
        node("Unsqueeze", ["t", "zero"], ["t1"]),
        node("Gather", ["x", "t1"], ["frames"], axis=1),
        node("Shape", ["x"], ["sizes_of_x"]),
        node("Gather", ["sizes_of_x", "two"], ["features"]),
        node("Equal", ["features", "one"], ["narrow"]),
        node(
            "If",
            ["narrow"],
            ["frame"],
            then_branch=helper.make_graph([node("Squeeze", ["x", "two"], ["s1"])], "then", [], [info("s1", F32, None)]),
            else_branch=helper.make_graph(
                [node("Squeeze", ["frames", "one"], ["s2"])], "else", [], [info("s2", F32, None)]
            ),
        ),
    ],
    "backwards": [
        node("Sub", ["last", "t"], ["place"]),
        node("Gather", ["x", "place"], ["frame"], axis=1),
    ],
}
#: How it is told that another trip follows ``next``: nodes that make ``go_on`` out of ``next`` and ``length``.
CONDITIONS = {
    "none": [node("Identity", ["go"], ["go_on"])],
    "less": [node("Less", ["next", "length"], ["go_on"])],
    "not": [node("GreaterOrEqual", ["next", "length"], ["over"]), node("Not", ["over"], ["go_on"])],
    "two": [
        node("Cast", ["next"], ["next_float"], to=F32),
        node("Cast", ["length"], ["length_float"], to=F32),
        node("Less", ["next_float", "length_float"], ["first"]),
        node("Greater", ["length", "next"], ["second"]),
        node("And", ["first", "second"], ["go_on"]),
    ],
    "up to": [node("Sub", ["length", "single"], ["most"]), node("LessOrEqual", ["next", "most"], ["go_on"])],
}
#: How outputs are collected.
COLLECTS = ("scan output", "sequence", "sequence in front", "concat", "concat in front")


def loop_model(read="gather", condition="none", collect="scan output", *, counter="trip", valid=0):
    """h' = tanh(frame @ V + h @ U), all h: a loop over the second axis of ``x``, less its first ``valid`` frames."""
    rng = np.random.default_rng(0)
    growing = collect != "scan output"
    start = {"sequence": "empty", "concat": "nothing"}.get(collect.split()[0])
    add = {
        "scan output": [node("Identity", ["h_out"], ["h_seen"])],
        "sequence": [node("SequenceInsert", ["so_far", "h_out"], ["all"])],
        "sequence in front": [node("SequenceInsert", ["so_far", "h_out", "none"], ["all"])],
        "concat": [node("Unsqueeze", ["h_out", "one"], ["h1"]), node("Concat", ["so_far", "h1"], ["all"], axis=1)],
        "concat in front": [
            node("Unsqueeze", ["h_out", "one"], ["h1"]),
            node("Concat", ["h1", "so_far"], ["all"], axis=1),
        ],
    }[collect]
    count = [node("Identity", ["i"], ["t"])] if counter == "trip" else []
    body_nodes = [
        *count,
        node("Add", ["t", "single"], ["next"]),
        *READS[read],
        node("MatMul", ["frame", "V"], ["a"]),
        node("MatMul", ["h", "U"], ["b"]),
        node("Add", ["a", "b"], ["c"]),
        node("Tanh", ["c"], ["h_out"]),
        *add,
        *CONDITIONS[condition],
    ]
    own = counter == "own"
    sequence_type = helper.make_sequence_type_proto(helper.make_tensor_type_proto(F32, None))
    so_far = helper.make_value_info("so_far", sequence_type) if "sequence" in collect else info("so_far", F32, None)
    collected = helper.make_value_info("all", sequence_type) if "sequence" in collect else info("all", F32, None)
    body = helper.make_graph(
        body_nodes,
        "body",
        [info("i", I64, []), info("go", BOOL, []), info("h", F32, None)]
        + ([info("t", I64, [])] if own else [])
        + ([so_far] if growing else []),
        [info("go_on", BOOL, []), info("h_out", F32, None)]
        + ([info("next", I64, [])] if own else [])
        + ([collected] if growing else [info("h_seen", F32, None)]),
    )
    results = ["h_last", *(["t_last"] if own else []), "collected"]
    nodes = [
        node("Slice", ["given", "valid", "huge", "one"], ["x"]),
        node("Shape", ["x"], ["sizes"]),
        node("Gather", ["sizes", "single"], ["length"]),
        node("Sub", ["length", "single"], ["last"]),
        node("Less", ["none", "length"], ["begin"]),
        node("Pad", ["x", "pads"], ["padded"]),
        node("SplitToSequence", ["x"], ["frames_of_x"], axis=1, keepdims=0),
        node("SequenceEmpty", [], ["empty"]),
        node(
            "Loop",
            [
                "length" if condition == "none" else "limit",
                "begin",
                "h0",
                *(["none"] if own else []),
                *([start] if start else []),
            ],
            results,
            name="loop",
            body=body,
        ),
        *{
            "scan output": [node("Transpose", ["collected"], ["y"], perm=[1, 0, 2])],
            "sequence": [node("ConcatFromSequence", ["collected"], ["y"], axis=1, new_axis=1)],
            "concat": [node("Identity", ["collected"], ["y"])],
        }[collect.removesuffix(" in front")],
    ]
    if own:
        nodes.append(node("Identity", ["t_last"], ["count"]))
    constants = {
        "V": rng.normal(size=(FEATURES, 4)).astype(np.float32),
        "U": (rng.normal(size=(4, 4)) / 2).astype(np.float32),
        "h0": np.zeros((1, 4), np.float32),
        "nothing": np.zeros((1, 0, 4), np.float32),
        "zero": np.array([0]),
        "one": np.array([1]),
        "two": np.array([2]),
        "valid": np.array([valid]),
        "huge": np.array([HUGE]),
        "pads": np.array([0, 1, 0, 0, 0, 0]),
        "none": np.array(0),
        "single": np.array(1),
        "pair": np.array(2),
        "limit": np.array(HUGE),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [info("given", F32, [1, "T", FEATURES])],
        [info("y", F32, None), info("h_last", F32, None), *([info("count", I64, None)] if own else [])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return make_model(graph, opset=17)


def offline(model, x, read, collect, valid):
    """The same in NumPy."""
    v, u = (np.asarray(model.params[name], np.float64) for name in "VU")
    x = x[:, valid:].astype(np.float64)
    h, outputs = np.zeros((1, 4)), []
    padded = np.concatenate([np.zeros_like(x[:, :1]), x], 1)
    for t in range(x.shape[1]):
        frame = {
            "window": padded[:, t : t + 2].sum(1),
            "backwards": x[:, -1 - t],
            "branch": x[:, t] * (-1) ** t,
        }.get(read, x[:, t])
        h = np.tanh(frame @ v + h @ u)
        outputs.append(h)
    if collect.endswith("in front"):
        outputs.reverse()
    return np.stack(outputs, 1) if outputs else np.zeros((1, 0, 4)), h


def samples(frames):
    return np.random.default_rng(frames).normal(size=(1, frames, FEATURES)).astype(np.float32)


CASES = [
    *((read, "none", "scan output") for read in READS),
    *(("gather", condition, "sequence") for condition in CONDITIONS),
    *(("slice", "less", collect) for collect in COLLECTS),
]


@pytest.mark.parametrize(
    ("read", "condition", "collect", "counter"),
    of_tiers(
        [(*case, counter) for counter in ("trip", "own") for case in CASES],
        [(*CASES[4], "trip"), (*CASES[0], "own")],
        thorough=[*((*case, "trip") for case in CASES[::16]), *((*case, "own") for case in CASES[9::9])],
    ),
)
def test_a_loop_over_time_is_a_scan(read, condition, collect, counter):
    """Under jit, for a symbolic length too, with a gradient, as state and streamed."""
    model = jaxrnn.load(loop_model(read, condition, collect, counter=counter))
    assert set(model.params) == {"V", "U"}
    assert [(variable.kind, variable.name) for variable in model.state] == [("internal", "loop.h")]
    apply = jax.jit(model.apply)
    for frames in (1, 2, 7):
        x = samples(frames)
        y, last = offline(model, x, read, collect, 0)
        found = apply(model.params, {"given": x})
        np.testing.assert_allclose(found["y"], y, atol=1e-5)
        np.testing.assert_allclose(found["h_last"], last, atol=1e-5)
        if counter == "own":
            assert int(found["count"]) == frames
    gradient = jax.jit(jax.grad(lambda params: model.apply(params, {"given": samples(5)})["y"].sum()))(model.params)
    assert all(float(np.abs(value).max()) > 0 for value in gradient.values())
    backwards = read == "backwards" or collect.endswith("in front")
    if backwards:
        check_refused(jaxrnn.StreamError, "reverses time", model.stream, "T")
        return
    streamed = model.stream("T", 2)
    x = samples(7)
    expected = apply(model.params, {"given": x})
    found = jax.jit(streamed.run)(model.params, {"given": x})
    for name in ("y", "h_last"):
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5)


def test_a_length_that_may_be_zero():
    """After a window without pads there may be no frame: whether the loop starts is its condition, asked before it."""
    model = jaxrnn.load(loop_model("gather", "two", "concat", valid=2))
    streamed = model.stream("T", 1)
    for frames in (1, 2, 3, 8):
        x = samples(frames)
        y, last = offline(model, x, "gather", "concat", 2)
        for found in (model(given=x), jax.jit(streamed.run)(model.params, {"given": x})):
            np.testing.assert_allclose(found["y"], y, atol=1e-5)
            np.testing.assert_allclose(found["h_last"], last, atol=1e-5)


@pytest.mark.nightly
@settings(deadline=None)
@given(
    start=st.integers(-3, 5),
    step=st.integers(1, 3),
    end=st.integers(-2, 12),
    most=st.integers(0, 9),
    name=st.sampled_from(["Less", "LessOrEqual", "Greater", "GreaterOrEqual"]),
    swapped=st.booleans(),
    negated=st.booleans(),
)
def test_trip_counts(start, step, end, most, name, swapped, negated):
    """Solved from the condition, the number of trips is what counting says."""
    operands = ["next", "end"][:: -1 if swapped else 1]
    compared = node(name, operands, ["raw" if negated else "go_on"])
    body = graph_of(
        [
            node("Add", ["t", "step"], ["next"]),
            compared,
            *([node("Not", ["raw"], ["go_on"])] if negated else []),
            node("Add", ["a", "a"], ["a_out"]),
            node("Cast", ["t"], ["seen"], to=F32),
        ],
        {"i": (I64, []), "go": (BOOL, []), "t": (I64, []), "a": [1]},
        {"go_on": (BOOL, []), "next": (I64, []), "a_out": [1], "seen": []},
    )
    constants = {"start": start, "step": step, "end": end, "most": most}
    loop = node("Loop", ["most", "", "start", "x"], ["t_last", "a_last", "all"], body=body)
    outputs = {"t_last": (I64, None), "a_last": None, "all": None}
    model = jaxrnn.load(make_model(graph_of([loop], {"x": [1]}, outputs, constants)))
    operations = {"Less": np.less, "LessOrEqual": np.less_equal}
    operations |= {"Greater": np.greater, "GreaterOrEqual": np.greater_equal}
    t, seen = start, []
    while len(seen) < most:
        seen.append(t)
        t += step
        pair = (t, end)[:: -1 if swapped else 1]
        if bool(operations[name](*pair)) == negated:
            break
    closed = jax.make_jaxpr(model.apply)(model.params, {"x": np.ones(1, np.float32)})
    assert "while[" not in str(closed)
    found = model(x=np.ones(1, np.float32))
    assert int(found["t_last"]) == t
    np.testing.assert_array_equal(found["all"], np.array(seen, np.float32))
    np.testing.assert_array_equal(found["a_last"], [2.0 ** len(seen)])


def test_a_loop_is_freed_after_it_was_traced():
    """Nothing that was learnt of a loop while tracing outlives the trace, which holds tracers."""
    model = jaxrnn.load(loop_model(), state={})
    gc.collect()
    before = sum(isinstance(each, Positions) for each in gc.get_objects())
    jax.make_jaxpr(model.apply)(model.params, {"given": np.zeros((1, 5, FEATURES), np.float32)})
    del model
    gc.collect()
    assert sum(isinstance(each, Positions) for each in gc.get_objects()) <= before


#: The zero is compared with the length, fills the first state, and takes the places of masked frames.
LOOP = """
<ir_version: 8, opset_import: ["" : 15], producer_name: "tf2onnx">
converted (float[unk__1,unk__2,3] x) => (float[unk__3,unk__4,4] y)
<float const_fold_opt__9 = {0}, int32 first = {0}, int32 one = {1}, bool true = {1}, int64[1] at_0 = {0},
 int64[1] at_1 = {1}, int64[1] at_2 = {2}, int32[1] hidden = {4}> {
  unmasked = Greater (x, const_fold_opt__9)
  numbers = Cast <to = 1> (unmasked)
  kept = Mul (numbers, x)
  absent = Not (unmasked)
  places = Cast <to = 1> (absent)
  filled = Mul (const_fold_opt__9, places)
  rectified = Add (kept, filled)
  frames = Transpose <perm = [1, 0, 2]> (rectified)
  sizes = Shape (frames)
  sizes_32 = Cast <to = 6> (sizes)
  length_1 = Slice (sizes_32, at_0, at_1, at_0)
  length = Squeeze (length_1, at_0)
  length_float = Cast <to = 1> (length)
  some = Less (const_fold_opt__9, length_float)
  going = And (some, true)
  trips = Cast <to = 7> (length)
  batch_size = Slice (sizes_32, at_1, at_2, at_0)
  state_shape_32 = Concat <axis = 0> (batch_size, hidden)
  state_shape = Cast <to = 7> (state_shape_32)
  zeros = Expand (const_fold_opt__9, state_shape)
  ["while_loop"] place_last, h_last, outputs = Loop (trips, going, first, zeros) <body = body (
      int64 trip, bool condition, int32 place, float[n,4] h
    ) => (bool go_on, int32 next_place, float[n,4] h_next, float[n,4] h_out) {
      frame = Gather (frames, place)
      by_frame = MatMul (frame, W)
      by_state = MatMul (h, R)
      sum = Add (by_frame, by_state)
      h_next = Tanh (sum)
      h_out = Identity (h_next)
      next_place = Add (place, one)
      place_float = Cast <to = 1> (next_place)
      go_on = Less (place_float, length_float)
  }>
  y = Transpose <perm = [1, 0, 2]> (outputs)
}"""


@pytest.mark.thorough
def test_an_open_batch_and_merged_zeros():
    rng = np.random.default_rng(0)
    weights = {
        "W": (0.3 * rng.standard_normal((3, 4))).astype("f"),
        "R": (0.3 * rng.standard_normal((4, 4))).astype("f"),
    }
    proto = onnx.parser.parse_model(LOOP)
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    model = jaxrnn.load(proto)
    assert set(model.params) == set(weights)
    (variable,) = model.state
    assert (variable.kind, variable.shape) == ("internal", ("unk__1", 4))

    x = rng.standard_normal((2, 7, 3)).astype("f")
    h, expected = np.zeros((2, 4), "f"), []
    for frame in np.maximum(x, 0).swapaxes(0, 1):
        h = np.tanh(frame @ weights["W"] + h @ weights["R"])
        expected.append(h)
    np.testing.assert_allclose(model.apply(model.params, {"x": x})["y"], np.stack(expected, 1), rtol=1e-5, atol=1e-6)
    pulses = model.stream("unk__2", pulse=2).run(model.params, {"x": x[:1]})["y"]
    np.testing.assert_allclose(pulses, np.stack(expected, 1)[:1], rtol=1e-5, atol=1e-6)


#: A loop over `x.unbind(0)`, as PyTorch's exporter writes the loop.
UNBOUND = """
<ir_version: 9, opset_import: ["" : 20], producer_name: "pytorch">
main_graph (float[T,2,3] x) => (float[T,2,3] y)
<int64 one = {1}, float[2,3] zeros = {0, 0, 0, 0, 0, 0}, bool always = {1}> {
  frames = SplitToSequence <axis = 0, keepdims = 0> (x, one)
  empty = SequenceEmpty ()
  trips = SequenceLength (frames)
  last, results = Loop (trips, always, zeros, empty) <body = body (
      int64 trip, bool condition, float[2,3] h, seq(float[2,3]) before
    ) => (bool go_on, float[2,3] h_next, seq(float[2,3]) after) {
      frame = SequenceAt (frames, trip)
      sum = Add (frame, h)
      h_next = Tanh (sum)
      after = SequenceInsert (before, h_next)
      go_on = Identity (always)
  }>
  y = ConcatFromSequence <axis = 0, new_axis = 1> (results)
}"""


def test_a_loop_over_unbound_frames():
    model = jaxrnn.load(onnx.parser.parse_model(UNBOUND))
    x = np.random.default_rng(0).standard_normal((5, 2, 3)).astype("f")
    h, expected = np.zeros((2, 3), "f"), []
    for frame in x:
        h = np.tanh(frame + h)
        expected.append(h)
    whole = model.apply(model.params, {"x": x})["y"]
    pulses = model.stream(pulse=2).run(model.params, {"x": x})["y"]
    for found in (whole, pulses):
        np.testing.assert_allclose(found, np.stack(expected), rtol=1e-5, atol=1e-6)


#: Bodies with a value that is computed from the trip, and the types and values of constants.
STEPS = {
    "a float index": ("fi = Cast <to = 1> (i)\n g = Mul (fi, f)\n k = Cast <to = 7> (g)", {"f": np.float32(1.5)}),
    "a whole float index": ("fi = Cast <to = 1> (i)\n g = Mul (fi, f)\n k = Cast <to = 7> (g)", {"f": np.float32(2)}),
    "half": ("fi = Cast <to = 1> (i)\n g = Mul (fi, f)\n k = Cast <to = 7> (g)", {"f": np.float32(0.5)}),
    "narrow": ("j = Mul (i, f)\n n = Cast <to = 2> (j)\n k = Cast <to = 7> (n)", {"f": np.int64(65)}),
    "a truth value": ("n = Cast <to = 9> (i)\n k = Cast <to = 7> (n)", {}),
    "unsigned": ("u = Cast <to = 12> (i)\n d = Sub (f, u)\n k = Cast <to = 7> (d)", {"f": np.uint32(2)}),
}


def parsed(graph, **constants):
    proto = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18]> ' + graph)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items())
    return proto


@pytest.mark.parametrize("name", of_tiers(STEPS, ["a float index", "a truth value", "unsigned"]))
def test_what_is_not_linear_in_the_trip(name):
    """A cast that rounds or wraps is not extrapolated from the first two trips, in an index or in a condition."""
    body, constants = STEPS[name]
    reads = parsed(
        "g (float[8,2] x) => (float[n,2] y) <int64 m = {4}, bool t = {1}> { y = Loop (m, t) <body = b (int64 i, bool c)"
        f" => (bool go, float[2] o) {{ go = Identity (c)\n {body}\n r = Mod (k, eight)\n o = Gather (x, r) }}> }}",
        eight=np.int64(8),
        **constants,
    )
    counts = parsed(
        "g (float x) => (float y) <int64 m = {12}, bool t = {1}, float one = {1.0}> { y = Loop (m, t, x) <body = b "
        f"(int64 i, bool c, float s) => (bool go, float r) {{ {body}\n go = Less (k, limit)\n r = Add (s, one) }}> }}",
        limit=np.int64(5),
        **constants,
    )
    for proto, x in ((reads, np.arange(16, dtype=np.float32).reshape(8, 2)), (counts, np.float32(0))):
        model = jaxrnn.load(proto)
        (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
        for run in (model.apply, jax.jit(model.apply)):
            np.testing.assert_array_equal(run(model.params, {"x": x})["y"], expected)


@pytest.mark.parametrize("kind", ["int32", "int64", "uint32", "uint64"])
def test_counters_that_go_down(kind):
    graph = (
        f"g (float[6,2] x) => (float[n,2] y, {kind} e) <int64 m = {{6}}, bool t = {{1}}, {kind} st = {{5}}, "
        f"{kind} one = {{1}}> {{ e, y = Loop (m, t, st) <body = b (int64 i, bool c, {kind} k) => (bool go, {kind} ko, "
        "float[2] o) { go = Identity (c)\n q = Cast <to = 7> (k)\n o = Gather (x, q)\n ko = Sub (k, one) }> }"
    )
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    outputs = jaxrnn.load(parsed(graph))({"x": x})
    np.testing.assert_array_equal(outputs["y"], x[::-1])
    assert np.asarray(outputs["e"]) == np.array(-1).astype(kind)


def test_a_counter_that_becomes_a_vector():
    graph = """g (float x) => (int64[1] e) <int64 m = {3}, bool t = {1}, int64 st = {11}> {
      e = Loop (m, t, st) <body = b (int64 i, bool c, int64 k) => (bool go, int64[1] ko) {
        go = Identity (c)
        ko = Add (k, one) }> }"""
    np.testing.assert_array_equal(jaxrnn.load(parsed(graph, one=np.array([1])))({"x": np.float32(0)})["e"], [14])
