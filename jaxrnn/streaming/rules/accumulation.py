"""Running totals along time, and reductions: over other axes in each frame, over time into a value known at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.timeline import Timeline
from jaxrnn.streaming.values import Chunk, FinalValue

Combine = Callable[[Any, Any], Any]


def _lowest(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, np.bool_):
        return False
    return -np.inf if jnp.issubdtype(dtype, np.inexact) else jnp.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, np.bool_):
        return True
    return np.inf if jnp.issubdtype(dtype, np.inexact) else jnp.iinfo(dtype).max


#: By the last part of a primitive's name: how two parts join, and what joins without effect.
_MONOIDS: dict[str, tuple[Combine, Callable[[Any], Any]]] = {
    "sum": (lax.add, lambda dtype: 0),
    "prod": (lax.mul, lambda dtype: 1),
    "max": (lax.max, _lowest),
    "min": (lax.min, _highest),
    "logsumexp": (jnp.logaddexp, _lowest),
    "and": (lax.bitwise_and, lambda dtype: np.invert(np.zeros((), dtype))),
    "or": (lax.bitwise_or, lambda dtype: 0),
    "xor": (lax.bitwise_xor, lambda dtype: 0),
}


def identity_of(name: str, dtype: Any) -> Any:
    """What joins without effect: 0 for sums, the lowest value for maxima."""
    return _MONOIDS[name][1](dtype)


def cumulative(run: Pass, equation: JaxprEqn, x: Chunk) -> Chunk | list[Chunk]:
    """Running totals: along time, the total up to the last frame is carried on."""
    if equation.params["axis"] != x.axis:
        return run.frame_by_frame(equation, x)
    if equation.params["reverse"]:
        run.refuse("it runs backwards in time, from the last frame", "run forwards in time")
    if x.outer != 1:
        run.refuse("it runs over time where another axis is merged with it", "split the axes first")
    x = run.spread(x)
    assert x.delay is not None
    join, identity = _MONOIDS[equation.primitive.name.removeprefix("cum")]
    value = identity(x.array.dtype)
    x = run.fill(x, value)
    shape = list(x.array.shape)
    shape[x.axis] = 1
    name, total = run.carry("total", lambda: jnp.full(shape, value, x.array.dtype))
    running = x.array if x.frames == 1 else run.bind(equation, [x.array])[0]
    running = join(jnp.broadcast_to(total, running.shape), running)
    run.store(name, lax.slice_in_dim(running, x.frames - 1, None, axis=x.axis), x.timeline, x.delay)
    assert x.delay is not None
    return run.make(running, x.axis, x.timeline, x.delay, x.reach and x.reach.unbounded)


def reduction(run: Pass, equation: JaxprEqn, x: Chunk) -> Any:
    """Reductions over other axes, or over time too."""
    axes = equation.params["axes"]
    if x.axis not in axes:
        return run.frame_by_frame(equation, x, axis=x.axis - sum(other < x.axis for other in axes))
    x = run.spread(x)
    assert x.delay is not None
    join, identity = _MONOIDS[equation.primitive.name.removeprefix("reduce_")]
    value = identity(x.array.dtype)
    (part,) = run.bind(equation, [run.fill(x, value).array])
    return accumulate(run, part, x.timeline, x.delay, join, value)


def accumulate(run: Pass, part: Any, timeline: Timeline, delay: int, join: Combine, identity: Any) -> Any:
    """A value that gathers a part from every chunk, until the stream ends."""
    if run.local:
        return part
    run.facts.sinks.append((timeline, delay))
    name, total = run.carry("total", lambda: jnp.full(jnp.shape(part), identity, part.dtype))
    total = join(total, part)
    run.store(name, total, timeline, delay)
    return FinalValue(total)


RULES: dict[str, Any] = {
    **{f"cum{name}": cumulative for name in ("sum", "prod", "max", "min", "logsumexp")},
    **{f"reduce_{name}": reduction for name in ("sum", "prod", "max", "min", "and", "or", "xor")},
}
