"""Positions in time, and the length of the stream as a value."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import JaxprEqn

from jaxrnn.streaming.dimensions import symbolic_axes
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rules.counting import is_wide
from jaxrnn.streaming.values import Chunk, along


def iota(run: Pass, equation: JaxprEqn) -> Chunk:
    """Counting along time, from a true counter, or along another axis, the same in every frame."""
    shape, dimension = list(equation.params["shape"]), equation.params["dimension"]
    dtype = equation.params["dtype"]
    (axis,) = symbolic_axes(shape)
    timeline = run.clock.timeline(shape[axis])
    shape[axis] = 1
    if dimension != axis:
        return run.make(lax.broadcasted_iota(dtype, shape, dimension), axis, timeline, None, None)
    delay = timeline.certain
    run.facts.counts = True
    # Counted in the type of the result, it wraps around where the whole recording's would.
    units = run.count if isinstance(run.count, int) else run.units_before
    count, per_unit, late = (_wrapped(number, dtype) for number in (units, timeline.per_unit, delay))
    first = count * per_unit - late
    frames = first + jnp.arange(run.frames_of(timeline), dtype=dtype)
    shape[axis] = run.frames_of(timeline)
    array = jnp.broadcast_to(along(frames, axis, len(shape)), shape)
    affine = (1, np.zeros((1,) * len(shape), np.int64)) if is_wide(dtype) else None
    return run.make(array, axis, timeline, delay, None, affine)


def _wrapped(number: Any, dtype: Any) -> Any:
    return number.astype(dtype) if isinstance(number, Array) else jnp.asarray(np.asarray(number).astype(dtype))


def dim_as_value(run: Pass, equation: JaxprEqn) -> np.ndarray:
    """The length as a value: known, as a symbolic dimension, until arithmetic needs a number."""
    boxed = np.empty((), object)
    boxed[()] = equation.params["dim"]
    return boxed


RULES: dict[str, Any] = {"iota": iota, "dim_as_value": dim_as_value}
