"""Values of pairs of frames outside of the bounds of a mask: the result of an operation on minus infinity, 0 or False.

A mask bounds the distance between two frames. Beyond each bound, the elements of an expression are a number, or so low
that their exponential is 0 (`Low`), or unknown (None).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn._jax.context import lowest
from jaxrnn.jaxprs.equations import type_of
from jaxrnn.jaxprs.primitives import Rules, entry_of, on_elements
from jaxrnn.streaming.values import Low, Outside, static_number

#: Finite mask values at or below this number mean minus infinity: -10,000, as bfloat16 rounds it.
LOWEST = -9984.0

#: Rules ``(equation, *values) -> value`` for values outside of the bounds that are not all numbers.
_OUTSIDE = Rules()


def outside_of(equation: JaxprEqn, values: Sequence[Outside], least: Sequence[int | None]) -> Outside:
    """Apply an operation to the values outside of the bounds; a score is None.

    `least` are the smallest elements of the operands, as far as known.
    """
    if entry_of(equation).monoid == "min" and 0 in values and all(each is not None and each >= 0 for each in least):
        return 0
    function = on_elements(equation)
    if function is not None and all(map(_is_number, values)):
        return _computed(function, equation, values)
    rule = _OUTSIDE.of(equation)
    return None if rule is None else rule(equation, *values)


def _is_number(value: Outside) -> bool:
    return isinstance(value, (bool, int, float))


def _computed(function: Callable[..., Any], equation: JaxprEqn, numbers: Sequence[Any]) -> Outside:
    """Apply a function of NumPy to numbers, in the types of the operands."""
    arrays = [np.asarray(number).astype(type_of(atom)) for number, atom in zip(numbers, equation.invars, strict=True)]
    with np.errstate(all="ignore"):
        return typed(function(*arrays), type_of(equation.outvars[0]))


def typed(value: Any, dtype: Any) -> Outside:
    """Cast a number and return the Python number, or None if NumPy and XLA may cast differently."""
    with np.errstate(all="ignore"):
        cast = np.asarray(value).astype(dtype)
        if jnp.issubdtype(dtype, jnp.inexact):
            return None if np.imag(cast) else float(np.real(cast))
        return cast.item() if cast.dtype.kind == "b" or (cast.dtype.kind in "iu" and cast == np.trunc(value)) else None


def real_number(x: Any) -> Outside:
    """Return the real number that all elements of a constant equal, or None."""
    number = static_number(x)
    return (None if number.imag else number.real) if isinstance(number, complex) else number


def _is_floating(equation: JaxprEqn) -> bool:
    return jnp.issubdtype(type_of(equation.outvars[0]), np.floating)


@_OUTSIDE.add("select_n")
def _choose_outside(equation: JaxprEqn, which: Outside, *cases: Outside) -> Outside:
    if isinstance(which, bool | int):
        return cases[int(which)]
    lows = [lowness_of(case) for case in cases]
    levels = [low for low in lows if low is not None]
    return cases[0] if len({*cases}) == 1 else Low(max(levels)) if len(levels) == len(lows) else None


_OUTSIDE.add("exp", "exp2", "logistic")(lambda equation, x: 0.0 if _lowered(equation, -math.inf, x) else None)
_OUTSIDE.add("add")(lambda equation, x, y: _lowered(equation, _level(x) + _level(y), x, y))


_OUTSIDE.add("imag", "real")(lambda equation, x: 0.0 if _is_number(x) and x == 0 else None)


@_OUTSIDE.add("and", "or")
def _decide_outside(equation: JaxprEqn, *values: Outside) -> Outside:
    decisive = entry_of(equation).monoid == "or"
    return decisive if any(value is decisive for value in values) else None


@_OUTSIDE.add("ne")
def _test_for_nan(equation: JaxprEqn, x: Outside, _: Outside) -> Outside:
    return False if equation.invars[0] is equation.invars[1] and x is not None else None


@_OUTSIDE.add("convert_element_type", "reduce_precision", "stop_gradient")
def _cast_outside(equation: JaxprEqn, x: Outside) -> Outside:
    if _is_number(x):
        is_kept = "mantissa_bits" not in equation.params or x in (0, math.inf, -math.inf)
        return _computed(np.asarray, equation, [x]) if is_kept else None
    return x if _is_floating(equation) and lowest(type_of(equation.outvars[0])) == -math.inf else None


@_OUTSIDE.add("integer_pow")
def _power_outside(equation: JaxprEqn, x: Outside) -> Outside:
    power = equation.params["y"]
    return _computed(lambda x: np.power(x, power), equation, [x]) if _is_number(x) and power > 0 else None


@_OUTSIDE.add("sub")
def _subtract_outside(equation: JaxprEqn, x: Outside, y: Outside) -> Outside:
    if isinstance(y, float) and y >= -LOWEST:
        return _lowered(equation, _level(x) - y, -y)
    return _lowered(equation, _level(x) - _level(y), x) if lowness_of(y) is None else None


@_OUTSIDE.add("mul")
def _multiply_outside(equation: JaxprEqn, x: Outside, y: Outside) -> Outside:
    if 0 in (x, y) and lowness_of(x) is lowness_of(y) is None:
        return 0.0  # times a finite number
    low, factor = (y, x) if lowness_of(x) is None else (x, y)
    return _lowered(equation, _level(low) * _level(factor), low) if _is_positive(factor) else None


@_OUTSIDE.add("div")
def _divide_outside(equation: JaxprEqn, x: Outside, y: Outside) -> Outside:
    if _is_number(x) and _is_number(y):
        return _computed(np.true_divide, equation, [x, y]) if _is_floating(equation) else None
    if x is not None and x == 0:
        return 0.0  # divided by a finite number
    return _lowered(equation, _level(x) / _level(y), x) if _is_positive(y) else None


def _is_positive(value: Outside) -> bool:
    return isinstance(value, (bool, int, float)) and value > 0


def _level(value: Outside) -> float:
    """Return the largest value, where a score counts as 0."""
    return value.level if isinstance(value, Low) else float(value or 0)


def _lowered(equation: JaxprEqn, level: float, *lows: Outside) -> Low | None:
    """Return the result of arithmetic if an operand and the result are low; otherwise None."""
    is_low = any(lowness_of(value) is not None for value in lows) and _is_floating(equation)
    return Low(level) if is_low and level <= LOWEST else None


def lowness_of(value: Outside) -> float | None:
    """Return the level of a value that means minus infinity, or None."""
    if isinstance(value, Low):
        return value.level
    number = isinstance(value, float)
    return value if number and value <= LOWEST else None
