"""The state of a network over time: an array like any other, to look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

import jaxrnn
from jaxrnn.demo import PACKAGED, mixture, spectra_and_state
from jaxrnn.demo.audio import HOP, RATE
from tools.gallery import drawing
from tools.gallery.entry import Entry, Item

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SECONDS, SNR = 5.0, 5.0


def memory_of(model: jaxrnn.Model, frames: np.ndarray) -> list[np.ndarray]:
    """Return masks and states of all frames, from a scan over the pure step."""

    def one(state, frame):
        outputs, state = model.step(model.params, state, {"magnitude": frame})
        return state, (outputs["mask"], state["h"])

    _, results = jax.jit(lambda: jax.lax.scan(one, model.init(), frames))()
    return [np.asarray(result)[:, 0, 0] for result in results]


def make(folder: Path) -> list[Item]:
    """Draw spectrum, state and mask below each other."""
    model = jaxrnn.load(PACKAGED)
    _, noisy = mixture(np.random.default_rng(4), SECONDS, SNR)
    _, inputs = spectra_and_state(noisy, model)
    magnitudes = inputs["magnitude"][0]
    masks, states = memory_of(model, magnitudes[:, None, None])
    alt = (
        f"Three images over {SECONDS:.0f} s: the spectrogram of a noisy voice; the {states.shape[1]} units of a GRU, "
        "of which some follow the syllables and some hardly change; and the mask, bright where there is voice."
    )
    return [drawing.save(folder, "memory", lambda: draw(magnitudes, states, masks), alt)]


def draw(magnitudes: np.ndarray, states: np.ndarray, masks: np.ndarray) -> Figure:
    """Draw the inputs, the state and the outputs."""
    figure = drawing.canvas(4.6)
    rows = figure.subplots(3, 1, sharex=True)
    decibels = 20 * np.log10(np.maximum(magnitudes, 1e-3))
    end, top = len(states) * HOP / RATE, RATE / 2_000
    # Units that change often come last.
    ordered = states[:, np.argsort(np.abs(np.diff(states, axis=0)).mean(0))]
    images = (
        ("in: noisy magnitudes (dB)", "frequency (kHz)", decibels, top, "magma", (decibels.max() - 70, decibels.max())),
        ("carried: state of the GRU", "unit", ordered, ordered.shape[1], "RdBu_r", (-1, 1)),
        ("out: mask", "frequency (kHz)", masks, top, "viridis", (0, 1)),
    )
    for axes, (title, label, image, height, colours, (low, high)) in zip(rows, images, strict=True):
        extent = (0, end, 0, height)
        drawn = axes.imshow(
            image.T,
            origin="lower",
            aspect="auto",
            extent=extent,
            cmap=colours,
            vmin=low,
            vmax=high,
            interpolation="nearest",
        )
        axes.set(title=title, ylabel=label)
        figure.colorbar(drawn, ax=axes, pad=0.01)
    rows[-1].set_xlabel("time (s)")
    return figure


ENTRY = Entry(
    title="What a network remembers",
    see=(
        "The packaged denoiser carries one number a unit from frame to frame: units drawn at the top change with every "
        "frame, those in the middle with the syllables, and those at the bottom hardly at all. The state is an array "
        "that `step` takes and gives, so it can be drawn, saved, compared and differentiated."
    ),
    shown=memory_of,
    make=make,
)
