"""Functions that ONNX has no operator for, written out after all patterns are found."""

from __future__ import annotations

import numpy as np

from jaxrnn.lowering.patterns import Value, operator
from jaxrnn.lowering.rewriting import Match, Rewrite
from jaxrnn.lowering.writer import Operand

X = Value("x")


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


WRITTEN_OUT = (
    Rewrite(operator("Expm1")(X), _expm1),
    Rewrite(operator("Log1p")(X), _log1p),
)
