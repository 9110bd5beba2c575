"""Changes of element type."""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx_ir as ir
from jax import lax

from jaxrnn.onnx.registry import since
from jaxrnn.onnx.values import Value, dtype_of, is_symbolic, traced

_FLOAT8 = frozenset(
    np.dtype(kind)
    for kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz)
)


def numpy_dtype(code: int) -> np.dtype:
    """The NumPy dtype of an ONNX element type."""
    return np.dtype(ir.DataType(code).numpy())


def convert(x: Value, dtype: np.dtype, saturate: bool = True) -> Value:
    """The value in another element type, static if it was; floats go to integers by truncation."""
    if dtype.kind in "OUS" or dtype_of(x).kind in "OUS":
        raise TypeError("conversion from and to strings is not supported")
    if is_symbolic(x):
        return x if np.issubdtype(dtype, np.integer) else traced(x).astype(dtype)
    if dtype in _FLOAT8 and jnp.issubdtype(dtype_of(x), jnp.floating):
        return _to_float8(x, dtype, saturate)
    return x.astype(dtype)


def _to_float8(x: Value, dtype: np.dtype, saturate: bool) -> Value:
    """Out-of-range values become the largest, or with ``saturate`` off infinity (NaN where the type has none)."""
    x = traced(x)
    info = ml_dtypes.finfo(dtype)
    limit = float(info.max)
    wide = x.astype(jnp.float32)
    if saturate:
        wide = jnp.where(jnp.isnan(wide), wide, jnp.clip(wide, -limit, limit))
    return wide.astype(dtype)


def cast(x: Value, *, to: int, saturate: int = 1, round_mode: str = "up") -> Value:
    """Cast."""
    del round_mode  # says how float8e8m0 rounds, a type that `numpy_dtype` has only for storage
    return convert(x, numpy_dtype(to), bool(saturate))


def cast_like(x: Value, target: Value, *, saturate: int = 1, round_mode: str = "up") -> Value:
    """CastLike: to the element type of the second input."""
    del round_mode
    return convert(x, dtype_of(target), bool(saturate))


def bit_cast(x: Value, *, to: int) -> Value:
    """BitCast: the same bits read as another type of the same width."""
    dtype = numpy_dtype(to)
    x = traced(x)
    if dtype.itemsize != x.dtype.itemsize:
        raise TypeError(f"the types must have one width, not {x.dtype} and {dtype}")
    return lax.bitcast_convert_type(x, dtype)


def identity(x: Value) -> Value:
    """Identity."""
    return x


OPERATORS = {
    "BitCast": since(bit_cast, 26),
    "Cast": since(cast, 6, 9, 13, 19, 21, 23, 24, 25, 28),
    "CastLike": since(cast_like, 15, 19, 21, 23, 24, 25),
    "Identity": since(identity, 1, 13, 14, 16, 19, 21, 23, 24, 25),
}
