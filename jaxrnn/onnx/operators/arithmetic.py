"""Element-wise arithmetic. On static operands it is NumPy's, so that arithmetic on shapes folds, symbols included."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn._jax.context import highest
from jaxrnn.onnx import symbols
from jaxrnn.onnx.registry import Foldable, Pair, Versions, elementwise, since
from jaxrnn.onnx.values import Value, check_choice, dtype_of, is_static, is_symbolic, operands, traced


def is_integer(value: Value) -> bool:
    """Return True for integer element types, and False for bool."""
    return np.issubdtype(dtype_of(value), np.integer) or jnp.issubdtype(dtype_of(value), jnp.integer)


def of_one_type(*values: Value, whole: bool = False) -> tuple[Any, tuple[Any, ...]]:
    """Apply `operands` to inputs that must have one element type, without absent inputs.

    Sizes with symbolic dimensions match every integer type, because they do not keep the type of a Cast. Static
    integers also match each other, because they may come from such sizes.
    """
    values = tuple(value for value in values if value is not None)
    if is_static(*values) and all(map(is_integer, values)):
        return np, values
    sizes = [is_symbolic(value) and dtype_of(value).kind == "i" for value in values]
    types = {dtype_of(value).name for value, is_size in zip(values, sizes, strict=True) if not is_size}
    wide = any(sizes) and not all(map(is_integer, values))
    if len(types) > 1 or wide:
        names = sorted({dtype_of(value).name for value in values})
        raise TypeError(f"the inputs must have equal element types, not {', '.join(names)}; add a Cast")
    np_or_jnp, arrays = operands(*values, whole=whole)
    if np_or_jnp is jnp and any(sizes) and types:
        arrays = tuple(array.astype(*types) for array in arrays)
    return np_or_jnp, arrays


Shapes = Sequence[tuple[int, ...] | None]


def shapes_of(operands: Sequence[Any]) -> list[tuple[int, ...] | None]:
    """Return the shapes of arrays; shapes are returned unchanged."""
    return [getattr(each, "shape", each) for each in operands]


def broadcast_sizes(shapes: Shapes) -> Iterator[Pair]:
    """Yield pairs of sizes of an axis that broadcasting needs to be equal; sizes of 1 are free."""
    for column in itertools.zip_longest(*([*reversed(shape)] for shape in shapes if shape is not None), fillvalue=1):
        yield from itertools.combinations([size for size in column if size != 1], 2)


#: Functions of `jax.lax` in place of operators. `jax.numpy` traces an operator again for each shape, for 0.5 ms.
_DIRECT = {operator.add: lax.add, operator.sub: lax.sub, operator.mul: lax.mul, operator.truediv: lax.div}


def combined(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Apply a binary operator to broadcast arrays of one type."""
    if function not in _DIRECT or isinstance(a, np.ndarray) or isinstance(b, np.ndarray) or a.dtype == bool:
        return function(a, b)
    rank = max(a.ndim, b.ndim)
    a, b = (x if x.ndim in (0, rank) else lax.expand_dims(x, range(rank - x.ndim)) for x in (a, b))
    return _DIRECT[function](a, b)


def binary(function: Callable[[Any, Any], Any], *, whole: bool = False) -> Callable[[Value, Value], Value]:
    """Return an operator of two broadcast inputs with equal types from a function that serves NumPy and JAX."""

    def apply(a: Value, b: Value) -> Value:
        if (
            function in (operator.add, operator.sub)
            and is_static(a, b)
            and dtype_of(a) == dtype_of(b)
            and symbols.is_sum_of_quotient(a, b)
        ):
            return symbols.each(function, a, b)
        _, (a, b) = of_one_type(a, b, whole=whole)
        return combined(function, a, b)

    return apply


add, subtract, multiply = (binary(function, whole=True) for function in (operator.add, operator.sub, operator.mul))


