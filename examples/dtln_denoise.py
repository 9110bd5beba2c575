"""Denoise a recording with DTLN, two recurrent networks whose state the caller carries, one block at a time.

    python examples/dtln_denoise.py noisy.wav denoised.wav --models ../shared/models

The folder holds ``dtln_1.onnx`` and ``dtln_2.onnx`` of https://github.com/breizhn/DTLN (Westhausen and Meyer,
"Dual-signal transformation LSTM network for real-time noise suppression", Interspeech 2020). The first network masks
a block's magnitude spectrum, the second filters its samples; each hands back the state of its two LSTM layers.
The output lags the input by 384 samples.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import click
import jax
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

import jaxrnn

RATE = 16_000
BLOCK, HOP = 512, 128
MODELS = Path(os.environ.get("JAXRNN_MODELS", Path(__file__).parents[2] / "shared" / "models"))

Samples = NDArray[np.float32]
Step = Callable[[jax.Array, Any], tuple[jax.Array, jax.Array]]


class Network(NamedTuple):
    """One network with its state made explicit.

    Attributes:
        step: one block, compiled: state ``[1, 2, 128, 2]`` and block ``[1, 1, features]`` to the new state and output.
        state: the state before the first block, zeros.
    """

    step: Step
    state: jax.Array


def network(model: jaxrnn.Model) -> Network:
    """Compile a DTLN network: its inputs are a block and the state, its outputs the result and the new state."""
    block, state = model.inputs
    result, updated = model.outputs
    params = model.params

    def step(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        outputs = model.apply(params, {block.name: x, state.name: carry})
        return outputs[updated.name], outputs[result.name]

    def zeros(shape: tuple[int | str, ...] | None) -> jax.Array:
        return jax.numpy.zeros([int(size) for size in shape or ()], np.float32)

    start = zeros(state.shape)
    return Network(jax.jit(step).lower(start, zeros(block.shape)).compile(), start)


def denoise(samples: Samples, model_1: jaxrnn.Model, model_2: jaxrnn.Model, *, progress: bool = False) -> Samples:
    """Denoise a recording of 16 kHz.

    Args:
        samples: ``float32[samples]``, at least 512 of them, full scale 1.
        model_1: the network of magnitudes, ``dtln_1.onnx``.
        model_2: the network of samples, ``dtln_2.onnx``.
        progress: draw a progress bar on stderr.

    Returns:
        ``float32[samples]``, 384 samples late; what is left after the last whole block is zero.
    """
    if samples.ndim != 1 or len(samples) < BLOCK:
        raise jaxrnn.InputError(f"expected at least {BLOCK} samples of one channel, not an array {samples.shape}")
    return run(samples, network(model_1), network(model_2), progress=progress)


def run(samples: Samples, net_1: Network, net_2: Network, *, progress: bool = False) -> Samples:
    """`denoise` with networks that are compiled already."""
    blocks: Iterable[int] = range((len(samples) - (BLOCK - HOP)) // HOP)
    if progress:
        blocks = track(blocks, "denoising", console=Console(stderr=True))
    given, made = np.zeros(BLOCK), np.zeros(BLOCK)
    state_1, state_2 = net_1.state, net_2.state
    result = np.zeros(len(samples), np.float32)
    for index in blocks:
        here = slice(index * HOP, (index + 1) * HOP)
        given = np.concatenate([given[HOP:], samples[here]])
        spectrum = np.fft.rfft(given)
        state_1, mask = net_1.step(state_1, np.abs(spectrum).astype(np.float32)[None, None])
        masked = np.fft.irfft(spectrum * np.asarray(mask)[0, 0]).astype(np.float32)
        state_2, block = net_2.step(state_2, masked[None, None])
        made = np.concatenate([made[HOP:], np.zeros(HOP)]) + np.asarray(block)[0, 0]
        result[here] = made[:HOP]
    return result


def load_networks(folder: Path) -> tuple[jaxrnn.Model, jaxrnn.Model]:
    """Read ``dtln_1.onnx`` and ``dtln_2.onnx`` from a folder."""
    missing = [name for name in ("dtln_1.onnx", "dtln_2.onnx") if not (folder / name).is_file()]
    if missing:
        raise jaxrnn.InputError(
            f"no {' and no '.join(missing)} in {folder}: pass --models or set JAXRNN_MODELS to the folder that has them"
        )
    return jaxrnn.load(folder / "dtln_1.onnx"), jaxrnn.load(folder / "dtln_2.onnx")


def read_recording(path: Path) -> Samples:
    """Read a mono recording of 16 kHz as ``float32[samples]``."""
    soundfile = _soundfile()
    if not path.is_file():
        raise jaxrnn.InputError(f"there is no file {path}")
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise jaxrnn.InputError(f"{path} cannot be read: {error.error_string}") from error
    channels = samples.shape[1]
    if rate != RATE or channels != 1:
        raise jaxrnn.InputError(
            f"{path} has {channels} channel(s) at {rate} Hz, but one at {RATE} Hz is expected: "
            f"convert it, for instance with 'sox {path.name} -r {RATE} -c 1 converted.wav'"
        )
    return samples[:, 0]


def _soundfile() -> Any:
    try:
        import soundfile
    except ImportError as error:
        raise jaxrnn.MissingPackageError(
            "reading and writing recordings needs soundfile: pip install 'jaxrnn[audio]'"
        ) from error
    return soundfile


@click.command()
@click.argument("noisy", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--models", default=MODELS, show_default=True, type=click.Path(path_type=Path), help="Folder of the networks."
)
def main(noisy: Path, out: Path, models: Path) -> None:
    """Denoise the recording NOISY (WAV, mono, 16 kHz) and write OUT."""
    # A step is shorter than handing it to another thread.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    try:
        samples = read_recording(noisy)
        net_1, net_2 = map(network, load_networks(models))
        if len(samples) < BLOCK:
            raise jaxrnn.InputError(f"{noisy} has {len(samples)} samples; at least {BLOCK} are needed")
        began = time.perf_counter()
        result = run(samples, net_1, net_2, progress=True)
        took = time.perf_counter() - began
        _soundfile().write(out, np.clip(result, -1, 1), RATE)
    except (jaxrnn.JaxrnnError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(
        f"{len(samples) / RATE:.1f} s denoised in {took:.2f} s: {len(samples) / RATE / took:.0f} times real time"
    )
    click.echo(f"wrote {out}")


if __name__ == "__main__":
    main()
