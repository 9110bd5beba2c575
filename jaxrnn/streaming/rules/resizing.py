"""`jax.image.resize` along time by whole factors, in terms of operations that stream.

JAX computes the indices or the weights from the length in floats. A call of `jax.image.resize` is recognised, since the
call traces to the same equations, and is replaced by repeated frames, every k-th frame, or sums of neighbours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import type_of
from jaxrnn.streaming.dimensions import in_shape, out_shape, symbolic_axes

#: The largest factor.
LARGEST = 1024


def resized(equation: JaxprEqn) -> Any:
    """Return the jaxpr that replaces a call of `jax.image.resize` along time; None for other calls."""
    if equation.params.get("name") != "_resize" or len(equation.invars) != 1:
        return None
    old, new = in_shape(equation), out_shape(equation)
    axes = [axis for axis in range(len(old)) if str(old[axis]) != str(new[axis])]
    if axes != symbolic_axes(old) or axes != symbolic_axes(new) or len(axes) != 1:
        return None
    (axis,) = axes
    up, down = (
        next((k for k in range(2, LARGEST) if str(k * a[axis]) == str(b[axis])), 0) for a, b in ((old, new), (new, old))
    )
    # The old length may be a multiple of the new length for some lengths only: S and floordiv(S, 2).
    x = jax.ShapeDtypeStruct(old, type_of(equation.invars[0]))
    found = str(equation.params["jaxpr"].jaxpr)
    forms: dict[str, Callable[[Any], Any]] = {}
    if up:
        forms["nearest"] = functools.partial(jnp.repeat, repeats=up, axis=axis)
        forms["linear"] = functools.partial(_linear, factor=up, axis=axis)
    elif down:
        forms["nearest"] = lambda x: x[(slice(None),) * axis + (slice(down // 2, None, down),)]
    for method, form in forms.items():
        traced = jax.make_jaxpr(lambda x, method=method: jax.image.resize(x, new, method))(x)
        if str(traced.jaxpr.eqns[0].params["jaxpr"].jaxpr) == found:
            return jax.make_jaxpr(form)(x)
    return None


def _linear(x: Any, factor: int, axis: int) -> Any:
    """Enlarge time by linear interpolation between neighbours, with repeated first and last frames."""
    cut = functools.partial(lax.slice_in_dim, x, axis=axis)
    before = jnp.concatenate([cut(0, 1), cut(0, x.shape[axis] - 1)], axis)
    after = jnp.concatenate([cut(1, x.shape[axis]), cut(x.shape[axis] - 1, x.shape[axis])], axis)
    parts = []
    for phase in range(factor):
        place = (phase + 0.5) / factor - 0.5
        parts.append((1 - abs(place)) * x + abs(place) * (before if place < 0 else after))
    shape = [factor * size if each == axis else size for each, size in enumerate(x.shape)]
    return jnp.stack(parts, axis + 1).reshape(shape)
