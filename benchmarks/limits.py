"""Measured limits of a device, and the share of the limits that a function uses: operations and bytes per second."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.plan import Plan
from benchmarks.results import Row, row_of
from benchmarks.timing import Effort, interleaved


@dataclass(frozen=True)
class Cost:
    """Floating-point operations and bytes of memory traffic."""

    flops: float
    bytes: float

    def times(self, count: int) -> Cost:
        """Return the cost of several executions."""
        return Cost(self.flops * count, self.bytes * count)


def cost(function: Callable[..., Any], *arguments: Any) -> Cost:
    """Return XLA's counts for a function; bodies of loops count once."""
    found: Any = jax.jit(function).lower(*arguments).compile().cost_analysis() or {}
    return Cost(float(found.get("flops", 0.0)), float(found.get("bytes accessed", 0.0)))


def rates(spent: Cost, microseconds: float) -> dict[str, float]:
    """Return operations and bytes per second, and their shares of the `peak` of the device."""
    seconds, most = microseconds / 1e6, peak()
    flops, traffic = spent.flops / seconds, spent.bytes / seconds
    return {
        "GFLOP/s": flops / 1e9,
        "of the peak": flops / most.flops,
        "GB/s": traffic / 1e9,
        "of the bandwidth": traffic / most.bytes,
    }


@functools.cache
def peak() -> Cost:
    """Measure the limits of the first device.

    Operations per second are measured on a product of large float32 matrices, bytes per second on reading two large
    arrays and writing one.
    """
    times = {name: min(samples) / 1e6 for name, samples in _measured(5).items()}
    size, count = _sizes()
    return Cost(2.0 * size**3 / times["product"], 12.0 * count / times["sum"])


def rows(plan: Plan) -> Iterator[Row]:
    """Yield the limits of the device as a row; a fact tells an accelerator from a CPU."""
    device, most = jax.devices()[0], peak()
    row = row_of("limits of the device", "limits", {})
    row.facts |= {
        "device": device.device_kind,
        "an accelerator": "no: this is a CPU" if device.platform == "cpu" else "yes",
        "GFLOP/s": most.flops / 1e9,
        "GB/s": most.bytes / 1e9,
    }
    yield row


def _sizes() -> tuple[int, int]:
    """Return the rows of a matrix and the elements of an array that exceed all caches."""
    return (1024, 2**24) if jax.devices()[0].platform == "cpu" else (8192, 2**28)


def _measured(rounds: int) -> dict[str, list[float]]:
    size, count = _sizes()
    matrix, vector = jnp.ones((size, size), jnp.float32), jnp.ones(count, jnp.float32)
    product = jax.jit(lambda a: jnp.dot(a, a, precision="default"))
    total = jax.jit(lambda a, b: a + 2 * b)
    other = vector + 1
    calls = {
        "product": lambda: jax.block_until_ready(product(matrix)),
        "sum": lambda: jax.block_until_ready(total(vector, other)),
    }
    return interleaved(calls, Effort(rounds, 0.02))
