"""Streams, steps and networks as files: values, state, and files loaded again."""

from __future__ import annotations

import itertools
import struct

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from export_models import (
    NEW,
    STORAGES,
    TIMES,
    call,
    check_reads_back,
    constant,
    exported,
    function_of,
    info,
    model_of,
    put,
    tensor,
)
from exported_files import ExportedStream
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from test_export_step import assert_close
from test_models import CASES, random_inputs
from tiers import of_tiers
from verifier import assert_same, peer_outputs, run_session, session, verify

import jaxrnn
from jaxrnn.onnx.writing import in_tensor

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])


def stepped(model, inputs):
    """The parameters after one step of gradient descent, and the compiled outputs for parameters."""

    def loss(params):
        outputs = model.apply(params, inputs)
        floats = [value for value in outputs.values() if jnp.issubdtype(value.dtype, jnp.floating)]
        return sum(jnp.mean(value**2) for value in floats), outputs

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    gradients = jax.tree.map(np.asarray, run(model.params)[1])
    size, slope = (np.sqrt(sum(np.sum(v**2) for v in tree.values())) for tree in (model.params, gradients))
    new = {name: np.asarray(value - 0.01 * size / slope * gradients[name]) for name, value in model.params.items()}
    return new, lambda params: run(params)[0][1]


#: Of each converter one or two.
NETWORKS = ("dtln_1", "dtln_2", "gtcrn", "dual_path_net", "predictor_net", "silero_vad_16k_op15")


def scaled(model, inputs):
    """Parameters a few per cent larger or smaller: for a network whose gradient takes minutes to compile."""
    rng = np.random.default_rng(0)
    new = {name: np.asarray(v * rng.uniform(0.95, 1.05, v.shape).astype(v.dtype)) for name, v in model.params.items()}
    return new, lambda params: jax.jit(model.apply)(params, inputs)


@pytest.mark.parametrize("name", of_tiers(NETWORKS, [], ("silero_vad_16k_op15",)))
def test_a_step_of_training_on_a_real_model(models, tmp_path, name):
    lengths, static = CASES[name]
    path, out = models / f"{name}.onnx", tmp_path / "out.onnx"
    data = path.read_bytes()
    model = jaxrnn.load(path, static=static)
    assert exported(model, model.params, out) == data
    # The shortest recordings of Silero have no frame.
    inputs = random_inputs(model, lengths[1 if "silero" in name else 0])
    new, outputs = (scaled if name == "gtcrn" else stepped)(model, inputs)
    expected, changed = data, 0
    for key, value in model.program.parameters.items():
        if data.count(value.tobytes()) == 1:
            expected = expected.replace(value.tobytes(), new[key].tobytes())
            changed += new[key].tobytes() != value.tobytes()
        else:  # no telling from outside which of them must change
            new[key] = value
    assert changed >= len(new) / 2  # all but those of the branch that is not taken
    assert exported(model, new, out) == expected
    check_reads_back(out, new, static=static)
    peer = peer_outputs(out, {**inputs, **{key: np.asarray(value) for key, value in static.items()}})
    assert_same(outputs(new), peer, {key: 1e-5 * np.abs(value).max() for key, value in peer.items()})


# --- Every way to store a tensor


@pytest.mark.parametrize("storage", STORAGES)
def test_storages(tmp_path, storage):
    """The file is what protobuf makes of the same proto with these elements; engines compute with them."""
    proto, find = STORAGES[storage]
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    model = jaxrnn.load(path)
    assert exported(model, model.params, tmp_path / "same.onnx") == path.read_bytes()
    name = next(name for name in model.params if name.endswith("w"))
    new = np.asarray(NEW, model.params[name].dtype)
    params = {**model.params, name: new}
    expected = onnx.ModelProto()
    expected.CopyFrom(proto)
    put(find(expected), new)
    assert exported(model, params, path) == expected.SerializeToString()
    reloaded = check_reads_back(path, params)
    inputs = {"x": X.astype(new.dtype)}
    y = model.apply(params, inputs)
    assert_same(reloaded(inputs), y, atol=1e-6)
    if new.dtype.isbuiltin == 1:
        assert_same(y, peer_outputs(path, inputs), atol=1e-6)


