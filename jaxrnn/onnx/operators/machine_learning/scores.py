"""Transforms of scores, and labels, for the classifiers and regressors of ``ai.onnx.ml``.

Where the specification is silent, scores are those of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from jaxrnn.onnx.text import text_array
from jaxrnn.onnx.values import Value, is_text, static

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def _softmax_of_others(scores: jax.Array) -> jax.Array:
    """Softmax over the scores that are not 0; those stay 0."""
    some = jnp.abs(scores) > 1e-7
    top = jax.lax.stop_gradient(jnp.max(scores, -1, keepdims=True))
    powers = jnp.where(some, jnp.exp(jnp.where(some, scores - top, jnp.zeros((), scores.dtype))), 0)
    total = jnp.sum(powers, -1, keepdims=True)
    return powers / jnp.where(total == 0, jnp.ones((), scores.dtype), total)


def transformed(scores: jax.Array, transform: str) -> jax.Array:
    """Scores ``[batch, classes]`` under a ``post_transform``."""
    match transform:
        case "NONE":
            return scores
        case "SOFTMAX":
            return jax.nn.softmax(scores, -1)
        case "LOGISTIC":
            return jax.nn.sigmoid(scores)
        case "SOFTMAX_ZERO":
            return _softmax_of_others(scores)
        case "PROBIT":
            return ndtri(scores)
    raise ValueError(f"post_transform must be one of {', '.join(TRANSFORMS)}, not {transform!r}")


def of_two(score: jax.Array, transform: str, *, share: bool) -> jax.Array:
    """The scores of two classes ``[batch, 2]`` from that of the second one, ``[batch, 1]``.

    Args:
        score: the second class's.
        transform: LOGISTIC gives the two logistic functions; the two kinds of softmax change nothing.
        share: whether the score of the first class is one minus that of the second, else its negative.
    """
    if transform == "PROBIT":
        raise ValueError("post_transform PROBIT is not defined for one score of two classes")
    if transform == "LOGISTIC":
        return jax.nn.sigmoid(jnp.concatenate([-score, score], -1))
    transformed(score, transform)
    return jnp.concatenate([1 - score if share else -score, score], -1)


def labels_of(strings: Sequence[str] | None, integers: Sequence[int] | None) -> np.ndarray:
    """A classifier's labels: strings or int64.

    Raises:
        ValueError: there are fewer than two, or of both kinds.
    """
    labels: np.ndarray = text_array(strings) if strings else np.asarray(integers or (), np.int64)
    if labels.size < 2 or (strings and integers):
        raise ValueError("a classifier needs at least two class labels, all of them strings or all of them integers")
    return labels


def label_at(index: Any, labels: np.ndarray) -> Value:
    """The labels at some indices. Strings need known indices."""
    if is_text(labels):
        return labels[static(index, "the index of a label that is a string")]
    return jnp.asarray(labels)[index]


def highest(scores: jax.Array) -> jax.Array:
    """The index of the highest score of each row, int32, whose lowering does not depend on ``jax_enable_x64``."""
    return jax.lax.argmax(scores, 1, np.int32)


def best(scores: jax.Array, labels: np.ndarray) -> Value:
    """The label of the highest score of each row."""
    if scores.shape[-1] != labels.size:
        raise ValueError(f"there are {labels.size} class labels, but {scores.shape[-1]} scores")
    return label_at(highest(scores), labels)
