"""Integers and booleans that follow from the numbers of frames: positions, indices of frames, and masks.

An `Index` is all that is known of such a value, and `jaxrnn.streaming.index_rules` computes the index of a result from
the indices of the operands. So the rules of streams ask an index: which frames a gather reads (`Index.affine`), where a
mask of pairs of frames is constant (`Index.bounds`), how a position grows (`Index.growth`), and if all frames of all
recordings answer a comparison equally (`differences`). What an index does not know is None, and `UNKNOWN` knows
nothing.

A mask has a value for each pair of a query frame i and a key frame j. Such values must repeat: if both frames move by
``period`` frames, the value grows by ``drift * period``. With drift 0, the rows ``0 <= i < period`` over all distances
``j - i`` determine the mask, and `Index.bounds` finds the distances beyond which the value is constant.

Example: ``abs(i - j) <= 2`` has drift 0 and period 1, and is False below distance -2 and above distance 2.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.casts import converted, kept
from jaxrnn.streaming.dimensions import LARGEST, is_at_most, is_symbolic, largest_value

#: The coefficients of ``a * i + b * j + c``. The summand is an array with the rank of the value and one frame, of
#: integers or of symbolic dimensions.
Line = tuple[int, int, np.ndarray]
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
#: Recordings with more frames are not compared with narrow types one frame by one.
_MOST_IN_NARROW = 512
#: The largest factors and offsets of numbers of frames, which do not overflow in recordings of a usual length.
STEEPEST, _LARGEST_OFFSET = 1 << 14, 1 << 20
#: Products with larger numbers are meant to overflow, such as hashes, and so are numbers that grow more in a frame.
LARGEST_FACTOR = 2048


def is_wide(dtype: Any) -> bool:
    """Return True for signed integers of at least 32 bits, which count frames without overflow."""
    return jnp.issubdtype(dtype, np.signedinteger) and kept(np.int32, dtype).all


def is_held_by_all(dtype: Any) -> bool:
    """Return True for booleans and for types that hold the numbers of all frames that make pairs."""
    return dtype == np.bool_ or _holds_all(dtype, 0)


def _holds_all(dtype: Any, least: int | None) -> bool:
    """Return True if a type represents the numbers of all frames that make pairs, if `least` is the smallest number."""
    if jnp.issubdtype(dtype, np.unsignedinteger):
        return kept(np.uint32, dtype).all and least is not None and least >= 0
    return is_wide(dtype) or (jnp.issubdtype(dtype, jnp.floating) and kept(np.float32, dtype).all)


def common(array: np.ndarray) -> Any:
    """Return the number or symbolic dimension that all elements of an array equal, or None."""
    if array.dtype == object:
        return array.flat[0] if len(set(map(str, array.flat))) == 1 else None
    return array.flat[0].item() if array.size and np.all(array == array.flat[0]) else None


@dataclass(frozen=True, eq=False)
class Index:
    """The knowledge of a value for each pair of frames i and j, or for each frame i.

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
        """Return the index of ``a * i + b * j + c``, for numbers or symbolic dimensions c."""
        c = _array(c)
        if _has_lengths(c):

            def at(i: Any, j: Any) -> Any:
                raise StreamError(
                    f"each pair of frames depends on the length ({c.flat[0]}), which is known only when the stream has "
                    "ended; compare the numbers of two frames with each other, or with a fixed number"
                )

            return cls(at, Fraction(a + b), unclipped=(a, b, c))
        least = int(c.min()) if a >= 0 and b >= 0 else None
        if (number := common(c)) is None:
            return cls(unclipped=(a, b, c), least=least)
        line = a, b, c.flat[:1].reshape([1] * c.ndim)
        if abs(number) > LARGEST:
            return cls(unclipped=line, least=least)
        value = lambda i, j: a * i + b * j + number if a or b else np.asarray(number)  # noqa: E731
        size, degree = abs(a) + abs(b) + abs(number), 1 if a or b else 0
        return cls(value, Fraction(a + b), least=least, constants=size, degree=degree, unclipped=line)

    @classmethod
    def counting(cls, dtype: Any, rank: int, size: Any) -> Index:
        """Return the index of the numbers of frames in an array of this type and rank, with `size` frames."""
        counts = dataclasses.replace(cls.of(1, 0, np.zeros([1] * rank, np.int64)), is_limited=not is_wide(dtype))
        return counts if _holds_all(dtype, 0) else counts.held_in(np.dtype(dtype), size)

    @classmethod
    def constant(cls, array: np.ndarray) -> Index:
        """Return the index of elements that are the same in all frames, and for all lengths."""
        if jnp.issubdtype(array.dtype, jnp.floating):
            number = common(array)
            if number is not None and math.isinf(number):  # as masks write
                return cls(lambda i, j: np.asarray(number), degree=0, is_limited=True)
            if number is None or not abs(number) <= LARGEST or number % 1:
                return UNKNOWN
            return dataclasses.replace(cls.of(0, 0, np.asarray(int(number))), is_limited=True)
        if array.dtype.kind not in "iub" or not array.size or array.max() > np.iinfo(np.int64).max:
            return UNKNOWN
        return cls.of(0, 0, array if array.dtype.kind == "b" else array.astype(np.int64))

    @property
    def has_numbers(self) -> bool:
        """Return True if something is known of the numbers, and not only of their growth."""
        return self.at is not None or self.unclipped is not None or bool(self.columns) or self.least is not None

    @property
    def linear(self) -> Line | None:
        """The coefficients of ``a * i + b * j + c``, or None."""
        return self.unclipped if self.low is None and self.high is None else None

    @property
    def elements(self) -> np.ndarray | None:
        """The elements of a frame, numbers or symbolic dimensions, with one frame, if all frames are equal; or None."""
        return None if self.linear is None or any(self.linear[:2]) else self.linear[2]

    @property
    def level(self) -> Any:
        """The number or symbolic dimension that all elements of all frames equal, or None."""
        return None if self.elements is None else common(self.elements)

    @property
    def number(self) -> int | None:
        """The number that all elements of all frames equal for all lengths, or None."""
        return None if self.needs_length else self.level

    @property
    def counted(self) -> Affine | None:
        """Scale and offsets of numbers of frames without their bounds, or None."""
        if self.unclipped is None or self.unclipped[1] or self.is_limited or _has_lengths(self.unclipped[2]):
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
        return self.linear is not None and _has_lengths(self.linear[2])

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
        return Index(least=self.least) if self.at is None else self

    def placed(self, dimensions: Sequence[int], rank: int) -> Index:
        """Return the index with the axes at these places of an array of this rank."""
        if self.unclipped is None:
            return self.of_pairs
        a, b, c = self.unclipped
        sizes = dict(zip(dimensions, c.shape if c.size > 1 else (), strict=c.size > 1))
        c = c.reshape([sizes.get(axis, 1) for axis in range(rank)])
        return dataclasses.replace(self, unclipped=(a, b, c), columns=())

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

    def held_in(self, dtype: np.dtype, size: Any = None) -> Index:
        """Return the index of the numbers in a type: an empty index if numbers wrap around or are rounded.

        If the constraints bound the number of frames, `size`, then narrow types may hold all numbers.
        """
        if not is_held_by_all(dtype) and self._is_held_in(dtype, size):
            return dataclasses.replace(self, columns=())
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
            known = [(_array(each), most) for each, most in limits if each is not None]
            known = [(each, most) for each, most in known if not _has_lengths(each)]
            is_near = all(np.all((each <= most) & (each >= -most)) for each, most in known)
            line = line if is_near and max(map(abs, slopes)) <= STEEPEST else None
        if at is None and line is None:
            return UNKNOWN
        found = dataclasses.replace(self, at=at, columns=())
        return found if line is not None else dataclasses.replace(found, unclipped=None, low=None, high=None)

    def _is_held_in(self, dtype: np.dtype, size: Any) -> bool:
        """Return True if a narrow type represents the numbers of all frames of recordings of all lengths."""
        is_plain = not (self.is_quotient or self.needs_length) and self.low is None and self.high is None
        if size is None or not is_plain or not is_at_most(size, FARTHEST):
            return False
        count = 1 + bisect.bisect_left(range(1, FARTHEST), True, key=lambda number: is_at_most(size, number))
        if jnp.issubdtype(dtype, jnp.integer):
            least, most = int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
        else:
            most = 2 << jnp.finfo(dtype).nmant
            least = -most
        if self.unclipped is not None:
            (a, b, c), ends = self.unclipped, np.array([0, count - 1])
            values = (a * ends[:, None] + b * ends)[..., None] + c.reshape(-1)
        elif self.at is not None and count <= _MOST_IN_NARROW:
            values = self.at(np.arange(count)[:, None], np.arange(count))
        else:
            return False
        return bool(np.all(values >= least) and np.all(values <= most))

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


