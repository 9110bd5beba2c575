"""Attention and rotary embeddings: masks, windows, caches, and modifications by graphs of the file.

All intermediate values are rounded to the types in the specification. 16-bit products accumulate in 32 bits.
Source: operators Attention, opsets 23 to 25, FlexAttention and RotaryEmbedding of the ONNX specification.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.cells.forms import product_operands
from jaxrnn.onnx.evaluate import Subgraph
from jaxrnn.onnx.operators.arithmetic import of_one_type
from jaxrnn.onnx.operators.indexing import read, wrap_indices
from jaxrnn.onnx.operators.types import numpy_dtype, rounded, wide_type, widest
from jaxrnn.onnx.registry import Versions, earlier, since
from jaxrnn.onnx.values import Value, check_choice, describe, traced

#: The values of ``qk_matmul_output_mode``, the content of the fourth output.
RAW, CAPPED, BIASED, PROBABILITIES = range(4)


def _attention(
    Q: Value,
    K: Value,
    V: Value,
    attn_mask: Value = None,
    past_key: Value = None,
    past_value: Value = None,
    nonpad_kv_seqlen: Value = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = RAW,
    right_window_size: int = -1,
    scale: float | None = None,
    short_masks: bool,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    output_count: int = 1,
) -> list[Value]:
    """Attention: Y, the caches with the new keys and values, and the scores. A query that sees no key outputs zeros.

    ``short_masks`` is not an attribute: from opset 24 on, a mask may cover only the first keys.
    """
    if len(Q.shape) == 4 and (q_num_heads is not None or kv_num_heads is not None):
        raise ValueError(
            "q_num_heads and kv_num_heads apply to inputs of rank 3; inputs of rank 4 have an axis of heads"
        )
    check_choice("qk_matmul_output_mode", qk_matmul_output_mode, (RAW, CAPPED, BIASED, PROBABILITIES))
    _check_scale(scale)
    window = left_window_size, right_window_size
    if min(window) < -1:
        raise ValueError(f"a window size must be -1 or more, not {min(window)}")
    q, k, v = split_heads(Q, q_num_heads, "Q"), split_heads(K, kv_num_heads, "K"), split_heads(V, kv_num_heads, "V")
    k, v, past_length = _with_past(k, v, (past_key, past_value), nonpad_kv_seqlen)
    of_one_type(q, k)
    _check_shapes(q, k, v, nonpad_kv_seqlen)
    dtype = q.dtype
    wide = wide_type(dtype)
    root = np.sqrt(scale if scale is not None else 1 / max(q.shape[3], 1) ** 0.5).astype(dtype)
    q_scaled, k_scaled = (rounded(x.astype(wide) * root.astype(wide), dtype).astype(dtype) for x in (q, k))
    scores = [rounded(grouped_product(q_scaled, k_scaled.swapaxes(2, 3)), dtype)]
    scores.append(_capped(scores[RAW], softcap, dtype))
    valid = None if nonpad_kv_seqlen is None else traced(nonpad_kv_seqlen)
    bias = _bias(
        q.shape[2],
        k.shape[2],
        wide,
        mask=attn_mask if attn_mask is None or attn_mask.dtype == bool else traced(attn_mask).astype(dtype),
        padded=short_masks,
        causal=bool(is_causal),
        offset=past_length if valid is None else valid - q.shape[2],
        window=window,
        valid=valid,
    )
    scores.append(_biased(scores[CAPPED], bias, dtype))
    blind = None if bias is None else jnp.all(bias == -jnp.inf, axis=-1, keepdims=True)
    chances = probabilities(scores[BIASED], numpy_dtype(softmax_precision) if softmax_precision else dtype, blind)
    scores.append(rounded(chances, dtype))
    y = rounded(grouped_product(scores[PROBABILITIES].astype(dtype), v), dtype).astype(dtype)
    if len(Q.shape) == 3:
        y = y.swapaxes(1, 2)
        y = y.reshape((*y.shape[:2], y.shape[2] * y.shape[3]))
    return [y, k, v, scores[qk_matmul_output_mode].astype(dtype)][:output_count]


def _check_scale(scale: float | None) -> None:
    if scale is not None and scale < 0:
        raise ValueError(f"scale must not be negative, because Q and K are multiplied by its square root, not {scale}")


def _with_past(k: jax.Array, v: jax.Array, past: tuple[Value, Value], valid: Value) -> tuple[jax.Array, jax.Array, Any]:
    """Append keys and values to the cache, and return both with the number of cached tokens."""
    if (past[0] is None) != (past[1] is None):
        raise ValueError("past_key and past_value must both be given, or neither")
    if past[0] is None:
        return k, v, 0
    if valid is not None:
        raise ValueError(
            "nonpad_kv_seqlen applies to caches outside of the operator; leave out past_key and past_value, or "
            "nonpad_kv_seqlen"
        )
    caches = []
    for name, old, new in zip(("past_key", "past_value"), past, (k, v), strict=True):
        of_one_type(old, new)
        if len(old.shape) != 4 or (*old.shape[:2], old.shape[3]) != (*new.shape[:2], new.shape[3]):
            raise ValueError(
                f"{name} has shape {tuple(old.shape)}, but must agree with {tuple(new.shape)} in all but axis 2"
            )
        caches.append(jnp.concatenate([traced(old), new], 2))
    if past[0].shape[2] != past[1].shape[2]:
        raise ValueError(f"past_key and past_value hold {past[0].shape[2]} and {past[1].shape[2]} tokens")
    return caches[0], caches[1], past[0].shape[2]


def _check_shapes(q: jax.Array, k: jax.Array, v: jax.Array, valid: Value = None) -> None:
    if k.shape[0] != q.shape[0] or k.shape[:3] != v.shape[:3] or k.shape[3] != q.shape[3]:
        raise ValueError(
            f"queries {q.shape}, keys {k.shape} and values {v.shape} do not fit: batches must be equal, head sizes of "
            "queries and keys, and the numbers of heads and tokens of keys and values"
        )
    if valid is not None and tuple(valid.shape) != (q.shape[0],):
        raise ValueError(f"nonpad_kv_seqlen has shape {tuple(valid.shape)}, but ({q.shape[0]},) is expected")


def _capped(scores: jax.Array, softcap: float, dtype: np.dtype) -> jax.Array:
    if softcap < 0:
        raise ValueError(f"softcap must not be negative, not {softcap}")
    if not softcap:
        return scores
    cap = jnp.asarray(softcap, dtype).astype(scores.dtype)
    return rounded(rounded(jnp.tanh(rounded(scores / cap, dtype)), dtype) * cap, dtype)


def _biased(scores: jax.Array, bias: jax.Array | None, dtype: np.dtype) -> jax.Array:
    if bias is None:
        return scores
    fits = bias.ndim <= 4 and all(
        size == expected or size == 1 for size, expected in zip(bias.shape[::-1], scores.shape[::-1], strict=False)
    )
    if not fits:
        raise ValueError(f"the bias from attn_mask has shape {bias.shape}, which does not broadcast to {scores.shape}")
    # A masked key has no weight, even where its score is NaN.
    return jnp.where(bias == -jnp.inf, -jnp.inf, rounded(scores + bias, dtype)).astype(scores.dtype)


_WINDOWS = ("left_window_size", "right_window_size")

attention = earlier(_attention, short_masks=True)
attention_24 = earlier(_attention, *_WINDOWS, short_masks=True)
attention_23 = earlier(_attention, *_WINDOWS, "nonpad_kv_seqlen", short_masks=False)


def flex_attention(
    Q: Value,
    K: Value,
    V: Value,
    *,
    prob_mod: Subgraph | None = None,
    scale: float | None = None,
    score_mod: Subgraph | None = None,
    softmax_precision: int | None = None,
) -> Value:
    """FlexAttention. From the scores on, everything is computed in the type of the softmax."""
    of_one_type(Q, K, V)
    q, k, v = traced(Q), traced(K), traced(V)
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ValueError(f"Q, K and V must have rank 4, but their shapes are {q.shape}, {k.shape} and {v.shape}")
    _check_shapes(q, k, v)
    _check_scale(scale)
    dtype = q.dtype
    wide = wide_type(dtype)
    kind = numpy_dtype(softmax_precision) if softmax_precision else wide
    root = np.sqrt(np.float32(scale if scale is not None else 1 / max(q.shape[3], 1) ** 0.5)).astype(dtype).astype(wide)
    q, k = (rounded(x.astype(wide) * root, dtype).astype(dtype) for x in (q, k))
    scores = rounded(grouped_product(q, k.swapaxes(2, 3)), dtype)
    scores = _modified(score_mod, rounded(scores, kind), kind, "score_mod")
    chances = _modified(prob_mod, probabilities(scores, kind), kind, "prob_mod")
    return rounded(grouped_product(chances.astype(kind), v.astype(kind)), kind).astype(dtype)


def _modified(modifier: Subgraph | None, x: jax.Array, kind: np.dtype, name: str) -> jax.Array:
    """Apply a graph of the file to scores or probabilities."""
    if modifier is None:
        return x
    results = modifier(x.astype(kind))
    if len(results) != 1 or tuple(results[0].shape) != tuple(x.shape):
        shown = ", ".join(map(describe, results))
        raise ValueError(f"{name} must return one tensor of its input's shape {x.shape}, not {shown}")
    of_one_type(results[0], np.zeros((), kind))
    return rounded(traced(results[0]), kind)


def _bias(
    queries: Any, keys: Any, dtype: np.dtype, *, mask: Value, padded: bool, causal: bool, offset: Any, window: Any,
    valid: jax.Array | None,
) -> jax.Array | None:  # fmt: skip
    """Return the bias on the scores: 0 or the mask's number for visible keys, and -inf for hidden keys.

    The bias broadcasts to ``[batch, heads, queries, keys]``; None means that all queries see all keys. ``offset`` is
    the position of the first query among the keys, a number or ``[batch]``. ``window`` counts visible keys before and
    after the position of a query (-1: all). ``valid`` is ``[batch]``, the keys that are not padding. ``padded`` allows
    a mask with fewer keys; the missing keys are hidden.
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
        # Key position minus query position: ``[queries, keys]``, or ``[batch, 1, queries, keys]``.
        position, place = (lax.broadcasted_iota(jnp.int64, (queries, keys), axis) for axis in range(2))
        start = jnp.asarray(offset, jnp.int64)
        distance = place - position - (start if start.ndim == 0 else start.reshape((-1, 1, 1, 1)))
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


