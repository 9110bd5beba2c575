"""Evaluations: what comes out is what the models give on whole recordings, and nothing is lost."""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import polars
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
from refusals import check_refused
from tiers import of_tiers

import jaxrnn
from jaxrnn.audio import Frames, Network, Waveform
from jaxrnn.demo import denoise_at_once
from jaxrnn.errors import InputError, MissingPackageError
from jaxrnn.evaluation import Evaluation, Framed, Offline, build_metric, evaluate, from_folder, over_whole
from jaxrnn.evaluation.judging import OutputWriter, UnitMember
from jaxrnn.evaluation.metrics.sound import level
from jaxrnn.evaluation.settings import prepare_evaluation


def plain_frames(size, hop):
    """Frames without a window."""
    return Frames(size, hop, "boxcar", synthesis="sum")


def dtln(models):
    one, two = jaxrnn.load(models / "dtln_1.onnx"), jaxrnn.load(models / "dtln_2.onnx")
    return Framed(Waveform((Network(one, gives="mask"), Network(two)), plain_frames(512, 128)))


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_silero_is_its_reference_however_it_is_cut(models, audio):
    model = jaxrnn.load(models / "silero_vad_16k_op15.onnx", static={"sr": np.asarray(RATE)})
    system = Framed(Waveform(Network(model, takes="samples", gives="result"), plain_frames(576, 512)))
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


@pytest.mark.parametrize("chunk", of_tiers([128, 1280, 100_000], [], [1280]))
def test_the_packaged_denoiser_in_chunks_is_what_the_demo_gives(chunk):
    """Recordings of one sample, of less than a hop, that end where a chunk does, and one hop before it."""
    recordings = [sound(length, seed=length) for length in (1, 100, 1280, 1152, 2560, 3001)]
    found = through(denoiser(), [{"samples": each} for each in recordings], chunk)
    model = jaxrnn.load(jaxrnn.demo.PACKAGED)
    for samples, each in zip(recordings, found, strict=True):
        np.testing.assert_allclose(each["audio"], denoise_at_once(samples, model), atol=2e-6)


