"""Which keys a query of an attention may see, as one bias on the scores."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.onnx.values import Value, traced


def attention_bias(
    queries: Any,
    keys: Any,
    dtype: np.dtype,
    *,
    mask: Value = None,
    padded: bool = False,
    causal: bool = False,
    offset: Any = 0,
    window: tuple[int, int] = (-1, -1),
    valid: jax.Array | None = None,
) -> jax.Array | None:
    """The bias on the scores: 0 or the mask's number where a query sees a key, -inf where it does not.

    Args:
        queries: the number of queries.
        keys: the number of keys.
        dtype: the dtype of the result.
        mask: booleans that are true where a query sees a key, or numbers to add; broadcasts to
            ``[batch, heads, queries, keys]``.
        padded: whether the mask may have fewer keys than there are; the others are masked.
        causal: whether keys after the position of a query are masked.
        offset: the position of the first query among the keys, one number or ``[batch]``.
        window: how many keys before and after its own position a query sees; -1 for all of them.
        valid: ``[batch]``, how many keys of each sequence are no padding.

    Returns:
        An array that broadcasts to ``[batch, heads, queries, keys]``; None where every query sees every key.
    """
    allowed: list[jax.Array] = []
    added = None
    if mask is not None:
        mask = traced(mask)
        mask = mask if mask.dtype == bool else mask.astype(dtype)
        mask = _widened(mask, keys) if padded else mask
        if mask.dtype == bool:
            allowed.append(mask)
        else:
            added = mask
    before, after = window
    if causal or before >= 0 or after >= 0:
        distance = _distance(queries, keys, offset)
        if causal:
            allowed.append(distance <= 0)
        if before >= 0:
            allowed.append(distance >= -before)
        if after >= 0:
            allowed.append(distance <= after)
    if valid is not None:
        places = lax.broadcasted_iota(jnp.int64, (1, 1, 1, keys), 3)
        allowed.append(places < valid.astype(jnp.int64).reshape((-1, 1, 1, 1)))
    if not allowed:
        return added
    sees = allowed[0]
    for other in allowed[1:]:
        sees = sees & other
    return jnp.where(sees, jnp.zeros((), dtype) if added is None else added, jnp.asarray(-jnp.inf, dtype))


def _distance(queries: Any, keys: Any, offset: Any) -> jax.Array:
    """The position of each key minus that of each query: ``[queries, keys]``, or ``[batch, 1, queries, keys]``."""
    position = lax.broadcasted_iota(jnp.int64, (queries, keys), 0)
    place = lax.broadcasted_iota(jnp.int64, (queries, keys), 1)
    if np.ndim(offset) == 0:
        return place - position - jnp.asarray(offset, jnp.int64)
    return place - position - jnp.asarray(offset, jnp.int64).reshape((-1, 1, 1, 1))


def _widened(mask: jax.Array, keys: Any) -> jax.Array:
    """The mask padded to all keys; those that it does not have are masked."""
    if mask.ndim == 0:
        raise ValueError("attn_mask needs an axis for the keys, but it has rank 0")
    missing = keys - mask.shape[-1]
    if isinstance(missing, int) and missing <= 0:
        return mask
    filler = jnp.asarray(False if mask.dtype == bool else -jnp.inf, mask.dtype)
    return lax.pad(mask, filler, [(0, 0, 0)] * (mask.ndim - 1) + [(0, missing, 0)])
