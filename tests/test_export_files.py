"""The files that export writes: external data, the old file's place, failures, and parameters that do not fit."""

from __future__ import annotations

import errno
import os

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from export_models import NEW, STORAGES, TIMES, check_reads_back, exported, in_loop, info, model_of, tensor
from onnx import TensorProto, helper, numpy_helper
from refusals import check_refused
from small_models import layers_model
from verifier import assert_same, peer_outputs

import jaxrnn

X = {"x": np.array([[1.0, -2.0, 3.0]], np.float32)}
W, V = np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)


def outside(tensor, location, **entries):
    """Turn a tensor into external data."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))


def external_model(folder, location="w.bin", shared=None):
    """Two columns of ``x * w + v``; w, their numbers and v lie in one file, with gaps; gives the path and the data."""
    data = bytearray(b"\xaa" * 61)
    columns = np.array([2, 0])
    places = {"w": (4, W), "columns": (20, columns), "v": (40 if shared is None else shared, V)}
    tensors = []
    for name, (offset, array) in places.items():
        data[offset : offset + array.nbytes] = array.tobytes()
        tensors.append(numpy_helper.from_array(array, name))
        outside(tensors[-1], location, offset=offset, length=array.nbytes, checksum="old")
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "v"], ["b"]),
        helper.make_node("Gather", ["b", "columns"], ["y"], axis=1),
    ]
    folder.mkdir(exist_ok=True)
    (folder / location).parent.mkdir(exist_ok=True)
    (folder / location).write_bytes(data)
    proto = model_of(nodes, tensors)
    proto.graph.output[0].CopyFrom(info("y", [None, 2]))
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return folder / "model.onnx", bytes(data)


def tree(folder):
    """Every file below a folder, with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def relocated(data, location):
    """The file with another location, as protobuf writes it."""
    proto = onnx.ModelProto.FromString(data)
    for weight in proto.graph.initializer:
        weight.external_data[0].value = location
    return proto.SerializeToString()


def test_external_data_goes_beside_the_new_file(tmp_path):
    path, data = external_model(tmp_path / "old")
    model, before = jaxrnn.load(path), path.read_bytes()
    params = {"w": W + 10, "v": model.params["v"]}
    changed = data[:4] + params["w"].tobytes() + data[16:]

    other = tmp_path / "other"
    other.mkdir()
    assert exported(model, params, other / "new.onnx") == before
    assert tree(other) == {"new.onnx": before, "w.bin": changed}
    assert exported(model, params, other / "again.onnx") == before  # the same data serves both
    assert tree(other).keys() == {"new.onnx", "again.onnx", "w.bin"}
    third = {**params, "v": V - 1}
    assert exported(model, third, other / "third.onnx") == relocated(before, "third.onnx.data")
    assert (other / "third.onnx.data").read_bytes() == changed[:40] + third["v"].tobytes() + changed[52:]
    assert (other / "w.bin").read_bytes() == changed

    for target in ("new.onnx", "other.onnx"):
        assert exported(model, params, path.parent / target) == relocated(before, f"{target}.data")
        check_reads_back(path.parent / target, params)
        expected = (X["x"] * params["w"] + V)[:, [2, 0]]
        np.testing.assert_array_equal(peer_outputs(path.parent / target, X)["y"], expected)
    assert exported(model, model.params, path.parent / "same.onnx") == before  # and reads the old data
    assert tree(path.parent).keys() == {
        *("model.onnx", "w.bin", "same.onnx"),
        *("new.onnx", "new.onnx.data", "other.onnx", "other.onnx.data"),
    }
    assert (path.parent / "w.bin").read_bytes() == data


def test_the_source_may_be_replaced_again_and_again(tmp_path):
    path, data = external_model(tmp_path / "here")
    model, before = jaxrnn.load(path), path.read_bytes()
    for location, shift in (("model.onnx.data", 1), ("model.onnx.data.1", 2), ("model.onnx.data", 1)):
        params = {"w": W + np.float32(shift), "v": V}
        assert exported(model, params, path) == relocated(before, location)
        check_reads_back(path, params)
    assert (path.parent / "w.bin").read_bytes() == data
    # What was just written is a model like any other.
    again = jaxrnn.load(path)
    exported(again, {"w": W * 7, "v": V}, path)
    check_reads_back(path, {"w": W * 7, "v": V})
    assert exported(model, model.params, path) == before


