"""Whatever is wrong with a file or an argument: one clear error of the project's own, naming what and where."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jaxrnn

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
RELU = helper.make_node("Relu", ["x"], ["y"], name="r")
WEIGHT = numpy_helper.from_array(np.ones((2, 3), np.float32), "weight")


def model(*nodes, inputs=(X,), outputs=(Y,), initializers=(), opset=17, ir_version=8):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def node(operator, inputs, outputs=("y",), name="n", **attributes):
    return helper.make_node(operator, inputs, outputs, name=name, **attributes)


def changed(tensor, **fields):
    copy = TensorProto()
    copy.CopyFrom(tensor)
    if "dims" in fields:
        del copy.dims[:]
        copy.dims.extend(fields["dims"])
    if "data_type" in fields:
        copy.data_type = fields["data_type"]
    return copy


def recurrent(operator, w, r, b, hidden_size=4):
    arrays = {"W": w, "R": r, "B": b}
    weights = [numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in arrays.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", 1, 3])
    layer = node(operator, ["x", "W", "R", "B"], name="layer", hidden_size=hidden_size)
    return model(layer, inputs=[x], initializers=weights)


def without_opset():
    proto = model(RELU)
    del proto.opset_import[:]
    return proto


def declared(shape):
    return helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)


ADD = node("Add", ["x", "weight"])
INT = helper.make_tensor_value_info("i", TensorProto.INT64, [2, 3])

#: What is wrong: the model, and words that the message must hold.
FILES = {
    "not onnx": (b"hello world, this is not onnx", ["not an ONNX model"]),
    "empty": (b"", ["not an ONNX model"]),
    "another protobuf": (RELU.SerializeToString(), ["ONNX"]),
    "truncated": (model(RELU).SerializeToString()[:-20], ["truncated"]),
    "no such file": ("nowhere.onnx", ["nowhere.onnx", "No such file"]),
    "not a source": (5, ["path, bytes or onnx.ModelProto", "int"]),
    "a cycle": (
        model(node("Add", ["x", "b"], ["y"], "first"), node("Relu", ["y"], ["b"], "second")),
        ["cycle", "first", "second"],
    ),
    "a missing initializer": (
        model(node("Add", ["x", "wieght"]), initializers=[WEIGHT]),
        ["'n'", "'wieght'", "'weight'?"],
    ),
    "a name used twice": (model(RELU, node("Tanh", ["x"], name="again")), ["'y'", "'r'", "'again'", "twice"]),
    "an initializer twice": (model(ADD, initializers=[WEIGHT, WEIGHT]), ["'weight'", "twice"]),
    "inconsistent operands": (
        model(node("MatMul", ["x", "weight"], name="product"), initializers=[WEIGHT]),
        ["'product'", "MatMul", "Incompatible"],
    ),
    "an output of another shape": (model(RELU, outputs=[declared([2, 4])]), ["'r'", "(3) vs (4)"]),
    "inconsistent types": (model(node("Add", ["x", "i"], name="sum"), inputs=[X, INT]), ["'sum'", "int64"]),
    "no outputs": (model(RELU, outputs=[]), ["no outputs"]),
    "an unknown operator": (model(node("Rleu", ["x"])), ["'n'", "Rleu", "opset 17", "nearest", "Relu"]),
    "an unknown domain": (model(node("Relu", ["x"], domain="com.acme")), ["'n'", "com.acme"]),
    "an operator from later": (model(node("Gelu", ["x"])), ["'n'", "Gelu", "20"]),
    "an opset from the future": (model(RELU, opset=99), ["opset 99", "upgrade"]),
    "an opset from long ago": (model(RELU, opset=5), ["opset 5", "version_converter"]),
    "an IR from the future": (model(RELU, ir_version=99), ["IR version 99", "upgrade"]),
    "no opset": (without_opset(), ["no opset"]),
    "an unknown attribute": (model(node("Softmax", ["x"], axiss=1)), ["'n'", "'axiss'", "axis"]),
    "a missing attribute": (model(node("Concat", ["x", "x"])), ["'n'", "'axis'", "missing"]),
    "an attribute of another type": (model(node("Softmax", ["x"], axis="one")), ["'axis'", "STRING", "INT"]),
    "too many inputs": (model(node("Relu", ["x", "x"])), ["'n'", "2 inputs"]),
    "too few inputs": (model(node("Add", ["x"])), ["'n'", "'b'", "missing"]),
    "W of another size": (
        recurrent("LSTM", (1, 12, 3), (1, 16, 4), (1, 32)),
        ["'layer'", "W", "(1, 16, 3)", "(1, 12, 3)"],
    ),
    "R of another size": (recurrent("GRU", (1, 12, 3), (1, 12, 5), (1, 24)), ["'layer'", "hidden_size is 4", "5"]),
    "B of another size": (recurrent("RNN", (1, 4, 3), (1, 4, 4), (1, 4)), ["'layer'", "B", "(1, 8)"]),
    "another hidden_size": (
        recurrent("LSTM", (1, 16, 3), (1, 16, 4), (1, 32), 5),
        ["'layer'", "hidden_size is 5", "4"],
    ),
    "features that W is not for": (recurrent("LSTM", (1, 16, 7), (1, 16, 4), (1, 32)), ["'layer'", "W", "(1, 16, 3)"]),
    "a tensor larger than the file": (
        model(ADD, initializers=[changed(WEIGHT, dims=[10**12, 3])]),
        ["'weight'", "12000000000000 bytes", "24"],
    ),
    "a negative dimension": (model(ADD, initializers=[changed(WEIGHT, dims=[-2, 3])]), ["'weight'", "negative"]),
    "an unknown element type": (model(ADD, initializers=[changed(WEIGHT, data_type=77)]), ["'weight'", "77"]),
    "an input that is not there": (model(ADD, inputs=[X]), ["'weight'"]),
}


@pytest.mark.parametrize("what", FILES)
def test_files(what):
    source, words = FILES[what]
    with pytest.raises(jaxrnn.JaxrnnError) as caught:
        jaxrnn.load(source)
    for word in words:
        assert word in str(caught.value)


def test_every_unsupported_node_is_listed_at_once():
    inner = helper.make_graph([node("Nope", ["x"], ["t"], "inside")], "then", [], [declared(None)])
    inner.output[0].name = "t"
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    branch = node("If", ["c"], name="choice", then_branch=inner, else_branch=inner)
    with pytest.raises(jaxrnn.UnsupportedError) as caught:
        jaxrnn.load(model(node("Foo", ["x"], ["z"], "first"), branch, inputs=[X, condition]))
    assert all(word in str(caught.value) for word in ("'first'", "Foo", "'inside'", "Nope"))


@pytest.mark.parametrize("cut", [10, 1000, 0.5, 0.999])
def test_truncated_real_file(models, cut, tmp_path):
    data = (models / "dtln_1.onnx").read_bytes()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: cut if isinstance(cut, int) else int(cut * len(data))])
    with pytest.raises(jaxrnn.ModelError, match=r"cut\.onnx"):
        jaxrnn.load(path)


@pytest.fixture
def folder(tmp_path):
    """A model's folder with data in it, a secret beside it, and links of both kinds."""
    inside = tmp_path / "model"
    inside.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(1000))
    (inside / "w.bin").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    (inside / "link.bin").symlink_to(tmp_path / "secret.bin")
    (inside / "near.bin").symlink_to("w.bin")
    (tmp_path / "linked").symlink_to(inside)
    return inside


