"""What the machine can do at most, measured: floating-point operations and bytes a second, on the threads at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxrnn._files.messages import brief
from jaxrnn.profiling.traces import time_calls

#: Bytes of the arrays that bandwidth is measured on: the smallest fits a core's own cache, the largest no cache.
SIZES = tuple(1 << power for power in (19, 21, 23, 25, 28))
#: Sides of the square matrices whose product is taken.
_SIDES = (512, 1024, 2048, 4096, 8192)
_ENOUGH = 5e-3


@brief
@dataclass(frozen=True)
class Peaks:
    """The machine's limits, as XLA reaches them in this process.

    Attributes:
        dtype: of the matrix product.
        flops: floating-point operations a second of a large matrix product.
        bandwidths: bytes a second by the size of the array that is gone through again and again: the best of a copy
            in place (reading and writing) and a product of a matrix and a vector (reading).
    """

    dtype: str
    flops: float
    bandwidths: dict[int, float]

    def bandwidth(self, working_set: float) -> float:
        """Bytes a second for data that is used again after so many bytes: that of the next larger array measured."""
        larger = [size for size in sorted(self.bandwidths) if size >= working_set]
        return self.bandwidths[larger[0] if larger else max(self.bandwidths)]


def measure_peaks(dtype: Any = "float32", sizes: Sequence[int] = SIZES) -> Peaks:
    """Measure the machine, in about two seconds on a CPU core.

    Args:
        dtype: of the operands of the matrix product; its result is float32 where they are narrower.
        sizes: bytes of the arrays that bandwidth is measured on.
    """
    kind = jnp.dtype(dtype)
    return Peaks(kind.name, _matrix_product(kind), {size: _bandwidth(size) for size in sizes})


def _matrix_product(dtype: Any) -> float:
    """The best rate over growing matrices, until one takes long enough to be timed."""
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
    """The better of reading and copying an array of so many bytes, many times in one call."""
    columns = 1024
    rows = max(nbytes // (4 * columns), 1)
    matrix, vector = jnp.full((rows, columns), 1e-3, jnp.float32), jnp.ones(columns, jnp.float32)
    # A product takes one result of the last one, so that none can be left out or moved out of the loop.
    times = max(2, (1 << 28) // nbytes)
    read = jax.jit(lambda a, v: lax.fori_loop(0, times, lambda _, w: w.at[:1].set(lax.dot(a, w)[:1]), v)).lower(
        matrix, vector
    )
    copied = jax.jit(lambda a: lax.fori_loop(0, times, lambda _, b: b * jnp.float32(0.999), a)).lower(matrix)
    reading, copying = read.compile(), copied.compile()
    moved = float(times * matrix.nbytes)
    return max(moved / _best(lambda: reading(matrix, vector)), 2 * moved / _best(lambda: copying(matrix)))


def _best(call: Callable[[], Any]) -> float:
    """The shortest of a few calls, in seconds."""
    jax.block_until_ready(call())
    return max(min(time_calls(call, 0.0)), 1e-9)
