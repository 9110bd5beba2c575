"""A packaged denoiser and synthetic signals for it, for use without files or a network connection."""

from __future__ import annotations

from jaxrnn.demo.audio import RATE, analyse, synthesise
from jaxrnn.demo.denoiser import PACKAGED, Denoised, denoise, denoise_at_once, spectra_and_state
from jaxrnn.demo.signals import Mixture, mix, mixture, voiced
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
