"""Whatever is wrong with a file: one clear error of the project's own, naming what and where."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from plain_graphs import ADD, RELU, WEIGHT, X, Y, model, node
from refusals import check_refused
from small_models import graph_of, make_model
from verifier import peer_outputs

import jaxrnn
from jaxrnn.model.inspection import inspect_model
from jaxrnn.onnx.operators import pooling, shaping
from jaxrnn.steps import schemas


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


def edited(proto, edit):
    """The model with something done to it that the helpers of onnx would not do."""
    edit(proto)
    return proto


def reading(count):
    """Functions whose nodes stand in any order, in each other."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    nodes = [helper.make_node("F", ["a"], [f"v{index}"], domain="own") for index in range(count)]
    functions = [
        helper.make_function("own", "F", ["a"], ["b"], [node("Relu", ["t"], ["b"]), node("Neg", ["a"], ["t"])], opsets),
        helper.make_function("own", "G", ["a"], [f"v{count - 1}"], nodes, opsets),
    ]
    graph = helper.make_graph([helper.make_node("G", ["x"], ["y"], domain="own")], "g", [X], [Y])
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)


INT = helper.make_tensor_value_info("i", TensorProto.INT64, [2, 3])
BOOL = helper.make_tensor_value_info("c", TensorProto.BOOL, [])

#: What is wrong: the model, and words that the message must hold.
FILES = {
    "not onnx": (b"hello world, this is not onnx", ["not an ONNX model"]),
    "empty": (b"", ["not an ONNX model"]),
    "another protobuf": (RELU.SerializeToString(), ["ONNX"]),
    "truncated": (model(RELU).SerializeToString()[:-20], ["truncated"]),
    "no such file": ("nowhere.onnx", ["nowhere.onnx", "No such file"]),
    "a path that cannot be": ("model\0.onnx", ["cannot be the name of a file"]),
    "a device": (os.devnull, ["a device, not a regular file"]),
    "a folder": (os.curdir, ["a folder, not a regular file"]),
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
    "more elements than a float can count": (
        model(ADD, initializers=[TensorProto(name="weight", data_type=TensorProto.FLOAT, dims=[2**62] * 20)]),
        ["'weight'", "float_data has 0"],
    ),
    "more axes than an array can have": (
        model(ADD, initializers=[changed(WEIGHT, dims=[2**62] * 300)]),
        ["'weight'", "300 axes", "at most 64"],
    ),
    "an input of more axes than an array can have": (
        model(RELU, inputs=[helper.make_tensor_value_info("x", TensorProto.FLOAT, [2**62] * 300)]),
        ["'x'", "300 axes", "at most 64"],
    ),
    "a Constant without an output": (
        model(RELU, helper.make_node("Constant", [], [], "c", value_float=1.0)),
        ["'c'", "no output"],
    ),
    "a negative dimension": (model(ADD, initializers=[changed(WEIGHT, dims=[-2, 3])]), ["'weight'", "negative"]),
    "an unknown element type": (model(ADD, initializers=[changed(WEIGHT, data_type=77)]), ["'weight'", "77"]),
    "an input that is not there": (model(ADD, inputs=[X]), ["'weight'"]),
    "an attribute that holds nothing": (
        edited(model(node("ConstantOfShape", ["x"])), lambda p: p.graph.node[0].attribute.add(name="value", type=4)),
        ["'n'", "'value'", "TENSOR", "no value"],
    ),
    "an attribute of no type": (
        edited(model(RELU), lambda p: p.graph.node[0].attribute.add(name="alpha")),
        ["'r'", "'alpha'", "unknown type 0"],
    ),
    "an attribute without a name": (
        edited(model(RELU), lambda p: p.graph.node[0].attribute.add(i=1, type=2)),
        ["'r'", "no name"],
    ),
    "text that is none": (
        model(node("Conv", ["x", "weight"], auto_pad=b"\xff\xfe"), initializers=[WEIGHT]),
        ["'n'", "'auto_pad'", "UTF-8"],
    ),
    "text of an operator of another format": (
        model(node("PartitionedCall", ["x"], config_proto=b"\xff\xfe")),
        ["'n'", "no operator PartitionedCall", "converter", "'config_proto'", "UTF-8"],
    ),
    "a name that is no text": (model(RELU).SerializeToString().replace(b"Relu", b"Re\xff\xfe"), ["UTF-8", "damaged"]),
    "an operator without a name": (model(helper.make_node("", ["x"], ["y"], name="n")), ["'n'", "op_type"]),
    "an input of no type that there is": (
        edited(model(RELU), lambda p: setattr(p.graph.input[0].type.tensor_type, "elem_type", -1)),
        ["'x'", "element type -1"],
    ),
    "an input without a name": (edited(model(RELU), lambda p: p.graph.input.add()), ["input has no name"]),
    "more outputs than there are": (model(node("Relu", ["x"], ["y", "z"])), ["'n'", "2 outputs", "at most 1"]),
    "a body that returns a value of the outer graph": (
        onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["": 17]> m (float[2, 3] x, float[3] h) => (float[3] l, float[2, 3] y) {'
            "l, y = Scan <num_scan_inputs: int = 1, body: graph = b (float[3] a, float[3] f) => "
            "(float[3] n, float[3] h) { n = Add (a, f) }> (h, x) }"
        ),
        ["Scan", "returns 'h' of an outer graph", "Identity"],
    ),
    "outputs that no definition counts": (
        model(helper.make_node("QuickGelu", ["x"], ["z", "y"], name="n", domain="com.microsoft")),
        ["com.microsoft"],
    ),
}


