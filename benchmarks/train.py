"""Forward and backward pass of a recurrent layer, beside PyTorch: gradients of the weights and of the input.

jaxrnn gets an ONNX file, and PyTorch a module with the same weights. The gradients are compared before the timing.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrnn
from benchmarks.layers import name_of, onnx_layer, weights
from benchmarks.peers import engine_module, is_installed
from benchmarks.plan import Cases, Plan, timed
from benchmarks.results import Row
from benchmarks.timing import AGREEMENT, Call

TITLE = "forward and backward pass of a layer"
UNIT = "ms"

KINDS = ("LSTM", "GRU")

#: Hidden units, frames and batch.
GRID = tuple(itertools.product((64, 128, 256), (100, 500), (8, 32)))


def cases(plan: Plan) -> Cases:
    """Return a case for each size."""
    grid = [(kind, *size) for kind in KINDS for size in GRID]
    sizes = [(kind, h, 100, 8) for kind in KINDS for h in (64, 128)] if plan.quick else grid
    return {name_of(*size): functools.partial(_rows, plan, *size) for size in sizes}


def example(hidden: int, frames: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a random input and a target output ``float32[frames, batch, hidden]``."""
    rng = np.random.default_rng(1)
    x, wanted = (rng.standard_normal((frames, batch, hidden), np.float32) for _ in range(2))
    return x, wanted


def loss_of(model: jaxrnn.Model) -> Callable[[Any, Any, Any], Any]:
    """Return the mean squared error of a layer as a function of parameters, input and target."""

    def loss(params: Any, x: jax.Array, wanted: jax.Array) -> jax.Array:
        return jnp.mean((model.apply(params, {"X": x})["Y"] - wanted) ** 2)

    return loss


class Here:
    """Loss and gradients by jaxrnn, arrays on the device."""

    def __init__(self, kind: str, x: np.ndarray, wanted: np.ndarray):
        model = jaxrnn.load(onnx_layer(kind, x.shape[-1]))
        self._both = jax.jit(jax.value_and_grad(loss_of(model), (0, 1)))
        self._arguments = jax.device_put((dict(model.params), x, wanted))

    def __call__(self) -> Any:
        """Run one forward and backward pass."""
        return jax.block_until_ready(self._both(*self._arguments))

    def gradients(self) -> dict[str, np.ndarray]:
        """Return the gradients of a pass by ONNX's names."""
        _, (params, inputs) = self()
        return {name: np.asarray(array) for name, array in {"X": inputs, **params}.items()}


def _rows(plan: Plan, kind: str, hidden: int, frames: int, batch: int) -> Iterator[Row]:
    yield row(plan, kind, hidden, frames, batch)


def row(
    plan: Plan,
    kind: str,
    hidden: int,
    frames: int,
    batch: int,
    device: str = "cpu",
    peer: str = "PyTorch",
    agreement: float = AGREEMENT,
) -> Row:
    """Time one size; PyTorch runs on ``cpu`` or ``cuda`` and has the name ``peer``."""
    x, wanted = example(hidden, frames, batch)
    here = Here(kind, x, wanted)
    calls: dict[str, Call] = {"jaxrnn": here}
    outputs = {"jaxrnn": here.gradients()}
    if is_installed("PyTorch"):
        layer = engine_module("PyTorch").Layer(kind, weights(kind, hidden), plan.threads, device)
        placed = layer.place(x).requires_grad_(True), layer.place(wanted)
        calls[peer] = functools.partial(layer.train, *placed)
        outputs[peer] = layer.gradients(*placed)
    name = name_of(kind, hidden, frames, batch)
    return timed(name, f"{kind} training", calls, plan.effort(7), outputs=_relative(outputs), agreement=agreement)


def _relative(gradients: dict[str, dict[str, np.ndarray]]) -> dict[str, dict[str, np.ndarray]]:
    """Return gradients divided by the largest magnitude of each, since their scale is far below 1."""
    first = next(iter(gradients.values()))
    scales = {name: float(np.max(np.abs(value))) or 1.0 for name, value in first.items()}
    return {
        engine: {name: value / scales[name] for name, value in values.items() if name in scales}
        for engine, values in gradients.items()
    }
