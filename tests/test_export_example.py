"""The folder that `export --example` writes: stream.json, and its programs in Python and in a browser."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import http.server
import importlib.util
import json
import os
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.io.wavfile
import scipy.signal
from packages import needs_litert
from refusals import check_refused
from test_cli import call, call_json

import jaxrnn
from jaxrnn.audio import read_sound, write_wav
from jaxrnn.demo import PACKAGED, denoise_at_once, mixture
from jaxrnn.export import export_litert, export_onnx, write_example

OPTIONS = ("--stft", "256", "--hop", "128", "--window", "sqrt_hann", "--gives", "mask", "--rate", "16000")
TOLERANCE = 1e-5
#: package/dist of ``npm pack onnxruntime-web``.
WEB = os.environ.get("JAXRNN_ONNXRUNTIME_WEB")


def program(folder):
    """The module run.py of a folder."""
    spec = importlib.util.spec_from_file_location("example_run", folder / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def denoiser(tmp_path_factory):
    """The denoiser of the package as a folder, a noisy sound in a file, and what the model makes of it."""
    place = tmp_path_factory.mktemp("denoiser")
    files = ("-o", place / "step.onnx", "--flush", place / "flush.onnx", "--example", place / "example")
    written = call_json("export", PACKAGED, *OPTIONS, *files)
    assert {str(path) for path in (place / "example").iterdir()} <= {each["file"] for each in written["files"]}
    sound = mixture(np.random.default_rng(2), 0.7, 0)[1][:-50]
    write_wav(place / "noisy.wav", sound, 16_000)
    return place, denoise_at_once(read_sound(place / "noisy.wav")[0], jaxrnn.load(PACKAGED))


@pytest.mark.thorough
def test_the_facts_of_a_folder(denoiser):
    folder = denoiser[0] / "example"
    facts = json.loads((folder / "stream.json").read_text())
    assert (facts["step"], facts["flush"], facts["pulse"], facts["rate"]) == ("step.onnx", "flush.onnx", 128, 16_000)
    assert facts["inputs"] == [{"name": "samples", "type": "float32", "shape": [128], "time_axis": 0}]
    (audio,) = facts["outputs"]
    assert (audio["delay_ms"], facts["look_ahead_ms"]) == (8.0, 15.9375)
    assert (audio["name"], audio["shape"], audio["delay"], audio["count"]) == ("audio", [128], 128, "audio_count")
    first, held = dict(np.load(denoiser[0] / "step.first_state.npz")), program(folder).first_state()
    assert list(held) == [each["input"] for each in facts["state"]]
    assert {"int32", "float32"} <= {array.dtype.name for array in held.values()}
    for name, array in first.items():
        np.testing.assert_array_equal(held[name], array)
        assert held[name].dtype == array.dtype


def test_run_py_makes_the_sound(denoiser):
    place, expected = denoiser
    run = program(place / "example")
    found = run.run({"samples": read_sound(place / "noisy.wav")[0]})["audio"]
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    run.main(str(place / "noisy.wav"), str(place / "out.wav"))
    np.testing.assert_allclose(read_sound(place / "out.wav")[0], expected, atol=1 / 32768)
    scipy.io.wavfile.write(place / "float.wav", 16_000, expected)
    for name in ("float.wav", "none.wav"):
        with pytest.raises(SystemExit, match=rf"{name} cannot be read: .*; expected a WAV file of one channel"):
            run.main(str(place / name), str(place / "out.wav"))


def test_a_folder_that_is_a_file(tmp_path):
    model = jaxrnn.load(PACKAGED)
    exported = jaxrnn.export_onnx(model, None, tmp_path / "step.onnx", step=True, dims={"time": 1})
    (tmp_path / "file").touch()
    with pytest.raises(jaxrnn.InputError, match=r"file is a file, and an example is a folder"):
        write_example(exported, tmp_path / "file")


@pytest.mark.filterwarnings("always:.* edited, or written by another version")
def test_a_folder_is_renewed_and_what_was_edited_stays(tmp_path):
    """Another stream into the folder of an example: its files are replaced, together, but not the user's work."""
    folder, files = tmp_path / "folder", ("-o", tmp_path / "s.onnx", "--example", tmp_path / "folder")
    call("export", PACKAGED, "--dim", "time=1", *files)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert before["s.onnx"] == (tmp_path / "s.onnx").read_bytes()
    (folder / "ort").mkdir()  # of the user, as docs/deploying.md tells
    (folder / "run.py").write_text("mine")
    (folder / "index.html").write_text("of an earlier version")
    facts = json.loads((folder / "stream.json").read_text())
    facts["programs"]["index.html"] = hashlib.sha256(b"of an earlier version").hexdigest()
    (folder / "stream.json").write_text(json.dumps(facts))
    again = call("export", PACKAGED, *OPTIONS, *files)
    assert f"warning: {folder}: run.py was edited, or written by another version, and stay" in again.stderr
    assert str(folder / "run.py") not in again.stdout
    assert (folder / "run.py").read_text() == "mine"
    assert (folder / "s.onnx").read_bytes() == (tmp_path / "s.onnx").read_bytes() != before["s.onnx"]
    assert json.loads((folder / "stream.json").read_text())["pulse"] == 128
    assert (folder / "index.html").read_bytes() == before["index.html"]
    assert {path.name for path in folder.iterdir()} == {*before, "ort"}
    del facts["programs"]  # as version 0.2 wrote the facts: unknown is not "as it was written"
    (folder / "stream.json").write_text(json.dumps(facts))
    (folder / "main.cpp").write_text("perhaps mine")
    assert "main.cpp, run.py were edited" in call("export", PACKAGED, *OPTIONS, *files).stderr
    assert (folder / "main.cpp").read_text() == "perhaps mine"


