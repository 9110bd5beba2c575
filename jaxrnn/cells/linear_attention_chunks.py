"""Linear attention over chunks of frames, in closed form: only the states between chunks are written.

Of a chunk, every output is what the state before it gives, decayed, and what the chunk's own frames have added since:
products of matrices in place of a loop. With the delta rule, what each frame adds depends on what those before it
added: a triangular system.

Source: Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", 2024.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxrnn.cells.products import product

#: Frames in a chunk. The work for decays by feature grows with it, the number of chunks shrinks.
CHUNK = 16


class Frames(NamedTuple):
    """What a linear attention reads, with time in front or of one frame without that axis.

    query: ``[..., batch, heads, group, d_k]``, group being the queries that share a state;
    key: ``[..., batch, heads, d_k]``; value: ``[..., batch, heads, d_v]``;
    decay: ``[..., batch, heads, d_k or 1]``, logarithms of the factors that the state keeps;
    rate: ``[..., batch, heads or 1, 1]``, how far the delta rule moves what a key gives towards the value.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array
    decay: jax.Array | None = None
    rate: jax.Array | None = None


def over_chunks(state: jax.Array, frames: Frames) -> tuple[jax.Array, jax.Array]:
    """A sequence of known length from 1 up: the state after it, and outputs ``[time, batch, heads, group, d_v]``.

    The backward pass computes each chunk again.
    """
    chunk = jax.checkpoint(_chunk)
    length = frames.query.shape[0]
    whole = length // CHUNK * CHUNK
    parts = []
    if whole:
        body = jax.tree.map(lambda x: x[:whole].reshape(-1, CHUNK, *x.shape[1:]), frames)
        state, outputs = lax.scan(chunk, state, body)
        parts.append(outputs.reshape(whole, *outputs.shape[2:]))
    if whole < length:
        state, outputs = chunk(state, jax.tree.map(lambda x: x[whole:], frames))
        parts.append(outputs)
    return state, parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def _chunk(state: jax.Array, frames: Frames) -> tuple[jax.Array, jax.Array]:
    """One chunk; below, t and i count its frames, and rows are the queries of a frame, with its key behind them."""
    query, key, value = (jnp.moveaxis(x, 0, 2) for x in frames[:3])
    length, group = query.shape[2:4]
    delta = frames.rate is not None
    rows = jnp.concatenate([query, key[..., None, :]], 3) if delta else query
    added_up_to = jnp.tril(jnp.ones((length, length), bool))[:, None, :]
    if frames.decay is None:
        scores = _flat_product(rows, key.swapaxes(-1, -2))
        begin, last, kept = rows, key, state
    else:
        decay = jnp.moveaxis(frames.decay, 0, 2)
        between = _between(decay)
        if decay.shape[-1] == 1:
            scores = _flat_product(rows, key.swapaxes(-1, -2)) * between.swapaxes(-1, -2)
        else:
            scores = product(rows, (between * key[:, :, None]).swapaxes(-1, -2))
        since_start = between[:, :, :, 0] * jnp.exp(decay[:, :, :1])
        begin, last = rows * since_start[..., None, :], key * between[:, :, -1]
        kept = state * since_start[:, :, -1, :, None]
    scores = jnp.where(added_up_to, scores, jnp.zeros((), scores.dtype))
    from_state = _flat_product(begin, state)
    if delta:
        assert frames.rate is not None
        rate = jnp.moveaxis(frames.rate, 0, 2)
        strictly = scores[..., group, :] * rate  # its diagonal is not read
        wanted = rate * (value - from_state[..., group, :])
        value = lax.linalg.triangular_solve(strictly, wanted, left_side=True, lower=True, unit_diagonal=True)
    inside = _flat_product(scores[..., :group, :], value)
    return kept + product(last.swapaxes(-1, -2), value), jnp.moveaxis(from_state[..., :group, :] + inside, 2, 0)


def _between(decay: jax.Array) -> jax.Array:
    """What is left at frame t of what frame i added, of the logarithms ``[batch, heads, t, features]`` of the factors.

    Each sum of logarithms is made of the terms between two frames alone: as a difference of two running sums it would
    lose, behind a frame that clears the state, all that is small beside that frame's logarithm.

    Returns:
        ``[batch, heads, t, i, features]``; ones above the diagonal.
    """
    length = decay.shape[2]
    t, i, j = (lax.broadcasted_iota(jnp.int32, (length,) * 3, axis) for axis in range(3))
    terms = ((i < j) & (j <= t)).astype(decay.dtype)
    # A factor of 0 has a logarithm of -inf, which times 0 is no number.
    finite = jnp.maximum(decay, jnp.asarray(-1e30, decay.dtype))
    return jnp.exp(jnp.einsum("tij,bhjf->bhtif", terms, finite, precision=lax.Precision.HIGHEST))


def _flat_product(rows: jax.Array, matrix: jax.Array) -> jax.Array:
    """``[batch, heads, t, group, k], [batch, heads, k, n] -> [batch, heads, t, group, n]``."""
    batch, heads, length, group, size = rows.shape
    flat = rows.reshape((batch, heads, length * group, size))
    return product(flat, matrix).reshape((batch, heads, length, group, matrix.shape[-1]))