def with_external(folder, location, shape=(2, 3), **entries):
    tensor = TensorProto(name="weight", data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    path = folder / "model.onnx"
    path.write_bytes(model(ADD, initializers=[tensor]).SerializeToString())
    return path


def test_external_data_is_read(folder):
    for location in ("w.bin", "./w.bin", "near.bin"):
        path = with_external(folder, location)
        for where in (path, folder.parent / "linked" / "model.onnx"):
            loaded = jaxrnn.load(where)
            np.testing.assert_array_equal(loaded.params["weight"], np.arange(6).reshape(2, 3))
    previous = os.getcwd()
    os.chdir(folder)
    try:
        np.testing.assert_array_equal(jaxrnn.load("model.onnx").params["weight"], np.arange(6).reshape(2, 3))
    finally:
        os.chdir(previous)


@pytest.mark.parametrize(
    ("location", "details", "word"),
    [
        ("../secret.bin", {}, "outside"),
        ("sub/../../secret.bin", {}, "outside"),
        ("link.bin", {}, "outside"),
        ("nothing.bin", {}, "No such file"),
        ("w.bin", {"shape": (20, 30)}, "ends at 24"),
        ("w.bin", {"offset": 8}, "ends at 24"),
        ("w.bin", {"offset": -8}, "-8"),
        ("w.bin", {"length": 8}, "needs 24"),
        ("w.bin", {"offset": "many"}, "integers"),
        ("w.bin", {"shape": (2**40, 2**20)}, "ends at 24"),
        (".", {}, "regular file"),
        ("", {}, "location"),
    ],
)
def test_external_data_is_refused(folder, location, details, word):
    with pytest.raises(jaxrnn.ModelError, match=word) as caught:
        jaxrnn.load(with_external(folder, location, **details))
    assert "'weight'" in str(caught.value)
    assert "model.onnx" in str(caught.value)


def test_absolute_external_data_is_refused(folder):
    path = with_external(folder, str(folder.parent / "secret.bin"))
    with pytest.raises(jaxrnn.ModelError, match="outside"):
        jaxrnn.load(path)
    with pytest.raises(jaxrnn.ModelError, match="from its path"):
        jaxrnn.load(path.read_bytes())


ONES = np.ones((2, 3), np.float32)

CALLS = {
    "a wrong name": ({"z": ONES}, ["'z'", "x: float32[2, 3]"]),
    "a near name": ({"X": ONES, "x": ONES}, ["'X'"]),
    "nothing": ({}, ["missing", "x: float32[2, 3]"]),
    "float64": ({"x": np.ones((2, 3))}, ["float64", ".astype('float32')"]),
    "integers": ({"x": np.ones((2, 3), np.int64)}, ["int64", ".astype('float32')"]),
    "another rank": ({"x": np.ones(3, np.float32)}, ["rank 2", "rank 1"]),
    "another size": ({"x": np.ones((2, 4), np.float32)}, ["axis 1 must be 3, not 4"]),
    "words": ({"x": "abc"}, ["x: float32[2, 3]", "str"]),
    "None": ({"x": None}, ["None"]),
    "objects": ({"x": np.array([None])}, ["object"]),
    "ragged lists": ({"x": [[1, 2, 3], [4]]}, ["list"]),
}


@pytest.mark.parametrize("what", CALLS)
def test_calls(what):
    inputs, words = CALLS[what]
    loaded = jaxrnn.load(model(RELU))
    for call in (loaded, lambda given: loaded.apply(loaded.params, given)):
        with pytest.raises(jaxrnn.InputError) as caught:
            call(inputs)
        for word in words:
            assert word in str(caught.value)


def test_dimensions_of_one_name_are_one_size():
    xs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("x", "weight")]
    loaded = jaxrnn.load(model(ADD, inputs=xs))
    with pytest.raises(jaxrnn.InputError, match="'batch' is 4 here, but 2 in 'x'"):
        loaded(x=ONES, weight=np.ones((4, 3), np.float32))


