"""DTLN on speech in noise: every 8 ms in, every 8 ms out, as on a microphone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import jaxrnn
from jaxrnn.demo import RATE, signals
from jaxrnn.demo.audio import Samples, draw_spectrograms
from jaxrnn.signal import si_sdr
from tools.examples import import_example
from tools.gallery import drawing
from tools.gallery.entry import Entry, Figures, Item, model_path, read_part, save_sound

#: Samples of a block and of a hop, and by how many the output lags the input.
BLOCK, HOP = 512, 128
LAG = BLOCK - HOP
#: Seconds of the recording, and how loud the noise is, in dB.
START, END, SNR = 5.0, 11.0, 5.0


def live(noisy: Samples, model_1: jaxrnn.Model, model_2: jaxrnn.Model) -> Samples:
    """Run both networks of DTLN hop by hop; runners carry the state."""
    mask, enhance = jaxrnn.Runner(model_1), jaxrnn.Runner(model_2)
    heard, made, output = np.zeros(BLOCK), np.zeros(BLOCK), []
    for hop in noisy.reshape(-1, HOP):
        heard = np.append(heard[HOP:], hop)
        spectrum = np.fft.rfft(heard)
        magnitude = np.abs(spectrum).astype(np.float32)[None, None]
        gains = mask({"input_2": magnitude})["activation_2"][0, 0]
        masked = np.fft.irfft(spectrum * gains).astype(np.float32)[None, None]
        block = enhance({"input_4": masked})["conv1d_3"][0, 0]
        made = np.append(made[HOP:], np.zeros(HOP)) + block
        output.append(made[:HOP])
    return np.concatenate(output).astype(np.float32)


def make(folder: Path) -> list[Item]:
    """Draw spectrograms, store sounds, and compare `live` with one call over the whole recording."""
    model_1, model_2 = (jaxrnn.load(model_path(name)) for name in ENTRY.models)
    speech = read_part(ENTRY.recordings[0], START, END)
    speech = speech[: len(speech) // HOP * HOP]
    clean, noisy = signals.mix(speech, signals.babble(np.random.default_rng(2), len(speech)), SNR)
    output = live(noisy, model_1, model_2)
    at_once = import_example("dtln_denoise").denoise(noisy, model_1, model_2)
    same = len(noisy) - LAG  # what follows has no whole block in the example
    # In time with each other.
    heard = {"noisy": noisy[:-LAG], "denoised": output[LAG:], "clean": clean[:-LAG]}
    before, after = (si_sdr(heard[name], heard["clean"]) for name in ("noisy", "denoised"))
    titles = {"noisy": f"noisy, SI-SDR {before:.1f} dB", "denoised": f"denoised, {after:.1f} dB", "clean": "clean"}
    panels = {titles[name]: samples for name, samples in heard.items()}
    alt = (
        "Three spectrograms, one under another: noisy speech, where noise fills the pauses and hides high frequencies; "
        "denoised speech, with dark pauses; and clean speech, which the second is close to."
    )
    figures = {
        "SI-SDR of the noisy speech": f"{before:.2f} dB",
        "SI-SDR after DTLN": f"{after:.2f} dB",
        "delay": f"{1000 * LAG / RATE:.0f} ms",
        "largest difference from one call over all blocks": f"{abs(output - at_once)[:same].max():.1e}",
    }
    return [
        drawing.save(folder, "spectrograms", lambda: draw_spectrograms(panels, drawing.WIDTH, 1.45), alt),
        *(save_sound(folder, name, samples, name) for name, samples in heard.items()),
        Figures(figures),
    ]


ENTRY = Entry(
    title="A denoiser, live",
    see=(
        "DTLN takes the noise out of speech, 8 ms at a time, with the state of its four LSTM layers carried from step "
        "to step. Look at the pauses: they are dark after it; and at the last figure: step by step gives what one call "
        "over the whole recording does."
    ),
    shown=live,
    make=make,
    models=("dtln_1.onnx", "dtln_2.onnx"),
    recordings=("speech_16k.wav",),
    packages=(("soundfile", "audio"),),
    source=(
        "Networks: DTLN of Westhausen and Meyer (breizhn/DTLN, MIT). Speech: test recording of silero-vad (MIT). The "
        "noise is synthetic."
    ),
)
