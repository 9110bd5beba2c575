"""Linear attention: a recurrence whose state is one matrix for each head, from keys to values.

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

from jaxrnn._jax import varying
from jaxrnn._jax.context import own_arithmetic
from jaxrnn.cells.chunks import in_chunks
from jaxrnn.cells.linear_attention_chunks import AttentionFrames, over_chunks
from jaxrnn.cells.products import matrix_products_in, product, product_type


def step(state: jax.Array, frame: AttentionFrames) -> tuple[jax.Array, jax.Array]:
    """One frame: the new state ``[batch, heads, d_k, d_v]`` and the output ``[batch, heads, group, d_v]``."""
    key, value, decayed = frame.key, frame.value[..., None, :], state
    factors = None if frame.decay is None else jnp.exp(frame.decay)
    if factors is not None:
        decayed = state * factors[..., None]
    if frame.rate is not None:
        # Reading the key from the old state with decayed keys equals reading it from the decayed state, which then need
        # not be written to memory first.
        read = key if factors is None else key * factors
        value = frame.rate[..., None] * (value - product(read[..., None, :], state))
    state = decayed + product(key[..., None], value)
    return state, product(frame.query, state)


def linear_attention(frames: AttentionFrames, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Linear attention over a sequence, frame by frame, optionally with a decay and with the delta rule.

    Args:
        frames: arrays ``[time, ...]`` of one floating type.
        state: ``[batch, heads, d_k, d_v]``, before the first frame.

    Returns:
        Outputs ``[time, batch, heads, group, d_v]`` and the state after the last frame. One frame compiles to no loop;
        no frame returns the initial state.
    """
    length = frames.query.shape[0]
    if isinstance(length, int) and length == 1:
        state, y = step(state, jax.tree.map(lambda x: x[0], frames))
        return y[None], state

    def run(carry: jax.Array, part: Any) -> tuple[jax.Array, jax.Array]:
        if isinstance(length, int) and length:
            return _sequence(product_type(), carry, part)
        return varying.scan(step, carry, part)

    state, outputs = in_chunks(run, state, frames)
    return outputs, state


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _sequence(dtype: np.dtype | None, state: jax.Array, frames: AttentionFrames) -> tuple[jax.Array, jax.Array]:
    """The loop over frames, with the derivative of the closed form over chunks.

    JAX's own derivative of the loop stores a matrix for every frame and takes three to fifteen times as long.
    """
    with matrix_products_in(dtype):
        return varying.scan(step, state, frames)


@_sequence.defjvp
@own_arithmetic()
def _derivative(dtype: np.dtype | None, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    with matrix_products_in(dtype):
        return jax.jvp(over_chunks, primals, tangents)
