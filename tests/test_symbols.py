"""Lengths that are symbols stay known while tracing, whatever a file makes of them: floats, quotients, comparisons."""

from __future__ import annotations

import jax
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_models import graph_of, make_model
from tiers import in_later_tier
from verifier import peer_outputs

import jaxrnn
from jaxrnn.streaming.checking import InPulses

F32, I32, I64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64

node = helper.make_node

CONSTANTS = {
    "zero": np.array(0),
    "one": np.array(1),
    "last": np.array(-1),
    "ones": np.array([1]),
    "one_float": np.float32(1),
    "two_float": np.float32(2),
    "half": np.float32(0.5),
    "three": np.array(3),
    "three_32": np.array([3], np.int32),
    "row": np.array([1, 2, 0]),
    "places": np.array([0]),
    "five": np.array([5]),
    "unit": np.float32(1),
    "five_float": np.float32(5),
    "last_axis": np.array([-1]),
    "no_pads": np.array([0, 0, 0, 0]),
    "no_pad": np.array([0]),
    "window": np.hanning(4).astype(np.float32),
    "step": np.array(2),
}
#: What is made of the length: nodes from ``x`` of [1, T, 3], ``sizes``, ``t`` and ``t_float`` to ``y``; smallest pulse.
CASES = {
    "range of floats": (
        [
            node("Add", ["t_float", "one_float"], ["end"]),
            node("Range", ["one_float", "end", "one_float"], ["count"]),
            node("Unsqueeze", ["count", "ones"], ["column"]),
            node("Mul", ["x", "column"], ["y"]),
        ],
        1,
    ),
    "positions by a factor": (
        [
            node("Range", ["zero_float", "t_float", "one_float"], ["count"]),
            node("Mul", ["count", "half"], ["halves"]),
            node("Unsqueeze", ["halves", "ones"], ["column"]),
            node("Add", ["x", "column"], ["y"]),
        ],
        1,
    ),
    "the last frame": ([node("Gather", ["x", "last"], ["y"], axis=1)], 1),
    "the first frame": ([node("Gather", ["x", "zero"], ["y"], axis=1)], 1),
    "ones of that length": ([node("Expand", ["unit", "sizes"], ["whole"]), node("Sub", ["x", "whole"], ["y"])], 1),
    "arithmetic in 32 bits": (
        [
            node("Cast", ["t1"], ["short"], to=I32),
            node("Add", ["short", "three_32"], ["more"]),
            node("Sub", ["more", "three_32"], ["same"]),
            node("Cast", ["same"], ["long"], to=I64),
            node("Concat", ["ones", "long", "ones"], ["shape"], axis=0),
            node("Expand", ["unit", "shape"], ["whole"]),
            node("Add", ["x", "whole"], ["y"]),
        ],
        1,
    ),
    "a shape that is written to": (
        [
            node("ScatterElements", ["sizes", "places", "five"], ["wide"]),
            node("Expand", ["x", "wide"], ["y"]),
        ],
        1,
    ),
    "half of the frames, rounded up": (
        [
            node("Div", ["t_float", "two_float"], ["quotient"]),
            node("Ceil", ["quotient"], ["up"]),
            node("Range", ["zero_float", "up", "one_float"], ["y"]),
        ],
        2,
    ),
    "frames of a strided convolution, as Encodec counts them": (
        [
            node("Sub", ["t_float", "five_float"], ["less"]),
            node("Add", ["less", "two_float"], ["padded"]),
            node("Div", ["padded", "two_float"], ["quotient"]),
            node("Add", ["quotient", "one_float"], ["more"]),
            node("Sub", ["more", "one_float"], ["same"]),
            node("Sub", ["five_float", "same"], ["negative"]),
            node("Sub", ["five_float", "negative"], ["again"]),
            node("Ceil", ["more"], ["up"]),
            node("Cast", ["up"], ["frames"], to=I64),
            node("Sub", ["frames", "one"], ["before"]),
            node("Mul", ["before", "step"], ["ideal"]),
            node("Add", ["ideal", "three"], ["whole"]),
            node("Sub", ["whole", "t"], ["extra"]),
            node("Reshape", ["extra", "last_axis"], ["extra1"]),
            node("Concat", ["no_pads", "extra1", "no_pad"], ["pads"], axis=0),
            node("Pad", ["x", "pads"], ["y"]),
        ],
        2,
    ),
    "a padding mask up to the largest length": (
        [
            node("Expand", ["t", "ones"], ["lengths"]),
            node("ReduceMax", ["lengths"], ["longest"], keepdims=0),
            node("Range", ["zero", "longest", "one"], ["count"]),
            node("Unsqueeze", ["lengths", "ones"], ["limits"]),
            node("Less", ["count", "limits"], ["kept"]),
            node("Unsqueeze", ["kept", "axis2"], ["column"]),
            node("Where", ["column", "x", "half"], ["y"]),
        ],
        1,
    ),
    "all frames but the last, counted by a sum of ones": (
        [
            node("Expand", ["one", "t1"], ["each"]),
            node("CumSum", ["each", "zero"], ["count"]),
            node("Less", ["count", "t"], ["kept"]),
            node("Cast", ["kept"], ["factor"], to=F32),
            node("Unsqueeze", ["factor", "ones"], ["column"]),
            node("Mul", ["x", "column"], ["y"]),
        ],
        1,
    ),
    "a spectrum of rank two": (
        [
            node("ReduceSum", ["x", "axis2"], ["wave"], keepdims=0),
            node("STFT", ["wave", "step", "window"], ["y"]),
        ],
        2,
    ),
}