@pytest.mark.thorough
@given(st.lists(st.integers(0, 2**16 - 1)), st.sampled_from([TensorProto.FLOAT16, TensorProto.BFLOAT16]))
def test_any_bits_as_varints(bits, kind):
    old = TensorProto(name="w", data_type=kind, dims=[len(bits)], doc_string="kept", int32_data=[1] * len(bits))
    array = np.array(bits, np.uint16).view(helper.tensor_dtype_to_np_dtype(kind))
    data = b"".join(in_tensor(array)(memoryview(old.SerializeToString())))
    old.int32_data[:] = bits
    assert data == old.SerializeToString()


def entry(number, wire_type, payload=b"", pad=0):
    """A field as bytes; ``pad`` makes its length longer than it need be, which protobuf allows."""
    head = (
        bytes([number << 3 | wire_type & 7])
        if number < 16
        else bytes([number << 3 & 0x7F | 0x80 | wire_type, number >> 4])
    )
    if wire_type != 2:
        return head + payload
    length, encoded = len(payload), b""
    while length >= 0x80 or pad:
        pad -= length < 0x80
        encoded, length = encoded + bytes([length & 0x7F | 0x80]), length >> 7
    return head + encoded + bytes([length]) + payload


def test_whatever_else_is_in_the_bytes_stays(tmp_path):
    """Fields that nobody knows, groups, lengths with padding, and elements in pieces, packed and single."""
    unknown = entry(1000, 2, b"who knows") + entry(999, 0, b"\x81\x00")
    group = entry(500, 3) + entry(1, 5, b"\1\2\3\4") + entry(7, 3) + entry(7, 4) + entry(500, 4)
    floats = [struct.pack("<f", value) for value in (0.125, 0.5, -1.5, 7.75)]
    weight = b"".join(
        (
            entry(4, 2, floats[0] + floats[1], pad=2),
            group,
            entry(1, 0, b"\x84\x80\x00"),
            entry(4, 5, floats[2]),
            entry(2, 0, b"\x01"),
            entry(4, 2, b"", pad=1),
            unknown,
            entry(8, 2, b"w"),
            entry(4, 2, floats[3]),
        )
    )
    graph = model_of([TIMES]).graph
    for value in (graph.input[0], graph.output[0]):
        value.CopyFrom(info(value.name, [None, 4]))
    body = entry(5, 2, weight, pad=3) + graph.SerializeToString() + group
    opset = helper.make_opsetid("", 17).SerializeToString()
    data = group + entry(7, 2, body, pad=1) + unknown + entry(8, 2, opset) + entry(1, 0, b"\x0a")
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    model = jaxrnn.load(path)
    np.testing.assert_array_equal(model.params["w"], [0.125, 0.5, -1.5, 7.75])
    new = [0.375, 0.625, 42.5, -9.25]
    for old, value in zip(floats, new, strict=True):
        assert data.count(old) == 1
        data = data.replace(old, struct.pack("<f", value))
    assert exported(model, {"w": np.array(new, np.float32)}, path) == data


def test_a_message_in_several_parts(tmp_path):
    """Protobuf joins them when it reads; which of them a tensor is in does not show, so none is replaced."""
    more = onnx.ModelProto()
    more.graph.initializer.append(tensor((7, 8, 9), name="unused"))
    data = model_of([TIMES], [tensor()]).SerializeToString() + more.SerializeToString()
    model = jaxrnn.load(data)
    assert set(model.params) == {"w"}
    path = tmp_path / "model.onnx"
    assert exported(model, model.params, path) == data
    with pytest.raises(jaxrnn.ModelError, match=r"save the model with onnx\.save"):
        jaxrnn.export_onnx(model, {**model.params, "w": np.array(NEW)}, path)
    assert path.read_bytes() == data


def test_what_is_no_parameter_stays(tmp_path):
    """Numbers of formulas, integers and quantised weights are the file's own, also next to parameters."""
    nodes = [
        constant("half", value_float=0.5),
        constant("shape", value=numpy_helper.from_array(np.array([-1, 3]))),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["d"], axis=0),
        helper.make_node("Mul", ["x", "half"], ["a"]),
        helper.make_node("Mul", ["a", "w"], ["b"]),
        helper.make_node("Add", ["b", "d"], ["c"]),
        helper.make_node("Reshape", ["c", "shape"], ["y"]),
    ]
    quantised = numpy_helper.from_array(np.array([1, -2, 3], np.int8), "q")
    scale = numpy_helper.from_array(np.array(0.5, np.float32), "scale")
    proto = model_of(nodes, [quantised, scale, tensor()])
    model = jaxrnn.load(proto)
    params = {**model.params, "w": np.asarray(NEW, np.float32)}
    path = tmp_path / "model.onnx"
    put(proto.graph.initializer[2], params["w"])  # after it was loaded
    assert exported(model, params, path) == proto.SerializeToString()
    assert_same(model.apply(params, {"x": X.astype(np.float32)}), peer_outputs(path, {"x": X.astype(np.float32)}), 1e-6)


