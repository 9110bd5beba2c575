"""Which lengths recordings have: what a caller says of them, and what a function needs, such as a least one.

JAX's algebra of symbolic dimensions decides some questions about a length only where constraints say more of it. An
error says which constraint is enough: the smallest, found by trying.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrnn._files.arguments import argument, called, either, in_python
from jaxrnn._files.messages import first_line
from jaxrnn.errors import InputError, JaxrnnError, StreamError
from jaxrnn.streaming.dimensions import (
    FUNCTIONS,
    SYMBOL,
    UndecidedError,
    expression,
    magnitude_of,
    parts_of,
    period_of,
    symbolic_sizes,
    value_of,
)
from jaxrnn.streaming.timeline import LARGEST

#: A number of frames that is long enough for whatever a function asks, and one that many block sizes divide.
_LONG, _DIVISIBLE = 1 << 16, 2**9 * 3**2 * 5**2 * 7
#: A least length up to this is easy to keep, and so is one of these multiples.
_PLAIN, _SMALL = 256, (2, 3, 4, 5, 6, 8, 10, 12, 16)
#: Lengths below this are looked at one by one.
_MANY = 2 * _LONG

#: Tries to stream a function, for lengths that are multiples of a number times these, under more constraints.
Attempt = Callable[[int, tuple[str, ...]], Any]


class Lengths:
    """Numbers of input frames, in units of ``multiple``, that constraints allow.

    Attributes:
        constraints: such as ``S >= 3``.
        least, most: the smallest and the largest number; most is None where there is no largest.

    Raises:
        StreamError: a constraint is not one on S, or no two lengths meet all of them.
    """

    def __init__(self, constraints: Iterable[str]):
        self.constraints = _checked(constraints)
        self._period = math.lcm(*map(_period_of, self.constraints))
        self._far = self._period * max((magnitude_of(each) for each in self.constraints), default=1)
        fitting = np.flatnonzero(self.allow(np.arange(min(LARGEST, max(_MANY, self._far + self._period)))))
        if not fitting.size:
            raise StreamError(f"no length satisfies {self}")
        if self.constraints and fitting[-1] in (1, fitting[0]):
            raise StreamError(
                f"{self} allow only S = {fitting[-1]}, but a stream needs more than one length: remove a "
                "constraint, or call the function itself on recordings of this length"
            )
        self.least = int(fitting[0]) if self.constraints else 0
        self.most = int(fitting[-1]) if fitting[-1] < self._far <= LARGEST else None

    def __str__(self) -> str:
        return f"constraints={list(self.constraints)}"

    def allow(self, lengths: Any) -> Any:
        """Whether lengths meet all constraints, ``bool``: of an integer, an array or a traced one."""
        numbers: Any = jnp if isinstance(lengths, Array) else np
        met = numbers.ones(np.shape(lengths), bool)
        with np.errstate(divide="ignore"):  # a length of 0 divides nothing, and meets no such constraint
            for constraint in self.constraints:
                met = met & value_of(constraint, lengths if isinstance(lengths, Array) else np.asarray(lengths))
        return met

    def settled(self, unit: int) -> int | None:
        """Units after which a length is allowed by its place in a unit alone; None where it never is, or too late."""
        period, far = math.lcm(self._period, unit), -(-self._far // unit)
        if far * unit + period > LARGEST:
            return None
        rows = self.allow(np.arange(far * unit + period)).reshape(-1, unit)
        if np.any(rows[far:] != rows[-1]):
            return None
        return int(np.max(np.flatnonzero(np.any(rows != rows[-1], 1)), initial=-1)) + 1

    def check(self, label: str, total: int, multiple: int) -> None:
        """Hold the frames of a recording against the constraints.

        Raises:
            InputError: they do not meet them.
        """
        if total % multiple:
            raise InputError(
                f"{label}: a recording must have a multiple of {multiple} frames, as {called('multiple')} requires, "
                f"not {total}"
            )
        if not self.allow(total // multiple):
            said = either(str(self), f"--shortest {self.least * multiple}")
            counts = "" if multiple == 1 else either(f", where S counts {multiple} frames", "")
            raise InputError(f"{label}: a recording of {total} frame(s) does not satisfy {said}{counts}")


def _checked(constraints: Any) -> tuple[str, ...]:
    """Constraints on the one symbol.

    Raises:
        StreamError: one of them is not that.
    """
    listed = [constraints] if isinstance(constraints, str) else constraints
    if not isinstance(listed, Iterable) or isinstance(constraints, str):
        raise StreamError(f"constraints must be a list of strings such as ['S >= 3'], not {constraints!r}")
    listed = tuple(listed)
    for constraint in listed:
        try:
            if not isinstance(constraint, str):
                raise ValueError("it is not a string")
            jax.export.SymbolicScope([constraint])
            names = {node.id for node in ast.walk(expression(constraint)) if isinstance(node, ast.Name)}
            if others := sorted(names - {SYMBOL, *FUNCTIONS}):
                raise ValueError(f"{others[0]!r} is not S, the number of input frames")
            if any(int(number) >= 2**31 for number in re.findall(r"\d+", constraint)):
                raise ValueError("its numbers must be below 2,147,483,648")
        except (ValueError, SyntaxError) as error:
            raise StreamError(
                f"constraints must be such as 'S >= 3', 'S <= 90' or 'mod(S, 2) == 0', not {constraint!r}: "
                f"{first_line(error)}"
            ) from error
    return listed


def _period_of(constraint: str) -> int:
    try:
        return period_of(constraint)
    except UndecidedError:
        return 1  # what S divides settles when S is larger


def implied(jaxpr: Any, lengths: Lengths) -> list[str]:
    """What constraints imply of divisions by a length in a jaxpr, as constraints: ``mod(2, S) == 2`` where S >= 3.

    `jax.numpy.roll` divides by the length, and JAX knows no value of that.
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
    """Which parts of dimensions are others but for a number, whatever the length: ``floordiv(S - 8, 8) == ... - 1``.

    JAX takes sizes for different ones that are spelled differently, and exporters and people spell them in many ways.
    A part is held against those that are shorter, or come before it, over all lengths that can tell them apart.
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
                if _is_taken(equality):
                    equalities.append(equality)
                break
        else:
            known.append((part, far, period))
    return equalities


def _as_sum(part: str, other: str, lengths: np.ndarray) -> str | None:
    """A part of a dimension as another one, or the length less that, and a number; None where it is not that."""
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


def _is_taken(equality: str) -> bool:
    """Whether JAX takes an equality: its left side must be one term."""
    try:
        jax.export.SymbolicScope([equality])
    except (ValueError, NotImplementedError):
        return False
    return True


def _divisions(size: Any) -> Iterator[ast.Call]:
    """Divisions of a constant by what depends on the length, in a dimension."""
    for node in ast.walk(expression(size)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("mod", "floordiv"):
            names = [any(isinstance(part, ast.Name) for part in ast.walk(each)) for each in node.args]
            if names == [False, True]:
                yield node


def _settled_division(call: ast.Call, allowed: Lengths) -> str | None:
    """What a division comes to for every length that meets the constraints, without dividing; None if they differ."""
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
    """Under which condition an attempt that failed succeeds, as the end of a message; empty where none was found.

    Args:
        error: why it failed.
        attempt: with other lengths.
        multiple: as in `stream`.
        most: the largest length that was allowed in the attempt that failed.

    Raises:
        StreamError: what cannot be streamed, whatever the length.
    """
    long = f"S >= {_LONG if most is None else most - 1}"

    def least_of(times: int) -> int:
        return 1 if _is_decided(attempt, times) else _least(lambda least: _is_decided(attempt, times, f"S >= {least}"))

    if _is_decided(attempt, 1, long):
        times, least = 1, least_of(1)
        if least > _PLAIN:  # a multiple may be easier to keep
            easier = (times for times in _SMALL if _is_decided(attempt, times))
            times, least = next(((times, 1) for times in easier), (1, least))
    elif _is_decided(attempt, _DIVISIBLE, long):
        times = _divisor(lambda times: _is_decided(attempt, times, long))
        least = least_of(times)
    else:
        return _at_most(error, attempt, multiple)
    try:
        attempt(times, (f"S >= {least}",) if least > 1 else ())
    except StreamError as fundamental:
        raise fundamental from error
    what, said, frames = [], [], times * multiple
    if times > 1:
        what.append(f"whose length is a multiple of {frames}")
        said.append(argument("multiple", frames))
    if least > 1:
        what.append(f"of {least * frames} frames or more")
        said.append(either(f"constraints=['S >= {least}']", f"--shortest {least * frames}"))
    return f"recordings {', '.join(what)} can be streamed: give {' and '.join(said)} if no others occur"


def obstacle(error: UndecidedError, attempt: Attempt, most: int | None) -> UndecidedError:
    """Return the error that remains for long recordings: a short length may not be the only obstacle."""
    try:
        attempt(1, (f"S >= {_LONG if most is None else most - 1}",))
    except UndecidedError as remaining:
        return remaining
    return error


def _at_most(error: UndecidedError, attempt: Attempt, multiple: int) -> str:
    """The advice for what works up to a length, such as that of a table; the error then shows ``min(S, 512)``."""
    bounds = " ".join(part for part in parts_of(str(error)) if part.startswith("min("))
    numbers = {int(number) for number in re.findall(r"\d+", bounds)}
    for most in sorted(numbers, reverse=True):
        if most > 1 and _is_streamed(attempt, f"S <= {most}"):
            said = either(in_python("constraints", [f"S <= {most}"], ""), f"--longest {most * multiple}")
            return f"recordings of {most * multiple} frames or fewer can be streamed: give {said} if no others occur"
    return ""


def _is_streamed(attempt: Attempt, constraint: str) -> bool:
    try:
        attempt(1, (constraint,))
    except JaxrnnError:
        return False
    return True


def fixed_length(error: BaseException, works: Callable[[int], bool]) -> int | None:
    """The one number of frames that a function or a file was written for, among the numbers in an error."""
    numbers = {int(each) for each in re.findall(r"\d+", str(error))}
    for number in sorted(each for each in numbers if 1 < each < _LONG)[:32]:
        others = (*range(number + 1, number + 9), 2 * number)
        if works(number) and not any(map(works, others)):
            return number
    return None


def _is_decided(attempt: Attempt, times: int, *constraints: str) -> bool:
    """Whether an attempt does not depend on more that lengths may be."""
    try:
        attempt(times, constraints)
    except UndecidedError:
        return False
    except JaxrnnError:
        return True
    return True


def _least(enough: Callable[[int], bool]) -> int:
    """The smallest number that is enough, of which larger ones are enough too."""
    high = 2
    while high < _LONG and not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _divisor(enough: Callable[[int], bool]) -> int:
    """The smallest divisor of a number with many of them that is enough."""
    number = _DIVISIBLE
    for prime in (2, 3, 5, 7):
        while number % prime == 0 and enough(number // prime):
            number //= prime
    return number
