"""Files of arrays from whomever: what their headers claim is held against what is there before it is allocated."""

from __future__ import annotations

import io
import os
import zipfile

import numpy as np
import pytest

import jaxrnn
from jaxrnn._files import arrays
from jaxrnn.cli.options import load_archive, load_array
from jaxrnn.evaluation.metrics.counts import Segments
from jaxrnn.evaluation.recordings import open_recording
from jaxrnn.settings.files import SettingsFile
from jaxrnn.settings.models import Settings
from jaxrnn.training.examples import read_npz

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
            with pytest.raises(jaxrnn.InputError, match=r"unpacks to 2\.0 MiB from .*no more than 1\.0 MiB.*savez"):
                read(path)
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
        with pytest.raises(jaxrnn.JaxrnnError, match=f"{what}, not a regular file|there is no file"):
            read(path)
