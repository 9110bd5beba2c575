"""Running sums, products and extremes along an axis."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.lowering.lowering import Lowering, Rule
from jaxrnn.lowering.writer import Operand, dtype_of, shape_of


def running_sum(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """``CumSum``."""
    axis = np.array(equation.params["axis"], np.int64)
    if shape_of(x)[axis] <= 1:
        return x
    reverse = 1 if equation.params["reverse"] else None
    return lowering.writer.node("CumSum", x, axis, shape=shape_of(x), dtype=dtype_of(x), reverse=reverse)


def running(combine: Callable[[Any, Any], Any], lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Every element combined with that before it, then with what is two before it, then four, and so on."""
    axis, reverse, length = equation.params["axis"], equation.params["reverse"], shape_of(x)[equation.params["axis"]]

    def function(x: jax.Array) -> jax.Array:
        shift = 1
        while shift < length:
            part = functools.partial(lax.slice_in_dim, axis=axis)
            if reverse:
                changed = combine(part(x, 0, length - shift), part(x, shift, length))
                x = jnp.concatenate([changed, part(x, length - shift, length)], axis)
            else:
                changed = combine(part(x, 0, length - shift), part(x, shift, length))
                x = jnp.concatenate([part(x, 0, shift), changed], axis)
            shift *= 2
        return x

    return lowering.trace(function, x)[0]


RULES: dict[str, Rule] = {
    "cumlogsumexp": functools.partial(running, jnp.logaddexp),
    "cummax": functools.partial(running, lax.max),
    "cummin": functools.partial(running, lax.min),
    "cumprod": functools.partial(running, lax.mul),
    "cumsum": running_sum,
}
