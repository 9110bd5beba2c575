"""Stream a plain JAX function: features of sound, in blocks of any size, as they come from a microphone.

    python examples/stream_function.py

The function cuts a whole recording into overlapping frames, takes their spectra, removes the mean of everything heard
so far, smooths over five frames and keeps every second one; beside them it gives the level of the whole recording,
which is known at the end. `jaxrnn.stream` finds what has to be remembered for it. Then blocks of random sizes run
through it on one state, and everything is compared with the function on the whole recording.
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
    """Spectra in decibels over their running mean, and the level of the whole recording.

    Args:
        samples: ``float32[samples]``; what is left after the last whole hop counts for the level alone.

    Returns:
        ``spectra``, ``float32[frames, FRAME / 2 + 1]``, one for two hops; and ``level``, ``float32[]``.
    """
    hops = samples.shape[0] // HOP
    # A frame is four hops, of which the first three may lie in front of the recording.
    parts = jnp.pad(samples[: hops * HOP].reshape(hops, HOP), ((FRAME // HOP - 1, 0), (0, 0)))
    frames = jnp.concatenate([parts[k : k + hops] for k in range(FRAME // HOP)], axis=1)
    spectra = decibels(jnp.abs(jnp.fft.rfft(frames * np.hanning(FRAME).astype(np.float32))) ** 2)
    heard = jnp.arange(1, hops + 1, dtype=jnp.float32)[:, None]
    spectra = spectra - jnp.cumsum(spectra, axis=0) / heard
    # Centred, so that it looks ahead; fixed pads, for those of "SAME" depend on the length where there is a stride.
    around = (SMOOTHED // 2, SMOOTHED // 2)
    smooth = lax.reduce_window(spectra, 0.0, lax.add, (SMOOTHED, 1), (2, 1), (around, (0, 0))) / SMOOTHED
    return {"spectra": smooth, "level": decibels(jnp.mean(samples**2))}


def decibels(power: jax.Array) -> jax.Array:
    """Ten times the logarithm to base ten, of 1e-10 at least."""
    return 10 * jnp.log10(jnp.maximum(power, 1e-10))


def blocks(samples: np.ndarray, step: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """A recording in blocks of 1, 2, 3 or 4 steps, the last one of what is left."""
    sizes = itertools.accumulate(step * size for size in rng.integers(1, 5, len(samples) // step + 1))
    yield from np.split(samples, [size for size in sizes if size < len(samples)])


def live(streamed: jaxrnn.Streamed, arriving: Iterator[np.ndarray]) -> dict[str, Any]:
    """The outputs for blocks as they come; but for the last, each is a multiple of the smallest pulse."""
    # One compiled step for every size that comes; the state is the same for all.
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
