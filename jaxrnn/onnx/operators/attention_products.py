"""The parts of every attention: heads, products in which heads share keys, and the softmax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.cells import product_operands
from jaxrnn.onnx.operators.rounding import rounded, widest
from jaxrnn.onnx.values import Value, traced


def split_heads(x: Value, heads: int | None, name: str) -> jax.Array:
    """``[batch, tokens, heads * size]`` as ``[batch, heads, tokens, size]``; rank 4 is not changed."""
    x = traced(x)
    if x.ndim == 4:
        return x
    if x.ndim != 3:
        raise ValueError(f"{name} must have rank 3 or 4, but its shape is {x.shape}")
    if heads is None or heads < 1:
        raise ValueError(f"{name} has rank 3 and needs its number of heads as an attribute, at least 1, not {heads}")
    if x.shape[2] % heads:
        raise ValueError(f"{name} of shape {x.shape} cannot be cut into {heads} heads")
    return x.reshape((*x.shape[:2], heads, x.shape[2] // heads)).swapaxes(1, 2)


def grouped_product(left: jax.Array, right: jax.Array) -> jax.Array:
    """Matrix products of each head, in 32 bits or more; adjacent heads share one head of the right-hand side.

    Args:
        left: ``[batch, heads, m, k]``.
        right: ``[batch, heads / g, k, n]`` for an integer g.

    Returns:
        ``[batch, heads, m, n]``.
    """
    batch, heads, rows, size = left.shape
    shared = right.shape[1]
    if shared < 1 or heads % shared:
        raise ValueError(f"{heads} heads of queries cannot share {shared} heads of keys and values evenly")
    dtype = widest(left.dtype, right.dtype)
    if left.dtype != right.dtype:
        left, right = left.astype(dtype), right.astype(dtype)
    if heads != shared:
        left = left.reshape((batch, shared, heads // shared * rows, size))
    result = jnp.matmul(*product_operands(left, right), preferred_element_type=dtype)
    return result if heads == shared else result.reshape((batch, heads, rows, right.shape[3]))


def probabilities(scores: jax.Array, dtype: np.dtype, blind: jax.Array | None = None) -> jax.Array:
    """The softmax of scores along their last axis, in the precision of a dtype.

    Args:
        scores: ``[..., keys]``.
        dtype: the type that every operation rounds to; the sum is rounded once.
        blind: ``bool[..., 1]``, true for queries whose probabilities are all 0.

    Returns:
        Probabilities in the `wide_type` of that dtype.
    """
    scores = rounded(scores, dtype)
    if blind is not None:
        scores = jnp.where(blind, jnp.zeros((), scores.dtype), scores)
    largest = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True, initial=-jnp.inf))
    exponentials = rounded(jnp.exp(rounded(scores - largest, dtype)), dtype)
    chances = rounded(exponentials / rounded(jnp.sum(exponentials, axis=-1, keepdims=True), dtype), dtype)
    return chances if blind is None else jnp.where(blind, jnp.zeros((), chances.dtype), chances)
