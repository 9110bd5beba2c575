"""Stream a JAX function: features of sound, in blocks of any size, as from a microphone.

    python examples/stream_function.py

The function cuts a recording into overlapping frames, computes spectra, subtracts the running mean, smooths over five
frames and keeps each second frame. It also returns the level of the whole recording, which is known at the end.
`jaxrnn.stream` finds the state. The script runs blocks of random sizes on one state, and compares the outputs with the
function on the whole recording.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxrnn

FRAME, HOP, SMOOTHED = 512, 128, 5
#: Largest difference in decibels: float32 holds levels of up to 100 dB to 1e-5 dB, and running sums add some roundings.
TOLERANCE = 1e-3


def features(samples: jax.Array) -> dict[str, jax.Array]:
    """Return spectra in decibels relative to their running mean, and the level of the whole recording.

    Args:
        samples: ``float32[samples]``; samples after the last whole hop only count for the level.

    Returns:
        ``spectra``, ``float32[frames, FRAME / 2 + 1]``, one per two hops; and ``level``, ``float32[]``.
    """
    hops = samples.shape[0] // HOP
    # A frame is four hops, of which the first three may lie in front of the recording.
    parts = jnp.pad(samples[: hops * HOP].reshape(hops, HOP), ((FRAME // HOP - 1, 0), (0, 0)))
    frames = jnp.concatenate([parts[k : k + hops] for k in range(FRAME // HOP)], axis=1)
    spectra = decibels(jnp.abs(jnp.fft.rfft(frames * np.hanning(FRAME).astype(np.float32))) ** 2)
    heard = jnp.arange(1, hops + 1, dtype=jnp.float32)[:, None]
    spectra = spectra - jnp.cumsum(spectra, axis=0) / heard
    # Centred, with look-ahead; fixed pads, because "SAME" with a stride depends on the length.
    around = (SMOOTHED // 2, SMOOTHED // 2)
    smooth = lax.reduce_window(spectra, 0.0, lax.add, (SMOOTHED, 1), (2, 1), (around, (0, 0))) / SMOOTHED
    return {"spectra": smooth, "level": decibels(jnp.mean(samples**2))}


def decibels(power: jax.Array) -> jax.Array:
    """Return ten times the logarithm to base ten, of at least 1e-10."""
    return 10 * jnp.log10(jnp.maximum(power, 1e-10))


def blocks(samples: np.ndarray, step: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Divide a recording into blocks of 1, 2, 3 or 4 steps; the last block has the rest."""
    sizes = itertools.accumulate(step * size for size in rng.integers(1, 5, len(samples) // step + 1))
    yield from np.split(samples, [size for size in sizes if size < len(samples)])


def live(streamed: jaxrnn.Streamed, arriving: Iterator[np.ndarray]) -> dict[str, Any]:
    """Return the outputs for blocks; each block except the last is a multiple of the smallest pulse."""
    # One compiled step per block size; all sizes share one state.
    compiled = functools.cache(lambda size: jax.jit(streamed.with_pulse(size).step))
    state, outputs, rest = streamed.init(), [], np.zeros(0, np.float32)
    for block in arriving:
        pulse = len(block) // streamed.smallest_pulse * streamed.smallest_pulse
        if pulse:
            output, state = compiled(pulse)(None, state, block[:pulse])
            outputs.append(output["spectra"])
        rest = block[pulse:]
    last, counts = streamed.flush(None, state, rest, len(rest))
    outputs.append(last["spectra"][: counts["spectra"]])
    return {"spectra": jnp.concatenate(outputs)[streamed.delay["spectra"] :], "level": last["level"]}


@click.command()
@click.option("--seconds", default=2.0, show_default=True, type=click.FloatRange(0.001), help="Seconds at 16 kHz.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of samples and block sizes.")
def main(seconds: float, seed: int) -> None:
    """Stream a function of sound and compare it with the function on the whole recording."""
    rng = np.random.default_rng(seed)
    samples = rng.normal(0, 0.1, round(seconds * 16_000)).astype(np.float32)
    streamed = jaxrnn.stream(features, samples, axes=0, pulse=2 * HOP)
    click.echo(streamed.table())
    outputs, offline = live(streamed, blocks(samples, streamed.smallest_pulse, rng)), features(samples)
    click.echo(f"\n{len(samples)} samples in blocks of random sizes, against the whole recording at once:")
    for name, expected in offline.items():
        if outputs[name].shape != expected.shape:
            raise click.ClickException(f"{name} has shape {outputs[name].shape}, not {expected.shape}")
        difference = float(jnp.max(jnp.abs(outputs[name] - expected), initial=0))
        click.echo(f"  {name:<8} {expected.shape!s:<12} largest difference: {difference:.1e} dB")
        if not difference <= TOLERANCE:
            raise click.ClickException(f"{name} differs by more than {TOLERANCE:.0e} dB")


if __name__ == "__main__":
    main()