def test_several_files_of_data(tmp_path):
    """In folders, under several spellings, in subgraphs and functions."""
    proto = in_loop(tensor())
    inner = proto.graph.node[0].attribute[0].g.node[0].attribute
    weights = {"w": inner[1].g.node[0].attribute[0].t, "v": inner[0].g.initializer[0]}
    assert weights["v"].name == "v"
    folder = tmp_path / "old"
    (folder / "sub").mkdir(parents=True)
    for name, location in (("w", "./sub/../sub/one.bin"), ("v", "two.bin")):
        (folder / location).write_bytes(weights[name].raw_data)
        outside(weights[name], location)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    model = jaxrnn.load(path)
    params = {name: value * 2 for name, value in model.params.items()}
    other = tmp_path / "other"
    other.mkdir()
    assert exported(model, params, other / "new.onnx") == path.read_bytes()
    assert tree(other).keys() == {"new.onnx", "sub/one.bin", "two.bin"}
    check_reads_back(other / "new.onnx", params)
    exported(model, params, path)
    assert tree(folder).keys() == {
        *("model.onnx", "sub/one.bin", "two.bin", "model.onnx.sub_one.bin", "model.onnx.two.bin"),
    }
    check_reads_back(path, params)
    assert_same(jaxrnn.load(path)(X), peer_outputs(path, X), 0)


def test_names_that_are_taken(tmp_path):
    """By the model itself, by links that would not be read, by folders: another is found, and those stay."""
    path, data = external_model(tmp_path / "old", "sub/w.bin")
    model = jaxrnn.load(path)
    params = {"w": W + 1, "v": V}
    changed = data[:4] + params["w"].tobytes() + data[16:]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(changed)

    def new_folder(name):
        (tmp_path / name).mkdir()
        return tmp_path / name

    folder = new_folder("link")
    (folder / "sub").symlink_to(tmp_path, target_is_directory=True)
    exported(model, params, folder / "new.onnx")
    check_reads_back(folder / "new.onnx", params)
    assert not (tmp_path / "w.bin").exists()

    folder = new_folder("file")
    (folder / "sub").write_bytes(b"a file")
    (folder / "new.onnx.data").mkdir()
    (folder / "new.onnx.data.1").symlink_to(elsewhere)
    os.link(elsewhere, folder / "new.onnx.data.2")
    (folder / "new.onnx.data.3").symlink_to("nowhere")
    exported(model, params, folder / "new.onnx")
    check_reads_back(folder / "new.onnx", params)
    assert (folder / "new.onnx.data.4").read_bytes() == changed
    assert elsewhere.read_bytes() == changed
    assert not (folder / "nowhere").exists()

    path, _ = external_model(tmp_path / "flat", "weights")
    model, folder = jaxrnn.load(path), new_folder("model")
    exported(model, params, folder / "weights")
    check_reads_back(folder / "weights", params)
    with pytest.raises(jaxrnn.InputError, match="contains the model's external data"):
        jaxrnn.export_onnx(model, params, path.parent / "weights")


def test_data_that_changed_since(tmp_path):
    """Parameters come from the caller; whatever else is in the file, as it is now."""
    path, data = external_model(tmp_path / "old")
    model = jaxrnn.load(path)
    (path.parent / "w.bin").write_bytes(b"\xbb" * 70)
    path.write_bytes(b"no model any more")
    np.testing.assert_array_equal(model.params["w"], W)
    out = tmp_path / "new.onnx"
    exported(model, model.params, out)
    assert (tmp_path / "w.bin").read_bytes() == b"\xbb" * 4 + data[4:16] + b"\xbb" * 24 + data[40:52] + b"\xbb" * 18
    before = tree(tmp_path)
    for damage, word in ((lambda file: file.write_bytes(data[:50]), "ends at 50"), (os.unlink, "No such file")):
        damage(path.parent / "w.bin")
        check_refused(jaxrnn.ModelError, word, jaxrnn.export_onnx, model, model.params, tmp_path / "more.onnx")
    (path.parent / "w.bin").symlink_to(tmp_path / "w.bin")
    check_refused(jaxrnn.ModelError, "outside", jaxrnn.export_onnx, model, model.params, tmp_path / "more.onnx")
    assert tree(tmp_path).keys() == before.keys()


