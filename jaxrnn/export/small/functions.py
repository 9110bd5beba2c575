"""Functions that engines lack, as JAX functions of other primitives."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.export.translator import PAIRS, SMALL, Translator, of_arrays


@PAIRS.add(kind="random")
@SMALL.add(kind="random")
def _random(translator: Translator, equation: JaxprEqn, *operands: Any) -> NoReturn:
    translator.refuse(
        f"{translator.engine} does not draw the same random numbers; draw the numbers outside, and pass them as an "
        "input"
    )


@of_arrays(SMALL, "lt_to")
def _is_below(x: Any, y: Any) -> Any:
    """Compare in the total order of floats: -0 is below 0, and NaN above all numbers."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x < y
    # The reciprocal shows the sign of a zero.
    return (x < y) | ((x == y) & (1 / x < 1 / y)) | ((y != y) & (x == x))


@of_arrays(SMALL, "le_to")
def _is_not_above(x: Any, y: Any) -> Any:
    return ~_is_below(y, x)


@of_arrays(SMALL, "rsqrt")
def _reciprocal_root(x: Any) -> Any:
    return lax.integer_pow(lax.sqrt(x), -1)


@of_arrays(SMALL, "cbrt")
def _cube_root(x: Any) -> Any:
    """Return the power of 1/3 of the magnitude, after a step of Newton's method, with the sign of the operand."""
    size = jnp.abs(at_least_float32(x))
    root = jnp.exp(jnp.log(size) / 3)
    finite = (root > 0) & (root < np.inf)
    inside = jnp.where(finite, root, 1)
    root = jnp.where(finite, inside - (inside - size / (inside * inside)) / 3, root)
    return jnp.where(x < 0, -root, root).astype(x.dtype)


def at_least_float32(x: Any) -> Any:
    """Return numbers in float32 or float64."""
    return x if x.dtype == np.float64 else x.astype(np.float32)


@of_arrays(SMALL, "log2")
def _binary_logarithm(x: Any) -> Any:
    return (lax.log(x.astype(np.float64)) / np.log(2)).astype(x.dtype)


@of_arrays(SMALL, "one_minus_square")
def _one_minus_square(x: Any) -> Any:
    return (1 - x) * (1 + x)


@of_arrays(SMALL, "polynomial")
def _polynomial(x: Any, *coefficients: Any) -> Any:
    """Evaluate a polynomial by Horner's rule; the constant coefficient is first."""
    total = functools.reduce(lambda total, each: total * x + each, reversed(coefficients))
    return jnp.broadcast_to(total, x.shape)


def is_known(y: Any, *others: int) -> bool:
    """Return True if a divisor is constant and differs from these numbers."""
    return isinstance(y, np.ndarray) and not np.isin(y, others).any()


def rounded_away(x: Any) -> Any:
    """Round half away from 0, in float32 at least."""
    magnitude = lax.abs(at_least_float32(x))
    low = lax.floor(magnitude)
    up = jnp.where(magnitude - low >= 0.5, low + 1, low)
    return jnp.where(x < 0, -up, up).astype(x.dtype)
