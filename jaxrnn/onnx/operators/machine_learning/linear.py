"""Linear models of ``ai.onnx.ml``. Their coefficients are attributes, so they are numbers of the formula."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.cells import product
from jaxrnn.onnx.operators.machine_learning.features import as_float
from jaxrnn.onnx.operators.machine_learning.scores import best, label_at, labels_of, of_two, transformed
from jaxrnn.onnx.registry import since
from jaxrnn.onnx.values import Value


def _rows(x: Value, coefficients: tuple[float, ...], intercepts: tuple[float, ...]) -> jax.Array:
    """``x A' + b``; a vector is a matrix of one row."""
    x = jnp.atleast_2d(as_float(x))
    if x.ndim != 2 or not coefficients or len(coefficients) % x.shape[1]:
        raise ValueError(f"{len(coefficients)} coefficients do not fit features of shape {x.shape}")
    matrix = np.asarray(coefficients, np.float32).reshape((-1, x.shape[1]))
    scores = product(x, jnp.asarray(matrix.T))
    if not intercepts:
        return scores
    if len(intercepts) != matrix.shape[0]:
        raise ValueError(f"there are {len(intercepts)} intercepts for {matrix.shape[0]} rows of coefficients")
    return scores + np.asarray(intercepts, np.float32)


def linear_regressor(
    x: Value,
    *,
    coefficients: tuple[float, ...] = (),
    intercepts: tuple[float, ...] = (),
    post_transform: str = "NONE",
    targets: int = 1,
) -> Value:
    """LinearRegressor: one column for each target."""
    y = _rows(x, coefficients, intercepts)
    if y.shape[1] != targets:
        raise ValueError(f"the coefficients are for {y.shape[1]} targets, not {targets}")
    return transformed(y, post_transform)


def linear_classifier(
    x: Value,
    *,
    classlabels_ints: tuple[int, ...] | None = None,
    classlabels_strings: tuple[str, ...] | None = None,
    coefficients: tuple[float, ...],
    intercepts: tuple[float, ...] = (),
    multi_class: int = 0,
    post_transform: str = "NONE",
    output_count: int = 2,
) -> list[Value]:
    """LinearClassifier: labels and scores; one row of coefficients scores the second of two classes."""
    del multi_class  # how the coefficients were trained
    labels = labels_of(classlabels_strings, classlabels_ints)
    scores = _rows(x, coefficients, intercepts)
    if scores.shape[1] == 1 and labels.size == 2:
        label = label_at((scores[:, 0] > 0).astype(jnp.int32), labels)
        return [label, of_two(scores, post_transform, share=True)][:output_count]
    return [best(scores, labels), transformed(scores, post_transform)][:output_count]


OPERATORS = {
    "ai.onnx.ml::LinearClassifier": since(linear_classifier, 1),
    "ai.onnx.ml::LinearRegressor": since(linear_regressor, 1),
}
