"""Where the data of a tensor may be, and that nothing outside the folder of a model is read."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from plain_graphs import ADD, model, node

import jaxrnn


@pytest.fixture
def folder(tmp_path):
    """A model's folder with data in it, a secret beside it, and links of both kinds."""
    inside = tmp_path / "model"
    inside.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(1000))
    (inside / "w.bin").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    (inside / "link.bin").symlink_to(tmp_path / "secret.bin")
    (inside / "near.bin").symlink_to("w.bin")
    (inside / "null").symlink_to(os.devnull)
    os.mkfifo(inside / "pipe")
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


#: What Python's `int` takes, or nearly, and other programs read otherwise.
ODD_NUMBERS = ("many", "1_0", " 10", "10\n", "+1", "-1", "\uff11", "0x8", "", "9" * 5000)


@pytest.mark.parametrize(
    ("location", "details", "word"),
    [
        ("../secret.bin", {}, "outside"),
        ("sub/../../secret.bin", {}, "outside"),
        ("link.bin", {}, "outside"),
        ("nothing.bin", {}, "No such file"),
        ("w.bin", {"shape": (20, 30)}, "ends at 24"),
        ("w.bin", {"offset": 8}, "ends at 24"),
        ("w.bin", {"offset": -8}, "'-8'"),
        ("w.bin", {"length": 8}, "needs 24"),
        *(("w.bin", {key: text}, f"{key} must be a number") for key in ("offset", "length") for text in ODD_NUMBERS),
        ("pipe", {}, "a FIFO"),
        ("null", {}, "outside"),
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


def test_entries_of_external_data_stand_once(folder):
    proto = onnx.load(with_external(folder, "w.bin"), load_external_data=False)
    proto.graph.initializer[0].external_data.add(key="location", value="../secret.bin")
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(jaxrnn.ModelError, match=r"'weight'.*are repeated"):
        jaxrnn.load(folder / "model.onnx")


#: Where a tensor's elements may be: the field, and one element for it.
PLACES = {
    "raw_data": b"\1",
    "float_data": [1.0],
    "int32_data": [1],
    "int64_data": [1],
    "double_data": [1.0],
    "uint64_data": [1],
    "string_data": [b"1"],
    "external_data": [onnx.StringStringEntryProto(key="location", value="w.bin")],
}


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.INT4])
def test_the_data_of_a_tensor_is_in_one_place(folder, kind):
    """Otherwise one program takes this, and another that. What is in the right place is read."""
    array = np.ones(1, helper.tensor_dtype_to_np_dtype(kind))
    raw = numpy_helper.from_array(array, "weight")
    typed = helper.make_tensor("weight", kind, [1], [1])
    (folder / "w.bin").write_bytes(raw.raw_data)
    external = TensorProto(name="weight", data_type=kind, dims=[1], data_location=TensorProto.EXTERNAL)
    external.external_data.extend(PLACES["external_data"])
    for tensor in (raw, typed, external):
        (home,) = {field.name for field, _ in tensor.ListFields()} & PLACES.keys()
        for place in PLACES:
            both = TensorProto()
            both.CopyFrom(tensor)
            if place != home and place == "raw_data":
                both.raw_data = PLACES[place]
            elif place != home:
                getattr(both, place).extend(PLACES[place])
            path = folder / "model.onnx"
            wide = node("Cast", ["weight"], to=TensorProto.FLOAT)
            path.write_bytes(model(wide, inputs=[], initializers=[both], opset=21, ir_version=10).SerializeToString())
            if place == home:
                assert jaxrnn.load(path)()["y"].tolist() == [1.0]
                continue
            with pytest.raises(jaxrnn.ModelError, match=r"'weight': its data must be in .* also has data") as caught:
                jaxrnn.load(path)
            assert place in str(caught.value) or home in str(caught.value)


def test_absolute_external_data_is_refused(folder):
    path = with_external(folder, str(folder.parent / "secret.bin"))
    with pytest.raises(jaxrnn.ModelError, match="outside"):
        jaxrnn.load(path)
    with pytest.raises(jaxrnn.ModelError, match="from its path"):
        jaxrnn.load(path.read_bytes())
