"""The rules, by primitive."""

from __future__ import annotations

from jaxrnn.lowering.lowering import Rule
from jaxrnn.lowering.rules import (
    contraction,
    control,
    convolution,
    elementwise,
    functions,
    integers,
    movement,
    reduction,
    types,
)

RULES: dict[str, Rule] = {
    **contraction.RULES,
    **control.RULES,
    **convolution.RULES,
    **elementwise.RULES,
    **functions.RULES,
    **integers.RULES,
    **movement.RULES,
    **reduction.RULES,
    **types.RULES,
}
