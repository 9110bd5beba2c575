"""Attention of the domain ``com.microsoft``, as ONNX Runtime's optimiser for transformers writes it.

Hidden keys get a large negative score (``mask_filter_value``), and not minus infinity, so that a query that sees no key
weights all keys alike.
Source of the definitions: ContribOperators.md and the results of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.cells.forms import product
from jaxrnn.onnx.operators import attention as standard
from jaxrnn.onnx.operators.attention import grouped_product, probabilities, split_heads
from jaxrnn.onnx.operators.indexing import gather
from jaxrnn.onnx.operators.microsoft.fused import sum_normalized
from jaxrnn.onnx.operators.microsoft.quantized import matmul_integer_to_float
from jaxrnn.onnx.operators.types import wide_type
from jaxrnn.onnx.registry import Versions, since
from jaxrnn.onnx.values import Value, traced

#: The score that is added to hidden keys.
_HIDDEN = -10000.0


def _mask(mask: Value, batch: Any, queries: Any, keys: Any) -> jax.Array:
    """Return which keys a query sees, ``bool[batch, 1, queries or 1, keys]``.

    A mask is raw, with an axis of keys, or has the number of keys of each recording, or first all ends and then all
    starts.
    """
    mask = traced(mask)
    shape = tuple(mask.shape)
    if mask.ndim == 1 and shape in ((batch,), (2 * batch,)):
        places = jnp.arange(keys, dtype=mask.dtype)
        sees = places < mask[:batch, None]
        if shape != (batch,):
            sees &= places >= mask[batch:, None]
        return sees[:, None, None]
    if shape == (batch, keys):
        return (mask > 0)[:, None, None]
    if shape == (batch, queries, keys):
        return (mask > 0)[:, None]
    raise ValueError(f"the mask has shape {shape}, which fits neither {batch} recordings nor {queries} x {keys} scores")


def _attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mask: Value,
    bias: Value,
    causal: bool,
    scale: float | None,
    filter_value: float | None,
) -> tuple[jax.Array, jax.Array]:
    """Return the results ``[batch, queries, features]`` and the scores, for ``[batch, heads, tokens, size]``."""
    dtype, wide = q.dtype, wide_type(q.dtype)
    batch, _, queries, size = q.shape
    keys = k.shape[2]
    scores = grouped_product(q, k.swapaxes(2, 3)) * wide.type(scale or 1 / np.sqrt(size))
    hidden = wide.type(_HIDDEN if filter_value is None else filter_value)
    if bias is not None:
        scores = scores + traced(bias).astype(wide)
    if mask is not None:
        scores = scores + jnp.where(_mask(mask, batch, queries, keys), wide.type(0), hidden)
    if causal:
        places, last = jnp.arange(keys), jnp.arange(queries)[:, None] + (keys - queries)
        scores = jnp.where(places > last, jnp.finfo(wide).min, scores)
    y = grouped_product(probabilities(scores, wide), v.astype(wide)).astype(dtype)
    y = y.swapaxes(1, 2)
    return y.reshape((*y.shape[:2], y.shape[2] * y.shape[3])), scores.astype(dtype)


def _refuse(**options: Any) -> None:
    """Refuse forms that share a buffer with the caller, or belong to a search."""
    for name, value in options.items():
        if value is not None and value != 0:
            raise ValueError(f"{name} is not supported; write the file without it")


def multi_head_attention(
    query: Value,
    key: Value = None,
    value: Value = None,
    bias: Value = None,
    key_padding_mask: Value = None,
    attention_bias: Value = None,
    past_key: Value = None,
    past_value: Value = None,
    past_sequence_length: Value = None,
    cache_indirection: Value = None,
    *,
    mask_filter_value: float | None = None,
    num_heads: int,
    scale: float | None = None,
    unidirectional: int = 0,
    output_count: int = 1,
) -> list[Value]:
    """MultiHeadAttention: the result, the caches with the new keys and values, and the scores.

    Queries, keys and values are ``[batch, tokens, features]``; keys and values of an encoder can also be ``[batch,
    heads, tokens, size]``.
    """
    _refuse(past_sequence_length=past_sequence_length, cache_indirection=cache_indirection)
    if key is None or value is None or len(key.shape) == 5:
        raise ValueError("packed queries, keys and values (rank 5) are forms for GPUs; write the file for the CPU")
    parts = [traced(query), traced(key), traced(value)]
    if bias is not None:
        ends = np.cumsum([parts[0].shape[-1]] * 2)
        parts = [x if x.ndim == 4 else x + part for x, part in zip(parts, jnp.split(traced(bias), ends), strict=True)]
    q, k, v = (split_heads(x, num_heads, name) for x, name in zip(parts, ("query", "key", "value"), strict=True))
    if past_key is not None and past_value is not None:
        k, v = (jnp.concatenate([traced(old), new], 2) for old, new in ((past_key, k), (past_value, v)))
    options = {"scale": scale, "filter_value": mask_filter_value}
    y, scores = _attend(q, k, v, mask=key_padding_mask, bias=attention_bias, causal=bool(unidirectional), **options)
    return [y, k, v, scores][:output_count]


def _self_attention(
    projected: jax.Array,
    sizes: Sequence[int],
    mask: Value,
    past: Value,
    bias: Value,
    num_heads: int,
    output_count: int,
    causal: int,
    scale: float | None,
    filter_value: float | None,
) -> list[Value]:
    """Split ``[batch, tokens, sizes]`` into queries, keys and values, and attend."""
    parts = jnp.split(projected, np.cumsum(sizes)[:-1], -1)
    q, k, v = (split_heads(x, num_heads, name) for x, name in zip(parts, ("queries", "keys", "values"), strict=True))
    if past is not None:
        k, v = (jnp.concatenate([old, new], 2) for old, new in zip(traced(past), (k, v), strict=True))
    options = {"causal": bool(causal), "scale": scale, "filter_value": filter_value}
    y, _ = _attend(q, k, v, mask=mask, bias=bias, **options)
    return [y] if output_count == 1 else [y, jnp.stack([k, v])]


def _three(columns: Any, sizes: Sequence[int] | None) -> Sequence[int]:
    if sizes:
        return sizes
    if columns % 3:
        raise ValueError(f"{columns} columns are no queries, keys and values of one size: give qkv_hidden_sizes")
    return [columns // 3] * 3


def attention(
    input: Value,
    weights: Value,
    bias: Value = None,
    mask_index: Value = None,
    past: Value = None,
    attention_bias: Value = None,
    past_sequence_length: Value = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float | None = None,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: tuple[int, ...] | None = None,
    rotary_embedding_dim: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
    output_count: int = 1,
) -> list[Value]:
    """Attention: one tensor, projected by one matrix, attends to itself; the second output is the cache."""
    _refuse(
        do_rotary=do_rotary,
        past_present_share_buffer=past_present_share_buffer,
        past_sequence_length=past_sequence_length,
        rotary_embedding_dim=rotary_embedding_dim,
    )
    projected = product(traced(input), traced(weights))
    if bias is not None:
        projected = projected + traced(bias)
    sizes = _three(weights.shape[1], qkv_hidden_sizes)
    of_scores = (unidirectional, scale, mask_filter_value)
    return _self_attention(projected, sizes, mask_index, past, attention_bias, num_heads, output_count, *of_scores)


def q_attention(
    input: Value,
    weight: Value,
    bias: Value,
    input_scale: Value,
    weight_scale: Value,
    mask_index: Value = None,
    input_zero_point: Value = None,
    weight_zero_point: Value = None,
    past: Value = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float | None = None,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
    output_count: int = 1,
) -> list[Value]:
    """QAttention: Attention with a quantised input and quantised weights, in float32 from the projection on."""
    _refuse(do_rotary=do_rotary, past_present_share_buffer=past_present_share_buffer)
    zeros = input_zero_point, weight_zero_point
    projected = matmul_integer_to_float(input, weight, input_scale, weight_scale, *zeros, bias)
    sizes, of_scores = _three(weight.shape[1], None), (unidirectional, scale, mask_filter_value)
    return _self_attention(traced(projected), sizes, mask_index, past, None, num_heads, output_count, *of_scores)


def rotary_embedding(
    input: Value,
    position_ids: Value,
    cos_cache: Value,
    sin_cache: Value,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Value:
    """RotaryEmbedding: features rotated by the position of each token, or from the position of the first token on."""
    _refuse(is_packed_batching=is_packed_batching)
    if scale != 1.0:
        raise ValueError(f"scale must be 1, not {scale}")
    batch, tokens = input.shape[0], input.shape[-2]
    if tuple(position_ids.shape) == (1,):
        position_ids = jnp.broadcast_to(traced(position_ids) + jnp.arange(tokens), (batch, tokens))
    heads = (num_heads or input.shape[2] // (2 * cos_cache.shape[1])) if len(input.shape) == 3 else None
    options = {"interleaved": interleaved, "num_heads": heads, "rotary_embedding_dim": rotary_embedding_dim}
    return standard.rotary_embedding(input, cos_cache, sin_cache, position_ids, **options)


def embed_layer_normalization(
    input_ids: Value,
    segment_ids: Value = None,
    word_embedding: Value = None,
    position_embedding: Value = None,
    segment_embedding: Value = None,
    gamma: Value = None,
    beta: Value = None,
    mask: Value = None,
    position_ids: Value = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
    output_count: int = 1,
) -> list[Value]:
    """EmbedLayerNormalization: the normalised sum of embeddings, the number of tokens by the mask, and the sum."""
    if word_embedding is None or position_embedding is None or gamma is None:
        raise ValueError("word_embedding, position_embedding and gamma must be given")
    places = np.arange(input_ids.shape[1]) if position_ids is None else position_ids
    parts = [gather(word_embedding, input_ids), gather(position_embedding, places)]
    if segment_ids is not None:
        parts.append(gather(segment_embedding, segment_ids))
    y, _, _, total = sum_normalized(parts, gamma, beta, epsilon, centred=True)
    count = jnp.zeros(input_ids.shape[0], jnp.int32) if mask is None else jnp.sum(traced(mask), 1, dtype=jnp.int32)
    return [y, count, total][:output_count]


OPERATORS: dict[str, Versions] = {
    "com.microsoft::Attention": since(attention, 1),
    "com.microsoft::EmbedLayerNormalization": since(embed_layer_normalization, 1),
    "com.microsoft::MultiHeadAttention": since(multi_head_attention, 1),
    "com.microsoft::QAttention": since(q_attention, 1),
    "com.microsoft::RotaryEmbedding": since(rotary_embedding, 1),
}
