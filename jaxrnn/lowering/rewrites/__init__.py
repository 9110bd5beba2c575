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
from jaxrnn.lowering.rewriting import by_operator

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
