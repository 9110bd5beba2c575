"""Rules for integer arithmetic that wraps around, and for functions that ONNX writes in several operators."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.export.lowering import RULES, Lowering
from jaxrnn.export.rules.elementwise import cast, elements, range_of
from jaxrnn.export.small.functions import at_least_float32, is_known, rounded_away
from jaxrnn.export.translator import of_arrays
from jaxrnn.export.writer import Operand, dtype_of
from jaxrnn.jaxprs.primitives import entry_of


@RULES.add("div")
def divide(lowering: Lowering, equation: JaxprEqn, x: Operand, y: Operand) -> Operand:
    """Write ``Div``. Integer ``x / 0`` and ``lowest / -1`` have JAX's results, which engines do not define."""
    dtype = dtype_of(x)
    if dtype.kind not in "iu":
        return elements(lowering, "Div", x, y)
    zero, one = np.array(0, dtype), np.array(1, dtype)
    signed = dtype.kind == "i"
    if is_known(y, 0, -1 if signed else 0):
        return elements(lowering, "Div", x, y)
    edges: dict[int, Operand] = {0: np.asarray(~zero)}
    if signed:
        edges[-1] = elements(lowering, "Sub", zero, x)
    at_edge = {edge: elements(lowering, "Equal", y, np.array(edge, dtype), dtype=bool) for edge in edges}
    divisor = y
    for at in at_edge.values():
        divisor = elements(lowering, "Where", at, one, divisor, dtype=dtype)
    result = elements(lowering, "Div", x, divisor)
    for edge, at in at_edge.items():
        result = elements(lowering, "Where", at, edges[edge], result, dtype=dtype)
    return result


@RULES.add("rem")
def remainder(lowering: Lowering, equation: JaxprEqn, x: Operand, y: Operand) -> Operand:
    """Write ``Mod`` with the sign of the dividend. ONNX Runtime computes this in float64, inexact for int64."""
    dtype = dtype_of(x)
    if dtype.kind not in "iu" or (dtype.itemsize < 8 and is_known(y, 0)):
        return elements(lowering, "Mod", x, y, fmod=1)
    if dtype.kind == "u" and is_known(y, 0):
        return elements(lowering, "Mod", x, y)
    # For a divisor of 0 the product is 0, for any quotient.
    quotient = divide(lowering, equation, x, y)
    return elements(lowering, "Sub", x, elements(lowering, "Mul", quotient, y))


def _unsigned(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"uint{8 * dtype.itemsize}")


def shift(lowering: Lowering, x: Operand, by: Operand, direction: str) -> Operand:
    """Write ``BitShift`` on unsigned integers. A shift by all bits or more results in 0."""
    dtype, bits = dtype_of(x), 8 * dtype_of(x).itemsize
    unsigned = _unsigned(dtype)
    x, by = cast(lowering, x, unsigned), cast(lowering, by, unsigned)
    beyond = None
    if not (isinstance(by, np.ndarray) and np.all(by < bits)):
        beyond = elements(lowering, "GreaterOrEqual", by, np.array(bits, unsigned), dtype=bool)
        by = elements(lowering, "Min", by, np.array(bits - 1, unsigned))
    shifted = elements(lowering, "BitShift", x, by, direction=direction)
    if beyond is not None:
        shifted = elements(lowering, "Where", beyond, np.array(0, unsigned), shifted, dtype=unsigned)
    return cast(lowering, shifted, dtype)


@RULES.add("shift_left")
def shift_left(lowering: Lowering, equation: JaxprEqn, x: Operand, by: Operand) -> Operand:
    """Shift, and fill with 0."""
    return shift(lowering, x, by, "LEFT")


@RULES.add("shift_right_logical")
def shift_right(lowering: Lowering, equation: JaxprEqn, x: Operand, by: Operand) -> Operand:
    """Shift, and fill with 0."""
    return shift(lowering, x, by, "RIGHT")


@of_arrays(RULES, "shift_right_arithmetic")
def _shift_arithmetic(x: Any, by: Any) -> Any:
    """Shift the complement of negative numbers. XLA treats unsigned integers as signed here."""
    own, signed = x.dtype, np.dtype(f"int{8 * x.dtype.itemsize}")
    x, by = x.astype(signed), by.astype(signed)
    shifted = lax.shift_right_logical(jnp.where(x < 0, ~x, x), by)
    return jnp.where(x < 0, ~shifted, shifted).astype(own)


def invert(lowering: Lowering, x: Operand) -> Operand:
    """Invert all bits: ``-1 - x``, or the largest number minus x for unsigned integers."""
    dtype = dtype_of(x)
    return elements(lowering, "Sub", np.array(-1 if dtype.kind == "i" else np.iinfo(dtype).max, dtype), x)


