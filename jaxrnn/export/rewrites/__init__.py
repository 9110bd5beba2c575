"""The rewrites, by family."""

from __future__ import annotations

from jaxrnn.export.patterns import by_operator
from jaxrnn.export.rewrites import activations, layers, moves
from jaxrnn.export.rewrites.moves import split_slices

__all__ = ["REWRITES", "WRITTEN_OUT", "split_slices"]

#: Patterns and the fewer nodes that replace them, by the operator of the pattern's last node.
REWRITES = by_operator(*moves.SIMPLIFICATIONS, *activations.REWRITES, *layers.REWRITES, *moves.REWRITES)
#: The replacements of functions without an ONNX operator.
WRITTEN_OUT = by_operator(*activations.WRITTEN_OUT)
