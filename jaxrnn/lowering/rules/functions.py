"""Functions of numbers that ONNX has no operator for, written out so that nothing cancels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.lowering.lowering import Lowering, Rule
from jaxrnn.lowering.rules.elementwise import cast, elements
from jaxrnn.lowering.writer import Operand, dtype_of


class _Formula:
    """Operators by name, on operands and Python numbers, which are of the type of the formula.

    Below float32, it is computed in float32.
    """

    def __init__(self, lowering: Lowering, x: Operand):
        self.lowering, self.dtype = lowering, dtype_of(x)
        self.wide = self.dtype if self.dtype == np.float64 else np.dtype(np.float32)

    def of(self, x: Operand) -> Operand:
        """An operand in the type of the formula."""
        return cast(self.lowering, x, self.wide)

    def result(self, x: Operand) -> Operand:
        """A result in the type of the operands."""
        return cast(self.lowering, x, self.dtype)

    def __call__(self, operator: str, *operands: Operand | float, dtype: Any = None) -> Operand:
        arrays = [np.array(each, self.wide) if isinstance(each, float | int) else each for each in operands]
        return elements(self.lowering, operator, *arrays, dtype=self.wide if dtype is None else dtype)

    def holds(self, operator: str, *operands: Operand | float) -> Operand:
        """A condition."""
        return self(operator, *operands, dtype=bool)


def exp2(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """A power of 2."""
    return elements(lowering, "Pow", np.array(2, dtype_of(x)), x, dtype=dtype_of(x))


def cube_root(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """A power of 1/3, which only float64 holds well enough, with the sign of the number."""
    magnitude = cast(lowering, elements(lowering, "Abs", x), np.float64)
    root = cast(lowering, elements(lowering, "Pow", magnitude, np.array(1 / 3)), dtype_of(x))
    return elements(lowering, "Mul", elements(lowering, "Sign", x), root)


def arctan2(lowering: Lowering, equation: JaxprEqn, y: Operand, x: Operand) -> Operand:
    """The angle of a point; of the origin, 0, whatever the sign of its zeros; between infinities there is none."""
    f = _Formula(lowering, y)
    y, x = f.of(y), f.of(x)
    origin = f("And", f.holds("Equal", y, 0), f.holds("Equal", x, 0), dtype=bool)
    angle = f("Where", origin, 0, f("Atan", f("Div", y, f("Abs", x))))
    # The sign of a zero is that of its reciprocal.
    below = f("Or", f.holds("Less", y, 0), f.holds("Less", f("Reciprocal", y), 0), dtype=bool)
    turned = f("Sub", f("Where", below, -math.pi, math.pi), angle)
    return f.result(f("Where", f.holds("Less", x, 0), turned, angle))


def is_finite(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Below infinity, which NaN is not."""
    return elements(lowering, "Less", elements(lowering, "Abs", x), np.array(np.inf, dtype_of(x)), dtype=bool)


def rounded(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """``Round``, half to even; or half away from 0."""
    if int(equation.params["rounding_method"]) == 1:
        return elements(lowering, "Round", x)
    f = _Formula(lowering, x)
    x = f.of(x)
    magnitude = f("Abs", x)
    low = f("Floor", magnitude)
    up = f("Where", f.holds("GreaterOrEqual", f("Sub", magnitude, low), 0.5), f("Add", low, 1), low)
    return f.result(f("Mul", f("Sign", x), up))


def integer_power(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Products for squares and for integers, which wrap around; ``Pow`` for others."""
    exponent, dtype = equation.params["y"], dtype_of(x)
    if exponent < 0:
        return elements(lowering, "Reciprocal", _power(lowering, x, -exponent))
    if exponent == 0:
        return elements(lowering, "Where", np.array(True), np.array(1, dtype), x, dtype=dtype)
    return _power(lowering, x, exponent)


def _power(lowering: Lowering, x: Operand, exponent: int) -> Operand:
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


RULES: dict[str, Rule] = {
    "atan2": arctan2,
    "cbrt": cube_root,
    "exp2": exp2,
    "integer_pow": integer_power,
    "is_finite": is_finite,
    "round": rounded,
}