#: Nodes that inference may miss, with a constant and the words of the error.
NODES = {
    "negative repeats": ("y = Tile (x, c)", "int64[2] c = {2, -1}", "repeats must be from 0 on, not [2, -1]"),
    "more scanned inputs than inputs": (
        "y = Scan <num_scan_inputs: int = 7, body: graph = b (float[3] a) => (float[3] d) { d = Neg (a) }> (x)",
        "int64 c = {0}",
        "num_scan_inputs must be from 1 to the 1 inputs, not 7",
    ),
    "a vector as a kernel": ("y = Conv (x, c)", "float[3] c = {1, 2, 3}", "Conv"),
}


@pytest.mark.parametrize("what", NODES)
def test_nodes_that_cannot_be_run(what, monkeypatch):
    """The error names the mistake when the node runs, and when the state is looked for if the node could have some."""
    monkeypatch.setattr("jaxrnn.model.loading.check_shapes", lambda proto, strict: {})
    text, constant, words = NODES[what]
    header = '<ir_version: 9, opset_import: ["": 19]> bad (float[2, 3] x) => (float y)'
    model = jaxrnn.load(onnx.parser.parse_model(f"{header} <{constant}> {{ {text} }}"))
    if "Scan" in text:  # which could have state
        with pytest.raises(jaxrnn.StateError, match=re.escape(words)):
            _ = model.state
    else:
        assert not model.state
    with pytest.raises(jaxrnn.JaxrnnError) as caught:
        model.apply(model.params, {"x": np.ones((2, 3), np.float32)})
    assert words in str(caught.value)


@pytest.mark.parametrize("what", FILES)
def test_files(what):
    source, words = FILES[what]
    with pytest.raises(jaxrnn.JaxrnnError) as caught:
        jaxrnn.load(source)
    for word in words:
        assert word in str(caught.value)


def test_nodes_of_functions_stand_in_any_order():
    loaded = jaxrnn.load(reading(2))
    np.testing.assert_array_equal(loaded(x=-np.ones((2, 3), np.float32))["y"], np.ones((2, 3)))


def mistyped_constant():
    constant = helper.make_node("Constant", [], ["c"], name="constant", value_ints=[1, 2])
    constant.attribute[0].name = "value"
    return model(constant, RELU)


