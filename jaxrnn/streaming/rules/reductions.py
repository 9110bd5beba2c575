"""Rules for reductions and running totals, for matrix products, and for transforms and sorting inside a frame.

A reduction over time returns a `FinalValue`, which is known when the stream ends. A running total carries the total
up to the last frame as state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import type_of
from jaxrnn.streaming.dimensions import out_shape, symbolic_axes
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.reach import union
from jaxrnn.streaming.rules.elementwise import align, earliest_delay, frame_numbers_at, reach_everywhere
from jaxrnn.streaming.totals import Total, carried_as, identity_of
from jaxrnn.streaming.values import Chunk, FinalValue, is_length


def cumulative(run: Pass, equation: JaxprEqn, x: Chunk) -> Chunk | list[Chunk]:
    """Stream running totals; along time, the state carries the total."""
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
    """Stream a reduction over time, or over other axes in each frame."""
    axes = equation.params["axes"]
    if x.axis not in axes:
        return run.frame_by_frame(equation, x, axis=x.axis - sum(other < x.axis for other in axes))
    # Equal reductions of the same frames are the same value.
    lineage = equation.primitive.name, str(equation.params), x.lineage, x.timeline, x.delay
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
    result = total.after_all(frames, axes, x.axis, reduced)
    return FinalValue(result, reach=x.reach and x.reach.of_all, lineage=lineage)


def dot_general(run: Pass, equation: JaxprEqn, left: Any, right: Any) -> Any:
    """Stream a product, with time as a free, batch or contracting axis."""
    (summed_left, summed_right), _ = equation.params["dimension_numbers"]
    axes = [value.axis if isinstance(value, Chunk) else None for value in (left, right)]
    if axes[0] in summed_left or axes[1] in summed_right:
        return _over_time(run, equation, left, right)
    (axis,) = symbolic_axes(out_shape(equation))
    if isinstance(left, Chunk) and isinstance(right, Chunk):
        # Time is a batch axis of both operands; otherwise the result would have two time axes.
        left, right = run.together(run.spread(left), run.spread(right))
        if left.outer != right.outer:
            run.refuse("its operands merge time with another axis in different orders", "merge both in the same order")
        like, reach = left, union([left.reach, right.reach])
    else:
        like = left if isinstance(left, Chunk) else right
        if any(isinstance(value, FinalValue) or is_length(value) for value in (left, right)):
            like = run.spread(like)
            assert like.delay is not None
            like = run.delayed(like, max(like.delay, earliest_delay(run, [left, right], like.timeline)))
        reach = union([like.reach, reach_everywhere([left, right], like.timeline)])
        left, right = (like if isinstance(value, Chunk) else run.unstreamed(value) for value in (left, right))
    arrays = [value.array if isinstance(value, Chunk) else value for value in (left, right)]
    (array,) = run.bind(equation, arrays)
    return run.make(array, axis, like.timeline, like.delay, reach)


def _over_time(run: Pass, equation: JaxprEqn, left: Any, right: Any) -> Any:
    (summed_left, summed_right), _ = equation.params["dimension_numbers"]
    if not isinstance(left, Chunk) or not isinstance(right, Chunk):
        run.refuse("it multiplies a stream with a constant of the recording's length", "use a kernel of fixed length")
    left, right = run.together(run.spread(left), run.spread(right))
    paired = (left.axis, right.axis) in zip(summed_left, summed_right, strict=True)
    if not paired or left.outer != right.outer:
        run.refuse("it sums over the time axis of one operand only", "sum over time in both operands")
    assert left.delay is not None
    arrays = [run.fill(left, 0).array, run.fill(right, 0).array]
    if run.local:
        return run.bind(equation, arrays)
    reach = union([left.reach, right.reach])
    dtype = type_of(equation.outvars[0])
    (part,) = run.bind(equation, arrays, preferred_element_type=carried_as("sum", dtype))
    total = Total(run, "sum", part.shape, dtype, left.timeline, left.delay)
    return FinalValue(total.after(part), reach=reach and reach.of_all)


def fft(run: Pass, equation: JaxprEqn, x: Chunk) -> list[Chunk]:
    """Stream a Fourier transform inside each frame."""
    if x.axis >= x.array.ndim - len(equation.params["fft_lengths"]):
        run.refuse("it transforms the whole recording at once", "cut the recording into windows first")
    return run.frame_by_frame(equation, x)


def top_k(run: Pass, equation: JaxprEqn, x: Chunk) -> list[Chunk]:
    """Stream the largest elements of each frame."""
    if equation.params.get("axis", -1) % x.array.ndim == x.axis:
        run.refuse(
            "it orders all frames, which are known only when the stream has ended",
            "work along another axis, or over a window of fixed length",
        )
    return run.frame_by_frame(equation, x)


def sort(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Chunk]:
    """Stream sorting inside each frame."""
    arrays, like = align(run, operands)
    if equation.params["dimension"] == like.axis:
        run.refuse("it sorts all frames", "sort along another axis")
    shape = jnp.broadcast_shapes(*(array.shape for array in arrays))
    results = run.bind(equation, [jnp.broadcast_to(array, shape) for array in arrays])
    return [run.same(like, result) for result in results]


def argument(run: Pass, equation: JaxprEqn, x: Chunk) -> list[Any]:
    """Stream the index of the largest or smallest element, of each frame or over time."""
    (axis,) = equation.params["axes"]
    if axis != x.axis:
        return run.frame_by_frame(equation, x, axis=x.axis - (axis < x.axis))
    if x.outer != 1:
        run.refuse("it runs over an axis that merges time with another axis", "split the axes first")
    x = run.spread(x)
    assert x.delay is not None
    largest = equation.primitive.name == "argmax"
    least = identity_of("max" if largest else "min", x.array.dtype)
    frames = run.fill(x, least).array
    dtype = type_of(equation.outvars[0])
    (place,) = run.bind(equation, [frames])
    best = jnp.take_along_axis(frames, jnp.expand_dims(place, axis), axis).squeeze(axis)
    numbers = frame_numbers_at(run, x.timeline, x.delay, dtype)
    # If all elements of a chunk are equal, the first element may belong to a frame before frame 0.
    place = jnp.maximum(jnp.take(numbers, place), 0)
    extreme, old = run.carry("extreme", lambda: jnp.full(best.shape, least, best.dtype))
    name, where = run.carry("place", lambda: jnp.zeros(place.shape, dtype))
    better = (best > old) if largest else (best < old)
    better = better | ((best != best) & (old == old))  # the first NaN wins
    first = jnp.where(better, place, where)
    run.store(extreme, jnp.where(better, best, old), x.timeline, x.delay)
    run.store(name, first, x.timeline, x.delay)
    run.facts.sinks.append((x.timeline, x.delay))
    return [FinalValue(first, reach=x.reach and x.reach.of_all)]


RULES: dict[str, Any] = {
    **{f"cum{name}": cumulative for name in ("sum", "prod", "max", "min", "logsumexp")},
    **{f"reduce_{name}": reduction for name in ("sum", "prod", "max", "min", "and", "or", "xor")},
    "dot_general": dot_general,
    "fft": fft,
    "top_k": top_k,
    "sort": sort,
    "argmax": argument,
    "argmin": argument,
}
