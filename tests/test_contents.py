"""What a recording is: contents of files and objects, and the files that a folder holds beside recordings."""

from __future__ import annotations

import contextlib
import os
import sqlite3

import pytest
from evaluation_cases import denoiser, make_corpus
from stores import CountedStore, new_bucket, upload

from jaxrnn._files.stores import files_below
from jaxrnn.answers import Unknown
from jaxrnn.audio import contents
from jaxrnn.audio.recordings import recordings_below
from jaxrnn.errors import InputError
from jaxrnn.evaluation import Evaluation, from_folder


@pytest.fixture(autouse=True)
def reads(tmp_path, monkeypatch):
    """The files that are read for their contents, with digests of their own for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(contents, "SETTLED", 0)
    read, digest = [], contents._digest
    monkeypatch.setattr(contents, "_digest", lambda path: (read.append(path.name), digest(path))[1])
    return read


def change(path, place):
    """Change one byte of a file, and neither the size nor the time of the last modification."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_changed_byte_anywhere_is_another_content_and_the_same_file_is_read_once(tmp_path, reads):
    paths = [tmp_path / name for name in ("a.wav", "b.wav", "c.wav")]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) + bytes(100_000))
    before = contents.contents_of(paths)
    assert len({*before}) == 3
    assert contents.contents_of(paths) == before
    assert sorted(reads) == ["a.wav", "b.wav", "c.wav"]
    change(paths[1], 50_000)
    after = contents.contents_of(paths)
    assert [first == second for first, second in zip(before, after, strict=True)] == [True, False, True]
    assert reads[3:] == ["b.wav"]
    change(paths[1], 50_000)
    assert contents.contents_of(paths) == before
    assert contents.identity_of(paths) != contents.identity_of(paths[::-1])


def test_a_file_that_changes_at_the_same_moment_is_read_again(tmp_path, reads, monkeypatch):
    """A clock of the file system may give two contents within its step the same time."""
    monkeypatch.setattr(contents, "SETTLED", 2_000_000_000)
    path = tmp_path / "a.wav"
    path.write_bytes(b"one")
    for _ in range(2):
        contents.contents_of([path])
    assert reads == ["a.wav"] * 2


def test_digests_that_cannot_be_kept_are_computed_again(tmp_path, reads, monkeypatch):
    path = tmp_path / "a.wav"
    path.write_bytes(b"one")
    before = contents.contents_of([path])
    (tmp_path / "cache" / "jaxrnn" / "contents.sqlite3").write_bytes(b"no database" * 100)
    assert contents.contents_of([path]) == before
    (tmp_path / "blocked").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "blocked"))
    assert contents.contents_of([path]) == before
    with contextlib.closing(sqlite3.connect(":memory:")) as other:  # tables of another version
        kept = contents._Digests(other)
        other.execute("DROP TABLE digests")
        assert kept.get(path, (3, 0, 0, 0)) is None


def test_an_unreadable_file_is_known_by_the_reason(tmp_path):
    """A file that becomes readable, or another, has another content than before."""
    path = tmp_path / "a.wav"
    missing = contents.contents_of([path, tmp_path])
    path.write_bytes(b"")
    found = contents.contents_of([path, tmp_path / "none.wav"])
    assert len({*missing, *found}) == 3


def test_an_object_is_known_by_its_version_and_otherwise_unknown(tmp_path, monkeypatch):
    (tmp_path / "a.wav").write_bytes(b"one")
    url = upload(tmp_path, new_bucket()) / "a.wav"
    (listed,) = files_below(url.parent, ["*.WAV"])
    for each in (url, listed):
        (answer,) = contents.contents_of([each])
        assert isinstance(answer, Unknown)
        assert contents.identity_of([each]).unknown == 1
    tags = iter(['W/"weak"', '"1"', '"1"', '"2"'])
    info = CountedStore.info
    monkeypatch.setattr(CountedStore, "info", lambda *args, **options: {**info(*args, **options), "ETag": next(tags)})
    weak, first, same, other = (contents.contents_of([url])[0] for _ in range(4))
    assert isinstance(weak, Unknown)
    assert first == same != other
    assert not isinstance(contents.contents_of([url.parent / "none.wav"])[0], Unknown)


def test_a_corpus_that_changed_in_the_middle_is_another_corpus(tmp_path):
    """Sizes, first and last bytes are equal: the rows of the other recordings are not reported."""
    make_corpus(tmp_path, [9000, 9000])

    def evaluation():
        corpus = from_folder(tmp_path / "noisy", reference=tmp_path / "clean")
        return Evaluation(denoiser(), corpus, ["si_sdr"], tmp_path / "out", batch=2, chunk=0.25)

    evaluation().run()
    evaluation().run()
    change(tmp_path / "clean" / "f01.wav", 20_000)
    with pytest.raises(InputError, match="of another evaluation, which differs in corpus"):
        evaluation()


def test_what_a_folder_has_beside_recordings_is_counted(tmp_path, capsys):
    folder = tmp_path / "corpus"
    (folder / "deep" / "er").mkdir(parents=True)
    for name in ("a.WAV", "deep/b.Flac", "deep/er/c.wav", "notes.txt", "deep/README", "d.mp3", "e.MP3"):
        (folder / name).write_bytes(b"x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "f.wav").write_bytes(b"x")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "deep" / "loop").symlink_to(folder)
    (folder / "gone.wav").symlink_to(tmp_path / "nowhere.wav")
    os.mkfifo(folder / "pipe.wav")
    found = recordings_below(folder, ["**/*.wav", "**/*.flac"])
    names = [path.relative_to(folder).as_posix() for path in found]
    assert names == ["a.WAV", "deep/b.Flac", "deep/er/c.wav", "linked/f.wav"]
    (said,) = capsys.readouterr().err.splitlines()
    kinds = "2 *.mp3, 1 *.txt, 1 links that lead nowhere, 1 FIFOs, sockets and devices, 1 without a suffix, "
    assert said.startswith(f"{folder}: 4 recordings; left out: ")
    assert sorted(said.split("left out: ")[1].split(", ")) == sorted((kinds + "1 links to folders above").split(", "))
    assert [path.name for path in files_below(folder, ["*.wav"])] == ["a.WAV"]
    recordings_below(tmp_path / "elsewhere", ["*.wav"])
    assert not capsys.readouterr().err
    # Names alone, in the folder itself: the folders in it are left out, and said.
    recordings_below(folder, ["*.wav"])
    assert "2 folders" in capsys.readouterr().err
