"""Integers and booleans that follow from the numbers of frames, such as the mask of an attention.

A mask has a value for each pair of a query frame i and a key frame j. A `Formula` describes such values, and must
repeat: if both frames move by ``period`` frames, the value grows by ``drift * period``. With drift 0, the rows ``0 <= i
< period`` over all distances ``j - i`` determine the mask, and `Formula.bounds` finds the distances beyond which the
value is constant.

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

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.canonical import kept_name
from jaxrnn.jaxprs.casts import converted, kept
from jaxrnn.jaxprs.equations import is_key, type_of
from jaxrnn.jaxprs.primitives import Rules, entry_of, numpy_of
from jaxrnn.streaming.dimensions import LARGEST, is_symbolic, largest_value, out_shape
from jaxrnn.streaming.values import Chunk, is_length, is_static, is_wide, static_number


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


#: Elements that are evaluated to find the bounds of a formula, in about a second.
_EVALUATED = 1 << 28
#: The largest number of a frame for which integers of 32 bits must not overflow. A recording that is longer has more
#: pairs of frames than fit into a gigabyte.
FARTHEST = 1 << 14


def _counts_in(dtype: Any) -> bool:
    """Return True if a type holds the numbers of all frames."""
    return is_wide(dtype) or (jnp.issubdtype(dtype, jnp.floating) and kept(np.float32, dtype).all)


@dataclass(frozen=True, eq=False)
class Formula:
    """A value for each pair of frames i and j, or for each frame i.

    Attributes:
        at: ``(i, j) -> values`` on NumPy arrays.
        drift: growth of the value if both frames move by one frame.
        period: number of frames after which the formula repeats, except for the drift.
        least: the smallest value; None if unknown.
        constants: the sum of the sizes of all coefficients, if the formula is written as a polynomial of i and j.
        scale: product of all divisors in the formula.
        degree: the degree, if the formula is written as a polynomial. The numbers of a degree above 2 overflow in
            recordings of a thousand frames.
        is_quotient: True for a quotient of floats, which must be rounded to an integer.
        affine: the coefficients a, b and c of a formula ``a * i + b * j + c``, or None. If c depends on the length,
            only comparisons that all lengths answer equally have values.
    """

    at: Callable[[Any, Any], Any]
    drift: Fraction = Fraction(0)
    period: int = 1
    least: int | None = None
    constants: int = 0
    scale: int = 1
    degree: int = 1
    is_quotient: bool = False
    affine: tuple[Any, Any, Any] | None = None

    @classmethod
    def counting(cls) -> Formula:
        """Return the number of frame i."""
        return cls(lambda i, j: i, Fraction(1), least=0, constants=1, affine=(1, 0, 0))

    @classmethod
    def with_length(cls, affine: tuple[Any, Any, Any]) -> Formula:
        """Return a formula that no frame can evaluate, because its constant depends on the length."""

        def at(i: Any, j: Any) -> Any:
            raise StreamError(
                f"each pair of frames depends on the length ({affine[2]}), which is known only when the stream has "
                "ended; compare the numbers of two frames with each other, or with a fixed number"
            )

        return cls(at, Fraction(affine[0] + affine[1]), affine=affine)

    @property
    def needs_length(self) -> bool:
        """Return True if the constant depends on the length."""
        return self.affine is not None and is_symbolic(self.affine[2])

    @property
    def swapped(self) -> Formula:
        """Return the formula with i and j exchanged."""
        affine = self.affine and (self.affine[1], self.affine[0], self.affine[2])
        return dataclasses.replace(self, at=lambda i, j: self.at(j, i), affine=affine)

    @property
    def far(self) -> int:
        """Return a distance that is larger than all constants in the formula."""
        return (self.constants + 1) * self.scale + self.period

    def rows(self, first: int, last: int, phases: Any = None) -> np.ndarray:
        """Return ``[phases, distances]`` values at the distances from first to last, by default for all phases of i."""
        i = np.arange(self.period) if phases is None else np.asarray(phases)
        distances = np.arange(first, last + 1)
        return np.broadcast_to(self.at(i[:, None], i[:, None] + distances), (len(i), len(distances)))

    def fits(self, dtype: Any) -> bool:
        """Return True if the formula is constant far away on both sides, and a type represents all values."""
        bounds = self.bounds
        if bounds is None or bounds.below is None or bounds.above is None:
            return False
        values = self.rows(bounds.low - 1, bounds.high + 1)
        return bool(np.all(converted(values, np.dtype(dtype)).astype(np.float64) == values))

    def is_held_by(self, dtype: np.dtype) -> bool:
        """Return True if a type holds all values: formulas neither wrap around nor round."""
        if dtype == np.bool_ or self.needs_length:
            return True
        if not _counts_in(dtype):
            return not self.is_quotient and self.fits(dtype)
        far = np.array([0, FARTHEST])
        return dtype.kind == "f" or bool(np.all(np.abs(self.at(far[:, None], far)) <= np.iinfo(dtype).max))

    @functools.cached_property
    def bounds(self) -> Bounds | None:
        """Return the distances beyond which the value is constant; None if the formula has drift or a long period."""
        far = self.far + 2 * self.period
        distances = np.arange(-far, far + 1)
        if self.drift or self.needs_length or self.period * len(distances) > _EVALUATED:
            return None
        below, above = (self.rows(end, end, [0]).item() for end in (-far, far))
        not_below, not_above = np.zeros((2, len(distances)), bool)
        some = max(1, LARGEST // len(distances))
        for start in range(0, self.period, some):  # all phases at once would fill the memory
            values = self.rows(-far, far, range(start, min(start + some, self.period)))
            not_below |= np.any(values != below, 0)
            not_above |= np.any(values != above, 0)
        edge = 2 * self.period + 1
        is_below, is_above = not not_below[:edge].any(), not not_above[-edge:].any()
        low = distances[not_below] if is_below else distances
        high = distances[not_above] if is_above else distances
        ends = int(min(low, default=far)), int(max(high, default=-far))
        return Bounds(*ends, below if is_below else None, above if is_above else None)


def operation_of(equation: JaxprEqn) -> str:
    """Return the name of the primitive, or of the called function for divisions of `jax.numpy`."""
    return kept_name(equation) or equation.primitive.name


@dataclass(frozen=True, eq=False)
class _Operation:
    """An operation on formulas."""

    equation: JaxprEqn
    terms: Sequence[Formula]

    @property
    def dtype(self) -> np.dtype:
        """The type of the result."""
        return np.dtype(type_of(self.equation.outvars[0]))

    @property
    def holds_all(self) -> bool:
        """True if the type of the result holds the numbers of all frames, unlike smaller and unsigned types."""
        return _counts_in(self.dtype)

    @property
    def function(self) -> Callable[..., Any]:
        """The operation in NumPy."""
        return numpy_of(self.equation)

    def affine(self, signs: Sequence[int]) -> tuple[Any, Any, Any] | None:
        """Return the coefficients of a sum of the operands with these signs, or None."""
        terms = [each.affine for each in self.terms if each.affine is not None]
        if len(terms) != len(signs):
            return None
        a, b, c = (
            sum(sign * each for sign, each in zip(signs, parts, strict=True)) for parts in zip(*terms, strict=True)
        )
        return a, b, c

    def made(
        self, function: Callable[..., Any], drift: Fraction = Fraction(0), *, rounds: bool = False, **changed: Any
    ) -> Formula | None:
        """Return the formula of a function of the operands; only a function that rounds takes quotients."""
        if not rounds and any(each.is_quotient for each in self.terms):
            return None
        functions = [each.at for each in self.terms]
        fields: dict[str, Any] = {
            "period": math.lcm(*(each.period for each in self.terms)),
            "constants": sum(each.constants for each in self.terms),
            "scale": math.lcm(*(each.scale for each in self.terms)),
            "degree": max(each.degree for each in self.terms),
        }
        result = Formula(lambda i, j: function(*(each(i, j) for each in functions)), drift, **{**fields, **changed})
        return result if result.is_held_by(self.dtype) else None


#: Rules ``(operation) -> Formula``, keyed by the name of the operation; None if the result has no formula.
_FORMULAS = Rules[Callable[..., Formula | None]]()


def formula_of(equation: JaxprEqn, operands: Sequence[Any]) -> Formula | None:
    """Return the formula of the result of an operation, or None.

    ``operands`` have a `Formula` as their attribute ``formula``, or are numbers.
    """
    rule, entry = _FORMULAS.of(operation_of(equation)), entry_of(equation)
    if entry.kind == "movement" and entry.moved is not None:
        operands = operands[entry.moved]  # sizes are not elements
    terms = [term_of(value) for value in operands]
    if rule is None or any(term is None for term in terms):
        return None
    operation = _Operation(equation, [term for term in terms if term is not None])
    needs_length = entry.kind != "movement" and any(term.needs_length for term in operation.terms)
    return _of_length(operation) if needs_length else rule(operation)


def _of_length(operation: _Operation) -> Formula | None:
    """Return the formula of a sum with the length, or a comparison that all lengths answer equally."""
    entry, size = entry_of(operation.equation), next(filter(is_symbolic, out_shape(operation.equation)), None)
    keeps = len(operation.terms) == 1 and (entry.moved is not None or entry.arithmetic == "convert")
    signs = (1,) if keeps else (1, -1) if entry.compares == "order" else entry.signs
    if (affine := operation.affine(signs)) is None:
        return None
    if entry.compares:
        return None if size is None else _for_all_lengths(operation.function, affine, size)
    return Formula.with_length(affine) if operation.holds_all else None


def _for_all_lengths(compare: Callable[..., Any], affine: tuple[Any, Any, Any], size: Any) -> Formula | None:
    """Return the answer of a comparison with 0 if all pairs of frames of all lengths give the same, or None."""
    *slopes, constant = affine
    # The largest and the smallest value over 0 <= i, j < size.
    most, negated = (
        largest_value(sum(max(sign * slope, 0) for slope in slopes) * (size - 1) + sign * constant, size)
        for sign in (1, -1)
    )
    ends = (math.inf if most is None else most, -math.inf if negated is None else -negated)
    first, last = (bool(compare(end, 0)) for end in ends)
    return _number(first) if first == last else None


@_FORMULAS.add("broadcast_in_dim", "reshape", "transpose")
def _moved(operation: _Operation) -> Formula | None:
    return operation.terms[0]


@_FORMULAS.add("stop_gradient")
def _unchanged(operation: _Operation) -> Formula | None:
    (x,) = operation.terms
    return x if not x.is_quotient and (operation.holds_all or x.fits(operation.dtype)) else None


@_FORMULAS.add("convert_element_type")
def _converted(operation: _Operation) -> Formula | None:
    (x,), dtype = operation.terms, operation.dtype
    if x.is_quotient:  # a cast rounds to 0
        truncates = dtype.kind in "iu" and dtype.itemsize >= 4 and x.least is not None and x.least >= 0
        return _floor(operation) if truncates else None
    if (dtype == np.bool_) != (type_of(operation.equation.invars[0]) == np.bool_):
        return operation.made((lambda value: value != 0) if dtype == np.bool_ else (lambda value: value * 1))
    return _unchanged(operation)


@_FORMULAS.add("floor")
def _floor(operation: _Operation) -> Formula | None:
    (x,) = operation.terms
    if not x.is_quotient:
        return _unchanged(operation)
    return operation.made(lambda value: np.floor(value).astype(int), x.drift, least=x.least, rounds=True)


@_FORMULAS.add("add", "add_any", "neg", "sub")
def _linear(operation: _Operation) -> Formula | None:
    signs, least = entry_of(operation.equation).signs, [each.least for each in operation.terms]
    drift = sum((sign * each.drift for sign, each in zip(signs, operation.terms, strict=True)), Fraction(0))
    known = None if None in least or min(signs) < 0 else sum(number for number in least if number is not None)
    return operation.made(operation.function, drift, least=known, affine=operation.affine(signs))


@_FORMULAS.add("eq", "ge", "gt", "le", "lt", "max", "min", "ne", "select_n")
def _with_equal_drifts(operation: _Operation) -> Formula | None:
    entry = entry_of(operation.equation)
    cases = operation.terms[entry.moved or slice(None)]
    choice = operation.terms[: -len(cases)]
    if any(each.drift for each in choice) or len({each.drift for each in cases}) > 1:
        return None
    if entry.compares:
        return operation.made(operation.function, degree=0)
    return operation.made(operation.function, cases[0].drift)


@_FORMULAS.add("clamp", "sign")
def _without_drift(operation: _Operation, **changed: Any) -> Formula | None:
    if any(each.drift for each in operation.terms):
        return None
    return operation.made(operation.function, **changed)


_FORMULAS.add("abs")(functools.partial(_without_drift, least=0))


@_FORMULAS.add("and", "not", "or", "xor")
def _logic(operation: _Operation) -> Formula | None:
    return _without_drift(operation) if operation.dtype == np.bool_ else None


@_FORMULAS.add("mul")
def _product(operation: _Operation) -> Formula | None:
    x, factor = operation.terms if isinstance(operation.terms[1], _Number) else operation.terms[::-1]
    if isinstance(factor, _Number):
        number = factor.number
        least = None if x.least is None or number < 0 else x.least * number
        fields = {"constants": x.constants * max(abs(number), 1), "least": least}
        affine = x.affine and (x.affine[0] * number, x.affine[1] * number, x.affine[2] * number)
        return operation.made(operator.mul, x.drift * number, affine=affine, **fields)
    degree, constants = x.degree + factor.degree, max(x.constants, 1) * max(factor.constants, 1)
    return _without_drift(operation, constants=constants, degree=degree) if degree <= 2 else None


def _divided(
    function: Callable[..., Any], operation: _Operation, *, rounds: Callable[..., Any] = np.trunc
) -> Formula | None:
    x, divisor = operation.terms
    if not isinstance(divisor, _Number) or divisor.number < 1:
        return None
    number, is_quotient = divisor.number, function is operator.floordiv
    fields = {"scale": x.scale * number, "constants": x.constants}
    divided = functools.partial(operation.made, period=math.lcm(x.period, number * x.drift.denominator), **fields)
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


@_FORMULAS.add("square")
def _square(operation: _Operation) -> Formula | None:
    (x,) = operation.terms
    return _without_drift(operation, constants=max(x.constants, 1) ** 2, degree=2) if x.degree <= 1 else None


@_FORMULAS.add("shift_right_arithmetic")
def _shifted(operation: _Operation) -> Formula | None:
    """Return a shift by a number of bits as a division, rounded down, by a power of 2."""
    x, bits = operation.terms
    if not isinstance(bits, _Number) or not 0 <= bits.number < 8 * operation.dtype.itemsize - 1:
        return None
    if operation.dtype.kind != "i":  # the highest bit would be a sign
        return None
    divided = _Operation(operation.equation, [x, _number(1 << bits.number)])
    return _divided(operator.floordiv, divided, rounds=np.floor)


class _Number(Formula):
    """A constant, which is also the smallest value."""

    @property
    def number(self) -> int:
        """The constant."""
        assert self.least is not None
        return self.least


def term_of(value: Any) -> Formula | None:
    """Return the formula of an operand, or None."""
    known = getattr(value, "formula", None)
    if known is not None:
        return known
    if isinstance(value, Chunk) and value.numbers.affine is not None and value.numbers.affine[0] == 0:
        value = value.numbers.affine[1]  # a number for each frame
    array = np.asarray(value) if is_static(value) else np.empty(0)
    if not array.size:
        return None
    first = array.flat[0]
    if is_length(value):
        same = all(str(each) == str(first) for each in array.flat)
        return Formula.with_length((0, 0, first)) if same else None
    if array.dtype.kind not in "iubf" or not abs(float(first)) <= LARGEST or np.any(array != first) or first % 1:
        return None
    return _number(bool(first) if array.dtype.kind == "b" else int(first))


def _number(value: int) -> Formula:
    return _Number(
        lambda i, j: np.asarray(value), least=int(value), constants=abs(value), degree=0, affine=(0, 0, int(value))
    )


def with_formula(equation: JaxprEqn, operands: Sequence[Any], results: list[Any]) -> list[Any]:
    """Attach formulas to results that follow from the numbers of the frames."""
    if not any(map(_has_formula, operands)) or len(results) != 1 or not isinstance(results[0], Chunk):
        return results
    if not all(size == 1 or is_symbolic(size) for size in out_shape(equation)) or is_key(results[0].array.dtype):
        return results
    formula = formula_of(equation, operands)
    return results if formula is None else [results[0].noting(formula=formula)]


#: Products with larger numbers are meant to overflow, such as hashes, and so are numbers that grow more in a frame.
_LARGEST_FACTOR, STEEPEST = 2048, 1 << 14

#: Rules ``(equation, operands, growths) -> growth`` for operations that compute new elements.
_GROWTHS = Rules[Callable[[JaxprEqn, Sequence[Any], Sequence[Fraction | int]], Fraction | int]]()


def growth_of(equation: JaxprEqn, operands: Sequence[Any]) -> Fraction | int:
    """Return the growth in one unit of a result that follows the positions of frames, or 0; see `Chunk`."""
    growths = [value.numbers.growth if isinstance(value, Chunk) else 0 for value in operands]
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
    frames = next(value.timeline.per_unit for value in operands if isinstance(value, Chunk))
    return found[0] if len(found) == 1 and abs(found[0]) <= STEEPEST * frames else 0


@_GROWTHS.add("div")
def _growth_of_quotient(_: JaxprEqn, operands: Sequence[Any], growths: Sequence[Fraction | int]) -> Fraction | int:
    number = static_number(operands[1])
    return Fraction(growths[0]) / number if number else 0


def _has_formula(value: Any) -> bool:
    return isinstance(value, Chunk) and (
        value.formula is not None or (value.numbers.affine is not None and not value.numbers.affine[0])
    )
