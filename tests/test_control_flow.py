"""If, Loop, Scan and local functions: against ONNX Runtime, under jit, and in their gradients."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import check_refused
from small_models import graph_of
from tiers import of_tiers
from verifier import assert_same, verify

import jaxrnn

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name, kind=FLOAT, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, initializers=(), opset=16, functions=(), domains=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(a, n) for n, a in initializers])
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=list(functions))


def rng_array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# --- Scan


def scan_model(axes_in, directions_in, axis_out, direction_out, opset, ranks=(3, 2)):
    """h' = tanh(h W + x), y = h' * z; x of rank 3, z of rank 2 broadcast over features, both scanned."""
    nodes = [
        helper.make_node("MatMul", ["h", "W"], ["hw"]),
        helper.make_node("Add", ["hw", "x"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["h_out"]),
        helper.make_node("Mul", ["h_out", "z"], ["y"]),
    ]
    body = graph_of(nodes, {"h": [2, 4], "x": [2, 4], "z": [4]}, {"h_out": [2, 4], "y": [2, 4]}, name="body")
    scan = helper.make_node(
        "Scan",
        ["h0", "xs", "zs"],
        ["h_last", "ys"],
        name="scan",
        body=body,
        num_scan_inputs=2,
        scan_input_axes=axes_in,
        scan_input_directions=directions_in,
        scan_output_axes=[axis_out],
        scan_output_directions=[direction_out],
    )
    inputs = [value("h0", shape=[2, 4]), value("xs", shape=[None] * ranks[0]), value("zs", shape=[None] * ranks[1])]
    outputs = [value("h_last", shape=[2, 4]), value("ys")]
    return model([scan], inputs, outputs, [("W", rng_array(4, 4, seed=9))], opset)


@pytest.mark.parametrize("opset", of_tiers([9, 11, 16, 21], (), (21,)))
@pytest.mark.parametrize("time", of_tiers([1, 5], [5], []))
def test_scan_axes_and_directions(opset, time):
    choices = itertools.product((0, 1, -1), (0, 1), (0, 1), (0, 1), (0, 2, -1), (0, 1))
    # Every value of every attribute appears; the full product says no more and takes minutes.
    for index, (axis, axis_z, back, back_z, axis_out, back_out) in enumerate(choices):
        if index % 17:
            continue
        if opset < 11 and (axis < 0 or axis_out < 0):
            continue
        xs = np.moveaxis(rng_array(time, 2, 4), 0, axis)
        zs = np.moveaxis(rng_array(time, 4, seed=1), 0, axis_z)
        inputs = {"h0": rng_array(2, 4, seed=2), "xs": np.ascontiguousarray(xs), "zs": np.ascontiguousarray(zs)}
        proto = scan_model([axis, axis_z], [back, back_z], axis_out, back_out, opset)
        verify(proto, inputs, atol=1e-6, eager=index % 3 == 0, gradient=["h0", "xs"] if index == 0 else None)


def test_scan_of_no_frames():
    inputs = {"h0": rng_array(2, 4), "xs": np.zeros((0, 2, 4), np.float32), "zs": np.zeros((0, 4), np.float32)}
    loaded = verify(scan_model([0, 0], [0, 0], 0, 0, 16), inputs, expected={
        "h_last": inputs["h0"], "ys": np.zeros((0, 2, 4), np.float32)})  # fmt: skip
    slope = jax.grad(lambda h: jnp.sum(loaded.apply(loaded.params, inputs | {"h0": h})["h_last"]))(
        jnp.asarray(inputs["h0"])
    )
    np.testing.assert_array_equal(slope, 1)


def test_scan_of_one_frame_has_no_loop():
    loaded = jaxrnn.load(scan_model([0, 0], [0, 0], 0, 0, 16))
    for time, loops in ((1, 0), (2, 1)):
        inputs = {"h0": rng_array(2, 4), "xs": rng_array(time, 2, 4), "zs": rng_array(time, 4)}
        assert str(jax.make_jaxpr(loaded.apply)(loaded.params, inputs)).count("scan[") == loops


@pytest.mark.thorough
def test_scan_8_with_lengths():
    """Opset 8: a batch axis in front, a length for each row; the reference is a loop written out."""
    nodes = [helper.make_node("Add", ["h", "x"], ["h_out"]), helper.make_node("Mul", ["h_out", "x"], ["y"])]
    body = graph_of(nodes, {"h": [3], "x": [3]}, {"h_out": [3], "y": [3]}, name="body")
    h0, xs, lengths = rng_array(2, 3), rng_array(2, 5, 3, seed=1), np.array([5, 2])
    for direction in (0, 1):
        scan = helper.make_node("Scan", ["lens", "h0", "xs"], ["h_last", "ys"], body=body, num_scan_inputs=1,
                                directions=[direction])  # fmt: skip
        proto = model([scan], [value("lens", INT64, [2]), value("h0", shape=[2, 3]), value("xs", shape=[2, 5, 3])],
                      [value("h_last"), value("ys")], opset=8)  # fmt: skip
        final, ys = h0.copy(), np.zeros_like(xs)
        for row, length in enumerate(lengths):
            frames = xs[row, :length][::-1] if direction else xs[row, :length]
            for step, frame in enumerate(frames):
                final[row] += frame
                ys[row, step] = final[row] * frame
        verify(proto, {"lens": lengths, "h0": h0, "xs": xs}, expected={"h_last": final, "ys": ys}, atol=1e-6)


def test_scan_refuses_unequal_lengths():
    loaded = jaxrnn.load(scan_model([0, 0], [0, 0], 0, 0, 16))
    with pytest.raises(jaxrnn.NodeError, match=r"'scan'.*equal lengths, not \[3, 2\]"):
        loaded.apply(loaded.params, {"h0": rng_array(2, 4), "xs": rng_array(3, 2, 4), "zs": rng_array(2, 4)})


# --- Loop


def loop_model(condition, *, trips=True, scanned=True, opset=16):
    """a' = a * 0.5 + i; scan output a'; ends when the sum of a' exceeds a bound, or never by itself."""
    nodes = [
        helper.make_node("Cast", ["i"], ["i_float"], to=FLOAT),
        helper.make_node("Mul", ["a", "half"], ["halved"]),
        helper.make_node("Add", ["halved", "i_float"], ["a_out"]),
        helper.make_node("Identity", ["a_out"], ["seen"]),
    ]
    if condition == "data":
        nodes += [
            helper.make_node("ReduceSum", ["a_out"], ["total"], keepdims=0),
            helper.make_node("Less", ["total", "bound"], ["go_on_out"]),
        ]
    else:
        nodes.append(helper.make_node("Identity", ["go_on"], ["go_on_out"]))
    outputs = {"go_on_out": (BOOL, []), "a_out": [3], **({"seen": [3]} if scanned else {})}
    body = graph_of(nodes, {"i": (INT64, []), "go_on": (BOOL, []), "a": [3]}, outputs, name="body")
    names = ["a_last", "all"] if scanned else ["a_last"]
    loop = helper.make_node("Loop", ["n" if trips else "", "start", "a0"], names, name="loop", body=body)
    inputs = [*([value("n", INT64, [])] if trips else []), value("start", BOOL, []), value("a0", shape=[3])]
    constants = [("half", np.float32(0.5).reshape(())), ("bound", np.float32(9).reshape(()))]
    return model([loop], inputs, [value(name) for name in names], constants, opset)


