"""Arithmetic on values that are known while tracing: indices, and lengths that depend on the stream."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import InconclusiveDimensionOperation, JaxprEqn

from jaxrnn.jaxprs.equations import bind, shape_of, type_of
from jaxrnn.jaxprs.moves import move
from jaxrnn.jaxprs.primitives import is_platform_index
from jaxrnn.streaming.access import out_shape
from jaxrnn.streaming.values import is_length

#: Larger known arrays are left to be computed at run time.
LARGEST = 1 << 16

_ON_LENGTHS: dict[str, Any] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "max": np.maximum,
    "min": np.minimum,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}


def fold(equation: JaxprEqn, operands: list[Any]) -> list[Any] | None:
    """The results of an equation on known operands, as NumPy arrays; None where they are better left to run time."""
    if equation.primitive.name == "dim_as_value" or is_platform_index(equation) or equation.effects:
        return None
    for result in equation.outvars:
        dtype = type_of(result)
        whole = jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.bool_)
        if not whole or int(np.prod(shape_of(result))) > LARGEST:
            return None
    if any(map(is_length, operands)):
        return _fold_lengths(equation, operands)
    if moved := move(equation, list(map(np.asarray, operands))):
        return moved
    with jax.ensure_compile_time_eval():
        return [np.asarray(result) for result in bind(equation, operands)]


def _fold_lengths(equation: JaxprEqn, operands: list[Any]) -> list[Any] | None:
    name = equation.primitive.name
    shape = out_shape(equation)
    try:
        if name in _ON_LENGTHS:
            # Broadcasting in an object array keeps symbolic dimensions exact.
            result = _ON_LENGTHS[name](*operands)
        elif name in ("convert_element_type", "copy", "stop_gradient"):
            result = operands[0]
        elif name in ("reshape", "squeeze", "broadcast_in_dim"):
            if int(np.prod(shape)) != np.size(operands[0]):
                return None
            result = np.reshape(operands[0], shape)
        elif name == "concatenate":
            result = np.concatenate(operands, axis=equation.params["dimension"])
        elif name == "select_n" and not is_length(operands[0]):
            which, *cases = np.broadcast_arrays(*operands)
            result = np.choose(which.astype(int), cases)
        else:
            return None
    except InconclusiveDimensionOperation:
        return None
    boxed = np.empty(shape, object)
    boxed[...] = result
    if all(isinstance(item, (bool, np.bool_)) for item in boxed.flat):
        return [boxed.astype(bool)]
    if all(isinstance(item, (int, np.integer)) for item in boxed.flat):
        return [boxed.astype(np.int64)]
    return [boxed]
