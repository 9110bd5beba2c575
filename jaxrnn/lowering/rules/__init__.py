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
    loops,
    movement,
    operators,
    pooling,
    reduction,
    refusals,
    scattering,
    sorting,
    types,
)
from jaxrnn.lowering.rules.complexes import with_complex

RULES: dict[str, Rule] = with_complex(
    {
        **contraction.RULES,
        **control.RULES,
        **convolution.RULES,
        **cumulative.RULES,
        **elementwise.RULES,
        **functions.RULES,
        **indexing.RULES,
        **integers.RULES,
        **loops.RULES,
        **cells.RULES,  # a scan of cells is no loop
        **layers.RULES,
        **movement.RULES,
        **operators.RULES,
        **pooling.RULES,
        **reduction.RULES,
        **refusals.RULES,
        **scattering.RULES,
        **sorting.RULES,
        **types.RULES,
    }
)
