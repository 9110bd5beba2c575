"""Running totals along time, and reductions: over other axes in each frame, over time into a value known at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import JaxprEqn

from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.totals import Total, identity_of
from jaxrnn.streaming.values import Chunk, FinalValue


def cumulative(run: Pass, equation: JaxprEqn, x: Chunk) -> Chunk | list[Chunk]:
    """Running totals: along time, the total up to the last frame is carried on."""
    if equation.params["axis"] != x.axis:
        return run.frame_by_frame(equation, x)
    if equation.params["reverse"]:
        run.refuse("it runs backwards in time, from the last frame", "run forwards in time")
    if x.outer != 1:
        run.refuse("it runs over an axis that merges time with another axis", "split the axes first")
    kind = equation.primitive.name.removeprefix("cum")
    x = run.spread(x)
    assert x.delay is not None
    frames = run.fill(x, identity_of(kind, x.array.dtype)).array
    shape = [1 if axis == x.axis else size for axis, size in enumerate(frames.shape)]
    total = Total(run, kind, shape, frames.dtype, x.timeline, x.delay)
    running = total.after_each(frames, x.axis, lambda array: run.bind(equation, [array])[0])
    return run.make(running, x.axis, x.timeline, x.delay, x.reach and x.reach.unbounded)


def reduction(run: Pass, equation: JaxprEqn, x: Chunk) -> Any:
    """Reductions over other axes, or over time too."""
    axes = equation.params["axes"]
    if x.axis not in axes:
        return run.frame_by_frame(equation, x, axis=x.axis - sum(other < x.axis for other in axes))
    x = run.spread(x)
    assert x.delay is not None
    kind = equation.primitive.name.removeprefix("reduce_")
    frames = run.fill(x, identity_of(kind, x.array.dtype)).array

    def reduced(array: Any, axes: Sequence[int]) -> Any:
        return run.bind(equation, [array], axes=tuple(axes))[0]

    if run.local:
        return reduced(frames, axes)
    shape = [size for axis, size in enumerate(frames.shape) if axis not in axes]
    total = Total(run, kind, shape, frames.dtype, x.timeline, x.delay)
    return FinalValue(total.after_all(frames, axes, x.axis, reduced), reach=x.reach and x.reach.of_all)


RULES: dict[str, Any] = {
    **{f"cum{name}": cumulative for name in ("sum", "prod", "max", "min", "logsumexp")},
    **{f"reduce_{name}": reduction for name in ("sum", "prod", "max", "min", "and", "or", "xor")},
}
