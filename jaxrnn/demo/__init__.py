"""A denoiser that comes with the package, and synthetic signals to try it on: no file and no network are needed."""

from __future__ import annotations

from jaxrnn.demo.denoiser import PACKAGED, Denoised, denoise, denoise_at_once, spectra_and_state
from jaxrnn.demo.signals import Mixture, mixture
from jaxrnn.demo.spectra import RATE
from jaxrnn.si_sdr import si_sdr

__all__ = [
    "PACKAGED",
    "RATE",
    "Denoised",
    "Mixture",
    "denoise",
    "denoise_at_once",
    "mixture",
    "si_sdr",
    "spectra_and_state",
]


def __dir__() -> list[str]:
    return sorted(__all__)
