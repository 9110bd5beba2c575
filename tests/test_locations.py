"""Data where it lies: recordings, manifests, outputs and results by URL, in stores that fsspec reaches."""

from __future__ import annotations

import io
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import polars as pl
import pytest
import soundfile
from evaluation_cases import CONFIG, RATE, denoiser, make_corpus, results_from, sound, write_config
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import check_refused
from stores import contents, new_bucket, ordered, same_results, upload

from jaxrnn._files.stores import (
    BLOCK,
    HEAD,
    RangeFile,
    Ranges,
    Url,
    at_once,
    bare_name,
    files_below,
    location,
    name_below,
    resolved,
)
from jaxrnn.audio.recordings import open_recording
from jaxrnn.errors import InputError, MissingPackageError, StoreError
from jaxrnn.evaluation import Evaluation, evaluate, from_folder, from_manifest, read_results, write_results
from jaxrnn.evaluation.metrics.sound import level
from jaxrnn.evaluation.settings import prepare_evaluation


def test_a_text_is_a_path_or_a_url():
    assert location("a/b.wav") == Path("a/b.wav")
    assert location("file:///a/b.wav") == Path("/a/b.wav")
    assert location("file://localhost/a/a%20b.wav") == Path("/a/a b.wav")
    with pytest.raises(InputError, match="names the host 'server'; a file of this machine is file:///PATH"):
        location("file://server/a.wav")
    assert location("C:/a.wav") == Path("C:/a.wav")
    url = location("S3://bucket/a/b.c.wav/")
    assert isinstance(url, Url)
    assert (str(url), url.name, url.suffix, str(url.parent)) == (
        "s3://bucket/a/b.c.wav",
        "b.c.wav",
        ".wav",
        "s3://bucket/a",
    )
    assert str(url.parent.parent.parent.parent) == "s3://bucket"
    assert bare_name(str(url)) == "a/b.c"
    assert name_below(url.parent, url) == name_below(Path("/x"), Path("/x/b.c.wav")) == "b.c"


@pytest.mark.parametrize(
    ("folder", "text", "wanted"),
    [
        ("s3://b/lists", "../audio/./a.wav", "s3://b/audio/a.wav"),
        ("s3://b/lists", "../../../a.wav", "s3://b/a.wav"),
        ("s3://b//lists", "a b#c?d%20.wav", "s3://b//lists/a b#c?d%20.wav"),
        ("s3://b/lists", "gs://other/a.wav", "gs://other/a.wav"),
        ("s3://b/lists", "/disk/a.wav", "/disk/a.wav"),
        ("/lists", "../a.wav", "/lists/../a.wav"),
        ("/lists", "/disk/a.wav", "/disk/a.wav"),
        ("/lists", "s3://b/a.wav", "s3://b/a.wav"),
    ],
)
def test_what_a_manifest_lists_is_relative_to_it(folder, text, wanted):
    assert resolved(location(folder), text) == location(wanted)
    assert str(resolved(location(folder), text)) == wanted


