"""Reductions over axes."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.equations import type_of
from jaxrnn.lowering.lowering import Lowering, Rule
from jaxrnn.lowering.movement import concatenate, cut, reshape
from jaxrnn.lowering.rules.elementwise import cast, elements
from jaxrnn.lowering.writer import Operand, Writer, dtype_of, shape_of

_OPERATORS = {
    "reduce_sum": "ReduceSum",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
}
#: The opset in which axes became an operand.
_AXES_AS_OPERAND = {"ReduceSum": 13}
_OTHERS = 18


def reduce(operator: str, lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """One node, which takes the axes as an attribute or an operand."""
    return reduced(lowering.writer, operator, x, equation.params["axes"])


def reduced(writer: Writer, operator: str, x: Operand, axes: Sequence[int]) -> Operand:
    """A reduction over some axes, which are gone after it."""
    axes = sorted(int(axis) for axis in axes)
    shape = [size for axis, size in enumerate(shape_of(x)) if axis not in axes]
    if not axes or all(shape_of(x)[axis] == 1 for axis in axes):
        return reshape(writer, x, shape)
    as_operand = writer.opset >= _AXES_AS_OPERAND.get(operator, _OTHERS)
    operands = (x, np.array(axes, np.int64)) if as_operand else (x,)
    attributes = {} if as_operand else {"axes": axes}
    return writer.node(operator, *operands, shape=shape, dtype=dtype_of(x), keepdims=0, **attributes)


def _has_nan(x: Operand) -> bool:
    return bool(jnp.issubdtype(dtype_of(x), jnp.floating))


def parity(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Of booleans, whether an odd number of them is true."""
    if dtype_of(x) != np.bool_:
        return folded("BitwiseXor", lowering, equation, x)
    total = reduced(lowering.writer, "ReduceSum", cast(lowering, x, np.int32), equation.params["axes"])
    return cast(lowering, elements(lowering, "Mod", total, np.array(2, np.int32)), bool)


def folded(operator: str, lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """An operator on bits over axes, halves with halves."""
    for axis in sorted(equation.params["axes"], reverse=True):
        while (size := shape_of(x)[axis]) > 1:
            cuts = [_along(lowering, x, axis, *ends) for ends in ((0, size // 2), (size // 2, size // 2 * 2))]
            rest = _along(lowering, x, axis, size // 2 * 2, size)
            x = concatenate(lowering.writer, [elements(lowering, operator, *cuts), rest], axis)
    return reshape(lowering.writer, x, shape_of_atom(equation.outvars[0]))


def _along(lowering: Lowering, x: Operand, axis: int, low: int, high: int) -> Operand:
    starts, ends = [0] * len(shape_of(x)), list(shape_of(x))
    starts[axis], ends[axis] = low, high
    return cut(lowering.writer, x, starts, ends)


def reduce_logical(operator: str, lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Of booleans, the largest or smallest of 0 and 1; of integers, their bits."""
    if dtype_of(x) != np.bool_:
        return folded("BitwiseAnd" if operator == "ReduceMin" else "BitwiseOr", lowering, equation, x)
    return cast(lowering, reduce(operator, lowering, equation, cast(lowering, x, np.int32)), bool)


def place_of_extreme(operator: str, lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """The first place of the largest or smallest element."""
    (axis,) = equation.params["axes"]
    shape = shape_of_atom(equation.outvars[0])
    place = lowering.writer.node(operator, x, shape=shape, dtype=np.int64, axis=axis, keepdims=0)
    if _has_nan(x):  # which comes first, and which engines may skip
        is_nan = cast(lowering, elements(lowering, "IsNaN", x, dtype=bool), np.int32)
        first = lowering.writer.node("ArgMax", is_nan, shape=shape, dtype=np.int64, axis=axis, keepdims=0)
        some = cast(lowering, reduced(lowering.writer, "ReduceMax", is_nan, [axis]), bool)
        place = elements(lowering, "Where", some, first, place, shape=shape, dtype=np.int64)
    return cast(lowering, place, type_of(equation.outvars[0]))


RULES: dict[str, Rule] = {
    **{primitive: functools.partial(reduce, operator) for primitive, operator in _OPERATORS.items()},
    "argmax": functools.partial(place_of_extreme, "ArgMax"),
    "argmin": functools.partial(place_of_extreme, "ArgMin"),
    "reduce_xor": parity,
    "reduce_and": functools.partial(reduce_logical, "ReduceMin"),
    "reduce_or": functools.partial(reduce_logical, "ReduceMax"),
}
