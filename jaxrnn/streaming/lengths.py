"""What a function needs of the lengths of recordings: a least one, or to be a multiple of some number.

JAX's algebra of symbolic dimensions decides some questions about a length only where constraints say more of it. An
error says which constraint is enough: the smallest, found by trying.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxrnn.errors import JaxrnnError, StreamError
from jaxrnn.streaming.access import symbolic_sizes
from jaxrnn.streaming.dimensions import UndecidedError, expression, value_of
from jaxrnn.voices import argument, either

#: A number of frames that is long enough for whatever a function asks, and one that many block sizes divide.
_LONG, _DIVISIBLE = 1 << 16, 2**9 * 3**2 * 5**2 * 7
#: Lengths below this are looked at one by one.
_MANY = 2 * _LONG

#: Tries to stream a function, for lengths that are multiples of a number times these, under more constraints.
Attempt = Callable[[int, tuple[str, ...]], Any]


def meets(constraints: Iterable[str], lengths: Any) -> Any:
    """Whether lengths meet all constraints, ``bool`` of the shape of the lengths."""
    met = np.ones(np.shape(lengths), bool)
    with np.errstate(divide="ignore"):  # a length of 0 divides nothing, and meets no such constraint
        for constraint in constraints:
            met &= np.asarray(value_of(constraint, np.asarray(lengths)), bool)
    return met


def least_length(constraints: Iterable[str]) -> int:
    """The smallest number of frames that meets constraints; 0 where there are none.

    Raises:
        StreamError: no length does.
    """
    constraints = tuple(constraints)
    if not constraints:
        return 0
    fitting = np.flatnonzero(meets(constraints, np.arange(_MANY)))
    if not fitting.size:
        raise StreamError(f"no recording of fewer than {_MANY} frames meets the constraints: {', '.join(constraints)}")
    return int(fitting[0])


def implied(jaxpr: Any, constraints: Sequence[str]) -> list[str]:
    """What constraints imply of divisions by a length in a jaxpr, as constraints: ``mod(2, S) == 2`` where S >= 3.

    `jax.numpy.roll` divides by the length, and JAX knows no value of that.
    """
    equalities: dict[str, str] = {}
    for size, _ in symbolic_sizes(jaxpr):
        for call in _divisions(size):
            spelling = ast.unparse(call)
            if spelling not in equalities:
                value = _settled_division(call, constraints)
                equalities[spelling] = "" if value is None else f"{spelling} == {value}"
    return [equality for equality in equalities.values() if equality]


def _divisions(size: Any) -> Iterator[ast.Call]:
    """Divisions of a constant by what depends on the length, in a dimension."""
    for node in ast.walk(expression(size)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("mod", "floordiv"):
            names = [any(isinstance(part, ast.Name) for part in ast.walk(each)) for each in node.args]
            if names == [False, True]:
                yield node


def _settled_division(call: ast.Call, constraints: Sequence[str]) -> str | None:
    """What a division comes to for every length that meets the constraints, without dividing; None if they differ."""
    number, divisor = map(ast.unparse, call.args)
    sizes = (abs(int(each)) + 1 for each in re.findall(r"\d+", ast.unparse(call)))
    least = max(1, least_length(constraints))
    lengths = np.arange(least, least + min(_MANY, 2 * math.prod(sizes) + 2))
    lengths = lengths[meets(constraints, lengths)]
    candidates = (number, f"{divisor} + {number}") if ast.unparse(call.func) == "mod" else ("0", "-1")
    for candidate in candidates:
        if lengths.size and np.all(value_of(ast.unparse(call), lengths) == value_of(candidate, lengths)):
            return candidate
    return None


def advice(error: UndecidedError, attempt: Attempt, multiple: int) -> str:
    """Under which condition an attempt that failed succeeds, as the end of a message; empty where none was found.

    Raises:
        StreamError: what cannot be streamed, whatever the length.
    """
    long = f"S >= {_LONG}"
    if _is_decided(attempt, 1, long):
        times = 1
    elif _is_decided(attempt, _DIVISIBLE, long):
        times = _divisor(lambda times: _is_decided(attempt, times, long))
    else:
        return ""
    least = 1 if _is_decided(attempt, times) else _least(lambda length: _is_decided(attempt, times, f"S >= {length}"))
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
    return f"recordings {', '.join(what)} can be streamed: say {' and '.join(said)} if others need not work"


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