def model_of(nodes):
    head = [
        node("Shape", ["x"], ["sizes"]),
        node("Gather", ["sizes", "one"], ["t"]),
        node("Unsqueeze", ["t", "places"], ["t1"]),
        node("Cast", ["t"], ["t_float"], to=F32),
    ]
    constants = CONSTANTS | {"zero_float": np.float32(0), "axis2": np.array([2])}
    return make_model(graph_of([*head, *nodes], {"x": [1, "T", 3]}, {"y": None}, constants))


@pytest.mark.parametrize(
    "case",
    in_later_tier(
        CASES,
        [
            "a shape that is written to",
            "a spectrum of rank two",
            "arithmetic in 32 bits",
            "ones of that length",
            "positions by a factor",
            "range of floats",
            "the first frame",
        ],
    ),
)
def test_what_follows_from_a_length(case):
    """One trace serves every length, equal to ONNX Runtime; and it streams."""
    nodes, pulse = CASES[case]
    proto = model_of(nodes)
    model = jaxrnn.load(proto)
    jax.make_jaxpr(model.apply)(model.params, model.symbolic_inputs(constraints=["T >= 4"]))
    streamed = model.stream("T", pulse, constraints=["S >= 4"])
    streaming = InPulses(streamed, model.params)
    for frames in (4, 5, 9):
        inputs = {"x": np.random.default_rng(frames).normal(size=(1, frames, 3)).astype(np.float32)}
        expected = peer_outputs(proto, inputs)["y"]
        for found in (model(**inputs), streaming.run(inputs, frames, [streamed.pulse], room=streamed.pulse)):
            np.testing.assert_allclose(found["y"], expected, atol=1e-5)


def test_powers_of_the_length():
    """A whole power is a size; other powers are data."""
    nodes = [
        node("Pow", ["t", "step"], ["square"]),
        node("Pow", ["t_float", "half"], ["root"]),
        node("Pow", ["half", "t"], ["share"]),
        node("Pow", ["two_float", "t_float"], ["growth"]),
        node("Cast", ["square"], ["square_float"], to=F32),
        node("Sum", ["x", "square_float", "root", "share", "growth"], ["y"]),
    ]
    proto = model_of(nodes)
    model = jaxrnn.load(proto)
    jax.make_jaxpr(model.apply)(model.params, model.symbolic_inputs())
    inputs = {"x": np.ones((1, 3, 3), np.float32)}
    np.testing.assert_allclose(model(**inputs)["y"], peer_outputs(proto, inputs)["y"], rtol=1e-6)


