"""What the demo writes: recordings to listen to and a picture of their spectrograms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.io import wavfile
from scipy.signal import stft

from jaxrnn._files.stores import in_place_of
from jaxrnn.demo.spectra import RATE, Samples
from jaxrnn.errors import optional_package

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Loudness below the loudest point at which a spectrogram turns black, in dB.
DYNAMIC_RANGE = 80


def write_wav(path: Path, samples: Samples) -> None:
    """Write ``float32[samples]`` of full scale 1 as 16-bit mono WAV of 16 kHz; what exceeds full scale is clipped."""
    with in_place_of(path) as file:
        wavfile.write(file, RATE, np.round(np.clip(samples, -1, 1) * 32_767).astype(np.int16))


def write_spectrograms(path: Path, panels: Mapping[str, Samples]) -> None:
    """Write a PNG of the spectrograms of signals of one length, ``float32[samples]`` each by title, one under another.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    figure = draw_spectrograms(panels)
    with in_place_of(path) as file:
        figure.savefig(file, format="png", dpi=150)


def draw_spectrograms(panels: Mapping[str, Samples], width: float = 10, height: float = 2.6) -> Figure:
    """Draw the figure that `write_spectrograms` writes; all panels share one scale, and each has a size in inches."""
    need_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height * len(panels)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(len(panels), 1, sharex=True, sharey=True))
    images = {title: _magnitudes(samples) for title, samples in panels.items()}
    loudest = max(float(image.max()) for image in images.values())
    quietest = loudest * 10 ** (-DYNAMIC_RANGE / 20)
    drawn = None
    for axis, (title, image) in zip(axes, images.items(), strict=True):
        decibels = 20 * np.log10(np.maximum(image, quietest) / loudest)
        extent = (0, len(panels[title]) / RATE, 0, RATE / 2_000)
        drawn = axis.imshow(
            decibels, origin="lower", aspect="auto", extent=extent, cmap="magma", vmin=-DYNAMIC_RANGE, vmax=0
        )
        axis.set_title(title, loc="left", fontsize="medium")
        axis.set_ylabel("frequency (kHz)")
    axes[-1].set_xlabel("time (s)")
    if drawn is not None:
        figure.colorbar(drawn, ax=list(axes), label="level (dB, loudest point = 0)", shrink=0.9, pad=0.01)
    return figure


def need_matplotlib() -> None:
    """Check that matplotlib can be imported.

    Raises:
        MissingPackageError: it cannot; says how to install it.
    """
    with optional_package("matplotlib", "drawing spectrograms", "plot"):
        import matplotlib.figure  # noqa: F401


def _magnitudes(samples: Samples) -> np.ndarray:
    """Magnitudes ``[frequencies, frames]`` over windows of 32 ms, a window every 4 ms: harmonics become visible."""
    _, _, spectra = stft(samples, RATE, "hann", nperseg=512, noverlap=448)
    return np.abs(spectra)