def divide(a: Value, b: Value) -> Value:
    """Div: integers are truncated towards zero, as in C."""
    if is_static(a, b) and dtype_of(a) == dtype_of(b) and symbols.are_divisible(a, b):
        return symbols.each(operator.truediv, a, b)
    np_or_jnp, (a, b) = of_one_type(a, b)
    if not is_integer(a):
        return combined(operator.truediv, a, b)
    if np_or_jnp is jnp:
        return lax.div(*jnp.broadcast_arrays(a, b))
    if is_symbolic(a) or is_symbolic(b):
        return a // b  # sizes are not negative, so the floor is the truncation
    if np.any(b == 0):
        raise ZeroDivisionError("integer division by zero")
    # Not by absolute values: the least integer has no absolute value.
    floor, rest = np.divmod(a, b)
    return (floor + ((rest != 0) & ((a < 0) != (b < 0)))).astype(a.dtype)


def modulo(a: Value, b: Value, *, fmod: int = 0) -> Value:
    """Mod: the result has the divisor's sign, or with ``fmod`` the dividend's, as in C."""
    np_or_jnp, (a, b) = of_one_type(a, b)
    if is_symbolic(a) or is_symbolic(b):
        return a % b
    return np_or_jnp.fmod(a, b) if fmod else np_or_jnp.mod(a, b)


def power(base: Value, exponent: Foldable) -> Value:
    """Pow, in the type of the base. A constant integer exponent multiplies, so that the gradient is exact at 0."""
    is_whole = is_static(exponent) and exponent.dtype.kind in "iu" and bool(np.all(exponent >= 0))
    if is_whole and is_symbolic(base) and is_integer(base):
        return symbols.each(operator.pow, base, exponent)
    base, exponent = (traced(value) if is_symbolic(value) else value for value in (base, exponent))
    np_or_jnp, (base_array, exponent_array) = operands(base, exponent)
    dtype = dtype_of(base)
    if isinstance(exponent, np.ndarray) and exponent.size == 1 and np_or_jnp is jnp:
        number = exponent.item()
        if float(number).is_integer() and abs(number) <= 64 and (number >= 0 or not is_integer(base)):
            shape = jnp.broadcast_shapes(base_array.shape, exponent.shape)
            return jnp.broadcast_to(lax.integer_pow(base_array, int(number)), shape)
    if is_integer(base) and not is_integer(exponent):
        return np_or_jnp.power(base_array.astype(exponent_array.dtype), exponent_array).astype(dtype)
    if is_integer(base):
        return _integer_power(np_or_jnp, base_array, exponent_array, dtype)
    if np_or_jnp is np:
        return np.power(base_array, exponent_array).astype(dtype)
    return lax.pow(*jnp.broadcast_arrays(base_array, exponent_array.astype(dtype)))


def _integer_power(np_or_jnp: Any, base: Any, exponent: Any, dtype: np.dtype) -> Any:
    """Return a power of integers: the real power, rounded towards 0 as in ONNX Runtime."""
    result = np_or_jnp.power(base, np_or_jnp.maximum(exponent, 0)).astype(dtype)
    if not jnp.issubdtype(exponent.dtype, jnp.signedinteger):
        return result
    # Engines cast the infinite 1 / 0 to the largest or the smallest integer, depending on the processor.
    inverse = np_or_jnp.where(base == 0, highest(dtype), (base == 1).astype(dtype))
    if jnp.issubdtype(dtype, jnp.signedinteger):
        odd = (exponent % np.asarray(2, exponent.dtype)).astype(dtype)
        inverse = np_or_jnp.where(base == -1, dtype.type(1) - dtype.type(2) * odd, inverse)
    return np_or_jnp.where(exponent < 0, inverse, result)


def unary(function: Callable[[Any], Any]) -> Callable[[Value], Value]:
    """Return a unary operator, computed in JAX."""

    def apply(x: Value) -> Value:
        return function(traced(x))

    return apply


