"""Weights found again in exported files, and comparisons with modules, without a framework."""

import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from refusals import check_refused
from small_models import graph_of, make_model

import jaxrnn
from jaxrnn.frameworks.agreement import check_after, check_agreement, check_stream, check_weights, sizes_of
from jaxrnn.frameworks.weights import export_with_names

FLOAT = onnx.TensorProto.FLOAT


def file_of(nodes, tensors, outputs=("y",), inputs=(("x", ["batch", "time", 4]),)):
    weights = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    return make_model(graph_of(nodes, dict(inputs), dict.fromkeys(outputs), weights, "exported"))


def gates(array, order):
    return np.concatenate([np.split(array, len(order))[index] for index in order])


def lstm(weights):
    """Export as tf2onnx: kernels transposed, gates i, f, c, o as i, o, f, c, and zeros as the bias of the state."""
    order = (0, 3, 1, 2)
    bias = gates(weights["cell/bias"], order)
    tensors = {
        "const_7": gates(weights["cell/kernel"].T, order)[None],
        "const_3": gates(weights["cell/recurrent"].T, order)[None],
        "const_9": np.concatenate([bias, np.zeros_like(bias)])[None],
        "head": weights["head/kernel"],
        "c1": weights["head/bias"][None, None],
    }
    nodes = [
        helper.make_node("Transpose", ["x"], ["frames"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["frames", "const_7", "const_3", "const_9"], ["Y"], hidden_size=3),
        helper.make_node("Squeeze", ["Y", "one"], ["rows"]),
        helper.make_node("Transpose", ["rows"], ["back"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["back", "head"], ["product"]),
        helper.make_node("Add", ["product", "c1"], ["y"]),
    ]
    proto = file_of(nodes, tensors)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    return proto


def lstm_weights(bias=0.0):
    rng = np.random.default_rng(0)
    shapes = {"cell/kernel": (4, 12), "cell/recurrent": (3, 12), "cell/bias": (12,), "head/kernel": (3, 2)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**weights, "cell/bias": np.full(12, bias, np.float32), "head/bias": np.zeros(2, np.float32)}


RECORDING = np.random.default_rng(1).standard_normal((2, 9, 4)).astype(np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("bias", [0.0, 0.25])
def test_gates_transposes_and_zeros(bias):
    """Weights keep their names and layouts, equal values and zeros too, and the file computes the same."""
    weights = lstm_weights(bias)
    exported = export_with_names(weights, lstm)
    model, plain = jaxrnn.load(exported), jaxrnn.load(lstm(weights))
    assert set(model.params) == set(weights)
    assert all(np.array_equal(model.params[name], array) for name, array in weights.items())
    assert np.array_equal(model({"x": RECORDING})["y"], plain({"x": RECORDING})["y"])
    other = {
        name: array + np.arange(array.size, dtype=np.float32).reshape(array.shape) for name, array in weights.items()
    }
    theirs = jaxrnn.load(lstm(other))({"x": RECORDING})["y"]
    assert np.array_equal(model.apply(other, {"x": RECORDING})["y"], theirs)


@pytest.mark.thorough
def test_streams_and_written_files(tmp_path):
    """A model with named weights streams, and the weights keep their names in a written file."""
    weights = lstm_weights(0.25)
    model = jaxrnn.load(export_with_names(weights, lstm))
    whole = model({"x": RECORDING[:1]})["y"]
    assert np.abs(model.stream("time").run(model.params, {"x": RECORDING[:1]})["y"] - whole).max() < 1e-6
    jaxrnn.export_onnx(model, {name: 2 * array for name, array in model.params.items()}, tmp_path / "tuned.onnx")
    tuned = jaxrnn.load(tmp_path / "tuned.onnx")
    assert all(np.array_equal(tuned.params[name], 2 * array) for name, array in weights.items())


def folded(weights):
    """Export as if a scale were part of a matrix: the matrix and the scale are no longer there."""
    tensors = {"scaled": weights["matrix"] * weights["scale"], "shift": weights["shift"]}
    nodes = [helper.make_node("MatMul", ["x", "scaled"], ["z"]), helper.make_node("Add", ["z", "shift"], ["y"])]
    return file_of(nodes, tensors)


def halved(weights):
    """Export a product by a power of two, whose elements look like marks of other elements."""
    return file_of([helper.make_node("MatMul", ["x", "half"], ["y"])], {"half": weights["matrix"] / 2})


@pytest.mark.parametrize(("export", "kept"), [(folded, {"shift"}), (halved, set())])
def test_computed_weights(export, kept):
    """A tensor that the exporter has computed keeps its value, and its weights are not parameters of their own."""
    rng = np.random.default_rng(2)
    shapes = {"matrix": (4, 4), "scale": (4,), "shift": (4,)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    exported = export_with_names(weights, export)
    model = jaxrnn.load(exported)
    assert {*weights} & {*model.params} == kept
    assert kept == {*model.params} or not kept
    assert np.array_equal(model({"x": RECORDING})["y"], jaxrnn.load(export(weights))({"x": RECORDING})["y"])


def arranged(how):
    def export(weights):
        tensor = how(weights["a"], weights["b"])
        node = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.ascontiguousarray(tensor)))
        return file_of([node, helper.make_node("Mul", ["c", "x"], ["y"])], {}, inputs=[("x", [])])

    return export


ARRANGEMENTS = {
    "equal": lambda a, b: a,
    "turned": lambda a, b: a.transpose(2, 0, 1),
    "flat": lambda a, b: a.reshape(-1),
    "flipped": lambda a, b: a[:, ::-1],
    "rows": lambda a, b: a[1, [2, 0, 2, 2]].T,
    "cut": lambda a, b: a[1:, :2],
    "joined": lambda a, b: np.concatenate([b, a[0].T, np.full((4, 1), 0.5, np.float32)], axis=1),
    "stacked": lambda a, b: np.stack([a[0].T, b]),
    "shuffled": lambda a, b: np.random.default_rng(3).permutation(np.append(a.ravel(), [0.0, 3.0])).astype(np.float32),
    "mixed": lambda a, b: np.where(np.eye(4, 3, dtype=bool), b, a[1].T),
}


@pytest.mark.parametrize("how", ARRANGEMENTS.values(), ids=ARRANGEMENTS)
def test_any_arrangement(how):
    """Each arrangement of elements and constants, in an initializer or a Constant node, is found and repeated."""
    a = np.random.default_rng(4).standard_normal((2, 3, 4)).astype(np.float32)
    b = np.zeros((4, 3), np.float32)
    exported = export_with_names({"a": a, "b": b}, arranged(how))
    model = jaxrnn.load(exported)
    assert set(model.params) <= {"a", "b"}
    new = {
        "a": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
        "b": -1 - np.arange(12, dtype=np.float32).reshape(4, 3),
    }
    given = {name: new[name] for name in model.params}
    assert np.array_equal(model.apply(given, {"x": np.float32(1)})["y"], how(new["a"], new["b"]))


def test_a_constant_inside_a_branch():
    """A weight inside a subgraph becomes a parameter of the outer graph."""

    def export(weights):
        def branch(array):
            tensor = numpy_helper.from_array(np.ascontiguousarray(array))
            nodes = [
                helper.make_node("Constant", [], ["c"], value=tensor),
                helper.make_node("MatMul", ["x", "c"], ["z"]),
            ]
            return graph_of(nodes, {}, {"z": None}, name="branch")

        nodes = [
            helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
            helper.make_node("Less", ["total", "zero"], ["negative"]),
            helper.make_node(
                "If", ["negative"], ["y"], then_branch=branch(weights["w"]), else_branch=branch(weights["w"].T)
            ),
        ]
        return file_of(nodes, {"zero": np.zeros((), np.float32)})

    weight = np.random.default_rng(5).standard_normal((4, 4)).astype(np.float32)
    model = jaxrnn.load(export_with_names({"w": weight}, export))
    assert list(model.params) == ["w"]
    for sign in (1, -1):
        x = sign * np.abs(RECORDING)
        assert np.allclose(model({"x": x})["y"], x @ (weight if sign < 0 else weight.T), atol=1e-6)


def test_stated_parameters():
    """The list of weights in a file decides about its parameters; a wrong list is refused."""
    proto = export_with_names(lstm_weights(), lstm)
    (entry,) = (each for each in proto.metadata_props if each.key == "jaxrnn.weights")
    assert set(json.loads(entry.value)) == set(lstm_weights())
    entry.value = json.dumps(["head/kernel"])
    assert list(jaxrnn.load(proto).params) == ["head/kernel"]
    for wrong in ("[", '["nothing"]', "3", "[[]]"):
        entry.value = wrong
        check_refused(jaxrnn.ModelError, "must be a JSON list of names of initializers", jaxrnn.load, proto)


AXES = {"x": {0: "batch", 1: "time"}}


def model_of(*nodes, **tensors):
    return jaxrnn.load(file_of(nodes, {name: np.asarray(array) for name, array in tensors.items()}))


def test_agreement():
    """A model that agrees is compared at other lengths and batches."""
    model = model_of(helper.make_node("CumSum", ["x", "axis"], ["y"]), axis=np.int64(1))
    cases = check_agreement(model, lambda arrays: [np.cumsum(arrays["x"], axis=1)], {"x": RECORDING}, AXES, "NumPy")
    assert [case.sizes["time"] for case in cases] == [9, 1, 10, 18]
    assert all(case.ok for case in cases)


def test_streams_agree():
    """The stream is compared for other lengths; a difference is an error, and a refused stream is not compared."""
    example, cumsum = {"x": RECORDING}, helper.make_node("CumSum", ["x", "axis"], ["y"])
    sums = model_of(cumsum, axis=np.int64(1))
    module = lambda arrays: [np.cumsum(arrays["x"], axis=1)]  # noqa: E731
    cases = check_stream(sums, module, example, AXES, "NumPy")
    assert [case.sizes for case in cases] == [{"batch": 1, "time": size} for size in (1, 9, 10, 18)]
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
        check_agreement(fixed, lambda arrays: [arrays["x"] + 1], example, AXES, "NumPy")
    sums = model_of(helper.make_node("CumSum", ["x", "axis"], ["y"]), axis=np.int64(0))
    with pytest.raises(jaxrnn.ModelError, match="differs from NumPy: 3 of 4 sizes"):
        check_agreement(sums, lambda arrays: [np.cumsum(arrays["x"], axis=1)], example, AXES, "NumPy")


def test_a_module_that_refuses_sizes():
    """Sizes that the module refuses are left out; a module with a single size cannot be checked."""
    model = model_of(helper.make_node("CumSum", ["x", "axis"], ["y"]), axis=np.int64(1))

    def run(allowed):
        def module(arrays):
            if arrays["x"].shape[1] not in allowed:
                raise RuntimeError("not this length")
            return [np.cumsum(arrays["x"], axis=1)]

        return module

    cases = check_agreement(model, run({9, 18}), {"x": RECORDING}, AXES, "NumPy")
    assert [case.sizes["time"] for case in cases] == [9, 18]
    with pytest.raises(jaxrnn.ModelError, match="only at the sizes of the example"):
        check_agreement(model, run({9}), {"x": RECORDING}, AXES, "NumPy")


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
    model = jaxrnn.load(export_with_names(lstm_weights(), lstm))
    shapes = {name: array.shape for name, array in lstm_weights().items()}
    assert set(check_weights(model.params, shapes, "Net", None)) == set(shapes)
    cases = [
        ({**model.params, "head/bias": np.zeros(3)}, "has shape \\(3,\\), but Net has \\(2,\\)"),
        ({**model.params, "other": np.zeros(3)}, "Net has no weight 'other'"),
        ({name: array for name, array in model.params.items() if name != "head/bias"}, "params have no 'head/bias'"),
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
    path.write_bytes(lstm(lstm_weights()).SerializeToString())
    assert jaxrnn.load(path).inputs[0].name == "x"
