"""What `stream` needs of jaxprs beyond ``jax.extend.core``: dead code removed, the parts of a scan, and the lengths."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

from jax.extend.core import JaxprEqn
from jax.interpreters import partial_eval

from jaxrnn.jaxprs.equations import inner_jaxprs, shape_of, walk
from jaxrnn.streaming.dimensions import is_symbolic, symbolic_axes
from jaxrnn.streaming.sources import Path, describe_equation, located
from jaxrnn.streaming.timeline import Clock, smallest_period


def without_dead_code(jaxpr: Any, used: list[bool] | None = None) -> Any:
    """The jaxpr, all its inputs kept, without equations whose results nobody uses, inside loops too."""
    used = [True] * len(jaxpr.outvars) if used is None else used
    return partial_eval.dce_jaxpr(jaxpr, used, instantiate=True)[0]


def out_shape(equation: JaxprEqn, index: int = 0) -> Any:
    """The shape of a result of an equation, over all of time."""
    return shape_of(equation.outvars[index])


def in_shape(equation: JaxprEqn, index: int = 0) -> Any:
    """The shape of an operand of an equation, over all of time."""
    return shape_of(equation.invars[index])


def scan_parts(equation: JaxprEqn) -> tuple[int, int]:
    """How many constants and how many carries a scan has, at the head of its operands."""
    if "num_consts" in equation.params:
        return equation.params["num_consts"], equation.params["num_carry"]
    consts, carry, _ = equation.params["ft_in"].unpack()
    return len(consts), len(carry)


def symbolic_sizes(jaxpr: Any, path: Path = ()) -> Iterator[tuple[Any, Path]]:
    """Every dimension of every value of a jaxpr, at any depth, that depends on the length of the stream.

    With each comes the path of the equation whose it is.
    """
    for variable in (*jaxpr.invars, *jaxpr.constvars):
        for size in _sizes(variable):
            yield size, path
    for equation in jaxpr.eqns:
        here = (*path, equation)
        for inner in inner_jaxprs(equation):
            yield from symbolic_sizes(inner, here)
        for size in (*own_sizes(equation), *(size for variable in equation.outvars for size in _sizes(variable))):
            yield size, here


def _sizes(variable: Any) -> Iterator[Any]:
    yield from filter(is_symbolic, shape_of(variable))


def own_sizes(equation: JaxprEqn) -> Iterator[Any]:
    """The length of a loop: one that scans nothing has no operand that shows it."""
    length = equation.params.get("length")
    if length is not None and is_symbolic(length):
        yield length


def has_symbols(equation: JaxprEqn) -> bool:
    """Whether the length of a loop, or a dimension inside an equation, depends on the length of the stream."""
    return any(True for _ in own_sizes(equation)) or any(
        True for inner in inner_jaxprs(equation) for _ in symbolic_sizes(inner)
    )


def front_pads(jaxpr: Any) -> Iterator[int]:
    """By how many frames time is padded in front."""
    for equation in walk(jaxpr):
        if equation.primitive.name == "pad":
            for axis in symbolic_axes(out_shape(equation)):
                low, _, _ = equation.params["padding_config"][axis]
                if not is_symbolic(low):
                    yield int(low)


def clock_of(jaxpr: Any, multiple: int, allow: Callable[[Any], Any], most: int | None) -> Clock:
    """Return the clock of a jaxpr, for recordings as `Clock` has them.

    Raises:
        StreamError: a length does not grow evenly; names the equation that has it.
    """
    unit, seen = 1, set[str]()
    for size, path in symbolic_sizes(jaxpr):
        if str(size) not in seen:
            seen.add(str(size))
            with located(functools.partial(describe_equation, path)):
                unit = math.lcm(unit, smallest_period(size))
    return Clock(unit, multiple, allow, most)
