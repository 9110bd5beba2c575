"""Exports that are refused, that fail on the way, and files that say something else than they are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from exported_files import ExportedStream
from onnx import TensorProto, helper, numpy_helper
from refusals import check_refused
from small_models import layers_model, step_model
from test_export_step import assert_close, filter_params, filter_stream, filtered, recording

import jaxrnn
from jaxrnn.export import files
from jaxrnn.steps import ArraySpec, OutputSpec, StateSpec, StepSpec, in_batch, nothing_left


class Stepper:
    """Hands its input on, and gives whatever a test wants."""

    spec = StepSpec(
        "stepper",
        inputs=(ArraySpec("x", np.dtype("float32"), (2,)),),
        outputs=(OutputSpec("y", np.dtype("float32"), (2,)),),
        state=(StateSpec("h", np.dtype("float32"), (2,)),),
    )

    def __init__(self, outputs=lambda x: {"y": x}, after=lambda h: {"h": h}):
        self.outputs, self.after = outputs, after

    def init(self, batch=None, *, params=None, constants=None):
        return in_batch(self.spec, {"h": jnp.zeros(2, jnp.float32)}, batch)

    def step(self, params, state, inputs):
        return self.outputs(inputs["x"]), self.after(state["h"])

    def flush(self, params, state, tail=None, valid=None):
        return nothing_left(self.spec, tail, valid)


X = np.zeros((2, 3), np.float32)


def test_what_cannot_be_exported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    params = filter_params()
    streamed, model = filter_stream(params), step_model()
    array = jaxrnn.stream(jnp.tanh, X, axes=0)
    jaxrnn.save_compiled(streamed, "saved.jaxrnn", params=params)
    compiled = jaxrnn.load_compiled("saved.jaxrnn")
    growing = Stepper(after=lambda h: {"h": jnp.concatenate([h, h])})
    shapes = jax.eval_shape(lambda: params)
    refused = [
        (jaxrnn.load(layers_model()), None, {"step": True}, jaxrnn.StateError, "forgets its state.* stream"),
        (model, None, {"opset": 17}, jaxrnn.InputError, "opset applies to a step.* `step=True"),
        (model, None, {"target": "tract"}, jaxrnn.InputError, "target applies to a step.* `step=True"),
        (model, None, {"step": True, "flush": "f.onnx"}, jaxrnn.InputError, "has no frames left at the end"),
        (model, None, {"step": True, "dims": {"T": 3}}, jaxrnn.InputError, "`dims` gives 'T'"),
        (streamed, None, {}, jaxrnn.InputError, "give params"),
        (streamed, {"w": params["w"]}, {}, jaxrnn.InputError, "params: 'decay' is missing"),
        (streamed, streamed.pack(params), {}, jaxrnn.InputError, "packed.params"),
        (streamed, shapes, {}, jaxrnn.InputError, "shape without values"),
        (streamed, params, {"example": X}, jaxrnn.InputError, "leave out example"),
        (streamed, params, {"batch": 0}, jaxrnn.InputError, "number of streams, must be"),
        (streamed, params, {"opset": 99}, jaxrnn.UnsupportedError, "opset 99 is newer than"),
        (streamed, params, {"opset": 3}, jaxrnn.UnsupportedError, "give `opset="),
        (streamed, params, {"opset": "17"}, jaxrnn.InputError, "opset must be a whole number"),
        (streamed, params, {"target": "onnx"}, jaxrnn.InputError, "target must be None, .* or 'tract', not 'onnx'"),
        (streamed, params, {"flush": "./step.onnx"}, jaxrnn.InputError, "are the same file"),
        (streamed, params, {"flush": "step.first_state.npz"}, jaxrnn.InputError, "are the same file"),
        (streamed, params, {"flush": "no/flush.onnx"}, jaxrnn.InputError, "no folder no"),
        (array, None, {}, jaxrnn.InputError, "takes PyTreeDef.*one dict of arrays"),
        (compiled, None, {}, jaxrnn.UnsupportedError, "contains XLA programs"),
        (growing, None, {}, jaxrnn.StateError, r"'h' is float32\[2\] before a step and float32\[4\] after"),
        (Stepper(after=lambda h: {}), None, {}, jaxrnn.StateError, "missing after"),
        (Stepper(lambda x: [x]), None, {}, jaxrnn.InputError, "one dict of arrays"),
        (Stepper(lambda x: {"z": x}), None, {}, jaxrnn.InputError, "'z', which its spec does not list"),
        (Stepper(), None, {"flush": "f.onnx"}, jaxrnn.InputError, "has no frames left at the end"),
        (jnp.tanh, None, {}, jaxrnn.InputError, "give example=x"),
        (jnp.tanh, None, {"example": X, "flush": "f.onnx"}, jaxrnn.InputError, "leave out flush"),
        (jnp.tanh, None, {"example": [X]}, jaxrnn.InputError, "the example of a function must be an array"),
        (lambda x: (x, x), None, {"example": X}, jaxrnn.InputError, "of <lambda> must be an array, or a dict"),
        (lambda x: {"a": {"b": x}}, None, {"example": X}, jaxrnn.InputError, "of <lambda> must be an array, or a dict"),
        (lambda text, x: x, np.array(["a"]), {"example": X}, jaxrnn.InputError, "must be an array of JAX or NumPy"),
        (lambda x: {"\ud800": x}, None, {"example": X}, jaxrnn.InputError, "cannot be written to a file"),
        (layers_model(), None, {}, jaxrnn.InputError, "not ModelProto"),
    ]
    for stepper, given, options, error, words in refused:
        check_refused(error, words, jaxrnn.export_onnx, stepper, given, "step.onnx", **options)
    with pytest.raises(jaxrnn.InputError, match="outside of jit"):
        jax.jit(lambda values: jaxrnn.export_onnx(streamed, values, "step.onnx"))(params)
    with pytest.raises(jaxrnn.InputError, match="outside of jit"):
        jax.jit(lambda v: jaxrnn.export_onnx(lambda x: x + v, None, "step.onnx", example=X))(np.float32(1))
    check_refused(jaxrnn.InputError, "is a folder", jaxrnn.export_onnx, streamed, params, tmp_path)
    assert os.listdir() == ["saved.jaxrnn"]


def test_a_first_state_that_depends_on_an_input(tmp_path):
    def offset(inputs):
        padded = jnp.pad(inputs["x"] * inputs["scale"], (3, 0), constant_values=1)
        return {"y": jnp.cumsum(padded + inputs["scale"])}

    example = {"x": jax.ShapeDtypeStruct((9,), np.float32), "scale": jax.ShapeDtypeStruct((), np.float32)}
    streamed = jaxrnn.stream(offset, example, axes={"x": 0, "scale": None})
    assert streamed.spec.constants == ("scale",)
    with pytest.raises(jaxrnn.UnsupportedError, match=r"depends on the input\(s\) scale.*static=.*scale.: 0"):
        jaxrnn.export_onnx(streamed, None, tmp_path / "step.onnx")


def test_a_number_fixes_a_first_state(tmp_path):
    """A number fills the declared shape, so that the first state of the recurrence is known."""
    shapes = {"x": ["T", "n", 3], "h0": ["n", 4], "y": None}
    arrays = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    weights = {name: np.full(shape, 0.1, np.float32) for name, shape in (("W", (1, 4, 3)), ("R", (1, 4, 4)))}
    nodes = [
        helper.make_node("Unsqueeze", ["h0", "axes"], ["first"]),
        helper.make_node("RNN", ["x", "W", "R", "", "", "first"], ["y"], hidden_size=4),
    ]
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    stored.append(numpy_helper.from_array(np.array([0]), "axes"))
    graph = helper.make_graph(nodes, "g", arrays[:2], arrays[2:], stored)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(jaxrnn.UnsupportedError, match=r"static=.*h0.: 0"):
        jaxrnn.export_onnx(jaxrnn.load(proto).stream("T"), jaxrnn.load(proto).params, tmp_path / "step.onnx")
    model = jaxrnn.load(proto, static={"h0": 2})
    np.testing.assert_array_equal(model.static["h0"], np.full((1, 4), 2, np.float32))
    exported = jaxrnn.export_onnx(model.stream("T"), model.params, tmp_path / "step.onnx")
    (first,) = (array for name, array in exported.step.facts.first.items() if array.dtype == np.float32)
    np.testing.assert_array_equal(first, np.full(first.shape, 2))


def test_a_dimension_of_some_state_is_one_stream(tmp_path):
    """An open first axis that some state has is 1 unless a size is given, which is said."""
    shapes = {"x": ["b", 3], "h": ["b", 3], "k": [1, 3], "y": ["b", 3], "h_out": ["b", 3], "k_out": [1, 3]}
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Add", ["x", "h"], ["h_out"]),
        helper.make_node("Neg", ["k"], ["k_out"]),
        helper.make_node("Add", ["h_out", "k_out"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [infos[n] for n in "xhk"], [infos[n] for n in ("y", "h_out", "k_out")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = jaxrnn.load(proto, state={"h": "h_out", "k": "k_out"})
    with pytest.warns(UserWarning, match="'b' has the size 1"):
        exported = jaxrnn.export_onnx(model, None, tmp_path / "step.onnx", step=True)
    assert exported.step.facts.spec.inputs[0].shape == (1, 3)
    exported = jaxrnn.export_onnx(model, None, tmp_path / "step.onnx", step=True, dims={"b": 2})
    assert exported.step.facts.spec.inputs[0].shape == (2, 3)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_all_files_appear_or_none(tmp_path, monkeypatch):
    params, other = filter_params(), filter_params(1)
    paths = tmp_path / "step.onnx", tmp_path / "flush.onnx"
    jaxrnn.export_onnx(filter_stream(params), params, paths[0], flush=paths[1])
    before, replace = contents(tmp_path), os.replace

    def failing(source, target):
        if Path(target) == paths[0] and ".before" not in str(source):
            raise OSError("the disk is full")
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", failing)
        with pytest.raises(OSError, match="disk is full"):
            jaxrnn.export_onnx(filter_stream(other), other, paths[0], flush=paths[1])
    assert contents(tmp_path) == before
    with monkeypatch.context() as patched:
        # What ONNX refuses is a defect of the lowering, and is not written.
        patched.setattr(files.ir, "save", lambda model, path, **_: onnx.save(broken(), path))
        with pytest.raises(jaxrnn.ModelError, match="a bug in jaxrnn; nothing was written"):
            jaxrnn.export_onnx(filter_stream(other), other, paths[0])
    assert contents(tmp_path) == before
    jaxrnn.export_onnx(filter_stream(other), other, paths[0], flush=paths[1])
    x = recording(6)
    assert_close(ExportedStream(*paths).run(x), filtered(other, x))


def broken():
    proto = layers_model()
    proto.graph.node[0].op_type = "Nothing"
    return proto


def test_tensors_of_a_file_that_is_too_large(tmp_path, monkeypatch):
    params = filter_params()
    paths = tmp_path / "step.onnx", tmp_path / "flush.onnx"
    monkeypatch.setattr(files, "LARGEST", 16)
    monkeypatch.setattr(files, "SMALL", 64)
    jaxrnn.export_onnx(filter_stream(params), params, paths[0], flush=paths[1])
    names = {"step.onnx", "step.onnx.data", "step.first_state.npz", "flush.onnx", "flush.onnx.data"}
    assert {*contents(tmp_path)} == names
    x = recording(6)
    assert_close(ExportedStream(*paths).run(x), filtered(params, x))
    assert jaxrnn.load(paths[0]).init().keys() == dict(np.load(tmp_path / "step.first_state.npz")).keys()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "step.onnx"
    jaxrnn.export_onnx(Stepper(), None, path)
    return onnx.load(path)


def put(proto, change):
    """A file whose metadata have changed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    (entry,) = (each for each in copy.metadata_props if each.key == "jaxrnn")
    facts = json.loads(entry.value)
    changed = change(facts)
    entry.value = changed if isinstance(changed, str) else json.dumps(facts)
    return copy