# --- One tensor is one parameter


def test_tensors_of_functions_are_told_apart(tmp_path):
    """Two functions of one name, two branches with one name, two calls with other tensors: all apart."""
    reference = onnx.AttributeProto(name="value", ref_attr_name="t", type=onnx.AttributeProto.TENSOR)
    taken = onnx.NodeProto(op_type="Constant", output=["w"], attribute=[reference])
    branches = [
        helper.make_graph([constant(value=tensor(values)), TIMES], "g", [], [info("y")])
        for values in ((1, 2, 3), (4, 5, 6))
    ]
    condition = constant("go", value=numpy_helper.from_array(np.array(True)))
    choose = helper.make_node("If", ["go"], ["y"], then_branch=branches[0], else_branch=branches[1])
    functions = [
        function_of([constant(value=tensor((2, 3, 4))), TIMES]),
        function_of([constant(value=tensor((5, 6, 7))), TIMES], domain="other"),
        function_of([taken, TIMES], name="Given", t=None),
        function_of([condition, choose], name="Choose"),
    ]
    names = ["x", "a", "b", "c", "d", "y"]
    calls = [
        call(name="Scale"),
        call(name="Scale", domain="other"),
        call(name="Given", t=tensor((7, 8, 9))),
        call(name="Given", t=tensor((8, 9, 10))),
        call(name="Choose"),
    ]
    for node, (before, after) in zip(calls, itertools.pairwise(names), strict=True):
        node.input[:], node.output[:] = [before], [after]
    proto = model_of(calls, functions=functions)
    inputs = {"x": X.astype(np.float32)}
    model = verify(proto, inputs, rtol=1e-6)
    assert sorted(np.asarray(value)[0] for value in model.params.values()) == [1, 2, 4, 5, 7, 8]
    params = {name: value + np.float32(index) for index, (name, value) in enumerate(model.params.items())}
    exported(model, params, tmp_path / "new.onnx")
    check_reads_back(tmp_path / "new.onnx", params)
    assert_same(model.apply(params, inputs), peer_outputs(tmp_path / "new.onnx", inputs), 0, 1e-6)


def test_floats_given_to_a_function(tmp_path):
    """Whose attribute they are is not known: they may stay, but not change."""
    reference = onnx.AttributeProto(name="value_floats", ref_attr_name="t", type=onnx.AttributeProto.FLOATS)
    taken = onnx.NodeProto(op_type="Constant", output=["w"], attribute=[reference])
    calls = [call("a", t=[1.0, 2.0, 3.0]), call(given="a", t=[2.0, 3.0, 4.0])]
    proto = model_of(calls, functions=[function_of([taken, TIMES], t=None)])
    model = verify(proto, {"x": X.astype(np.float32)}, rtol=1e-6)
    path = tmp_path / "new.onnx"
    assert exported(model, model.params, path) == proto.SerializeToString()
    with pytest.raises(jaxrnn.UnsupportedError, match="attribute that a local function gets"):
        jaxrnn.export_onnx(model, {name: value + 1 for name, value in model.params.items()}, path)


def test_a_tensor_that_also_shapes_a_graph_is_no_parameter():
    """One call of a function needs it while tracing: it cannot be trained in the other either."""
    body = [constant("w", value=tensor((1.0, 2.0))), helper.make_node("Identity", ["w"], ["y"])]
    nodes = [
        call("first"),
        call("second"),
        helper.make_node("Cast", ["first"], ["shape"], to=TensorProto.INT64),
        helper.make_node("Expand", ["x", "shape"], ["z"]),
        helper.make_node("Mul", ["z", "second"], ["y"]),
    ]
    proto = model_of(nodes, functions=[function_of(body)])
    proto.graph.input[0].CopyFrom(info("x", [1, 1]))
    proto.graph.output[0].CopyFrom(info("y", [1, 2]))
    model = verify(proto, {"x": np.array([[3.0]], np.float32)})
    assert model.params == {}


