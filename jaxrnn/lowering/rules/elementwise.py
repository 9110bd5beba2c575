"""Operators on elements: one node for each, which broadcasts by itself."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx_ir as ir
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.equations import type_of
from jaxrnn.lowering.lowering import Lowering, Rule
from jaxrnn.lowering.movement import bare, broadcast, thin
from jaxrnn.lowering.ranges import compared
from jaxrnn.lowering.writer import Operand, dtype_of, shape_of

#: Primitives that an operator of ONNX computes as they are.
OPERATORS = {
    "abs": "Abs",
    "acos": "Acos",
    "acosh": "Acosh",
    "add": "Add",
    "add_any": "Add",
    "asin": "Asin",
    "asinh": "Asinh",
    "atan": "Atan",
    "atanh": "Atanh",
    "ceil": "Ceil",
    "cos": "Cos",
    "cosh": "Cosh",
    "eq": "Equal",
    "erf": "Erf",
    "erfc": "Erfc",
    "exp": "Exp",
    "expm1": "Expm1",
    "floor": "Floor",
    "ge": "GreaterOrEqual",
    "gt": "Greater",
    "le": "LessOrEqual",
    "log": "Log",
    "log1p": "Log1p",
    "logistic": "Sigmoid",
    "lt": "Less",
    "max": "Max",
    "min": "Min",
    "mul": "Mul",
    "neg": "Neg",
    "pow": "Pow",
    "sign": "Sign",
    "sin": "Sin",
    "sinh": "Sinh",
    "sqrt": "Sqrt",
    "sub": "Sub",
    "tan": "Tan",
    "tanh": "Tanh",
}

#: Primitives whose result is their operand.
IDENTITIES = (
    "copy",
    "copy_p",
    "layout_constraint",
    "mesh_cast",
    "optimization_barrier",
    "pvary",
    "reshard",
    "sharding_constraint",
    "stop_gradient",
)


def elements(
    lowering: Lowering, operator: str, *operands: Operand, shape: Any = None, dtype: Any = None, **attributes: Any
) -> Operand:
    """One node on elements of operands that broadcast, of the shape that all of them broadcast to.

    Operands that were repeated are read as they were before. A comparison that is known to hold is no node.
    """
    shape = np.broadcast_shapes(*map(shape_of, operands)) if shape is None else tuple(shape)
    if (holds := compared(operator, *operands) if len(operands) == 2 else None) is not None:
        return np.full(shape, holds)
    thinned = [thin(operand) for operand in operands]
    rank = max((len(shape_of(each)) for each in thinned if isinstance(each, ir.Value)), default=0)
    if rank == len(shape):
        thinned = [_without_front(each) if isinstance(each, np.ndarray) else each for each in thinned]
    dtype = dtype_of(operands[0]) if dtype is None else dtype
    result = lowering.writer.node(operator, *thinned, dtype=dtype, **attributes)
    return broadcast(lowering.writer, result, shape)


def _without_front(x: np.ndarray) -> np.ndarray:
    """A known array without axes of size 1 in front, which broadcasting adds: a parameter keeps its name so."""
    sizes = [axis for axis, size in enumerate(x.shape) if size != 1]
    return x.reshape(x.shape[sizes[0] :]) if sizes and sizes[0] else x


def _operator(operator: str, lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> Operand:
    result = equation.outvars[0]
    return elements(lowering, operator, *operands, shape=shape_of_atom(result), dtype=type_of(result))


def select(lowering: Lowering, equation: JaxprEqn, which: Operand, *cases: Operand) -> Operand:
    """``Where``; with more than two cases, of each in turn."""
    if len(cases) == 1:
        return cases[0]
    if isinstance(which, np.ndarray) and which.size and (which == which.flat[0]).all():
        return cases[int(which.flat[0])]
    shape, dtype = shape_of_atom(equation.outvars[0]), type_of(equation.outvars[0])
    if len(cases) == 2 and dtype_of(which) == np.bool_:
        return elements(lowering, "Where", bare(which), cases[1], cases[0], shape=shape, dtype=dtype)
    result = cases[0]
    for index, case in enumerate(cases[1:], 1):
        chosen = elements(lowering, "Equal", which, np.array(index, dtype_of(which)), dtype=bool)
        result = elements(lowering, "Where", chosen, case, result, shape=shape, dtype=dtype)
    return result


def cast(lowering: Lowering, x: Operand, dtype: Any) -> Operand:
    """An operand in another element type."""
    return broadcast(lowering.writer, lowering.writer.cast(thin(x), dtype), shape_of(x))


def square(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """``Mul``."""
    return elements(lowering, "Mul", x, x)


def reciprocal_root(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """``Reciprocal`` of ``Sqrt``."""
    return elements(lowering, "Reciprocal", elements(lowering, "Sqrt", x))


def clamp(lowering: Lowering, equation: JaxprEqn, low: Operand, x: Operand, high: Operand) -> Operand:
    """``Clip`` between numbers, else ``Min`` of ``Max``."""
    if not (shape_of(low) or shape_of(high)):
        return elements(lowering, "Clip", x, low, high)
    return elements(lowering, "Min", elements(lowering, "Max", x, low), high)


def unequal(lowering: Lowering, equation: JaxprEqn, x: Operand, y: Operand) -> Operand:
    """``Not`` of ``Equal``."""
    return elements(lowering, "Not", elements(lowering, "Equal", x, y, dtype=bool))


def identity(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> Any:
    """The operands."""
    return list(operands) if equation.primitive.multiple_results else operands[0]


RULES: dict[str, Rule] = {
    **{primitive: functools.partial(_operator, operator) for primitive, operator in OPERATORS.items()},
    **dict.fromkeys(IDENTITIES, identity),
    "clamp": clamp,
    "ne": unequal,
    "rsqrt": reciprocal_root,
    "select_n": select,
    "square": square,
}
