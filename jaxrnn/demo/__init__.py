"""A packaged network as a live denoiser, and synthetic signals, for use without files or a network connection."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxrnn._files.messages import short_repr
from jaxrnn.demo.audio import BINS, DELAY, HOP, RATE, OverlapAdd, Samples, Spectrum, analyse, hops, synthesise
from jaxrnn.demo.signals import Mixture, mix, mixture, voiced
from jaxrnn.model import Model
from jaxrnn.model.loading import load
from jaxrnn.runtime.runner import Runner

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
    "spectra_and_state",
    "synthesise",
    "voiced",
]
__dir__ = __all__.copy


PACKAGED = Path(__file__).parent / "denoiser.onnx"
"""Path of the ONNX file, trained by ``examples/train_demo_denoiser.py``."""


@short_repr
class Denoised(NamedTuple):
    """A denoised recording and the time of each frame.

    Attributes:
        samples: ``float32[samples]``, aligned with the input.
        seconds: ``float64[frames]``, the time from input samples to output samples of each frame.
    """

    samples: Samples
    seconds: NDArray[np.float64]

    @property
    def times_real_time(self) -> float:
        """The length of the recording divided by the computing time."""
        return len(self.seconds) * HOP / RATE / float(self.seconds.sum())


def denoise(
    samples: Samples, model: Model | None = None, *, watch: Callable[[int], object] = lambda count: None
) -> Denoised:
    """Denoise a recording frame by frame, as in a live stream.

    Args:
        samples: ``float32[samples]``, 16 kHz, full scale 1.
        model: a network with the inputs and outputs of the packaged network, which is the default.
        watch: called after each frame with the number of frames so far.
    """
    run, stream = Runner(load(PACKAGED) if model is None else model), OverlapAdd()
    run({"magnitude": np.zeros((1, 1, BINS), np.float32)})
    run.reset()  # the first call compiled the step
    output, seconds = [], []
    for hop in hops(samples):
        began = time.perf_counter()
        spectrum = stream.analyse(hop)
        mask = run({"magnitude": np.abs(spectrum)[None, None]})["mask"][0, 0]
        output.append(stream.synthesise(spectrum * mask))
        seconds.append(time.perf_counter() - began)
        watch(len(seconds))
    return Denoised(np.concatenate(output)[DELAY : DELAY + len(samples)], np.array(seconds))


def spectra_and_state(samples: Samples, model: Model) -> tuple[Spectrum, dict[str, NDArray[np.float32]]]:
    """Return the spectra ``complex64[frames, 129]`` of a recording, and the inputs of the network with a zero state."""
    spectra = analyse(samples)
    start = np.zeros((1, 1, model.params["gru_R"].shape[-1]), np.float32)
    return spectra, {"magnitude": np.abs(spectra)[None], "h": start}


def denoise_at_once(samples: Samples, model: Model | None = None) -> Samples:
    """Denoise a recording in a single call of the network over all frames, with the same result as `denoise`."""
    model = load(PACKAGED) if model is None else model
    spectra, inputs = spectra_and_state(samples, model)
    return synthesise(spectra * np.asarray(model(inputs)["mask"])[0], len(samples))
