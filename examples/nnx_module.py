"""Train a voice detector on top of the packaged denoiser, as one Flax NNX module.

    python examples/nnx_module.py --out denoiser_tuned.onnx

The mask of the denoiser shows the bins with voice, and a linear layer turns the mask into a decision. Both are trained
together, with the GRU of the denoiser frozen by name. The detector then runs live, one frame at a time, with the state
in the module, and the denoiser is written back to an ONNX file. The signals are drawn from a seed.
"""

from __future__ import annotations

from pathlib import Path

import click
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxrnn
import jaxrnn.nnx
from jaxrnn.demo import PACKAGED, mixture
from jaxrnn.demo.audio import BINS, analyse

SECONDS, SNR = 2.0, 0.0
#: A frame is voice if it has more than this part of the clean signal's mean energy.
THRESHOLD = 0.1
#: Largest difference between frames and the whole recording, for logits up to a few tens: the order of sums differs.
TOLERANCE = 1e-3


class Detector(nnx.Module):
    """A detector: magnitudes ``float32[batch, time, BINS]`` to logits ``float32[batch, time]``, positive for voice."""

    def __init__(self, denoiser: jaxrnn.Model, *, rngs: nnx.Rngs):
        self.denoiser = jaxrnn.nnx.Module(denoiser)
        self.output = nnx.Linear(BINS, 1, rngs=rngs)

    def __call__(self, magnitude: jax.Array) -> jax.Array:
        """Run the next frames of all streams and advance the state in the module."""
        mask = self.denoiser.step(magnitude=magnitude)["mask"]
        return self.output(mask)[..., 0]


def draw(rng: np.random.Generator, count: int) -> tuple[jax.Array, jax.Array]:
    """Return noisy magnitudes ``float32[count, time, BINS]`` and voice labels ``bool[count, time]``."""
    pairs = [mixture(rng, SECONDS, SNR) for _ in range(count)]
    energy = np.stack([np.sum(np.abs(analyse(pair.clean)) ** 2, -1) for pair in pairs])
    magnitude = np.stack([np.abs(analyse(pair.noisy)) for pair in pairs])
    return jnp.asarray(magnitude), jnp.asarray(energy > THRESHOLD * energy.mean(1, keepdims=True))


def loss_of(detector: Detector, magnitude: jax.Array, voice: jax.Array) -> jax.Array:
    """Return the mean binary cross-entropy over all frames, from a new state."""
    detector.denoiser.reset(len(magnitude))
    return jnp.mean(optax.sigmoid_binary_cross_entropy(detector(magnitude), voice.astype(jnp.float32)))


def train(detector: Detector, rng: np.random.Generator, frozen: str, steps: int, batch: int) -> list[float]:
    """Train the parameters that are not frozen; return the loss of each step."""
    trained = nnx.All(nnx.Param, nnx.Not(jaxrnn.nnx.named(frozen, of=detector)))
    optimizer = nnx.Optimizer(detector, optax.adam(1e-2), wrt=trained)

    @nnx.jit
    def update(detector: Detector, optimizer: nnx.Optimizer, magnitude: jax.Array, voice: jax.Array) -> jax.Array:
        value, gradients = nnx.value_and_grad(loss_of, argnums=nnx.DiffState(0, trained))(detector, magnitude, voice)
        optimizer.update(detector, gradients)
        return value

    return [float(update(detector, optimizer, *draw(rng, batch))) for _ in range(steps)]


@nnx.jit
def listen(detector: Detector, magnitude: jax.Array) -> jax.Array:
    """Run the next frames in a compiled call."""
    return detector(magnitude)


@click.command()
@click.option("--steps", default=40, show_default=True, type=click.IntRange(1), help="Updates.")
@click.option("--batch", default=8, show_default=True, type=click.IntRange(1), help="Signals in each update.")
@click.option("--freeze", default="gru_*", show_default=True, help="Parameters of the denoiser that stay as they are.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of weights and signals.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="ONNX file for the trained denoiser.")
def main(steps: int, batch: int, freeze: str, seed: int, out: Path | None) -> None:
    """Train a voice detector on top of the packaged denoiser, run it live, and write the denoiser back."""
    weights_seed, signals_seed = np.random.SeedSequence(seed).generate_state(2)
    rng = np.random.default_rng(signals_seed)
    model = jaxrnn.load(PACKAGED)
    detector = Detector(model, rngs=nnx.Rngs(int(weights_seed)))
    click.echo(detector.denoiser)
    heldout, voice = draw(rng, 16)
    losses = [float(loss_of(detector, heldout, voice))]
    try:
        train(detector, rng, freeze, steps, batch)
    except jaxrnn.InputError as error:
        raise click.ClickException(str(error)) from error
    losses.append(float(loss_of(detector, heldout, voice)))
    changed = [name for name, value in detector.denoiser.params.items() if jnp.any(value != model.params[name])]
    click.echo(f"held-out loss {losses[0]:.3f} -> {losses[1]:.3f}; changed in the denoiser: {', '.join(changed)}")

    detector.denoiser.reset(len(heldout))
    at_once = listen(detector, heldout)
    right = float(jnp.mean((at_once > 0) == voice))
    detector.denoiser.reset()
    by_frames = jnp.concatenate([listen(detector, heldout[:1, [index]]) for index in range(heldout.shape[1])], axis=1)
    difference = float(jnp.max(jnp.abs(by_frames - at_once[:1])))
    share = float(jnp.mean(voice))
    click.echo(f"right in {100 * right:.1f} % of {at_once.size} frames, of which {100 * share:.1f} % are voice")
    click.echo(f"{by_frames.size} frames one by one, largest difference of logits: {difference:.1e}")
    if not difference <= TOLERANCE:
        raise click.ClickException(f"the run by frames differs by more than {TOLERANCE:.0e}")
    if out is not None:
        jaxrnn.export_onnx(model, detector.denoiser.params, out)
        click.echo(f"wrote {out} ({out.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