#: By network, its time axis.
STREAMS = {
    "keyword_net": "S",
    **dict.fromkeys(("wave_net", "filter_net", "dual_path_net"), "S"),
    "exports/conv_gru_script": "T",
    "exports/keras_lstm_last": "unk__87",
}
#: By network, inputs that are fixed, open sizes, and the size of its outputs where they may be much smaller.
STEPS = {
    "dtln_2": ({}, {}, 0),
    "dtln_1": ({}, {}, 0),
    "gtcrn": ({}, {}, 0),
    "silero_vad_16k_op15": ({"sr": 16000}, {"sequence": 576}, 1),  # a probability
}


def first_is_quick(names):
    """One network in every run, the others in the nightly tier."""
    first, *others = names
    return [first, *(pytest.param(name, marks=pytest.mark.nightly) for name in others)]


def assert_found(path):
    """The state that a file says it has is the one that is found without its metadata."""
    proto = onnx.load(path)
    del proto.metadata_props[:]
    stated, found = jaxrnn.load(path), jaxrnn.load(proto)
    assert [(each.input, each.output) for each in found.state] == [(each.input, each.output) for each in stated.state]
    return stated


@pytest.mark.parametrize("name", first_is_quick(STREAMS))
def test_streams(name, models, tmp_path):
    model = jaxrnn.load(models / f"{name}.onnx")
    streamed = model.stream(STREAMS[name], pulse=None)
    paths = tmp_path / "step.onnx", tmp_path / "flush.onnx"
    jaxrnn.export_onnx(streamed, model.params, paths[0], flush=paths[1])
    stream, rng = ExportedStream(*paths), np.random.default_rng(0)
    for frames in (1, 7):
        inputs = {}
        for each in streamed.spec.inputs:
            shape = list(each.sizes)
            if each.time_axis is not None:
                shape[each.time_axis] = frames * shape[each.time_axis]
            inputs[each.name] = rng.standard_normal(shape).astype(each.dtype)
        assert_close(stream.run(inputs), model.apply(model.params, inputs))
    loaded = assert_found(paths[0])
    state = loaded.init()
    pulse = {each.name: inputs[each.name][tuple(map(slice, each.sizes))] for each in streamed.spec.inputs}
    outputs, state = loaded.step(loaded.params, state, pulse)
    given = peer_outputs(paths[0], {**pulse, **dict(np.load(tmp_path / "step.first_state.npz"))})
    assert_close({**outputs, **{each.output: state[each.name] for each in loaded.state}}, given)


@pytest.mark.parametrize("name", first_is_quick(STEPS))
def test_steps(name, models, tmp_path):
    """A step has the names of its file for all arrays, and is the same step."""
    static, dims, scale = STEPS[name]
    path = tmp_path / "step.onnx"
    model = jaxrnn.load(models / f"{name}.onnx", static=static)
    jaxrnn.export_onnx(model, None, path, step=True, dims=dims)
    loaded = jaxrnn.load(path) if name == "gtcrn" else assert_found(path)  # it takes long
    assert [(each.input, each.output) for each in loaded.state] == [(each.input, each.output) for each in model.state]
    assert {each.name for each in loaded.inputs} == {each.name for each in model.inputs}
    assert {each.name for each in loaded.outputs} == {each.name for each in model.outputs}
    rng, opened = np.random.default_rng(0), session(path)
    carried, again, state = model.init(), loaded.init(), dict(np.load(tmp_path / "step.first_state.npz"))
    for _ in range(4):
        x = {each.name: rng.standard_normal(each.sizes).astype(each.dtype) for each in loaded.spec.inputs}
        expected, carried = model.step(model.params, carried, x)
        outputs, again = loaded.step(loaded.params, again, x)
        given = run_session(opened, {**x, **state})
        state = {each.input: given[each.output] for each in model.state}
        assert_close(outputs, expected, scale)
        assert_close({name: given[name] for name in expected}, expected, scale)
        assert_close(state, carried)


@pytest.mark.thorough
def test_a_step_with_sizes_of_its_own_in_the_state_is_verified(models, tmp_path):
    """They are given once, and everything that runs the step takes them."""
    model = jaxrnn.load(models / "exports" / "step_attend_script.onnx")
    assert model.pack(model.params, dims={"S": 20}).folded
    jaxrnn.export_onnx(model, None, tmp_path / "step.onnx", step=True, dims={"S": 20})
    report = jaxrnn.export.verify_export(model, model.params, tmp_path / "step.onnx")
    assert report.ok
    assert report.cases
