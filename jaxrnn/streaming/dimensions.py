"""Symbolic dimensions: evaluation for any length, also a traced length, and periods of their growth.

JAX prints a symbolic dimension as an expression that ``jax.export.symbolic_shape`` can read. This module parses the
printed expression, which is public. Example: ``floordiv(S, 2)`` has period 2, because 2 more frames add exactly 1.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import JaxprEqn

from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.equations import inner_jaxprs, shape_of, walk

#: The symbol of the length: the number of input frames.
SYMBOL = "S"
#: Function names in the printed form of a dimension.
FUNCTIONS = ("floordiv", "mod", "max", "min")


class UndecidedError(StreamError):
    """Raised if a function can be streamed only under stricter constraints on the length."""


def is_symbolic(size: Any) -> bool:
    """Return True if a dimension depends on the length of the stream."""
    return not isinstance(size, (int, np.integer))


def symbolic_axes(shape: Any) -> list[int]:
    """Return the axes of a shape that depend on the length of the stream."""
    return [axis for axis, size in enumerate(shape) if is_symbolic(size)]


def expression(size: Any) -> ast.expr:
    """Return the syntax tree of a dimension or constraint."""
    return _parsed(str(size))[0]


@functools.cache
def _parsed(spelling: str) -> tuple[ast.expr, Any]:
    tree = ast.parse(spelling.replace("^", "**"), mode="eval")
    return tree.body, compile(tree, "<dimension>", "eval")


def value_of(size: Any, length: Any) -> Any:
    """Return the value of a dimension for a length: an integer, a NumPy array of integers, or a traced integer."""
    if not is_symbolic(size):
        return int(size)
    numbers: Any = jnp if isinstance(length, Array) else np
    values = (lambda a, b: a // b, lambda a, b: a % b, numbers.maximum, numbers.minimum)
    names = {SYMBOL: length, **dict(zip(FUNCTIONS, values, strict=True))}
    result = eval(_parsed(str(size))[1], {"__builtins__": {}}, names)
    return int(result) if isinstance(length, int) else result


def period_of(size: Any) -> int:
    """Return a number of frames after which a dimension has grown by a whole number, not necessarily the smallest.

    Only long recordings follow the period. The outcome of a constraint repeats with the same period.
    """
    return 1 if not is_symbolic(size) else _period(_parsed(str(size))[0])


def _period(node: ast.expr) -> int:
    inner = math.lcm(*(_period(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("floordiv", "mod"):
        divisor = node.args[1]
        if any(isinstance(part, ast.Name) for part in ast.walk(divisor)):
            raise UndecidedError(f"a length is divided by a length that depends on time: {ast.unparse(node)}")
        return inner * abs(int(ast.literal_eval(divisor)))
    return inner


def magnitude_of(size: Any) -> int:
    """Return a length beyond which ``max`` and ``min`` in a dimension always choose the same argument."""
    constants = [
        abs(node.value)
        for node in ast.walk(_parsed(str(size))[0])
        if isinstance(node, ast.Constant) and isinstance(node.value, int)
    ]
    return (1 + sum(constants)) * period_of(size)


def parts_of(text: str) -> list[str]:
    """Return the divisions, remainders, maxima and minima of S in a text, such as an error message, shortest first."""
    found = set()
    for match in re.finditer(rf"\b(?:{'|'.join(FUNCTIONS)})\(", text):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        part = text[match.start() : end]
        if not depth and _is_dimension(part):
            found.add(part)
    return sorted(found, key=lambda part: (len(part), part))


def _is_dimension(text: str) -> bool:
    try:
        names = {node.id for node in ast.walk(_parsed(text)[0]) if isinstance(node, ast.Name)}
        return names - set(FUNCTIONS) == {SYMBOL} and period_of(text) > 0
    except (SyntaxError, ValueError, TypeError, IndexError, UndecidedError):
        return False


def constant_value(dimension: Any, size: Any) -> int | None:
    """Return the value of a dimension that is constant for all lengths with ``size > 0``, or None."""
    if not is_symbolic(dimension):
        return int(dimension)
    lengths = np.arange(1, 2 * max(magnitude_of(dimension), magnitude_of(size)) + 2)
    values, counts = (np.broadcast_to(value_of(each, lengths), lengths.shape) for each in (dimension, size))
    used = np.unique(values[counts > 0])
    return int(used[0]) if len(used) == 1 else None


def largest_value(dimension: Any, size: Any) -> int | None:
    """Return the largest value of a dimension over all lengths with ``size > 0``; None if the dimension grows."""
    far = max(magnitude_of(dimension), magnitude_of(size))
    lengths = np.arange(1, 3 * far + 2)
    values, counts = (np.broadcast_to(value_of(each, lengths), lengths.shape) for each in (dimension, size))
    most = int(np.max(values[counts > 0]))
    return most if np.max(values[: 2 * far][counts[: 2 * far] > 0]) == most else None


def out_shape(equation: JaxprEqn) -> Any:
    """Return the shape of the first result of an equation, for a whole recording."""
    return shape_of(equation.outvars[0])


def in_shape(equation: JaxprEqn, index: int = 0) -> Any:
    """Return the shape of an operand of an equation, for a whole recording."""
    return shape_of(equation.invars[index])


def gathered_axes(equation: JaxprEqn) -> list[int]:
    """Return the axes of the result of a gather that are axes of the indices."""
    return [d for d in range(len(out_shape(equation))) if d not in equation.params["dimension_numbers"].offset_dims]


def symbolic_sizes(jaxpr: Any, path: tuple[JaxprEqn, ...] = ()) -> Iterator[tuple[Any, tuple[JaxprEqn, ...]]]:
    """Yield each dimension in a jaxpr that depends on the length of the stream, at any depth, with a path.

    The path is the equation with this dimension, preceded by the equations that contain the equation.
    """
    for variable in (*jaxpr.invars, *jaxpr.constvars):
        for size in filter(is_symbolic, shape_of(variable)):
            yield size, path
    for equation in jaxpr.eqns:
        here = (*path, equation)
        for inner in inner_jaxprs(equation):
            yield from symbolic_sizes(inner, here)
        shapes = map(shape_of, equation.outvars)
        for size in (*own_sizes(equation), *(size for shape in shapes for size in filter(is_symbolic, shape))):
            yield size, here


def own_sizes(equation: JaxprEqn) -> Iterator[Any]:
    """Yield the symbolic length of a loop, which no shape contains if the loop scans no arrays."""
    length = equation.params.get("length")
    if length is not None and is_symbolic(length):
        yield length


def has_symbols(equation: JaxprEqn) -> bool:
    """Return True if a loop, or a function inside an equation, depends on the length of the stream."""
    return any(True for _ in own_sizes(equation)) or any(
        reads_length(inner) or any(True for _ in symbolic_sizes(inner)) for inner in inner_jaxprs(equation)
    )


def reads_length(jaxpr: Any) -> bool:
    """Return True if a jaxpr, at any depth, computes with the length of the stream."""
    return any(equation.primitive.name == "dim_as_value" for equation in walk(jaxpr))
