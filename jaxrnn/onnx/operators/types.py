"""Element types and constants: casts between numbers and strings, rounding, shapes and fixed values."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx_ir as ir
from jax import lax

from jaxrnn.jaxprs.casts import converted, kept
from jaxrnn.onnx import symbols
from jaxrnn.onnx.registry import Movement, Static, Versions, bounded, since
from jaxrnn.onnx.values import (
    TEXT,
    Value,
    check_choice,
    dimensions,
    dtype_of,
    elements_of,
    is_symbolic,
    is_text,
    settle,
    size_between,
    static,
    text_array,
    traced,
)

_FLOAT8 = frozenset(
    np.dtype(kind)
    for kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz)
)
_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)

#: By rounding mode: the least fraction bits of a float32 that round up to the next power of two.
_ROUNDS_UP_FROM = {"up": 1, "nearest": 0x400000, "down": 0x800000}

#: Cast's spelling of infinities and NaN.
_SPECIAL = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}

#: Types of ONNX that XLA lacks.
_WITHOUT_XLA = frozenset((ir.DataType.FLOAT6E2M3, ir.DataType.FLOAT6E3M2))


def numpy_dtype(code: int) -> np.dtype:
    """Return the NumPy dtype of an ONNX element type."""
    kind = ir.DataType(code)
    if kind == ir.DataType.STRING:
        return np.dtype(TEXT)
    if kind in _WITHOUT_XLA:
        raise TypeError(f"the element type {kind.name} is not supported")
    return np.dtype(kind.numpy())


def bit_width(dtype: np.dtype) -> int:
    """Return the bits of an element, which may be fewer than eight."""
    return 8 if dtype.kind == "b" else ir.DataType.from_numpy(dtype).bitwidth


def convert(x: Value, dtype: np.dtype, saturate: bool = True, round_mode: str = "up") -> Value:
    """Convert a value to an element type; static values stay static. Floats truncate to integers."""
    if dtype.kind == "T":
        return x if is_text(x) else written(static(x, "the input of a Cast to strings"))
    if is_text(x):
        x = numbers(x, dtype)
    if is_symbolic(x) and not symbols.are_whole(x):
        if np.issubdtype(dtype, np.integer):  # sizes are computed from the result
            x = settle(symbols.decided(x))
        return x if dtype.kind == "b" else traced(x).astype(dtype)
    if is_symbolic(x):
        sizes = symbols.each(symbols.size_of, x)
        if _hold_sizes(dtype, sizes):
            is_float = jnp.issubdtype(dtype, jnp.floating)
            return symbols.each(lambda size: symbols.IntegralFloat(size, dtype), sizes) if is_float else sizes
        x = traced(x)
    if dtype == _E8M0 and dtype_of(x) != _E8M0:
        return _to_power_of_two(x, saturate, round_mode)
    if dtype in _FLOAT8 and dtype_of(x).kind != "b":
        return _to_float8(x, dtype, saturate)
    if jnp.issubdtype(dtype_of(x), jnp.floating) and jnp.issubdtype(dtype, jnp.integer):
        if dtype_of(x).itemsize == 1:
            x = x.astype(np.float32)  # XLA reads the numbers of a float4 as if they were larger
        if bit_width(dtype) < 8:
            # A value out of range loses its high bits, as between integers; XLA would clamp.
            return x.astype(np.int32).astype(dtype)
    return converted(x, dtype) if isinstance(x, np.ndarray) else x.astype(dtype)


def _hold_sizes(dtype: np.dtype, sizes: np.ndarray) -> bool:
    """Return True if a type represents these sizes for all lengths: narrow integers wrap around, and floats round."""
    if jnp.issubdtype(dtype, jnp.floating):
        return kept(np.float32, dtype).all
    if np.issubdtype(dtype, np.signedinteger):
        return kept(np.int32, dtype).all
    counts = (
        not isinstance(each, symbols.Place) and symbols.less(-1, each, or_equal=False) is True for each in sizes.flat
    )
    return kept(np.uint32, dtype).all and all(counts)


def written(x: np.ndarray) -> np.ndarray:
    """Convert numbers to strings: the fewest digits that read back as the same float, and 1 and 0 for booleans."""
    if x.dtype.kind == "c":
        raise TypeError("complex numbers cannot be written as strings")
    if x.dtype.kind not in "iuf":
        x = x.astype(np.float32 if jnp.issubdtype(x.dtype, jnp.floating) else np.int64)
    items = map(str, x.ravel())
    return text_array([_SPECIAL.get(item, item.removesuffix(".0")) for item in items], x.shape)


def numbers(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Parse strings: int64 or uint64 for an integer type, else float64 or bool.

    The fraction of a number that becomes an integer is dropped.
    """
    items = x.ravel().tolist()
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        whole = [_integer(item) for item in items]
        outside = next((item for item in whole if not info.min <= item <= info.max), None)
        if outside is not None:
            raise ValueError(f"the number {outside} does not fit the type {dtype.name}")
        return np.array(whole, np.uint64 if dtype == np.uint64 else np.int64).reshape(x.shape)
    words = {"true": 1.0, "false": 0.0} if dtype.kind == "b" else {}
    parsed = np.array([words[item.lower()] if item.lower() in words else float(item) for item in items], np.float64)
    return (parsed != 0 if dtype.kind == "b" else parsed).reshape(x.shape)