def either(name: str, symbolic: Callable[[Any], Any] | None = None) -> Callable[[Value], Value]:
    """Return a unary operator that computes static operands in NumPy, for arithmetic on shapes."""

    def apply(x: Value) -> Value:
        if is_symbolic(x) and symbolic is not None and dtype_of(x).kind != "b":
            return symbols.each(symbolic, x)
        np_or_jnp, (x,) = operands(x)
        return getattr(np_or_jnp, name)(x).astype(x.dtype)

    return apply


def variadic(function: Callable[[Any, Any, Any], Any]) -> Callable[..., Value]:
    """Return a variadic operator that combines broadcast inputs from the left."""

    def apply(*values: Value) -> Value:
        np_or_jnp, arrays = of_one_type(*values, whole=True)
        return functools.reduce(lambda a, b: function(np_or_jnp, a, b), arrays)

    return apply


def _extreme(name: str) -> Callable[..., Value]:
    def combine(np_or_jnp: Any, a: Any, b: Any) -> Any:
        if is_symbolic(a) or is_symbolic(b):
            return symbols.each(functools.partial(symbols.extreme, name), a, b)
        return getattr(np_or_jnp, name)(a, b)

    return variadic(combine)


maximum, minimum = _extreme("maximum"), _extreme("minimum")
total = variadic(lambda _, a, b: combined(operator.add, a, b))


def mean(*values: Value) -> Value:
    """Mean of the broadcast inputs."""
    summed = total(*values)
    return summed / np.asarray(len(values), dtype_of(summed))


def clip(x: Value, min: Foldable = None, max: Foldable = None) -> Value:
    """Clip with bounds as inputs. The upper bound wins if the bounds cross."""
    if min is not None:
        x = maximum(x, min)
    return x if max is None else minimum(x, max)


def clip_6(x: Value, *, min: float = -float(np.finfo(np.float32).max), max: float = float(np.finfo(np.float32).max)):
    """Clip, bounds as attributes."""
    dtype = dtype_of(x)
    lowest, highest = float(jnp.finfo(dtype).min), float(jnp.finfo(dtype).max)
    low, high = np.clip([min, max], lowest, highest)
    return clip(x, np.asarray(low, dtype), np.asarray(high, dtype))


def shift(x: Value, y: Value, *, direction: str) -> Value:
    """BitShift; a shift by the width or more results in 0, or in the sign for signed integers to the right."""
    x, y = traced(x), traced(y)
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    functions = {"LEFT": lax.shift_left, "RIGHT": lax.shift_right_arithmetic if signed else lax.shift_right_logical}
    check_choice("direction", direction, functions)
    return functions[direction](*jnp.broadcast_arrays(x, y))


def compare(
    function: Callable[[Any, Any], Any], symbolic: Callable[[Any, Any], Any]
) -> Callable[[Value, Value], Value]:
    """Return a comparison of two broadcast inputs with equal types."""

    def apply(a: Value, b: Value) -> Value:
        _, (a, b) = of_one_type(a, b, whole=True)
        if is_symbolic(a) or is_symbolic(b):
            return symbols.each(symbolic, a, b)
        return function(a, b)

    return apply


def logical(name: str, symbolic: Callable[[Any, Any], Any] | None = None) -> Callable[[Value, Value], Value]:
    """Return a logical operator of two broadcast boolean inputs."""

    def apply(a: Value, b: Value) -> Value:
        if symbolic is not None and is_static(a, b) and (is_symbolic(a) or is_symbolic(b)):
            return symbols.each(symbolic, a, b)
        np_or_jnp, (a, b) = operands(a, b)
        return getattr(np_or_jnp, name)(a, b)

    return apply


def is_infinite(x: Value, *, detect_negative: int = 1, detect_positive: int = 1) -> Value:
    """IsInf for positive infinity, negative infinity, or both."""
    x = traced(x)
    return (jnp.isneginf(x) & bool(detect_negative)) | (jnp.isposinf(x) & bool(detect_positive))


