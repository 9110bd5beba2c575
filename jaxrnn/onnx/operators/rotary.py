"""RotaryEmbedding: pairs of features rotated by an angle that grows with the position."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrnn.onnx.operators.arithmetic import alike
from jaxrnn.onnx.operators.attention_products import split_heads
from jaxrnn.onnx.operators.indexing import read, wrap_indices
from jaxrnn.onnx.operators.rounding import wide_type
from jaxrnn.onnx.registry import since
from jaxrnn.onnx.values import Value, traced


def rotary_embedding(
    X: Value,
    cos_cache: Value,
    sin_cache: Value,
    position_ids: Value = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Value:
    """RotaryEmbedding of all features of a head, or of its first ones."""
    alike(X, cos_cache, sin_cache)
    x = split_heads(X, num_heads, "X")
    size = x.shape[3]
    rotated = rotary_embedding_dim or size
    if rotated % 2 or not 0 <= rotated <= size:
        raise ValueError(f"an even number of features can be rotated, at most the head's {size}, not {rotated}")
    wide = wide_type(x.dtype)
    cos, sin = (
        _of_tokens(cache, position_ids, (x.shape[0], x.shape[2], rotated // 2), name).astype(wide)[:, None]
        for name, cache in (("cos_cache", cos_cache), ("sin_cache", sin_cache))
    )
    part = x[..., :rotated].astype(wide)
    if interleaved:
        pairs = part.reshape((*x.shape[:3], rotated // 2, 2))
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        first, second = part[..., : rotated // 2], part[..., rotated // 2 :]
    real, imaginary = cos * first - sin * second, sin * first + cos * second
    if interleaved:
        result = jnp.stack([real, imaginary], -1).reshape(part.shape)
    else:
        result = jnp.concatenate([real, imaginary], -1)
    y = jnp.concatenate([result.astype(x.dtype), x[..., rotated:]], -1)
    return y if len(X.shape) == 4 else y.swapaxes(1, 2).reshape(X.shape)


def _of_tokens(cache: Value, position_ids: Value, shape: tuple, name: str) -> jax.Array:
    """The rows of a cache for each token: ``[batch, tokens, features / 2]``."""
    cache = traced(cache)
    if position_ids is None:
        if cache.ndim != 3 or cache.shape[2] != shape[2]:
            raise ValueError(f"without position_ids, {name} must have shape {shape}, not {cache.shape}")
        return cache
    if tuple(position_ids.shape) != shape[:2]:
        raise ValueError(f"position_ids has shape {tuple(position_ids.shape)}, but {shape[:2]} is expected")
    if cache.ndim != 2 or cache.shape[1] != shape[2]:
        raise ValueError(f"with position_ids, {name} must have {shape[2]} columns, but its shape is {cache.shape}")
    return read(cache, (wrap_indices(position_ids, cache.shape[0]),))


OPERATORS = {"RotaryEmbedding": since(rotary_embedding, 23)}
