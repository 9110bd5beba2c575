"""Evaluations: what comes out is what the models give on whole recordings, and nothing is lost."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import socket
from typing import Any

import numpy as np
import pytest
import soundfile
from evaluation_cases import (
    RATE,
    denoiser,
    evaluation_of,
    leftovers,
    make_corpus,
    outputs,
    sound,
    through,
    write_config,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal

import jaxrnn
from jaxrnn.demo import denoise_at_once
from jaxrnn.errors import InputError
from jaxrnn.evaluation import Chain, Offline, Stage, from_folder, from_manifest
from jaxrnn.evaluation.prepared import prepare_evaluation
from jaxrnn.evaluation.recordings import open_recording


def dtln(models):
    one, two = jaxrnn.load(models / "dtln_1.onnx"), jaxrnn.load(models / "dtln_2.onnx")
    return Chain((Stage(one, takes="magnitude", gives="mask"), Stage(two, gives="samples")), 512, 128)


def test_dtln_is_its_reference_however_it_is_cut_and_whatever_runs_beside_it(models, audio):
    """The reference is of the whole file, and late by 384 samples."""
    system, samples = dtln(models), soundfile.read(audio / "noisy_16k.wav", dtype="float32")[0]
    reference = np.load(audio / "dtln_reference_16k.npy")[384:]
    count = len(reference) - 512
    (alone,) = through(system, [{"samples": samples}], 40_000)
    others = [{"samples": samples}, {"samples": samples[: 2 * 33_280]}, {"samples": 3 * sound(20_000)}]
    together = through(system, others, 33_280)
    np.testing.assert_allclose(alone["audio"][:count], reference[:count], atol=1e-5)
    assert alone["audio"].shape == samples.shape
    np.testing.assert_allclose(together[0]["audio"], alone["audio"], atol=1e-5)
    # A shorter recording is the same until the last frames that hold what it does not have.
    np.testing.assert_allclose(together[1]["audio"][:-512], alone["audio"][: 2 * 33_280 - 512], atol=1e-5)


def test_silero_is_its_reference_however_it_is_cut(models, audio):
    model = jaxrnn.load(models / "silero_vad_16k_op15.onnx", static={"sr": np.asarray(RATE)})
    system = Chain((Stage(model),), 576, 512)
    samples = soundfile.read(audio / "speech_16k.wav", dtype="float32")[0][: 10 * RATE + 100]
    reference = np.load(audio / "silero_reference.npy").reshape(-1)
    alone, beside = through(system, [{"samples": samples}, {"samples": sound(5_000)}], 40_960)
    (whole,) = through(system, [{"samples": samples}], 20_480)
    (name,) = alone
    assert len(alone[name]) == -(-len(samples) // 512)
    assert len(beside[name]) == 10
    full = len(samples) // 512
    np.testing.assert_allclose(alone[name].reshape(-1)[:full], reference[:full], atol=1e-5)
    np.testing.assert_allclose(whole[name], alone[name], atol=1e-5)


@pytest.mark.parametrize("chunk", [128, 1280, 100_000])
def test_the_packaged_denoiser_as_a_chain_is_what_the_demo_gives(chunk):
    """Recordings of one sample, of less than a hop, that end where a chunk does, and one hop before it."""
    recordings = [sound(length, seed=length) for length in (1, 100, 1280, 1152, 2560, 3001)]
    found = through(denoiser(), [{"samples": each} for each in recordings], chunk)
    model = jaxrnn.load(jaxrnn.demo.PACKAGED)
    for samples, each in zip(recordings, found, strict=True):
        np.testing.assert_allclose(each["audio"], denoise_at_once(samples, model), atol=2e-6)


@pytest.mark.parametrize(
    ("name", "pulse", "shapes"),
    [("filter_net", 1, {"feat_erb": (32,), "feat_spec": (2, 96)}), ("keyword_net", 2, {"samples": (40,)})],
)
def test_an_offline_model_in_chunks_is_the_model_on_the_whole_recording(models, name, pulse, shapes):
    """Recordings that end inside a chunk, where one does, and one pulse before that."""
    model = jaxrnn.load(models / f"{name}.onnx")
    system = Offline(model.stream(pulse=pulse), model.params)
    chunk, generator = 20 * pulse, np.random.default_rng(0)
    lengths = [2 * chunk + 7 * pulse, 2 * chunk, chunk - pulse]
    recordings = [
        {key: generator.normal(size=(length, *shape)).astype(np.float32) for key, shape in shapes.items()}
        for length in lengths
    ]
    for given_arrays, found in zip(recordings, through(system, recordings, chunk), strict=True):
        inputs = {}
        for info in model.inputs:
            array = given_arrays[info.name if info.name in given_arrays else "samples"]
            shape = list(info.shape or ())
            axis = shape.index("S")
            rest = [size for place, size in enumerate(shape) if place != axis]
            inputs[info.name] = np.moveaxis(array.reshape(len(array), *rest), 0, axis)
        wanted, axes = model(inputs), model.stream(pulse=pulse).axes
        assert found.keys() == set(system.delay)
        for output, values in found.items():
            whole = np.moveaxis(np.asarray(wanted[output]), axes[output], 0)
            np.testing.assert_allclose(values.reshape(whole.shape), whole, rtol=1e-4, atol=1e-5)


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
    channel = data.draw(st.sampled_from([None, *range(samples.shape[1])]))
    mono = samples.mean(1, dtype=np.float32) if channel is None else samples[:, channel]
    whole = signal.resample_poly(mono.astype(np.float64), RATE // np.gcd(RATE, rate), rate // np.gcd(RATE, rate))
    recording = open_recording(path, RATE, channel)
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
        (1, RATE, "1 samples a second, and the 16,000 that are asked for are more than 100 times away"),
        (2**31 - 1, RATE, "from 1 to 1,000,000 samples a second, not 2,147,483,647"),
        (159, RATE, "more than 100 times away"),
        (999_983, RATE, "a filter of 999,983 phases is needed, and no more than 100,000"),
        (RATE, 10**12, "the rate that is asked for must be from 1 to 1,000,000"),
    ],
)
def test_rates_that_nothing_has(tmp_path, own, wanted, said):
    """A head of 44 bytes would make a minute a year."""
    path = tmp_path / "a.wav"
    soundfile.write(path, sound(2000), RATE)
    data = bytearray(path.read_bytes())
    data[24:28] = own.to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(InputError, match=rf"a\.wav: .*{said}"):
        open_recording(path, wanted)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"chunk": 1e300}, "chunk of 1e[+]300 seconds at 16,000 .* no more than 268,435,456 are allowed"),
        ({"chunk": float("inf")}, "no more than 268,435,456"),
        ({"chunk": float("nan")}, "above 0 seconds"),
        ({"batch": 10**9}, "for a batch of 1,000,000,000"),
    ],
)
def test_chunks_that_nothing_holds(tmp_path, options, said):
    corpus = make_corpus(tmp_path, [3000])
    with pytest.raises(InputError, match=said):
        evaluation_of(corpus, **options)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("system.rate=1000000000000", "system.rate: Input should be less than or equal to 1000000, not 1000000000000"),
        ("chunk=1.0e+300", "chunk: a chunk of 1e[+]300 seconds .* no more than 268,435,456"),
        ("system.frames.size=1000000000000", "at most 1,048,576 samples, not 1,000,000,000,000"),
        ("batch=100000000", "no more than 268,435,456"),
    ],
)
def test_settings_that_nothing_holds(tmp_path, line, said):
    make_corpus(tmp_path, [3000])
    with pytest.raises(InputError, match=said):
        prepare_evaluation(write_config(tmp_path), [line])


def endless(data):
    """A FLAC whose head says that its length is not known."""
    return data[:21] + bytes([data[21] & 0xF0]) + bytes(4) + data[26:]


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("a.wav", lambda data: b"", "cannot be read"),
        ("a.wav", lambda data: b"not a sound" * 50, "cannot be read"),
        ("a.raw", lambda data: data, "cannot be read"),
        ("a.flac", endless, "does not say how long"),
        ("a.npy", lambda data: data[:200], "does not hold NumPy arrays"),
        ("a.npy", lambda data: b"", "does not hold NumPy arrays"),
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
    with pytest.raises(InputError, match=rf"{name}.*{said}"):
        open_recording(path, RATE)


def test_recordings_without_frames_or_of_unequal_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "unequal.npz", a=np.zeros(3), b=np.zeros(4))
    np.savez(tmp_path / "none.npz")
    np.save(tmp_path / "scalar.npy", np.float32(1))
    np.save(tmp_path / "empty.npy", np.zeros((0, 4)))
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), RATE)
    soundfile.write(tmp_path / "one.wav", np.zeros(10), RATE)
    for name in ("unequal.npz", "none.npz", "scalar.npy"):
        with pytest.raises(InputError, match=r"of one length"):
            open_recording(tmp_path / name, RATE)
    for name in ("empty.npy", "empty.wav"):
        with pytest.raises(InputError, match="is empty"):
            open_recording(tmp_path / name, RATE)
    with pytest.raises(InputError, match="no channel 1"):
        open_recording(tmp_path / "one.wav", RATE, 1)
    with pytest.raises(InputError, match="there is no file"):
        open_recording(tmp_path / "two.wav", RATE)


LENGTHS = [9000, 100, 4000, 8000, 16_000, 3999, 7000, 12_001, 5000, 20_000, 6000]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A corpus and its evaluation, run without an accident: ``(folder, rows, outputs)``."""
    folder = make_corpus(tmp_path_factory.mktemp("done"), LENGTHS)
    evaluation = evaluation_of(folder)
    evaluation.run()
    return folder, evaluation.rows(), outputs(folder / "out")