OPERATORS: dict[str, Versions] = {
    "Abs": elementwise(either("abs", abs), 6, 13),
    "Acos": elementwise(unary(jnp.arccos), 7, 22),
    "Acosh": elementwise(unary(jnp.arccosh), 9, 22),
    "Add": elementwise(add, 7, 13, 14, linear="all"),
    "Asin": elementwise(unary(jnp.arcsin), 7, 22),
    "Asinh": elementwise(unary(jnp.arcsinh), 9, 22),
    "Atan": elementwise(unary(jnp.arctan), 7, 22),
    "Atanh": elementwise(unary(jnp.arctanh), 9, 22),
    "BitShift": elementwise(shift, 11, 28),
    "BitwiseAnd": elementwise(binary(operator.and_), 18),
    "BitwiseNot": elementwise(unary(jnp.bitwise_not), 18),
    "BitwiseOr": elementwise(binary(operator.or_), 18),
    "BitwiseXor": elementwise(binary(operator.xor), 18),
    "Ceil": elementwise(either("ceil", functools.partial(symbols.rounded, up=True)), 6, 13),
    "Clip": since(clip_6, 6) | elementwise(clip, 11, 12, 13),
    "Cos": elementwise(unary(jnp.cos), 7, 22),
    "Cosh": elementwise(unary(jnp.cosh), 9, 22),
    "Div": elementwise(divide, 7, 13, 14),
    "Erf": elementwise(unary(lax.erf), 9, 13),
    "Exp": elementwise(unary(lax.exp), 6, 13),
    "Floor": elementwise(either("floor", functools.partial(symbols.rounded, up=False)), 6, 13),
    "Log": elementwise(unary(lax.log), 6, 13),
    "Max": elementwise(maximum, 6, 8, 12, 13),
    "Mean": elementwise(mean, 6, 8, 13),
    "Min": elementwise(minimum, 6, 8, 12, 13),
    "Mod": elementwise(modulo, 10, 13, 28),
    "Mul": elementwise(multiply, 7, 13, 14, linear="each"),
    "Neg": elementwise(either("negative", operator.neg), 6, 13, linear="all"),
    "Pow": elementwise(power, 7, 12, 13, 15),
    "Reciprocal": elementwise(unary(lambda x: 1 / x), 6, 13),
    "Round": elementwise(unary(jnp.round), 11, 22),
    "Sign": elementwise(unary(jnp.sign), 9, 13),
    "Sin": elementwise(unary(jnp.sin), 7, 22),
    "Sinh": elementwise(unary(jnp.sinh), 9, 22),
    "Sqrt": elementwise(either("sqrt"), 6, 13),
    "Sub": elementwise(subtract, 7, 13, 14, linear="all"),
    "Sum": elementwise(total, 6, 8, 13, linear="all"),
    "Tan": elementwise(unary(jnp.tan), 7, 22),
    "And": elementwise(logical("logical_and", operator.and_), 7),
    "Equal": elementwise(compare(operator.eq, symbols.same), 7, 11, 13, 19, compares="="),
    "Greater": elementwise(
        compare(operator.gt, lambda a, b: symbols.less(b, a, or_equal=False)), 7, 9, 13, compares=">"
    ),
    "GreaterOrEqual": elementwise(
        compare(operator.ge, lambda a, b: symbols.less(b, a, or_equal=True)), 12, 16, compares=">="
    ),
    "IsInf": elementwise(is_infinite, 10, 20),
    "IsNaN": elementwise(unary(jnp.isnan), 9, 13, 20),
    "Less": elementwise(compare(operator.lt, lambda a, b: symbols.less(a, b, or_equal=False)), 7, 9, 13, compares="<"),
    "LessOrEqual": elementwise(
        compare(operator.le, lambda a, b: symbols.less(a, b, or_equal=True)), 12, 16, compares="<="
    ),
    "Not": elementwise(either("logical_not"), 1),
    "Or": elementwise(logical("logical_or"), 7),
    "Xor": elementwise(logical("logical_xor"), 7),
}