@pytest.mark.parametrize("trips", [0, 1, 4])
@pytest.mark.parametrize("scanned", [True, False])
@pytest.mark.parametrize("condition", ["none", "data"])
def test_loop(trips, scanned, condition):
    inputs = {"n": np.array(trips), "start": np.array(True), "a0": rng_array(3)}
    proto = loop_model(condition, scanned=scanned)
    # Under jit the trip count is data, so scan outputs have no static length.
    verify(proto, inputs, atol=1e-6, jit=not scanned)
    static = {"n": np.array(trips), "start": np.array(True)}
    verify(proto, {"a0": inputs["a0"]}, static=static, atol=1e-6, jit=condition == "none" or trips < 2 or not scanned)


def test_loop_that_never_starts():
    inputs = {"n": np.array(4), "start": np.array(False), "a0": rng_array(3)}
    verify(loop_model("data"), inputs, atol=0, jit=False)
    verify(loop_model("data", scanned=False), inputs, atol=0)


def test_loop_without_a_limit_ends_by_its_condition():
    inputs = {"start": np.array(True), "a0": rng_array(3)}
    verify(loop_model("data", trips=False), inputs, atol=1e-6, jit=False)
    verify(loop_model("data", trips=False, scanned=False), inputs, atol=1e-6)


def test_loop_of_known_trips_is_one_scan_with_a_gradient():
    inputs = {"a0": rng_array(3)}
    loaded = jaxrnn.load(loop_model("none"), static={"n": 6, "start": True})
    jaxpr = str(jax.make_jaxpr(loaded.apply)(loaded.params, inputs))
    assert jaxpr.count("scan[") == 1
    assert "while[" not in jaxpr
    slope = jax.grad(lambda a: loaded.apply(loaded.params, {"a0": a})["a_last"].sum())(jnp.array(inputs["a0"]))
    np.testing.assert_allclose(slope, 0.5**6)


