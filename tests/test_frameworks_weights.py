"""Weights of modules as parameters of files, and comparisons with modules, without a framework."""

import json

import jax
import numpy as np
import onnx
import pytest
from onnx import helper
from refusals import check_refused
from small_models import graph_of, make_model

import jaxrnn
from jaxrnn.frameworks.agreement import check_agreement, check_stream, output_shapes, sizes_of
from jaxrnn.frameworks.weights import check_after, check_other_weights, check_weights, state_weights
from jaxrnn.jaxprs.held import Held

FLOAT = onnx.TensorProto.FLOAT


def file_of(nodes, tensors, outputs=("y",), inputs=(("x", ["batch", "time", 4]),)):
    weights = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    return make_model(graph_of(nodes, dict(inputs), dict.fromkeys(outputs), weights, "exported"))


def network(weights, nodes=(), **tensors):
    """Export as an exporter that cannot compute with weights: each weight is an input of the graph."""
    nodes = nodes or [
        helper.make_node("Relu", ["a/scale"], ["positive"]),
        helper.make_node("Mul", ["x", "positive"], ["scaled"]),
        helper.make_node("Sqrt", ["a/variance"], ["deviation"]),
        helper.make_node("Div", ["scaled", "deviation"], ["normal"]),
        helper.make_node("MatMul", ["normal", "a/matrix"], ["product"]),
        helper.make_node("Add", ["product", "a/bias"], ["shifted"]),
        helper.make_node("Mul", ["shifted", "gain"], ["y"]),
    ]
    proto = file_of(nodes, tensors)
    proto.graph.input.extend(helper.make_tensor_value_info(name, FLOAT, each.shape) for name, each in weights.items())
    state_weights(proto, weights)
    return proto


WEIGHTS = {
    "a/scale": np.array([-0.2, 0.3, 1.5, -2.0], np.float32),
    "a/variance": np.array([0.5, 1.0, 2.0, 3.0], np.float32),
    "a/matrix": np.array([[1, -1], [2, 0.5], [-3, 1], [1, 1]], np.float32),
    "a/bias": np.zeros(2, np.float32),
    "gain": np.array(1.5, np.float32),
    "unread": np.ones(1, np.float32),
}
RECORDING = np.random.default_rng(1).standard_normal((2, 9, 4)).astype(np.float32)


def run_network(inputs, weights):
    with np.errstate(invalid="ignore"):
        scaled = inputs["x"] * np.maximum(weights["a/scale"], 0) / np.sqrt(weights["a/variance"])
    return [weights["gain"] * (scaled @ weights["a/matrix"] + weights["a/bias"])]


def test_weights_are_parameters(tmp_path):
    """Weights of the graph are parameters with their values, zeros too, and keep their names in a written file."""
    model = jaxrnn.load(network(WEIGHTS))
    assert [each.name for each in model.inputs] == ["x"]
    assert model.params.keys() == WEIGHTS.keys() - {"unread"}
    assert all(np.array_equal(array, WEIGHTS[name]) for name, array in model.params.items())
    (expected,) = run_network({"x": RECORDING}, WEIGHTS)
    assert np.abs(model({"x": RECORDING})["y"] - expected).max() < 1e-5
    slope = jax.grad(lambda params: model.apply(params, {"x": RECORDING})["y"].sum())(model.params)["a/scale"]
    assert np.array_equal(slope == 0, WEIGHTS["a/scale"] < 0)
    tuned = {name: 2 * array for name, array in model.params.items()}
    jaxrnn.export_onnx(model, tuned, tmp_path / "tuned.onnx")
    assert all(
        np.array_equal(array, tuned[name]) for name, array in jaxrnn.load(tmp_path / "tuned.onnx").params.items()
    )


def test_initializers_under_the_names_of_weights():
    """An initializer with the name of a weight must have the bits of the weight; it may also be an input."""
    proto = network(WEIGHTS, **{"a/bias": WEIGHTS["a/bias"]})
    assert "a/bias" in jaxrnn.load(proto).params
    other = {"a/bias": -WEIGHTS["a/bias"]}
    check_refused(jaxrnn.ModelError, "another value under the name of the weight 'a/bias'", network, WEIGHTS, **other)


