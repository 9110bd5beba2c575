"""Bounded futures of files: networks over spectra, comparison with the offline network, evaluation and distillation."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from small_models import offline_model
from test_cli import call, call_json

import jaxrnn
from jaxrnn.audio.waveforms import waveform_of

#: A network over spectra of 16 samples as a function of sound.
FRAMES = {"size": 16, "hop": 8, "window": "sqrt_hann", "gives": "mask"}
STFT = ("--symbol", "time", "--stft", 16, "--hop", 8, "--window", "sqrt_hann", "--gives", "mask")


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    path = tmp_path_factory.mktemp("offline") / "net.onnx"
    onnx.save(offline_model(), path)
    return path


@pytest.fixture(scope="module")
def sound():
    return {"samples": np.random.default_rng(3).normal(size=230).astype(np.float32)}


def test_a_future_of_frames_bounds_a_network_over_spectra(network, sound):
    """Streams are exact, delays include the window, and a future as long as the recording changes nothing."""
    enhance = waveform_of(jaxrnn.load(network), "time", **FRAMES)
    whole = enhance.apply(enhance.params, sound)["audio"]
    delays = []
    for future, block in ((3, 1), (29, None)):
        live = enhance.stream(future=future, block=block)
        offline = live.offline(enhance.params, sound)["audio"]
        np.testing.assert_allclose(live.run(enhance.params, sound)["audio"], offline, atol=1e-6)
        error = np.abs(offline - whole).max()
        assert error < 1e-6 if future == 29 else error > 1e-3, future
        delays.append((live.pulse, live.delay["audio"]))
    # The window is a hop longer than a hop. Both the mean and the recurrence see three later frames.
    assert delays[0] == (8, 8 + 2 * 3 * 8)


@pytest.mark.thorough
def test_commands_bound_a_network_over_spectra(network, sound, tmp_path):
    np.save(tmp_path / "x.npy", sound["samples"])
    options = (*STFT, "--future", 3, "--block", 1)
    given = ("--input", f"samples={tmp_path / 'x.npy'}", "--rate", 8_000)
    streamed = call_json("stream", network, *options, *given, "--verify", "-o", tmp_path / "out.npz")
    assert streamed["verified"]
    # Six hops of later frames, and a hop of the window: 56 samples of 8 kHz, after a pulse of 8.
    (audio,) = streamed["outputs"]
    assert (audio["delay"], audio["delay_ms"], streamed["latency_ms"]) == (56, 7, 8)
    enhance = waveform_of(jaxrnn.load(network), "time", **FRAMES)
    expected = enhance.stream(future=3, block=1).offline(enhance.params, sound)["audio"]
    with np.load(tmp_path / "out.npz") as written:
        np.testing.assert_allclose(written["audio"], expected, atol=1e-6)
    exported = call_json("export", network, *options, "--rate", 8_000, "-o", tmp_path / "live.onnx", "--verify")
    assert exported["latency_ms"] == 8
    call("compile", network, *options, "-o", tmp_path / "live.jaxrnn")
    assert jaxrnn.load_compiled(tmp_path / "live.jaxrnn").spec.delay == {"audio": 56}
    profiled = call_json("profile", network, *options, "--no-peak")
    assert "lstm" in [row["name"] for row in profiled["rows"]]
    call("stream", network, *STFT, "--random", "--block", 2, status=2)
