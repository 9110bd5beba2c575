"""Operators of ``ai.onnx.ml`` on features and labels: selection, scaling, encoding, scores of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from jaxrnn.onnx.operators.indexing import gather
from jaxrnn.onnx.registry import Versions, earlier, since
from jaxrnn.onnx.values import Value, describe, is_text, static, text_array, traced


def as_float(x: Value) -> jax.Array:
    """Convert features to float32, the type of all results."""
    return traced(x).astype(jnp.float32)


def of_features(values: Sequence[Any], count: Any, what: str) -> np.ndarray:
    """Return an attribute with one entry for all features or for each feature."""
    if len(values) not in (1, count):
        raise ValueError(f"{what} has {len(values)} entries for {count} features; 1 or {count} are expected")
    return np.asarray(values)


def array_feature_extractor(x: Value, y: Value) -> Value:
    """ArrayFeatureExtractor: elements along the last axis, by index; a vector becomes a matrix with a single row."""
    selected = gather(x, y.reshape(-1), axis=-1)
    return selected.reshape((1, -1)) if len(x.shape) == 1 else selected


def binarizer(x: Value, *, threshold: float = 0.0) -> Value:
    """Binarizer: 1 above the threshold, else 0."""
    x = traced(x)
    wide = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float64)
    return (wide > wide.dtype.type(threshold)).astype(x.dtype)


def feature_vectorizer(*inputs: Value, inputdimensions: tuple[int, ...] = ()) -> Value:
    """FeatureVectorizer: the concatenated columns of all inputs, each truncated or zero-padded to a dimension."""
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
    """Imputer: replace a value such as NaN by a number, or by a number for each feature."""
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
    """Divide each row by the greatest element (not the magnitude), L1 or L2 norm; a row of norm 0 stays.

    A constant 0 replaces the root of 0, because the derivative would be infinite.
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


def key_indices(x: Value, keys: np.ndarray) -> Value:
    """Return the index of each element among the keys: the last of equal keys, or -1 for an unknown element."""
    if is_text(x) != is_text(keys):
        raise TypeError(f"{describe(x)} cannot be compared with keys of type {describe(keys)}")
    if is_text(x):
        places = {key: place for place, key in enumerate(keys.ravel().tolist())}
        return np.array([places.get(item, -1) for item in x.ravel().tolist()], np.int64).reshape(x.shape)
    x = traced(x)
    if not keys.size:
        return jnp.full(x.shape, -1, jnp.int64)
    candidates = jnp.asarray(keys.ravel())
    same = x[..., None] == candidates.astype(x.dtype)
    if jnp.issubdtype(x.dtype, jnp.floating):
        same = same | (jnp.isnan(x[..., None]) & jnp.isnan(candidates.astype(x.dtype)))
    return jnp.max(jnp.where(same, jnp.arange(keys.size), -1), -1)


def look_up(index: Value, values: np.ndarray, default: np.ndarray) -> Value:
    """Return the value at each index, or the default for index -1."""
    return label_at(index, np.concatenate([values.ravel(), default.reshape(1)]))


def _one_of(**attributes: Any) -> np.ndarray:
    """Return the single attribute of several that the node has, as an array of the right type."""
    present = {name: value for name, value in attributes.items() if value is not None}
    if len(present) != 1:
        raise ValueError(
            f"exactly one attribute of {', '.join(attributes)} is expected, not {', '.join(present) or 'none'}"
        )
    ((name, value),) = present.items()
    if name.endswith("tensor"):
        return value
    if name.endswith("strings"):
        return text_array(value)
    return np.asarray(value, np.float32 if name.endswith("floats") else np.int64)


def label_encoder(
    x: Value,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: np.ndarray | None = None,
    keys_floats: tuple[float, ...] | None = None,
    keys_int64s: tuple[int, ...] | None = None,
    keys_strings: tuple[str, ...] | None = None,
    keys_tensor: np.ndarray | None = None,
    values_floats: tuple[float, ...] | None = None,
    values_int64s: tuple[int, ...] | None = None,
    values_strings: tuple[str, ...] | None = None,
    values_tensor: np.ndarray | None = None,
) -> Value:
    """LabelEncoder: the value of each key. NaN matches NaN, and the last of equal keys wins."""
    keys = _one_of(keys_floats=keys_floats, keys_int64s=keys_int64s, keys_strings=keys_strings, keys_tensor=keys_tensor)
    values = _one_of(
        values_floats=values_floats,
        values_int64s=values_int64s,
        values_strings=values_strings,
        values_tensor=values_tensor,
    )
    if keys.size != values.size:
        raise ValueError(f"there are {keys.size} keys, but {values.size} values")
    if default_tensor is not None and default_tensor.size == 1:
        default = default_tensor
    elif is_text(values):
        default = text_array([default_string])
    else:
        floating = jnp.issubdtype(values.dtype, jnp.floating)
        default = np.asarray(default_float if floating else default_int64, values.dtype)
    return look_up(key_indices(x, keys), values, default)


