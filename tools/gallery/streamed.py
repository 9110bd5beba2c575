"""The packaged denoiser on a whole recording, and live: the same sound."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import jaxrnn
from jaxrnn.audio import Frames, Network, Waveform
from jaxrnn.demo import PACKAGED, mixture
from jaxrnn.demo.audio import Samples, draw_spectrograms
from jaxrnn.signal import si_sdr
from tools.gallery import drawing
from tools.gallery.entry import Entry, Figures, Item, save_sound

SECONDS, SNR = 5.0, 0.0
#: The row of the figures that the home page shows.
DIFFERENCE = "largest difference of streamed from offline"


def both_ways(noisy: Samples) -> dict[str, np.ndarray]:
    """Denoise a recording in one call, and 8 ms at a time."""
    network = Network(jaxrnn.load(PACKAGED), gives="mask")
    enhance = Waveform(network, Frames(256, 128, "sqrt_hann"))
    offline = enhance({"samples": noisy})["audio"]

    streamed = enhance.stream()
    run = jaxrnn.Runner(streamed, enhance.params)
    pulses = noisy.reshape(-1, streamed.pulse)
    live = [run({"samples": pulse})["audio"] for pulse in pulses]
    live.append(run.flush()["audio"])
    delay = streamed.delay["audio"]
    sound = np.concatenate(live)[delay:]
    return {"offline": np.asarray(offline), "streamed": sound}


def make(folder: Path) -> list[Item]:
    """Draw spectrograms, store the sounds, and compare the two."""
    clean, noisy = mixture(np.random.default_rng(5), SECONDS, SNR)
    sounds = {"noisy": noisy, **both_ways(noisy)}
    decibels = {name: si_sdr(samples, clean) for name, samples in sounds.items()}
    panels = {f"{name}, SI-SDR {decibels[name]:.1f} dB": samples for name, samples in sounds.items()}
    alt = (
        "Three spectrograms, one under another: a noisy voice; the voice denoised in one call, with dark pauses; and "
        "the voice denoised 8 ms at a time, which looks the same."
    )
    difference = np.abs(sounds["streamed"] - sounds["offline"]).max()
    figures = {f"SI-SDR, {name}": f"{value:.2f} dB" for name, value in decibels.items()}
    return [
        drawing.save(folder, "spectrograms", lambda: draw_spectrograms(panels, drawing.WIDTH, 1.45), alt),
        *(save_sound(folder, name, samples, name) for name, samples in sounds.items()),
        Figures({**figures, DIFFERENCE: f"{difference:.0e}"}),
    ]


ENTRY = Entry(
    title="Offline and streamed",
    see=(
        "The denoiser in the package takes a whole recording in one call, and then the same recording as a live "
        "stream, 8 ms in and 8 ms out. Listen to both: their samples differ by roundings."
    ),
    shown=both_ways,
    make=make,
    packages=(("soundfile", "audio"),),
)
