"""Rules for reductions and running totals, and for operations inside each frame: products, transforms, linear algebra.

A reduction over time returns a `FinalValue`, which is known when the stream ends. A running total carries the total
up to the last frame as state. An equation with time as a batch axis applies directly to a chunk (`per_frame`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import trace, type_of
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.streaming.diagnostics import BOUNDED
from jaxrnn.streaming.dimensions import in_shape, out_shape, symbolic_axes
from jaxrnn.streaming.integers import is_held_by_all
from jaxrnn.streaming.interpreter import ALWAYS, RULES, interpret
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.reach import union
from jaxrnn.streaming.rules.elementwise import (
    align,
    earliest_delay,
    frame_numbers_at,
    reach_everywhere,
)
from jaxrnn.streaming.totals import Total, carried_as, identity_of, join_of
from jaxrnn.streaming.values import Chunk, FinalValue, known_at_end


@RULES.add(kind="cumulative")
def cumulative(run: Pass, equation: JaxprEqn, x: Chunk) -> Chunk | list[Chunk]:
    """Stream running totals; along time, the state carries the total."""
    if equation.params["axis"] != x.axis:
        return run.frame_by_frame(equation, x)
    if equation.params["reverse"]:
        run.refuse("it runs backwards in time, from the last frame", "run forwards in time", first=BOUNDED)
    if x.outer != 1:
        run.refuse("it runs over an axis that merges time with another axis", "split the axes first")
    kind = entry_of(equation).monoid
    step = None if x.delay is not None or not is_held_by_all(x.array.dtype) else x.index.number
    if kind == "sum" and step is not None:  # a sum of ones counts frames
        one, number = np.asarray(1, x.array.dtype), np.asarray(step, x.array.dtype)
        count = lambda: (lax.broadcasted_iota(one.dtype, out_shape(equation), x.axis) + one) * number  # noqa: E731
        return interpret(run, trace(count)[0], [])[0]
    x = run.spread(x)
    assert x.delay is not None
    frames = run.fill(x, identity_of(kind, x.array.dtype)).array
    shape = [1 if axis == x.axis else size for axis, size in enumerate(frames.shape)]
    total = Total(run, kind, shape, frames.dtype, x.timeline, x.delay)
    running = total.after_each(frames, x.axis, lambda array: run.bind(equation, [array])[0])
    return run.make(running, x.axis, x.timeline, x.delay, x.reach and x.reach.unbounded)


@RULES.add(kind="reduction")
def reduction(run: Pass, equation: JaxprEqn, x: Chunk) -> Any:
    """Stream a reduction over time, or over other axes in each frame."""
    axes = equation.params["axes"]
    if x.axis not in axes:
        return run.frame_by_frame(equation, x, axis=x.axis - sum(other < x.axis for other in axes))
    # Equal reductions of the same frames are the same value.
    lineage = equation.primitive.name, str(equation.params), x.lineage, x.timeline, x.delay
    x = run.spread(x)
    assert x.delay is not None
    kind = entry_of(equation).monoid
    frames = run.fill(x, identity_of(kind, x.array.dtype)).array

    def reduced(array: Any, axes: Sequence[int]) -> Any:
        return run.bind(equation, [array], axes=tuple(axes))[0]

    if run.local:
        return FinalValue(reduced(frames, axes))
    shape = [size for axis, size in enumerate(frames.shape) if axis not in axes]
    total = Total(run, kind, shape, frames.dtype, x.timeline, x.delay)
    result = total.after_all(frames, axes, x.axis, reduced)
    return FinalValue(result, reach=x.reach and x.reach.of_all, lineage=lineage)


@RULES.add("reduce")
def reduction_by_function(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Chunk]:
    """Stream a reduction of each frame with any function."""
    axis, axes = _time_of(operands), equation.params["dimensions"]
    if axis in axes:
        run.refuse(
            "it combines all frames with a function that is not a known associative operation",
            "reduce with addition, multiplication, a maximum or a minimum, or combine frames with jax.lax.scan",
        )
    return within_frames(run, equation, *operands, out=axis - sum(other < axis for other in axes))


@RULES.add("dot_general")
def dot_general(run: Pass, equation: JaxprEqn, left: Any, right: Any) -> Any:
    """Stream a product, with time as a free, batch or contracting axis."""
    (summed_left, summed_right), _ = equation.params["dimension_numbers"]
    axes = [value.axis if isinstance(value, Chunk) else None for value in (left, right)]
    if axes[0] in summed_left or axes[1] in summed_right:
        return _over_time(run, equation, left, right)
    (axis,) = symbolic_axes(out_shape(equation))
    if isinstance(left, Chunk) and isinstance(right, Chunk):
        # Time is a batch axis of both operands; otherwise the result would have two time axes.
        return per_frame(run, equation, (left, right), axes, axis)
    like = left if isinstance(left, Chunk) else right
    if known_at_end((left, right)):
        like = run.delayed(run.spread(like), earliest_delay(run, [left, right], like.timeline))
    reach = union([like.reach, reach_everywhere([left, right], like.timeline)])
    arrays = [like.array if isinstance(value, Chunk) else run.unstreamed(value) for value in (left, right)]
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
        return FinalValue(*run.bind(equation, arrays))
    reach = union([left.reach, right.reach])
    dtype = type_of(equation.outvars[0])
    # XLA's CPU backend refuses some products of bfloat16 that accumulate in float32.
    arrays = [array.astype(carried_as("sum", array.dtype)) for array in arrays]
    (part,) = run.bind(equation, arrays, preferred_element_type=carried_as("sum", dtype))
    total = Total(run, "sum", part.shape, dtype, left.timeline, left.delay)
    return FinalValue(total.after(part), reach=reach and reach.of_all)


def total_by_place(run: Pass, equation: JaxprEqn, x: Any, indices: Chunk, updates: Chunk) -> FinalValue:
    """Combine all frames, each at its places of a constant, as `jnp.bincount` and `jax.ops.segment_sum` do."""
    if indices.outer != 1 or updates.outer != 1:
        run.refuse("its time axis is merged with another axis", "scatter before the axes are merged")
    indices, updates = run.together(run.spread(indices), run.spread(updates))
    assert updates.delay is not None
    kind, dtype = entry_of(equation).monoid, updates.array.dtype
    nothing = jnp.full(in_shape(equation), identity_of(kind, dtype), dtype)
    # A frame that does not exist adds nothing, at any place: places are neither sorted nor unique then.
    arrays = [nothing, run.fill(indices, 0).array, run.fill(updates, identity_of(kind, dtype)).array]
    (part,) = run.bind(equation, arrays, unique_indices=False, indices_are_sorted=False)
    if not run.local:
        part = Total(run, kind, part.shape, dtype, updates.timeline, updates.delay).after(part)
    reach = union([indices.reach, updates.reach])
    return FinalValue(join_of(kind)(run.unstreamed(x), part), reach=reach and reach.of_all)


@RULES.add("ragged_dot_general")
def ragged_dot(run: Pass, equation: JaxprEqn, left: Any, right: Any, sizes: Any) -> list[Chunk]:
    """Stream a product of groups of rows, in each frame."""
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (summed, _), (batch, _) = numbers.dot_dimension_numbers
    is_free = isinstance(left, Chunk) and left.axis not in (*summed, *numbers.lhs_ragged_dimensions, *batch)
    if not is_free or isinstance(right, Chunk) or isinstance(sizes, Chunk):
        run.refuse("its groups or sums contain frames, or its matrices change with time", "multiply in each frame")
    (out,) = symbolic_axes(out_shape(equation))
    return within_frames(run, equation, left, right, sizes, out=out)


@RULES.add("fft")
def fft(run: Pass, equation: JaxprEqn, x: Chunk) -> list[Chunk]:
    """Stream a Fourier transform inside each frame."""
    if x.axis >= x.array.ndim - len(equation.params["fft_lengths"]):
        run.refuse("it transforms the whole recording at once", "cut the recording into windows first")
    return run.frame_by_frame(equation, x)


@RULES.add("top_k", "approx_top_k")
def top_k(run: Pass, equation: JaxprEqn, x: Chunk) -> list[Chunk]:
    """Stream the largest elements of each frame, exact or approximate."""
    axis = equation.params.get("axis", equation.params.get("reduction_dimension", -1))
    if axis % x.array.ndim == x.axis:
        run.refuse(
            "it orders all frames, which are known only when the stream has ended",
            "work along another axis, or over a window of fixed length",
        )
    return run.frame_by_frame(equation, x)


@RULES.add("sort")
def sort(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Chunk]:
    """Stream sorting inside each frame."""
    arrays, like = align(run, operands)
    if equation.params["dimension"] == like.axis:
        run.refuse("it sorts all frames", "sort along another axis")
    shape = jnp.broadcast_shapes(*(array.shape for array in arrays))
    results = run.bind(equation, [jnp.broadcast_to(array, shape) for array in arrays])
    return [run.same(like, result) for result in results]


@RULES.add("argmax", "argmin")
def argument(run: Pass, equation: JaxprEqn, x: Chunk) -> list[Any]:
    """Stream the index of the largest or smallest element, of each frame or over time."""
    (axis,) = equation.params["axes"]
    if axis != x.axis:
        return run.frame_by_frame(equation, x, axis=x.axis - (axis < x.axis))
    if x.outer != 1:
        run.refuse("it runs over an axis that merges time with another axis", "split the axes first")
    dtype = type_of(equation.outvars[0])
    if jnp.iinfo(dtype).bits < 32:  # of equal elements, the first may not have the smallest place
        run.refuse(
            f"its places are {dtype.name}, which does not hold the numbers of all frames", "cast places of int32"
        )
    x = run.spread(x)
    assert x.delay is not None
    kind = entry_of(equation).monoid
    least = identity_of(kind, x.array.dtype)
    frames = run.fill(x, least).array
    (place,) = run.bind(equation, [frames])
    best = jnp.take_along_axis(frames, jnp.expand_dims(place, axis), axis).squeeze(axis)
    numbers = frame_numbers_at(run, x.timeline, x.delay, dtype)
    # If all elements of a chunk are equal, the first element may belong to a frame before frame 0.
    place = jnp.maximum(jnp.take(numbers, place), 0)
    extreme, old = run.carry("extreme", lambda: jnp.full(best.shape, least, best.dtype))
    name, where = run.carry("place", lambda: jnp.zeros(place.shape, dtype))
    better = (best > old) if kind == "max" else (best < old)
    better = better | ((best != best) & (old == old))  # the first NaN wins
    first = jnp.where(better, place, where)
    run.store(extreme, jnp.where(better, best, old), x.timeline, x.delay)
    run.store(name, first, x.timeline, x.delay)
    run.notes.complete(x.timeline, x.delay)
    return [FinalValue(first, reach=x.reach and x.reach.of_all)]


def per_frame(
    run: Pass, equation: JaxprEqn, operands: Sequence[Any], axes: Sequence[int | None], out: int, **changed: Any
) -> list[Chunk]:
    """Apply an equation in which time is a batch axis, with some parameters changed.

    `axes` has the time axis of each operand, or None, and `out` is the time axis of each result.
    """
    run.refuse_final_values(operands)
    for value, axis in zip(operands, axes, strict=True):
        if isinstance(value, Chunk) and value.axis != axis:
            run.refuse("it mixes frames at different times", "let it work on each frame separately, as under jax.vmap")
    values = run.together(*operands)
    latest = max(
        (value.delay for value in values if isinstance(value, Chunk) and value.delay is not None), default=None
    )
    values = run.together(*(run.spread(value, latest) for value in values))  # equal frames need no buffer
    chunks = [value for value in values if isinstance(value, Chunk)]
    like, reach = chunks[0], union(chunk.reach for chunk in chunks)
    if any(chunk.outer != like.outer for chunk in chunks):
        run.refuse("its operands merge time with another axis in different orders", "merge both in the same order")
    arrays = [value.array if isinstance(value, Chunk) else value for value in values]
    return [run.make(array, out, like.timeline, like.delay, reach) for array in run.bind(equation, arrays, **changed)]


def _time_of(operands: Sequence[Any]) -> int:
    """Return the time axis of the first streamed operand."""
    return next(value.axis for value in operands if isinstance(value, Chunk))


def within_frames(run: Pass, equation: JaxprEqn, *operands: Any, out: int | None = None) -> list[Chunk]:
    """Apply an equation to operands with the same time axis, in each frame; `out` is the time axis of the results."""
    axis = _time_of(operands)
    axes = [axis if isinstance(value, Chunk) else None for value in operands]
    return per_frame(run, equation, operands, axes, axis if out is None else out)


@RULES.add("triangular_solve")
def triangular_solve(run: Pass, equation: JaxprEqn, matrix: Any, right: Any) -> list[Chunk]:
    """Solve a triangular system in each frame; frames may also be the columns of the right side."""
    columns = len(in_shape(equation)) - (1 if equation.params["left_side"] else 2)
    if isinstance(matrix, Chunk) or right.axis != columns:
        return linear_algebra(run, equation, matrix, right)
    return within_frames(run, equation, matrix, right)


@RULES.add(kind="linear algebra")
def linear_algebra(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Chunk]:
    """Decompose a matrix, or solve a system, in each frame."""
    values = _of_frames(run, equation, operands)
    # A right side may be a tangent, which must stay linear.
    values[0] = run.harmless(values[0], _conditioned(values[0]))
    return within_frames(run, equation, *values)


@RULES.add("tridiagonal_solve")
def tridiagonal_solve(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Chunk]:
    """Solve a system with three diagonals in each frame."""
    *diagonals, right = _of_frames(run, equation, operands)
    values = [run.harmless(value, number) for value, number in zip(diagonals, (0, 1, 0), strict=True)]
    return within_frames(run, equation, *values, right)


def _of_frames(run: Pass, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    if _time_of(operands) >= len(in_shape(equation)) - entry_of(equation).core:
        run.refuse("it decomposes a matrix of all frames", "decompose a matrix in each frame")
    return run.together(*map(run.spread, operands))


def _conditioned(value: Any) -> np.ndarray:
    """Return a matrix for frames that do not exist; its distinct singular values keep all derivatives finite."""
    rows, columns = np.shape(getattr(value, "array", value))[-2:]
    return np.eye(rows, columns) * np.arange(1, columns + 1)


@RULES.add("custom_linear_solve")
def linear_solve(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Chunk]:
    """Solve a linear system in each frame; derivatives go through the system, and not through the solver."""
    run.refuse_final_values(operands)
    lengths, solvers = equation.params["const_lengths"], equation.params["jaxprs"]
    values = run.together(*map(run.spread, operands))
    ends = list(itertools.accumulate(lengths))
    constants = [values[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    right = values[ends[-1] :]
    if not all(isinstance(value, Chunk) for value in right):
        run.refuse("the right side of its equation is not streamed", "broadcast the right side over time")

    def solver(jaxpr: Any, constants: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        def on_arrays(arrays: list[Any]) -> list[Any]:
            chunks = [chunk.holding(array) for chunk, array in zip(right, arrays, strict=True)]
            # Masks that a pass keeps must not leave the trace of a solver.
            alone = dataclasses.replace(run, state=None, prefix="", stateless=True)
            return [value.array for value in interpret(alone, jaxpr, [*constants, *chunks])]

        return on_arrays

    matrix, _, solve, transposed = (
        None if jaxpr is None else solver(jaxpr, own) for jaxpr, own in zip(solvers, constants, strict=True)
    )
    assert matrix is not None
    assert solve is not None
    backwards = None if transposed is None else lambda _, b: transposed(b)
    arrays = lax.custom_linear_solve(matrix, [value.array for value in right], lambda _, b: solve(b), backwards)
    reach = union(value.reach for value in values if isinstance(value, Chunk))
    return [run.make(array, b.axis, b.timeline, b.delay, reach) for array, b in zip(arrays, right, strict=True)]


@RULES.add(kind="random")
def random(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Chunk]:
    """Draw random numbers in each frame, from keys that depend on the number of the frame."""
    if not any(isinstance(value, Chunk) for value in operands):
        draws_for_all_frames(run, equation)
    return within_frames(run, equation, *operands)


@RULES.add("random_gamma")
def random_gamma(run: Pass, equation: JaxprEqn, key: Any, shape: Any) -> list[Chunk]:
    """Draw from gamma distributions in each frame, from a key of the frame."""
    return within_frames(run, equation, key, shape) if isinstance(key, Chunk) else draws_for_all_frames(run, equation)


@RULES.add("rng_bit_generator")
def draws_for_all_frames(run: Pass, equation: JaxprEqn, *_: Any) -> NoReturn:
    """Refuse random numbers of all frames from a single key."""
    run.refuse("its numbers depend on the number of frames", "draw random numbers outside")


@RULES.add("rng_uniform")
def unrepeatable(run: Pass, equation: JaxprEqn, *operands: Any) -> NoReturn:
    """Refuse random numbers without a key."""
    run.refuse("it draws other numbers whenever it runs", "draw numbers from a key, with jax.random")


ALWAYS.add("rng_uniform")  # a stream would draw again in each step

#: The axis of the parts of an element is never time.
RULES.add("bitcast_convert_type")(Pass.frame_by_frame)