def _integer(item: str) -> int:
    try:
        return int(item)
    except ValueError:
        number = float(item)
        if not math.isfinite(number):
            raise ValueError(f"{item!r} is not an integer") from None
        return math.trunc(number)


def _to_float8(x: Value, dtype: np.dtype, saturate: bool) -> Value:
    """Convert out-of-range values to the largest value, or without ``saturate`` to infinity or NaN."""
    x = traced(x)
    info = ml_dtypes.finfo(dtype)
    limit = float(info.max)
    wide = x.astype(jnp.float32)
    if saturate:
        wide = jnp.where(jnp.isnan(wide), wide, jnp.clip(wide, -limit, limit))
    return wide.astype(dtype)


def _to_power_of_two(x: Value, saturate: bool, round_mode: str) -> Value:
    """Convert to float8e8m0, which has only the exponent of a float32: 2 ** -127 to 2 ** 127, and NaN.

    Out-of-range values become the nearest value, or NaN without ``saturate``. Negative values become NaN.
    """
    check_choice("round_mode", round_mode, _ROUNDS_UP_FROM)
    x = traced(x).astype(jnp.float32)
    bits = lax.bitcast_convert_type(x, jnp.int32)
    exponent, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    # A subnormal float32 has no hidden bit: 2 ** -127 is half of its fraction's range.
    small = exponent == 0
    fraction = jnp.where(small, jnp.maximum(2 * fraction - 0x800000, 0), fraction)
    code = exponent + (fraction >= _ROUNDS_UP_FROM[round_mode]).astype(jnp.int32)
    outside = (code > 0xFE) | (small & ((bits & 0x7FFFFF) < 0x400000))
    bad = jnp.isnan(x) | (x < 0) | (outside & (not saturate))
    code = jnp.where(bad, 0xFF, jnp.minimum(code, 0xFE))
    return lax.bitcast_convert_type(code.astype(jnp.uint8), _E8M0)


def cast(x: Value, *, to: int, saturate: int = 1, round_mode: str = "up") -> Value:
    """Cast; ``saturate`` and ``round_mode`` are for the 8-bit floats."""
    return convert(x, numpy_dtype(to), bool(saturate), round_mode)


def cast_like(x: Value, target: Value, *, saturate: int = 1, round_mode: str = "up") -> Value:
    """CastLike: to the element type of the second input."""
    return convert(x, dtype_of(target), bool(saturate), round_mode)


def bit_cast(x: Value, *, to: int) -> Value:
    """BitCast: the same bits read as a type of the same width."""
    dtype = numpy_dtype(to)
    x = traced(x)
    if bit_width(dtype) != bit_width(x.dtype):
        raise TypeError(f"the types must have equal widths, not {x.dtype} and {dtype}")
    bits = x.astype(jnp.uint8) if x.dtype == bool else x
    return bits.astype(bool) if dtype.kind == "b" else lax.bitcast_convert_type(bits, dtype)


def identity(x: Value) -> Value:
    """Identity."""
    return x


def is_low_precision(dtype: Any) -> bool:
    """Return True if a floating type has fewer bits than float32."""
    return jnp.finfo(dtype).bits < 32


def wide_type(dtype: Any) -> np.dtype:
    """Return the type to compute in: float32 for low-precision floats, else the type itself."""
    return np.dtype(np.float32) if is_low_precision(dtype) else np.dtype(dtype)


def rounded(x: jax.Array, dtype: Any) -> jax.Array:
    """Round a value to a type, and return the result in the `wide_type` of that type."""
    x = x.astype(wide_type(x.dtype))
    info = jnp.finfo(dtype)
    reduced = lax.reduce_precision(x, info.nexp, info.nmant) if is_low_precision(dtype) else x
    return reduced.astype(wide_type(dtype))


def widest(*dtypes: Any) -> np.dtype:
    """Return the type to compute in with values of several types."""
    return max(map(wide_type, dtypes), key=lambda dtype: dtype.itemsize)