@pytest.mark.parametrize(
    ("name", "pulse", "shapes"),
    [
        pytest.param("filter_net", 1, {"feat_erb": (32,), "feat_spec": (2, 96)}, marks=pytest.mark.nightly),
        pytest.param("keyword_net", 2, {"samples": (40,)}, marks=pytest.mark.nightly),
    ],
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
    check_refused(InputError, said, evaluation_of, corpus, **options)


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
    check_refused(InputError, said, prepare_evaluation, write_config(tmp_path), [line])


@pytest.mark.thorough
def test_all_mistakes_in_settings_are_told_at_once(tmp_path):
    """Mistakes of the keys, the metrics, the corpus and the models are in one message."""
    path = write_config(tmp_path)
    changes = {
        "chunk": -1,
        "metrics": ["sisdr", "sdr", {"name": "si_sdr", "calld": "x"}],
        "corpus": "nowhere",
        "system.stages.0.model": "absent.onnx",
    }
    with pytest.raises(InputError) as caught:
        prepare_evaluation(path, changes)
    keys = [line.removeprefix(f"{path}: ").partition(":")[0] for line in str(caught.value).splitlines()]
    assert keys == ["chunk", "metrics.0", "metrics.2.calld", "corpus", "system.stages.0"]


@pytest.mark.parametrize("package", ["PIL", "altair", "grain", "jinja2", "polars", "soundfile", "vl_convert"])
def test_a_missing_package_ends_an_evaluation_before_it_computes(tmp_path, monkeypatch, package):
    """The error comes before the system is made: neither command nor function computes a unit."""
    make_corpus(tmp_path, [3000])
    path = write_config(tmp_path)
    for name in [name for name in sys.modules if name.startswith("jaxrnn.evaluation.report.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)

    def no_system():
        pytest.fail("the system was made")

    with pytest.raises(MissingPackageError, match=rf"{package}.* is needed for .*jaxrnn\[evaluate\]"):
        evaluate(no_system, from_folder(tmp_path / "noisy"), [], tmp_path / "out")
    check_refused(MissingPackageError, r"jaxrnn\[evaluate\]", prepare_evaluation, path)
    assert not (tmp_path / "out").exists()


LENGTHS = [9000, 100, 4000, 8000, 16_000, 3999, 7000, 12_001, 5000, 20_000, 6000]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A corpus and its evaluation, run without an accident: ``(folder, rows, outputs)``."""
    folder = make_corpus(tmp_path_factory.mktemp("done"), LENGTHS)
    evaluation = evaluation_of(folder)
    evaluation.run()
    return folder, evaluation.rows(), outputs(folder / "out")


@pytest.mark.thorough
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
        ratio = jaxrnn.signal.si_sdr(output - output.mean(), clean - clean.mean())
        assert row["si_sdr"] == pytest.approx(ratio, abs=1e-4)
    assert not leftovers(folder / "out")


def full_disk(monkeypatch, which, after):
    """The disk is full in the middle of a part or of an output, or a rename of an output fails, after some others."""
    left = [after]

    def failing(call, full):
        def called(*arguments, **options):
            left[0] -= which != "renames" or str(arguments[1]).endswith(".wav")
            return call(*arguments, **options) if left[0] >= 0 else full(*arguments)

        return called

    def no_space(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    def torn(frame, file):
        file.write_bytes(b"PAR1")
        raise polars.exceptions.ComputeError("underlying IO error: No space left on device")

    if which == "parts":
        monkeypatch.setattr(polars.DataFrame, "write_parquet", failing(polars.DataFrame.write_parquet, torn))
    elif which == "renames":
        monkeypatch.setattr(os, "replace", failing(os.replace, no_space))
    else:
        monkeypatch.setattr(soundfile.SoundFile, "write", failing(soundfile.SoundFile.write, no_space))


@pytest.mark.parametrize(
    ("which", "after"),
    of_tiers(
        [("parts", 0), ("parts", 1), ("renames", 0), ("renames", 6), ("outputs", 20)],
        [("parts", 1), ("renames", 6), ("outputs", 20)],
    ),
)
def test_a_full_disk_ends_the_run_with_no_torn_file_and_a_rerun_completes_it(done, tmp_path, monkeypatch, which, after):
    folder, rows, found = done
    evaluation = evaluation_of(folder, tmp_path / "out")
    with monkeypatch.context() as patch:
        full_disk(patch, which, after)
        check_refused(InputError, "No space left", evaluation.run)
    assert not leftovers(tmp_path / "out")
    for name, samples in outputs(tmp_path / "out").items():
        np.testing.assert_array_equal(samples, found[name])
    assert not evaluation.is_complete
    # The same one goes on, and so does another.
    for again in (evaluation, None):
        assert evaluation.is_complete == (again is None)
        again = again or evaluation_of(folder, tmp_path / "out")
        again.run()
        assert again.is_complete
        assert again.rows() == rows
    assert all(np.array_equal(samples, found[name]) for name, samples in outputs(tmp_path / "out").items())
    assert outputs(tmp_path / "out").keys() == found.keys()


def test_no_units_are_none(done, tmp_path):
    evaluation = evaluation_of(done[0], tmp_path / "out")
    evaluation.run([])
    assert not evaluation.parts.finished()


def test_other_recordings_of_equal_names_and_lengths_are_another_corpus(tmp_path):
    make_corpus(tmp_path, LENGTHS)
    evaluation_of(tmp_path).run(evaluation_of(tmp_path).units[:1])
    (tmp_path / "noisy" / "f00.wav").touch()
    assert evaluation_of(tmp_path).parts.finished() == {0}
    for kind in ("noisy", "clean"):
        path = tmp_path / kind / "f00.wav"
        before = path.read_bytes()
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        check_refused(InputError, "another evaluation, which differs in corpus", evaluation_of, tmp_path)
        path.write_bytes(before)
    assert evaluation_of(tmp_path).parts.finished() == {0}


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


@pytest.mark.thorough
def test_a_recording_that_fails_is_given_up_by_the_thread_that_judges_it(tmp_path, monkeypatch):
    """Two threads would have its files at once: one of them writes what the other has removed."""
    make_corpus(tmp_path, [8000, 9000])
    flac, wav = tmp_path / "noisy" / "f01.flac", tmp_path / "noisy" / "f01.wav"
    soundfile.write(flac, soundfile.read(wav)[0], RATE)
    flac.write_bytes(flac.read_bytes()[:-9000])
    wav.unlink()
    threads = {UnitMember.add: set(), UnitMember.fail: set()}

    def watched(call):
        def watching(worker, argument):
            threads[call].add(threading.get_ident())
            return call(worker, argument)

        return watching

    for call in threads:
        monkeypatch.setattr(UnitMember, call.__name__, watched(call))
    evaluation = evaluation_of(tmp_path)
    evaluation.run()
    assert [row["status"] for row in evaluation.rows()] == ["ok", "error"]
    one, other = threads.values()
    assert one == other
    assert len(one) == 1


def test_arrays_of_another_shape_or_kind_are_rows_with_errors(tmp_path):
    for number, shape in enumerate([(3000,), (3000, 2), (2000,), (2500,), (2500,)]):
        path = tmp_path / "noisy" / f"f{number}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, 0.1 * np.ones(shape, np.float32))
    np.save(path, 3000 * np.ones(shape, np.int16))
    corpus = from_folder(tmp_path / "noisy")
    evaluation = jaxrnn.evaluation.Evaluation(denoiser(), corpus, [], tmp_path / "out", batch=4)
    evaluation.run()
    assert [row["status"] for row in evaluation.rows()] == ["ok", "error", "ok", "ok", "error"]
    assert "(2,)" in evaluation.rows()[1]["error"]
    expected = "a frame holds {'samples': 'integers'}, but that of most recordings {'samples': 'floats'}"
    assert evaluation.rows()[4]["error"] == expected
    for kind in (np.int16, np.complex64):
        np.save(tmp_path / "noisy" / "f0.npy", np.ones(3000, kind))
        alone = jaxrnn.evaluation.Evaluation(denoiser(), corpus[:1], [], tmp_path / np.dtype(kind).name)
        check_refused(InputError, np.dtype(kind).name, alone.run)


def with_other_weights(waveform):
    """As after one step of training: nothing but numbers differ."""
    (network,) = waveform.networks
    params = {name: array + 1e-6 for name, array in network.model.params.items()}
    return Framed(Waveform(dataclasses.replace(network, params=params), waveform.frames))


def test_a_folder_of_other_results_is_refused_naming_what_differs(done, tmp_path):
    folder, rows, _ = done
    others: list[tuple[dict[str, Any], str]] = [
        ({"batch": 8}, "batch"),
        ({"chunk": 0.5}, "chunk"),
        ({"keep": False}, "keep"),
        ({"facts": {"weather": "rain"}}, "weather"),
        ({"system": Framed(Waveform(denoiser().waveform.networks, plain_frames(256, 128)))}, "system"),
        ({"system": with_other_weights(denoiser().waveform)}, "system"),
    ]
    for options, named in others:
        check_refused(InputError, rf"differs in {named}: choose", evaluation_of, folder, **options)
    make_corpus(tmp_path, LENGTHS[:4])
    begun = evaluation_of(tmp_path)
    begun.run(begun.units[:1])
    soundfile.write(tmp_path / "noisy" / "f03.wav", sound(8001), RATE)
    check_refused(InputError, "differs in corpus, lengths of recordings", evaluation_of, tmp_path)
    assert evaluation_of(folder).rows() == rows


@pytest.mark.parametrize("name", ["run.json", "units/000000.jsonl"])
def test_a_folder_of_an_older_version_is_refused_and_stays(done, tmp_path, name):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    words = r"out holds an evaluation of jaxrnn 0\.2 .*: choose another folder, or delete this one"
    check_refused(InputError, words, evaluation_of, done[0], tmp_path / "out")
    assert path.read_text() == "{}"


def louder(decibels):
    """A metric of one's own, which the fingerprint knows by its options only."""
    return dataclasses.replace(level("louder"), start=lambda rate: Louder(decibels))


class Louder:
    """A constant."""

    def __init__(self, decibels):
        self._decibels = decibels

    def add(self, output, reference, source):
        pass

    def result(self):
        return {"louder": self._decibels}


def test_options_of_metrics_are_in_the_fingerprint(tmp_path):
    """Of a function that makes a metric, and of a function that judges whole recordings."""
    make_corpus(tmp_path, [3000])
    corpus = from_folder(tmp_path / "noisy", reference=tmp_path / "clean")
    folder = Path(__file__).parent

    def options(kind):
        name = "test_evaluation.py:louder"
        if kind == "made":
            return [[build_metric(name, {"decibels": number}, folder=folder)] for number in (1, 2)]
        return [[over_whole(functools.partial(share, above=number), "share")] for number in (0.1, 0.2)]

    for kind in ("made", "judged"):
        one, other = options(kind)
        out = tmp_path / kind
        Evaluation(denoiser(), corpus, one, out).run()
        assert Evaluation(denoiser(), corpus, one, out).is_complete
        check_refused(InputError, "differs in metrics: choose", Evaluation, denoiser(), corpus, other, out)


def test_the_unprocessed_recordings_are_judged_as_an_output_that_is_the_recording(done, tmp_path):
    folder, _, _ = done
    corpus = from_folder(folder / "noisy", reference=folder / "clean")
    metrics = ["si_sdr", over_whole(lambda x, s, rate: {"error": float(np.mean((x - s) ** 2))}, "own")]
    found = evaluate(denoiser(), corpus, metrics, tmp_path / "out", chunk=0.25, unprocessed=True)
    table, summary = found.table, found.document["summary"]
    for row in found.rows[:3]:
        noisy, clean = (soundfile.read(row[key], dtype="float64")[0] for key in ("path", "reference"))
        assert row["unprocessed_own_error"] == pytest.approx(np.mean((noisy - clean) ** 2), rel=1e-5)
        assert row["unprocessed_si_sdr"] == pytest.approx(
            jaxrnn.signal.si_sdr(noisy - noisy.mean(), clean - clean.mean()), abs=1e-4
        )
    for name in ("si_sdr", "own_error"):
        change = (table[name] - table[f"unprocessed_{name}"]).to_numpy()
        assert summary[name]["improvement"]["mean"] == pytest.approx(change.mean())
        assert summary[name]["improvement"]["low"] < change.mean() < summary[name]["improvement"]["high"]
    assert "improvement, interval" in (tmp_path / "out" / "report.html").read_text()
    lines = [line.split(" & ") for line in (tmp_path / "out" / "summary.tex").read_text().splitlines() if "&" in line]
    cells = {line[0].replace("\\", ""): line[-1].removesuffix(r" \\") for line in lines}
    assert cells["metric"] == "improvement"
    assert float(cells["si_sdr (dB)"]) == pytest.approx(summary["si_sdr"]["improvement"]["mean"], abs=0.01)
    assert cells["unprocessed_si_sdr (dB)"] == "--"


def share(output, reference, rate, above):
    return np.mean(np.abs(output) > above)


@pytest.mark.thorough
def test_what_killed_processes_left_is_removed_and_a_torn_file_is_no_unit(done, tmp_path):
    """Of parts and of an output; another that still writes the same output is not in the way."""
    folder, rows, found = done
    evaluation = evaluation_of(folder, tmp_path / "out")
    evaluation.run(evaluation.units[:2])
    path = tmp_path / "out" / "parts" / "000001.parquet"
    whole = path.read_bytes()
    half_dead = OutputWriter(tmp_path / "out" / "outputs", "f00.wav", RATE)
    half_dead.add(np.ones(10))
    lost = b"\0" * len(whole)  # as file systems leave what a machine without power has not written
    for torn, units in ((whole, {0, 1}), (whole[:-1], {0}), (whole[:5], {0}), (b"", {0}), (lost, {0})):
        path.write_bytes(torn)
        assert evaluation_of(folder, tmp_path / "out").parts.finished() == units
    evaluation.run()
    assert evaluation.rows() == rows
    half_dead.discard()
    assert not leftovers(tmp_path / "out")
    assert outputs(tmp_path / "out").keys() == found.keys()
