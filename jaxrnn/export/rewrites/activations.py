"""Rewrites of activation functions as ONNX operators, and functions that ONNX lacks, written out."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from jaxrnn.export.patterns import Either, Known, Match, Number, Rewrite, Value, attributes_of, operator
from jaxrnn.export.writer import Operand, maker_of, shape_of

X, SLOPE, ALPHA, BETA = Value("x"), Known("slope"), Number("alpha"), Number("beta")
LOW, HIGH = Number("low"), Number("high")

Abs, Add, Clip, Div, Elu, Erf, Exp, Expm1 = map(operator, ("Abs", "Add", "Clip", "Div", "Elu", "Erf", "Exp", "Expm1"))
Erfc, ReduceMax, ReduceMin = map(operator, ("Erfc", "ReduceMax", "ReduceMin"))
Equal, Greater, GreaterOrEqual, Less = map(operator, ("Equal", "Greater", "GreaterOrEqual", "Less"))
HardSigmoid, Log1p, Max, Min, Mul, Neg, Not = map(operator, ("HardSigmoid", "Log1p", "Max", "Min", "Mul", "Neg", "Not"))
Pow, Relu, Softplus, Tanh, Where = map(operator, ("Pow", "Relu", "Softplus", "Tanh", "Where"))

#: From this number of elements on, a single ``Exp`` is faster than ``Mish``.
_MANY = 256

_POSITIVE = Either(GreaterOrEqual(X, 0.0), Greater(X, 0.0))
_EXPONENTIAL = Either(Expm1(Min(X, 0.0)), Expm1(Where(Greater(X, 0.0), 0.0, X)))
_CUBE = Either(Pow(X, 3.0), Mul(X, Mul(X, X)))


def _as(name: str, *attributes: str) -> Callable[[Match], Operand | None]:
    """Return a builder of an operator on x. Matched numbers become attributes of the same names."""
    return lambda match: match.node(name, match["x"], **{each: match[each] for each in attributes})


def _clip(match: Match) -> Operand | None:
    low, high = match.get("low", 0.0), match["high"]
    return match.node("Clip", match["x"], match.number(low), match.number(high)) if low <= high else None


def _leaky(match: Match) -> Operand | None:
    """Build ``LeakyRelu``, except for negative slopes, which change the sign of zeros."""
    alpha = match["alpha"]
    return match.node("LeakyRelu", match["x"], alpha=alpha) if 0 <= alpha < math.inf else None


def _leaky_by_maximum(match: Match) -> Operand | None:
    return match.node("LeakyRelu", match["x"], alpha=match["alpha"]) if 0 < match["alpha"] <= 1 else None


def _prelu(match: Match) -> Operand | None:
    return match.node("PRelu", match["x"], match["slope"]) if shape_of(match["x"]) == match.shape else None


def _elu(match: Match) -> Operand | None:
    return match.node("Elu", match["x"], alpha=match.get("alpha", 1.0))


def _selu(match: Match) -> Operand | None:
    alpha = match["elu"].attributes["alpha"].as_float()
    return match.node("Selu", match["x"], alpha=alpha, gamma=match["beta"])


def _celu(match: Match) -> Operand | None:
    return match.node("Celu", match["x"], alpha=match["alpha"]) if match.dtype == "float32" else None


def _hard_sigmoid(match: Match) -> Operand | None:
    return match.node("HardSigmoid", match["x"], alpha=match.get("alpha", 1 / 6), beta=match.get("beta", 0.5))


def _hard_swish(match: Match) -> Operand | None:
    attributes = match["gate"].attributes
    alpha, beta = attributes["alpha"].as_float(), attributes["beta"].as_float()
    return match.node("HardSwish", match["x"]) if np.float32(alpha) == np.float32(1 / 6) and beta == 0.5 else None


def _gelu(approximate: str) -> Callable[[Match], Operand | None]:
    return lambda match: match.node("Gelu", match["x"], approximate=approximate)


def _gelu_by_complement(match: Match) -> Operand | None:
    """Build ``x / 2 * (1 + erf(x / sqrt(2)))``, ONNX's definition of ``Gelu``."""
    if (gelu := match.node("Gelu", match["x"], approximate="none")) is not None:
        return gelu
    write, x = match.writer.node, match["x"]
    error = write("Erf", write("Mul", x, match.number(math.sqrt(0.5))))
    return write("Mul", write("Mul", x, match.number(0.5)), write("Add", error, match.number(1)))


def _mish(match: Match) -> Operand | None:
    """Build ``x * n / (n + 2)`` with ``n = e * (e + 2)`` and ``e = exp(min(x, 20))``; for few elements, ``Mish``."""
    write, x, two = match.writer.node, match["x"], match.number(2)
    if match.dtype == np.float16 or math.prod(match.shape) < _MANY:  # the square overflows float16
        return match.node("Mish", x)
    power = write("Exp", write("Min", x, match.number(20)))
    square = write("Mul", power, write("Add", power, two))
    return write("Mul", x, write("Div", square, write("Add", square, two)))


