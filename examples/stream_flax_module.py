"""Stream a Flax NNX module that was written for whole recordings, and differentiate through the stream.

    python examples/stream_flax_module.py

The module has a causal convolution, a convolution with two frames of look-ahead, and a GRU, and no code for streaming.
`jaxrnn.stream` takes a function that merges the module with its parameters and calls the module. Weights and frames are
drawn from a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import jax
import jax.numpy as jnp
from flax import nnx

import jaxrnn

FEATURES, CHANNELS, HIDDEN = 20, 24, 16
#: Largest relative difference between the two runs: the order of sums differs, so there are up to a few hundred
#: roundings of float32 (1.2e-7).
TOLERANCE = 1e-5


class Detector(nnx.Module):
    """A speech detector per frame: ``float32[batch, time, FEATURES]`` to ``float32[batch, time, 1]``."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.causal = nnx.Conv(FEATURES, CHANNELS, kernel_size=3, padding="CAUSAL", rngs=rngs)
        self.centred = nnx.Conv(CHANNELS, CHANNELS, kernel_size=5, padding="SAME", rngs=rngs)
        self.recurrent = nnx.RNN(nnx.GRUCell(CHANNELS, HIDDEN, rngs=rngs))
        self.output = nnx.Linear(HIDDEN, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the module to whole recordings."""
        # The scopes name the entries of the streaming state, and the place in an error message.
        with jax.named_scope("causal"):
            x = nnx.relu(self.causal(x))
        with jax.named_scope("centred"):
            x = nnx.relu(self.centred(x))
        with jax.named_scope("recurrent"):
            x = self.recurrent(x)
        return self.output(x)


def functional(module: nnx.Module) -> tuple[Callable[[Any, jax.Array], jax.Array], Any]:
    """Return the module as a function of parameters and one recording, and the parameters.

    Other variables (the counter of a random number generator) stay in the function, which works on copies.
    """
    graph, params, rest = nnx.split(module, nnx.Param, ...)

    def apply(params: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(graph, params, rest, copy=True)(x[None])[0]

    return apply, params


def largest_difference(one: Any, other: Any) -> float:
    """Return the largest difference between two trees of arrays, relative to the largest number of the second tree."""
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    largest = max(float(jnp.max(jnp.abs(b))) for _, b in pairs)
    return max(float(jnp.max(jnp.abs(a - b))) for a, b in pairs) / largest


@click.command()
@click.option("--frames", default=101, show_default=True, type=click.IntRange(1), help="Frames of the recording.")
@click.option("--pulse", default=4, show_default=True, type=click.IntRange(1), help="Frames in each step.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of weights and frames.")
def main(frames: int, pulse: int, seed: int) -> None:
    """Stream a Flax NNX module, and compare outputs and gradients with the module on the whole recording."""
    apply, params = functional(Detector(rngs=nnx.Rngs(seed)))
    recording = jax.random.normal(jax.random.key(seed), (frames, FEATURES))
    streamed = jaxrnn.stream(apply, recording, axes=0, params=params, pulse=pulse)
    click.echo(streamed.table())

    def loss(run: Callable[..., jax.Array], params: Any) -> jax.Array:
        return jnp.mean((run(params, recording) - 1) ** 2)

    gradient = jax.jit(jax.grad(loss, argnums=1), static_argnums=0)
    differences = {
        "outputs": largest_difference(jax.jit(streamed.run)(params, recording), jax.jit(apply)(params, recording)),
        "gradients": largest_difference(gradient(streamed.run, params), gradient(apply, params)),
    }
    click.echo(f"\n{frames} frames in pulses of {pulse}, against the whole recording at once:")
    for name, difference in differences.items():
        click.echo(f"  largest difference of {name}: {difference:.1e} of the largest")
        if not difference <= TOLERANCE:
            raise click.ClickException(f"the {name} differ by more than {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
