"""The rules, by primitive."""

from __future__ import annotations

from jaxrnn.lowering.lowering import Rule
from jaxrnn.lowering.rules import contraction, control, convolution, elementwise, layers, movement, reduction

RULES: dict[str, Rule] = {
    **contraction.RULES,
    **control.RULES,
    **convolution.RULES,
    **elementwise.RULES,
    **layers.RULES,
    **movement.RULES,
    **reduction.RULES,
}