def _array(value: Any) -> np.ndarray:
    """Return numbers, or a symbolic dimension, as an array."""
    return np.asarray(value, object if not isinstance(value, np.ndarray) and is_symbolic(value) else None)


def computed(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """Return a function in NumPy of arrays of numbers and of symbolic dimensions.

    Raises:
        InconclusiveDimensionOperation: the function compares dimensions, and the length decides.
    """
    if any(map(_has_lengths, arrays)):
        arrays = tuple(each.astype(object) for each in arrays)  # NumPy would convert dimensions beside numbers
    return _array(function(*arrays))


def _has_lengths(array: np.ndarray) -> bool:
    return array.dtype == object


def sum_of(signs: Sequence[int], lines: Sequence[Line | None]) -> Line | None:
    """Return a sum of lines with these signs."""
    known = [line for line in lines if line is not None]
    if len(known) < len(lines):
        return None
    signed = list(zip(signs, known, strict=True))
    parts = (computed(np.multiply, c, np.asarray(sign)) for sign, (_, _, c) in signed)
    total = functools.reduce(functools.partial(computed, np.add), parts)
    return sum(sign * a for sign, (a, _, _) in signed), sum(sign * b for sign, (_, b, _) in signed), total


def _ends(line: Line, size: Any) -> tuple[Any, Any]:
    """Return the smallest and the largest value in the frames ``0 <= i, j < size`` of recordings of all lengths."""
    *slopes, c = line
    if not _has_lengths(c):
        return c - (math.inf if min(slopes) < 0 else 0), c + (math.inf if max(slopes) > 0 else 0)
    if (length := common(c)) is None:
        return -math.inf, math.inf
    most, negated = (
        largest_value(sum(max(sign * slope, 0) for slope in slopes) * (size - 1) + sign * length, size)
        for sign in (1, -1)
    )
    return -math.inf if negated is None else -negated, math.inf if most is None else most


def _difference(x: Line, y: Line, size: Any) -> tuple[Any, Any]:
    """Return the smallest and the largest difference in the frames of recordings of all lengths."""
    pairs = [(x, y), (x, y)]
    if _has_lengths(x[2]) or _has_lengths(y[2]):  # over all columns
        low, high = (
            [(a, b, c if _has_lengths(c) else np.asarray(of(c))) for a, b, c in (x, y)] for of in (np.min, np.max)
        )
        pairs = [(low[0], high[1]), (high[0], low[1])]
    (least, _), (_, most) = (_ends(line, size) for pair in pairs if (line := sum_of((1, -1), pair)) is not None)
    return least, most


def differences(x: Index, y: Index, size: Any) -> tuple[Any, Any] | None:
    """Return the smallest and the largest difference of values that may have bounds, or None."""
    if y.linear is None:
        swapped = None if x.linear is None else differences(y, x, size)
        return None if swapped is None else (-swapped[1], -swapped[0])
    if x.unclipped is None:
        return None
    least, most = _difference(x.unclipped, y.linear, size)
    for bound, choose in ((x.low, np.maximum), (x.high, np.minimum)):
        if bound is not None:
            low, high = _difference((0, 0, _array(bound)), y.linear, size)
            least, most = choose(least, low), choose(most, high)
    return least, most
