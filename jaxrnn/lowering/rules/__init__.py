"""The rules, by primitive."""

from __future__ import annotations

from jaxrnn.lowering.lowering import Rule
from jaxrnn.lowering.rules import (
    contraction,
    control,
    convolution,
    cumulative,
    elementwise,
    functions,
    integers,
    movement,
    pooling,
    reduction,
    types,
)

RULES: dict[str, Rule] = {
    **contraction.RULES,
    **control.RULES,
    **convolution.RULES,
    **cumulative.RULES,
    **elementwise.RULES,
    **functions.RULES,
    **integers.RULES,
    **movement.RULES,
    **pooling.RULES,
    **reduction.RULES,
    **types.RULES,
}