def _widened(mask: jax.Array, keys: Any) -> jax.Array:
    """Pad the mask to all keys; missing keys are hidden."""
    if mask.ndim == 0:
        raise ValueError("attn_mask needs an axis for the keys, but it has rank 0")
    missing = keys - mask.shape[-1]
    if isinstance(missing, int) and missing <= 0:
        return mask
    filler = jnp.asarray(False if mask.dtype == bool else -jnp.inf, mask.dtype)
    return lax.pad(mask, filler, [(0, 0, 0)] * (mask.ndim - 1) + [(0, missing, 0)])


def split_heads(x: Value, heads: int | None, name: str) -> jax.Array:
    """Reshape ``[batch, tokens, heads * size]`` to ``[batch, heads, tokens, size]``; rank 4 is unchanged."""
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
    """Multiply matrices of each head in 32 bits or more; adjacent heads share a head of the right-hand side.

    Shapes: ``[batch, heads, m, k]`` and ``[batch, heads / g, k, n]`` for an integer g give ``[batch, heads, m, n]``.
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
    """Return the softmax of scores along the last axis, with all operations rounded to a dtype.

    Queries that are true in ``blind``, ``bool[..., 1]``, get zeros. The result has the `wide_type` of the dtype.
    """
    scores = rounded(scores, dtype)
    if blind is not None:
        scores = jnp.where(blind, jnp.zeros((), scores.dtype), scores)
    largest = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True, initial=-jnp.inf))
    exponentials = rounded(jnp.exp(rounded(scores - largest, dtype)), dtype)
    chances = rounded(exponentials / rounded(jnp.sum(exponentials, axis=-1, keepdims=True), dtype), dtype)
    return chances if blind is None else jnp.where(blind, jnp.zeros((), chances.dtype), chances)


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
    """RotaryEmbedding of all features of a head, or of the first features."""
    of_one_type(X, cos_cache, sin_cache)
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
    """Return the rows of a cache for each token: ``[batch, tokens, features / 2]``."""
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


OPERATORS: dict[str, Versions] = {
    "Attention": since(attention_23, 23) | since(attention_24, 24) | since(attention, 25),
    "ai.onnx.preview::FlexAttention": since(flex_attention, 1),
    "RotaryEmbedding": since(rotary_embedding, 23),
}