def test_scan_outputs_of_unknown_length_are_refused_under_jit():
    loaded = jaxrnn.load(loop_model("data"), static={"n": 6, "start": True})
    with pytest.raises(jaxrnn.StaticValueError, match=r"'loop'.*length of its scan outputs"):
        jax.jit(loaded.apply)(loaded.params, {"a0": rng_array(3)})
    with pytest.warns(UserWarning, match=r"evaluated node by node.*length of its scan outputs"):
        assert loaded(a0=rng_array(3))["all"].shape[0] < 6
    assert loaded(a0=rng_array(3))["all"].shape[0] < 6  # said once


def test_endless_loop_is_refused():
    loaded = jaxrnn.load(loop_model("none", trips=False))
    for call in (loaded.apply, jax.jit(loaded.apply)):
        with pytest.raises(jaxrnn.NodeError, match=r"'loop'.*never ends"):
            call(loaded.params, {"start": np.array(True), "a0": rng_array(3)})


def test_loop_whose_carry_grows():
    nodes = [helper.make_node("Concat", ["a", "a"], ["a_out"], axis=0), helper.make_node("Identity", ["c"], ["c_out"])]
    inputs = {"i": (INT64, []), "c": (BOOL, []), "a": [None]}
    body = graph_of(nodes, inputs, {"c_out": (BOOL, []), "a_out": [None]}, name="body")
    loop = helper.make_node("Loop", ["n", "", "a0"], ["a_last"], body=body)
    proto = model([loop], [value("a0", shape=[None])], [value("a_last")], [("n", np.array(3))])
    verify(proto, {"a0": rng_array(2)}, atol=0)


def test_loop_that_reshapes_by_what_it_carries():
    """n' = n - 1, x' = the first n elements of x: shapes that are known trip by trip."""
    nodes = [
        helper.make_node("Sub", ["n", "one"], ["n_out"]),
        helper.make_node("Slice", ["a", "zero", "n"], ["a_out"]),
        helper.make_node("Identity", ["c"], ["c_out"]),
    ]
    inputs = {"i": (INT64, []), "c": (BOOL, []), "n": (INT64, [1]), "a": [None]}
    body = graph_of(nodes, inputs, {"c_out": (BOOL, []), "n_out": (INT64, [1]), "a_out": [None]}, name="body")
    loop = helper.make_node("Loop", ["trips", "", "n0", "a0"], ["n_last", "a_last"], body=body)
    constants = [("trips", np.array(3)), ("n0", np.array([5])), ("one", np.array([1])), ("zero", np.array([0]))]
    proto = model([loop], [value("a0", shape=[None])], [value("n_last", INT64), value("a_last")], constants)
    verify(proto, {"a0": rng_array(7)}, atol=0)


# --- If


def if_model(shapes_differ=False):
    """c ? x * w : tanh(x) (or its first row), with a parameter inside a branch and a value from outside."""
    weight = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(rng_array(2, 3, seed=5)))
    then = graph_of([weight, helper.make_node("Mul", ["x2", "w"], ["t"])], {}, {"t": None}, name="then")
    last = (
        helper.make_node("Gather", ["th", "zero"], ["e"]) if shapes_differ else helper.make_node("Neg", ["th"], ["e"])
    )
    other = graph_of([helper.make_node("Tanh", ["x2"], ["th"]), last], {}, {"e": None}, name="else")
    nodes = [
        helper.make_node("Add", ["x", "x"], ["x2"]),
        helper.make_node("If", ["c"], ["y"], name="choice", then_branch=then, else_branch=other),
    ]
    return model(nodes, [value("c", BOOL, []), value("x", shape=[2, 3])], [value("y")], [("zero", np.array([0]))])