def test_a_comparison_that_no_length_decides_says_so():
    """Used as a value it is data; as the condition of an If it names what decides it."""
    branch = [
        helper.make_graph(
            [node("Identity", ["x"], [f"b{k}"])], f"b{k}", [], [helper.make_tensor_value_info(f"b{k}", F32, None)]
        )
        for k in (0, 1)
    ]
    nodes = [
        node("Less", ["three", "t"], ["long"]),
        node("If", ["long"], ["y"], then_branch=branch[0], else_branch=branch[1]),
    ]
    model = jaxrnn.load(model_of(nodes))
    with pytest.raises(jaxrnn.NodeError, match=r"inconclusive.*constraints"):
        jax.make_jaxpr(model.apply)(model.params, model.symbolic_inputs())
    jax.make_jaxpr(model.apply)(model.params, model.symbolic_inputs(constraints=["T >= 4"]))
    model = jaxrnn.load(model_of([node("Less", ["three", "t"], ["long"]), node("Where", ["long", "x", "half"], ["y"])]))
    for frames in (2, 5):
        x = np.ones((1, frames, 3), np.float32)
        traced = jax.jit(model.apply)(model.params, {"x": x})["y"]
        np.testing.assert_array_equal(traced, x if frames > 3 else np.full_like(x, 0.5))
    jax.make_jaxpr(model.apply)(model.params, model.symbolic_inputs())


#: A table cut from an input position on, in the ways of exporters: the bounds of the slice, from ``offset`` and ``t``.
BOUNDS = {
    "offset to offset + T": "first = Unsqueeze (offset, places)  end = Add (offset, t)  last = Unsqueeze (end, places)",
    "past the cache": "before = Sub (offset, two)  after = Add (before, t)  first0 = Add (before, two)"
    " end = Add (after, two)  first = Reshape (first0, minus)  last = Reshape (end, minus)",
    "in 32 bits": "short = Cast <to = 6> (offset)  t_short = Cast <to = 6> (t)  end = Add (short, t_short)"
    " start1 = Unsqueeze (short, places)  last1 = Unsqueeze (end, places)  both = Concat <axis = 0> (start1, last1)"
    " first0 = Gather (both, places)  last0 = Gather (both, ones)  first = Cast <to = 7> (first0)"
    " last = Cast <to = 7> (last0)",
    "counted down": "end = Sub (eleven, offset)  first0 = Sub (end, t)  first = Unsqueeze (first0, places)"
    " last = Unsqueeze (end, places)",
    "chosen": "is_one = Equal (offset, one)  chosen = Where (is_one, two, offset)  most = Max (chosen, one)"
    " first = Unsqueeze (most, places)  end = Add (most, t)  last = Unsqueeze (end, places)",
    "twice": "pair = Add (offset, offset)  three = Sub (pair, offset)  first = Unsqueeze (three, places)"
    " end = Add (three, t)  last = Unsqueeze (end, places)",
}


