"""Random numbers.

ONNX requires new numbers in each run, but a pure function returns equal results for equal arguments. The numbers of a
node depend on the attribute ``seed``, or else on the name of the first output. Different nodes draw different numbers.
A node draws the same numbers in all calls, compiled or not, in all iterations of a surrounding loop, and for all
members of a ``jax.vmap``. To draw new numbers in each call, make the numbers an input of the model or change the seed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.onnx.operators.types import numpy_dtype, wide_type
from jaxrnn.onnx.registry import Foldable, bounded, elementwise, inherits, since
from jaxrnn.onnx.values import Value, dtype_of, is_known, traced


def _key(*, seed: float | None = None, output_name: str = "") -> jax.Array:
    """Return a key of a fixed kind of generator, independent of JAX's default."""
    data = output_name.encode() if seed is None else np.float32(seed).tobytes()
    return jax.random.wrap_key_data(jnp.asarray([0, zlib.crc32(data)], jnp.uint32), impl="threefry2x32")


def _float_type(dtype: np.dtype) -> np.dtype:
    if not jnp.issubdtype(dtype, jnp.floating) or dtype.itemsize < 2:
        raise TypeError(f"random numbers are floats of 16 bits or more, not {dtype.name}; give the attribute dtype")
    return dtype


@inherits(_key)
def _normal(shape: tuple[Any, ...], dtype: np.dtype, *, mean: float = 0.0, scale: float = 1.0, **key: Any) -> Value:
    number = _float_type(dtype).type
    return number(mean) + number(scale) * jax.random.normal(_key(**key), shape, dtype)


@inherits(_key)
def _uniform(shape: tuple[Any, ...], dtype: np.dtype, *, high: float = 1.0, low: float = 0.0, **key: Any) -> Value:
    number = _float_type(dtype).type
    return number(low) + number(high - low) * jax.random.uniform(_key(**key), shape, dtype)


def _of_shape(draw: Callable[..., Value]) -> Callable[..., Value]:
    """RandomNormal and RandomUniform: of a fixed shape."""

    @inherits(draw)
    def apply(*, dtype: int = 1, shape: tuple[int, ...], **drawn: Any) -> Value:
        return draw(shape, numpy_dtype(dtype), **drawn)

    return apply


def _like_input(draw: Callable[..., Value]) -> Callable[..., Value]:
    """RandomNormalLike and RandomUniformLike: in the shape of the input."""

    @inherits(draw)
    def apply(input: Value, *, dtype: int | None = None, **drawn: Any) -> Value:
        return draw(tuple(input.shape), _like(input, dtype), **drawn)

    return apply


def _like(input: Value, dtype: int | None) -> np.dtype:
    return dtype_of(input) if dtype is None else numpy_dtype(dtype)


@inherits(_key)
def bernoulli(input: Value, *, dtype: int | None = None, **key: Any) -> Value:
    """Bernoulli: 1 with the input's probability, else 0."""
    p = traced(input)
    drawn = jax.random.uniform(_key(**key), p.shape, wide_type(p.dtype))
    return (drawn < p.astype(drawn.dtype)).astype(_like(input, dtype))


@inherits(_key)
def multinomial(input: Value, *, dtype: int = 6, sample_size: int = 1, **key: Any) -> Value:
    """Multinomial: classes drawn by their unnormalised log probabilities ``[batch, classes]``, with replacement."""
    logits = traced(input)
    if logits.ndim != 2 or sample_size < 1:
        raise ValueError(f"log probabilities [batch, classes] and at least one sample are expected, not {logits.shape}")
    wide = logits.astype(wide_type(logits.dtype))
    # The Gumbel trick: the argmax of log probabilities plus Gumbel noise is a sample.
    noise = jax.random.gumbel(_key(**key), (logits.shape[0], sample_size, logits.shape[1]), wide.dtype)
    drawn = lax.argmax(wide[:, None, :] + noise, 2, np.int32)
    return drawn.astype(numpy_dtype(dtype))


def dropout(
    x: Value,
    ratio: Foldable = None,
    training_mode: Foldable = None,
    *,
    seed: int | None = None,
    output_count: int = 1,
    output_name: str = "",
) -> list[Value]:
    """Dropout: the input itself and a mask of ones, or in training mode elements dropped at random and the rest scaled.

    With a seed, the mask equals the mask of ONNX's reference implementation.
    """
    training = False if training_mode is None else traced(training_mode).reshape(())
    none_dropped = ratio is not None and is_known(ratio) and float(ratio.reshape(())) == 0
    if none_dropped or (is_known(training) and not training):
        return [x, jnp.ones(x.shape, bool)][:output_count]
    x = traced(x)
    share = jnp.asarray(0.5, jnp.float32) if ratio is None else traced(ratio).reshape(())
    share = share.astype(wide_type(share.dtype))
    mask = (_draws(x.shape, seed, output_name).astype(share.dtype) >= share) | ~training
    wide = wide_type(x.dtype)
    scale = jnp.where(training, 1 / (1 - share), jnp.ones((), share.dtype)).astype(wide)
    y = jnp.where(mask, x.astype(wide) * scale, jnp.zeros((), wide)).astype(x.dtype)
    return [y, mask][:output_count]


def _draws(shape: tuple[Any, ...], seed: int | None, output_name: str) -> jax.Array:
    """Draw uniform numbers from 0 to 1; with a seed and a known shape, NumPy's numbers."""
    if seed is None or not all(isinstance(size, int) for size in shape):
        return jax.random.uniform(_key(seed=seed, output_name=output_name), shape, jnp.float32)
    return jnp.asarray(np.random.RandomState(seed % 2**32).uniform(size=shape))


def dropout_7(x: Value, *, ratio: float = 0.5, output_count: int = 1) -> list[Value]:
    """Dropout, for inference; the mask has the type of the input."""
    del ratio
    return [x, jnp.ones(x.shape, dtype_of(x))][:output_count]


def dropout_10(x: Value, *, ratio: float = 0.5, output_count: int = 1) -> list[Value]:
    """Dropout, for inference; the mask is boolean."""
    del ratio
    return dropout(x, output_count=output_count)


OPERATORS = {
    "Bernoulli": elementwise(bernoulli, 15, 22, random=True),
    "Dropout": since(dropout_7, 7) | since(dropout_10, 10) | bounded(dropout, 12, 13, 22, random=True),
    "Multinomial": since(multinomial, 7, 22, random=True),
    "RandomNormal": since(_of_shape(_normal), 1, 22, random=True),
    "RandomNormalLike": since(_like_input(_normal), 1, 22, of_shape=True, random=True),
    "RandomUniform": since(_of_shape(_uniform), 1, 22, random=True),
    "RandomUniformLike": since(_like_input(_uniform), 1, 22, of_shape=True, random=True),
}
