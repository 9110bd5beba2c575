"""Arithmetic of 16-bit floats in 32 bits, rounded where the specification has a 16-bit value.

XLA may keep excess precision between 16-bit operations, under ``jit`` more often than node by node. Values that must be
rounded are therefore rounded explicitly.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def is_low_precision(dtype: Any) -> bool:
    """Whether a floating type has fewer bits than float32."""
    return jnp.finfo(dtype).bits < 32


def wide_type(dtype: Any) -> np.dtype:
    """The type to compute in: float32 for low-precision floats, else the type itself."""
    return np.dtype(np.float32) if is_low_precision(dtype) else np.dtype(dtype)


def rounded(x: jax.Array, dtype: Any) -> jax.Array:
    """The value rounded to a type, in the `wide_type` of that type."""
    x = x.astype(wide_type(x.dtype))
    info = jnp.finfo(dtype)
    reduced = lax.reduce_precision(x, info.nexp, info.nmant) if is_low_precision(dtype) else x
    return reduced.astype(wide_type(dtype))


def widest(*dtypes: Any) -> np.dtype:
    """The type to compute in with values of several types."""
    return max(map(wide_type, dtypes), key=lambda dtype: dtype.itemsize)