def quantised_with_flat_weights():
    layer = helper.make_node(
        "DynamicQuantizeLSTM", ["x", "W", "R"], ["y"], name="layer", domain="com.microsoft", hidden_size=4
    )
    weights = [numpy_helper.from_array(np.ones(3, np.int8), name) for name in ("W", "R")]
    proto = model(layer, initializers=weights)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


def referring(kind=onnx.AttributeProto.FLOAT, name="slope", *, inside=True):
    """A node whose attribute is one of the function that it is in, or is said to be."""
    inner = node("Elu", ["a"], ["b"])
    inner.attribute.append(onnx.AttributeProto(name="alpha", type=kind, ref_attr_name=name))
    if not inside:
        inner.input[0], inner.output[0] = "x", "y"
        return model(inner)
    function = helper.make_function("own", "Bend", ["a"], ["b"], [inner], [helper.make_opsetid("", 17)], ["slope"])
    proto = model(node("Bend", ["x"], domain="own"))
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    return proto


def referring_to_graphs():
    return referring(onnx.AttributeProto.GRAPHS)


def branching_on_no_attribute():
    branch = helper.make_graph([referring(inside=False).graph.node[0]], "branch", [], [Y])
    return model(node("If", ["c"], then_branch=branch, else_branch=branch), inputs=[X, BOOL])


@pytest.mark.parametrize(
    ("proto", "words"),
    [
        (referring(inside=False), "'alpha' refers to the attribute 'slope'.* not inside a function"),
        (referring(name="steep"), "'alpha' refers to the attribute 'steep'.* declares slope"),
        (branching_on_no_attribute(), "_branch: node 'n' .*'alpha'.* not inside a function"),
    ],
)
def test_attributes_that_refer_to_nothing(proto, words):
    for look in (inspect_model, jaxrnn.load):
        check_refused(jaxrnn.ModelError, words, look, proto)


def mistyped_scan():
    """A Scan from zeros, which are looked at as the start of a recurrence."""
    body = graph_of([node("Add", ["h", "x"], ["h_next"])], {"h": [3], "x": [3]}, {"h_next": [3]}, name="body")
    zeros = numpy_helper.from_array(np.zeros(3, np.float32), "zeros")
    return model(node("Scan", ["zeros", "x"], ["y"], body=body, num_scan_inputs=1.0), initializers=[zeros])


def copying_nothing():
    """A Loop with a carry that is the copy of no value."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("h", "h_next")]
    trip = [helper.make_tensor_value_info("trip", TensorProto.INT64, []), BOOL]
    body = helper.make_graph([node("Identity", [], ["h_next"])], "body", [*trip, ends[0]], [BOOL, ends[1]])
    zeros = numpy_helper.from_array(np.zeros(3, np.float32), "zeros")
    return model(node("Loop", ["", "", "zeros"], ["y"], body=body), initializers=[zeros])


def scanning_with_initializers():
    """A Scan with a body in which an initializer is the first value of a carry."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("h", "x", "h_next")]
    zeros = numpy_helper.from_array(np.zeros(3, np.float32), "h")
    body = helper.make_graph([node("Add", ["h", "x"], ["h_next"])], "body", ends[:2], [ends[2], ends[2]], [zeros])
    return model(node("Scan", ["x"], ["y"], body=body, num_scan_inputs=0))


def unnamed_constant():
    """A large Constant without a name, which has no output after the file is written again."""
    large = numpy_helper.from_array(np.zeros(500, np.float32))
    return model(helper.make_node("Constant", [], [""], value=large), node("Foo", ["x"]))


def returning_an_absent_input():
    """A function that returns an optional input, which the call leaves out."""
    inner = [helper.make_node("Neg", ["a"], ["c"])]
    function = helper.make_function("own", "Both", ["a", "b"], ["c", "b"], inner, [helper.make_opsetid("", 17)])
    proto = model(helper.make_node("Both", ["x"], ["y", "z"], domain="own"), node("Neg", ["z"], ["w"]))
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    return proto


