"""A denoiser that comes with the package, and synthetic signals to try it on: no file and no network are needed."""

from __future__ import annotations

from jaxrnn.demo.denoiser import PACKAGED, Denoised, denoise, denoise_at_once, spectra_and_state
from jaxrnn.demo.signals import Mixture, mix, mixture, voiced
from jaxrnn.demo.spectra import RATE, analyse, synthesise
from jaxrnn.si_sdr import si_sdr

__all__ = [
    "PACKAGED",
    "RATE",
    "Denoised",
    "Mixture",
    "analyse",
    "denoise",
    "denoise_at_once",
    "mix",
    "mixture",
    "si_sdr",
    "spectra_and_state",
    "synthesise",
    "voiced",
]


def __dir__() -> list[str]:
    return sorted(__all__)
