"""One rule for each primitive: how it runs on the frames of one step.

A rule takes the pass, the equation and its operands (chunks, values known at the end, known values, arrays) and gives
the results. Rules make chunks through `Pass.make` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.extend.core import JaxprEqn

from jaxrnn.streaming.access import has_symbols
from jaxrnn.streaming.rules import (
    accumulation,
    branches,
    calls,
    contraction,
    convolution,
    elementwise,
    indexing,
    loops,
    movement,
    pooling,
    positions,
    time,
)
from jaxrnn.streaming.rules.folding import fold

__all__ = ["RULES", "find_rule", "fold"]

RULES: dict[str, Callable[..., Any]] = {
    **elementwise.RULES,
    **movement.RULES,
    **time.RULES,
    **indexing.RULES,
    **convolution.RULES,
    **pooling.RULES,
    **contraction.RULES,
    **accumulation.RULES,
    **positions.RULES,
    **loops.RULES,
    **branches.RULES,
    **calls.RULES,
}


#: Primitives with functions inside.
_NESTED = {*loops.RULES, *branches.RULES, *calls.RULES}


def find_rule(equation: JaxprEqn, operands: list[Any], streamed: bool) -> Callable[..., Any] | None:
    """The rule of an equation; None where it is applied as it stands, or where there is none."""
    name = equation.primitive.name
    if streamed or name in calls.INLINED or name == "dim_as_value":
        return RULES.get(name)
    if (name in _NESTED) and has_symbols(equation):
        return RULES.get(name)
    return None
