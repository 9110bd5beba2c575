"""Attention: scaled dot products of queries and keys, with masks, windows and caches, or with graphs of the file's own.

Every intermediate value is rounded to the type that the specification gives it. 16-bit products accumulate in 32 bits.
Source: operators Attention, opsets 23 to 25, and FlexAttention of the ONNX specification.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.onnx.evaluate import Subgraph
from jaxrnn.onnx.operators.arithmetic import alike
from jaxrnn.onnx.operators.attention_masks import attention_bias
from jaxrnn.onnx.operators.attention_products import grouped_product, probabilities, split_heads
from jaxrnn.onnx.operators.rounding import rounded, wide_type
from jaxrnn.onnx.operators.types import numpy_dtype
from jaxrnn.onnx.registry import earlier, since
from jaxrnn.onnx.values import Value, describe, traced

#: The values of ``qk_matmul_output_mode``: what the fourth output holds.
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

    ``short_masks`` is no attribute: from opset 24 on, a mask may have fewer keys than there are.
    """
    _check_attributes(Q, q_num_heads, kv_num_heads, qk_matmul_output_mode, scale)
    window = left_window_size, right_window_size
    if min(window) < -1:
        raise ValueError(f"a window size must be -1 or more, not {min(window)}")
    q, k, v = split_heads(Q, q_num_heads, "Q"), split_heads(K, kv_num_heads, "K"), split_heads(V, kv_num_heads, "V")
    k, v, past_length = _with_past(k, v, (past_key, past_value), nonpad_kv_seqlen)
    alike(q, k)
    _check_shapes(q, k, v, nonpad_kv_seqlen)
    dtype = q.dtype
    wide = wide_type(dtype)
    root = np.sqrt(scale if scale is not None else 1 / max(q.shape[3], 1) ** 0.5).astype(dtype)
    q_scaled, k_scaled = (rounded(x.astype(wide) * root.astype(wide), dtype).astype(dtype) for x in (q, k))
    scores = [rounded(grouped_product(q_scaled, k_scaled.swapaxes(2, 3)), dtype)]
    scores.append(_capped(scores[RAW], softcap, dtype))
    valid = None if nonpad_kv_seqlen is None else traced(nonpad_kv_seqlen)
    bias = attention_bias(
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


def _check_attributes(
    queries: Value, q_num_heads: int | None, kv_num_heads: int | None, mode: int, scale: float | None
) -> None:
    if len(queries.shape) == 4 and (q_num_heads is not None or kv_num_heads is not None):
        raise ValueError("q_num_heads and kv_num_heads are for inputs of rank 3; those of rank 4 have an axis of heads")
    if mode not in (RAW, CAPPED, BIASED, PROBABILITIES):
        raise ValueError(f"qk_matmul_output_mode must be 0, 1, 2 or 3, not {mode}")
    _check_scale(scale)


def _check_scale(scale: float | None) -> None:
    if scale is not None and scale < 0:
        raise ValueError(f"scale must not be negative, as Q and K are multiplied with its square root, not {scale}")


def _with_past(k: jax.Array, v: jax.Array, past: tuple[Value, Value], valid: Value) -> tuple[jax.Array, jax.Array, Any]:
    """Keys and values appended to those of the cache, and the number of tokens in the cache."""
    if (past[0] is None) != (past[1] is None):
        raise ValueError("past_key and past_value go together, but only one of them is given")
    if past[0] is None:
        return k, v, 0
    if valid is not None:
        raise ValueError("nonpad_kv_seqlen is for caches outside the operator, but past_key and past_value are given")
    caches = []
    for name, old, new in zip(("past_key", "past_value"), past, (k, v), strict=True):
        alike(old, new)
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
            f"queries {q.shape}, keys {k.shape} and values {v.shape} do not fit: one batch, one head size for "
            "queries and keys, one number of heads and of tokens for keys and values"
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
        size == 1 or size == expected for size, expected in zip(bias.shape[::-1], scores.shape[::-1], strict=False)
    )
    if not fits:
        raise ValueError(f"attn_mask gives a bias of shape {bias.shape}, which does not broadcast to {scores.shape}")
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
    alike(Q, K, V)
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
    """Scores or probabilities, modified by a graph of the file."""
    if modifier is None:
        return x
    results = modifier(x.astype(kind))
    if len(results) != 1 or tuple(results[0].shape) != tuple(x.shape):
        shown = ", ".join(map(describe, results))
        raise ValueError(f"{name} must give one tensor of the shape {x.shape} that it takes, not {shown}")
    alike(results[0], np.zeros((), kind))
    return rounded(traced(results[0]), kind)


OPERATORS = {
    "Attention": since(attention_23, 23) | since(attention_24, 24) | since(attention, 25),
    "ai.onnx.preview::FlexAttention": since(flex_attention, 1),
}
