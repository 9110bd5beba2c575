"""Integers and booleans that follow from the numbers of frames: positions, indices of frames, and masks.

An `Index` is all that is known of such a value, and `index_of` computes the index of a result from the indices of the
operands. So the rules of streams ask an index: which frames a gather reads (`Index.affine`), where a mask of pairs of
frames is constant (`Index.bounds`), how a position grows (`Index.growth`), and if all frames of all recordings answer a
comparison equally. What an index does not know is None, and `UNKNOWN` knows nothing.

A mask has a value for each pair of a query frame i and a key frame j. Such values must repeat: if both frames move by
``period`` frames, the value grows by ``drift * period``. With drift 0, the rows ``0 <= i < period`` over all distances
``j - i`` determine the mask, and `Index.bounds` finds the distances beyond which the value is constant.

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
from jaxrnn.jaxprs.equations import type_of
from jaxrnn.jaxprs.primitives import Rules, entry_of, numpy_of
from jaxrnn.streaming.dimensions import LARGEST, in_shape, is_symbolic, largest_value, out_shape, symbolic_axes

#: The coefficients of ``a * i + b * j + c``. The summand is an array with the rank of the value and one frame, or a
#: symbolic dimension.
Line = tuple[int, int, Any]
#: Scale and offsets of numbers of frames: frame i is ``scale * i + offsets``.
Affine = tuple[int, np.ndarray]


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


#: Elements that are evaluated to find the bounds of a value, in about a second.
_EVALUATED = 1 << 28
#: The largest number of a frame for which integers of 32 bits must not overflow. A recording that is longer has more
#: pairs of frames than fit into a gigabyte.
FARTHEST = 1 << 14
#: The largest factors and offsets of numbers of frames, which do not overflow in recordings of a usual length.
_STEEPEST, _LARGEST_OFFSET = 1 << 14, 1 << 20
#: Products with larger numbers are meant to overflow, such as hashes, and so are numbers that grow more in a frame.
_LARGEST_FACTOR = 2048


def is_wide(dtype: Any) -> bool:
    """Return True for signed integers of at least 32 bits, which count frames without overflow."""
    return jnp.issubdtype(dtype, np.signedinteger) and kept(np.int32, dtype).all


def _holds_all(dtype: Any, least: int | None) -> bool:
    """Return True if a type represents the numbers of all frames that make pairs, if `least` is the smallest number."""
    if jnp.issubdtype(dtype, np.unsignedinteger):
        return kept(np.uint32, dtype).all and least is not None and least >= 0
    return is_wide(dtype) or (jnp.issubdtype(dtype, jnp.floating) and kept(np.float32, dtype).all)


def _common(array: Any) -> Any:
    """Return the number that all elements of an array equal, or None."""
    return array.flat[0].item() if array.size and np.all(array == array.flat[0]) else None


@dataclass(frozen=True, eq=False)
class Index:
    """What is known of a value for each pair of frames i and j, or for each frame i.

    Attributes:
        at: ``(i, j) -> values`` on NumPy arrays, if all elements of a frame are equal. The next seven attributes
            describe this function.
        drift: growth of the value if both frames move by one frame.
        period: number of frames after which the value repeats, except for the drift.
        least: the smallest value; None if unknown.
        constants: the sum of the sizes of all coefficients, if the function is written as a polynomial of i and j.
        scale: product of all divisors in the function.
        degree: the degree, if the function is written as a polynomial. The numbers of a degree above 2 overflow in
            recordings of a thousand frames.
        is_quotient: True for a quotient of floats, which must be rounded to an integer.
        unclipped: the coefficients of ``a * i + b * j + c``, which is the value between the bounds `low` and `high`.
        low, high: the bounds; the upper bound may be a symbolic dimension. None if unbounded.
        columns: the indices of parts of size 1 that are joined along the last axis.
        growth: growth in one unit of integers that follow the positions of frames, for frames far from the start.
        is_limited: True if the numbers are of a type, or were, that holds the numbers of all frames that make pairs,
            but not of all later frames, such as float32.
    """

    at: Callable[[Any, Any], Any] | None = None
    drift: Fraction = Fraction(0)
    period: int = 1
    least: int | None = None
    constants: int = 0
    scale: int = 1
    degree: int = 1
    is_quotient: bool = False
    unclipped: Line | None = None
    low: int | None = None
    high: Any = None
    columns: tuple[Index, ...] = ()
    growth: Fraction | int = 0
    is_limited: bool = False

    @classmethod
    def of(cls, a: int, b: int, c: Any) -> Index:
        """Return the index of ``a * i + b * j + c``."""
        if _is_length(c):

            def at(i: Any, j: Any) -> Any:
                raise StreamError(
                    f"each pair of frames depends on the length ({c}), which is known only when the stream has "
                    "ended; compare the numbers of two frames with each other, or with a fixed number"
                )

            return cls(at, Fraction(a + b), unclipped=(a, b, c))
        c = np.asarray(c)
        least = int(c.min()) if a >= 0 and b >= 0 else None
        if (number := _common(c)) is None:
            return cls(unclipped=(a, b, c), least=least)
        line = a, b, c.flat[:1].reshape([1] * c.ndim)
        if abs(number) > LARGEST:
            return cls(unclipped=line, least=least)
        value = lambda i, j: a * i + b * j + number if a or b else np.asarray(number)  # noqa: E731
        size, degree = abs(a) + abs(b) + abs(number), 1 if a or b else 0
        return cls(value, Fraction(a + b), least=least, constants=size, degree=degree, unclipped=line)

    @classmethod
    def counting(cls, dtype: Any, rank: int) -> Index:
        """Return the index of the numbers of frames in an array of this type and rank."""
        counts = dataclasses.replace(cls.of(1, 0, np.zeros([1] * rank, np.int64)), is_limited=not is_wide(dtype))
        return counts if _holds_all(dtype, 0) else UNKNOWN

    @classmethod
    def constant(cls, array: np.ndarray) -> Index:
        """Return the index of elements that are the same in all frames, and for all lengths."""
        if array.dtype.kind == "f":
            number = _common(array)
            if number is None or not abs(number) <= LARGEST or number % 1:
                return UNKNOWN
            return dataclasses.replace(cls.of(0, 0, np.asarray(int(number))), is_limited=True)
        if array.dtype.kind not in "iub" or not array.size or array.max() > np.iinfo(np.int64).max:
            return UNKNOWN
        return cls.of(0, 0, array if array.dtype.kind == "b" else array.astype(np.int64))

    @property
    def has_numbers(self) -> bool:
        """Return True if something is known of the numbers, and not only of their growth."""
        return self.at is not None or self.unclipped is not None or bool(self.columns)

    @property
    def linear(self) -> Line | None:
        """The coefficients of ``a * i + b * j + c``, or None."""
        return self.unclipped if self.low is None and self.high is None else None

    @property
    def level(self) -> Any:
        """The number or symbolic dimension that all elements of all frames equal, or None."""
        if self.linear is None or any(self.linear[:2]):
            return None
        return self.linear[2] if _is_length(self.linear[2]) else _common(self.linear[2])

    @property
    def number(self) -> int | None:
        """The number that all elements of all frames equal for all lengths, or None."""
        return None if self.needs_length else self.level

    @property
    def counted(self) -> Affine | None:
        """Scale and offsets of numbers of frames without their bounds, or None."""
        if self.unclipped is None or self.unclipped[1] or self.is_limited or _is_length(self.unclipped[2]):
            return None
        return self.unclipped[0], self.unclipped[2]

    @property
    def affine(self) -> Affine | None:
        """Scale and offsets of numbers of frames, or None."""
        return None if self.linear is None else self.counted

    @property
    def fixed(self) -> np.ndarray | None:
        """The elements of a frame, with one frame, if all frames are equal for all lengths; or None."""
        return self.affine[1] if self.affine is not None and not self.affine[0] else None

    @property
    def needs_length(self) -> bool:
        """Return True if the summand depends on the length."""
        return self.linear is not None and _is_length(self.linear[2])

    @property
    def swapped(self) -> Index:
        """Return the index with i and j exchanged."""
        at, line = self.at, self.unclipped
        return dataclasses.replace(
            self, at=at and (lambda i, j: at(j, i)), unclipped=line and (line[1], line[0], line[2])
        )

    @property
    def of_pairs(self) -> Index:
        """Return the index if all elements of a frame are equal, as for elements of pairs of frames."""
        return UNKNOWN if self.at is None else self

    def taken(self, start: int, stride: int, rank: int) -> Index:
        """Return the index of frames ``start``, ``start + stride``, and so on, in an array of this rank."""
        if self.affine is None:
            return UNKNOWN
        scale, offsets = self.affine
        offsets = offsets.reshape([1] * rank) if offsets.size == 1 else offsets
        return Index.of(scale * stride, 0, offsets + scale * start if scale else offsets).held_in(np.dtype(np.int64))

    @property
    def far(self) -> int:
        """Return a distance that is larger than all constants in the function."""
        return (self.constants + 1) * self.scale + self.period

    def rows(self, first: int, last: int, phases: Any = None) -> np.ndarray:
        """Return ``[phases, distances]`` values at the distances from first to last, by default for all phases of i."""
        assert self.at is not None
        i = np.arange(self.period) if phases is None else np.asarray(phases)
        distances = np.arange(first, last + 1)
        return np.broadcast_to(self.at(i[:, None], i[:, None] + distances), (len(i), len(distances)))

    def fits(self, dtype: Any) -> bool:
        """Return True if the value is constant far away on both sides, and a type represents all values."""
        bounds = self.bounds
        if bounds is None or bounds.below is None or bounds.above is None:
            return False
        values = self.rows(bounds.low - 1, bounds.high + 1)
        return bool(np.all(converted(values, np.dtype(dtype)).astype(np.float64) == values))

    def held_in(self, dtype: np.dtype) -> Index:
        """Return the index of the numbers in a type: an empty index if numbers wrap around or are rounded."""
        holds, top = _holds_all(dtype, self.least), np.iinfo(dtype).max if dtype.kind in "iu" else math.inf
        at, line = self.at, self.unclipped if holds or dtype == np.bool_ else None
        if at is not None and not holds and dtype != np.bool_:
            at = at if not self.is_quotient and self.fits(dtype) else None
        elif at is not None and not self.needs_length:
            far = np.array([0, FARTHEST])
            at = at if np.all(np.abs(at(far[:, None], far)) <= top) else None
        if line is not None:
            *slopes, c = line
            limits = (c, _LARGEST_OFFSET if any(slopes) else top), (self.low, top), (self.high, top)
            known = [(each, most) for each, most in limits if each is not None and not _is_length(each)]
            is_near = all(np.all((each <= most) & (each >= -most)) for each, most in known)
            line = line if is_near and max(map(abs, slopes)) <= _STEEPEST else None
        if at is None and line is None:
            return UNKNOWN
        found = dataclasses.replace(self, at=at, columns=())
        return found if line is not None else dataclasses.replace(found, unclipped=None, low=None, high=None)

    @functools.cached_property
    def bounds(self) -> Bounds | None:
        """Return the distances beyond which the value is constant; None if it has drift or a long period."""
        far = self.far + 2 * self.period
        distances = np.arange(-far, far + 1)
        if self.at is None or self.drift or self.needs_length or self.period * len(distances) > _EVALUATED:
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


UNKNOWN = Index()


def _is_length(value: Any) -> bool:
    return not isinstance(value, np.ndarray) and is_symbolic(value)


def _sum(signs: Sequence[int], lines: Sequence[Line | None]) -> Line | None:
    """Return a sum of lines with these signs; None for columns plus a length."""
    known = [line for line in lines if line is not None]
    constants = [c for _, _, c in known]
    if any(map(_is_length, constants)):
        constants = [c if _is_length(c) else _common(c) for c in constants]
    if len(known) < len(lines) or any(c is None for c in constants):
        return None
    parts = [a for a, _, _ in known], [b for _, b, _ in known], constants
    a, b, c = (sum(sign * each for sign, each in zip(signs, part, strict=True)) for part in parts)
    return a, b, c


def _ends(line: Line, size: Any) -> tuple[Any, Any]:
    """Return the smallest and the largest value in the frames ``0 <= i, j < size`` of recordings of all lengths."""
    *slopes, c = line
    if not _is_length(c):
        return c - (math.inf if min(slopes) < 0 else 0), c + (math.inf if max(slopes) > 0 else 0)
    most, negated = (
        largest_value(sum(max(sign * slope, 0) for slope in slopes) * (size - 1) + sign * c, size) for sign in (1, -1)
    )
    return -math.inf if negated is None else -negated, math.inf if most is None else most


def _difference(x: Line, y: Line, size: Any) -> tuple[Any, Any]:
    """Return the smallest and the largest difference in the frames of recordings of all lengths."""
    pairs = [(x, y), (x, y)]
    if _is_length(x[2]) or _is_length(y[2]):  # over all columns
        low, high = ([(a, b, c if _is_length(c) else of(c)) for a, b, c in (x, y)] for of in (np.min, np.max))
        pairs = [(low[0], high[1]), (high[0], low[1])]
    (least, _), (_, most) = (_ends(line, size) for pair in pairs if (line := _sum((1, -1), pair)) is not None)
    return least, most


def _differences(x: Index, y: Index, size: Any) -> tuple[Any, Any] | None:
    """Return the smallest and the largest difference of values that may have bounds, or None."""
    if y.linear is None:
        swapped = None if x.linear is None else _differences(y, x, size)
        return None if swapped is None else (-swapped[1], -swapped[0])
    if x.unclipped is None:
        return None
    least, most = _difference(x.unclipped, y.linear, size)
    for bound, choose in ((x.low, np.maximum), (x.high, np.minimum)):
        if bound is not None:
            low, high = _difference((0, 0, bound if _is_length(bound) else np.asarray(bound)), y.linear, size)
            least, most = choose(least, low), choose(most, high)
    return least, most


def operation_of(equation: JaxprEqn) -> str:
    """Return the name of the primitive, or of the called function for divisions of `jax.numpy`."""
    return kept_name(equation) or equation.primitive.name


@dataclass(frozen=True, eq=False)
class _Operation:
    """An operation on values that follow from the numbers of frames."""

    equation: JaxprEqn
    terms: Sequence[Index]
    frames: int  # in a unit

    @property
    def dtype(self) -> np.dtype:
        """The type of the result."""
        return np.dtype(type_of(self.equation.outvars[0]))

    @property
    def cases(self) -> Sequence[Index]:
        """The operands of which the result has elements; of a selection that is known, only the operand chosen."""
        cases = self.terms[entry_of(self.equation).moved or slice(None)]
        fixed = self.terms[0].fixed if self.equation.primitive.name == "select_n" else None
        which = None if fixed is None else _common(fixed)
        return cases if which is None else [cases[int(which)]]

    @property
    def function(self) -> Callable[..., Any]:
        """The operation in NumPy."""
        return numpy_of(self.equation)

    @property
    def fixed(self) -> list[np.ndarray]:
        """The operands, if all are the same in all frames and for all lengths; otherwise an empty list."""
        known = [each.linear[2] for each in self.terms if each.linear is not None and not any(each.linear[:2])]
        return known if len(known) == len(self.terms) and not any(map(_is_length, known)) else []

    def made(
        self, function: Callable[..., Any], drift: Fraction = Fraction(0), *, rounds: bool = False, **changed: Any
    ) -> Index:
        """Return the index of a function of the operands; only a function that rounds takes quotients."""
        functions = [each.at for each in self.terms if each.at is not None and not each.needs_length]
        if len(functions) < len(self.terms) or (not rounds and any(each.is_quotient for each in self.terms)):
            return UNKNOWN
        fields: dict[str, Any] = {
            "period": math.lcm(*(each.period for each in self.terms)),
            "constants": sum(each.constants for each in self.terms),
            "scale": math.lcm(*(each.scale for each in self.terms)),
            "degree": max(each.degree for each in self.terms),
        }
        result = Index(lambda i, j: function(*(each(i, j) for each in functions)), drift, **{**fields, **changed})
        return result.held_in(self.dtype)

    @property
    def growth(self) -> Fraction | int:
        """The growth in one unit of a result that follows the positions of frames, or 0."""
        growths, entry = [each.growth for each in self.terms], entry_of(self.equation)
        if not any(growths) or not is_wide(type_of(self.equation.outvars[0])):
            return 0
        if entry.moved is not None or entry.arithmetic == "convert":
            first, *others = (each.growth for each in self.cases)
            return first if all(each == first for each in others) else 0
        name, numbers = self.equation.primitive.name, [each.number for each in self.terms]
        if name in ("abs", "add", "add_any", "clamp", "max", "min", "neg", "sub"):
            return self.function(*map(Fraction, growths))
        if name == "div":
            return Fraction(growths[0]) / numbers[1] if numbers[1] else 0
        if name != "mul":
            return 0
        pairs = zip(growths, reversed(numbers), strict=True)
        found = [growth * number for growth, number in pairs if number is not None and abs(number) <= _LARGEST_FACTOR]
        return found[0] if len(found) == 1 and abs(found[0]) <= _STEEPEST * self.frames else 0


#: Rules ``(operation) -> Index``, keyed by the name of the operation.
_RULES = Rules[Callable[..., Index]]()


def index_of(equation: JaxprEqn, terms: Sequence[Index], frames: int) -> Index:
    """Return the index of the result of an equation, if a unit has this number of `frames`."""
    rule, operation = _RULES.of(operation_of(equation)), _Operation(equation, terms, frames)
    found, growth = UNKNOWN if rule is None else rule(operation), operation.growth
    if found is UNKNOWN and not growth:
        return UNKNOWN
    moves = found.drift or (found.unclipped is not None and any(found.unclipped[:2]))
    is_limited = any(each.is_limited for each in terms) or bool(moves and not is_wide(type_of(equation.outvars[0])))
    return dataclasses.replace(found, growth=growth, is_limited=is_limited)


@_RULES.add("broadcast_in_dim", "reshape", "transpose")
def _moved(operation: _Operation) -> Index:
    x, equation = dataclasses.replace(operation.cases[0], columns=()), operation.equation
    old, new, params = in_shape(equation), out_shape(equation), equation.params
    axes = params.get("broadcast_dimensions", ())  # the new axis of each axis; None for an axis of size 1
    if equation.primitive.name == "reshape":
        times = [symbolic_axes(shape) for shape in (old, new)]
        inner = [math.prod(shape[axes[0] + 1 :]) for shape, axes in zip((old, new), times, strict=True) if axes]
        if x.level is None and (list(map(len, times)) != [1, 1] or inner[0] != inner[1]):
            return UNKNOWN  # other axes merge into time, or time is split
        whole, parts = ([axis for axis, size in enumerate(shape) if str(size) != "1"] for shape in (old, new))
        is_same = [str(old[axis]) for axis in whole] == [str(new[axis]) for axis in parts]
        axes = [dict(zip(whole, parts, strict=True)).get(axis) for axis in range(len(old))] if is_same else ()
    if x.unclipped is None or _is_length(x.unclipped[2]):
        return x
    (a, b, c), sizes = x.unclipped, [1] * len(new)
    if c.size > 1 and equation.primitive.name == "transpose":
        c = c.transpose(params["permutation"])
    elif c.size > 1:
        if not axes:
            return UNKNOWN
        for size, axis in zip(c.shape, axes, strict=True):
            if axis is not None:
                sizes[axis] = size
        c = c.reshape(sizes)
    return dataclasses.replace(x, unclipped=(a, b, c if c.size > 1 else c.reshape(sizes)), columns=())


@_RULES.add("dim_as_value")
def _length(operation: _Operation) -> Index:
    return Index.of(0, 0, operation.equation.params["dim"])


@_RULES.add("concatenate")
def _joined(operation: _Operation) -> Index:
    equation, last = operation.equation, len(out_shape(operation.equation)) - 1
    is_columns = all(str(in_shape(equation, place)[last]) == "1" for place in range(len(equation.invars)))
    return Index(columns=tuple(operation.terms)) if is_columns and equation.params["dimension"] == last else UNKNOWN


@_RULES.add("convert_element_type", "stop_gradient")
def _converted(operation: _Operation) -> Index:
    (x,), dtype = operation.terms, operation.dtype
    if x.is_quotient:  # a cast rounds to 0
        truncates = dtype.kind in "iu" and dtype.itemsize >= 4 and x.least is not None and x.least >= 0
        return _floor(operation) if truncates else UNKNOWN
    old = type_of(operation.equation.invars[0])
    if operation.fixed and dtype.kind in "iub":
        (elements,) = operation.fixed
        is_float = jnp.issubdtype(old, jnp.inexact)
        return Index.constant(converted(elements.astype(np.float64) if is_float else elements, dtype))
    if (dtype == np.bool_) != (old == np.bool_):
        cast = (lambda value: value != 0) if dtype == np.bool_ else (lambda value: value * 1)
        return UNKNOWN if x.drift else operation.made(cast)
    return x.held_in(dtype)


@_RULES.add("floor")
def _floor(operation: _Operation) -> Index:
    (x,) = operation.terms
    if not x.is_quotient:
        return _converted(operation)
    return operation.made(lambda value: np.floor(value).astype(int), x.drift, least=x.least, rounds=True)


@_RULES.add("add", "add_any", "neg", "sub")
def _linear(operation: _Operation) -> Index:
    signs, least = entry_of(operation.equation).signs, [each.least for each in operation.terms]
    drift = sum((sign * each.drift for sign, each in zip(signs, operation.terms, strict=True)), Fraction(0))
    known = None if None in least or min(signs) < 0 else sum(number for number in least if number is not None)
    if (line := _sum(signs, [each.linear for each in operation.terms])) is not None:
        return Index.of(*line).held_in(operation.dtype)
    return operation.made(operation.function, drift, least=known)


@_RULES.add("eq", "ge", "gt", "le", "lt", "ne")
def _compared(operation: _Operation) -> Index:
    """Return a comparison; a number if all frames of recordings of all lengths give the same answer."""
    (x, y), size = operation.terms, next(filter(is_symbolic, out_shape(operation.equation)), None)
    ends = None if size is None else _differences(x, y, size)
    if ends is not None:
        first, *others = (operation.function(each, 0) for each in (*ends, np.clip(0, *ends)))
        if all(np.array_equal(first, other) for other in others):
            return Index.constant(np.asarray(first))
    return _with_equal_drifts(operation, drift=Fraction(0), degree=0)


@_RULES.add("select_n")
def _chosen(operation: _Operation) -> Index:
    return operation.cases[0] if len(operation.cases) == 1 else _with_equal_drifts(operation)


def _with_equal_drifts(operation: _Operation, **changed: Any) -> Index:
    cases = operation.cases
    choice = operation.terms[: -len(cases)]
    if any(each.drift for each in choice) or len({each.drift for each in cases}) > 1:
        return UNKNOWN
    return operation.made(operation.function, **{"drift": cases[0].drift, **changed})


@_RULES.add("max", "min")
def _clipped(operation: _Operation) -> Index:
    found, (x, bound) = _with_equal_drifts(operation), operation.terms
    x, level = (x, bound.level) if x.level is None else (bound, x.level)
    if level is None or x.counted is None or x.counted[0] < 1 or x.high is not None or not is_wide(operation.dtype):
        return found
    if entry_of(operation.equation).monoid == "min":
        return dataclasses.replace(found, unclipped=x.unclipped, low=x.low, high=level)
    low = level if x.low is None or _is_length(level) else max(x.low, level)
    return found if _is_length(level) else dataclasses.replace(found, unclipped=x.unclipped, low=low)


@_RULES.add("clamp", "sign")
def _without_drift(operation: _Operation, **changed: Any) -> Index:
    return UNKNOWN if any(each.drift for each in operation.terms) else operation.made(operation.function, **changed)


_RULES.add("abs")(functools.partial(_without_drift, least=0))


@_RULES.add("and", "not", "or", "xor")
def _logic(operation: _Operation) -> Index:
    if operation.dtype != np.bool_ and operation.equation.primitive.name == "not":
        return UNKNOWN
    if operation.fixed:
        return Index.constant(np.asarray(operation.function(*operation.fixed)))
    return _without_drift(operation) if operation.dtype == np.bool_ else UNKNOWN


@_RULES.add("mul")
def _product(operation: _Operation) -> Index:
    x, factor = operation.terms if operation.terms[1].number is not None else operation.terms[::-1]
    number, line = factor.number, None
    if operation.fixed:
        line = 0, 0, operator.mul(*operation.fixed)
    elif number is not None and x.linear is not None:
        a, b, c = x.linear
        line = a * number, b * number, c * number
    if line is not None:
        return Index.of(*line).held_in(operation.dtype)
    if number is None:
        degree, constants = x.degree + factor.degree, max(x.constants, 1) * max(factor.constants, 1)
        return _without_drift(operation, constants=constants, degree=degree) if degree <= 2 else UNKNOWN
    least = None if x.least is None or number < 0 else x.least * number
    constants = x.constants * max(abs(number), 1)
    return operation.made(operator.mul, x.drift * number, constants=constants, least=least)


def _divided(function: Callable[..., Any], operation: _Operation, *, rounds: Callable[..., Any] = np.trunc) -> Index:
    x, number = operation.terms[0], operation.terms[1].number
    if number is None or number < 1:
        return UNKNOWN
    is_quotient = function is operator.floordiv
    fields = {"scale": x.scale * number, "constants": x.constants}
    divided = functools.partial(operation.made, period=math.lcm(x.period, number * x.drift.denominator), **fields)
    if operation.dtype.kind not in "iub":
        if rounds is np.floor or not is_quotient or not x.drift:
            return UNKNOWN
        least = None if x.least is None else x.least // number
        return divided(np.true_divide, x.drift / number, is_quotient=True, least=least)
    may_be_negative = x.least is None or x.least < 0
    if rounds is np.trunc and may_be_negative:
        return UNKNOWN  # rounding to 0 does not repeat on both sides of 0
    drift = x.drift / number if is_quotient else Fraction(0)
    return divided(function, drift, least=None if may_be_negative and is_quotient else 0)


_RULES.add("div")(functools.partial(_divided, operator.floordiv))
_RULES.add("rem")(functools.partial(_divided, operator.mod))
_RULES.add("floor_divide")(functools.partial(_divided, operator.floordiv, rounds=np.floor))
_RULES.add("remainder")(functools.partial(_divided, operator.mod, rounds=np.floor))


@_RULES.add("square")
def _square(operation: _Operation) -> Index:
    (x,) = operation.terms
    return _without_drift(operation, constants=max(x.constants, 1) ** 2, degree=2) if x.degree <= 1 else UNKNOWN


@_RULES.add("shift_right_arithmetic")
def _shifted(operation: _Operation) -> Index:
    """Return a shift by a number of bits as a division, rounded down, by a power of 2."""
    x, bits = operation.terms
    if bits.number is None or not 0 <= bits.number < 8 * operation.dtype.itemsize - 1:
        return UNKNOWN
    if operation.dtype.kind != "i":  # the highest bit would be a sign
        return UNKNOWN
    divided = dataclasses.replace(operation, terms=[x, Index.constant(np.asarray(1 << bits.number))])
    return _divided(operator.floordiv, divided, rounds=np.floor)
