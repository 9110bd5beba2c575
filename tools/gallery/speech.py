"""Silero VAD over a recording: the probability of speech in every block of 32 ms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

import jaxrnn
from jaxrnn.demo import RATE
from jaxrnn.demo.audio import Samples
from tools.examples import import_example
from tools.gallery import drawing
from tools.gallery.entry import Entry, Figures, Item, model_path, read_part, save_sound

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SECONDS = 18.0
silero = import_example("silero_vad")


def probabilities(samples: Samples, model: jaxrnn.Model) -> np.ndarray:
    """Return the probability of speech in each block, in one call."""
    blocks = silero.blocks_with_context(samples)  # [blocks, 1, 64 + 512]
    sizes = {"input_dim_0": 1, "input_dim_1": blocks.shape[-1]}
    params = model.pack(model.params, dims=sizes)
    outputs, _ = jax.jit(model.scan)(params, model.init(), {"input": blocks})
    return np.asarray(outputs["output"])[:, 0, 0]


def make(folder: Path) -> list[Item]:
    """Draw the waveform with its segments of speech and the probabilities; store the sound."""
    samples = read_part(ENTRY.recordings[0], 0, SECONDS)
    probability = probabilities(samples, jaxrnn.load(model_path(ENTRY.models[0]), static={"sr": RATE}))
    segments = silero.segments(probability)
    alt = (
        f"The waveform of {SECONDS:.0f} s of speech with pauses; {len(segments)} stretches of it are marked as speech. "
        "Below, the probability of speech is close to 1 inside of them and falls in the pauses."
    )
    speech = sum(segment.end - segment.start for segment in segments)
    figures = {
        "stretches of speech": str(len(segments)),
        "speech": f"{speech:.1f} of {SECONDS:.0f} s",
        "blocks": f"{len(probability)} of {1000 * silero.BLOCK / RATE:.0f} ms",
    }
    return [
        drawing.save(folder, "speech", lambda: draw(samples, probability, segments), alt),
        save_sound(folder, "speech", samples, "the recording"),
        Figures(figures),
    ]


def draw(samples: Samples, probability: np.ndarray, segments: list) -> Figure:
    """Draw the waveform and the probabilities over one time axis."""
    figure = drawing.canvas(2.9)
    wave, curve = figure.subplots(2, 1, sharex=True)
    # The outline, lowest and highest sample of 10 ms, is all that can be seen.
    outline = samples[: len(samples) // 160 * 160].reshape(-1, 160)
    wave.fill_between(np.arange(len(outline)) / 100, outline.min(1), outline.max(1), color=drawing.quiet(), linewidth=0)
    for axes in (wave, curve):
        for number, (start, end) in enumerate(segments):
            axes.axvspan(start, end, color="C0", alpha=0.18, linewidth=0, label="speech" if not number else None)
    blocks = np.arange(len(probability) + 1) * silero.BLOCK / RATE
    curve.stairs(probability, blocks, color="C1", linewidth=1)
    curve.axhline(0.5, color=drawing.quiet(), linestyle=":", linewidth=1)
    wave.set(title="recording", yticks=[], xlim=(0, blocks[-1]))
    wave.legend(loc="lower right", bbox_to_anchor=(1, 0.98), borderaxespad=0)
    curve.set(title="probability of speech", xlabel="time (s)", ylim=(-0.03, 1.03), yticks=[0, 0.5, 1])
    return figure


ENTRY = Entry(
    title="Where there is speech",
    see=(
        "Silero's voice detector gives every 32 ms the probability that somebody speaks, and stretches above one half "
        "are marked. It dips between words, and stays low in the pause around the eighth second."
    ),
    shown=probabilities,
    make=make,
    models=("silero_vad.onnx",),
    recordings=("speech_16k.wav",),
    packages=(("soundfile", "audio"),),
    source="Network and recording: silero-vad (snakers4/silero-vad, MIT).",
)
