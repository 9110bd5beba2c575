"""Linear models and support vector machines of ``ai.onnx.ml``. Coefficients are attributes, and not parameters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn._jax import varying
from jaxrnn.cells.forms import product
from jaxrnn.onnx.operators.machine_learning.features import (
    as_float,
    best,
    highest,
    label_at,
    labels_of,
    of_two,
    transformed,
)
from jaxrnn.onnx.registry import Versions, since
from jaxrnn.onnx.values import Value


def _rows(x: Value, coefficients: tuple[float, ...], intercepts: tuple[float, ...]) -> jax.Array:
    """Return ``x A' + b``, with a vector as a matrix of a single row."""
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


def _kernel(x: jax.Array, vectors: np.ndarray, kind: str, parameters: Sequence[float]) -> jax.Array:
    """Return the kernel of each row with each support vector, ``[batch, vectors]``."""
    if parameters and len(parameters) != 3:
        raise ValueError(f"kernel_params must hold gamma, coef0 and degree, not {len(parameters)} numbers")
    gamma, offset, degree = map(np.float32, parameters or (0, 0, 0))
    if kind == "RBF":
        difference = x[:, None, :] - vectors
        return jnp.exp(-gamma * jnp.sum(difference * difference, -1))
    dot = product(x, jnp.asarray(vectors.T))
    match kind:
        case "LINEAR":
            return dot
        case "POLY":
            return lax.integer_pow(gamma * dot + offset, int(degree))
        case "SIGMOID":
            return jnp.tanh(gamma * dot + offset)
    raise ValueError(f"kernel_type must be LINEAR, POLY, RBF or SIGMOID, not {kind!r}")


def _table(values: Sequence[float], rows: int, what: str) -> np.ndarray:
    if not rows or len(values) % rows:
        raise ValueError(f"{what} has {len(values)} numbers, which do not divide into {rows} rows")
    return np.asarray(values, np.float32).reshape(rows, -1)


def svm_regressor(
    x: Value,
    *,
    coefficients: tuple[float, ...] = (),
    kernel_params: tuple[float, ...] = (),
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: tuple[float, ...] = (),
    support_vectors: tuple[float, ...] = (),
) -> Value:
    """SVMRegressor: one column; with ``one_class``, 1 for members of the class, else -1."""
    x = jnp.atleast_2d(as_float(x))
    if n_supports:
        kernels = _kernel(x, _table(support_vectors, n_supports, "support_vectors"), kernel_type, kernel_params)
    else:
        kernels = x
    if len(coefficients) != kernels.shape[1] or len(rho) != 1:
        raise ValueError(
            f"{kernels.shape[1]} coefficients and one rho are expected, not {len(coefficients)}, {len(rho)}"
        )
    y = product(kernels, jnp.asarray(np.asarray(coefficients, np.float32)[:, None])) + np.float32(rho[0])
    if one_class:
        return jnp.where(y > 0, jnp.ones((), y.dtype), -jnp.ones((), y.dtype))
    return transformed(y, post_transform)


def _votes(
    kernels: jax.Array, coefficients: np.ndarray, counts: Sequence[int], rho: Sequence[float]
) -> tuple[jax.Array, jax.Array]:
    """Return the votes for each class, and the score of each pair of classes (positive for the first class)."""
    starts = np.cumsum([0, *counts])
    part = [slice(int(start), int(end)) for start, end in itertools.pairwise(starts)]
    scores, votes = [], [jnp.zeros(kernels.shape[0], jnp.int32)] * len(counts)
    for index, (i, j) in enumerate(itertools.combinations(range(len(counts)), 2)):
        mine = product(kernels[:, part[i]], jnp.asarray(coefficients[j - 1, part[i], None]))
        other = product(kernels[:, part[j]], jnp.asarray(coefficients[i, part[j], None]))
        score = (mine + other)[:, 0] + np.float32(rho[index])
        scores.append(score)
        votes[i] = votes[i] + (score > 0).astype(jnp.int32)
        votes[j] = votes[j] + (score <= 0).astype(jnp.int32)
    return jnp.stack(votes, -1), jnp.stack(scores, -1)


