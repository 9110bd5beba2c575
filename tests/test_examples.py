"""The examples run on real networks and recordings, and real networks reproduce another engine with state by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest
import soundfile
from click.testing import CliRunner

import jaxrnn
from jaxrnn.demo import si_sdr

EXAMPLES = Path(__file__).parent.parent / "examples"
#: Samples by which DTLN's output lags its input.
LAG = 384


def import_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def dtln() -> ModuleType:
    return import_example("dtln_denoise")


def read(path: Path) -> np.ndarray:
    samples, rate = soundfile.read(path, dtype="float32")
    assert rate == 16_000
    return samples


def snr(result: np.ndarray, reference: np.ndarray) -> float:
    reference = reference.astype(np.float64)
    return float(10 * np.log10(np.sum(reference**2) / np.sum((result - reference) ** 2)))


def run_steps(model: jaxrnn.Model, state: dict[str, str], start: dict[str, np.ndarray]):
    """A compiled step of the model with its state, kept here: ``state`` pairs inputs with outputs."""
    step = jax.jit(lambda inputs: model.apply(model.params, inputs))
    carry = dict(start)

    def run(**inputs: np.ndarray) -> dict[str, jax.Array]:
        outputs = step({**inputs, **carry})
        carry.update({given: outputs[updated] for given, updated in state.items()})
        return outputs

    return run


def test_dtln_matches_its_reference(dtln, models, audio):
    noisy, clean = read(audio / "noisy_16k.wav"), read(audio / "clean_16k.wav")
    reference = np.load(audio / "dtln_reference_16k.npy")
    result = dtln.denoise(noisy, *dtln.load_networks(models))
    assert result.dtype == np.float32
    assert snr(result, reference) >= 115
    assert round(float(np.corrcoef(result, reference)[0, 1]), 6) == 1
    assert si_sdr(noisy, clean) == pytest.approx(6.2, abs=0.05)
    assert si_sdr(result[LAG:], clean[:-LAG]) == pytest.approx(10.7, abs=0.06)


def test_dtln_command_writes_a_recording(dtln, models, audio, tmp_path):
    short, out = tmp_path / "short.wav", tmp_path / "out.wav"
    soundfile.write(short, read(audio / "noisy_16k.wav")[:8_000], 16_000)
    ran = CliRunner().invoke(dtln.main, [str(short), str(out), "--models", str(models)])
    assert ran.exit_code == 0, ran.output
    assert "times real time" in ran.output
    assert len(read(out)) == 8_000


@pytest.mark.parametrize(
    ("rate", "shape", "said"),
    [
        (8_000, (8_000,), "1 channel(s) at 8000 Hz"),
        (16_000, (8_000, 2), "2 channel(s) at 16000 Hz"),
        (16_000, (100,), "at least 512"),
    ],
)
def test_dtln_command_refuses_other_recordings(dtln, models, tmp_path, rate, shape, said):
    path = tmp_path / "other.wav"
    soundfile.write(path, np.zeros(shape), rate)
    ran = CliRunner().invoke(dtln.main, [str(path), str(tmp_path / "out.wav"), "--models", str(models)])
    assert ran.exit_code == 1
    assert said in ran.output
    assert not (tmp_path / "out.wav").exists()


def test_dtln_command_says_what_is_missing(dtln, tmp_path, monkeypatch):
    run = CliRunner().invoke
    absent = [str(tmp_path / "absent.wav"), str(tmp_path / "out.wav"), "--models", str(tmp_path)]
    assert "there is no file" in run(dtln.main, absent).output
    path = tmp_path / "in.wav"
    soundfile.write(path, np.zeros(1_000), 16_000)
    assert "no dtln_1.onnx and no dtln_2.onnx" in run(dtln.main, [str(path), *absent[1:]]).output
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert "pip install 'jaxrnn[audio]'" in run(dtln.main, [str(path), *absent[1:]]).output


def test_silero_vad_matches_its_reference(models, audio):
    speech, reference = read(audio / "speech_16k.wav"), np.load(audio / "silero_reference.npy")
    model = jaxrnn.load(models / "silero_vad.onnx", static={"sr": 16_000})
    run = run_steps(model, {"state": "stateN"}, {"state": np.zeros((2, 1, 128), np.float32)})
    padded = np.concatenate([np.zeros(64, np.float32), speech])
    result = [
        float(run(input=padded[None, start : start + 64 + 512])["output"][0, 0])
        for start in range(0, 512 * len(reference), 512)
    ]
    np.testing.assert_allclose(result, reference, rtol=0, atol=1e-4)
    assert reference.max() > 0.9


def test_gtcrn_matches_its_reference(models, audio):
    noisy, clean = read(audio / "noisy_16k.wav"), read(audio / "clean_16k.wav")
    reference = np.load(audio / "gtcrn_reference_16k.npy")
    model = jaxrnn.load(models / "gtcrn.onnx")
    caches = {"conv_cache": (2, 1, 16, 16, 33), "tra_cache": (2, 3, 1, 1, 16), "inter_cache": (2, 1, 33, 16)}
    zeros = {name: np.zeros(shape, np.float32) for name, shape in caches.items()}
    run = run_steps(model, {name: f"{name}_out" for name in caches}, zeros)
    frame, hop = 512, 256
    window = np.sqrt(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(frame) / frame))
    result = np.zeros(len(noisy))
    for start in range(0, len(noisy) - frame + 1, hop):
        spectrum = np.fft.rfft(noisy[start : start + frame] * window)
        mix = np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32)
        enhanced = np.asarray(run(mix=mix[None, :, None])["enh"], np.float64)[0, :, 0]
        result[start : start + frame] += np.fft.irfft(enhanced[:, 0] + 1j * enhanced[:, 1]) * window
    np.testing.assert_allclose(result, reference, rtol=0, atol=1e-4)
    assert si_sdr(result, clean) == pytest.approx(9.5, abs=0.06)