def test_every_recording_is_a_row_and_its_output_is_that_of_the_file_alone(done):
    folder, rows, found = done
    assert [(row["id"], row["status"]) for row in rows] == [(f"f{number:02d}", "ok") for number in range(len(LENGTHS))]
    assert [row["seconds"] for row in rows] == [length / RATE for length in LENGTHS]
    model = jaxrnn.load(jaxrnn.demo.PACKAGED)
    for row in rows[::3]:
        wanted = denoise_at_once(np.asarray(soundfile.read(row["path"], dtype="float32")[0], np.float32), model)
        np.testing.assert_allclose(found[f"{row['id']}.wav"], wanted, atol=1e-5)
        clean = soundfile.read(row["reference"], dtype="float64")[0]
        output = found[f"{row['id']}.wav"].astype(np.float64)
        ratio = jaxrnn.demo.si_sdr(output - output.mean(), clean - clean.mean())
        assert row["si_sdr"] == pytest.approx(ratio, abs=1e-4)
    assert not leftovers(folder / "out")


def full_disk(monkeypatch, after, fits):
    """Renames of files that fit fail from a certain one on, as on a full disk."""
    replace, left = os.replace, [after]

    def failing(source, target, **options):
        if fits(str(target)):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device", str(target))
        return replace(source, target, **options)

    monkeypatch.setattr(os, "replace", failing)


