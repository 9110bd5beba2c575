"""Short-time spectra of 16 kHz audio, frame by frame or all at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.signal import get_window

RATE = 16_000
"""Samples a second of the signals and of what the network takes."""
#: Samples in a frame (16 ms) and between the starts of two frames (8 ms).
FRAME = 256
HOP = FRAME // 2
#: Frequency bins of a frame, 0 to 8 kHz.
BINS = FRAME // 2 + 1
#: Samples by which frame-by-frame output lags its input.
DELAY = FRAME - HOP
#: Square root of a periodic Hann window: applied before and after, its overlapping squares add up to one.
WINDOW: NDArray[np.float32] = np.sqrt(get_window("hann", FRAME)).astype(np.float32)

Samples = NDArray[np.float32]
Spectrum = NDArray[np.complex64]


class OverlapAdd:
    """Analysis and synthesis of one live stream, one hop of samples a call.

    ``synthesise(analyse(hop))`` gives the samples of the hop before: the output lags the input by `DELAY` samples,
    and the first hop out is zero where the frame's first half has no input yet.
    """

    def __init__(self):
        self._input = np.zeros(FRAME, np.float32)
        self._output = np.zeros(FRAME, np.float32)

    def analyse(self, hop: Samples) -> Spectrum:
        """The spectrum ``complex64[BINS]`` of the last `FRAME` samples, of which ``hop`` (``float32[HOP]``) is new."""
        self._input[:-HOP] = self._input[HOP:]
        self._input[-HOP:] = hop
        return _rfft(self._input * WINDOW)

    def synthesise(self, spectrum: Spectrum) -> Samples:
        """The next ``float32[HOP]`` samples out, of the spectrum ``complex64[BINS]``."""
        self._output += _irfft(spectrum) * WINDOW
        ready = self._output[:HOP].copy()
        self._output[:-HOP] = self._output[HOP:]
        self._output[-HOP:] = 0
        return ready


def hops(samples: Samples) -> Samples:
    """Cut ``float32[samples]`` into ``float32[frames, HOP]``, with the zeros at the end that flush the delay."""
    count = -(-len(samples) // HOP) + DELAY // HOP
    padded = np.zeros(count * HOP, np.float32)
    padded[: len(samples)] = samples
    return padded.reshape(count, HOP)


def analyse(samples: Samples) -> Spectrum:
    """All frames of ``float32[samples]`` at once: ``complex64[frames, BINS]``, as `OverlapAdd` gives them."""
    new = hops(samples)
    before = np.concatenate([np.zeros((1, HOP), np.float32), new[:-1]])
    return _rfft(np.concatenate([before, new], axis=1) * WINDOW)


def synthesise(spectra: Spectrum, length: int) -> Samples:
    """The inverse of `analyse`: ``complex64[frames, BINS]`` to ``float32[length]``, the delay removed."""
    frames = _irfft(spectra) * WINDOW
    return np.add(frames[:-1, HOP:], frames[1:, :HOP], dtype=np.float32).reshape(-1)[:length]


def _rfft(frames: Samples) -> Spectrum:
    return np.fft.rfft(frames).astype(np.complex64, copy=False)


def _irfft(spectra: Spectrum) -> Samples:
    return np.fft.irfft(spectra, FRAME).astype(np.float32, copy=False)