def test_a_url_that_leads_nowhere_is_refused_by_name():
    with pytest.raises(MissingPackageError, match=r"gcsfs is needed for reaching gs://b/a.wav: pip install gcsfs"):
        open_recording(location("gs://b/a.wav"), RATE)
    with pytest.raises(InputError, match=r"nothing://b/a cannot be reached: Protocol not known: nothing"):
        location("nothing://b/a").exists()
    check_refused(InputError, r"s3:// names no bucket", location, "s3://")
    check_refused(InputError, r"http://\[ is not a URL: Invalid IPv6 URL", location, "http://[")
    with pytest.raises(InputError, match="credentials do not belong in a URL") as caught:
        location("s3://key:secret@bucket/a.wav")
    assert "secret" not in str(caught.value)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Recordings of every kind, in a folder and in a store."""
    folder = tmp_path_factory.mktemp("files")
    samples = np.stack([sound(90_000, seed) for seed in range(2)], 1)
    for name in ("long.wav", "long.flac", "a.mp3", "a.ogg", "a.aiff"):
        soundfile.write(folder / name, samples, 44_100)
    arrays = {"a": samples, "b": np.asfortranarray(samples), "c": np.zeros((90_000, 0)), "d": samples[:, 0] > 0}
    np.savez(folder / "stored.npz", **arrays)
    np.savez_compressed(folder / "packed.npz", **arrays)
    np.save(folder / "rows.npy", samples)
    np.save(folder / "columns.npy", arrays["b"])
    return folder, upload(folder, new_bucket() / "corpus")


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_recording_in_a_store_is_the_same_as_on_disk(files, data):
    folder, url = files
    name = data.draw(st.sampled_from(sorted(path.name for path in folder.iterdir())))
    here, there = open_recording(folder / name, RATE), open_recording(url / name, RATE)
    assert (here.length, here.frame) == (there.length, there.frame)
    for _ in range(3):
        start = data.draw(st.integers(-300, here.length + 300))
        stop = start + data.draw(st.integers(0, 40_000))
        for key, part in here.part(start, stop).items():
            np.testing.assert_array_equal(there.part(start, stop)[key], part, strict=True)


@pytest.mark.parametrize("name", ["long.wav", "long.flac", "rows.npy", "stored.npz"])
def test_ranges_are_read_and_each_once(tmp_path, name):
    samples = np.stack([sound(1_500_000, seed) for seed in range(2)], 1)
    if name.endswith(("wav", "flac")):
        soundfile.write(tmp_path / name, samples, RATE)
    else:
        (np.save if name.endswith("npy") else np.savez)(tmp_path / name, samples)
    size, url = (tmp_path / name).stat().st_size, upload(tmp_path, new_bucket()) / name
    assert size > 6 * BLOCK
    with ordered(lambda operation, path: None) as reads:
        recording = open_recording(url, RATE)
        # An archive has its directory at its end.
        assert sum(stop - start for _, start, stop in reads) <= HEAD + BLOCK * name.endswith("npz")
        recording.part(700_000, 764_000)
        seeking = 3 * BLOCK if name.endswith("flac") else BLOCK
        assert (
            sum(stop - start for _, start, stop in reads)
            < 764_000 / 1_500_000 * size - 0.4 * size + seeking + 2 * BLOCK
        )
        reads.clear()
        # Four readers at a time. In these orders, the most other blocks are read between two uses of a block.
        with ThreadPoolExecutor(4) as threads:
            for begin, order in zip(range(0, 1_500_000, 256_000), itertools.cycle(((3, 0, 1, 2), (1, 2, 3, 0)))):
                starts = [begin + 64_000 * part for part in order]
                list(threads.map(lambda start: recording.part(start, start + 64_000), starts))
        assert sum(stop - start for _, start, stop in reads) <= size
        # As one file reads it from its start to its end.
        file = RangeFile(Ranges(url))
        assert file.read() == (tmp_path / name).read_bytes()
    assert (file.seek(-5, io.SEEK_END), len(file.read(99)), file.tell(), file.read(1)) == (size - 5, 5, size, b"")


def run_config(folder, text):
    prepared = prepare_evaluation(write_config(folder, text))
    prepared.run()
    return prepared.conclude({})


def evaluation_in(place, **options):
    """An evaluation of ``noisy`` below a place, with all files there."""
    corpus = from_folder(place / "noisy", reference=place / "clean")
    options |= {"batch": 4, "chunk": 0.25, "keep": True, "trust_names": True}
    return Evaluation(denoiser(), corpus, ["si_sdr"], place / "out", **options)


def outputs(folder):
    return {name: data for name, data in contents(folder).items() if name.startswith("outputs/")}


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A corpus of ten recordings, one of which cannot be read, and its results, on disk."""
    folder = make_corpus(tmp_path_factory.mktemp("local"), [3000 + 997 * number for number in range(9)])
    (folder / "noisy" / "torn.wav").write_bytes(b"RIFF")
    (folder / "clean" / "torn.wav").write_bytes(b"RIFF")
    evaluation_in(folder).run()
    return folder