def test_other_arguments():
    loaded = jaxrnn.load(model(ADD, initializers=[WEIGHT]))
    with pytest.raises(jaxrnn.InputError, match="by name"):
        loaded(ONES)
    with pytest.raises(jaxrnn.InputError, match=r"missing \['weight'\], unknown \['w'\]"):
        loaded.apply({"w": ONES}, {"x": ONES})
    with pytest.raises(jaxrnn.InputError, match=r"weight.*shape"):
        loaded.apply({"weight": ONES[0]}, {"x": ONES})
    with pytest.raises(jaxrnn.InputError, match=r"model\.params"):
        loaded.apply(None, {"x": ONES})
    with pytest.raises(jaxrnn.InputError, match="'q'"):
        jaxrnn.load(model(RELU), static={"q": 1})
    with pytest.raises(jaxrnn.InputError, match="rank"):
        jaxrnn.load(model(RELU), static={"x": 1.0})
    with pytest.raises(jaxrnn.InputError, match=r"\(x\).*\(y\)"):
        jaxrnn.load(model(RELU), state={"x": "z"})


def test_not_a_number_passes_through():
    loaded = jaxrnn.load(model(ADD, initializers=[WEIGHT]))
    poisoned = ONES.copy()
    poisoned[0, 1] = np.nan
    np.testing.assert_array_equal(np.isnan(loaded(x=poisoned)["y"]), np.isnan(poisoned))


def test_a_failing_node_is_named():
    loaded = jaxrnn.load(
        model(
            node("Reshape", ["x", "shape"], name="fold"),
            inputs=[X, helper.make_tensor_value_info("shape", TensorProto.INT64, [1])],
        )
    )
    with pytest.raises(jaxrnn.NodeError, match=r"'fold' \(Reshape-14\) on float32\[2, 3\]"):
        loaded(x=ONES, shape=np.array([5]))
    np.testing.assert_array_equal(loaded(x=ONES, shape=np.array([6]))["y"], np.ones(6))


def test_a_shape_that_depends_on_data_says_what_to_do():
    import jax

    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [1])
    proto = model(node("Reshape", ["x", "shape"], name="fold"), inputs=[X, shape])
    loaded = jaxrnn.load(proto)
    with pytest.raises(jaxrnn.StaticValueError, match=r"'fold'.*static=.*outside jit"):
        jax.jit(loaded.apply)(loaded.params, {"x": ONES, "shape": np.array([6])})
    bound = jaxrnn.load(proto, static={"shape": [6]})
    assert jax.jit(bound.apply)(bound.params, {"x": ONES})["y"].shape == (6,)


def test_protobuf_is_not_changed_by_loading():
    proto = model(ADD, initializers=[WEIGHT])
    before = proto.SerializeToString(deterministic=True)
    jaxrnn.load(proto)
    assert proto.SerializeToString(deterministic=True) == before
    assert isinstance(proto, onnx.ModelProto)
