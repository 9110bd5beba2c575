"""A corpus, a manifest, outputs and results in a bucket: an S3-compatible server on this machine, reached by s3fs.

``pip install s3fs 'moto[s3]' flask flask-cors`` brings both; without them the tests are skipped.
"""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import soundfile
from evaluation_cases import CONFIG, RATE, make_corpus, sound, write_config
from refusals import check_refused
from stores import contents, same_results, upload

from jaxrnn._files.stores import BLOCK, HEAD, Url, files_below, location
from jaxrnn.audio.recordings import open_recording
from jaxrnn.errors import InputError, StoreError
from jaxrnn.evaluation.settings import prepare_evaluation

pytestmark = [
    pytest.mark.thorough,
    # Of the packages of the driver.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


class Line(socketserver.ThreadingTCPServer):
    """The line to a server, which counts the bytes that come back, and can be cut.

    Attributes:
        received: bytes that the server has sent.
        left: bytes that it may send until connections are cut; None for any.
        cuts: how often the line is cut before it is whole again.
    """

    daemon_threads = True

    def __init__(self, port: int):
        super().__init__(("127.0.0.1", 0), Connection)
        self.port, self.received, self.left, self.cuts = port, 0, None, 0
        self.lock = threading.Lock()

    def takes(self, data: bytes) -> bool:
        """Whether the line is whole while these bytes come."""
        with self.lock:
            self.received += len(data)
            if self.left is None or self.cuts <= 0:
                return True
            self.left -= len(data)
            if self.left >= 0:
                return True
            self.left, self.cuts = 0, self.cuts - 1
            return False


class Connection(socketserver.BaseRequestHandler):
    """One connection over the line."""

    def handle(self):
        with socket.create_connection(("127.0.0.1", self.server.port)) as server:
            back = threading.Thread(target=self._return, args=(server,), daemon=True)
            back.start()
            with contextlib.suppress(OSError):
                while data := self.request.recv(2**16):
                    server.sendall(data)
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_WR)
            back.join()

    def _return(self, server):
        with contextlib.suppress(OSError):
            while (data := server.recv(2**14)) and self.server.takes(data):
                self.request.sendall(data)
        with contextlib.suppress(OSError):
            self.request.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def line():
    """A server, and the line to it, which s3fs finds by the variables of the environment."""
    pytest.importorskip("moto", reason="needs the package moto[s3]")
    pytest.importorskip("flask_cors", reason="needs the packages flask and flask-cors")
    s3fs = pytest.importorskip("s3fs", reason="needs the package s3fs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    line = Line(port)
    threading.Thread(target=line.serve_forever, daemon=True).start()
    variables = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{line.server_address[1]}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        # Those of botocore, which wait for seconds; the driver's own come on top.
        "AWS_MAX_ATTEMPTS": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setattr(s3fs.S3FileSystem, "retries", 3)
        try:
            for _ in range(200):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                assert server.poll() is None
                time.sleep(0.1)
            s3fs.S3FileSystem().mkdir("bucket")
            yield line
        finally:
            s3fs.S3FileSystem.clear_instance_cache()
            line.shutdown()
            line.server_close()
            server.terminate()
            server.wait()


@pytest.fixture(autouse=True)
def whole(line):
    """The line is whole again after a test."""
    yield
    line.left = None


def bucket(name) -> Url:
    url = location(f"s3://bucket/{name}")
    assert isinstance(url, Url)
    return url


def test_an_evaluation_in_a_bucket_is_the_one_on_disk_to_the_last_byte(line, tmp_path):
    make_corpus(tmp_path, [3000 + 997 * number for number in range(9)])
    (tmp_path / "noisy" / "torn.wav").write_bytes(b"RIFF")
    (tmp_path / "clean" / "torn.wav").write_bytes(b"RIFF")
    names = [path.name for path in sorted((tmp_path / "noisy").iterdir())]
    lines = ["path,reference,id,snr", *(f"noisy/{name},clean/{name},{name[:-4]},{len(name)}" for name in names)]
    (tmp_path / "corpus.csv").write_text("\n".join(lines))
    url = bucket("evaluation")
    upload(tmp_path, url)
    config = CONFIG.replace("{folder: noisy, reference: clean}", "{manifest: PLACE/corpus.csv}")
    config = config.replace("out: out", "out: PLACE/out\nslices: [snr]")
    for place in (tmp_path, url):
        prepared = prepare_evaluation(write_config(tmp_path, config.replace("PLACE", str(place))))
        prepared.run()
        prepared.conclude({})
    same_results(tmp_path / "out", url / "out", tmp_path, url)
    before = contents(url / "out")
    prepared.run()
    assert contents(url / "out") == before


@pytest.mark.parametrize("name", ["long.wav", "long.flac", "long.npy"])
def test_a_part_of_a_long_recording_is_a_part_of_its_bytes(line, tmp_path, name):
    samples = np.stack([sound(3_000_000, seed) for seed in range(2)], 1)
    if name == "long.npy":
        np.save(tmp_path / name, samples)
    else:
        soundfile.write(tmp_path / name, samples, RATE)
    size, url = (tmp_path / name).stat().st_size, upload(tmp_path, bucket("long")) / name
    line.received = 0
    recording, here = open_recording(url, RATE), open_recording(tmp_path / name, RATE)
    assert line.received < 2 * HEAD
    for start in range(1_000_000, 1_400_000, 50_000):
        part = recording.part(start, start + 50_000)["samples"]
        np.testing.assert_array_equal(part, here.part(start, start + 50_000)["samples"], strict=True)
    # A tenth and some blocks; FLAC looks for a sample in some other places first.
    assert line.received < size / 2


def test_a_line_that_is_cut_is_tried_again_or_ends_the_run(line, tmp_path):
    samples = sound(2_000_000)
    soundfile.write(tmp_path / "a.wav", samples, RATE, subtype="FLOAT")
    url = upload(tmp_path, bucket("cut")) / "a.wav"
    recording = open_recording(url, RATE)
    line.left, line.cuts = BLOCK // 2, 2
    np.testing.assert_array_equal(recording.part(0, 400_000)["samples"], samples[:400_000])
    assert line.cuts == 0
    line.left, line.cuts = BLOCK // 2, 10**6
    with pytest.raises(StoreError, match=rf"{url} cannot be read: "):
        recording.part(400_000, 1_000_000)
    line.left = None
    # The same recording goes on where the line is whole again.
    np.testing.assert_array_equal(recording.part(400_000, 1_000_000)["samples"], samples[400_000:1_000_000])


def test_a_run_that_a_cut_line_ends_goes_on(line, tmp_path):
    make_corpus(tmp_path, [40_000 + number for number in range(8)])
    url = upload(tmp_path, bucket("ended"))
    config = (
        CONFIG.replace("noisy", f"{url}/noisy").replace("clean", f"{url}/clean").replace("out: out", f"out: {url}/out")
    )
    line.left, line.cuts = 1_000_000, 10**6
    with pytest.raises(StoreError, match=rf"{url}/.* cannot be"):
        prepare_evaluation(write_config(tmp_path, config)).run()
    line.left = None
    prepared = prepare_evaluation(write_config(tmp_path, config))
    prepared.run()
    prepared.conclude({})
    prepared = prepare_evaluation(write_config(tmp_path, CONFIG))
    prepared.run()
    prepared.conclude({})
    same_results(tmp_path / "out", url / "out", tmp_path, url)


def test_what_is_not_there_and_what_is_not_allowed_is_said(line, tmp_path, monkeypatch):
    make_corpus(tmp_path, [3000])
    config = write_config(tmp_path, CONFIG.replace("out: out", "out: s3://none/out"))
    lost = "The specified bucket does not exist"
    for words, call in (
        ("there is no file s3://bucket/none.wav: no such object", lambda: open_recording(bucket("none.wav"), RATE)),
        (f"there is no file s3://none/a.wav: {lost}", lambda: open_recording(location("s3://none/a.wav"), RATE)),
        (f"there is no folder s3://none/corpus: {lost}", lambda: files_below(location("s3://none/corpus"))),
        (f"s3://none/out cannot be written: {lost}", lambda: prepare_evaluation(config).run()),
    ):
        check_refused(InputError, words, call)
    s3fs = pytest.importorskip("s3fs")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StoreError, match=r"cannot be read: Unable to locate credentials .*driver of s3:// needs"):
        open_recording(bucket("a.wav"), RATE)
    s3fs.S3FileSystem.clear_instance_cache()
