"""Audio of 16 kHz: short-time spectra, and drawings of spectrograms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jaxrnn.errors import optional_package

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE = 16_000
"""Sample rate of the signals and of the packaged network, in Hz."""
#: Samples of a frame (16 ms), and samples from frame to frame (8 ms).
FRAME = 256
HOP = FRAME // 2
#: Frequency bins of a frame, 0 to 8 kHz.
BINS = FRAME // 2 + 1
#: Delay of the frame-by-frame output, in samples.
DELAY = FRAME - HOP
#: Square root of a periodic Hann window for analysis and synthesis, a sine; overlapping squares add up to 1.
WINDOW: NDArray[np.float32] = np.sin(np.pi * np.arange(FRAME) / FRAME).astype(np.float32)

Samples = NDArray[np.float32]
Spectrum = NDArray[np.complex64]


class OverlapAdd:
    """Analysis and synthesis of a live stream, hop by hop.

    ``synthesise(analyse(hop))`` returns the samples of the previous hop, because the output lags the input by `DELAY`
    samples. The first output hop is zero.
    """

    def __init__(self):
        self._input = np.zeros(FRAME, np.float32)
        self._output = np.zeros(FRAME, np.float32)

    def analyse(self, hop: Samples) -> Spectrum:
        """Append ``hop``, ``float32[HOP]``, and return the spectrum ``complex64[BINS]`` of the last `FRAME` samples."""
        self._input[:-HOP] = self._input[HOP:]
        self._input[-HOP:] = hop
        return _rfft(self._input * WINDOW)

    def synthesise(self, spectrum: Spectrum) -> Samples:
        """Return the next output samples ``float32[HOP]`` from a spectrum ``complex64[BINS]``."""
        self._output += _irfft(spectrum) * WINDOW
        ready = self._output[:HOP].copy()
        self._output[:-HOP] = self._output[HOP:]
        self._output[-HOP:] = 0
        return ready


def hops(samples: Samples) -> Samples:
    """Cut ``float32[samples]`` into ``float32[frames, HOP]``, padded with the zeros that flush the delay."""
    count = -(-len(samples) // HOP) + DELAY // HOP
    padded = np.zeros(count * HOP, np.float32)
    padded[: len(samples)] = samples
    return padded.reshape(count, HOP)


def analyse(samples: Samples) -> Spectrum:
    """Return the spectra ``complex64[frames, 129]`` of ``float32[samples]``: frames of 256 samples, 128 apart."""
    new = hops(samples)
    before = np.concatenate([np.zeros((1, HOP), np.float32), new[:-1]])
    return _rfft(np.concatenate([before, new], axis=1) * WINDOW)


def synthesise(spectra: Spectrum, length: int) -> Samples:
    """Invert `analyse`: return ``float32[length]`` from ``complex64[frames, 129]``, without the delay."""
    frames = _irfft(spectra) * WINDOW
    return np.add(frames[:-1, HOP:], frames[1:, :HOP], dtype=np.float32).reshape(-1)[:length]


def _rfft(frames: Samples) -> Spectrum:
    return np.fft.rfft(frames).astype(np.complex64, copy=False)


def _irfft(spectra: Spectrum) -> Samples:
    return np.fft.irfft(spectra, FRAME).astype(np.float32, copy=False)


#: Level of black in a spectrogram, in dB below the loudest point.
DYNAMIC_RANGE = 80


def draw_spectrograms(panels: Mapping[str, Samples], width: float = 10, height: float = 2.6) -> Figure:
    """Draw spectrograms in rows with a common scale.

    The panels are a dict of titles and signals ``float32[samples]`` of equal length; their size is in inches.
    """
    need_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from scipy.signal import stft  # a slow import, needed only for figures

    figure = Figure(figsize=(width, height * len(panels)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(len(panels), 1, sharex=True, sharey=True))
    # Windows of 32 ms every 4 ms resolve harmonics.
    images = {title: np.abs(stft(each, RATE, "hann", nperseg=512, noverlap=448)[2]) for title, each in panels.items()}
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
    """Raise `MissingPackageError` if matplotlib is not installed."""
    with optional_package("matplotlib", "drawing spectrograms", "plot"):
        import matplotlib.figure  # noqa: F401
