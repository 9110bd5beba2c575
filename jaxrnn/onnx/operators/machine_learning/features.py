"""Operators of ``ai.onnx.ml`` that prepare arrays of features: selecting, joining, scaling, filling in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.onnx.operators.indexing import gather
from jaxrnn.onnx.registry import since
from jaxrnn.onnx.values import Value, traced


def as_float(x: Value) -> jax.Array:
    """Features as float32, the type of all results."""
    return traced(x).astype(jnp.float32)


def of_features(values: Sequence[Any], count: Any, what: str) -> np.ndarray:
    """An attribute with one entry for all features or for each."""
    if len(values) not in (1, count):
        raise ValueError(f"{what} has {len(values)} entries for {count} features; 1 or {count} are expected")
    return np.asarray(values)


def array_feature_extractor(x: Value, y: Value) -> Value:
    """ArrayFeatureExtractor: elements along the last axis, by index; a vector gives a matrix of one row."""
    selected = gather(x, y.reshape(-1), axis=-1)
    return selected.reshape((1, -1)) if len(x.shape) == 1 else selected


def binarizer(x: Value, *, threshold: float = 0.0) -> Value:
    """Binarizer: 1 above the threshold, else 0."""
    x = traced(x)
    wide = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float64)
    return (wide > wide.dtype.type(threshold)).astype(x.dtype)


def feature_vectorizer(*inputs: Value, inputdimensions: tuple[int, ...] = ()) -> Value:
    """FeatureVectorizer: the concatenated columns of all inputs, each truncated or zero-padded to its dimension."""
    sizes = inputdimensions or tuple(value.shape[-1] for value in inputs)
    if len(sizes) != len(inputs):
        raise ValueError(f"inputdimensions has {len(sizes)} entries for {len(inputs)} inputs")
    parts = []
    for value, size in zip(inputs, sizes, strict=True):
        x = as_float(value)
        if x.ndim not in (1, 2):
            raise ValueError(f"inputs have one or two dimensions, not {x.ndim}")
        x = jnp.atleast_2d(x)[:, :size]
        parts.append(jnp.pad(x, ((0, 0), (0, size - x.shape[1]))))
    return jnp.concatenate(parts, axis=1)


def imputer(
    x: Value,
    *,
    imputed_value_floats: tuple[float, ...] = (),
    imputed_value_int64s: tuple[int, ...] = (),
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Value:
    """Imputer: one value, such as NaN, replaced by another one, or by one for each feature."""
    x = traced(x)
    floating = jnp.issubdtype(x.dtype, jnp.floating)
    values, replaced = (
        (imputed_value_floats, replaced_value_float) if floating else (imputed_value_int64s, replaced_value_int64)
    )
    if not values:
        raise ValueError(f"imputed_value_{'floats' if floating else 'int64s'} is missing for {x.dtype.name}")
    fill = jnp.asarray(of_features(values, x.shape[-1], "the attribute of imputed values").astype(x.dtype))
    missing = jnp.isnan(x) if np.isnan(replaced) else x == x.dtype.type(replaced)
    return jnp.where(missing, fill, x)


def normalizer(x: Value, *, norm: str = "MAX") -> Value:
    """Normalizer: each row over its greatest element (not its magnitude), L1 or L2 norm; a row of norm 0 stays.

    A constant 0 replaces the root of a sum of 0, whose derivative would be infinite.
    """
    x = as_float(x)
    match norm:
        case "MAX":
            size = jnp.max(x, -1, keepdims=True)
        case "L1":
            size = jnp.sum(jnp.abs(x), -1, keepdims=True)
        case "L2":
            squares = jnp.sum(x * x, -1, keepdims=True)
            size = jnp.where(squares == 0, 0, jnp.sqrt(jnp.where(squares == 0, 1, squares)))
        case _:
            raise ValueError(f"norm must be MAX, L1 or L2, not {norm!r}")
    return jnp.where(size == 0, x, x / jnp.where(size == 0, jnp.ones((), x.dtype), size))


def scaler(x: Value, *, offset: tuple[float, ...] = (), scale: tuple[float, ...] = ()) -> Value:
    """Scaler: less the offset, times the scale."""
    x = as_float(x)
    less = of_features(offset or (0.0,), x.shape[-1], "offset").astype(np.float32)
    return (x - less) * of_features(scale or (1.0,), x.shape[-1], "scale").astype(np.float32)


OPERATORS = {
    "ai.onnx.ml::ArrayFeatureExtractor": since(array_feature_extractor, 1),
    "ai.onnx.ml::Binarizer": since(binarizer, 1),
    "ai.onnx.ml::FeatureVectorizer": since(feature_vectorizer, 1),
    "ai.onnx.ml::Imputer": since(imputer, 1),
    "ai.onnx.ml::Normalizer": since(normalizer, 1),
    "ai.onnx.ml::Scaler": since(scaler, 1),
}
