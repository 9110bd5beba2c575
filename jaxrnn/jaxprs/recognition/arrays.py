"""Elements of arrays as slices and transposes where they are regular, and by index where they are not."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

#: More runs than this are read by index.
_MOST_RUNS = 8


def taken(array: jax.Array, index: np.ndarray, axis: int) -> jax.Array:
    """``jnp.take`` along one axis by known indices: slices, joined, where these are a few runs."""
    if np.array_equal(index, np.arange(array.shape[axis])):
        return array
    starts = [0, *(np.flatnonzero(np.diff(index) != 1) + 1).tolist()]
    if len(starts) > _MOST_RUNS or not index.size:
        return jnp.take(array, index, axis)
    parts = [
        jax.lax.slice_in_dim(array, int(index[start]), int(index[end - 1]) + 1, axis=axis)
        for start, end in zip(starts, [*starts[1:], len(index)], strict=True)
    ]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis)


def elements(array: jax.Array, at: np.ndarray, lead: Sequence[int] = ()) -> jax.Array:
    """Elements of the part of an array after its leading axes.

    Args:
        array: ``[*lead, ...]``.
        at: positions ``[rows, columns]`` in the flattened rest.
        lead: the sizes of the leading axes.

    Returns:
        ``[*lead, rows, columns]``, with one row where all are equal.
    """
    rest = array.shape[len(lead) :]
    size = int(np.prod(rest, dtype=int))
    if np.array_equal(at.reshape(-1), np.arange(size)):
        return array.reshape((*lead, *at.shape))
    if (at == at[:1]).all():
        at = at[:1]
    rows, columns = at.shape
    if (at == at[0, 0]).all():
        one = taken(array.reshape((*lead, size)), at[0, :1], -1)
        return jnp.broadcast_to(one[..., None, :], (*lead, 1, columns))
    if rows == 1:
        return taken(array.reshape((*lead, size)), at[0], -1)[..., None, :]
    down = int(at[1, 0] - at[0, 0])
    if (np.diff(at, axis=0) != down).any():
        return jnp.take(array.reshape((*lead, size)), at, -1)
    if down == 1 and columns > 1 and (np.diff(at[0]) == rows).all() and at[0, 0] % rows == 0 and size % rows == 0:
        # Columns are concatenated.
        columnwise = array.reshape((*lead, size // rows, rows))
        first = int(at[0, 0]) // rows
        return jnp.swapaxes(jax.lax.slice_in_dim(columnwise, first, first + columns, axis=len(lead)), -1, -2)
    width = abs(down)
    first, inside = int(at[0, 0]) // width if width else 0, at[0] % width if width else at[0]
    if down > 0 and size % width == 0 and (at[0] // width == first).all():
        rowwise = array.reshape((*lead, size // width, width))
        return taken(jax.lax.slice_in_dim(rowwise, first, first + rows, axis=len(lead)), inside, -1)
    return jnp.take(array.reshape((*lead, size)), at, -1)
