"""Functions that ONNX has no operator for, written out after all patterns are found."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jaxrnn.lowering.patterns import Value, operator
from jaxrnn.lowering.rewriting import Match, Rewrite
from jaxrnn.lowering.writer import Operand, maker_of

X = Value("x")

#: Coefficients of ``log(erfc(z) / t) + z ** 2`` as a polynomial in ``t = 1 / (1 + z / 2)``, for ``z >= 0``, the highest
#: power first. Numerical Recipes in C, second edition, section 6.2: 1.2e-7 of the value.
_ERFC = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807)
_ERFC += (-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223)


def _erfc(match: Match) -> Operand | None:
    """``1 - erf(x)``, and where that cancels, a power of e; None of float64, which that is not exact for."""
    write, x, one = match.writer.node, match["x"], match.number(1)
    if match.dtype == np.float64:
        return None
    t = write("Reciprocal", write("Add", write("Mul", x, match.number(0.5)), one))
    power: Operand = match.number(_ERFC[0])
    for coefficient in _ERFC[1:]:
        power = write("Add", write("Mul", t, power), match.number(coefficient))
    tail = write("Mul", t, write("Exp", write("Sub", power, write("Mul", x, x))))
    near = write("Less", x, match.number(0.5), dtype=bool)
    return write("Where", near, write("Sub", one, write("Erf", x)), tail, dtype=match.dtype)


def _expm1(match: Match) -> Operand | None:
    """``tanh(x / 2) * (exp(x) + 1)``, which keeps the digits of small numbers."""
    write, x = match.writer.node, match["x"]
    half = write("Tanh", write("Mul", x, match.number(0.5)))
    return write("Mul", half, write("Add", write("Exp", x), match.number(1)))


def _log1p(match: Match) -> Operand | None:
    """``log(u) * x / (u - 1)`` with ``u = 1 + x`` as it is rounded, whose error that takes back (Kahan)."""
    write, x, one = match.writer.node, match["x"], match.number(1)
    u = write("Add", x, one)
    as_it_is = write("Or", *(write("Equal", u, match.number(each), dtype=bool) for each in (1, np.inf)), dtype=bool)
    rest = write("Mul", write("Log", u), write("Div", x, write("Sub", u, one)))
    return write("Where", as_it_is, x, rest, dtype=match.dtype)


def _extreme(match: Match) -> Operand | None:
    """With NaN where there is one, which ONNX Runtime skips: no extreme is further from 0 than the sum of all sizes."""
    node, write = match.root, match.writer.node
    if any(_is_sum_of_sizes(value) for use in node.outputs[0].uses() for value in use.node.inputs):
        return None
    found = match.like(node, *node.inputs[1:])
    attributes = {name: each.value for name, each in node.attributes.items()}
    if found is None:
        return None
    sizes = write("ReduceL1", *node.inputs, shape=match.shape, dtype=match.dtype, **attributes)
    return write("Max", found, write("Neg", sizes)) if node.op_type == "ReduceMax" else write("Min", found, sizes)


def _is_sum_of_sizes(value: ir.Value | None) -> bool:
    node = maker_of(value, "Neg", "ReduceL1")
    return node is not None and (node.op_type == "ReduceL1" or _is_sum_of_sizes(node.inputs[0]))


WRITTEN_OUT = (
    Rewrite(operator("ReduceMax")(X), _extreme, shares=True),
    Rewrite(operator("ReduceMin")(X), _extreme, shares=True),
    Rewrite(operator("Erfc")(X), _erfc),
    Rewrite(operator("Expm1")(X), _expm1),
    Rewrite(operator("Log1p")(X), _log1p),
)
