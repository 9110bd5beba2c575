"""The examples on real networks and recordings: whole recordings in one scan, and step by step, give the references."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest
import soundfile
from click.testing import CliRunner
from compilations import compilations
from tiers import of_tiers

import jaxrnn
from jaxrnn.demo import PACKAGED, denoise_at_once
from jaxrnn.signal import si_sdr
from tools.examples import EXAMPLES, import_example

#: Samples by which DTLN's output lags its input.
LAG = 384
#: Blocks that are also run a step at a time.
FEW = 40


@pytest.fixture
def as_users_compile():
    """Whole recordings are held to their references in programs that are optimised, as those of users are."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="module")
def dtln() -> ModuleType:
    return import_example("dtln_denoise")


@pytest.fixture(scope="module")
def gtcrn() -> ModuleType:
    return import_example("gtcrn_denoise")


@pytest.fixture(scope="module")
def silero() -> ModuleType:
    return import_example("silero_vad")


def read(path: Path) -> np.ndarray:
    samples, rate = soundfile.read(path, dtype="float32")
    assert rate == 16_000
    return samples


def snr(result: np.ndarray, reference: np.ndarray) -> float:
    reference = reference.astype(np.float64)
    return float(10 * np.log10(np.sum(reference**2) / np.sum((result - reference) ** 2)))


def by_steps(model: jaxrnn.Model, frames: np.ndarray) -> np.ndarray:
    """The outputs of a model with one input and one output for frames stacked in front, one compiled step each."""
    (given,), (result,) = model.spec.inputs, model.spec.outputs
    step, params, state = jax.jit(model.step), model.params, model.init()
    outputs = []
    for frame in frames:
        output, state = step(params, state, {given.name: frame})
        outputs.append(np.asarray(output[result.name]))
    return np.stack(outputs)


@pytest.mark.usefixtures("as_users_compile")
def test_dtln_matches_its_reference(dtln, models, audio):
    noisy, clean = read(audio / "noisy_16k.wav"), read(audio / "clean_16k.wav")
    reference = np.load(audio / "dtln_reference_16k.npy")
    networks = dtln.load_networks(models)
    result = dtln.denoise(noisy, *networks)
    assert result.dtype == np.float32
    assert snr(result, reference) >= 115
    assert round(float(np.corrcoef(result, reference)[0, 1]), 6) == 1
    assert si_sdr(noisy, clean) == pytest.approx(6.2, abs=0.05)
    assert si_sdr(result[LAG:], clean[:-LAG]) == pytest.approx(10.7, abs=0.06)
    with compilations() as counted:
        dtln.denoise(clean, *networks)
    assert not counted


