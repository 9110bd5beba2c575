"""The rules, by primitive."""

from __future__ import annotations

from jaxrnn.lowering.lowering import Rule
from jaxrnn.lowering.rules import (
    cells,
    contraction,
    control,
    convolution,
    cumulative,
    elementwise,
    functions,
    indexing,
    integers,
    layers,
    movement,
    pooling,
    reduction,
    scattering,
    sorting,
    types,
)

RULES: dict[str, Rule] = {
    **contraction.RULES,
    **control.RULES,
    **cells.RULES,
    **convolution.RULES,
    **cumulative.RULES,
    **elementwise.RULES,
    **functions.RULES,
    **indexing.RULES,
    **integers.RULES,
    **layers.RULES,
    **movement.RULES,
    **pooling.RULES,
    **reduction.RULES,
    **scattering.RULES,
    **sorting.RULES,
    **types.RULES,
}