def test_files_of_others_are_not_replaced_nor_is_the_export_written(tmp_path):
    folder, files = tmp_path / "folder", ("-o", tmp_path / "s.onnx", "--example", tmp_path / "folder")
    folder.mkdir()
    for name in ("stream.json", "state.bin", "s.onnx"):
        (folder / name).write_text("{}")
        assert f"{name} " in call("export", PACKAGED, "--dim", "time=1", *files, status=2).stderr
        assert [(path.name, path.read_text()) for path in folder.iterdir()] == [(name, "{}")]
        (folder / name).unlink()
    assert "an example is for a stream" in call("export", PACKAGED, *OPTIONS, "--batch", "2", *files, status=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert not [*folder.iterdir()]


def test_files_that_do_not_make_an_example(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    streamed = jaxrnn.stream(lambda x: {"y": x["x"] * 2}, {"x": np.zeros(8, np.float32)}, axes=0, pulse=4)
    exported = jaxrnn.export_onnx(streamed, None, tmp_path / "a" / "m.onnx", flush=tmp_path / "b" / "m.onnx")
    with pytest.raises(jaxrnn.InputError, match=r"have the same name, and an example is a single folder"):
        write_example(exported, tmp_path / "folder")
    exported = jaxrnn.export_onnx(streamed, None, tmp_path / "a" / "m.onnx")
    check_refused(jaxrnn.InputError, "a gets a copy of .*m.onnx: export to", write_example, exported, tmp_path / "a")
    jaxrnn.export_onnx(streamed, None, tmp_path / "a" / "m.onnx", label="another")
    check_refused(jaxrnn.InputError, "m.onnx was replaced after", write_example, exported, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def counted(x):
    """Frames times their numbers, a running maximum, and a sum with the frame before in half precision."""
    numbers, half = jnp.arange(x["x"].shape[0], dtype=np.int64), x["x"].astype(jnp.float16)
    largest = jax.lax.cummax(x["x"])
    return {
        "y": x["x"] * numbers[:, None].astype(np.float32),
        "m": largest,
        "half": half + jnp.pad(half, ((1, 0), (0, 0)))[:-1],
    }


@pytest.mark.thorough
def test_states_of_every_type_and_first_values(tmp_path):
    with jax.enable_x64(True):
        streamed = jaxrnn.stream(counted, {"x": jax.ShapeDtypeStruct((8, 3), np.float32)}, axes=0, pulse=2)
        exported = jaxrnn.export_onnx(streamed, None, tmp_path / "step.onnx", flush=tmp_path / "flush.onnx")
        write_example(exported, tmp_path / "folder")
        run = program(tmp_path / "folder")
        held = run.first_state().values()
        assert any(np.any(array != 0) for array in held)
        assert {"float16", "float32", "int64"} <= {array.dtype.name for array in held}
        x = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
        np.savez(tmp_path / "in.npz", x=x)
        run.main(str(tmp_path / "in.npz"), str(tmp_path / "out.npz"))
        expected = counted({"x": jnp.asarray(x)})
        for name, found in np.load(tmp_path / "out.npz").items():
            np.testing.assert_allclose(found, expected[name], rtol=1e-6, atol=2e-3 * (name == "half"))


@needs_litert
@pytest.mark.thorough
@pytest.mark.parametrize("flush", [True, False])
def test_the_folder_of_a_litert_file(tmp_path, flush):
    """The facts are those of the ONNX files, and run.py returns what the function does, with states of all types."""
    with jax.enable_x64(True):
        streamed = jaxrnn.stream(counted, {"x": jax.ShapeDtypeStruct((8, 3), np.float32)}, axes=0, pulse=2)
        end = {"flush": tmp_path / "flush.onnx"} if flush else {}
        write_example(jaxrnn.export_onnx(streamed, None, tmp_path / "step.onnx", **end), tmp_path / "onnx")
        write_example(export_litert(streamed, None, tmp_path / "step.tflite", flush=flush), tmp_path / "folder")
        onnx, run = (program(tmp_path / name) for name in ("onnx", "folder"))
        own = {"step": "step.tflite", "flush": "step.tflite" if flush else None, "programs": run.STREAM["programs"]}
        assert onnx.STREAM | own == run.STREAM
        x = np.random.default_rng(0).standard_normal((8 + flush, 3)).astype(np.float32)
        found, expected = run.run({"x": x}), counted({"x": jnp.asarray(x)})
        for each in run.STREAM["outputs"]:
            name, frames = each["name"], len(x) - (0 if flush else each["delay"])
            atol = 2e-3 * (name == "half")
            assert len(found[name]) == frames
            np.testing.assert_allclose(found[name], expected[name][:frames], rtol=1e-6, atol=atol)


def mirrored(inputs):
    """A function of recordings of three frames or more."""
    return {"y": jnp.pad(inputs["x"], (2, 2), mode="reflect")[4:]}


@needs_litert
@pytest.mark.thorough
def test_the_command_writes_the_folder_of_a_litert_file(tmp_path):
    """The folder has no programs for ONNX, and does not mix the files of two engines."""
    options, folder = ("export", PACKAGED, "--dim", "time=1", "--example", tmp_path / "folder"), tmp_path / "folder"
    written = call_json(*options, "-o", tmp_path / "step.tflite")
    names = {path.name for path in folder.iterdir()}
    assert {"run.py", "state.bin", "step.tflite", "stream.json"} <= names
    assert not {"main.cpp", "CMakeLists.txt", "index.html"} & names
    assert {str(path) for path in folder.iterdir()} <= {each["file"] for each in written["files"]}
    before = (folder / "stream.json").read_bytes()
    refused = call(*options, "-o", tmp_path / "step.onnx", status=2)
    assert "whose programs do not run step.onnx: choose another folder" in " ".join(refused.stderr.split())
    assert (folder / "stream.json").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "step.tflite"}


@pytest.mark.thorough
def test_a_step_with_state_of_its_own(tmp_path):
    """Frames are stacked, and there is no flush."""
    call("export", PACKAGED, "--dim", "time=1", "-o", tmp_path / "s.onnx", "--example", tmp_path / "folder")
    model = jaxrnn.load(PACKAGED)
    x = np.random.default_rng(0).uniform(size=(5, 1, 129)).astype(np.float32)
    run = program(tmp_path / "folder")
    shape = run.STREAM["inputs"][0]["shape"]
    found = run.run({"magnitude": x.reshape(5, *shape)})["mask"]
    expected, _ = model.scan(model.params, model.init(), {"magnitude": x[:, None]})
    np.testing.assert_allclose(found.reshape(5, 129), np.reshape(expected["mask"], (5, 129)), atol=TOLERANCE)


def test_a_folder_without_a_flush_takes_whole_pulses(tmp_path):
    def smooth(inputs):
        return {"y": (inputs["x"] + jnp.pad(inputs["x"], ((1, 0),))[:-1]) / 2}

    x = np.arange(8, dtype=np.float32)
    streamed = jaxrnn.stream(smooth, {"x": x}, axes=0, pulse=4)
    write_example(jaxrnn.export_onnx(streamed, None, tmp_path / "step.onnx"), tmp_path / "folder")
    run = program(tmp_path / "folder")
    np.testing.assert_allclose(run.run({"x": x})["y"], smooth({"x": x})["y"], atol=TOLERANCE)
    for frames in (0, 3, 6):
        with pytest.raises(SystemExit, match=f"has {frames} frames, not whole pulses of 4: export the stream with"):
            run.run({"x": x[:frames]})


@pytest.mark.thorough
def test_a_recording_of_another_length_than_the_stream_allows(tmp_path):
    x = np.arange(8, dtype=np.float32)
    streamed = jaxrnn.stream(mirrored, {"x": x}, axes=0, pulse=2, constraints=["S >= 3", "S <= 7"])
    exported = jaxrnn.export_onnx(streamed, None, tmp_path / "step.onnx", flush=tmp_path / "flush.onnx")
    write_example(exported, tmp_path / "folder")
    run = program(tmp_path / "folder").run
    for frames in (3, 6, 7):
        np.testing.assert_array_equal(run({"x": x[:frames]})["y"], mirrored({"x": x[:frames]})["y"])
    for frames in (2, 8):
        with pytest.raises(SystemExit, match=f"has {frames} frames, but the stream takes 3 or more and 7 or fewer"):
            run({"x": x[:frames]})


def test_a_batch_and_a_function_are_refused(tmp_path):
    refused = call(
        "export", PACKAGED, *OPTIONS, "--batch", "2", "-o", tmp_path / "s.onnx", "--example", tmp_path / "f", status=2
    )
    assert "an example is for a stream or a step of one stream" in refused.stderr
    assert not list(tmp_path.iterdir())
    exported = jaxrnn.export_onnx(lambda x: {"y": x["x"]}, None, tmp_path / "f.onnx", example={"x": np.zeros(2)})
    check_refused(jaxrnn.InputError, "not for a function", write_example, exported, tmp_path / "f")


def test_the_page_shows_the_programs():
    """docs/deploying.md quotes the templates."""
    text = (Path(__file__).parent.parent / "docs" / "deploying.md").read_text()
    folder = Path(jaxrnn.export.__file__).parent / "templates"
    programs = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
    for language, name in {"cpp": "main.cpp", "js": "index.html", "c": "main.c"}.items():
        lines = [line.strip() for line in programs[name].splitlines()]
        (quoted,) = (part.partition("```")[0] for part in text.split(f"```{language}\n")[1:])
        missing = [line for line in quoted.splitlines() if line.strip() and line.strip() not in lines]
        assert not missing


@contextlib.contextmanager
def page(folder, profile, flags=""):
    """The page of a folder with onnxruntime-web, behind a server, in a browser; yield the browser and its texts."""
    from browsers import started

    if WEB is None or not (Path(WEB) / "ort.wasm.min.js").is_file():
        pytest.skip("set JAXRNN_ONNXRUNTIME_WEB to package/dist of 'npm pack onnxruntime-web'")
    shutil.copytree(
        WEB, folder / "ort", dirs_exist_ok=True, ignore=lambda _, names: [n for n in names if "wasm" not in n]
    )

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for browser in started(profile, f"--autoplay-policy=no-user-gesture-required {flags}", local=True):
            browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": TAP})
            browser.get(f"http://127.0.0.1:{server.server_port}/index.html")
            yield browser, functools.partial(shown, browser)
        server.shutdown()


def shown(browser, name, text=None):
    """The text of an element of the page, after it contains a text."""
    end = time.monotonic() + 60
    while text is not None and text not in browser.find_element("id", name).text:
        seen = [browser.find_element("id", each).text for each in ("status", "problem")]
        assert time.monotonic() < end, (seen, browser.get_log("browser"))
        time.sleep(0.05)
    return browser.find_element("id", name).text


def samples(browser, name):
    script = f"return btoa(Array.from(new Uint8Array(joined({name}).buffer), (x) => String.fromCharCode(x)).join(''))"
    return np.frombuffer(base64.b64decode(browser.execute_script(script)), np.float32)


#: Records what comes to the loudspeaker, and at the same time from the microphone, in the audio thread.
TAP = """
const module = `registerProcessor('tap', class extends AudioWorkletProcessor {
  process(inputs) {
    const [heard, given] = inputs.map(([samples]) => samples ? samples.slice() : new Float32Array(128));
    this.port.postMessage({heard, given});
    return true;
  }
})`;
const {connect} = AudioNode.prototype, {addModule} = AudioWorklet.prototype;
window.tapped = {heard: [], given: []};
AudioWorklet.prototype.addModule = async function (url) {
  await addModule.call(this, URL.createObjectURL(new Blob([module], {type: 'text/javascript'})));
  return addModule.call(this, url);
};
AudioNode.prototype.connect = function (target) {
  const context = this.context;
  if (!context.tap) {
    const mono = {channelCount: 1, channelCountMode: 'explicit'};
    context.tap = new AudioWorkletNode(context, 'tap', {numberOfInputs: 2, ...mono});
    connect.call(context.tap, context.destination);
    context.tap.port.onmessage = ({data: {heard, given}}) => { tapped.heard.push(heard); tapped.given.push(given); };
  }
  if (this instanceof MediaStreamAudioSourceNode) connect.call(this, context.tap, 0, 1);
  if (target === context.destination) connect.call(this, context.tap, 0, 0);
  return connect.call(this, target);
};
"""


def smoothed(x):
    """A filter that looks three samples back and two ahead."""
    around = jnp.pad(x["x"], (3, 2))
    return {
        "y": sum(factor * around[at : at + x["x"].size] for at, factor in enumerate((0.1, 0.0, 0.2, 0.5, 0.0, 0.3)))
    }


@pytest.mark.thorough
@pytest.mark.parametrize("network", [True, False], ids=["network", "filter of an odd pulse"])
def test_the_sound_of_the_microphone_in_a_browser(tmp_path, network):
    """What the loudspeaker gets is what run.py writes, always as late, also after the page stood still for a second."""
    rate = 44_100  # of the browser's fake microphone, which then plays the samples of the file
    files = tmp_path / "step.onnx", tmp_path / "flush.onnx", tmp_path / "example"
    if network:
        options = (*OPTIONS[:-1], rate, "-o", files[0], "--flush", files[1], "--example", files[2])
        call("export", PACKAGED, *options)
    else:
        streamed = jaxrnn.stream(smoothed, {"x": np.zeros(8, np.float32)}, axes=0, pulse=300)
        write_example(jaxrnn.export_onnx(streamed, None, files[0], flush=files[1], frame_rate=rate), files[2])
    spoken = mixture(np.random.default_rng(0), 30, 0)[1]  # 11 seconds at this rate, so that no part comes again
    write_wav(tmp_path / "noisy.wav", spoken, rate)
    fake = "device-for-media-stream", "ui-for-media-stream", f"audio-capture={tmp_path}/noisy.wav"
    flags = " ".join(f"--use-{'file-for-' if 'audio' in name else ''}fake-{name}" for name in fake)
    with page(files[2], tmp_path / "profile", flags) as (browser, shown):
        shown("status", "ready")
        browser.find_element("id", "microphone").click()
        shown("status", "listening")
        time.sleep(2)
        browser.execute_script("for (const end = performance.now() + 1000; performance.now() < end;);")
        time.sleep(2)
        browser.find_element("id", "stop").click()
        shown("status", "stopped")
        given, microphone, heard = (
            samples(browser, name) for name in ("recorded.input", "tapped.given", "tapped.heard")
        )
        said = shown("played")
    (expected,) = program(files[2]).run({"samples" if network else "x": given}).values()
    windows, data = [slice(at, at + 2048) for at in range(0, len(given) - 2048, 2048)], microphone.tobytes()
    taken = {data.find(given[window].tobytes()) // 4: expected[window] for window in windows}
    taken = {at: sound for at, sound in taken.items() if 0 < at < len(heard) - rate}  # not across a dropped pulse
    lags = {}
    for at, sound in taken.items():
        follows = np.lib.stride_tricks.sliding_window_view(heard[at : at + rate], 2048)[:, ::32]
        lag = int(np.abs(follows - sound[::32]).max(1).argmin())
        if np.allclose(heard[at + lag :][:2048], sound, 0, TOLERANCE):
            lags[at] = lag
    (lag,) = set(lags.values())
    assert said.startswith(f"{1000 * lag / rate:.1f} ms; ")
    times = list(taken)
    stop = int(np.diff(times).argmax())
    assert times[stop + 1] - times[stop] > 0.8 * rate, "no pulse was dropped while the page stood still"
    assert min(lags) <= times[stop] < max(lags)
    played, sound = np.concatenate([heard[at + lag :][:2048] for at in taken]), np.concatenate([*taken.values()])
    assert np.mean(played != 0) > 0.5
    np.testing.assert_allclose(played[played != 0], sound[played != 0], atol=TOLERANCE)
    piece = microphone[np.flatnonzero(microphone)[0] :][rate : rate + 2048]
    start = np.argmax(scipy.signal.correlate(spoken, piece, "valid"))
    np.testing.assert_allclose(piece, spoken[start : start + 2048], atol=1 / 32768)


@pytest.mark.thorough
def test_the_microphone_at_another_rate_than_the_network(tmp_path):
    """The page changes the rate of the sound to that of the network, which is not the rate of the device."""
    files = tmp_path / "step.onnx", tmp_path / "flush.onnx", tmp_path / "example"
    call("export", PACKAGED, *OPTIONS, "-o", files[0], "--flush", files[1], "--example", files[2])
    write_wav(tmp_path / "noisy.wav", mixture(np.random.default_rng(0), 30, 0)[1], 44_100)
    fake = "device-for-media-stream", "ui-for-media-stream", f"audio-capture={tmp_path}/noisy.wav"
    flags = " ".join(f"--use-{'file-for-' if 'audio' in name else ''}fake-{name}" for name in fake)
    with page(files[2], tmp_path / "profile", flags) as (browser, shown):
        shown("status", "ready")
        browser.find_element("id", "microphone").click()
        shown("status", "listening")
        time.sleep(3)
        browser.find_element("id", "stop").click()
        shown("status", "stopped")
        device = browser.execute_script("return new AudioContext().sampleRate")
        given, found = (samples(browser, name) for name in ("recorded.input", "recorded.output"))
        lag = float(shown("played").partition(" ms")[0])
    assert device != 16_000
    assert np.std(given) > 0.01
    (expected,) = program(files[2]).run({"samples": given}).values()
    np.testing.assert_allclose(found, expected[: len(found)], atol=TOLERANCE)
    assert 24 < lag < 250  # two pulses, a pulse that waits for the change of the rate, and messages


@pytest.mark.skipif(shutil.which("node") is None, reason="node.js is not installed")
@pytest.mark.parametrize("rates", [(48_000, 16_000), (16_000, 48_000), (44_100, 16_000), (16_000, 44_100), (8, 8)])
def test_the_resampler_of_the_page(rates, tmp_path):
    """Sines below both limits keep times and sizes, to 100 dB, and the sizes of blocks do not matter."""
    html = (Path(jaxrnn.export.__file__).parent / "templates" / "index.html").read_text()
    code = [html[html.index(start) : html.index(end)] for start, end in (
        ("function joined", "/** Return samples as a WAV"), ("class Resampler", "// The audio thread."))]  # fmt: skip
    old, new = rates
    script = f"""
    const x = Float32Array.from({{length: 9000}}, (_, i) => Math.cos(i * 2 * Math.PI * 0.3 * {min(rates) / old}));
    for (const block of [9000, 137]) {{
      const resampler = new Resampler({old}, {new}), parts = [];
      for (let at = 0; at < x.length; at += block) parts.push(resampler.push(x.slice(at, at + block)));
      console.log(JSON.stringify(Array.from(joined(parts))));
    }}"""
    done = subprocess.run(["node", "-e", "".join(code) + script], capture_output=True, check=True, text=True)
    whole, parts = (np.array(json.loads(line)) for line in done.stdout.splitlines())
    np.testing.assert_array_equal(parts, whole)
    assert 0 <= 9000 * new / old - len(whole) <= 60 * new / min(rates)
    expected = np.cos(np.arange(len(whole)) * 2 * np.pi * 0.3 * min(rates) / new)
    inside = slice(60 * new // min(rates), None)  # behind the edge of the recording
    np.testing.assert_allclose(whole[inside], expected[inside], atol=2e-5)


@pytest.mark.thorough
def test_a_file_in_a_browser(denoiser, tmp_path):
    """Without a microphone, there is a message; the sound of a file is that of run.py."""
    place, expected = denoiser
    folder = shutil.copytree(place / "example", tmp_path / "example")
    with page(folder, tmp_path / "profile") as (browser, shown):
        shown("status", "ready")
        assert shown("latency").startswith("16.0 ms")
        browser.find_element("id", "microphone").click()
        shown("status", "failed")
        assert shown("problem") in ("There is no microphone.", "The microphone is not allowed for this page.")
        browser.find_element("id", "file").send_keys(str(place / "noisy.wav"))
        shown("status", "noisy.wav: 0.7 s")
        np.testing.assert_allclose(samples(browser, "recorded.output"), expected, atol=1e-4)  # decoded by the browser
        assert shown("load").endswith("% of 8.0 ms")
        path = folder / "stream.json"
        facts = json.loads(path.read_text())
        for name, value, problem in (
            ("longest", 100, "samples, but the stream takes 0 to 100."),
            ("flush", None, "samples, not whole pulses of 128: export with --flush."),
            ("rate", None, "The samples per second are unknown: export the stream with --rate HZ."),
            ("outputs", facts["outputs"] * 2, "this stream takes samples[128] and returns audio[128], audio[128]."),
            ("step", "none.onnx", "There is no none.onnx: export again."),
        ):
            path.write_text(json.dumps({**facts, name: value}))
            browser.refresh()
            if name in ("longest", "flush"):
                shown("status", "ready")
                browser.find_element("id", "file").send_keys(str(place / "noisy.wav"))
            assert problem in shown("problem", "e")


def test_the_model_of_triton(tmp_path):
    """Its commands make the files of the first state; Triton's schema reads it, if its package is installed."""
    model = jaxrnn.load(PACKAGED, static={"h": np.ones((1, 1, 80), np.float32)})
    streamed = model.stream("time", pulse=2)
    for joined in (True, False):
        written = export_onnx(streamed, model.params, tmp_path / "step.onnx", join_state=joined)
        write_example(written, tmp_path / "example")
        assert (tmp_path / "example" / "config.pbtxt").exists() == joined
        if not joined:
            continue
        text = (tmp_path / "example" / "config.pbtxt").read_text()
        for command in re.findall("^#   (.*)$", text, re.MULTILINE):
            subprocess.run(command, shell=True, check=True, cwd=tmp_path / "example")
        folder = tmp_path / "example" / "models" / "stream"
        assert (folder / "1" / "model.onnx").read_bytes() == (tmp_path / "step.onnx").read_bytes()
        for name, array in np.load(tmp_path / "step.first_state.npz").items():
            (place,) = re.findall(f'input_name: "{name}" .* data_file: "(.*)"', text)
            assert (folder / "initial_state" / place).read_bytes() == array.tobytes()
        if importlib.util.find_spec("tritonclient"):
            from google.protobuf import text_format
            from tritonclient.grpc import model_config_pb2

            config = text_format.Parse(text, model_config_pb2.ModelConfig())
            assert [each.name for each in config.input] == ["magnitude"]
        shutil.rmtree(tmp_path / "example")