@pytest.mark.parametrize(("after", "ending"), [(0, ".json"), (2, ".json"), (0, ".wav"), (6, ".wav")])
def test_a_full_disk_ends_the_run_with_no_torn_file_and_a_rerun_completes_it(
    done, tmp_path, monkeypatch, after, ending
):
    folder, rows, found = done
    evaluation = evaluation_of(folder, tmp_path / "out")
    with monkeypatch.context() as patch:
        full_disk(patch, after, lambda target: target.endswith(ending))
        with pytest.raises(InputError, match="No space left"):
            evaluation.run()
    assert not leftovers(tmp_path / "out")
    for name, samples in outputs(tmp_path / "out").items():
        np.testing.assert_array_equal(samples, found[name])
    again = evaluation_of(folder, tmp_path / "out")
    assert not again.is_complete
    again.run()
    assert again.is_complete
    assert again.rows() == rows
    assert all(np.array_equal(samples, found[name]) for name, samples in outputs(tmp_path / "out").items())
    assert outputs(tmp_path / "out").keys() == found.keys()


def test_a_full_disk_in_the_middle_of_an_output_is_no_row_of_its_recording(done, tmp_path, monkeypatch):
    """It is not the recording that is at fault: another run, with room, gives its row."""
    folder, rows, _ = done
    write, count = soundfile.SoundFile.write, [0]

    def failing(self, data):
        count[0] += 1
        if count[0] > 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, data)

    evaluation = evaluation_of(folder, tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(soundfile.SoundFile, "write", failing)
        with pytest.raises(InputError, match="No space left"):
            evaluation.run()
    assert not leftovers(tmp_path / "out")
    again = evaluation_of(folder, tmp_path / "out")
    again.run()
    assert again.rows() == rows


def test_a_corrupt_recording_is_one_row_and_changes_no_other(done, tmp_path):
    """Torn in its middle, so that it is found out only while it is read, among others of its unit."""
    _, rows, found = done
    make_corpus(tmp_path, LENGTHS)
    flac, wav = tmp_path / "noisy" / "f04.flac", tmp_path / "noisy" / "f04.wav"
    soundfile.write(flac, soundfile.read(wav)[0], RATE)
    torn = flac.read_bytes()
    flac.write_bytes(torn[: len(torn) * 2 // 3])
    wav.unlink()
    (tmp_path / "clean" / "f07.wav").write_bytes(b"RIFF")
    evaluation = evaluation_of(tmp_path)
    evaluation.run()
    assert evaluation.is_complete
    kept = outputs(tmp_path / "out")
    for row, wanted in zip(evaluation.rows(), rows, strict=True):
        if row["id"] in ("f04", "f07"):
            assert row["status"] == "error"
            assert {"f04": "f04.flac", "f07": "reference: "}[row["id"]] in row["error"]
            assert f"{row['id']}.wav" not in kept
        else:
            assert row["si_sdr"] == wanted["si_sdr"]
            np.testing.assert_array_equal(kept[f"{row['id']}.wav"], found[f"{row['id']}.wav"])


def test_arrays_of_another_shape_are_rows_with_errors(tmp_path):
    for number, shape in enumerate([(3000,), (3000, 2), (2000,), (2500,)]):
        path = tmp_path / "noisy" / f"f{number}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, 0.1 * np.ones(shape, np.float32))
    corpus = from_folder(tmp_path / "noisy")
    evaluation = jaxrnn.evaluation.Evaluation(denoiser(), corpus, [], tmp_path / "out", batch=4)
    evaluation.run()
    assert [row["status"] for row in evaluation.rows()] == ["ok", "error", "ok", "ok"]
    assert "(2,)" in evaluation.rows()[1]["error"]
    for kind in (np.int16, np.complex64):
        np.save(tmp_path / "noisy" / "f0.npy", np.ones(3000, kind))
        alone = jaxrnn.evaluation.Evaluation(denoiser(), corpus[:1], [], tmp_path / np.dtype(kind).name)
        with pytest.raises(InputError, match=np.dtype(kind).name):
            alone.run()


def with_other_weights(chain):
    """As after one step of training: nothing but numbers differ."""
    (stage,) = chain.stages
    params = {name: array + 1e-6 for name, array in stage.stepper.params.items()}
    return dataclasses.replace(chain, stages=(dataclasses.replace(stage, params=params),))


def test_a_folder_of_other_results_is_refused_naming_what_differs(done, tmp_path):
    folder, rows, _ = done
    others: list[tuple[dict[str, Any], str]] = [
        ({"batch": 8}, "batch"),
        ({"chunk": 0.5}, "chunk"),
        ({"keep": False}, "keep"),
        ({"facts": {"weather": "rain"}}, "weather"),
        ({"system": dataclasses.replace(denoiser(), window=None)}, "system"),
        ({"system": with_other_weights(denoiser())}, "system"),
    ]
    for options, named in others:
        with pytest.raises(InputError, match=rf"differs in {named}: choose"):
            evaluation_of(folder, **options)
    make_corpus(tmp_path, LENGTHS)
    evaluation_of(tmp_path)
    soundfile.write(tmp_path / "noisy" / "f03.wav", sound(8001), RATE)
    with pytest.raises(InputError, match="differs in lengths of recordings"):
        evaluation_of(tmp_path)
    (tmp_path / "out" / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"run\.json cannot be read"):
        evaluation_of(tmp_path)
    assert evaluation_of(folder).rows() == rows


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
    with pytest.raises(InputError, match="two recordings are called 'a'"):
        from_manifest(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("path,id\n1.wav,../a\n")
    with pytest.raises(InputError, match=re.escape("'../a' cannot name a file")):
        from_manifest(tmp_path / "c.csv")
    (tmp_path / "d.csv").write_text("paths,id\n1.wav,a\n")
    with pytest.raises(InputError, match="did you mean 'paths'"):
        from_manifest(tmp_path / "d.csv")


def test_what_a_killed_process_left_of_an_output_is_removed(done, tmp_path):
    folder, _, found = done
    evaluation = evaluation_of(folder, tmp_path / "out")
    left = tmp_path / "out" / "outputs" / f".f00.wav.{socket.gethostname()}.999999999.partial"
    left.parent.mkdir()
    left.write_bytes(b"torn")
    evaluation.run()
    assert not leftovers(tmp_path / "out")
    assert outputs(tmp_path / "out").keys() == found.keys()
