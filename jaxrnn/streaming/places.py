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

from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.canonical import kept_name
from jaxrnn.jaxprs.equations import is_key, type_of
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.streaming.dimensions import LARGEST, is_symbolic, largest_value, out_shape
from jaxrnn.streaming.values import Chunk, is_length, is_static, is_wide, static_number

ORDER = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}
#: JAX answers equality of lengths with False if it depends on the length, so only numbers are compared by equality.
COMPARISONS = {**ORDER, "eq": operator.eq, "ne": operator.ne}
LOGIC = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
_EXTREMES = {"max": np.maximum, "min": np.minimum}
DIVISIONS = {
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "div": operator.floordiv,
    "rem": operator.mod,
}
#: Operations that do not change a number.
UNCHANGED = ("convert_element_type", "copy", "stop_gradient", "reduce_precision")


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
        affine: the coefficients a, b and c of a formula ``a * i + b * j + c``, or None. If c depends on the length,
            only comparisons that all lengths answer equally have values.
    """

    formula: Callable[[Any, Any], Any]
    drift: Fraction = Fraction(0)
    period: int = 1
    least: int | None = None
    constants: int = 0
    scale: int = 1
    is_quotient: bool = False
    affine: tuple[Any, Any, Any] | None = None

    @classmethod
    def counting(cls) -> Places:
        """Return the number of frame i."""
        return cls(lambda i, j: i, Fraction(1), least=0, constants=1, affine=(1, 0, 0))

    @classmethod
    def with_length(cls, affine: tuple[Any, Any, Any]) -> Places:
        """Return a formula that no frame can evaluate, because its constant depends on the length."""

        def formula(i: Any, j: Any) -> Any:
            raise StreamError(
                f"each pair of frames depends on the length ({affine[2]}), which is known only when the stream has "
                "ended; compare the numbers of two frames with each other, or with a fixed number"
            )

        return cls(formula, Fraction(affine[0] + affine[1]), affine=affine)

    @property
    def needs_length(self) -> bool:
        """Return True if the constant depends on the length."""
        return self.affine is not None and is_symbolic(self.affine[2])

    @property
    def swapped(self) -> Places:
        """Return the formula with i and j exchanged."""
        affine = self.affine and (self.affine[1], self.affine[0], self.affine[2])
        return dataclasses.replace(self, formula=lambda i, j: self.formula(j, i), affine=affine)

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
        if self.drift or self.needs_length or self.period * (2 * far + 1) > LARGEST:
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


def places_of(name: str, equation: JaxprEqn, operands: Sequence[Any]) -> Places | None:
    """Return the formula of the result of an elementwise operation, or None.

    ``operands`` have a `Places` as their attribute ``places``, or are numbers.
    """
    terms = [term_of(value) for value in operands]
    if any(term is None for term in terms):
        return None
    known: list[Places] = [term for term in terms if term is not None]
    constants, period = sum(each.constants for each in known), math.lcm(*(each.period for each in known))
    scale = math.lcm(*(each.scale for each in known))
    drifts = {each.drift for each in known}
    formulas = [each.formula for each in known]
    affine = _affine_of(name, known)
    dtype = np.dtype(type_of(equation.outvars[0]))
    is_integer = dtype.kind in "iub"
    # Smaller and unsigned types do not hold the numbers of all frames.
    holds_all = dtype.kind in "if" and dtype.itemsize >= 4
    # Formulas do not wrap around. Wide signed integers hold all numbers of formulas that have bounds.
    may_wrap = entry_of(equation).wraps and (dtype.kind == "u" or (dtype.kind == "i" and dtype.itemsize < 4))

    def made(function: Callable[..., Any], drift: Fraction = Fraction(0), **changed: Any) -> Places | None:
        def formula(i: Any, j: Any) -> Any:
            return function(*(each(i, j) for each in formulas))

        changed = {"period": period, "constants": constants, "scale": scale, "affine": affine, **changed}
        result = Places(formula, drift, **changed)
        return None if may_wrap and not result.fits(dtype) else result

    least = [each.least for each in known]
    if any(each.needs_length for each in known):
        if affine is not None and holds_all:
            return Places.with_length(affine)
        size = next(filter(is_symbolic, out_shape(equation)), None)
        return _for_all_lengths(name, _affine_of("sub", known), size) if name in ORDER and size is not None else None
    if any(each.is_quotient for each in known):
        truncates = name == "convert_element_type" and is_integer and least[0] is not None and least[0] >= 0
        rounded = made(lambda value: np.floor(value).astype(int), known[0].drift, least=least[0])
        return rounded if name == "floor" or (truncates and dtype.itemsize >= 4) else None
    if name == "convert_element_type" and (dtype == np.bool_) != (type_of(equation.invars[0]) == np.bool_):
        return made((lambda value: value != 0) if dtype == np.bool_ else (lambda value: value * 1))
    if name in UNCHANGED:
        return known[0] if holds_all or known[0].fits(dtype) else None
    if name == "add":
        together = None if None in least else sum(number for number in least if number is not None)
        return made(operator.add, known[0].drift + known[1].drift, least=together)
    if name == "sub":
        return made(operator.sub, known[0].drift - known[1].drift)
    if name == "neg":
        return made(operator.neg, -known[0].drift)
    if name in _EXTREMES and len(drifts) == 1:
        return made(_EXTREMES[name], known[0].drift)
    if name == "clamp" and not any(drifts):
        return made(lambda low, x, high: np.clip(x, low, high))
    if name in COMPARISONS and len(drifts) == 1:
        return made(COMPARISONS[name])
    if name == "select_n" and not known[0].drift and len({each.drift for each in known[1:]}) == 1:
        return made(lambda which, *cases: np.choose(which.astype(int), cases), known[1].drift)
    if any(drifts) and name not in ("mul", *DIVISIONS):
        return None
    if name in LOGIC and all(each == np.bool_ for each in map(type_of, equation.invars)):
        return made(LOGIC[name])
    if name == "not" and type_of(equation.invars[0]) == np.bool_:
        return made(np.logical_not)
    if name == "abs":
        return made(np.abs, least=0)
    if name == "sign":
        return made(np.sign)
    return _with_number(name, known, made, is_integer)


def _affine_of(name: str, known: Sequence[Places]) -> tuple[Any, Any, Any] | None:
    """Return the coefficients of a sum, difference, negative or copy."""
    terms = [each.affine for each in known if each.affine is not None]
    if len(terms) != len(known) or name not in ("add", "sub", "neg", *UNCHANGED):
        return None
    sign = -1 if name in ("sub", "neg") else 1
    if len(terms) == 1:
        terms = [(0, 0, 0), terms[0]] if name == "neg" else terms
    a, b, c = (first + sum(sign * each for each in others) for first, *others in zip(*terms, strict=True))
    return a, b, c


def _for_all_lengths(name: str, affine: tuple[Any, Any, Any] | None, size: Any) -> Places | None:
    """Return the answer of a comparison with 0 if all pairs of frames of all lengths give the same, or None."""
    if affine is None:
        return None
    *slopes, constant = affine
    # The largest and the smallest value over 0 <= i, j < size.
    most, negated = (
        largest_value(sum(max(sign * slope, 0) for slope in slopes) * (size - 1) + sign * constant, size)
        for sign in (1, -1)
    )
    ends = [
        ORDER[name](end, 0) for end in (math.inf if most is None else most, -math.inf if negated is None else -negated)
    ]
    return _number(ends[0]) if ends[0] == ends[1] else None


def _with_number(
    name: str, known: Sequence[Places], made: Callable[..., Places | None], is_integer: bool
) -> Places | None:
    """Return a product or quotient with a number."""
    if len(known) != 2:
        return None
    numbers = [each.least if isinstance(each, _Number) else None for each in known]
    if name == "mul" and any(number is not None for number in numbers):
        x, number = (known[0], numbers[1]) if numbers[1] is not None else (known[1], numbers[0])
        assert number is not None
        least = None if x.least is None or number < 0 else x.least * number
        affine = x.affine and (x.affine[0] * number, x.affine[1] * number, x.affine[2] * number)
        constants = x.constants * max(abs(number), 1)
        return made(operator.mul, x.drift * number, constants=constants, least=least, affine=affine)
    if name == "mul" and not any(each.drift for each in known):
        return made(operator.mul, constants=max(known[0].constants, 1) * max(known[1].constants, 1))
    if name not in DIVISIONS or numbers[1] is None or numbers[1] < 1:
        return None
    x, number = known[0], numbers[1]
    period = math.lcm(x.period, number * x.drift.denominator)
    divided = functools.partial(made, period=period, scale=x.scale * number, constants=x.constants)
    if not is_integer:
        if name != "div" or not x.drift:
            return None
        least = None if x.least is None else x.least // number
        return divided(np.true_divide, x.drift / number, is_quotient=True, least=least)
    may_be_negative = x.least is None or x.least < 0
    if name in ("div", "rem") and may_be_negative:
        return None  # these round to 0, which does not repeat on both sides of 0
    drift = x.drift / number if name in ("floor_divide", "div") else Fraction(0)
    return divided(DIVISIONS[name], drift, least=None if may_be_negative and name == "floor_divide" else 0)


class _Number(Places):
    """A constant, which is also the smallest value."""


def term_of(value: Any) -> Places | None:
    """Return the formula of an operand, or None."""
    known = getattr(value, "places", None)
    if known is not None:
        return known
    if isinstance(value, Chunk) and value.affine is not None and value.affine[0] == 0:
        value = value.affine[1]  # a number for each frame
    array = np.asarray(value) if is_static(value) else np.empty(0)
    if not array.size:
        return None
    first = array.flat[0]
    if is_length(value):
        same = all(str(each) == str(first) for each in array.flat)
        return Places.with_length((0, 0, first)) if same else None
    if array.dtype.kind not in "iubf" or not abs(float(first)) <= LARGEST or np.any(array != first) or first % 1:
        return None
    return _number(bool(first) if array.dtype.kind == "b" else int(first))


def _number(value: int) -> Places:
    return _Number(lambda i, j: np.asarray(value), least=int(value), constants=abs(value), affine=(0, 0, int(value)))


def with_places(equation: JaxprEqn, operands: Sequence[Any], results: list[Any]) -> list[Any]:
    """Attach formulas to results that follow from the numbers of the frames."""
    if not any(map(_has_places, operands)) or len(results) != 1 or not isinstance(results[0], Chunk):
        return results
    if not all(size == 1 or is_symbolic(size) for size in out_shape(equation)) or is_key(results[0].array.dtype):
        return results
    name = operation_of(equation)
    moves = name in ("broadcast_in_dim", "reshape", "transpose")
    places = term_of(operands[0]) if moves else places_of(name, equation, operands)
    return results if places is None else [dataclasses.replace(results[0], places=places)]


#: Products with larger numbers are meant to overflow, such as hashes.
_LARGEST_FACTOR = 2048


def growth_of(equation: JaxprEqn, operands: Sequence[Any]) -> Fraction | int:
    """Return the growth in one unit of a result that follows the positions of frames, or 0; see `Chunk`."""
    growths = [value.growth if isinstance(value, Chunk) else 0 for value in operands]
    dtype = type_of(equation.outvars[0])
    if not any(growths) or not is_wide(dtype):
        return 0
    name = equation.primitive.name
    growth, number = growths[0], static_number(operands[1]) if len(operands) == 2 else None
    moved = slice(1) if name in UNCHANGED else entry_of(equation).moved
    if moved is not None:
        cases = growths[moved]
        return cases[0] if len(set(cases)) == 1 else 0
    if name in ("add", "max", "min"):
        return {"add": sum, "max": max, "min": min}[name](growths)
    if name == "sub":
        return growth - growths[1]
    if name == "clamp":
        return min(max(growths[:2]), growths[2])
    if name in ("neg", "abs"):
        return -growth if name == "neg" else abs(growth)
    if name == "mul":
        number = static_number(operands[0]) if number is None else number
        return 0 if number is None or abs(number) > _LARGEST_FACTOR else (growth or growths[1]) * number
    if name == "div" and number:
        return Fraction(growth) / number
    return 0


def _has_places(value: Any) -> bool:
    return isinstance(value, Chunk) and (value.places is not None or (value.affine is not None and not value.affine[0]))