def of_parts(**part):
    """Metadata that list one part of the state's array."""
    return lambda facts: facts["state"][0].update(parts=[{"name": "h", "kind": "carry", "shape": [1], **part}])


DAMAGED = {
    "parts of another size": of_parts(shape=[7]),
    "a part without a shape": of_parts(shape="all"),
    "a part of a negative size": of_parts(shape=[-1]),
    "no JSON": lambda facts: "{",
    "deep": lambda facts: "[" * 100_000,
    "another type": lambda facts: "[]",
    "nothing": lambda facts: facts.clear(),
    "an unknown fact": lambda facts: facts.update(speed=3),
    "no first state": lambda facts: facts["state"][0].pop("first"),
    "a first state of another shape": lambda facts: facts["state"][0].update(first=[1.0]),
    "a first state of text": lambda facts: facts["state"][0].update(first="zero"),
    "a first state of no bytes": lambda facts: facts["state"][0].update(first={"base64": "AAAA"}),
    "another input": lambda facts: facts["state"][0].update(input="g"),
    "another output": lambda facts: facts["state"][0].update(output="y_next"),
    "no output": lambda facts: facts["state"][0].update(output=None),
    "another shape": lambda facts: facts["inputs"][0].update(shape=[3]),
    "another dtype": lambda facts: facts["outputs"][0].update(dtype="float64"),
    "an open dimension": lambda facts: facts["state"][0].update(shape=["n"]),
    "no type": lambda facts: facts["state"][0].update(dtype="(2,"),
    "a huge shape": lambda facts: facts["state"][0].update(shape=[2**40]),
    "one name twice": lambda facts: facts["inputs"][0].update(input="h"),
    "another kind": lambda facts: facts.update(kind="loop"),
    "a pulse of nothing": lambda facts: facts.update(pulse=0),
}


@pytest.mark.parametrize("change", DAMAGED.values(), ids=DAMAGED)
def test_metadata_that_are_damaged_or_of_another_graph(exported, change):
    assert jaxrnn.load(exported).step_file is not None
    with pytest.raises(jaxrnn.ModelError, match=r"the metadata 'jaxrnn'.*export the file again, or delete the key"):
        jaxrnn.load(put(exported, change))


@pytest.mark.parametrize(("opset", "fits"), [(9, False), (10, True)])
def test_a_form_of_an_operator_that_an_opset_lacks(tmp_path, opset, fits):
    """Slice is older than its form with starts and ends as inputs."""
    example = {"x": jax.ShapeDtypeStruct((5,), np.float32)}

    def tail(x):
        return {"y": x["x"][2:]}

    if fits:
        jaxrnn.export_onnx(tail, None, tmp_path / "tail.onnx", example=example, opset=opset)
        return
    with pytest.raises(
        jaxrnn.UnsupportedError, match="Slice needs opset 10, and the file gets opset 9: give `opset=10"
    ):
        jaxrnn.export_onnx(tail, None, tmp_path / "tail.onnx", example=example, opset=opset)