@pytest.mark.thorough
def test_an_evaluation_in_a_store_is_the_one_on_disk_to_the_last_byte(local, tmp_path):
    url = new_bucket() / "data"
    for kind in ("noisy", "clean"):
        upload(local / kind, url / kind)
        (tmp_path / kind).symlink_to(local / kind)
    config = CONFIG + "examples: 1\n"
    text = (
        config.replace("noisy", f"{url}/noisy").replace("clean", f"{url}/clean").replace("out: out", f"out: {url}/out")
    )
    run_config(tmp_path, text)
    assert not (tmp_path / "out").exists()
    run_config(tmp_path, config)
    same_results(tmp_path / "out", url / "out", tmp_path, url)
    results = read_results(f"{url}/out")
    assert [row["status"] for row in results.rows] == ["ok"] * 9 + ["error"]
    assert results.output("f03") == url / "out" / "outputs" / "f03.wav"
    # Nothing is left to do, and a folder of something else is refused.
    before = contents(url / "out")
    with pytest.raises(InputError, match="neither a version nor an ETag of 20 recordings"):
        run_config(tmp_path, text)
    text = text.replace("corpus: {", "corpus: {trust_names: true, ")
    run_config(tmp_path, text)
    assert contents(url / "out") == before
    with pytest.raises(InputError, match="holds the results of another evaluation, which differs in batch"):
        run_config(tmp_path, text.replace("batch: 4", "batch: 2"))


def test_a_manifest_in_a_store_names_what_lies_beside_it_and_elsewhere(local, tmp_path):
    url = new_bucket()
    upload(local / "noisy", url / "audio")
    lines = ["path,reference,kind", f"../audio/f00.wav,{local}/clean/f00.wav,a", f"{local}/noisy/f01.wav,,b"]
    lines += [f"{url}/audio/f02.wav,,b", "../audio/none.wav,,a"]
    (tmp_path / "list.csv").write_text("\n".join(lines).replace(f"{local}/noisy/f01.wav,", f"{local}/noisy/f01.wav,"))
    pl.read_csv(tmp_path / "list.csv").with_columns(id=pl.col("path").str.extract(r"(\w+)\.wav")).write_parquet(
        tmp_path / "list.parquet"
    )
    upload(tmp_path, url / "lists")
    items = from_manifest(f"{url}/lists/list.parquet")
    assert [str(item.path) for item in items] == [
        f"{url}/audio/f00.wav", f"{local}/noisy/f01.wav", f"{url}/audio/f02.wav", f"{url}/audio/none.wav",
    ]  # fmt: skip
    results = evaluate(denoiser(), items, ["si_sdr"], url / "out", chunk=0.25, slices=["kind"])
    errors = [row["error"] for row in results.rows]
    assert errors[:3] == [None] * 3
    assert errors[3] == f"there is no file {url}/audio/none.wav: no such object"
    with pytest.raises(InputError, match=rf"there is no manifest {url}/lists/other.csv"):
        from_manifest(url / "lists" / "other.csv")
    check_refused(InputError, rf"{url}/audio/f00 has no recordings: no files match", from_folder, url / "audio" / "f00")


@pytest.mark.parametrize("operation", ["read", "info", "write", "list"])
def test_a_store_that_fails_ends_the_run_and_the_next_one_goes_on(local, operation):
    """What cannot be reached is no result: not a row with an error."""
    url = new_bucket() / "data"
    for kind in ("noisy", "clean"):
        upload(local / kind, url / kind)
    failed = []
    for allowed in (0, 1, 3, 17, 30):
        count = iter(range(allowed))

        def fail(name, path, count=count):
            if name == operation and next(count, None) is None:
                raise TimeoutError("the line is cut")

        try:
            with ordered(fail):
                evaluation_in(url).run()
        except StoreError as error:
            failed.append(str(error))
    assert len(failed) > 1
    assert all(each.startswith(str(url)) and "the line is cut (TimeoutError)" in each for each in failed)
    evaluation_in(url).run()
    rows = json.dumps(evaluation_in(url).rows()).replace(str(url), str(local))
    assert json.loads(rows) == evaluation_in(local).rows()
    assert outputs(url / "out") == outputs(local / "out")


def test_an_error_in_a_thread_waits_for_the_other_threads():
    """What an error cleans up is used by no other thread."""
    running, done = threading.Event(), []

    def work(item):
        if item == 0:
            running.wait()
            raise InputError("first")
        running.set()
        time.sleep(0.05)
        done.append(item)

    with pytest.raises(InputError, match="first"):
        at_once(work, range(3), [new_bucket()])
    before = list(done)
    assert before
    time.sleep(0.1)
    assert done == before


