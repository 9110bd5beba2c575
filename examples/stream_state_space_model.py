"""Train a selective state space model with associative scans over time, and stream it.

    python examples/stream_state_space_model.py

The network has two blocks as in Mamba: a causal convolution and a state space model with input-dependent step size and
matrices, between a norm and a gated residual connection. It learns in seconds to denoise intermittent tones. In
training, `jaxrnn.signal.associative_scan` is JAX's function, over whole recordings in parallel. `jaxrnn.stream` then
runs the network in pulses. All signals are drawn from a seed.

Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023.
"""

from __future__ import annotations

from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxrnn

WIDTH, CHANNELS, STATES, BLOCKS = 12, 16, 4, 2
NOISE = 0.5
#: Largest relative difference between the two runs: frames are combined in a different order, so there are up to a few
#: hundred roundings of float32 (1.2e-7).
TOLERANCE = 1e-5


def affine(first: Any, second: Any) -> Any:
    """Compose two maps ``h -> a * h + b``, each given as (a, b); the composition is associative."""
    return first[0] * second[0], second[0] * first[1] + second[1]


class SelectiveStateSpace(nnx.Module):
    """A diagonal state space model with input-dependent step size, input and output.

    ``h[t] = exp(-step[t] * rate) * h[t - 1] + step[t] * x[t] * into[t]`` and ``y[t] = h[t] . out[t] + skip * x[t]``, of
    ``float32[batch, time, channels]``; h has STATES states per channel.
    """

    def __init__(self, channels: int, *, rngs: nnx.Rngs):
        rates = jnp.arange(1, STATES + 1, dtype=jnp.float32)
        self.log_rates = nnx.Param(jnp.log(jnp.broadcast_to(rates, (channels, STATES))))
        self.skip = nnx.Param(jnp.ones(channels))
        self.step = nnx.Linear(channels, channels, bias_init=nnx.initializers.constant(-2.0), rngs=rngs)
        self.into_and_out = nnx.Linear(channels, 2 * STATES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the module to whole recordings."""
        into, out = jnp.split(self.into_and_out(x), 2, axis=-1)
        step = nnx.softplus(self.step(x))[..., None]
        decay = jnp.exp(-step * jnp.exp(self.log_rates[...]))
        _, h = jaxrnn.signal.associative_scan(affine, (decay, step * x[..., None] * into[..., None, :]), axis=1)
        return jnp.sum(h * out[..., None, :], axis=-1) + self.skip[...] * x


class Block(nnx.Module):
    """A block of Mamba with a residual connection, from and to ``float32[batch, time, WIDTH]``."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
        self.expand = nnx.Linear(WIDTH, 2 * CHANNELS, rngs=rngs)
        self.convolution = nnx.Conv(
            CHANNELS, CHANNELS, kernel_size=4, padding="CAUSAL", feature_group_count=CHANNELS, rngs=rngs
        )
        self.states = SelectiveStateSpace(CHANNELS, rngs=rngs)
        self.contract = nnx.Linear(CHANNELS, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the module to whole recordings."""
        inner, gate = jnp.split(self.expand(self.norm(x)), 2, axis=-1)
        inner = self.states(nnx.silu(self.convolution(inner)))
        return x + self.contract(inner * nnx.silu(gate))


class Denoiser(nnx.Module):
    """A denoiser from and to samples ``float32[batch, time]``."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.embed = nnx.Linear(1, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs=rngs) for _ in range(BLOCKS)])
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
        self.output = nnx.Linear(WIDTH, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the module to whole recordings."""
        y = self.embed(x[..., None])
        # The scopes name the entries of the streaming state, and the place in an error message.
        for index, block in enumerate(self.blocks):
            with jax.named_scope(f"block{index}"):
                y = block(y)
        return self.output(self.norm(y))[..., 0]


def draw(rng: np.random.Generator, count: int, frames: int) -> tuple[jax.Array, jax.Array]:
    """Return intermittent tones with and without noise, each ``float32[count, frames]``."""
    times = np.arange(frames)
    pitch, beat, phase = rng.uniform([[0.1], [0.01], [0]], [[0.6], [0.05], [6]], (count, 3, 1)).transpose(1, 0, 2)
    clean = np.sin(pitch * times + phase) * (np.sin(beat * times + phase) > 0)
    noisy = clean + NOISE * rng.standard_normal(clean.shape)
    return jnp.asarray(noisy, jnp.float32), jnp.asarray(clean, jnp.float32)


@nnx.jit(static_argnums=0)
def create(seed: int) -> tuple[Denoiser, nnx.Optimizer]:
    """Create a denoiser and an optimizer in one compiled call."""
    denoiser = Denoiser(rngs=nnx.Rngs(seed))
    return denoiser, nnx.Optimizer(denoiser, optax.adam(1e-2), wrt=nnx.Param)


@nnx.jit
def update(denoiser: Denoiser, optimizer: nnx.Optimizer, noisy: jax.Array, clean: jax.Array) -> jax.Array:
    """Run one step of training, and return the mean squared error before the step."""
    loss, gradients = nnx.value_and_grad(lambda denoiser: jnp.mean((denoiser(noisy) - clean) ** 2))(denoiser)
    optimizer.update(denoiser, gradients)
    return loss


def live(streamed: jaxrnn.Streamed, samples: jax.Array) -> jax.Array:
    """Return the outputs for samples ``float32[1, time]``, pulse by pulse."""
    step, state, outputs = jax.jit(streamed.step), streamed.init(), []
    whole = samples.shape[1] // streamed.pulse * streamed.pulse
    for start in range(0, whole, streamed.pulse):
        output, state = step(None, state, samples[:, start : start + streamed.pulse])
        outputs.append(output)
    last = streamed.flush(None, state, samples[:, whole:], samples.shape[1] - whole)
    return jnp.concatenate([*outputs, last.outputs[:, : last.counts]], axis=1)[:, streamed.delay :]


@click.command()
@click.option("--steps", default=100, show_default=True, type=click.IntRange(1), help="Updates.")
@click.option("--pulse", default=16, show_default=True, type=click.IntRange(1), help="Samples in each step.")
@click.option("--frames", default=1000, show_default=True, type=click.IntRange(1), help="Samples of the stream.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of weights and signals.")
def main(steps: int, pulse: int, frames: int, seed: int) -> None:
    """Train a selective state space model, stream it, and compare with the model on the whole recording."""
    rng = np.random.default_rng(seed)
    denoiser, optimizer = create(seed)
    losses = [float(update(denoiser, optimizer, *draw(rng, 8, 128))) for _ in range(steps)]
    click.echo(f"mean squared error in training: {losses[0]:.3f} -> {losses[-1]:.3f}")

    noisy, clean = draw(rng, 1, frames)
    streamed = jaxrnn.stream(denoiser, noisy, axes=1, pulse=pulse)
    click.echo(streamed.table())
    pulses, whole = live(streamed, noisy), nnx.jit(Denoiser.__call__)(denoiser, noisy)
    difference = float(jnp.max(jnp.abs(pulses - whole)) / jnp.max(jnp.abs(whole)))
    click.echo(f"\n{frames} samples in pulses of {pulse}, against the whole recording at once:")
    click.echo(f"  largest difference: {difference:.1e} of the largest")
    errors = [float(jnp.mean((signal - clean) ** 2)) for signal in (noisy, pulses)]
    click.echo(f"  mean squared error: {errors[0]:.3f} with noise, {errors[1]:.3f} after the stream")
    if not difference <= TOLERANCE:
        raise click.ClickException(f"the outputs differ by more than {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
