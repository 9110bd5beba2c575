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
    indexing,
    integers,
    layers,
    loops,
    movement,
    pooling,
    reduction,
    refusals,
    scattering,
    sorting,
    types,
)

RULES: dict[str, Rule] = {
    **contraction.RULES,
    **control.RULES,
    **convolution.RULES,
    **cumulative.RULES,
    **elementwise.RULES,
    **functions.RULES,
    **indexing.RULES,
    **integers.RULES,
    **loops.RULES,
    **layers.RULES,
    **movement.RULES,
    **pooling.RULES,
    **reduction.RULES,
    **refusals.RULES,
    **scattering.RULES,
    **sorting.RULES,
    **types.RULES,
}
