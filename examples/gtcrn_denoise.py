"""Denoise a recording with GTCRN, a small network with three caches as state, in one call.

    python examples/gtcrn_denoise.py noisy.wav denoised.wav --models ../shared/models

The folder contains ``gtcrn.onnx`` of https://github.com/Xiaobin-Rong/gtcrn (Rong et al., "GTCRN: a speech enhancement
model requiring ultralow computational resources", ICASSP 2024). The network maps the
complex spectrum of a frame to the enhanced spectrum. ``model.scan`` runs it over all frames in one call, and computes
layers without a cache for all frames at once.
"""

from __future__ import annotations

import time
from pathlib import Path

import click
import numpy as np
from recordings import (
    MODELS,
    Samples,
    blocks_of,
    load_model,
    overlap_add,
    read_recording,
    scanner,
    speed_text,
    write_recording,
)
from rich.console import Console

import jaxrnn

FRAME, HOP = 512, 256
WINDOW = np.sqrt(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME))


def denoise(samples: Samples, model: jaxrnn.Model) -> Samples:
    """Denoise a recording of 16 kHz.

    Args:
        samples: ``float32[samples]``, at least 512, full scale 1.
        model: ``gtcrn.onnx``.

    Returns:
        ``float32[samples]``, aligned with the input. The first and last 256 samples fade, because only one frame
        covers them. Samples after the last whole frame are zero.
    """
    if samples.ndim != 1 or len(samples) < FRAME:
        raise jaxrnn.InputError(f"expected at least {FRAME} samples of one channel, not an array {samples.shape}")
    enhanced = scanner(model)({"mix": spectra_of(samples)})["enh"].astype(np.float64)[:, 0, :, 0]
    blocks = np.fft.irfft(enhanced[..., 0] + 1j * enhanced[..., 1]) * WINDOW
    return overlap_add(blocks, HOP, len(samples)).astype(np.float32)


def spectra_of(samples: Samples) -> np.ndarray:
    """Return real and imaginary parts of whole frames, ``float32[frames, 1, 257, 1, 2]``."""
    spectra = np.fft.rfft(blocks_of(samples, FRAME, HOP) * WINDOW)
    return np.stack([spectra.real, spectra.imag], -1).astype(np.float32)[:, None, :, None]


@click.command()
@click.argument("noisy", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--models", default=MODELS, show_default=True, type=click.Path(path_type=Path), help="Folder of the network."
)
def main(noisy: Path, out: Path, models: Path) -> None:
    """Denoise the recording NOISY (WAV, mono, 16 kHz) and write OUT."""
    try:
        samples = read_recording(noisy, at_least=FRAME)
        (model,) = load_model(models, "gtcrn.onnx")
        began = time.perf_counter()
        with Console(stderr=True).status("denoising"):
            result = denoise(samples, model)
        took = time.perf_counter() - began
        write_recording(out, result)
    except (jaxrnn.JaxrnnError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"denoised {speed_text(len(samples), took)}")
    click.echo(f"wrote {out}")


if __name__ == "__main__":
    main()