@pytest.mark.thorough
def test_dtln_step_by_step(dtln, models, audio):
    """The pipeline as it runs live: every block through both networks before the next one comes."""
    noisy = read(audio / "noisy_16k.wav")[: LAG + FEW * 128]
    model_1, model_2 = dtln.load_networks(models)
    spectra = dtln.spectra_of(noisy)
    assert len(spectra) == FEW
    mask = by_steps(model_1, np.abs(spectra).astype(np.float32)[:, None, None])[:, 0, 0]
    blocks = by_steps(model_2, np.fft.irfft(spectra * mask).astype(np.float32)[:, None, None])[:, 0, 0]
    made, result = np.zeros(512), np.zeros(len(noisy))
    for index, block in enumerate(blocks):
        made = np.concatenate([made[128:], np.zeros(128)]) + block
        result[index * 128 : (index + 1) * 128] = made[:128]
    reference = np.load(audio / "dtln_reference_16k.npy")[: FEW * 128]
    np.testing.assert_allclose(result[: FEW * 128], reference, rtol=0, atol=1e-6)
    np.testing.assert_allclose(dtln.denoise(noisy, model_1, model_2), result, rtol=0, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.usefixtures("as_users_compile")
def test_silero_vad_matches_its_reference(silero, models, audio):
    speech, reference = read(audio / "speech_16k.wav"), np.load(audio / "silero_reference.npy")
    model = jaxrnn.load(models / "silero_vad.onnx", static={"sr": 16_000})
    result = silero.speech_probability(speech, model)
    np.testing.assert_allclose(result, reference, rtol=0, atol=1e-4)
    assert reference.max() > 0.9
    few = by_steps(model, silero.blocks_with_context(speech[: FEW * 512]))[:, 0, 0]
    np.testing.assert_allclose(few, reference[:FEW], rtol=0, atol=1e-4)
    with compilations() as counted:
        silero.speech_probability(speech[::-1].copy(), model)
    assert not counted
    cut = silero.speech_probability(speech[: FEW * 512 - 100], model)
    np.testing.assert_allclose(cut[:-1], reference[: FEW - 1], rtol=0, atol=1e-4)
    assert len(cut) == FEW


def test_silero_vad_segments(silero):
    block = 512 / 16_000
    speech = [0.0] * 10 + [0.9] * 20 + [0.4] * 5 + [0.9] * 5 + [0.1] * 3 + [0.9] * 2 + [0.0] * 9 + [1.0] * 5 + [0.0] * 9
    # A dip to 0.4 and a pause of three blocks (96 ms) end nothing, five blocks (160 ms) alone are too short.
    assert silero.segments(np.array(speech)) == [(10 * block, 45 * block)]
    assert silero.segments(np.array(speech), shortest_speech=0.1) == [
        (10 * block, 45 * block),
        (54 * block, 59 * block),
    ]
    assert silero.segments(np.ones(12)) == [(0, 12 * block)]
    assert silero.segments(np.zeros(12)) == []


@pytest.mark.nightly
@pytest.mark.usefixtures("as_users_compile")
def test_gtcrn_matches_its_reference(gtcrn, models, audio):
    noisy, clean = read(audio / "noisy_16k.wav"), read(audio / "clean_16k.wav")
    reference = np.load(audio / "gtcrn_reference_16k.npy")
    model = jaxrnn.load(models / "gtcrn.onnx")
    result = gtcrn.denoise(noisy, model)
    np.testing.assert_allclose(result, reference, rtol=0, atol=1e-4)
    assert si_sdr(result, clean) == pytest.approx(9.5, abs=0.06)
    with compilations() as counted:
        gtcrn.denoise(clean, model)
    assert not counted
    spectra = gtcrn.spectra_of(noisy)
    scanned = import_example("recordings").scanner(model)({"mix": spectra})["enh"]
    np.testing.assert_allclose(by_steps(model, spectra[:FEW]), scanned[:FEW], rtol=0, atol=1e-4)


COMMANDS = {
    "dtln_denoise": "dtln_1.onnx and no dtln_2.onnx",
    "gtcrn_denoise": "gtcrn.onnx",
    "silero_vad": "silero_vad.onnx",
}


def run(example: str, *arguments: Path, status: int = 0) -> str:
    ran = CliRunner().invoke(import_example(example).main, list(map(str, arguments)))
    assert ran.exit_code == status, ran.output
    return ran.output


@pytest.mark.parametrize("example", of_tiers(["dtln_denoise", "gtcrn_denoise"], (), ("dtln_denoise",)))
def test_denoisers_write_a_recording(example, models, audio, tmp_path):
    short, out = tmp_path / "short.wav", tmp_path / "out.wav"
    soundfile.write(short, read(audio / "noisy_16k.wav")[:4_000], 16_000)
    assert "times real time" in run(example, short, out, "--models", models)
    assert len(read(out)) == 4_000


@pytest.mark.thorough
def test_silero_vad_writes_segments(models, audio, tmp_path):
    short, out = tmp_path / "short.wav", tmp_path / "segments.json"
    soundfile.write(short, read(audio / "speech_16k.wav")[:160_000], 16_000)
    said = run("silero_vad", short, "--out", out, "--models", models)
    segments = json.loads(out.read_text())
    assert f"{len(segments)} segment(s) of speech" in said
    assert 0 < len(segments) == said.count(" to ")
    assert all(0 <= segment["start"] < segment["end"] <= 10.1 for segment in segments)


@pytest.mark.parametrize(
    ("rate", "shape", "said"),
    [
        (8_000, (8_000,), "1 channel(s) at 8000 Hz"),
        (16_000, (8_000, 2), "2 channel(s) at 16000 Hz"),
        (16_000, (100,), "at least 512"),
    ],
)
@pytest.mark.parametrize("example", ["dtln_denoise", "gtcrn_denoise"])
def test_denoisers_refuse_other_recordings(example, models, tmp_path, rate, shape, said):
    path = tmp_path / "other.wav"
    soundfile.write(path, np.zeros(shape), rate)
    assert said in run(example, path, tmp_path / "out.wav", "--models", models, status=1)
    assert not (tmp_path / "out.wav").exists()


@pytest.mark.parametrize("example", COMMANDS)
def test_commands_say_what_is_missing(example, tmp_path, monkeypatch):
    rest = ["--models", tmp_path] if example == "silero_vad" else [tmp_path / "out.wav", "--models", tmp_path]
    assert "there is no file" in run(example, tmp_path / "absent.wav", *rest, status=1)
    path = tmp_path / "in.wav"
    soundfile.write(path, np.zeros(1_000), 16_000)
    assert f"no {COMMANDS[example]} in" in run(example, path, *rest, status=1)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert "pip install 'jaxrnn[audio]'" in run(example, path, *rest, status=1)


def differences(said: str) -> list[float]:
    """What an example says about how far the streamed run is from the whole recording."""
    return [float(line.split(": ")[1].split()[0]) for line in said.splitlines() if "largest difference" in line]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("network", "pulse", "frames"),
    of_tiers(
        [("keyword_net", 2, 31), ("keyword_net", 8, 3), ("filter_net", 1, 9)], [("keyword_net", 8, 3)], thorough=()
    ),
)
def test_a_streamed_network_says_how_exact_it_is(models, network, pulse, frames):
    options = ["--models", models, "--pulse", pulse, "--frames", frames]
    said = run("stream_onnx_model", network, *options)
    assert max(differences(said)) < 1e-6
    assert "a step takes" in said
    assert "/gru/GRU.carry" in said or "/lstm/LSTM.carry0" in said


