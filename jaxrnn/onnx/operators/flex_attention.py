"""FlexAttention: scaled dot-product attention whose scores and probabilities pass through graphs of the file's own."""

from __future__ import annotations

import jax
import numpy as np

from jaxrnn.onnx.evaluate import Subgraph
from jaxrnn.onnx.operators.arithmetic import alike
from jaxrnn.onnx.operators.attention_products import grouped_product, probabilities
from jaxrnn.onnx.operators.rounding import rounded, wide_type
from jaxrnn.onnx.operators.types import numpy_dtype
from jaxrnn.onnx.registry import since
from jaxrnn.onnx.values import Value, describe, traced


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
    if k.shape[0] != q.shape[0] or k.shape[:3] != v.shape[:3] or k.shape[3] != q.shape[3]:
        raise ValueError(f"queries {q.shape}, keys {k.shape} and values {v.shape} do not fit each other")
    if scale is not None and scale < 0:
        raise ValueError(f"scale must not be negative, as Q and K are multiplied with its square root, not {scale}")
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


OPERATORS = {"ai.onnx.preview::FlexAttention": since(flex_attention, 1)}
