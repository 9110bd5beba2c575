"""Where the data of a tensor may be: nothing outside a model's folder is read; headers of arrays are checked."""

from __future__ import annotations

import io
import os
import zipfile

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from plain_graphs import ADD, model, node
from refusals import check_refused

import jaxrnn
from jaxrnn._files import arrays
from jaxrnn.audio import read_sound
from jaxrnn.audio.recordings import open_recording
from jaxrnn.cli.arrays import load_archive, load_array
from jaxrnn.evaluation.metrics.counts import Segments
from jaxrnn.settings.files import SettingsFile
from jaxrnn.settings.models import Settings
from jaxrnn.training.examples import read_npz


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
    check_refused(jaxrnn.ModelError, "outside", jaxrnn.load, path)
    check_refused(jaxrnn.ModelError, "from its path", jaxrnn.load, path.read_bytes())


ONES = np.ones((4, 3), np.float32)
#: Everyone who reads arrays: of one file, and by name.
READERS = {
    ".npy": [load_array, lambda path: open_recording(path, 1).part(0, 4)["samples"]],
    ".npz": [
        lambda path: load_archive(path)["x"],
        lambda path: read_npz(path)["x"],
        lambda path: open_recording(path, 1).part(0, 4)["x"],
    ],
}


def claiming(shape, dtype="<f4"):
    """A file whose header says what it likes."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + ONES.tobytes()


def written(folder, ending, content, packed=False):
    path = folder / f"a{ending}"
    if ending == ".npy":
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
            archive.writestr("x.npy", content)
    return path


FORMS = [(".npy", False), (".npz", False), (".npz", True)]


@pytest.mark.parametrize(("ending", "packed"), FORMS)
def test_arrays_are_read(tmp_path, ending, packed):
    path = written(tmp_path, ending, claiming(ONES.shape), packed)
    for read in READERS[ending]:
        np.testing.assert_array_equal(read(path), ONES)


@pytest.mark.parametrize(("ending", "packed"), FORMS)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (claiming((2**40, 3)), r"\[1099511627776, 3\], which takes 13194139533312 bytes, but holds 48"),
        (claiming((2**62, 2**62)), "but holds 48"),
        (claiming((4, 4)), "takes 64 bytes, but holds 48"),
        (claiming((-4, -3)), r"\[-4, -3\]"),
        (claiming((10**15,), "|S0"), "objects"),
        (claiming((1,), "|O"), "objects"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "does not hold NumPy arrays"),
        (b"", "does not hold NumPy arrays"),
    ],
)
def test_headers_claim_no_more_than_there_is(tmp_path, ending, packed, content, words):
    path = written(tmp_path, ending, content, packed)
    for read in READERS[ending]:
        with pytest.raises(jaxrnn.InputError, match=words) as caught:
            read(path)
        assert str(path) in str(caught.value)


def test_what_packed_files_unpack_to_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "UNPACKED", 2**20)
    path = tmp_path / "a.npz"
    for count in (1, 9):  # one array beyond the limit, or many of which each is within it
        zeros = {f"x{index}" if index else "x": np.zeros((2**21 // count, 1), np.int8) for index in range(count)}
        np.savez_compressed(path, **zeros)
        for read in READERS[".npz"]:
            check_refused(jaxrnn.InputError, r"unpacks to 2\.0 MiB from .*no more than 1\.0 MiB.*savez", read, path)
        np.savez(path, **zeros)
        for read in READERS[".npz"]:
            assert not read(path)[:4].any()


@pytest.mark.parametrize("what", ["a FIFO", "a device"])
def test_what_is_no_regular_file_is_not_read(tmp_path, what):
    """It may never answer, or never end."""
    readers = [
        (load_array, ".npy"),
        (load_archive, ".npz"),
        (read_npz, ".npz"),
        (lambda path: open_recording(path, 16_000), ".wav"),
        (lambda path: open_recording(path, 16_000), ".npy"),
        (Segments, ".csv"),
        (lambda path: SettingsFile(Settings, path), ".yaml"),
        (jaxrnn.load, ".onnx"),
        (jaxrnn.load_compiled, ".jaxrnn"),
        (jaxrnn.runtime.compiled.is_compiled, ".jaxrnn"),
    ]
    for index, (read, ending) in enumerate(readers):
        path = tmp_path / f"{index}{ending}"
        if what == "a FIFO":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")
        check_refused(jaxrnn.JaxrnnError, f"{what}, not a regular file|there is no file", read, path)


def test_a_file_of_a_terabyte_is_not_read(tmp_path):
    """A sparse file takes no space on the disk, and none of our readers takes more memory than a file may need."""
    readers = {
        "x.npy": load_array,
        "x.wav": read_sound,
        "x.csv": Segments,
        "x.yaml": lambda path: SettingsFile(Settings, path),
        "x.onnx": jaxrnn.load,
        "x.jaxrnn": jaxrnn.load_compiled,
    }
    for name, read in readers.items():
        path = tmp_path / name
        with path.open("wb") as file:
            if name == "x.npy":
                header = {"descr": "<f4", "fortran_order": False, "shape": (2**38 - 32,)}
                np.lib.format.write_array_header_1_0(file, header)
            file.truncate(2**40)
        words = rf"{name}.* too large: it has (1\.0 TiB|1,023 GiB), and the limit is [\d.]+ [GM]iB$"
        check_refused(jaxrnn.JaxrnnError, words, read, path)
    proto = model(ADD)
    tensor = proto.graph.initializer.add(name="weight", data_type=1, dims=[2**38], data_location=1)
    tensor.external_data.add(key="location", value="x.wav")
    (tmp_path / "w.onnx").write_bytes(proto.SerializeToString())
    words = r"'weight': external data 'x\.wav': it is too large: it has 1\.0 TiB"
    check_refused(jaxrnn.LimitError, words, jaxrnn.load, tmp_path / "w.onnx")
