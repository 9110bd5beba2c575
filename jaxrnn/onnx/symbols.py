"""Scalars that are not integers, but are known in part: sizes as floats, undecided comparisons, and places.

Some exporters cast a length to float, and compare float counters with the length. Integral floats are exact, so such a
size stays known while tracing, as an `IntegralFloat`. A comparison of sizes with the same result for all lengths is a
bool. Any other comparison is a `Claim`, which yields the trip count of a loop. A `Place` is a traced integer plus a
known number, so that the size of a slice between two places may be known. All are items of NumPy arrays of dtype
``object``, like
symbolic dimensions.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import max_dim, min_dim
from jax.extend.core import InconclusiveDimensionOperation

from jaxrnn._jax.sizes import are_equal, undecided
from jaxrnn.answers import Unknown


def each(function: Callable[..., Any], *arrays: Any) -> np.ndarray:
    """Apply a function of items to each element of broadcast arrays."""
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*arrays), object)


def boxed(item: Any) -> np.ndarray:
    """Return an item as an array without axes."""
    box = np.empty((), object)
    box[()] = item
    return box


def size_of(item: Any) -> Any:
    """Return the integer or symbolic dimension of an item, or None if the item is not integral."""
    if isinstance(item, Quotient):
        return None
    if isinstance(item, IntegralFloat):
        return item.size
    if isinstance(item, (float, np.floating)):
        return int(item) if float(item).is_integer() else None
    return int(item) if isinstance(item, (int, np.integer)) else item


def _arithmetic(
    function: Callable[[Any, Any], Any], *, swapped: bool = False
) -> Callable[[IntegralFloat, Any], IntegralFloat]:
    def apply(self: IntegralFloat, other: Any) -> IntegralFloat:
        size = size_of(other)
        if size is None:
            return NotImplemented
        return IntegralFloat(function(size, self.size) if swapped else function(self.size, size), self.element_type)

    return apply


def _comparison(function: Callable[[Any, Any], Any]) -> Callable[[IntegralFloat, Any], bool]:
    return lambda self, other: function(self.size, size_of(other))


@dataclass(frozen=True, eq=False)
class IntegralFloat:
    """An integral float that depends on a symbolic dimension."""

    size: Any  # the value, an integer or a symbolic dimension
    element_type: np.dtype  # the float type

    __add__, __radd__ = _arithmetic(operator.add), _arithmetic(operator.add, swapped=True)
    __sub__, __rsub__ = _arithmetic(operator.sub), _arithmetic(operator.sub, swapped=True)
    __mul__, __rmul__ = _arithmetic(operator.mul), _arithmetic(operator.mul, swapped=True)
    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)

    def __neg__(self) -> IntegralFloat:
        return IntegralFloat(-self.size, self.element_type)

    def __abs__(self) -> IntegralFloat:
        return IntegralFloat(abs(self.size), self.element_type)

    def __truediv__(self, other: Any) -> Any:
        divisor = size_of(other)
        if not isinstance(divisor, int) or divisor == 0:
            return NotImplemented
        return IntegralFloat(self.size * divisor, self.element_type) if abs(divisor) == 1 else Quotient(self, divisor)


def _on_quotient(function: Callable[[Any, Any], Any], *, swapped: bool = False) -> Callable[[Quotient, Any], Any]:
    def apply(self: Quotient, other: Any) -> Any:
        size = size_of(other)
        if isinstance(other, Quotient) or size is None:
            return NotImplemented
        added = size * self.divisor
        return Quotient(function(added, self.whole) if swapped else function(self.whole, added), self.divisor)

    return apply


@dataclass(frozen=True)
class Quotient:
    """An integral float divided by an integer, as in files that divide to count frames, and then round."""

    whole: IntegralFloat  # the dividend
    divisor: int  # neither -1, 0 nor 1

    __add__, __radd__ = _on_quotient(operator.add), _on_quotient(operator.add, swapped=True)
    __sub__, __rsub__ = _on_quotient(operator.sub), _on_quotient(operator.sub, swapped=True)


@dataclass(frozen=True)
class Claim:
    """A comparison of sizes that depends on the length: True if all differences are negative."""

    below_zero: tuple[Any, ...]  # the differences, integers or symbolic dimensions
    equals: tuple[Any, Any] | None = None  # the sizes, if the comparison is an equality

    def __and__(self, other: Any) -> Any:
        if isinstance(other, Claim):
            differences = {str(each): each for each in (*self.below_zero, *other.below_zero)}
            return Claim(tuple(differences.values()))
        return self if other else False

    __rand__ = __and__

    def __bool__(self) -> bool:
        if self.equals is not None:
            raise undecided(*self.equals)
        # JAX's own error names the inconclusive comparison and the constraint that would decide it.
        return all(difference < 0 for difference in self.below_zero)


@dataclass(frozen=True, eq=False)
class Place:
    """A weighted sum of traced integers, plus a known number. Only sums are known: any other operation is an error."""

    terms: Mapping[tuple[int, int], tuple[Any, int]]  # an array and a weight, keyed by the array and the element
    plus: Any  # an integer or a symbolic dimension
    element_type: np.dtype

    def _plus(self, other: Any, sign: int, own: int = 1) -> Any:
        number = size_of(other)
        if number is None:
            return NotImplemented
        rest = number if isinstance(number, Place) else Place({}, number, self.element_type)
        weights = {key: (array, own * weight) for key, (array, weight) in self.terms.items()}
        for key, (array, weight) in rest.terms.items():
            weights[key] = array, weights.get(key, (array, 0))[1] + sign * weight
        terms = {key: (array, weight) for key, (array, weight) in weights.items() if weight}
        plus = own * self.plus + sign * rest.plus
        return Place(terms, plus, self.element_type) if terms else plus

    def __add__(self, other: Any) -> Any:
        return self._plus(other, 1)

    def __sub__(self, other: Any) -> Any:
        return self._plus(other, -1)

    def __rsub__(self, other: Any) -> Any:
        return self._plus(other, 1, -1)

    __radd__ = __add__

    def _unknown(self, *_: Any) -> Any:
        raise TypeError("only sums of traced integers are known")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __hash__ = _unknown

    @property
    def value(self) -> jax.Array:
        """The sum as a JAX scalar of the element type."""
        parts = [jnp.ravel(array)[index] * weight for (_, index), (array, weight) in self.terms.items()]
        return functools.reduce(operator.add, parts, jnp.asarray(self.plus, jnp.int64)).astype(self.element_type)


def traced_item(item: Any) -> jax.Array:
    """Return an item as a JAX scalar of the same element type."""
    if isinstance(item, Place):
        return item.value
    if isinstance(item, Claim):
        return jnp.all(jnp.stack([traced_item(difference) < 0 for difference in item.below_zero]))
    if isinstance(item, Quotient):
        number = traced_item(item.whole)
        return number / jnp.asarray(item.divisor, number.dtype)
    whole = jnp.asarray(size_of(item), dtype=jnp.int64)
    return whole.astype(item.element_type) if isinstance(item, IntegralFloat) else whole


def type_of(array: np.ndarray) -> np.dtype:
    """Return the element type of an array of dtype ``object``."""
    for item in array.flat:
        if isinstance(item, IntegralFloat):
            return item.element_type
        if isinstance(item, Quotient):
            return item.whole.element_type
        if isinstance(item, Claim):
            return np.dtype(bool)
        if isinstance(item, Place):
            return item.element_type
    return np.dtype(np.int64)


def rounded(item: Any, *, up: bool) -> Any:
    """Round an item up or down to an integer."""
    if not isinstance(item, Quotient):
        return item
    size, divisor = item.whole.size, item.divisor
    return IntegralFloat(-(-size // divisor) if up else size // divisor, item.whole.element_type)


def are_divisible(array: Any, divisor: Any) -> bool:
    """Return True if the quotients of symbolic floats and a static divisor can stay known while tracing."""
    sizes = [isinstance(item, IntegralFloat) for item in array.flat] if array.dtype == object else [False]
    return all(sizes) and divisor.dtype != object and are_whole(divisor) and bool(np.all(divisor != 0))


def are_whole(array: Any) -> bool:
    """Return True if all elements of a static array are integral, so that symbolic floats can join in arithmetic."""
    if array.dtype == object:
        return not any(isinstance(item, (Claim, Quotient)) for item in array.flat)
    return array.dtype.kind in "iu" or (
        array.dtype.kind != "b" and bool(np.all(np.asarray(array, np.float64) == np.floor(array.astype(np.float64))))
    )


def is_sum_of_quotient(first: Any, second: Any) -> bool:
    """Return True if an array has quotients and the other integral numbers, so that their sum is known."""
    for some, others in ((first, second), (second, first)):
        if some.dtype == object and all(isinstance(item, Quotient) for item in some.flat) and are_whole(others):
            return True
    return False


def less(first: Any, second: Any, *, or_equal: bool) -> Any:
    """Compare two items by ``<`` or ``<=``; return a bool if all lengths give the same result, else a `Claim`."""
    a, b = size_of(first), size_of(second)
    try:
        return bool(a <= b if or_equal else a < b)
    except InconclusiveDimensionOperation:
        return Claim((a - b - 1 if or_equal else a - b,))


def same(first: Any, second: Any) -> Any:
    """Compare two items by ``==``; return a bool if all lengths give the same result, else a `Claim`."""
    a, b = size_of(first), size_of(second)
    answer = are_equal(a, b)
    return Claim((a - b - 1, b - a - 1), (a, b)) if isinstance(answer, Unknown) else answer


def decided(array: np.ndarray) -> np.ndarray:
    """Return an array with bools in place of equalities; raise an error for an equality that depends on the length."""
    return each(lambda item: bool(item) if isinstance(item, Claim) and item.equals else item, array)


def extreme(name: str, first: Any, second: Any) -> Any:
    """Return the larger item (``"maximum"``) or the smaller item (``"minimum"``)."""
    result = (max_dim if name == "maximum" else min_dim)(size_of(first), size_of(second))
    kinds = [item.element_type for item in (first, second) if isinstance(item, IntegralFloat)]
    return IntegralFloat(result, kinds[0]) if kinds else result
