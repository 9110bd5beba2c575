"""The rules, by primitive."""

from __future__ import annotations

from jaxrnn.lowering.lowering import Rule
from jaxrnn.lowering.rules import (
    contraction,
    control,
    convolution,
    elementwise,
    functions,
    indexing,
    integers,
    movement,
    reduction,
    scattering,
    sorting,
    types,
)

RULES: dict[str, Rule] = {
    **contraction.RULES,
    **control.RULES,
    **convolution.RULES,
    **elementwise.RULES,
    **functions.RULES,
    **indexing.RULES,
    **integers.RULES,
    **movement.RULES,
    **reduction.RULES,
    **scattering.RULES,
    **sorting.RULES,
    **types.RULES,
}
