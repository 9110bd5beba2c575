"""Operators on elements, written as ONNX: every primitive in every type, at the edges of the types too."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from lowering_verifier import verify_lowering

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = (*SIGNED, *UNSIGNED)
FLOATS = ("float32", "float16")
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-8, -1e-8, 1e-4, -3e-3, 0.49999997, 7.25, -20.0, 60.0]
ENDLESS = [*SPECIAL, np.inf, -np.inf, np.nan]


def integers(dtype, edges=True):
    """Small numbers, and the edges of the type."""
    info = np.iinfo(dtype)
    numbers = [0, 1, 2, 3, 5, 7, 100] + ([-1, -2, -7, -100] if info.min else [])
    return np.array([*numbers, *([info.min, info.max, info.max - 1] if edges else [])], dtype)


def pairs(numbers):
    """Every number with every other, as two arrays."""
    x, y = zip(*itertools.product(numbers, numbers), strict=True)
    return np.array(x, numbers.dtype), np.array(y, numbers.dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_around(dtype):
    """Sums, products, quotients, remainders, shifts, comparisons: with zero divisors, and beyond the type."""
    functions = [lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, lax.lt, lax.ge, lax.eq, lax.ne]
    functions += [lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic]
    if dtype == "uint64":  # ONNX Runtime has no order of them
        functions = [each for each in functions if each not in (lax.max, lax.min)]
    verify_lowering(lambda x, y: [each(x, y) for each in functions], *pairs(integers(dtype)))
    unary = [lax.sign, lax.bitwise_not, lax.population_count, lax.clz, lambda x: lax.integer_pow(x, 3)]
    unary += [lambda x, f=each, c=c: f(x, jnp.array(c, x.dtype)) for each in (lax.div, lax.rem) for c in (3, 7)]
    unary += [lax.abs, lax.neg] if dtype in SIGNED else []
    unary += [lambda x: x & 15, lambda x: x >> 2, lambda x: x << 3]
    verify_lowering(lambda x: [each(x) for each in unary], integers(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_bits(dtype):
    """Bits of integers are operators since opset 18."""
    verify_lowering(lambda x, y: [x & y, x | y, x ^ y], *pairs(integers(dtype)), opset=18)


def test_booleans():
    """Logic, and the order of booleans."""
    x, y = pairs(np.array([False, True]))
    functions = [lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor, lax.eq, lax.ne, lax.lt, lax.ge, lax.max, lax.min]
    verify_lowering(lambda x, y: [each(x, y) for each in functions] + [~x, jnp.where(x, y, x)], x, y)


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_of_floats(dtype):
    """Each is exact near 0, and has JAX's infinities and NaN."""
    plain = [lax.abs, lax.neg, lax.sign, lax.ceil, lax.floor, lax.exp, lax.sqrt, lax.square, lax.is_finite, lax.erf]
    plain += [lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)]
    plain += [lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)]
    plain += [lax.log, lax.cbrt, lax.expm1, lax.log1p, lax.exp2, lax.tanh, lax.sin, lax.cos, lax.rsqrt]
    plain += [lambda x, n=n: lax.integer_pow(x, n) for n in (0, 1, 3, 5, -1, -2)]
    for function in plain:
        numbers = np.array(ENDLESS if function not in (lax.sin, lax.cos) else SPECIAL, dtype)
        verify_lowering(function, numbers, scale=1e-3 if dtype == "float32" else None, roundings=16)


def test_small_results_are_exact():
    """To some roundings of their own size."""
    x = np.float32([-0.9, -0.5, -1e-3, -1e-6, -1e-20, 0, 1e-30, 1e-7, 1e-4, 0.02, 0.3, 1, 4, 100, 3e38])
    verify_lowering(lax.log1p, x, scale=0)
    verify_lowering(lax.expm1, x[:-2], scale=0, roundings=6)
    verify_lowering(lax.erfc, np.float32([-6, -1, -1e-5, 0, 0.1, 0.49, 0.51, 1, 2, 4, 7, 9]), scale=0, roundings=24)


@pytest.mark.parametrize("dtype", FLOATS)
def test_pairs_of_floats(dtype):
    """NaN is propagated by the larger and the smaller, and angles are of all quadrants."""
    x, y = pairs(np.array(ENDLESS, dtype))
    functions = [lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, lax.lt, lax.ge, lax.eq, lax.ne]
    verify_lowering(lambda x, y: [each(x, y) for each in functions], x, y, scale=1e-3)
    x, y = pairs(np.array([0.0, 1, -1, 0.3, -5, 1e-4, np.nan, 40], dtype))
    verify_lowering(lax.atan2, x, y)
    verify_lowering(lax.pow, np.abs(x), y / 8)


TYPES = [*INTEGERS, "bool", "float16", "float32", "float64", "bfloat16"]


@pytest.mark.parametrize("source", TYPES)
def test_conversions(source):
    """Between all types: integers lose high bits, floats are cut off and have their limits, NaN is 0."""
    source = np.dtype(getattr(ml_dtypes, source, source))
    if source.kind in "iu":
        numbers = integers(source)
    elif source.kind == "b":
        numbers = np.array([False, True])
    else:
        numbers = np.array([*ENDLESS, 300.7, -300.7, 3e9, -3e9, 7e4, 1e19, -1e19], np.float64)
        with np.errstate(over="ignore"):
            numbers = numbers.astype(source)
    targets = [np.dtype(getattr(ml_dtypes, name, name)) for name in TYPES]
    verify_lowering(lambda x: [_readable(lax.convert_element_type(x, each)) for each in targets], _readable(numbers))


def _readable(x):
    """ONNX Runtime takes no bfloat16 from NumPy."""
    return x.astype(np.float32) if x.dtype == jnp.bfloat16 else x


def test_precision():
    """Rounding to bfloat16 inside float32."""
    x = np.float32([1.00390625, 1.01171875, -3.3, 1e-40, 3e38, np.inf, np.nan])
    verify_lowering(lambda x: lax.reduce_precision(x, 8, 7), x, roundings=0)


def test_selection_and_limits():
    """Cases by number, and limits that are numbers or arrays, of every type."""
    for dtype in ("int8", "int16", "uint64", "bool", "float16", "float32"):
        cases = [np.arange(6).astype(dtype) for _ in range(3)]
        which = np.int32([0, 1, 2, 0, 1, 2])
        verify_lowering(lax.select_n, which, *cases)
        verify_lowering(lax.select_n, which < 1, *cases[:2])
        if dtype not in ("bool", "uint64"):
            low, high = np.array(1, dtype), np.array(3, dtype)
            verify_lowering(lax.clamp, low, cases[0], high)
            verify_lowering(lax.clamp, np.full(6, low), cases[0], np.full(6, high))


def test_one_condition_of_a_matrix():
    """A condition that was an array of one element chooses a number, which has no axes."""
    x = np.float32([[3.0]])
    verify_lowering(lambda x: jnp.where((x > 2).reshape(()), x[0, 0], x[0, 0] + 1), x)