@RULES.add("not")
def negation(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``Not`` for booleans; invert the bits of integers."""
    return elements(lowering, "Not", x) if dtype_of(x) == np.bool_ else invert(lowering, x)


@RULES.add("and", "or", "xor")
def bitwise(lowering: Lowering, equation: JaxprEqn, x: Operand, y: Operand) -> Operand:
    """Write a logical or bitwise operator. Below opset 18, a mask of low bits becomes a remainder."""
    dtype, operator = dtype_of(x), entry_of(equation).monoid.capitalize()
    if dtype == np.bool_:
        return elements(lowering, operator, x, y)
    if operator == "And" and lowering.writer.opset < 18:
        for value, mask in ((x, y), (y, x)):
            if isinstance(mask, np.ndarray) and _are_low_bits(mask):
                return elements(lowering, "Mod", value, np.asarray(mask + 1, dtype))
    for value, mask in ((x, y), (y, x)) if operator == "Or" else ():
        # Without a common bit, the sum is the union.
        low, high = range_of(value)
        if isinstance(mask, np.ndarray) and np.all(mask > 0) and low >= 0 and high < np.min(mask & (~mask + 1)):
            return elements(lowering, "Add", value, mask)
    return elements(lowering, f"Bitwise{operator}", x, y)


def _are_low_bits(mask: np.ndarray) -> bool:
    return bool(np.all((mask >= 0) & (mask < np.iinfo(mask.dtype).max) & (mask & (mask + 1) == 0)))


@of_arrays(RULES, "population_count")
def _count_of_ones(x: Any) -> Any:
    return _sum_of_bits(x, lambda shifted: lax.rem(shifted, jnp.full_like(shifted, 2)))


@of_arrays(RULES, "clz")
def _count_of_leading_zeros(x: Any) -> Any:
    """Count the bits above the highest bit that is 1."""
    used = _sum_of_bits(x, lambda shifted: jnp.minimum(shifted, np.uint64(1)))
    return np.array(8 * x.dtype.itemsize, x.dtype) - used


def _sum_of_bits(x: Any, of_shifted: Callable[[Any], Any]) -> Any:
    wide = x.astype(_unsigned(x.dtype)).astype(np.uint64)[..., None]
    shifted = of_shifted(jnp.right_shift(wide, np.arange(8 * x.dtype.itemsize, dtype=np.uint64)))
    return shifted.astype(np.int64).sum(-1).astype(x.dtype)


@of_arrays(RULES, "atan2")
def _angle(y: Any, x: Any) -> Any:
    """Compute the angle of a point, in float32 at least. Zeros have signs, and two infinities are on a diagonal."""
    own, y, x = y.dtype, at_least_float32(y), at_least_float32(x)
    height, width = jnp.abs(y), jnp.abs(x)
    # Without the comparison, two zeros or two infinities would have no ratio.
    angle = jnp.arctan(jnp.where(height == width, jnp.sign(height), height / width))
    angle = jnp.where(_is_negative(x), math.pi - angle, angle)
    return (jnp.where(_is_negative(y), np.array(-1, y.dtype), np.array(1, y.dtype)) * angle).astype(own)


def _is_negative(x: Any) -> Any:
    """Return True for negative numbers and -0, whose reciprocal shows the sign."""
    return (x < 0) | (lax.integer_pow(x, -1) < 0)


@RULES.add("erf_inv")
def inverse_error_function(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write XLA's polynomials for float32 (Giles, "Approximating the erfinv function", 2012)."""
    if dtype_of(x) != np.float32:
        lowering.refuse(f"ONNX has no inverse error function; compute it in float32 instead of {dtype_of(x)}")

    def function(x: Any) -> Any:
        w = -jnp.log1p(-x * x)
        near = w < 5
        w = jnp.where(near, w - 2.5, jnp.sqrt(jnp.where(near, 9.0, w)) - 3)
        p = functools.reduce(lambda p, each: p * w + jnp.where(near, *each), _NEAR_AND_FAR, jnp.zeros_like(w))
        return jnp.where(jnp.abs(x) == 1, x * jnp.inf, p * x)

    return lowering.trace(function, x)[0]


#: Coefficients of two polynomials, highest power first.
_NEAR_AND_FAR = [
    (2.81022636e-08, -0.000200214257), (3.43273939e-07, 0.000100950558), (-3.5233877e-06, 0.00134934322),
    (-4.39150654e-06, -0.00367342844), (0.00021858087, 0.00573950773), (-0.00125372503, -0.0076224613),
    (-0.00417768164, 0.00943887047), (0.246640727, 1.00167406), (1.50140941, 2.83297682),
]  # fmt: skip


@RULES.add("round")
def rounded(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``Round``, half to even; or round half away from 0."""
    to_even = int(equation.params["rounding_method"]) == 1
    return elements(lowering, "Round", x) if to_even else lowering.trace(rounded_away, x)[0]


@RULES.add("exp2")
def power_of_two(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``Pow``."""
    return elements(lowering, "Pow", np.array(2, dtype_of(x)), x, dtype=dtype_of(x))


@RULES.add("is_finite")
def is_finite(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Compare the magnitude with infinity; the comparison with NaN is False."""
    return elements(lowering, "Less", elements(lowering, "Abs", x), np.array(np.inf, dtype_of(x)), dtype=bool)


@RULES.add("integer_pow")
def integer_power(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write products for squares and integers, which wrap around, and ``Pow`` for other powers."""
    exponent, dtype = equation.params["y"], dtype_of(x)
    if exponent < 0:
        return elements(lowering, "Reciprocal", _product(lowering, x, -exponent))
    if exponent == 0:
        return elements(lowering, "Where", np.array(True), np.array(1, dtype), x, dtype=dtype)
    return _product(lowering, x, exponent)


def _product(lowering: Lowering, x: Operand, exponent: int) -> Operand:
    if exponent > 2 and dtype_of(x).kind not in "iu":
        return elements(lowering, "Pow", x, np.array(exponent, dtype_of(x)))
    result: Operand | None = None
    while exponent:
        if exponent & 1:
            result = x if result is None else elements(lowering, "Mul", result, x)
        exponent >>= 1
        x = elements(lowering, "Mul", x, x) if exponent else x
    assert result is not None
    return result