# Measured in ONNX Runtime 1.32 on one core, microseconds for 64 / 25,700 elements, values equal:
#   Gelu 4.3 / 16, written out 6.9 / 24; with tanh 4.4 / 15, written out 7.2 / 31
#   HardSwish 4.2 / 10.9, HardSigmoid and Mul 4.5 / 10.6
#   Mish 5.1 / 275, Softplus, Tanh and Mul 6.4 / 278, with one Exp (`_mish`) 8.2 / 25; 256 elements: 10, 8 and 7
#   Swish of opset 24 4.8 / 17.8, Sigmoid and Mul 3.8 / 8.5: Swish has no rewrite
REWRITES = (
    Rewrite(Max(X, 0.0), _as("Relu")),
    Rewrite(Min(Max(X, LOW), HIGH), _clip),
    Rewrite(Max(Min(X, HIGH), LOW), _clip),
    Rewrite(Min(Relu(X), HIGH), _clip),
    Rewrite(Relu(Min(X, HIGH)), _clip),
    Rewrite(Where(_POSITIVE, X, Mul(X, ALPHA)), _leaky),
    Rewrite(Where(Less(X, 0.0), Mul(X, ALPHA), X), _leaky),
    Rewrite(Max(X, Mul(X, ALPHA)), _leaky_by_maximum),
    Rewrite(Where(GreaterOrEqual(X, 0.0), X, Mul(X, SLOPE)), _prelu),
    Rewrite(Where(Less(X, 0.0), Mul(X, SLOPE), X), _prelu),
    Rewrite(Where(_POSITIVE, X, Either(Mul(_EXPONENTIAL, ALPHA), _EXPONENTIAL)), _elu),
    Rewrite(Add(Relu(X), Expm1(Min(X, 0.0))), _elu),
    Rewrite(Add(Relu(X), Mul(Expm1(Div(Min(X, 0.0), ALPHA)), ALPHA)), _celu),
    Rewrite(Mul(Elu(X).named("elu"), BETA), _selu),
    Rewrite(Clip(Add(Mul(X, ALPHA), BETA), 0.0, 1.0), _hard_sigmoid),
    Rewrite(Div(Clip(Add(X, 3.0), 0.0, 6.0), 6.0), _hard_sigmoid),
    Rewrite(Mul(X, HardSigmoid(X).named("gate")), _hard_swish),
    Rewrite(
        Where(Not(Equal(X, X)), X, Add(Relu(X), Log1p(Exp(Neg(Abs(X)))))),
        _as("Softplus"),
    ),
    Rewrite(Div(X, Add(Abs(X), 1.0)), _as("Softsign")),
    Rewrite(Mul(X, Tanh(Softplus(X))), _mish),
    Rewrite(Mul(Mul(X, 0.5), Add(Erf(Mul(X, math.sqrt(0.5))), 1.0)), _gelu("none")),
    Rewrite(Mul(Mul(X, 0.5), Erfc(Mul(Neg(X), math.sqrt(0.5)))), _gelu_by_complement),
    Rewrite(
        Mul(
            X,
            Mul(Add(Tanh(Mul(Add(X, Mul(_CUBE, 0.044715)), math.sqrt(2 / math.pi))), 1.0), 0.5),
        ),
        _gelu("tanh"),
    ),
    Rewrite(Where(Greater(X, ALPHA), X, 0.0), _as("ThresholdedRelu", "alpha")),
)


#: Coefficients of ``log(erfc(z) / t) + z ** 2`` as a polynomial in ``t = 1 / (1 + z / 2)``, for ``z >= 0``, the highest
#: power first. Numerical Recipes in C, second edition, section 6.2: relative error 1.2e-7.
_ERFC = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807)
_ERFC += (-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223)


def _erfc(match: Match) -> Operand | None:
    """Write ``1 - erf(x)``, and a power of e where that cancels; not for float64, which needs more digits."""
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
    """Write ``tanh(x / 2) * (exp(x) + 1)``, which keeps the digits of small numbers."""
    write, x = match.writer.node, match["x"]
    half = write("Tanh", write("Mul", x, match.number(0.5)))
    return write("Mul", half, write("Add", write("Exp", x), match.number(1)))


def _log1p(match: Match) -> Operand | None:
    """Write ``log(u) * x / (u - 1)`` with the rounded ``u = 1 + x``, which cancels the rounding error (Kahan)."""
    write, x, one = match.writer.node, match["x"], match.number(1)
    u = write("Add", x, one)
    as_it_is = write("Or", *(write("Equal", u, match.number(each), dtype=bool) for each in (1, np.inf)), dtype=bool)
    rest = write("Mul", write("Log", u), write("Div", x, write("Sub", u, one)))
    return write("Where", as_it_is, x, rest, dtype=match.dtype)


def _extreme(match: Match) -> Operand | None:
    """Propagate NaN, which ONNX Runtime skips: the sum of absolute values bounds the extreme, and is NaN."""
    node, write = match.root, match.writer.node
    if any(_is_sum_of_sizes(value) for use in node.outputs[0].uses() for value in use.node.inputs):
        return None
    found = match.like(node, *node.inputs[1:])
    if found is None:
        return None
    sizes = write("ReduceL1", *node.inputs, shape=match.shape, dtype=match.dtype, **attributes_of(node))
    return write("Max", found, write("Neg", sizes)) if node.op_type == "ReduceMax" else write("Min", found, sizes)


def _is_sum_of_sizes(value: ir.Value | None) -> bool:
    node = maker_of(value, "Neg", "ReduceL1")
    return node is not None and (node.op_type == "ReduceL1" or _is_sum_of_sizes(node.inputs[0]))


WRITTEN_OUT = (
    Rewrite(ReduceMax(X), _extreme, shares=True),
    Rewrite(ReduceMin(X), _extreme, shares=True),
    Rewrite(Erfc(X), _erfc),
    Rewrite(Expm1(X), _expm1),
    Rewrite(Log1p(X), _log1p),
)
