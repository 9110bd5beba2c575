"""Linear attention: a recurrence whose state is a matrix for each head, from keys to values.

Sources: Katharopoulos et al., "Transformers are RNNs", 2020 (the sum); Yang et al., "Gated Linear Attention
Transformers with Hardware-Efficient Training", 2023 (the decay); Yang et al., "Gated Delta Networks", 2024 (the delta
rule).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.cells.chunks import in_chunks
from jaxrnn.cells.linear_attention_chunks import Frames, over_chunks
from jaxrnn.cells.products import matrix_products_in, product, product_type
from jaxrnn.guards import own_arithmetic


def step(state: jax.Array, frame: Frames) -> tuple[jax.Array, jax.Array]:
    """One frame: the state after it ``[batch, heads, d_k, d_v]``, and the output ``[batch, heads, group, d_v]``."""
    key, value, kept = frame.key, frame.value[..., None, :], state
    factors = None if frame.decay is None else jnp.exp(frame.decay)
    if factors is not None:
        kept = state * factors[..., None]
    if frame.rate is not None:
        # What the decayed state gives for the key, read from the state as it was: it need not be written first.
        read = key if factors is None else key * factors
        value = frame.rate[..., None] * (value - product(read[..., None, :], state))
    state = kept + product(key[..., None], value)
    return state, product(frame.query, state)


def linear_attention(frames: Frames, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Linear attention over a sequence, frame by frame: with a decay, with the delta rule, with both or neither.

    Args:
        frames: with time in front, all of one floating type.
        state: ``[batch, heads, d_k, d_v]``, before the first frame.

    Returns:
        Outputs ``[time, batch, heads, group, d_v]`` and the state after the last frame. One frame leaves no loop
        behind; none gives the state as it was.
    """
    length = frames.query.shape[0]
    if isinstance(length, int) and length == 1:
        state, y = step(state, jax.tree.map(lambda x: x[0], frames))
        return y[None], state

    def run(carry: jax.Array, part: Any) -> tuple[jax.Array, jax.Array]:
        if isinstance(length, int) and length:
            return _sequence(product_type(), carry, part)
        return lax.scan(step, carry, part)

    state, outputs = in_chunks(run, state, frames)
    return outputs, state


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _sequence(dtype: np.dtype | None, state: jax.Array, frames: Frames) -> tuple[jax.Array, jax.Array]:
    """The loop, whose derivative is that of the closed form over chunks.

    JAX's own derivative of the loop keeps a matrix for every frame and takes three to fifteen times as long.
    """
    with matrix_products_in(dtype):
        return lax.scan(step, state, frames)


@_sequence.defjvp
@own_arithmetic()
def _derivative(dtype: np.dtype | None, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    with matrix_products_in(dtype):
        return jax.jvp(over_chunks, primals, tangents)
