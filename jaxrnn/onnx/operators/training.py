"""Optimizer steps of ``ai.onnx.preview.training``, and losses over classes.

The inputs of an optimizer step after the learning rate and the update count come in groups: all tensors, all gradients,
then all averages of each kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.onnx.operators.arithmetic import of_one_type
from jaxrnn.onnx.operators.types import wide_type
from jaxrnn.onnx.registry import Versions, since
from jaxrnn.onnx.values import Value, check_choice, traced

Update = Callable[..., tuple[jax.Array, ...]]


def _each(update: Update, kinds: int, inputs: tuple[Value, ...]) -> list[Value]:
    """Update all tensors: ``update`` takes an array of each group, and returns all arrays except the gradient."""
    count, rest = divmod(len(inputs), kinds)
    if rest or not count:
        raise ValueError(f"{len(inputs)} tensors do not divide into {kinds} for each updated tensor")
    arrays = [traced(value) for value in inputs]
    groups = [arrays[kind * count : (kind + 1) * count] for kind in range(kinds)]
    results = [update(*members) for members in zip(*groups, strict=True)]
    return [result[kind] for kind in range(kinds - 1) for result in results]


def _scalar(value: Value, dtype: Any) -> jax.Array:
    return traced(value).reshape(()).astype(dtype)


def momentum(
    R: Value, T: Value, *inputs: Value, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> list[Value]:
    """Momentum, standard or Nesterov's; in the first update (T = 0) beta is 1."""
    check_choice("mode", mode, ("standard", "nesterov"))

    def update(x: jax.Array, gradient: jax.Array, velocity: jax.Array) -> tuple[jax.Array, ...]:
        number = x.dtype.type
        gradient = number(norm_coefficient) * x + gradient
        share = jnp.where(traced(T).reshape(()) > 0, number(beta), number(1))
        velocity = number(alpha) * velocity + share * gradient
        step = velocity if mode == "standard" else gradient + number(alpha) * velocity
        return x - _scalar(R, x.dtype) * step, velocity

    return _each(update, 3, inputs)


def adagrad(
    R: Value,
    T: Value,
    *inputs: Value,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> list[Value]:
    """Adagrad, with a learning rate of R / (1 + T decay_factor)."""

    def update(x: jax.Array, gradient: jax.Array, squares: jax.Array) -> tuple[jax.Array, ...]:
        number = x.dtype.type
        rate = _scalar(R, x.dtype) / (1 + _scalar(T, x.dtype) * number(decay_factor))
        gradient = number(norm_coefficient) * x + gradient
        squares = squares + gradient * gradient
        return x - rate * gradient / (jnp.sqrt(squares) + number(epsilon)), squares

    return _each(update, 3, inputs)


def adam(
    R: Value,
    T: Value,
    *inputs: Value,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> list[Value]:
    """Adam; for T > 0 the learning rate is corrected for averages that began at 0."""

    def update(x: jax.Array, gradient: jax.Array, average: jax.Array, squares: jax.Array) -> tuple[jax.Array, ...]:
        number = x.dtype.type
        gradient = number(norm_coefficient) * x + gradient
        average = number(alpha) * average + number(1 - alpha) * gradient
        squares = number(beta) * squares + number(1 - beta) * gradient * gradient
        rate, time = _scalar(R, x.dtype), _scalar(T, x.dtype)
        later = jnp.maximum(time, number(1))
        # 1 - beta ** T, without cancellation for beta near 1.
        gained = [-jnp.expm1(later * number(np.log(np.float64(decay)))) for decay in (alpha, beta)]
        corrected = rate * jnp.sqrt(gained[1]) / gained[0]
        x = x - jnp.where(time > 0, corrected, rate) * average / (jnp.sqrt(squares) + number(epsilon))
        return number(1 - norm_coefficient_post) * x, average, squares

    return _each(update, 4, inputs)


def negative_log_likelihood(
    input: Value, target: Value, weight: Value = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> Value:
    """NegativeLogLikelihoodLoss of log probabilities ``[N, C, ...]`` for classes ``[N, ...]``.

    The loss of a class that does not exist is NaN, unless it is ``ignore_index``. The mean of no samples is NaN.
    """
    of_one_type(input, weight)
    check_choice("reduction", reduction, ("none", "sum", "mean"))
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
    # Sums of at most one term: the log probability of other classes and of ignored samples may be -inf, and 0 * inf is
    # NaN.
    factor = jnp.sum(jnp.where(hot, each.reshape(classes.shape), jnp.zeros((), wide)), axis=1)
    loss = -jnp.sum(jnp.where(hot, x.astype(wide), jnp.zeros((), wide)), axis=1) * factor
    loss = jnp.where(outside, jnp.full((), jnp.nan, wide), loss)
    if reduction != "none":
        loss = jnp.sum(loss) if reduction == "sum" else jnp.sum(loss) / jnp.sum(factor)
    return loss.astype(x.dtype)


def softmax_cross_entropy(
    scores: Value,
    labels: Value,
    weights: Value = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    output_count: int = 1,
) -> list[Value]:
    """SoftmaxCrossEntropyLoss: the negative log likelihood of the softmax over axis 1, and the log softmax."""
    x = traced(scores)
    wide = jax.nn.log_softmax(x.astype(wide_type(x.dtype)), axis=1)
    known = None if weights is None else traced(weights).astype(wide.dtype)
    loss = negative_log_likelihood(wide, labels, known, ignore_index=ignore_index, reduction=reduction)
    return [loss.astype(x.dtype), wide.astype(x.dtype)][:output_count]


OPERATORS: dict[str, Versions] = {
    "ai.onnx.preview.training::Adagrad": since(adagrad, 1),
    "ai.onnx.preview.training::Adam": since(adam, 1),
    "ai.onnx.preview.training::Momentum": since(momentum, 1),
    "NegativeLogLikelihoodLoss": since(negative_log_likelihood, 12, 13, 22),
    "SoftmaxCrossEntropyLoss": since(softmax_cross_entropy, 12, 13),
}
