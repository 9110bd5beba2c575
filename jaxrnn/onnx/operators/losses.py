"""Losses over classes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrnn.onnx.operators.arithmetic import alike
from jaxrnn.onnx.operators.rounding import wide_type
from jaxrnn.onnx.registry import since
from jaxrnn.onnx.values import Value, traced


def _reduced(loss: jax.Array, weight: jax.Array, reduction: str) -> jax.Array:
    """The loss of every sample, their sum, or their weighted mean; ``weight`` is 0 for ignored samples."""
    match reduction:
        case "none":
            return loss
        case "sum":
            return jnp.sum(loss)
        case "mean":
            return jnp.sum(loss) / jnp.sum(weight)
    raise ValueError(f"reduction must be none, sum or mean, not {reduction!r}")


def negative_log_likelihood(
    input: Value, target: Value, weight: Value = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> Value:
    """NegativeLogLikelihoodLoss of log probabilities ``[N, C, ...]`` for classes ``[N, ...]``.

    The loss of a class that does not exist is NaN, unless it is ``ignore_index``. The mean of no samples is NaN.
    """
    alike(input, weight)
    x, target = traced(input), traced(target)
    if x.ndim < 2 or target.shape != (x.shape[0], *x.shape[2:]):
        raise ValueError(f"scores of shape {x.shape} need classes of shape [N, ...], not {target.shape}")
    count = x.shape[1]
    wide = wide_type(x.dtype)
    ignored = jnp.zeros(target.shape, bool) if ignore_index is None else target == ignore_index
    outside = ((target < 0) | (target >= count)) & ~ignored
    classes = jnp.arange(count, dtype=target.dtype).reshape(-1, *(1 for _ in x.shape[2:]))
    hot = jnp.where(ignored, -1, target)[:, None] == classes
    each = jnp.ones((count,), wide) if weight is None else traced(weight).astype(wide)
    if each.shape != (count,):
        raise ValueError(f"the weight has shape {each.shape}, but there are {count} classes")
    # Sums of one term or none: the log probability of other classes and of ignored samples may be -inf, and 0 * inf is
    # NaN.
    factor = jnp.sum(jnp.where(hot, each.reshape(classes.shape), jnp.zeros((), wide)), axis=1)
    loss = -jnp.sum(jnp.where(hot, x.astype(wide), jnp.zeros((), wide)), axis=1) * factor
    loss = jnp.where(outside, jnp.full((), jnp.nan, wide), loss)
    return _reduced(loss, factor, reduction).astype(x.dtype)


def softmax_cross_entropy(
    scores: Value,
    labels: Value,
    weights: Value = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    output_count: int = 1,
) -> list[Value]:
    """SoftmaxCrossEntropyLoss: the negative log likelihood of the softmax over axis 1, and its logarithm."""
    x = traced(scores)
    wide = jax.nn.log_softmax(x.astype(wide_type(x.dtype)), axis=1)
    known = None if weights is None else traced(weights).astype(wide.dtype)
    loss = negative_log_likelihood(wide, labels, known, ignore_index=ignore_index, reduction=reduction)
    return [loss.astype(x.dtype), wide.astype(x.dtype)][:output_count]


OPERATORS = {
    "NegativeLogLikelihoodLoss": since(negative_log_likelihood, 12, 13, 22),
    "SoftmaxCrossEntropyLoss": since(softmax_cross_entropy, 12, 13),
}