def test_weights_inside_a_branch():
    """A weight that only subgraphs read is a parameter."""

    def branch(operator):
        nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node(operator, ["z"], ["out"])]
        return graph_of(nodes, {}, {"out": None}, name="branch")

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Less", ["total", "zero"], ["negative"]),
        helper.make_node("If", ["negative"], ["y"], then_branch=branch("Neg"), else_branch=branch("Abs")),
    ]
    weights = {"w": np.ones((4, 4), np.float32)}
    assert list(jaxrnn.load(network(weights, nodes, zero=np.zeros((), np.float32))).params) == ["w"]


def test_stated_parameters():
    """The list of weights in a file decides about its parameters; a wrong list is refused."""
    proto = network(WEIGHTS)
    (entry,) = (each for each in proto.metadata_props if each.key == "jaxrnn.weights")
    assert json.loads(entry.value) == ["a/scale", "a/variance", "a/matrix", "a/bias", "gain"]
    entry.value = json.dumps(["a/matrix"])
    assert list(jaxrnn.load(proto).params) == ["a/matrix"]
    for wrong in ("[", '["nothing"]', "3", "[[]]"):
        entry.value = wrong
        check_refused(jaxrnn.ModelError, "must be a JSON list of names of initializers", jaxrnn.load, proto)


#: Modules that compute with other weights than the file, and the weights in the message.
OTHERS = {
    "frozen": ({"a/matrix": lambda w: WEIGHTS["a/matrix"]}, "'a/matrix'"),
    "negative": ({"a/bias": np.abs}, "'a/bias'"),
    "large": ({"a/matrix": lambda w: np.minimum(w, np.float32(3))}, "'a/matrix'"),
    "small": ({"a/matrix": lambda w: np.where(np.abs(w) < 0.25, 0, w)}, "'a/matrix'"),
    "branch": ({"a/bias": lambda w: w if w.sum() >= 0 else 2 * w}, "'a/bias'"),
}


def test_other_weights():
    """A module must agree for other weights of both signs, large and small; a refusal names the weights."""
    model = jaxrnn.load(network(WEIGHTS))

    def check(changes, weights=WEIGHTS, then=lambda weights, y: y):
        def run(inputs, given):
            changed = {name: change(given[name]).astype(np.float32) for name, change in changes.items()}
            return [then(given, *run_network(inputs, {**given, **changed})).astype(np.float32)]

        return check_other_weights(model, run, weights, {"x": RECORDING}, "NumPy")

    assert check({}) == []
    for changes, names in OTHERS.values():
        check_refused(jaxrnn.ModelError, f"but not for other values of {names}: output 'y'", check, changes)
    assert check({}, WEIGHTS, lambda weights, y: y * weights["unread"]) == ["unread"]
    # Other weights decide nothing if outputs are noise, do not depend on weights, or are not finite.
    noise = np.random.default_rng(0)
    for then in (
        lambda weights, y: y + noise.standard_normal(y.shape),
        lambda weights, y: 0 * y,
        lambda weights, y: y if weights["a/bias"].max() == 0 else y + np.inf,
    ):
        check_refused(jaxrnn.ModelError, "the weights cannot be checked", check, {}, WEIGHTS, then)


AXES = {"x": {0: "batch", 1: "time"}}
#: A module without anything that a call may change.
NOTHING = Held({})


def model_of(*nodes, **tensors):
    return jaxrnn.load(file_of(nodes, {name: np.asarray(array) for name, array in tensors.items()}))


def test_agreement():
    """A model that agrees is compared at other lengths and batches."""
    model = model_of(helper.make_node("CumSum", ["x", "axis"], ["y"]), axis=np.int64(1))

    def lengths(verify, most=1000):
        def module(arrays):
            if arrays["x"].shape[1] > most:
                raise RuntimeError("too long")
            return [np.cumsum(arrays["x"], axis=1)]

        cases = check_agreement(model, module, {"x": RECORDING}, AXES, "NumPy", NOTHING, verify=verify).cases
        assert all(case.ok for case in cases)
        return [case.dims["time"] for case in cases]

    assert lengths(verify=True) == [9, 10, 18, 1, 45, 153]
    # Sizes at which another size decides the same are left out.
    assert lengths(verify=False) == [9, 10, 1, 153]
    assert lengths(verify=False, most=100) == [9, 10, 1, 45]