@pytest.mark.thorough
def test_a_streamed_network_says_what_does_not_fit(models, tmp_path):
    example = ["stream_onnx_model", "keyword_net", "--models"]
    assert "no keyword_net.onnx in" in run(*example, tmp_path, status=1)
    assert "a multiple of 2 frames, such as 2, 4, 6" in run(*example, models, "--pulse", 3, status=1)
    assert "no input has a dimension 'T'" in run(*example, models, "--symbol", "T", status=1)


@pytest.mark.thorough
@pytest.mark.parametrize(("frames", "pulse"), of_tiers([(33, 4), (1, 5)], [(1, 5)], []))
def test_a_streamed_module_has_the_outputs_and_gradients_of_the_module(frames, pulse):
    said = run("stream_flax_module", "--frames", frames, "--pulse", pulse)
    assert len(differences(said)) == 2
    assert max(differences(said)) < 1e-5
    assert "centred.history" in said


@pytest.mark.nightly
def test_a_state_space_model_is_trained_and_streamed():
    with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
        said = run("stream_state_space_model", "--steps", 40, "--pulse", 5, "--frames", 203)
    before, after = map(float, re.findall(r"training: ([\d.]+) -> ([\d.]+)", said)[0])
    noisy, denoised = map(float, re.findall(r"([\d.]+) with noise, ([\d.]+) after", said)[0])
    assert after < before / 2
    assert denoised < noisy / 2
    assert differences(said)[0] < 1e-5


