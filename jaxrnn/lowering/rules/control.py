"""Calls, and branches as ``If``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import CALLS, type_of
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.platforms import platforms_of
from jaxrnn.lowering.lowering import Lowering, Rule
from jaxrnn.lowering.movement import source_of
from jaxrnn.lowering.rules.elementwise import elements
from jaxrnn.lowering.subgraphs import subgraph
from jaxrnn.lowering.writer import Operand, dtype_of, maker_of

#: By primitive that calls a function and does no more, the parameter that holds it.
_CALLS = {
    **CALLS,
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
}


def call(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """The equations of the function."""
    return lowering.evaluate(equation.params[_CALLS[equation.primitive.name]], operands)


def linear_solve(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """The equations that solve; the others are for derivatives."""
    lengths = equation.params["const_lengths"]
    start = lengths.matvec + lengths.vecmat
    right = operands[start + lengths.solve + lengths.transpose_solve :]
    return lowering.evaluate(equation.params["jaxprs"].solve, [*operands[start : start + lengths.solve], *right])


def platform(lowering: Lowering, equation: JaxprEqn) -> Operand:
    """An engine of ONNX is none of JAX's platforms."""
    return np.array(len(equation.params["platforms"]) - 1, np.int32)


def branch(lowering: Lowering, equation: JaxprEqn, which: Operand, *operands: Operand) -> list[Operand]:
    """The branch that is known to be taken, or ``If``; of several, one inside of another."""
    branches = equation.params["branches"]
    platforms = platforms_of(equation)
    if platforms is not None:
        return lowering.evaluate(branches[platforms.index(None)], operands)
    if isinstance(which, np.ndarray):
        return lowering.evaluate(branches[int(np.clip(which, 0, len(branches) - 1))], operands)
    return _chosen(lowering, equation, range(len(branches)), which, operands)


def _chosen(
    lowering: Lowering, equation: JaxprEqn, numbers: Sequence[int], which: Operand, operands: Sequence[Operand]
) -> list[Operand]:
    """The results of one of the branches of these numbers."""
    branches = equation.params["branches"]
    if len(numbers) == 1:
        return lowering.evaluate(branches[numbers[0]], operands)
    half = len(numbers) // 2
    condition = _is_at_least(lowering, which, numbers[half])
    if isinstance(condition, np.ndarray):
        return _chosen(lowering, equation, numbers[half:] if condition else numbers[:half], which, operands)

    def of(some: Sequence[int], name: str) -> ir.Graph:
        return subgraph(lowering, name, [], lambda inside: _chosen(inside, equation, some, which, operands))

    kinds = [(shape_of_atom(each), type_of(each)) for each in equation.outvars]
    then, otherwise = of(numbers[half:], "then"), of(numbers[:half], "else")
    return [*lowering.writer.nodes_of("If", [condition], kinds, then_branch=then, else_branch=otherwise)]


def _is_at_least(lowering: Lowering, which: Operand, number: int) -> Operand:
    """A condition on an index, which often is a condition as a number."""
    made = maker_of(which, "Cast")
    if number == 1 and made is not None and dtype_of(source_of(made)) == np.bool_:
        return source_of(made)
    return elements(lowering, "GreaterOrEqual", which, np.array(number, dtype_of(which)), dtype=bool)


RULES: dict[str, Rule] = {
    **dict.fromkeys(_CALLS, call),
    "cond": branch,
    "custom_linear_solve": linear_solve,
    "platform_index": platform,
}