def test_streams_agree():
    """The stream is compared for other lengths; a difference is an error, and a refused stream is not compared."""
    example, cumsum = {"x": RECORDING}, helper.make_node("CumSum", ["x", "axis"], ["y"])
    sums = model_of(cumsum, axis=np.int64(1))
    module = lambda arrays: [np.cumsum(arrays["x"], axis=1)]  # noqa: E731
    cases = check_stream(sums, module, example, AXES, "NumPy")
    assert [case.dims for case in cases] == [{"batch": 1, "time": size} for size in (1, 9, 10, 18)]
    words = r"the stream of the file differs from NumPy: 1 of 4 sizes\n  with batch=1, time=10: output 'y'"
    odd = lambda arrays: [np.cumsum(arrays["x"], axis=1) + (arrays["x"].shape[1] == 10)]  # noqa: E731
    check_refused(jaxrnn.ModelError, words, check_stream, sums, odd, example, AXES, "NumPy")
    backwards = model_of(helper.make_node("CumSum", ["x", "axis"], ["y"], reverse=1), axis=np.int64(1))
    assert not check_stream(backwards, module, example, AXES, "NumPy")


def test_differences_are_described():
    """A fixed length, other values and other shapes raise an error that says at which sizes."""
    example = {"x": RECORDING}
    fixed = model_of(helper.make_node("Add", ["x", "table"], ["y"]), table=np.ones((9, 1), np.float32))
    with pytest.raises(jaxrnn.ModelError, match="with batch=3, time=10, NumPy runs and the file fails: node 'y'"):
        check_agreement(fixed, lambda arrays: [arrays["x"] + 1], example, AXES, "NumPy", NOTHING)
    sums = model_of(helper.make_node("CumSum", ["x", "axis"], ["y"]), axis=np.int64(0))
    with pytest.raises(jaxrnn.ModelError, match="differs from NumPy: 2 of 3 sizes"):
        check_agreement(sums, lambda arrays: [np.cumsum(arrays["x"], axis=1)], example, AXES, "NumPy", NOTHING)


def test_the_shortest_length():
    """A file that agrees only from a length on is compared from there, and says so; a given length is expected."""
    sums = model_of(helper.make_node("CumSum", ["x", "axis"], ["y"]), axis=np.int64(1))
    example = {"x": RECORDING}
    module = lambda arrays: [np.cumsum(arrays["x"], axis=1) + (arrays["x"].shape[1] < 6)]  # noqa: E731
    checked = check_agreement(sums, module, example, AXES, "NumPy", NOTHING)
    assert checked.shortest == 6
    assert [case.dims["time"] for case in checked.cases] == [9, 10, 6, 153]
    with pytest.warns(
        UserWarning, match="file of sums agrees with NumPy from 6 frames on; for fewer: .*elements differ"
    ):
        checked.report("sums", "NumPy")
    given = check_agreement(sums, module, example, AXES, "NumPy", NOTHING, 7)
    assert (given.shortest, given.reason, given.cases[2].dims["time"]) == (7, "", 7)
    check_refused(jaxrnn.ModelError, "1 of 3 sizes", check_agreement, sums, module, example, AXES, "NumPy", NOTHING, 5)
    assert len(check_stream(sums, module, example, AXES, "NumPy", 6)) == 4


def test_a_module_that_refuses_sizes():
    """Sizes that the module refuses are left out; a module with a single size cannot be checked."""
    model = model_of(helper.make_node("CumSum", ["x", "axis"], ["y"]), axis=np.int64(1))

    def run(allowed):
        def module(arrays):
            if arrays["x"].shape[1] not in allowed:
                raise RuntimeError("not this length")
            return [np.cumsum(arrays["x"], axis=1)]

        return module

    cases = check_agreement(model, run({9, 18}), {"x": RECORDING}, AXES, "NumPy", NOTHING).cases
    assert [case.dims["time"] for case in cases] == [9, 18]
    with pytest.raises(jaxrnn.ModelError, match="only at the sizes of the example"):
        check_agreement(model, run({9}), {"x": RECORDING}, AXES, "NumPy", NOTHING)


def test_a_comparison_of_nothing():
    """Outputs that are NaN on both sides, or empty, do not agree: nothing was compared."""
    for operator, x, compute in (("Log", -np.abs(RECORDING) - 1, np.log), ("Neg", RECORDING[..., :0], np.negative)):
        proto = file_of([helper.make_node(operator, ["x"], ["y"])], {}, inputs=[("x", ["batch", "time", "n"])])

        def run(arrays, compute=compute):
            with np.errstate(invalid="ignore"):
                return [compute(arrays["x"])]

        words = "(?s)no finite outputs.*output 'y': nothing was compared"
        check_refused(
            jaxrnn.ModelError, words, check_agreement, jaxrnn.load(proto), run, {"x": x}, AXES, "NumPy", NOTHING
        )