def test_tensors_that_share_bytes(tmp_path):
    """Tied weights may change together; two values for one place are never chosen between."""
    out = tmp_path / "new.onnx"
    path, _ = external_model(tmp_path / "tied", shared=4)
    model = jaxrnn.load(path)
    np.testing.assert_array_equal(model.params["w"], V)
    exported(model, {"w": V * 2, "v": jnp.asarray(V * 2)}, out)
    check_reads_back(out, {"w": V * 2, "v": V * 2})
    with pytest.raises(jaxrnn.InputError, match=r"params\['w'\] and params\['v'\] share bytes 4 to 16 of w.bin"):
        jaxrnn.export_onnx(model, {"w": W, "v": V}, out)

    path, _ = external_model(tmp_path / "overlap", shared=28)
    model = jaxrnn.load(path)
    exported(model, {"w": W * 2, "v": model.params["v"]}, tmp_path / "overlap.onnx")
    with pytest.raises(jaxrnn.InputError, match=r"tensor 'columns' and params\['v'\] share bytes 28 to 36"):
        jaxrnn.export_onnx(model, {"w": W, "v": V + 1}, out)


@pytest.mark.parametrize("failing", ["the data", "the model", "the last step"])
def test_a_full_disk_leaves_everything_as_it_was(tmp_path, monkeypatch, failing):
    path, _ = external_model(tmp_path / "here")
    model = jaxrnn.load(path)
    before = tree(tmp_path)
    calls = []

    def full(*arguments):
        calls.append(arguments)
        wanted = {"the data": 1, "the model": 2, "the last step": 2}[failing]
        if len(calls) == wanted:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*arguments)

    name = "replace" if failing == "the last step" else "fsync"
    original = getattr(os, name)
    monkeypatch.setattr(os, name, full)
    check_refused(OSError, "No space", jaxrnn.export_onnx, model, {"w": W + 1, "v": V}, path)
    assert tree(tmp_path) == before
    assert {entry.name for entry in path.parent.iterdir()} == {"model.onnx", "w.bin"}
    check_reads_back(path, model.params)


# --- What is exported is what was loaded


def test_sources_of_every_kind(tmp_path):
    """A path, bytes, a proto; a file that has changed or gone since, and a proto that was changed since."""
    proto = layers_model()
    data = proto.SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    loaded = [jaxrnn.load(source) for source in (path, str(path), data, proto)]
    path.write_bytes(b"something else")
    proto.graph.initializer[0].raw_data = bytes(12)
    proto.graph.node[0].name = "renamed"
    for model in loaded:
        assert exported(model, model.params, tmp_path / "new.onnx") == data
        params = {name: np.asarray(value) + 1 for name, value in model.params.items()}
        exported(model, params, tmp_path / "new.onnx")
        check_reads_back(tmp_path / "new.onnx", params)
    (tmp_path / "new.onnx").replace(path)
    link = tmp_path / "link.onnx"
    link.symlink_to(path)
    kept = path.read_bytes()
    exported(loaded[0], loaded[0].params, link)
    assert (link.read_bytes(), path.read_bytes()) == (data, kept)


def test_bound_inputs_and_state_with_a_value(tmp_path):
    """Neither what an input was bound to nor where the state starts is a parameter."""
    nodes = [helper.make_node("Mul", ["h", "w"], ["a"]), helper.make_node("Add", ["a", "x"], ["y"])]
    start = numpy_helper.from_array(np.array([[1, 2, 3]], np.float32), "h")
    proto = model_of(nodes, [start, tensor()], inputs=[info("h", [1, 3])])
    state = {"h": "y"}
    model = jaxrnn.load(proto, state=state)
    assert set(model.params) == {"w"}
    exported(model, {"w": W}, tmp_path / "new.onnx")
    reloaded = check_reads_back(tmp_path / "new.onnx", {"w": W}, state=state)
    np.testing.assert_array_equal(reloaded.init()["h"], [[1, 2, 3]])
    bound = jaxrnn.load(proto, static={"x": X["x"]})
    exported(bound, {"w": W, "h": bound.params["h"]} if "h" in bound.params else {"w": W}, tmp_path / "bound.onnx")
    assert (tmp_path / "bound.onnx").read_bytes() == (tmp_path / "new.onnx").read_bytes()


