"""Functions of signals: scans, convolutions, filters, changes of rate, and SI-SDR.

Functions of time also take symbolic lengths, so that `stream` and ``jax.export`` can trace the functions.
"""

from __future__ import annotations

from jaxrnn.signal.distortion import si_sdr
from jaxrnn.signal.filters import convolve, correlate, fftconvolve, interp, lfilter, sosfilt
from jaxrnn.signal.scans import associative_scan

__all__ = [
    "associative_scan",
    "convolve",
    "correlate",
    "fftconvolve",
    "interp",
    "lfilter",
    "si_sdr",
    "sosfilt",
]
__dir__ = __all__.copy
