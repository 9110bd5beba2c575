"""Linear attention: a recurrence with a matrix for each head as state, from keys to values.

Sources: Katharopoulos et al., "Transformers are RNNs", 2020 (the sum); Yang et al., "Gated Linear Attention
Transformers with Hardware-Efficient Training", 2023 (the decay); Yang et al., "Gated Delta Networks", 2024 (the delta
rule).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn._jax import varying
from jaxrnn._jax.context import own_arithmetic
from jaxrnn.cells.forms import in_chunks, in_parts, matrix_products_in, product, product_type


class AttentionFrames(NamedTuple):
    """The inputs of linear attention: one frame, or frames with a leading time axis."""

    query: jax.Array  # ``[..., batch, heads, group, d_k]``; the queries of a group share a state
    key: jax.Array  # ``[..., batch, heads, d_k]``
    value: jax.Array  # ``[..., batch, heads, d_v]``
    decay: jax.Array | None = None  # ``[..., batch, heads, d_k or 1]``, the logarithm of the factor on the state
    #: ``[..., batch, heads or 1, 1]``, how far the delta rule moves the value stored for a key
    rate: jax.Array | None = None


def step(state: jax.Array, frame: AttentionFrames) -> tuple[jax.Array, jax.Array]:
    """Compute a frame: the new state ``[batch, heads, d_k, d_v]`` and the output ``[batch, heads, group, d_v]``."""
    key, value, decayed = frame.key, frame.value[..., None, :], state
    factors = None if frame.decay is None else jnp.exp(frame.decay)
    if factors is not None:
        decayed = state * factors[..., None]
    if frame.rate is not None:
        # Reading the old state with a decayed key equals reading the decayed state with the key, without writing the
        # decayed state to memory first.
        read = key if factors is None else key * factors
        value = frame.rate[..., None] * (value - product(read[..., None, :], state))
    state = decayed + product(key[..., None], value)
    return state, product(frame.query, state)


def linear_attention(frames: AttentionFrames, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Run linear attention over frames ``[time, ...]``, optionally with a decay and with the delta rule.

    The state is ``[batch, heads, d_k, d_v]``. Returns outputs ``[time, batch, heads, group, d_v]`` and the state after
    the last frame. A single frame compiles without a loop. Without frames, the final state is the initial state.
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
    """Run the loop over frames, with the derivative of the closed form over chunks.

    JAX's derivative of the loop stores a matrix for each frame and takes three to fifteen times as long.
    """
    with matrix_products_in(dtype):
        return varying.scan(step, state, frames)


@_sequence.defjvp
@own_arithmetic()
def _derivative(dtype: np.dtype | None, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    with matrix_products_in(dtype):
        return jax.jvp(over_chunks, primals, tangents)


#: Frames in a chunk. Longer chunks are fewer, but need more work if each feature has its own decay.
CHUNK = 16


def over_chunks(state: jax.Array, frames: AttentionFrames) -> tuple[jax.Array, jax.Array]:
    """Run a sequence of static length, at least 1: the final state, and outputs ``[time, batch, heads, group, d_v]``.

    The backward pass recomputes each chunk.
    """
    chunk, length = jax.checkpoint(_chunk), frames.query.shape[0]
    return chunk(state, frames) if length <= CHUNK else in_parts(chunk, state, frames, length, CHUNK)


def _chunk(state: jax.Array, frames: AttentionFrames) -> tuple[jax.Array, jax.Array]:
    """Run a chunk. Frames are counted by t and i; the rows of a frame are its queries, then its key."""
    query, key, value = (jnp.moveaxis(x, 0, 2) for x in frames[:3])
    length, group = query.shape[2:4]
    delta = frames.rate is not None
    rows = jnp.concatenate([query, key[..., None, :]], 3) if delta else query
    added_up_to = jnp.tril(jnp.ones((length, length), bool))[:, None, :]
    if frames.decay is None:
        scores = _flat_product(rows, key.swapaxes(-1, -2))
        begin, last, decayed = rows, key, state
    else:
        decay = jnp.moveaxis(frames.decay, 0, 2)
        between = _between(decay)
        if decay.shape[-1] == 1:
            scores = _flat_product(rows, key.swapaxes(-1, -2)) * between.swapaxes(-1, -2)
        else:
            scores = product(rows, (between * key[:, :, None]).swapaxes(-1, -2))
        since_start = between[:, :, :, 0] * jnp.exp(decay[:, :, :1])
        begin, last = rows * since_start[..., None, :], key * between[:, :, -1]
        decayed = state * since_start[:, :, -1, :, None]
    scores = jnp.where(added_up_to, scores, jnp.zeros((), scores.dtype))
    from_state = _flat_product(begin, state)
    if delta:
        assert frames.rate is not None
        rate = jnp.moveaxis(frames.rate, 0, 2)
        strictly = scores[..., group, :] * rate  # its diagonal is not read
        correction = rate * (value - from_state[..., group, :])
        value = lax.linalg.triangular_solve(strictly, correction, left_side=True, lower=True, unit_diagonal=True)
    from_chunk = _flat_product(scores[..., :group, :], value)
    return decayed + product(last.swapaxes(-1, -2), value), jnp.moveaxis(from_state[..., :group, :] + from_chunk, 2, 0)


def _between(decay: jax.Array) -> jax.Array:
    """Return the share of frame i that is left at frame t, from log factors ``[batch, heads, t, features]``.

    The result is ``[batch, heads, t, i, features]``, with ones above the diagonal. Each sum of logarithms adds only the
    terms between its two frames. A difference of two cumulative sums would cancel catastrophically after a frame that
    clears the state.
    """
    length = decay.shape[2]
    t, i, j = (lax.broadcasted_iota(jnp.int32, (length,) * 3, axis) for axis in range(3))
    terms = ((i < j) & (j <= t)).astype(decay.dtype)
    # A factor of 0 has a logarithm of -inf, and -inf times 0 is NaN.
    finite = jnp.maximum(decay, jnp.asarray(-1e30, decay.dtype))
    return jnp.exp(jnp.einsum("tij,bhjf->bhtif", terms, finite, precision=lax.Precision.HIGHEST))


def _flat_product(rows: jax.Array, matrix: jax.Array) -> jax.Array:
    """Multiply: ``[batch, heads, t, group, k], [batch, heads, k, n] -> [batch, heads, t, group, n]``."""
    batch, heads, length, group, size = rows.shape
    flat = rows.reshape((batch, heads, length * group, size))
    return product(flat, matrix).reshape((batch, heads, length, group, matrix.shape[-1]))
