"""Train the packaged denoiser on several devices, in JAX's two styles of data parallelism.

    python examples/data_parallel.py --devices 4

All devices have the same parameters, and each device has a part of the batch. With `jax.shard_map`, you write the
program of one device and the sums over devices. With `jax.sharding.NamedSharding`, you place the arrays and the
compiler adds the sums. The script compares the gradients with those of a single device. Without accelerators, CPU cores
act as devices. The signals are drawn from a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jaxrnn
from jaxrnn.demo import PACKAGED, mixture
from jaxrnn.demo.audio import analyse

SECONDS, SNR = 0.5, 0.0
#: The largest difference of gradients, relative to the largest gradient: devices sum the same terms in another order.
TOLERANCE = 1e-5

Params = dict[str, jax.Array]
#: A function of parameters and a batch that returns the loss and the gradients.
Gradient = Callable[[Params, tuple[jax.Array, jax.Array]], tuple[jax.Array, Params]]


def draw(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return magnitudes of noisy and clean signals, each ``float32[count, time, bins]``."""
    pairs = [mixture(rng, SECONDS, SNR) for _ in range(count)]
    noisy, clean = (np.stack([np.abs(analyse(getattr(pair, name))) for pair in pairs]) for name in ("noisy", "clean"))
    return noisy, clean


def loss_of(model: jaxrnn.Model) -> Callable[[Params, tuple[jax.Array, jax.Array]], jax.Array]:
    """Return the mean squared error of the denoised magnitudes."""

    def loss(params: Params, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        noisy, clean = batch
        start = model.init(len(noisy))
        mask = model.apply(params, {"magnitude": noisy, **start})["mask"]
        return jnp.mean((mask * noisy - clean) ** 2)

    return loss


def by_shard_map(loss: Any, mesh: Mesh) -> Gradient:
    """Return a function that each device runs on a part of the batch."""
    whole, part = PartitionSpec(), PartitionSpec("data")

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=(whole, part), out_specs=whole)
    def gradient(params: Params, batch: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Params]:
        return jax.value_and_grad(lambda params: jax.lax.pmean(loss(params, batch), "data"))(params)

    return gradient


def by_named_sharding(loss: Any, mesh: Mesh) -> Gradient:
    """Return a function of whole arrays, which are distributed over devices."""
    whole, part = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    return jax.jit(jax.value_and_grad(loss), in_shardings=(whole, part), out_shardings=whole)


def difference(found: Params, expected: Params) -> float:
    """Return the largest difference of two gradients, relative to the largest gradient."""
    largest = max(float(jnp.max(jnp.abs(value))) for value in expected.values())
    return max(float(np.max(np.abs(np.asarray(found[name]) - expected[name]))) for name in expected) / largest


def train(gradient: Gradient, params: Params, batch: Any, steps: int) -> list[float]:
    """Return the losses of a few steps."""
    optimizer = optax.adam(3e-3)
    state, losses = optimizer.init(params), []
    for _ in range(steps):
        loss, gradients = gradient(params, batch)
        updates, state = optimizer.update(gradients, state)
        params = optax.apply_updates(params, updates)
        losses.append(float(loss))
    return losses


@click.command(help=__doc__)
@click.option("--devices", default=4, show_default=True, type=click.IntRange(min=1), help="how many to use")
@click.option("--batch", default=2, show_default=True, type=click.IntRange(min=1), help="signals for each device")
@click.option("--steps", default=5, show_default=True, type=click.IntRange(min=2), help="updates")
def main(devices: int, batch: int, steps: int) -> None:
    """As above."""
    jax.config.update("jax_num_cpu_devices", devices)  # has no effect if there are accelerators
    if len(jax.devices()) < devices:
        raise click.ClickException(f"there are {len(jax.devices())} device(s); --devices asks for {devices}")
    # With axes of type Auto, the compiler places intermediate results.
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    model = jaxrnn.load(PACKAGED)
    loss, data = loss_of(model), draw(np.random.default_rng(0), devices * batch)
    _, expected = jax.jit(jax.value_and_grad(loss))(model.params, data)
    for name, make in {"shard_map": by_shard_map, "NamedSharding": by_named_sharding}.items():
        gradient = make(loss, mesh)
        apart = difference(gradient(model.params, data)[1], expected)
        print(f"{name}, largest difference of gradients from one device: {apart:.1e} of the largest gradient")
        if apart > TOLERANCE:
            raise click.ClickException(f"the gradients of {name} differ")
        losses = train(gradient, model.params, data, steps)
        print(f"{name}: loss {losses[0]:.5f} -> {losses[-1]:.5f} in {steps} steps on {devices} device(s)")


if __name__ == "__main__":
    main()
