"""The packaged network as a live denoiser: a step for each frame, the state carried from step to step."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxrnn._files.messages import brief
from jaxrnn.demo.spectra import BINS, DELAY, HOP, RATE, OverlapAdd, Samples, Spectrum, analyse, hops, synthesise
from jaxrnn.model import Model
from jaxrnn.model.loading import load
from jaxrnn.runtime.runner import Runner

PACKAGED = Path(__file__).parent / "denoiser.onnx"
"""The file of the network, which ``examples/train_demo_denoiser.py`` has trained."""


@brief
class Denoised(NamedTuple):
    """What a run over a recording gives.

    Attributes:
        samples: ``float32[samples]``, in time with the input.
        seconds: what each frame took from samples to samples, ``float64[frames]``.
    """

    samples: Samples
    seconds: NDArray[np.float64]

    @property
    def times_real_time(self) -> float:
        """Length of the recording over the time that its frames took."""
        return len(self.seconds) * HOP / RATE / float(self.seconds.sum())


def denoise(
    samples: Samples, model: Model | None = None, *, watch: Callable[[int], object] = lambda count: None
) -> Denoised:
    """Denoise a recording frame by frame, as it would be done live.

    Args:
        samples: ``float32[samples]``, 16 kHz, full scale 1.
        model: a network of the packaged one's inputs and outputs; the packaged one by default.
        watch: called after each frame with the number of frames so far.
    """
    run, stream = Runner(load(PACKAGED) if model is None else model), OverlapAdd()
    run({"magnitude": np.zeros((1, 1, BINS), np.float32)})
    run.reset()  # compiled, and as it was
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
    """A recording as spectra ``complex64[frames, BINS]`` and as the network's inputs, with a zero state."""
    spectra = analyse(samples)
    start = np.zeros((1, 1, model.params["gru_R"].shape[-1]), np.float32)
    return spectra, {"magnitude": np.abs(spectra)[None], "h": start}


def denoise_at_once(samples: Samples, model: Model) -> Samples:
    """Denoise a recording with one call of the network over all frames: what `denoise` gives, computed otherwise."""
    spectra, inputs = spectra_and_state(samples, model)
    return synthesise(spectra * np.asarray(model(inputs)["mask"])[0], len(samples))
