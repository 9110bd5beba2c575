"""Denoise a recording with DTLN, two recurrent networks with explicit state, in two calls over the whole recording.

    python examples/dtln_denoise.py noisy.wav denoised.wav --models ../shared/models

The folder contains ``dtln_1.onnx`` and ``dtln_2.onnx`` of https://github.com/breizhn/DTLN (Westhausen and Meyer,
"Dual-signal transformation LSTM network for real-time noise suppression", Interspeech 2020). The first network masks
a block's magnitude spectrum, the second filters its samples; each carries the state of two LSTM layers from block to
block. The first network does not depend on the second, so ``model.scan`` runs each over all blocks in one call.
The output lags the input by 384 samples.
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

BLOCK, HOP = 512, 128


def denoise(samples: Samples, model_1: jaxrnn.Model, model_2: jaxrnn.Model) -> Samples:
    """Denoise a recording of 16 kHz.

    Args:
        samples: ``float32[samples]``, at least 512, full scale 1.
        model_1: the network for magnitudes, ``dtln_1.onnx``.
        model_2: the network for samples, ``dtln_2.onnx``.

    Returns:
        ``float32[samples]``, delayed by 384 samples; zero after the last whole block.
    """
    if samples.ndim != 1 or len(samples) < BLOCK:
        raise jaxrnn.InputError(f"expected at least {BLOCK} samples of one channel, not an array {samples.shape}")
    spectra = spectra_of(samples)
    mask = over_blocks(model_1, np.abs(spectra))
    filtered = over_blocks(model_2, np.fft.irfft(spectra * mask))
    # When the last samples of a block arrive, its first samples are complete and can leave.
    result = overlap_add(filtered.astype(np.float64), HOP, len(samples))
    result[len(spectra) * HOP :] = 0
    return result.astype(np.float32)


def spectra_of(samples: Samples) -> np.ndarray:
    """Return spectra ``complex128[blocks, 257]``; the first block is silence and the first 128 samples."""
    padded = np.concatenate([np.zeros(BLOCK - HOP), samples])
    return np.fft.rfft(blocks_of(padded, BLOCK, HOP)[: (len(samples) - (BLOCK - HOP)) // HOP])


def over_blocks(model: jaxrnn.Model, features: np.ndarray) -> np.ndarray:
    """Run a network over ``[blocks, features]`` from a new state, and return ``float32[blocks, features]``."""
    (block,), (result,) = model.spec.inputs, model.spec.outputs
    outputs = scanner(model)({block.name: features.astype(np.float32)[:, None, None]})
    return outputs[result.name][:, 0, 0]


def load_networks(folder: Path) -> tuple[jaxrnn.Model, jaxrnn.Model]:
    """Read ``dtln_1.onnx`` and ``dtln_2.onnx`` from a folder."""
    model_1, model_2 = load_model(folder, "dtln_1.onnx", "dtln_2.onnx")
    return model_1, model_2


@click.command()
@click.argument("noisy", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--models", default=MODELS, show_default=True, type=click.Path(path_type=Path), help="Folder of the networks."
)
def main(noisy: Path, out: Path, models: Path) -> None:
    """Denoise the recording NOISY (WAV, mono, 16 kHz) and write OUT."""
    try:
        samples = read_recording(noisy, at_least=BLOCK)
        networks = load_networks(models)
        began = time.perf_counter()
        with Console(stderr=True).status("denoising"):
            result = denoise(samples, *networks)
        took = time.perf_counter() - began
        write_recording(out, result)
    except (jaxrnn.JaxrnnError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"denoised {speed_text(len(samples), took)}")
    click.echo(f"wrote {out}")


if __name__ == "__main__":
    main()