def _either_way(x: Value, numbers: np.ndarray, strings: np.ndarray, integer: int, string: str) -> Value:
    """Map strings to numbers, or numbers to strings."""
    if numbers.size != strings.size:
        raise ValueError(f"there are {numbers.size} integers, but {strings.size} strings")
    if is_text(x):
        return look_up(key_indices(x, strings), numbers, np.asarray(integer, np.int64))
    return look_up(key_indices(x, numbers), strings, text_array([string]))


def label_encoder_1(
    x: Value,
    *,
    classes_strings: tuple[str, ...] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Value:
    """LabelEncoder, between strings and their places in a list."""
    numbers = np.arange(len(classes_strings), dtype=np.int64)
    return _either_way(x, numbers, text_array(classes_strings), default_int64, default_string)


def category_mapper(
    x: Value,
    *,
    cats_int64s: tuple[int, ...] = (),
    cats_strings: tuple[str, ...] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Value:
    """CategoryMapper: strings to integers, or integers to strings."""
    return _either_way(x, np.asarray(cats_int64s, np.int64), text_array(cats_strings), default_int64, default_string)


def one_hot_encoder(
    x: Value, *, cats_int64s: tuple[int, ...] | None = None, cats_strings: tuple[str, ...] | None = None, zeros: int = 1
) -> Value:
    """OneHotEncoder: a row for each element. Unknown elements become zeros, or with ``zeros=0`` an error."""
    categories = _one_of(cats_int64s=cats_int64s, cats_strings=cats_strings)
    if not is_text(x) and not is_text(categories):
        x = traced(x).astype(jnp.int64)
    place = key_indices(x, categories)
    if not zeros and np.any(static(place, "the check that every element has a category (zeros=0)") < 0):
        raise ValueError("an element has no category, but zeros=0 requires a category")
    return jax.nn.one_hot(place, categories.size, dtype=jnp.float32)


TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def transformed(scores: jax.Array, transform: str) -> jax.Array:
    """Transform scores ``[batch, classes]`` by ``post_transform``."""
    match transform:
        case "NONE":
            return scores
        case "SOFTMAX":
            return jax.nn.softmax(scores, -1)
        case "LOGISTIC":
            return jax.nn.sigmoid(scores)
        case "SOFTMAX_ZERO":
            some = jnp.abs(scores) > 1e-7
            top = jax.lax.stop_gradient(jnp.max(scores, -1, keepdims=True))
            powers = jnp.where(some, jnp.exp(jnp.where(some, scores - top, jnp.zeros((), scores.dtype))), 0)
            total = jnp.sum(powers, -1, keepdims=True)
            return powers / jnp.where(total == 0, jnp.ones((), scores.dtype), total)
        case "PROBIT":
            return ndtri(scores)
    raise ValueError(f"post_transform must be one of {', '.join(TRANSFORMS)}, not {transform!r}")


def of_two(score: jax.Array, transform: str, *, share: bool) -> jax.Array:
    """Return scores of two classes ``[batch, 2]`` from the score of the second class, ``[batch, 1]``."""
    if transform == "PROBIT":
        raise ValueError("post_transform PROBIT is not defined for one score of two classes")
    if transform == "LOGISTIC":
        return jax.nn.sigmoid(jnp.concatenate([-score, score], -1))
    transformed(score, transform)
    return jnp.concatenate([1 - score if share else -score, score], -1)


def labels_of(strings: Sequence[str] | None, integers: Sequence[int] | None) -> np.ndarray:
    """Return the labels of a classifier as strings or int64."""
    labels: np.ndarray = text_array(strings) if strings else np.asarray(integers or (), np.int64)
    if labels.size < 2 or (strings and integers):
        raise ValueError("a classifier needs at least two class labels, either strings or integers")
    return labels


def label_at(index: Any, labels: np.ndarray) -> Value:
    """Return the labels at indices. Strings need known indices."""
    if is_text(labels):
        return labels[static(index, "the index of a label that is a string")]
    return jnp.asarray(labels)[index]


def highest(scores: jax.Array) -> jax.Array:
    """Return the index of the highest score of each row as int32, independent of ``jax_enable_x64``."""
    return jax.lax.argmax(scores, 1, np.int32)


def best(scores: jax.Array, labels: np.ndarray) -> Value:
    """Return the label of the highest score of each row."""
    if scores.shape[-1] != labels.size:
        raise ValueError(f"there are {labels.size} class labels, but {scores.shape[-1]} scores")
    return label_at(highest(scores), labels)


OPERATORS: dict[str, Versions] = {
    "ai.onnx.ml::ArrayFeatureExtractor": since(array_feature_extractor, 1),
    "ai.onnx.ml::Binarizer": since(binarizer, 1),
    "ai.onnx.ml::FeatureVectorizer": since(feature_vectorizer, 1),
    "ai.onnx.ml::Imputer": since(imputer, 1),
    "ai.onnx.ml::Normalizer": since(normalizer, 1),
    "ai.onnx.ml::Scaler": since(scaler, 1),
    "ai.onnx.ml::CategoryMapper": since(category_mapper, 1),
    "ai.onnx.ml::LabelEncoder": since(label_encoder_1, 1)
    | since(earlier(label_encoder, "default_tensor", "keys_tensor", "values_tensor"), 2)
    | since(label_encoder, 4),
    "ai.onnx.ml::OneHotEncoder": since(one_hot_encoder, 1),
}
