"""Lengths of recordings: the constraints of the caller, and the constraints that a function needs.

JAX decides some questions about symbolic dimensions only under constraints, such as a least length. If a function needs
such a constraint, the error suggests the weakest constraint, which is found by trying.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrnn._files.messages import first_line
from jaxrnn.answers import Answer
from jaxrnn.errors import InputError, JaxrnnError, StreamError
from jaxrnn.streaming.dimensions import (
    FUNCTIONS,
    LARGEST,
    SYMBOL,
    UndecidedError,
    expression,
    is_zero,
    magnitude_of,
    names_in,
    period_of,
    symbolic_sizes,
    value_of,
)

#: A length that is long enough for all functions, and a length that many block sizes divide.
_LONG, _DIVISIBLE = 1 << 16, 2**9 * 3**2 * 5**2 * 7
#: Least lengths up to `_PLAIN`, and these multiples, are easy for a caller to satisfy.
_PLAIN, _SMALL = 256, (2, 3, 4, 5, 6, 8, 10, 12, 16)
#: Lengths below this number are checked individually.
_MANY = 2 * _LONG

#: Streams a function for multiples of a number of frames, under more constraints, or raises an error.
Attempt = Callable[[int, tuple[str, ...]], Any]


class Lengths:
    """The lengths that constraints such as ``S >= 3`` allow, in units of `multiple`.

    Invalid constraints are refused, and constraints that fewer than two lengths satisfy.
    """

    def __init__(self, constraints: Iterable[str]):
        self.constraints = _checked(constraints)
        self.period = math.lcm(*map(_period_of, self.constraints))
        self._far = self.period * max((magnitude_of(each) for each in self.constraints), default=1)
        fitting = np.flatnonzero(self.allow(np.arange(min(LARGEST, max(_MANY, self._far + self.period)))))
        if not fitting.size:
            raise StreamError(f"no length satisfies {self}")
        if self.constraints and fitting[-1] in (1, fitting[0]):
            raise StreamError(
                f"{self} allow only S = {fitting[-1]}, but a stream needs more than one length: remove a "
                "constraint, or call the function itself on recordings of this length"
            )
        #: The smallest and the largest allowed length; None if unlimited.
        self.least = int(fitting[0]) if self.constraints else 0
        self.most = int(fitting[-1]) if fitting[-1] < self._far <= LARGEST else None
        self._zeros: dict[str, Answer] = {}  # the answers of `is_zero`, keyed by the spelling of the dimension

    def __str__(self) -> str:
        return f"constraints={list(self.constraints)}"

    def allow(self, lengths: Any) -> Any:
        """Return True for lengths that satisfy all constraints; lengths may be arrays or traced."""
        numbers: Any = jnp if isinstance(lengths, Array) else np
        met = numbers.ones(np.shape(lengths), bool)
        with np.errstate(divide="ignore"):  # a division by length 0 satisfies no constraint
            for constraint in self.constraints:
                met = met & value_of(constraint, lengths if isinstance(lengths, Array) else np.asarray(lengths))
        return met

    def is_zero(self, size: Any) -> Answer:
        """Return True if a dimension is 0 for all allowed lengths, False if for no allowed length, else Unknown."""
        spelling = str(size)
        if spelling not in self._zeros:
            self._zeros[spelling] = is_zero(size, self.allow, self.period, self._far)
        return self._zeros[spelling]

    def zero_of(self, size: Any) -> int | None:
        """Return the smallest allowed length from 1 on at which a dimension is 0, or None."""
        lengths = np.arange(1, min(LARGEST, max(_MANY, self._far)))
        with np.errstate(divide="ignore"):  # a division by length 0 is equal to no size
            zero = np.broadcast_to(value_of(size, lengths) == 0, lengths.shape) & self.allow(lengths)
        return int(lengths[np.argmax(zero)]) if zero.any() else None

    def spread(self, places: Sequence[int]) -> list[int]:
        """Return different allowed lengths at or after some places; the smallest allowed length has place 1."""
        base = max(self.least, 1) - 1
        lengths = np.arange(1, min(LARGEST, base + max(places) + self.period * len(places) + 2))
        allowed = lengths[self.allow(lengths)]
        chosen: dict[int, None] = {}
        for place in np.searchsorted(allowed, np.array(places) + base):
            free = (each for each in (*range(place, len(allowed)), *range(place)) if each not in chosen)
            chosen.update(dict.fromkeys(itertools.islice(free, 1)))
        return [int(allowed[place]) for place in chosen]

    def settled(self, unit: int) -> int | None:
        """Return the units after which the constraints depend on the place in a unit only, or None."""
        period, far = math.lcm(self.period, unit), -(-self._far // unit)
        if far * unit + period > LARGEST:
            return None
        rows = self.allow(np.arange(far * unit + period)).reshape(-1, unit)
        if np.any(rows[far:] != rows[-1]):
            return None
        return int(np.max(np.flatnonzero(np.any(rows != rows[-1], 1)), initial=-1)) + 1

    def check(self, label: str, total: int, multiple: int, name: str = SYMBOL) -> None:
        """Refuse the length of a recording that is not a multiple of `multiple` or violates the constraints.

        `name` is the name of the length for readers.
        """
        if total % multiple:
            raise InputError(
                f"{label}: a recording must have a multiple of {multiple} frames, as `multiple` requires, not {total}"
            )
        if not self.allow(total // multiple):
            said = _constrained(multiple, *(re.sub(rf"\b{SYMBOL}\b", name, each) for each in self.constraints))
            raise InputError(f"{label}: a recording of {total} frame(s) does not satisfy {said}")


def _checked(constraints: Any) -> tuple[str, ...]:
    """Check the syntax of constraints."""
    listed = [constraints] if isinstance(constraints, str) else constraints
    if not isinstance(listed, Iterable) or isinstance(constraints, str):
        raise StreamError(f"constraints must be a list of strings such as ['S >= 3'], not {constraints!r}")
    listed = tuple(listed)
    for constraint in listed:
        try:
            if not isinstance(constraint, str):
                raise ValueError("it is not a string")
            jax.export.SymbolicScope([constraint])
            if others := sorted(names_in(expression(constraint)) - {SYMBOL, *FUNCTIONS}):
                raise ValueError(f"{others[0]!r} is not 'S', the number of input frames")
            if any(int(number) >= 2**31 for number in re.findall(r"\d+", constraint)):
                raise ValueError("its numbers must be below 2,147,483,648")
        except (ValueError, SyntaxError) as error:
            raise StreamError(
                f"constraints must look like 'S >= 3', 'S <= 90' or 'mod(S, 2) == 0', not {constraint!r}: "
                f"{first_line(error)}"
            ) from error
    return listed


def _period_of(constraint: str) -> int:
    try:
        return period_of(constraint)
    except UndecidedError:
        return 1  # a division by S is constant for large S


def implied(jaxpr: Any, lengths: Lengths) -> list[str]:
    """Return the values of divisions by a length in a jaxpr, as constraints: ``mod(2, S) == 2`` if S >= 3.

    `jax.numpy.roll` divides by the length, and JAX cannot evaluate such a division.
    """
    equalities: dict[str, str] = {}
    for size, _ in symbolic_sizes(jaxpr):
        for call in _divisions(size):
            spelling = ast.unparse(call)
            if spelling not in equalities:
                value = _settled_division(call, lengths)
                equalities[spelling] = "" if value is None else f"{spelling} == {value}"
    return [equality for equality in equalities.values() if equality]


def identities(parts: Sequence[str], allowed: Lengths) -> list[str]:
    """Return equal parts of dimensions as constraints, such as ``floordiv(S - 8, 8) == floordiv(S, 8) - 1``.

    JAX treats differently spelled sizes as different, and exporters spell sizes in many ways. Each part is compared
    with shorter and earlier parts, for all lengths that can make a difference.
    """
    equalities, known = [], [("", 0, 1)]
    for part in parts:
        period, far = period_of(part), magnitude_of(part)
        for other, least_far, other_period in known:
            cycle = math.lcm(period, other_period)
            most = 2 * max(far, least_far) + 3 * cycle
            if most > _MANY:
                continue
            lengths = np.arange(1, most)
            lengths = lengths[allowed.allow(lengths)]
            found = _as_sum(part, other, lengths)
            if found is not None:
                equality = f"{part} == {found}"
                with contextlib.suppress(ValueError, NotImplementedError):  # JAX needs a single term on the left
                    jax.export.SymbolicScope([equality])
                    equalities.append(equality)
                break
        else:
            known.append((part, far, period))
    return equalities


def _as_sum(part: str, other: str, lengths: np.ndarray) -> str | None:
    """Return a part of a dimension as ``other + number`` or ``-other + k*S + number``; None if unequal."""
    if len(lengths) < 2:
        return None
    values = np.broadcast_to(value_of(part, lengths), lengths.shape)
    others = np.broadcast_to(value_of(other, lengths), lengths.shape) if other else np.zeros_like(lengths)
    for sign in (1, -1) if other else (1,):
        rest = values - sign * others
        slope, odd = divmod(int(rest[-1] - rest[0]), int(lengths[-1] - lengths[0]))
        number = int(rest[0]) - slope * int(lengths[0])
        if odd == 0 and np.array_equal(rest, slope * lengths + number) and (slope == 0 or sign == -1 or not other):
            terms = [f"{'-' if sign < 0 else ''}{other}"] if other else []
            terms += [f"{slope}*{SYMBOL}"] if slope else []
            return " + ".join([*terms, str(number)])
    return None


def _divisions(size: Any) -> Iterator[ast.Call]:
    """Yield divisions of a constant by an expression of the length."""
    for node in ast.walk(expression(size)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("mod", "floordiv"):
            number, divisor = map(names_in, node.args)
            if divisor and not number:
                yield node


def _settled_division(call: ast.Call, allowed: Lengths) -> str | None:
    """Return an expression without division that equals a division for all allowed lengths, or None."""
    number, divisor = map(ast.unparse, call.args)
    sizes = (abs(int(each)) + 1 for each in re.findall(r"\d+", ast.unparse(call)))
    least = max(1, allowed.least)
    lengths = np.arange(least, least + min(_MANY, 2 * math.prod(sizes) + 2))
    lengths = lengths[allowed.allow(lengths)]
    candidates = (number, f"{divisor} + {number}") if ast.unparse(call.func) == "mod" else ("0", "-1")
    for candidate in candidates:
        if lengths.size and np.all(value_of(ast.unparse(call), lengths) == value_of(candidate, lengths)):
            return candidate
    return None


def advice(error: UndecidedError, attempt: Attempt, multiple: int, most: int | None) -> str:
    """Return the condition under which a failed attempt succeeds, as the end of a message, or an empty string.

    `most` is the largest length that the failed attempt allowed. The error of a function that cannot be streamed for
    any length is raised.
    """
    long = f"S >= {_LONG if most is None else most - 1}"

    def least_of(times: int) -> int:
        return 1 if _is_decided(attempt, times) else _least(lambda least: _is_decided(attempt, times, f"S >= {least}"))

    if _is_decided(attempt, 1, long):
        times, least = 1, least_of(1)
        if least > _PLAIN:  # a multiple may be easier to satisfy
            easier = (times for times in _SMALL if _is_decided(attempt, times))
            times, least = next(((times, 1) for times in easier), (1, least))
    elif (found := next((times for times in _SMALL if _is_decided(attempt, times, long)), None)) is not None:
        times, least = found, least_of(found)
    elif _is_decided(attempt, _DIVISIBLE, long):
        times = _divisor(lambda times: _is_decided(attempt, times, long))
        least = least_of(times)
    else:
        return _at_most(error, attempt, multiple)
    try:
        attempt(times, (f"S >= {least}",) if least > 1 else ())
    except StreamError as fundamental:
        raise fundamental from error
    return remedy_of(times, least, multiple)


def remedy_of(times: int, least: int, multiple: int) -> str:
    """Return the advice to stream only recordings of a multiple of `times`, and of `least` times this, frames."""
    what, frames = [], times * multiple
    if times > 1:
        what.append(f"whose length is a multiple of {frames}")
    if least > 1:
        what.append(f"of {least * frames} frames or more")
    said = _constrained(frames, *([f"S >= {least}"] if least > 1 else []))
    return f"recordings {', '.join(what)} can be streamed: give {said} if no others occur"


def _constrained(multiple: int, *constraints: str) -> str:
    """Write the arguments of `stream` for lengths; ``S`` counts multiples."""
    given = [f"multiple={multiple}"] if multiple > 1 else []
    given += [f"constraints={list(constraints)}"] if constraints else []
    return f"`{', '.join(given)}`"


def obstacle(error: UndecidedError, attempt: Attempt, most: int | None) -> UndecidedError:
    """Return the error that remains for long recordings, because a short length may not be the only problem."""
    try:
        attempt(1, (f"S >= {_LONG if most is None else most - 1}",))
    except UndecidedError as remaining:
        return remaining
    return error


def _at_most(error: UndecidedError, attempt: Attempt, multiple: int) -> str:
    """Return advice for a function that works up to a length, such as the length of a table or a bound in the code."""
    candidates = error.bounds | {number - 1 for number in error.bounds}
    for most in sorted((number for number in candidates if number > 1), reverse=True):
        with contextlib.suppress(JaxrnnError):
            attempt(1, (f"S <= {most}",))
            said = _constrained(multiple, f"S <= {most}")
            return f"recordings of {most * multiple} frames or fewer can be streamed: give {said} if no others occur"
    return ""


def fixed_length(error: UndecidedError, works: Callable[[int], bool]) -> int | None:
    """Return the only length that a function or file accepts, if an error contains this number; or None."""
    for number in sorted(each for each in error.numbers if 1 < each < _LONG)[:32]:
        others = (*range(number + 1, number + 9), 2 * number)
        if works(number) and not any(map(works, others)):
            return number
    return None


def _is_decided(attempt: Attempt, times: int, *constraints: str) -> bool:
    """Return True if the outcome of an attempt does not depend on further constraints."""
    try:
        attempt(times, constraints)
    except JaxrnnError as error:
        return not isinstance(error, UndecidedError)
    except MemoryError:  # the function was traced, but pulses of so many frames are too large
        pass
    return True


def _least(enough: Callable[[int], bool]) -> int:
    """Return the smallest sufficient number; all larger numbers must be sufficient."""
    high = 2
    while high < _LONG and not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _divisor(enough: Callable[[int], bool]) -> int:
    """Return the smallest sufficient divisor of `_DIVISIBLE`."""
    number = _DIVISIBLE
    for prime in (2, 3, 5, 7):
        while number % prime == 0 and enough(number // prime):
            number //= prime
    return number