def _cut(bounds, body="rows = Slice (table, first, last, ones)  y = Add (x, rows)", x="float[1, T, 3] x"):
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g ({x}, int64 offset) => (float[1, T, 3] y)
        <float[1, 12, 3] table = {{{", ".join(map(str, range(36)))}}}, int64[1] places = {{0}}, int64[1] ones = {{1}},
         int64 one = {{1}}, int64 two = {{2}}, int64 eleven = {{11}}, int64[1] minus = {{-1}}> {{
          sizes = Shape (x)  t = Gather (sizes, one)  {bounds}  {body} }}"""
    )


@pytest.mark.parametrize("bounds", in_later_tier(BOUNDS, ["twice", "counted down"]))
def test_a_table_cut_at_a_position(bounds):
    """A slice between an input and a known distance from it compiles, in all steps equal to ONNX Runtime."""
    proto = _cut(BOUNDS[bounds])
    model = jaxrnn.load(proto)
    compiled = jax.jit(model.apply)
    x = np.ones((1, 4, 3), np.float32)
    for offset in (0, 1, 3, 7):
        inputs = {"x": x, "offset": np.array(offset)}
        expected = peer_outputs(proto, inputs)["y"]
        np.testing.assert_array_equal(compiled(model.params, inputs)["y"], expected)
        np.testing.assert_array_equal(model(**inputs)["y"], expected)


def test_a_table_cut_outside():
    """A compiled call has NaN in rows outside of the table, and an eager call raises an error."""
    proto = _cut(BOUNDS["offset to offset + T"])
    model = jaxrnn.load(proto)
    compiled = jax.jit(model.apply)
    for offset in (10, -4, -2, -13, 40):
        inputs = {"x": np.ones((1, 4, 3), np.float32), "offset": np.array(offset)}
        assert np.isnan(compiled(model.params, inputs)["y"]).any()
        with pytest.raises(jaxrnn.JaxrnnError):
            model(**inputs)
    inputs = {"x": np.ones((1, 4, 3), np.float32), "offset": np.array(-6)}  # from the end
    np.testing.assert_array_equal(compiled(model.params, inputs)["y"], peer_outputs(proto, inputs)["y"])


@pytest.mark.parametrize(
    "body",
    [
        "rows = Slice (table, first, last, ones)  y = Add (x, rows)",
        "places0 = Range (offset, end, one)  rows = Gather <axis = 1> (table, places0)  y = Add (x, rows)",
    ],
    ids=["slice", "range"],
)
def test_a_table_cut_at_a_position_streams(body):
    """The rows follow the frames; also as a step that is exported, and in a `Runner`."""
    proto = _cut(BOUNDS["offset to offset + T"], body)
    model = jaxrnn.load(proto)
    streamed = model.stream("T", 2)
    x = np.random.default_rng(0).normal(size=(1, 5, 3)).astype(np.float32)
    inputs = {"x": x, "offset": np.array(6)}
    expected = peer_outputs(proto, inputs)["y"]
    found = streamed.run(model.params, inputs)["y"]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_step_with_a_position(tmp_path):
    """A step reads its table at a counted position, as conformers do: in a `Runner`, and as an exported file."""
    proto = _cut(BOUNDS["past the cache"], x="float[1, 4, 3] x")
    model = jaxrnn.load(proto, state={})
    run, x = jaxrnn.Runner(model), np.ones((1, 4, 3), np.float32)
    jaxrnn.export_onnx(model, model.params, tmp_path / "step.onnx", step=True)
    for offset in (0, 4, 8):
        inputs = {"x": x, "offset": np.array(offset)}
        expected = peer_outputs(proto, inputs)["y"]
        np.testing.assert_array_equal(run(inputs)["y"], expected)
        np.testing.assert_array_equal(peer_outputs(onnx.load(tmp_path / "step.onnx"), inputs)["y"], expected)


def test_a_table_cut_to_a_size_that_depends_on_data():
    """The error names the form that compiles."""
    model = jaxrnn.load(_cut("first = Unsqueeze (offset, places)  last = Unsqueeze (eleven, places)"))
    inputs = {"x": np.ones((1, 4, 3), np.float32), "offset": np.array(7)}
    with pytest.warns(UserWarning, match=r"offset and offset \+ 4"):
        assert model(**inputs)["y"].shape == (1, 4, 3)
    with pytest.raises(jaxrnn.JaxrnnError, match=r"offset and offset \+ 4"):
        jax.jit(model.apply)(model.params, inputs)