#: A constant of at most this many elements stays a NumPy array; XLA creates larger constants when needed.
MAX_STATIC_ELEMENTS = 1024


def constant(
    *,
    value: np.ndarray | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
    value_string: str | None = None,
    value_strings: tuple[str, ...] | None = None,
    sparse_value: object = None,
) -> Value:
    """Constant. The value is read while the graph is bound; only nodes without a single value reach this function."""
    forms = (value, value_float, value_floats, value_int, value_ints, value_string, value_strings, sparse_value)
    raise TypeError(f"exactly one value is expected, not {sum(form is not None for form in forms)}")


def full(shape: tuple[Any, ...], fill: np.ndarray) -> Value:
    """Return an array filled with a number, static if small."""
    if all(isinstance(size, int) for size in shape) and math.prod(shape) <= MAX_STATIC_ELEMENTS:
        return np.full(shape, fill)
    return jnp.full(shape, fill)


def constant_of_shape(shape: Static, *, value: np.ndarray | None = None) -> Value:
    """ConstantOfShape: float32 zeros, or the number and type of the attribute."""
    fill = np.zeros((), np.float32) if value is None else value.reshape(())
    return full(dimensions(shape), fill)


def shape_of(x: Value, *, start: int = 0, end: int | None = None) -> Value:
    """Shape, or a slice of the shape."""
    sizes = x.shape[start:end]
    result = np.empty(len(sizes), object)
    result[:] = sizes
    return result


def size_of(x: Value) -> Value:
    """Size: the number of elements."""
    return symbols.boxed(math.prod(x.shape))


def value_range(start: Static, limit: Static, delta: Static, *, stash_type: int = 1) -> Value:
    """Range of known length; with a symbolic limit, a traced iota."""
    del stash_type  # the precision of running sums; here every element is computed directly
    first, last, step = (item.reshape(()).item() for item in (start, limit, delta))
    dtype = dtype_of(start)
    if any(is_symbolic(item) for item in (start, limit, delta)):
        first, last, step = map(symbols.size_of, (first, last, step))
        if any(isinstance(item, symbols.Place) for item in (first, last, step)):
            step, count = size_between(0, step), size_between(first, last)
            return traced(start) + traced(value_range(np.asarray(0), symbols.boxed(count), symbols.boxed(step))).astype(
                dtype
            )
        if None in (first, last, step):
            raise ValueError("a range of symbolic length needs an integral start and step")
        return jnp.arange(first, last, step, dtype=jnp.int64).astype(dtype)
    if step == 0:
        raise ValueError("delta must not be 0")
    count = max(int(np.ceil((last - first) / step)), 0)
    if count > MAX_STATIC_ELEMENTS:
        wide = wide_type(dtype) if jnp.issubdtype(dtype, jnp.floating) else dtype
        return (jnp.asarray(first, wide) + jnp.arange(count).astype(wide) * jnp.asarray(step, wide)).astype(dtype)
    return (first + np.arange(count) * step).astype(dtype)


def _count(start: Static, limit: Static, delta: Static) -> float:
    """Return the number of elements of a range, or infinity if the inputs are not numbers."""
    if any(np.size(each) != 1 for each in (start, limit, delta)) or not np.any(delta):
        return math.inf
    first, last, step = (each.reshape(()).item() for each in (start, limit, delta))
    return abs((last - first) / step) + 1


def eye_like(x: Value, *, dtype: int | None = None, k: int = 0) -> Value:
    """EyeLike: ones on a diagonal, in the input's shape."""
    return jnp.eye(*x.shape, k=k, dtype=dtype_of(x) if dtype is None else numpy_dtype(dtype))


OPERATORS: dict[str, Versions] = {
    "BitCast": bounded(bit_cast, 26),
    "Cast": since(cast, 6, 9, 13, 19, 21, 23, 24, 25, 28, moves=Movement.CASTS),
    "CastLike": since(cast_like, 15, 19, 21, 23, 24, 25, moves=Movement.CASTS),
    "Identity": since(identity, 1, 13, 14, 16, 19, 21, 23, 24, 25, moves=Movement.REARRANGES),
    "Constant": bounded(constant, 1, 9, 11, 12, 13, 19, 21, 23, 24, 25),
    "ConstantOfShape": since(constant_of_shape, 9, 20, 21, 23, 24, 25, most=elements_of),
    "EyeLike": since(eye_like, 9, 22, of_shape=True),
    "Range": since(value_range, 11, 27, of_places=True, most=_count),
    "Shape": bounded(shape_of, 1, 13, 15, 19, 21, 23, 24, 25, of_shape=True),
    "Size": bounded(size_of, 1, 13, 19, 21, 23, 24, 25, of_shape=True),
}
