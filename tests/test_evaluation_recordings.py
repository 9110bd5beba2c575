"""Recordings of an evaluation: parts of sounds and arrays, what is refused, and manifests that list them."""

from __future__ import annotations

import os
import re
from typing import Any

import fsspec
import numpy as np
import polars
import pytest
import soundfile
from evaluation_cases import RATE, denoiser, sound
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import check_refused
from scipy import signal

from jaxrnn.audio.recordings import open_recording
from jaxrnn.errors import InputError
from jaxrnn.evaluation import Evaluation, from_manifest
from jaxrnn.evaluation.judging import OutputWriter


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One sound as files of several rates and kinds, each with its samples as they are in the file."""
    folder, found = tmp_path_factory.mktemp("files"), {}
    for rate, kind, channels in ((8000, "wav", 1), (44_100, "flac", 2), (48_000, "wav", 1), (16_000, "flac", 3)):
        samples = np.stack([sound(rate // 2 + 37, seed) for seed in range(channels)], 1)
        path = folder / f"{rate}.{kind}"
        soundfile.write(path, samples, rate)
        found[path] = soundfile.read(path, dtype="float32", always_2d=True)[0], rate
    return found


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_part_of_a_recording_is_that_part_of_the_whole(files, data):
    path = data.draw(st.sampled_from(sorted(files)))
    samples, rate = files[path]
    mono = samples.mean(1, dtype=np.float32)
    whole = signal.resample_poly(mono.astype(np.float64), RATE // np.gcd(RATE, rate), rate // np.gcd(RATE, rate))
    recording = open_recording(path, RATE)
    assert recording.length == len(whole)
    start = data.draw(st.integers(-300, len(whole) + 300))
    stop = start + data.draw(st.integers(0, 900))
    found = recording.part(start, stop)["samples"]
    assert found.dtype == np.float32
    places = np.arange(start, stop)
    inside = (places >= 0) & (places < len(whole))
    np.testing.assert_array_equal(found[~inside], 0)
    # Both are computed in double precision and rounded to single.
    np.testing.assert_allclose(found[inside], whole[places[inside]], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_by_parts(tmp_path, save):
    arrays = {
        "rows": np.arange(60, dtype=np.float32).reshape(20, 3),
        "columns": np.asfortranarray(np.arange(80).reshape(20, 2, 2)),
        "flags": np.arange(20) % 3 == 0,
        "empty": np.zeros((20, 0), np.float16),
    }
    save(tmp_path / "a.npz", **arrays)
    np.save(tmp_path / "a.npy", arrays["columns"])
    for path, wanted in ((tmp_path / "a.npz", arrays), (tmp_path / "a.npy", {"samples": arrays["columns"]})):
        recording = open_recording(path, RATE)
        assert recording.length == 20
        assert recording.frame == {name: array.shape[1:] for name, array in wanted.items()}
        for start, stop in ((-4, 5), (3, 9), (15, 31), (-9, -2), (20, 24), (0, 20), (6, 7)):
            for name, part in recording.part(start, stop).items():
                padded = np.pad(wanted[name], [(40, 40), *[(0, 0)] * (wanted[name].ndim - 1)])
                np.testing.assert_array_equal(part, padded[40 + start : 40 + stop])
                assert part.dtype == wanted[name].dtype


def test_the_last_part_of_a_compressed_archive_may_be_read_during_another(tmp_path):
    """Threads read parts in advance: what one of them lets go of, another may just have looked for."""

    class LetGo(dict):
        def __contains__(self, name):
            recording._unpacked = {}
            return super().__contains__(name)

        def get(self, name, default=None):
            recording._unpacked = {}
            return super().get(name, default)

    np.savez_compressed(tmp_path / "a.npz", samples=np.arange(20))
    recording: Any = open_recording(tmp_path / "a.npz", RATE)
    recording.part(0, 5)
    recording._unpacked = LetGo(recording._unpacked)
    np.testing.assert_array_equal(recording.part(5, 9)["samples"], np.arange(5, 9))


def test_a_thousand_files_of_arrays_are_not_held_open(tmp_path):
    resource = pytest.importorskip("resource")
    np.save(tmp_path / "a.npy", sound(100))
    np.savez(tmp_path / "b.npz", samples=sound(100))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
    try:
        recordings = [open_recording(tmp_path / name, RATE) for name in ("a.npy", "b.npz") for _ in range(100)]
        assert all(recording.part(0, 10)["samples"].shape == (10,) for recording in recordings)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("own", "wanted", "said"),
    [
        (1, RATE, "1 samples a second, and the requested rate is 16,000: more than a factor of 100"),
        (2**31 - 1, RATE, "from 1 to 1,000,000 samples a second, not 2,147,483,647"),
        (159, RATE, "more than a factor of 100"),
        (999_983, RATE, "a filter of 999,983 phases, and at most 100,000"),
        (RATE, 10**12, "the requested rate must be from 1 to 1,000,000"),
    ],
)
def test_rates_that_nothing_has(tmp_path, own, wanted, said):
    """A head of 44 bytes would make a minute a year."""
    path = tmp_path / "a.wav"
    soundfile.write(path, sound(2000), RATE)
    data = bytearray(path.read_bytes())
    data[24:28] = own.to_bytes(4, "little")
    path.write_bytes(data)
    check_refused(InputError, rf"a\.wav: .*{said}", open_recording, path, wanted)


def endless(data):
    """A FLAC whose head says that its length is not known."""
    return data[:21] + bytes([data[21] & 0xF0]) + bytes(4) + data[26:]


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("a.wav", lambda data: b"", "cannot be read"),
        ("a.wav", lambda data: b"not a sound" * 50, "cannot be read"),
        ("a.raw", lambda data: data, "cannot be read"),
        ("a.flac", endless, "has no length in its header"),
        ("a.npy", lambda data: data[:200], "does not hold NumPy arrays"),
        ("a.npy", lambda data: b"", "does not hold NumPy arrays"),
        ("a.npy", lambda data: data.replace(b"}", b" "), "does not hold NumPy arrays"),
        ("a.npz", lambda data: data[:200], "does not hold NumPy arrays"),
        ("a.npz", lambda data: b"PK\x03\x04", "does not hold NumPy arrays"),
    ],
)
def test_what_is_not_a_recording_is_refused_by_name(tmp_path, name, spoil, said):
    path = tmp_path / name
    if path.suffix in (".wav", ".flac"):
        soundfile.write(path, sound(2000), RATE)
    elif path.suffix == ".npy":
        np.save(path, sound(2000))
    else:
        np.savez(tmp_path / "a.npz", samples=sound(2000))
        path.touch()
    path.write_bytes(spoil(path.read_bytes()))
    check_refused(InputError, rf"{name}.*{said}", open_recording, path, RATE)


def test_recordings_without_frames_or_of_unequal_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "unequal.npz", a=np.zeros(3), b=np.zeros(4))
    np.savez(tmp_path / "none.npz")
    np.save(tmp_path / "scalar.npy", np.float32(1))
    np.save(tmp_path / "empty.npy", np.zeros((0, 4)))
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), RATE)
    for name in ("unequal.npz", "none.npz", "scalar.npy"):
        check_refused(InputError, r"of one length", open_recording, tmp_path / name, RATE)
    for name in ("empty.npy", "empty.wav"):
        check_refused(InputError, "is empty", open_recording, tmp_path / name, RATE)
    check_refused(InputError, "there is no file", open_recording, tmp_path / "two.wav", RATE)


def test_names_in_a_manifest_stay_as_they_are_written(tmp_path):
    for name in ("1.wav", "2.wav"):
        soundfile.write(tmp_path / name, sound(100), RATE)
    lines = ["path,id,reference,level", *(f"1.wav,{number:03d},2.wav,{number}" for number in range(150))]
    (tmp_path / "a.csv").write_text("\n".join([*lines, "2.wav,007a,,0.5"]))
    items = from_manifest(tmp_path / "a.csv")
    assert [item.id for item in items[:9]] == ["000", "001", "002", "003", "004", "005", "006", "007", "007a"]
    assert items[8].reference is None
    assert items[8].columns == {"level": 0.5}
    assert items[0].reference == tmp_path / "2.wav"
    (tmp_path / "b.csv").write_text("path,id\n1.wav,a\n2.wav,a\n")
    check_refused(InputError, "two recordings are called 'a'", from_manifest, tmp_path / "b.csv")
    with pytest.raises(InputError, match="two recordings are called '000'"):
        Evaluation(denoiser(), [items[0], *items[:2]], [], tmp_path / "out")
    (tmp_path / "c.csv").write_text("path,id\n1.wav,../a\n")
    check_refused(InputError, re.escape("'../a' cannot name a file"), from_manifest, tmp_path / "c.csv")
    (tmp_path / "d.csv").write_text("paths,id\n1.wav,a\n")
    check_refused(InputError, "did you mean 'paths'", from_manifest, tmp_path / "d.csv")
    polars.DataFrame({"path": [["1.wav", "2.wav"]]}).write_parquet(tmp_path / "e.parquet")
    words = r"e\.parquet: the columns id, path, reference must hold text: cannot"
    check_refused(InputError, words, from_manifest, tmp_path / "e.parquet")


@pytest.mark.parametrize("store", [False, True], ids=["local", "store"])
def test_a_manifest_reads_what_the_page_says(tmp_path, store):
    """docs/evaluation.md, "What a manifest may read"."""
    corpus, other, memory = tmp_path / "corpus", tmp_path / "other", fsspec.filesystem("memory")
    corpus.mkdir()
    other.mkdir()
    np.save(other / "x.npy", np.ones(9, np.float32))
    (corpus / "link.npy").symlink_to(other / "x.npy")
    os.mkfifo(corpus / "fifo.npy")
    memory.pipe("/manifests/x.npy", (other / "x.npy").read_bytes())
    readable = [str(other / "x.npy"), f"file://{other}/x.npy", "memory://manifests/x.npy"]
    readable += ["x.npy", "../../x.npy"] if store else ["link.npy", "../other/x.npy"]
    refused = {
        str(corpus / "fifo.npy"): "is a FIFO", str(corpus): "is a folder", "/dev/zero": "is a device",
        "~/x.npy": "there is no file", "nope://x.npy": "cannot be reached", "file://host/x.npy": "names the host",
        "s3://me:secret@bucket/x.npy": "credentials do not belong in a URL",
    }  # fmt: skip
    for text in (*readable, *refused):
        content, place = f"path,id\n{text},a\n".encode(), corpus / "manifest.csv"
        place.write_bytes(content)
        memory.pipe("/manifests/manifest.csv", content)
        read = lambda place: open_recording(from_manifest(place)[0].path, RATE)  # noqa: E731
        where = "memory://manifests/manifest.csv" if store else place
        if text in readable:
            assert read(where).length == 9
        else:
            check_refused(InputError, refused[text], read, where)


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.complex64])
def test_an_output_that_is_no_sound_is_one_array_of_all_its_pieces(tmp_path, kind):
    pieces = [(np.arange(6 * size).reshape(size, 2, 3) + size).astype(kind) for size in (0, 1, 1200, 7)]
    writer = OutputWriter(tmp_path / "below", "a.npy", RATE)
    for piece in pieces:
        writer.add(piece)
    assert not (tmp_path / "below" / "a.npy").exists()
    writer.finish()
    np.testing.assert_array_equal(np.load(tmp_path / "below" / "a.npy"), np.concatenate(pieces), strict=True)
    assert [path.name for path in (tmp_path / "below").iterdir()] == ["a.npy"]


def test_a_sample_that_is_not_finite_is_named_by_its_number_in_the_file(tmp_path):
    samples = sound(9000)
    samples[7654] = np.inf
    soundfile.write(tmp_path / "a.wav", np.stack([sound(9000), samples], 1), RATE, subtype="FLOAT")
    for rate, part in ((RATE, (7000, 8000)), (RATE // 2, (3500, 4000))):
        recording = open_recording(tmp_path / "a.wav", rate)
        recording.part(0, part[0])
        check_refused(InputError, "a.wav: sample 7,654 is inf", recording.part, *part)
        assert not np.isfinite(open_recording(tmp_path / "a.wav", rate, finite=False).part(*part)["samples"]).all()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_an_output_that_cannot_be_written_has_the_cause(tmp_path):
    for name in ("a.wav", "a.npy"):
        writer = OutputWriter(tmp_path / "below", name, RATE)
        (tmp_path / name).symlink_to("/dev/full")
        writer._partial = tmp_path / name

        def write(writer=writer):
            writer.add(sound(100_000))
            writer.finish()

        check_refused(InputError, f"{name} cannot be written: No space left on device$", write)
        assert not (tmp_path / name).is_symlink()
        assert os.path.exists("/dev/full")
