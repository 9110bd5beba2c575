"""Times of calls, and the peak rates of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxrnn._files.messages import short_repr

_SECONDS, _FEWEST_CALLS = 0.3, 5
#: Sizes in bytes for the bandwidth: the smallest fits the cache of a core, the largest exceeds all caches.
SIZES = tuple(1 << power for power in (19, 21, 23, 25, 28))
#: Sides of the square matrices for the peak of a matrix product, and a sufficient time of a product in seconds.
_SIDES, _ENOUGH = (512, 1024, 2048, 4096, 8192), 5e-3


def time_calls(call: Callable[[], Any], seconds: float = _SECONDS) -> list[float]:
    """Time calls until `seconds` are over, with a minimum number of calls; return the seconds of each call."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _FEWEST_CALLS or (time.perf_counter() < end and len(times) < 100_000):
        began = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - began)
    return times


@short_repr
@dataclass(frozen=True)
class Peaks:
    """The peak rates of the machine, measured with XLA in this process.

    Attributes:
        dtype: operand type of the matrix product.
        flops: floating-point operations per second of a large matrix product.
        bandwidths: bytes per second by the size of an array in bytes: the maximum over repeated copies in place
            (reading and writing) and repeated matrix-vector products (reading).
    """

    dtype: str
    flops: float
    bandwidths: dict[int, float]

    def bandwidth(self, working_set: float) -> float:
        """Return the bytes per second for a working set in bytes, measured on the next larger array."""
        larger = [size for size in sorted(self.bandwidths) if size >= working_set]
        return self.bandwidths[larger[0] if larger else max(self.bandwidths)]


def measure_peaks(dtype: Any = "float32", sizes: Sequence[int] = SIZES) -> Peaks:
    """Measure the peak rates of the machine, which takes about two seconds on a CPU core.

    Args:
        dtype: operand type of the matrix product; the result of narrower types is float32.
        sizes: sizes in bytes of the arrays for the bandwidth.
    """
    kind = jnp.dtype(dtype)
    return Peaks(kind.name, _matrix_product(kind), {size: _bandwidth(size) for size in sizes})


def _matrix_product(dtype: Any) -> float:
    """Return the best rate over growing matrices, up to the first product that takes long enough."""
    best = 0.0
    result = jnp.float32 if dtype.itemsize < 4 else dtype
    for side in _SIDES:
        matrix = jnp.ones((side, side), dtype)
        product = jax.jit(lambda a: lax.dot(a, a, preferred_element_type=result)).lower(matrix).compile()
        seconds = _best(lambda call=product, a=matrix: call(a))
        best = max(best, 2.0 * side**3 / seconds)
        if seconds > _ENOUGH:
            break
    return best


def _bandwidth(nbytes: int) -> float:
    """Return the better rate of reading and copying an array of `nbytes`, repeated in a single call."""
    columns = 1024
    rows = max(nbytes // (4 * columns), 1)
    matrix, vector = jnp.full((rows, columns), 1e-3, jnp.float32), jnp.ones(columns, jnp.float32)
    # Each product depends on the last product, so XLA cannot skip products or move products out of the loop.
    times = max(2, (1 << 28) // nbytes)
    read = jax.jit(lambda a, v: lax.fori_loop(0, times, lambda _, w: w.at[:1].set(lax.dot(a, w)[:1]), v)).lower(
        matrix, vector
    )
    copied = jax.jit(lambda a: lax.fori_loop(0, times, lambda _, b: b * jnp.float32(0.999), a)).lower(matrix)
    reading, copying = read.compile(), copied.compile()
    moved = float(times * matrix.nbytes)
    return max(moved / _best(lambda: reading(matrix, vector)), 2 * moved / _best(lambda: copying(matrix)))


def _best(call: Callable[[], Any]) -> float:
    """Return the shortest of a few calls, in seconds."""
    jax.block_until_ready(call())
    return max(min(time_calls(call, 0.0)), 1e-9)
