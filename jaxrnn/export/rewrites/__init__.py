"""The rewrites, by the operator of the pattern's last node."""

from __future__ import annotations

from jaxrnn.export.patterns import Rewrite
from jaxrnn.export.rewrites import activations, layers, moves
from jaxrnn.export.rewrites.moves import split_slices

__all__ = ["REWRITES", "WRITTEN_OUT", "split_slices"]


def _by_operator(*rewrites: Rewrite) -> dict[str, list[Rewrite]]:
    table: dict[str, list[Rewrite]] = {}
    for each in rewrites:
        table.setdefault(each.pattern.operator, []).append(each)
    return table


#: Patterns and the fewer nodes that replace them.
REWRITES = _by_operator(*moves.SIMPLIFICATIONS, *activations.REWRITES, *layers.REWRITES, *moves.REWRITES)
#: The replacements of functions without an ONNX operator.
WRITTEN_OUT = _by_operator(*activations.WRITTEN_OUT)