@pytest.mark.thorough
def test_a_module_of_flax_is_trained_and_goes_back_to_onnx(tmp_path):
    out = tmp_path / "tuned.onnx"
    with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
        said = run("nnx_module", "--steps", 6, "--batch", 2, "--out", out)
        assert "no imported parameter matches 'gru'" in run("nnx_module", "--freeze", "gru", status=1)
    before, after = map(float, re.findall(r"loss ([\d.]+) -> ([\d.]+);", said)[0])
    assert after < before
    assert max(differences(said)) < 1e-3
    tuned, packaged = jaxrnn.load(out), jaxrnn.load(PACKAGED)
    for name, value in packaged.params.items():
        assert np.array_equal(tuned.params[name], value) == name.startswith("gru_")


@pytest.mark.thorough
def test_an_rnnt_gives_the_tokens_of_a_decoder_without_state():
    """Also with a last pulse that is not full; and tokens come while pulses come."""
    said = run("rnnt_greedy", "--frames", 206)
    engines = dict(re.findall(r"(\w+): (\d+) tokens, as offline", said))
    assert {"JAX", "Runtime"} <= engines.keys()
    assert set(engines.values()) == {"147"}
    rnnt = import_example("rnnt_greedy")
    params, taken = rnnt.random_params(0), []
    features = np.random.default_rng(1).normal(size=(206, rnnt.FEATURES)).astype(np.float32)
    expected, network = rnnt.offline(params, features), rnnt.in_jax(params)
    assert len(set(expected)) > 6
    tokens = rnnt.greedy(network, (taken.append(pulse) or pulse for pulse in rnnt.cut(features)))
    assert next(tokens) == expected[0]
    assert len(taken) < 6
    assert [*tokens] == expected[1:]
    forgetful = network._replace(predict=lambda token, state: network.predict(token, None))
    assert [*rnnt.greedy(forgetful, rnnt.cut(features))] != expected


@pytest.mark.nightly
def test_gradients_of_many_devices_are_those_of_one():
    """In a process of its own, whose CPU is four devices."""
    script = [sys.executable, str(EXAMPLES / "data_parallel.py"), "--devices", "4", "--batch", "1", "--steps", "2"]
    said = subprocess.run(script, capture_output=True, text=True, timeout=300, env={**os.environ, "XLA_FLAGS": ""})
    assert said.returncode == 0, said.stderr
    assert len(differences(said.stdout)) == 2
    assert max(differences(said.stdout)) < 1e-5
    losses = [list(map(float, pair)) for pair in re.findall(r"loss ([\d.]+) -> ([\d.]+)", said.stdout)]
    assert all(after < before for before, after in losses)


@pytest.mark.parametrize("seconds", of_tiers([0.5, 0.002], (), (0.002,)))
def test_a_streamed_function_takes_blocks_of_any_size(seconds):
    said = run("stream_function", "--seconds", seconds)
    assert len(differences(said)) == 2
    assert max(differences(said)) < 1e-3


@pytest.mark.nightly
def test_examples_of_streaming_see_a_difference(monkeypatch):
    """The comparison is one: with a frame out of place, an example fails."""
    wrong = property(lambda self: {"spectra": 0, "level": None})
    monkeypatch.setattr(jaxrnn.Streamed, "delay", wrong)
    assert "has shape" in run("stream_function", "--seconds", "0.5", status=1)