def test_the_second_of_two_runs_in_one_store_is_refused(local, tmp_path, monkeypatch):
    """Another process of this machine by the operating system's lock, another machine by an object in the store."""
    url = new_bucket() / "data"
    for kind in ("noisy", "clean"):
        upload(local / kind, url / kind)
    first, second, other = evaluation_in(url), evaluation_in(url), evaluation_in(url, facts={"other": 1})
    there = tmp_path / "there"
    there.mkdir()

    def begin(unit, rows):
        check_refused(InputError, f"another process runs an evaluation in {url}/out: wait for its end", second.run)
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(there))
            check_refused(InputError, f"on another machine runs .* was killed, delete {url}/out/lock$", second.run)
        assert (url / "out" / "lock").exists()

    first.run(watch=begin)
    assert first.is_complete
    assert not (url / "out" / "lock").exists()
    assert len({row["id"] for row in first.rows()}) == len(first.rows()) == 10
    second.run()
    assert second.is_complete
    assert outputs(url / "out") == outputs(local / "out")
    # It was made when the folder was empty, and is refused before it writes.
    before = contents(url / "out")
    check_refused(InputError, "holds the results of another evaluation, which differs in other", other.run)
    assert contents(url / "out") == before


KILLED = """
import os, sys
sys.path.insert(0, {tests!r})
import test_locations
evaluation = test_locations.evaluation_in(test_locations.location({url!r}))
evaluation.run(watch=lambda unit, rows: os._exit(9) if unit.index == 1 else None)
"""


class Disk(LocalFileSystem):
    """A folder as a store that another process reaches too."""

    protocol = "disk"

    def __init__(self, **options):
        super().__init__(auto_mkdir=True, **options)


fsspec.register_implementation("disk", Disk, clobber=True)


@pytest.mark.nightly
def test_a_run_in_a_store_that_was_killed_goes_on_on_the_same_machine(local, tmp_path):
    for kind in ("noisy", "clean"):
        shutil.copytree(local / kind, tmp_path / kind)
    url = location(f"disk://{tmp_path}")
    script = KILLED.format(tests=str(Path(__file__).parent), url=str(url))
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    assert (url / "out" / "lock").exists()
    again = evaluation_in(url)
    again.run()
    assert json.loads(json.dumps(again.rows()).replace(str(url), str(local))) == evaluation_in(local).rows()
    assert not (url / "out" / "lock").exists()


def test_a_part_in_a_store_is_there_when_its_unit_is_finished(local):
    url = new_bucket() / "data"
    for kind in ("noisy", "clean"):
        upload(local / kind, url / kind)

    def watch(unit, rows):
        assert len(list((url / "out" / "parts").below())) == unit.index + 1
        if unit.index == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluation_in(url).run(watch=watch)
    assert evaluation_in(url).parts.finished() == {0, 1}
    evaluation_in(url).run()
    assert evaluation_in(url).is_complete
    assert (
        json.loads(json.dumps(evaluation_in(url).rows()).replace(str(url), str(local))) == evaluation_in(local).rows()
    )


def test_a_table_is_replaced_here_and_in_a_store_alike(tmp_path):
    rows = [{"id": f"{number:03d}", "path": f"{number}.wav", "level": number / 3} for number in range(50)]
    bucket = new_bucket()
    for count in (50, 7):
        for place in (tmp_path / "a[1]", bucket / "a[1]"):
            write_results(results_from("a", rows[:count][::-1], [level()]), place)
            assert read_results(place).column("level").to_list() == [row["level"] for row in rows[:count]]
        assert contents(bucket) == contents(tmp_path)
        assert contents(bucket).keys() == {"a[1]/results.json", "a[1]/results.parquet"}


def test_a_folder_of_settings_takes_urls_where_a_store_will_do(tmp_path):
    text = CONFIG.replace("folder: noisy", "folder: 5")
    with pytest.raises(InputError, match=r"corpus.folder: expected a path or a URL, not 5"):
        prepare_evaluation(write_config(tmp_path, text))
    with pytest.raises(InputError, match=r"expected a file or folder on this machine, not the URL s3://b/a.onnx"):
        prepare_evaluation(write_config(tmp_path, CONFIG), {"system.stages.0.model": "s3://b/a.onnx"})
    assert files_below(new_bucket(), ["*"]) == []