@pytest.mark.parametrize("condition", [True, False])
def test_if(condition):
    inputs = {"c": np.array(condition), "x": rng_array(2, 3)}
    loaded = verify(if_model(), inputs, atol=1e-6)
    assert list(loaded.params) == ["w"]
    folded = verify(if_model(), {"x": inputs["x"]}, static={"c": inputs["c"]}, atol=1e-6)
    assert "cond[" not in str(jax.make_jaxpr(folded.apply)(folded.params, {"x": inputs["x"]}))
    slope = jax.jit(jax.grad(lambda p: loaded.apply(p, inputs)["y"].sum()))(loaded.params)["w"]
    np.testing.assert_allclose(slope, 2 * inputs["x"] * condition, atol=1e-6)


def test_branches_that_disagree_are_refused_under_jit():
    inputs = {"c": np.array(False), "x": rng_array(2, 3)}
    verify(if_model(shapes_differ=True), inputs, atol=1e-6, jit=False)
    loaded = jaxrnn.load(if_model(shapes_differ=True))
    with pytest.raises(
        jaxrnn.StaticValueError, match=r"'choice'.*branches must return equal types.*float32\[2, 3\].*float32\[1, 3\]"
    ):
        jax.jit(loaded.apply)(loaded.params, inputs)


# --- Local functions


def function_model(opset_of_function=16):
    """Two calls of one function, one inside the other's caller, with an attribute and a constant of its own."""
    imports = [helper.make_opsetid("", opset_of_function)]
    nodes = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(rng_array(3, seed=7))),
        helper.make_node("Mul", ["x", "w"], ["xw"]),
        helper.make_node("LeakyRelu", ["xw"], ["y"]),
    ]
    scale = helper.make_function("local", "Scale", ["x"], ["y"], nodes, imports, ["alpha"])
    reference = scale.node[2].attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT)
    reference.ref_attr_name = "alpha"
    nodes = [
        helper.make_node("Scale", ["x"], ["once"], domain="local", alpha=0.25),
        helper.make_node("Scale", ["once"], ["y"], domain="local", alpha=0.5),
    ]
    imports.append(helper.make_opsetid("local", 1))
    twice = helper.make_function("local", "Twice", ["x"], ["y"], nodes, imports)
    nodes = [helper.make_node("Twice", ["x"], ["y"], domain="local", name="call")]
    return model(nodes, [value("x", shape=[2, 3])], [value("y")], functions=[scale, twice], domains=["local"])


def test_local_functions():
    loaded = verify(function_model(), {"x": rng_array(2, 3)}, atol=1e-6)
    assert list(loaded.params) == ["Scale/w"]  # one tensor of the file, however often it is called


def test_functions_of_another_opset():
    """A function has its own opset: Softmax meant another thing before opset 13."""
    function = helper.make_function(
        "local", "Old", ["x"], ["y"], [helper.make_node("Softmax", ["x"], ["y"])], [helper.make_opsetid("", 11)]
    )
    nodes = [helper.make_node("Old", ["x"], ["y"], domain="local")]
    proto = model(nodes, [value("x", shape=[2, 3, 4])], [value("y")], functions=[function], domains=["local"])
    x = rng_array(2, 3, 4)
    flat = np.exp(x.reshape(2, 12))
    verify(proto, {"x": x}, expected={"y": (flat / flat.sum(1, keepdims=True)).reshape(x.shape)}, atol=1e-6)


def test_functions_in_a_circle_that_no_node_calls():
    call = lambda name: helper.make_node(name, ["x"], ["y"], domain="local")  # noqa: E731
    imports = [helper.make_opsetid("", 16), helper.make_opsetid("local", 1)]
    functions = [
        helper.make_function("local", name, ["x"], ["y"], [call(other)], imports) for name, other in ("AB", "BA")
    ]
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    proto = model(nodes, [value("x", shape=[2])], [value("y")], functions=functions, domains=["local"])
    words = "a local function cannot be inlined: Cyclic dependency"
    check_refused(jaxrnn.UnsupportedError, words, jaxrnn.load, proto)


def test_nodes_out_of_order_are_sorted():
    nodes = [helper.make_node("Neg", ["t"], ["y"]), helper.make_node("Relu", ["x"], ["t"])]
    x = rng_array(2)
    loaded = jaxrnn.load(model(nodes, [value("x", shape=[2])], [value("y")]))
    assert_same(loaded(x=x), {"y": -np.maximum(x, 0)}, 0)