@pytest.mark.nightly
@pytest.mark.parametrize("network", ["demo", "dtln", "gtcrn"])
def test_a_denoiser_runs_in_another_engine(audio, models, tmp_path, network):
    """As a file from samples to samples, over a recording that is no whole number of steps."""
    short, out = tmp_path / "short.wav", tmp_path / "out" / "enhanced.wav"
    out.parent.mkdir()
    noisy, clean = (read(audio / f"{name}_16k.wav")[:40_100] for name in ("noisy", "clean"))
    soundfile.write(short, noisy, 16_000)
    said = run("waveforms", short, out, "--network", network, "--models", models)
    assert differences(said)[0] < 1e-5
    assert f"latency {16 if network == 'demo' else 32} ms" in said
    files = {"enhanced.wav", "flush.onnx", "enhanced.first_state.npz", "enhanced.onnx"}
    assert {path.name for path in out.parent.iterdir()} == files
    enhanced = read(out)
    assert si_sdr(enhanced, clean) > si_sdr(noisy, clean) + 2
    if network == "demo":
        expected = denoise_at_once(read(short), jaxrnn.load(PACKAGED))
        assert np.abs(enhanced - expected).max() < 1e-4  # samples in a file have 16 bits


@pytest.mark.nightly
def test_a_denoiser_learns_a_new_noise(tmp_path):
    said = run("finetune_denoiser", "--quick", "--out", tmp_path / "new")
    new = jaxrnn.load(tmp_path / "new" / "denoiser.onnx")
    assert list(new.proto.graph.node) == list(jaxrnn.load(PACKAGED).proto.graph.node)
    assert (tmp_path / "new" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert differences(said)[0] < 1e-5
    rows = [
        [float(number) for number in re.findall(r"-?\d+\.\d+", line)] for line in said.splitlines() if "siren" in line
    ]
    assert [noisy for noisy, _, _ in rows] == pytest.approx([-5, 0, 5], abs=0.2)
    # Before, it gains 4 dB; four updates are enough for 2 more.
    assert all(after > before + 1 for _, before, after in rows)


@pytest.mark.nightly
def test_a_bidirectional_denoiser_is_bounded_and_distilled(tmp_path):
    """The files have the tuned weights, and the table has what the streams lose."""
    speech, sizes = tmp_path / "speech.wav", ("--updates", 4, "--tuning", 2, "--hidden", 8, "--batch", 2)
    soundfile.write(speech, np.random.default_rng(0).uniform(-0.5, 0.5, 20 * 16_000), 16_000)
    run("bidirectional_denoiser", "--speech", speech, "--out", tmp_path, *sizes, "--futures", "0,2")
    results = json.loads((tmp_path / "results.json").read_text())["bounds"]
    assert [each["future_ms"] for each in results] == [0, 32]
    assert results[0]["error_before"] < results[1]["error_before"]
    assert results[0]["delay_ms"] == 32 < results[1]["delay_ms"]
    offline, tuned = (jaxrnn.load(tmp_path / name) for name in ("offline.onnx", "tuned_32ms.onnx"))
    assert any(not np.array_equal(offline.params[name], tuned.params[name]) for name in offline.params)
    assert jaxrnn.load(tmp_path / "live_32ms.onnx").spec.state
    assert (tmp_path / "32ms_after.flac").is_file()
    assert (tmp_path / "delay.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.nightly
def test_only_the_decoder_of_silero_is_trained(models, audio, tmp_path):
    arguments = ["--models", models, "--speech", audio / "speech_16k.wav"]
    said = run("finetune_vad", "--quick", "--out", tmp_path, *arguments)
    assert differences(said)[0] < 1e-5
    files = (models / "silero_vad.onnx", tmp_path / "silero_vad.onnx")
    old, new = (jaxrnn.load(file, static={"sr": 16_000}).params for file in files)
    changed = {name for name in old if not np.array_equal(old[name], new[name])}
    assert changed == {name for name in old if name.startswith("If_0_then") and "decoder" in name}
    assert "there is no file" in run("finetune_vad", "--quick", "--models", models, "--speech", "absent.wav", status=1)


def test_speech_is_where_a_clean_recording_is_loud():
    example = import_example("finetune_vad")
    rng = np.random.default_rng(0)
    loud = rng.random(40) < 0.4
    clean = np.repeat(np.where(loud, 0.1, 0.001), 512) * rng.standard_normal(40 * 512)
    np.testing.assert_array_equal(example.speech_blocks(clean.astype(np.float32)), loud)