def test_shapes_of_outputs():
    """A declared size holds in all runs; sizes that the runs do not decide are open."""

    def run(arrays):
        batch, time = arrays["x"].shape[:2]
        if time == 7:
            raise RuntimeError("not this length")
        shapes = (
            (batch, time, 4),
            (batch * time,),
            (time - time % 4,),
            (2 * time,),
            (max(time, 12),),
            (4,) * min(time, 2),
        )
        return [np.zeros(shape) for shape in shapes]

    found = output_shapes(run, {"x": np.zeros((2, 12, 4))}, AXES)
    assert found == [["batch", "time", 4], [None], [None], [None], [None], [None, None]]
    assert output_shapes(run, {"x": np.zeros((2, 2, 4))}, AXES)[0] == ["batch", "time", 4]

    def fixed(arrays):
        if len(arrays["x"]) != 2:
            raise RuntimeError("not this batch")
        return run(arrays)

    assert output_shapes(fixed, {"x": np.zeros((2, 12, 4))}, AXES)[0] == [None, None, None]


def test_sizes_of_inputs_at_several_rates():
    """Sizes of an example fit names and multiples of names; a message says which axis does not fit, and why."""
    axes = {"x": {1: "T"}, "y": {1: "4*T"}}
    example = {"x": np.zeros((1, 3)), "y": np.zeros((1, 12))}
    assert sizes_of(example, axes) == {"T": 3}
    with pytest.raises(jaxrnn.InputError, match=r"axis 1 of 'y' has size 8, but '4\*T' is 12 elsewhere in the example"):
        sizes_of({**example, "y": np.zeros((1, 8))}, axes)
    with pytest.raises(jaxrnn.InputError, match=r"axis 1 of 'y' has size 10, which is not a multiple as in '4\*T'"):
        sizes_of({"y": np.zeros((1, 10))}, axes)
    for symbol in ("0*T", "²*T", "-1*T", "4*", "T*4"):
        with pytest.raises(jaxrnn.InputError, match="a dimension is a name, or a multiple of a name such as"):
            sizes_of(example, {"y": {1: symbol}})


def test_weights_that_do_not_fit():
    """A shape, an unknown name and a missing name are refused before anything is written."""
    model = jaxrnn.load(network(WEIGHTS))
    shapes = {name: array.shape for name, array in WEIGHTS.items() if name != "unread"}
    assert set(check_weights(model.params, shapes, "Net", None)) == set(shapes)
    cases = [
        ({**model.params, "a/bias": np.zeros(3)}, "has shape \\(3,\\), but Net has \\(2,\\)"),
        ({**model.params, "other": np.zeros(3)}, "Net has no weight 'other'"),
        ({name: array for name, array in model.params.items() if name != "a/bias"}, "params have no 'a/bias'"),
    ]
    for params, message in cases:
        check_refused(jaxrnn.InputError, message, check_weights, params, shapes, "Net", None)
    given = {**model.params, "other": np.zeros(3)}
    check_refused(jaxrnn.InputError, "Net has no weight 'other'", check_weights, given, shapes, "Net", model)
    with pytest.raises(jaxrnn.ModelError, match="differs from the model: output 'y'"):
        check_after(model, model.params, lambda inputs: [np.zeros((1, 16, 2), np.float32)], "Net")


@pytest.mark.parametrize(("suffix", "advice"), [("pt", "from_torch"), ("keras", "from_keras"), ("tflite", "tf2onnx")])
def test_files_of_frameworks(suffix, advice, tmp_path):
    """A file of a framework is refused with the way to a model; an ONNX file may have any name."""
    path = tmp_path / f"network.{suffix}"
    path.write_bytes(b"PK not an ONNX file")
    check_refused(jaxrnn.ModelError, rf"network\.{suffix}.*not an ONNX file.*{advice}", jaxrnn.load, path)
    path.write_bytes(network(WEIGHTS).SerializeToString())
    assert jaxrnn.load(path).inputs[0].name == "x"