def rows_without_elements():
    rows = TensorProto(name="rows", data_type=TensorProto.UINT8, dims=[2**62, 0], raw_data=b"")
    return model(node("Foo", ["x", "rows"]), initializers=[rows])


def packed_rows_without_elements():
    rows = TensorProto(name="rows", data_type=TensorProto.INT4, dims=[2**62, 0], raw_data=b"")
    return model(node("Foo", ["x", "rows"]), initializers=[rows])


UNRUNNABLE = [
    rows_without_elements,
    packed_rows_without_elements,
    unnamed_constant,
    returning_an_absent_input,
    mistyped_constant,
    mistyped_scan,
    copying_nothing,
    scanning_with_initializers,
    quantised_with_flat_weights,
    referring_to_graphs,
]


@pytest.mark.parametrize("build", UNRUNNABLE)
def test_looking_into_a_file_that_cannot_be_run(build):
    for look in (inspect_model, functools.partial(inspect_model, graph=True), jaxrnn.load):
        with contextlib.suppress(jaxrnn.JaxrnnError):
            look(build().SerializeToString())


def test_a_sequence_is_no_tensor(monkeypatch):
    """Inference finds most such files, but not all."""
    monkeypatch.setattr("jaxrnn.model.loading.check_shapes", lambda proto, strict: {})
    made = node("SequenceConstruct", ["x", "x"], ["s"], name="make")
    with pytest.raises(jaxrnn.NodeError, match=r"'n' \(MatMul-13\).*input A is a sequence"):
        jaxrnn.load(model(made, node("MatMul", ["s", "x"])))({"x": np.ones((2, 3), np.float32)})


def test_negative_dimensions_are_open():
    xs = helper.make_tensor_value_info("x", TensorProto.FLOAT, [-1, 3])
    loaded = jaxrnn.load(model(RELU, inputs=[xs]))
    assert loaded.inputs[0].shape == ("x_dim_0", 3)
    assert loaded(x=np.ones((5, 3), np.float32))["y"].shape == (5, 3)


def gru_file(x=("T", 1, 6), h=(1, 1, 4), y=("T", 1, 4)):
    """A GRU over time with its state, and declared shapes of ``x``, ``h`` (before and after) and ``y``."""
    weights = {"W": draws_of(1, 12, 6), "R": draws_of(1, 12, 4), "axis": np.array([1])}
    nodes = [
        helper.make_node("GRU", ["x", "W", "R", "", "", "h"], ["Y", "h_out"], hidden_size=4),
        helper.make_node("Squeeze", ["Y", "axis"], ["y"]),
    ]
    return make_model(graph_of(nodes, {"x": [*x], "h": [*h]}, {"y": [*y], "h_out": [*h]}, weights))


