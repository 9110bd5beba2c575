"""Values that are known while the graph is written: computed in NumPy, since XLA would compile a program for each.

What is repeated stays a view of what is there once, and integers of 8 bits, as quantised weights are, are not made
wider: files would only be larger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.elements import ON_ELEMENTS, counted
from jaxrnn.jaxprs.equations import bind, shape_of, type_of
from jaxrnn.jaxprs.moves import move
from jaxrnn.lowering.movement import thin
from jaxrnn.lowering.writer import Operand

#: Fewer elements than these may be made wider.
_FEW = 64


def known_results(equation: JaxprEqn, operands: Sequence[Any]) -> list[Any] | None:
    """The results of an equation as far as they are known: its operands are, or they have no elements."""
    if equation.effects:
        return None
    variables, name = equation.outvars, equation.primitive.name
    ordinary = all(isinstance(type_of(each), np.dtype) for each in variables)
    if ordinary and all(0 in shape_of(variable) for variable in variables):
        return [np.zeros(shape_of(variable), type_of(variable)) for variable in variables]
    if not all(map(is_known, operands)) or name == "platform_index":
        return None
    if name == "onnx_operator" and any(map(_is_quantized, operands)):
        return None
    arrays: Any = operands
    if not ordinary or not all(isinstance(operand, np.ndarray) for operand in operands):
        return _computed(equation, arrays)
    if name == "convert_element_type":
        return _converted(arrays[0], np.dtype(equation.params["new_dtype"]))
    if (moved := move(equation, arrays)) is not None:
        return moved
    if name == "iota":
        return [counted(equation.params)]
    plain = all(array.dtype.kind in "biuf" for array in arrays)
    if name in ON_ELEMENTS and plain:
        return [_spread(ON_ELEMENTS[name], equation, arrays)]
    return _computed(equation, arrays)


def is_known(operand: Any) -> bool:
    """Whether an operand is no value of the graph: an array, or a key of random numbers."""
    return isinstance(operand, np.ndarray | jax.Array)


def _spread(function: Callable[..., Any], equation: JaxprEqn, operands: Sequence[np.ndarray]) -> np.ndarray:
    """A function of elements, of operands as they are before they are repeated."""
    (result,) = equation.outvars
    with np.errstate(all="ignore"):
        array = np.asarray(function(*map(thin, operands)), type_of(result))
    return np.broadcast_to(array, shape_of(result))


def _converted(x: np.ndarray, dtype: np.dtype) -> list[Operand] | None:
    """In another type; None where that is only larger."""
    if _is_quantized(x) and dtype.itemsize > 1:
        return None
    if jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.integer):
        with jax.ensure_compile_time_eval():
            return [np.asarray(jnp.asarray(x).astype(dtype))]
    with np.errstate(all="ignore"):
        return [np.broadcast_to(np.asarray(thin(x)).astype(dtype), x.shape)]


def _is_quantized(x: Any) -> bool:
    """Whether an array is many integers of a byte."""
    return jnp.issubdtype(x.dtype, jnp.integer) and x.dtype.itemsize == 1 and x.size >= _FEW


def _computed(equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    with jax.ensure_compile_time_eval():
        results = bind(equation, [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in operands])
    return [np.asarray(x) if isinstance(x.dtype, np.dtype) else x for x in results]
