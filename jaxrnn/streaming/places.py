"""Integers and booleans that follow from the numbers of frames, such as the mask of an attention.

A mask has a value for each pair of a query frame i and a key frame j. `Places` describes such values by a formula. The
formula must repeat: if both frames move by ``period`` frames, the value grows by ``drift * period``. With drift 0, the
rows ``0 <= i < period`` over all distances ``j - i`` determine the mask, and `Places.bounds` finds the distances beyond
which the value is constant.

Example: ``abs(i - j) <= 2`` has drift 0 and period 1, and is False below distance -2 and above distance 2.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.canonical import kept_name
from jaxrnn.jaxprs.equations import is_key, type_of
from jaxrnn.jaxprs.primitives import Rules, entry_of, numpy_of
from jaxrnn.streaming.dimensions import LARGEST, is_symbolic, out_shape
from jaxrnn.streaming.values import Chunk, is_fixed, is_wide, static_number


@dataclass(frozen=True)
class Bounds:
    """The distances ``j - i`` between which a value changes.

    Attributes:
        low, below: below the distance `low` the value is `below`; None if it does not become constant.
        high, above: above the distance `high` the value is `above`; None if it does not become constant.
    """

    low: int
    high: int
    below: Any
    above: Any


@dataclass(frozen=True, eq=False)
class Places:
    """A value for each pair of frames i and j, or for each frame i.

    Attributes:
        formula: ``(i, j) -> values`` on NumPy arrays.
        drift: growth of the value if both frames move by one frame.
        period: number of frames after which the formula repeats, except for the drift.
        least: the smallest value; None if unknown.
        constants: the sum of the sizes of all coefficients, if the formula is written as a polynomial of i and j.
        scale: product of all divisors in the formula.
        is_quotient: True for a quotient of floats, which must be rounded to an integer.
    """

    formula: Callable[[Any, Any], Any]
    drift: Fraction = Fraction(0)
    period: int = 1
    least: int | None = None
    constants: int = 0
    scale: int = 1
    is_quotient: bool = False

    @classmethod
    def counting(cls) -> Places:
        """Return the number of frame i."""
        return cls(lambda i, j: i, Fraction(1), least=0, constants=1)

    @property
    def swapped(self) -> Places:
        """Return the formula with i and j exchanged."""
        return dataclasses.replace(self, formula=lambda i, j: self.formula(j, i))

    @property
    def far(self) -> int:
        """Return a distance that is larger than all constants in the formula."""
        return (self.constants + 1) * self.scale + self.period

    def rows(self, first: int, last: int) -> np.ndarray:
        """Return the values for each phase of i, ``[period, distances]``, at the distances from first to last."""
        distances, i = np.arange(first, last + 1), np.arange(self.period)[:, None]
        return np.broadcast_to(self.formula(i, i + distances), (self.period, len(distances)))

    def fits(self, dtype: Any) -> bool:
        """Return True if the formula is constant far away on both sides, and a type represents all values."""
        bounds = self.bounds
        if bounds is None or bounds.below is None or bounds.above is None:
            return False
        values = self.rows(bounds.low - 1, bounds.high + 1)
        return bool(np.all(values.astype(dtype).astype(np.float64) == values))

    @property
    def bounds(self) -> Bounds | None:
        """Return the distances beyond which the value is constant; None if the formula has drift or a long period."""
        far = self.far + 2 * self.period
        if self.drift or self.period * (2 * far + 1) > LARGEST:
            return None
        distances, values = np.arange(-far, far + 1), self.rows(-far, far)
        edge = 2 * self.period + 1
        below = values[0, 0] if np.all(values[:, :edge] == values[0, 0]) else None
        above = values[0, -1] if np.all(values[:, -edge:] == values[0, -1]) else None
        low = distances[np.any(values != below, 0)] if below is not None else distances
        high = distances[np.any(values != above, 0)] if above is not None else distances
        return Bounds(int(min(low, default=far)), int(max(high, default=-far)), below, above)


def operation_of(equation: JaxprEqn) -> str:
    """Return the name of the primitive, or of the called function for divisions of `jax.numpy`."""
    return kept_name(equation) or equation.primitive.name


@dataclass(frozen=True, eq=False)
class _Operation:
    """An operation on formulas."""

    equation: JaxprEqn
    terms: Sequence[Places]

    @property
    def dtype(self) -> np.dtype:
        """The type of the result."""
        return np.dtype(type_of(self.equation.outvars[0]))

    @property
    def function(self) -> Callable[..., Any]:
        """The operation in NumPy."""
        return numpy_of(self.equation)

    def made(
        self, function: Callable[..., Any], drift: Fraction = Fraction(0), *, rounds: bool = False, **changed: Any
    ) -> Places | None:
        """Return the formula of a function of the operands; only a function that rounds takes quotients."""
        if not rounds and any(each.is_quotient for each in self.terms):
            return None
        formulas = [each.formula for each in self.terms]
        facts: dict[str, Any] = {
            "period": math.lcm(*(each.period for each in self.terms)),
            "constants": sum(each.constants for each in self.terms),
            "scale": math.lcm(*(each.scale for each in self.terms)),
        }
        result = Places(lambda i, j: function(*(each(i, j) for each in formulas)), drift, **{**facts, **changed})
        # Formulas do not wrap around. Wide signed integers hold all numbers of formulas that have bounds.
        small = self.dtype.kind == "u" or (self.dtype.kind == "i" and self.dtype.itemsize < 4)
        return None if small and entry_of(self.equation).wraps and not result.fits(self.dtype) else result


#: Rules ``(operation) -> Places``, keyed by the name of the operation; None if the result has no formula.
_FORMULAS = Rules[Callable[..., Places | None]]()


def places_of(equation: JaxprEqn, operands: Sequence[Any]) -> Places | None:
    """Return the formula of the result of an operation, or None.

    ``operands`` have a `Places` as their attribute ``places``, or are numbers.
    """
    rule, entry = _FORMULAS.of(operation_of(equation)), entry_of(equation)
    if entry.kind == "movement" and entry.moved is not None:
        operands = operands[entry.moved]  # sizes are not elements
    terms = [formula_of(value) for value in operands]
    if rule is None or any(term is None for term in terms):
        return None
    return rule(_Operation(equation, [term for term in terms if term is not None]))


@_FORMULAS.add("broadcast_in_dim", "reshape", "transpose")
def _moved(operation: _Operation) -> Places | None:
    return operation.terms[0]


@_FORMULAS.add("stop_gradient")
def _unchanged(operation: _Operation) -> Places | None:
    (x,), dtype = operation.terms, operation.dtype
    # Smaller and unsigned types do not hold the numbers of all frames.
    holds = (dtype.kind in "if" and dtype.itemsize >= 4) or x.fits(dtype)
    return x if holds and not x.is_quotient else None


@_FORMULAS.add("convert_element_type")
def _converted(operation: _Operation) -> Places | None:
    (x,), dtype = operation.terms, operation.dtype
    if x.is_quotient:  # a cast rounds to 0
        truncates = dtype.kind in "iu" and dtype.itemsize >= 4 and x.least is not None and x.least >= 0
        return _floor(operation) if truncates else None
    if (dtype == np.bool_) != (type_of(operation.equation.invars[0]) == np.bool_):
        return operation.made((lambda value: value != 0) if dtype == np.bool_ else (lambda value: value * 1))
    return _unchanged(operation)


@_FORMULAS.add("floor")
def _floor(operation: _Operation) -> Places | None:
    (x,) = operation.terms
    if not x.is_quotient:
        return _unchanged(operation)
    return operation.made(lambda value: np.floor(value).astype(int), x.drift, least=x.least, rounds=True)


@_FORMULAS.add("add", "add_any", "neg", "sub")
def _linear(operation: _Operation) -> Places | None:
    signs, least = entry_of(operation.equation).signs, [each.least for each in operation.terms]
    drift = sum((sign * each.drift for sign, each in zip(signs, operation.terms, strict=True)), Fraction(0))
    known = None if None in least or min(signs) < 0 else sum(number for number in least if number is not None)
    return operation.made(operation.function, drift, least=known)


@_FORMULAS.add("eq", "ge", "gt", "le", "lt", "max", "min", "ne", "select_n")
def _with_equal_drifts(operation: _Operation) -> Places | None:
    entry = entry_of(operation.equation)
    cases = operation.terms[entry.moved or slice(None)]
    choice = operation.terms[: -len(cases)]
    if any(each.drift for each in choice) or len({each.drift for each in cases}) > 1:
        return None
    return operation.made(operation.function, Fraction(0) if entry.compares else cases[0].drift)


@_FORMULAS.add("clamp", "sign")
def _without_drift(operation: _Operation, **changed: Any) -> Places | None:
    if any(each.drift for each in operation.terms):
        return None
    return operation.made(operation.function, **changed)


_FORMULAS.add("abs")(functools.partial(_without_drift, least=0))


@_FORMULAS.add("and", "not", "or", "xor")
def _logic(operation: _Operation) -> Places | None:
    return _without_drift(operation) if operation.dtype == np.bool_ else None


@_FORMULAS.add("mul")
def _product(operation: _Operation) -> Places | None:
    x, factor = operation.terms if isinstance(operation.terms[1], _Number) else operation.terms[::-1]
    if isinstance(factor, _Number):
        number = factor.number
        least = None if x.least is None or number < 0 else x.least * number
        constants = x.constants * max(abs(number), 1)
        return operation.made(operator.mul, x.drift * number, constants=constants, least=least)
    return _without_drift(operation, constants=max(x.constants, 1) * max(factor.constants, 1))


def _divided(
    function: Callable[..., Any], operation: _Operation, *, rounds: Callable[..., Any] = np.trunc
) -> Places | None:
    x, divisor = operation.terms
    if not isinstance(divisor, _Number) or divisor.number < 1:
        return None
    number, is_quotient = divisor.number, function is operator.floordiv
    facts = {"scale": x.scale * number, "constants": x.constants}
    divided = functools.partial(operation.made, period=math.lcm(x.period, number * x.drift.denominator), **facts)
    if operation.dtype.kind not in "iub":
        if rounds is np.floor or not is_quotient or not x.drift:
            return None
        least = None if x.least is None else x.least // number
        return divided(np.true_divide, x.drift / number, is_quotient=True, least=least)
    may_be_negative = x.least is None or x.least < 0
    if rounds is np.trunc and may_be_negative:
        return None  # rounding to 0 does not repeat on both sides of 0
    drift = x.drift / number if is_quotient else Fraction(0)
    return divided(function, drift, least=None if may_be_negative and is_quotient else 0)


_FORMULAS.add("div")(functools.partial(_divided, operator.floordiv))
_FORMULAS.add("rem")(functools.partial(_divided, operator.mod))
_FORMULAS.add("floor_divide")(functools.partial(_divided, operator.floordiv, rounds=np.floor))
_FORMULAS.add("remainder")(functools.partial(_divided, operator.mod, rounds=np.floor))


class _Number(Places):
    """A constant, which is also the smallest value."""

    @property
    def number(self) -> int:
        """The constant."""
        assert self.least is not None
        return self.least


def formula_of(value: Any) -> Places | None:
    """Return the formula of a value, or None if the value is neither a number nor has a formula."""
    known = getattr(value, "places", None)
    if known is not None:
        return known
    if isinstance(value, Chunk) and value.affine is not None and value.affine[0] == 0:
        value = value.affine[1]  # a number for each frame
    array = np.asarray(value) if is_fixed(value) else np.empty(0)
    if not array.size:
        return None
    first = array.flat[0]
    if array.dtype.kind not in "iubf" or not abs(float(first)) <= LARGEST or np.any(array != first) or first % 1:
        return None
    number = int(first)
    value = bool(number) if array.dtype.kind == "b" else number
    return _Number(lambda i, j: np.asarray(value), least=number, constants=abs(number))


def with_places(equation: JaxprEqn, operands: Sequence[Any], results: list[Any]) -> list[Any]:
    """Attach formulas to results that follow from the numbers of the frames."""
    if not any(map(_has_places, operands)) or len(results) != 1 or not isinstance(results[0], Chunk):
        return results
    if not all(size == 1 or is_symbolic(size) for size in out_shape(equation)) or is_key(results[0].array.dtype):
        return results
    places = places_of(equation, operands)
    return results if places is None else [dataclasses.replace(results[0], places=places)]


#: Products with larger numbers are meant to overflow, such as hashes.
_LARGEST_FACTOR = 2048

#: Rules ``(equation, operands, growths) -> growth`` for operations that compute new elements.
_GROWTHS = Rules[Callable[[JaxprEqn, Sequence[Any], Sequence[Fraction | int]], Fraction | int]]()


def growth_of(equation: JaxprEqn, operands: Sequence[Any]) -> Fraction | int:
    """Return the growth in one unit of a result that follows the positions of frames, or 0; see `Chunk`."""
    growths = [value.growth if isinstance(value, Chunk) else 0 for value in operands]
    if not any(growths) or not is_wide(type_of(equation.outvars[0])):
        return 0
    entry = entry_of(equation)
    if entry.moved is not None or entry.arithmetic == "convert":
        first, *others = growths if entry.moved is None else growths[entry.moved]
        return first if all(each == first for each in others) else 0
    rule = _GROWTHS.of(equation)
    return 0 if rule is None else rule(equation, operands, growths)


@_GROWTHS.add("abs", "add", "add_any", "clamp", "max", "min", "neg", "sub")
def _growth_as_elements(equation: JaxprEqn, _: Sequence[Any], growths: Sequence[Fraction | int]) -> Fraction | int:
    return numpy_of(equation)(*map(Fraction, growths))


@_GROWTHS.add("mul")
def _growth_of_product(_: JaxprEqn, operands: Sequence[Any], growths: Sequence[Fraction | int]) -> Fraction | int:
    pairs = zip(growths, reversed(list(map(static_number, operands))), strict=True)
    found = [growth * number for growth, number in pairs if number is not None and abs(number) <= _LARGEST_FACTOR]
    return found[0] if len(found) == 1 else 0


@_GROWTHS.add("div")
def _growth_of_quotient(_: JaxprEqn, operands: Sequence[Any], growths: Sequence[Fraction | int]) -> Fraction | int:
    number = static_number(operands[1])
    return Fraction(growths[0]) / number if number else 0


def _has_places(value: Any) -> bool:
    return isinstance(value, Chunk) and (value.places is not None or (value.affine is not None and not value.affine[0]))