def _probabilities(scores: jax.Array, classes: int, slope: Sequence[float], offset: Sequence[float]) -> jax.Array:
    """Return the probability of each class, ``[batch, classes]``, from logistic functions of pair scores."""
    pairs = list(itertools.combinations(range(classes), 2))
    if len(slope) != len(pairs) or len(offset) != len(pairs):
        raise ValueError(f"prob_a and prob_b must hold {len(pairs)} numbers each, not {len(slope)} and {len(offset)}")
    wins = jnp.clip(
        jax.nn.sigmoid(-(scores * np.asarray(slope, np.float32) + np.asarray(offset, np.float32))), 1e-7, 1 - 1e-7
    )
    table = jnp.zeros((scores.shape[0], classes, classes), scores.dtype)
    for index, (i, j) in enumerate(pairs):
        table = table.at[:, i, j].set(wins[:, index]).at[:, j, i].set(1 - wins[:, index])
    return jax.vmap(_coupled)(table)


def _coupled(wins: jax.Array) -> jax.Array:
    """Return the probabilities closest to pairwise probabilities, by at most 100 rounds of libsvm's iteration."""
    classes = wins.shape[0]
    other = ~jnp.eye(classes, dtype=bool)
    squares = jnp.sum(jnp.where(other, wins * wins, jnp.zeros((), wins.dtype)), 0)
    q = jnp.where(other, -wins.T * wins, jnp.diag(squares))

    def round_(state: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, jax.Array], None]:
        p, done = state
        qp = q @ p
        pqp = p @ qp
        done = done | (jnp.max(jnp.abs(qp - pqp)) < 0.005 / classes)
        new = p
        for t in range(classes):
            step = (pqp - qp[t]) / q[t, t]
            new = new.at[t].add(step)
            pqp = (pqp + step * (step * q[t, t] + 2 * qp[t])) / (1 + step) ** 2
            qp = (qp + step * q[t]) / (1 + step)
            new = new / (1 + step)
        return (jnp.where(done, p, new), done), None

    start = jnp.full(classes, 1 / classes, wins.dtype)
    (p, _), _ = varying.scan(round_, (start, jnp.asarray(False)), length=max(100, classes))
    return p


def svm_classifier(
    x: Value,
    *,
    classlabels_ints: tuple[int, ...] | None = None,
    classlabels_strings: tuple[str, ...] | None = None,
    coefficients: tuple[float, ...] = (),
    kernel_params: tuple[float, ...] = (),
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: tuple[float, ...] = (),
    prob_b: tuple[float, ...] = (),
    rho: tuple[float, ...] = (),
    support_vectors: tuple[float, ...] = (),
    vectors_per_class: tuple[int, ...] = (),
    output_count: int = 2,
) -> list[Value]:
    """SVMClassifier: labels by votes of the pairs of classes, and the pairs' scores or the classes' probabilities.

    Without support vectors, the classifier is linear: a row of coefficients for each class. The highest score wins.
    """
    x = jnp.atleast_2d(as_float(x))
    labels = labels_of(classlabels_strings, classlabels_ints)
    pairs = labels.size * (labels.size - 1) // 2
    if not vectors_per_class:
        if len(rho) != 1:
            raise ValueError(f"a linear classifier has one rho, not {len(rho)}")
        matrix = _table(coefficients, labels.size, "coefficients")
        scores = product(x, jnp.asarray(matrix.T)) + np.float32(rho[0])
        return [best(scores, labels), transformed(scores, post_transform)][:output_count]
    if len(vectors_per_class) != labels.size or len(rho) != pairs:
        raise ValueError(f"{labels.size} classes need as many counts of vectors and {pairs} rho, not {len(rho)}")
    count = sum(vectors_per_class)
    kernels = _kernel(x, _table(support_vectors, count, "support_vectors"), kernel_type, kernel_params)
    votes, scores = _votes(kernels, _table(coefficients, labels.size - 1, "coefficients"), vectors_per_class, rho)
    label = label_at(highest(votes), labels)
    if prob_a:
        shares = _probabilities(scores, labels.size, prob_a, prob_b)
        return [label, transformed(shares, post_transform)][:output_count]
    if pairs == 1:
        return [label, of_two(scores, post_transform, share=post_transform != "NONE")][:output_count]
    return [label, transformed(scores, post_transform)][:output_count]


OPERATORS: dict[str, Versions] = {
    "ai.onnx.ml::LinearClassifier": since(linear_classifier, 1),
    "ai.onnx.ml::LinearRegressor": since(linear_regressor, 1),
    "ai.onnx.ml::SVMClassifier": since(svm_classifier, 1),
    "ai.onnx.ml::SVMRegressor": since(svm_regressor, 1),
}
