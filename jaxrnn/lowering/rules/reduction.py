"""Reductions over axes."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.equations import type_of
from jaxrnn.lowering.lowering import Lowering, Rule
from jaxrnn.lowering.movement import reshape
from jaxrnn.lowering.rules.elementwise import cast
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


def reduce_logical(operator: str, lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Of booleans, the largest or smallest of 0 and 1."""
    return cast(lowering, reduce(operator, lowering, equation, cast(lowering, x, np.int32)), bool)


def place_of_extreme(operator: str, lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """The first place of the largest or smallest element."""
    (axis,) = equation.params["axes"]
    shape = shape_of_atom(equation.outvars[0])
    place = lowering.writer.node(operator, x, shape=shape, dtype=np.int64, axis=axis, keepdims=0)
    return cast(lowering, place, type_of(equation.outvars[0]))


RULES: dict[str, Rule] = {
    **{primitive: functools.partial(reduce, operator) for primitive, operator in _OPERATORS.items()},
    "argmax": functools.partial(place_of_extreme, "ArgMax"),
    "argmin": functools.partial(place_of_extreme, "ArgMin"),
    "reduce_and": functools.partial(reduce_logical, "ReduceMin"),
    "reduce_or": functools.partial(reduce_logical, "ReduceMax"),
}