def draws_of(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.filterwarnings("ignore:.*the nodes give")
@pytest.mark.parametrize("shape", [("T", 1, 7), ("T", 4)], ids=str)
def test_an_output_of_another_shape_is_a_warning(shape, tmp_path):
    file = gru_file(y=shape)
    inputs = {"x": draws_of(5, 1, 6), "h": np.zeros((1, 1, 4), np.float32)}
    with pytest.warns(UserWarning, match=r"output y: .*, but the nodes give y: float32\[T, 1, 4\]"):
        model = jaxrnn.load(file)
    assert model.outputs[0].shape == ("T", 1, 4)
    np.testing.assert_allclose(model(inputs)["y"], peer_outputs(file, inputs)["y"], atol=1e-6)
    assert inspect_model(file).corrected == model.corrected != ()
    assert pickle.loads(pickle.dumps(model)).outputs == model.outputs
    check_refused(jaxrnn.ModelError, "differ in (dimension|rank)", jaxrnn.load, file, declared="strict")
    check_refused(jaxrnn.InputError, "'lenient' or 'strict', not 'no'", jaxrnn.load, file, declared="no")


@pytest.mark.parametrize("name", ["?", "None", "", "N"])
def test_sizes_that_share_a_name_and_nothing_else(name):
    """``?`` is no name; the axes of one name are told apart by array and axis."""
    file = gru_file((name, name, 6), (1, name, 4), (name, name, 4))
    inputs = {"x": draws_of(5, 2, 6), "h": np.zeros((1, 2, 4), np.float32)}
    model = jaxrnn.load(file)
    if name == "N":
        remedy = r"`jaxrnn.load\(path, dims={'x_dim_1': 'B'}\)`"
        check_refused(jaxrnn.InputError, f"'N' is 2 here, but 5 in 'x'; .*{remedy}", model, inputs)
        model = jaxrnn.load(file, dims={"x_dim_0": "T"})
        assert model.inputs[0].shape == ("T", "N", 6)
    np.testing.assert_allclose(model(inputs)["y"], peer_outputs(file, inputs)["y"], atol=1e-6)
    assert [variable.name for variable in model.state] == ["h"]
    outputs, _ = model.step(model.params, model.init(2), {"x": inputs["x"][:1]})
    assert outputs["y"].shape == (1, 2, 4)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.float32, np.float64])
def test_the_place_of_the_extreme_in_every_type(dtype):
    """Compiled by a caller whose JAX has no 64 bits, too: JAX lowers its own argmax as the caller has it."""
    import jax

    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        node("Constant", [], ["c"], "c", value=numpy_helper.from_array(np.array([[1, 5, 5, 2]], dtype))),
        node("Cast", ["x"], ["wide"], "cast", to=kind),
        node("Add", ["wide", "c"], ["sum"], "add"),
        node("ArgMax", ["sum"], ["y"], "first", axis=1, keepdims=0),
    ]
    zeros, place = (helper.make_tensor_value_info(*each) for each in (("x", 1, [1, 4]), ("y", TensorProto.INT64, [1])))
    loaded = jaxrnn.load(model(*nodes, inputs=[zeros], outputs=[place]))
    for call in (loaded.apply, jax.jit(loaded.apply)):
        assert call(loaded.params, {"x": np.zeros((1, 4), np.float32)})["y"].tolist() == [1]


@pytest.mark.parametrize("version", [2**40, 2**31, -1, -(2**40)])
def test_versions_of_other_domains_have_any_size(version):
    """What ONNX's C++ cannot hold is a version like any other."""
    nodes = [
        helper.make_node("Normalizer", ["x"], ["y"], domain="ai.onnx.ml"),
        helper.make_node("FusedMatMul", ["y", "y"], ["z"], domain="com.microsoft"),
    ]
    graph = graph_of(nodes, {"x": [2, 2]}, {"z": [2, 2]})
    versions = [helper.make_opsetid(domain, version) for domain in ("ai.onnx.ml", "com.microsoft")]
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), *versions], ir_version=8)
    for look in (jaxrnn.load, inspect_model):
        with contextlib.suppress(jaxrnn.JaxrnnError):
            look(proto)


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
    check_refused(jaxrnn.ModelError, r"cut\.onnx", jaxrnn.load, path)


def test_attributes_and_shapes_that_onnx_has_not_checked():
    """Inference of ONNX refuses most of these files, but not in every graph."""
    for strides in ([-(2**31)], [0]):
        with pytest.raises(ValueError, match="strides must be 1 or more"):
            pooling.per_axis(strides, 1, "strides")
    assert pooling.per_axis([2], 1, "strides") == (2,)
    assert shaping._integers([np.array([np.nan])]) is None
    assert shaping._integers([np.array([2, -1])]) == (2, -1)


def test_numbers_of_frames_have_32_bits():
    """The pulse of a damaged file would overflow in the flush."""
    assert [schemas.is_positive(number) for number in (0, 1, 2**31 - 1, 2**31)] == [False, True, True, False]