# --- Element types


@pytest.mark.parametrize("storage", ["raw", "raw float16", "bfloat16 in int32_data", "double_data"])
def test_other_float_types_are_cast(tmp_path, storage):
    proto, _ = STORAGES[storage]
    model = jaxrnn.load(proto)
    dtype = model.params["w"].dtype
    for given in (jnp.bfloat16, np.float16, np.float32, np.float64):
        value = np.asarray(NEW, given) if given is np.float64 else jnp.asarray(NEW, given)
        exported(model, {"w": value}, tmp_path / "new.onnx")
        check_reads_back(tmp_path / "new.onnx", {"w": np.asarray(value).astype(dtype)})


#: A parameter that does not fit, and what the message says.
MISFITS = {
    "overflow": (np.array([1, 1e39, -1e39]), [r"params['w'][1] = 1e+39", "float32", "1 more"]),
    "not a number": (np.array([1, 2, np.nan], np.float32), ["params['w'][2] = nan", "is NaN"]),
    "integers": (np.array([1, 2, 3]), ["int64", "float32"]),
    "complex": (np.ones(3, np.complex64), ["complex64"]),
    "a shape": (np.ones((3, 1), np.float32), ["float32[3, 1]", "float32[3]"]),
    "a list": ([1.0, 2.0, 3.0], ["params['w']", "list"]),
    "nothing": (None, ["params['w']", "NoneType"]),
    "a shape without values": (jax.ShapeDtypeStruct((3,), np.float32), ["params['w']", "ShapeDtypeStruct"]),
}


@pytest.mark.parametrize("what", MISFITS)
def test_parameters_that_do_not_fit(tmp_path, what):
    value, words = MISFITS[what]
    model = jaxrnn.load(model_of([TIMES], [tensor()]))
    with pytest.raises(jaxrnn.InputError) as caught:
        jaxrnn.export_onnx(model, {"w": value}, tmp_path / "new.onnx")
    for word in ("model 'g'", *words):
        assert word in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_what_the_type_holds_and_the_file_has_is_taken(tmp_path):
    """Infinity that was given, and a NaN where the file has one."""
    model = jaxrnn.load(model_of([TIMES], [tensor((1, np.nan, 3))]))
    params = {"w": np.array([-np.inf, np.nan, 1e-50])}
    exported(model, params, tmp_path / "new.onnx")
    loaded = jaxrnn.load(tmp_path / "new.onnx").params["w"]
    np.testing.assert_array_equal(loaded, np.array([-np.inf, np.nan, 0], np.float32))
    half = jaxrnn.load(model_of([TIMES], [tensor(kind=TensorProto.FLOAT16)], TensorProto.FLOAT16))
    with pytest.raises(jaxrnn.InputError, match=r"\[0\] = 70000.0 exceeds the range of the file's float16"):
        jaxrnn.export_onnx(half, {"w": np.array([7e4, 1, 1])}, tmp_path / "half.onnx")
    exported(half, {"w": np.array([65504.0, 1, 1])}, tmp_path / "half.onnx")


def test_arguments_of_other_kinds(tmp_path):
    path = tmp_path / "new.onnx"
    proto = layers_model()
    model = jaxrnn.load(proto)
    params = model.params
    without = {name: value for name, value in params.items() if name != "W"}
    refused = [
        (proto, params, path, jaxrnn.InputError, "not ModelProto"),
        (model, model.pack(params), path, jaxrnn.InputError, "packed.params"),
        (model, list(params), path, jaxrnn.InputError, "dict of arrays"),
        (model, without, path, jaxrnn.InputError, r"params: 'W' is missing"),
        (model, {**params, "Q": params["W"]}, path, jaxrnn.InputError, r"no parameter 'Q'"),
        (model, params, tmp_path, jaxrnn.InputError, "is a folder"),
        (model, params, tmp_path / "no" / "new.onnx", jaxrnn.InputError, "there is no folder"),
    ]
    for function, given, target, error, words in refused:
        check_refused(error, words, jaxrnn.export_onnx, function, given, target)
    with pytest.raises(jaxrnn.InputError, match="outside of jit"):
        jax.jit(lambda values: jaxrnn.export_onnx(model, values, path))(params)
    assert not list(tmp_path.iterdir())
