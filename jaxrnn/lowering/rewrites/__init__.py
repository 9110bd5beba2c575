"""The rewrites, by family."""

from __future__ import annotations

from jaxrnn.lowering.rewrites import (
    activations,
    arrangement,
    normalizations,
    products,
    reshapes,
    transposes,
    writing_out,
)
from jaxrnn.lowering.rewrites.splits import split_slices
from jaxrnn.lowering.rewriting import by_operator

__all__ = ["REWRITES", "WRITTEN_OUT", "split_slices"]

#: Patterns as fewer nodes, by the operator of the last one.
REWRITES = by_operator(
    *arrangement.REWRITES,
    *activations.REWRITES,
    *normalizations.REWRITES,
    *products.REWRITES,
    *reshapes.REWRITES,
    *transposes.REWRITES,
)
#: What ONNX has no operator for.
WRITTEN_OUT = by_operator(*writing_out.WRITTEN_OUT)
