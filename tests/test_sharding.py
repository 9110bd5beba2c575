"""Data-parallel training by `jax.shard_map` and `NamedSharding`: gradients of four devices against those of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from onnx import helper
from quick_compiling import QUICK_COMPILER
from small_models import graph_of, layers_model, make_model

import jaxrnn
from jaxrnn.demo import PACKAGED

SCRIPT = Path(__file__).parent / "test_sharding.py"


@pytest.mark.nightly
def test_gradients_of_four_devices_are_those_of_one():
    flags = f"{os.environ.get('XLA_FLAGS', '')} {QUICK_COMPILER} --xla_force_host_platform_device_count=4"
    compiled = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": flags}
    ran = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, **compiled},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    differences = json.loads(ran.stdout)
    assert {name.split(", ")[0] for name in differences} >= {"apply", "step", "scan", "stream.step", "stream.flush"}
    # Devices sum the same float32 terms in another order.
    assert {name: value for name, value in differences.items() if not value < 1e-6} == {}


DEVICES, STREAMS, FRAMES = 4, 4, 4
RNG = np.random.default_rng(0)


def mesh(**sizes):
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def mean_of(tree):
    """Of the sine of all numbers with a gradient."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return sum(jnp.mean(jnp.sin(leaf)) for leaf in leaves)


def data(*shape):
    return jnp.asarray(RNG.standard_normal((STREAMS, *shape)), jnp.float32)


def branching():
    """``If`` by data, whose branches read a weight: a sum over devices inside of a branch would never end."""

    def branch(name, operator, weight):
        return graph_of([helper.make_node(operator, ["x", weight], [name])], {}, {name: None}, name=name)

    branches = {"then_branch": branch("a", "MatMul", "W"), "else_branch": branch("b", "Mul", "V")}
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], **branches),
    ]
    weights = {"W": RNG.standard_normal((3, 3)), "V": RNG.standard_normal(3), "zero": np.zeros(())}
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    return jaxrnn.load(make_model(graph_of(nodes, {"x": [1, 3]}, {"y": [1, 3]}, weights, "branching")))


def cases():
    """By name, a loss of parameters and a batch; both."""
    denoiser, layers, either = jaxrnn.load(PACKAGED), jaxrnn.load(layers_model()), branching()
    streamed = layers.stream(symbol="T", pulse=2)

    def denoised(method):
        def loss(params, frames):
            state = denoiser.init(len(frames))
            if method == "step":
                return mean_of(denoiser.step(params, state, {"magnitude": frames[:, :1]}))
            if method == "scan":
                return mean_of(denoiser.scan(params, state, {"magnitude": jnp.moveaxis(frames, 1, 0)[:, :, None]}))
            return mean_of(denoiser.apply(params, {"magnitude": frames, **state}))

        return loss, denoiser.params, data(FRAMES, 129)

    def streams(method):
        def loss(params, frames):
            state = streamed.init(len(frames))
            if method == "flush":
                _, state = streamed.step(params, state, {"x": frames[:, :2]})
                return mean_of(streamed.flush(params, state, {"x": frames[:, 2:4]}, 1).outputs)
            size = 2 if method == "step" else 4
            return mean_of(getattr(streamed, method)(params, state, {"x": frames[:, :size]}))

        return loss, layers.params, data(FRAMES, 1, 3)

    def branched(params, frames):
        return mean_of(jnp.stack([either.apply(params, {"x": frame})["y"] for frame in frames]))

    for method in ("apply", "step", "scan"):
        yield method, *denoised(method)
    for method in ("step", "scan", "flush"):
        yield f"stream.{method}", *streams(method)
    yield "a branch by data", branched, either.params, data(1, 3)


def by_shard_map(loss, gradient, params, batch):
    """Training: two updates, with gradients of a mean over devices."""

    def part(params, batch):
        return jax.grad(lambda params: lax.pmean(loss(params, batch), "data"))(params)

    parallel = jax.shard_map(part, mesh=mesh(data=DEVICES), in_specs=(P(), P("data")), out_specs=P())
    first, expected = jax.jit(parallel), gradient(params, batch)
    params = jax.tree.map(lambda leaf, slope: leaf - 0.1 * slope, params, first(params, batch))
    return (first(params, batch), expected), (gradient(params, batch), expected)


def by_gradient_of_shard_map(loss, gradient, params, batch):
    """The gradient is taken outside, and nothing varies over another axis of the mesh."""
    parallel = jax.shard_map(
        lambda params, batch: lax.pmean(loss(params, batch), "data"),
        mesh=mesh(data=2, other=2),
        in_specs=(P(), P("data")),
        out_specs=P(),
    )
    return jax.jit(jax.grad(parallel))(params, batch), gradient(params, batch)


def by_replicas(loss, gradient, params, batch):
    """Every device has parameters of its own."""
    scales = jnp.linspace(0.5, 1.5, DEVICES)
    own = jax.tree.map(lambda leaf: leaf * scales.reshape(-1, *[1] * leaf.ndim), params)

    def part(params, batch):
        return jax.tree.map(lambda leaf: leaf[None], jax.grad(loss)(jax.tree.map(lambda leaf: leaf[0], params), batch))

    parallel = jax.shard_map(part, mesh=mesh(data=DEVICES), in_specs=P("data"), out_specs=P("data"))
    parts = jnp.split(batch, DEVICES)
    expected = [gradient(jax.tree.map(lambda leaf, at=at: leaf[at], own), part) for at, part in enumerate(parts)]
    return jax.jit(parallel)(own, batch), jax.tree.map(lambda *leaves: jnp.stack(leaves), *expected)


def by_named_sharding(loss, gradient, params, batch):
    """Whole arrays that lie on many devices."""
    where = mesh(data=DEVICES)
    shardings = NamedSharding(where, P()), NamedSharding(where, P("data"))
    return jax.jit(jax.grad(loss), in_shardings=shardings)(params, batch), gradient(params, batch)


#: Ways that are tried besides `by_shard_map`.
WAYS = {
    "apply": (by_gradient_of_shard_map,),
    "stream.step": (by_replicas,),
    "stream.flush": (by_named_sharding,),
    "a branch by data": (by_gradient_of_shard_map,),
}


def difference(found, expected):
    largest = max(float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(expected))
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs) / largest


def main():
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_disable_most_optimizations", True)
    assert len(jax.devices()) == DEVICES
    differences = {}
    for name, loss, params, batch in cases():
        gradient = jax.jit(jax.grad(loss))
        for way in (by_shard_map, *WAYS.get(name, ())):
            differences[f"{name}, {way.__name__}"] = difference(*way(loss, gradient, params, batch))
    json.dump(differences, sys.stdout)


if __name__ == "__main__":
    main()
