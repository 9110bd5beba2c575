"""Elementwise primitives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# fmt: off
ELEMENTWISE = (
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e",
    "bessel_i1e", "cbrt", "ceil", "clamp", "clz", "complex", "conj", "convert_element_type", "copy", "copy_p", "cos",
    "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "igamma",
    "igammac", "imag", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min",
    "mul", "mulhi", "ne", "neg", "nextafter", "not", "optimization_barrier", "or", "polygamma", "population_count",
    "pow", "real", "reduce_precision", "regularized_incomplete_beta", "rem", "round", "rsqrt", "select_n",
    "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square",
    "stop_gradient", "sub", "tan", "tanh", "xor", "zeta",
)
# fmt: on

#: Those that NumPy computes as XLA does, or to a rounding.
ON_ELEMENTS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "add_any": np.add,
    "and": np.bitwise_and,
    "ceil": np.ceil,
    "cos": np.cos,
    "eq": np.equal,
    "exp": np.exp,
    "floor": np.floor,
    "ge": np.greater_equal,
    "gt": np.greater,
    "is_finite": np.isfinite,
    "le": np.less_equal,
    "log": np.log,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "sign": np.sign,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "square": np.square,
    "sub": np.subtract,
    "tanh": np.tanh,
    "xor": np.bitwise_xor,
}


def counted(params: Mapping[str, Any]) -> np.ndarray:
    """Return the numbers of an ``iota``."""
    shape, axis = params["shape"], params["dimension"]
    counts = np.arange(shape[axis]).astype(params["dtype"])
    return np.broadcast_to(counts.reshape([-1 if d == axis else 1 for d in range(len(shape))]), shape)
