"""Rules for operations on each element, and for positions in time.

Operands with different delays are first delayed to the largest delay. Integers that count frames are tracked exactly
(`jaxrnn.streaming.integers`), because indexing is written with such integers: ``x[::2]`` reads frames ``2 * i``, and
overlapping frames are ``hop * i + arange(size)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Literal

from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.equations import type_of
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.streaming.diagnostics import BOUNDED
from jaxrnn.streaming.dimensions import (
    LARGEST,
    Timeline,
    constant_value,
    symbolic_axes,
    value_of,
)
from jaxrnn.streaming.integers import Index, is_wide
from jaxrnn.streaming.interpreter import RULES
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.reach import Reach, union
from jaxrnn.streaming.values import (
    Chunk,
    Deferred,
    FinalValue,
    Rows,
    along,
    index_after,
    is_fixed,
    is_length,
    reach_of,
    static_number,
)


@RULES.add(kind="elementwise")
def elementwise(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Stream an elementwise operation."""
    entry = entry_of(equation)
    operands = _with_frames(run, operands)
    if any(map(is_length, operands)):
        known = against_the_length(run, equation, operands)
        return [_from_length(run, equation, operands) if known is None else known]
    if singular := singular_operands(equation):
        operands = tuple(
            run.harmless(value, entry.harmless) if place in singular else value for place, value in enumerate(operands)
        )
    arrays, like = align(run, operands)
    if len(arrays) > 2:  # JAX broadcasts one or two operands
        shape = np.broadcast_shapes(*map(np.shape, arrays))
        arrays = [array if np.ndim(array) == 0 else jnp.broadcast_to(array, shape) for array in arrays]
    if entry.arithmetic == "convert" and operands[0].index.growth:
        results = [run.now.cast_positions(arrays[0], operands[0].index.growth, equation.params["new_dtype"])]
    else:
        results = run.bind(equation, arrays)
    return [run.make(result, like.axis, like.timeline, like.delay, like.reach) for result in results]


@RULES.add("select_n", takes=(Deferred,))
def select(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Stream a selection; if all frames take the same case, the result is this case."""
    which, *cases = _with_frames(run, operands)
    case = chosen(which, cases)
    unusable = next((value for value in (which, *cases) if isinstance(value, Deferred)), None)
    if case is not None or unusable is not None:
        return [unusable if case is None else case]
    return elementwise(run, equation, which, *cases)


@RULES.add("div", "rem")
def divide(run: Pass, equation: JaxprEqn, x: Any, divisor: Any) -> list[Any]:
    """Stream a division or a remainder. A lap is a multiple of static divisors, so that remainders stay right."""
    if isinstance(x, Chunk) and is_fixed(divisor) and np.issubdtype(np.asarray(divisor).dtype, np.integer):
        for number in {abs(int(each)) for each in np.unique(divisor)} - {0}:
            run.notes.repeat(number // math.gcd(number, x.timeline.per_unit))
    return elementwise(run, equation, x, divisor)


def singular_operands(equation: JaxprEqn) -> list[int]:
    """Return the places of the operands of an elementwise operation in which the derivative may be singular."""
    entry, atoms = entry_of(equation), equation.invars
    if entry.kind != "elementwise" or entry.harmless is None or equation.params.get("y", -1) > 0:
        return []  # positive powers are smooth
    inexact = [jnp.issubdtype(type_of(atom), jnp.inexact) and not isinstance(atom, Literal) for atom in atoms]
    return [place for place in range(len(atoms))[entry.singular or slice(None)] if inexact[place]]


def align(run: Pass, operands: Sequence[Any]) -> tuple[list[Any], Chunk]:
    """Return the arrays of the operands for the same frames, and a chunk without array that describes the result."""
    chunks = [value for value in operands if isinstance(value, Chunk)]
    like = chunks[0]
    for chunk in chunks[1:]:
        if chunk.axis != like.axis or (str(chunk.timeline.size) != str(like.timeline.size)):
            run.refuse(
                f"its operands have time on axis {like.axis} ({like.timeline.size} frames) and on axis {chunk.axis} "
                f"({chunk.timeline.size} frames)",
                "give both the same time axis and length",
            )
    outers = {chunk.outer for chunk in chunks if chunk.delay is not None} or {max(chunk.outer for chunk in chunks)}
    if len(outers) > 1:
        run.refuse(
            "its operands merge time with another axis in different orders",
            "merge the axes of both in the same order",
        )
    reach = union([*(chunk.reach for chunk in chunks), reach_everywhere(operands, like.timeline)])
    earliest = earliest_delay(run, operands, like.timeline)
    moving = [chunk for chunk in chunks if chunk.delay is not None]
    if not moving and earliest == -LARGEST:
        widest = max(chunks, key=lambda chunk: chunk.array.shape[chunk.axis])
        return [value.array if isinstance(value, Chunk) else value for value in operands], Chunk(
            None, widest.axis, widest.timeline, None, reach
        )
    delay = max([earliest, *(chunk.delay for chunk in moving if chunk.delay is not None)])
    timeline = (moving or chunks)[0].timeline
    arrays = []
    for value in operands:
        if isinstance(value, Chunk):
            if value.delay is None:
                value = Chunk(value.array, value.axis, timeline, None, None)
            value = run.delayed(value, delay).array
        arrays.append(run.unstreamed(value))
    return arrays, Chunk(None, like.axis, timeline, delay, reach)


def earliest_delay(run: Pass, values: Sequence[Any], timeline: Timeline) -> int:
    """Return the smallest delay at which frames may read values that are not streams, such as the first frame.

    Values that are known only when the stream ends are refused.
    """
    delay = -LARGEST
    for value in values:
        if is_length(value):
            raise run.unknown_yet()
        if isinstance(value, FinalValue):
            if value.since is None:
                raise run.unknown_yet()
            # Frame 0 leaves when more units than delay / per_unit have come.
            delay = max(delay, timeline.per_unit * (math.ceil(value.since) - 1))
    return delay


def everywhere(run: Pass, value: Any, axis: int, timeline: Timeline) -> Chunk:
    """Return a chunk in which each frame equals a value that is not a stream; the value has size 1 along `axis`."""
    delay = earliest_delay(run, [value], timeline)
    return run.spread(Chunk(run.unstreamed(value), axis, timeline, None, reach_everywhere([value], timeline)), delay)


def _with_frames(run: Pass, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Turn final values with a time axis into chunks."""
    chunks = [value for value in operands if isinstance(value, Chunk)]
    like = next((chunk for chunk in chunks if chunk.delay is not None), chunks[0] if chunks else None)
    if like is None:
        return tuple(operands)
    return tuple(
        everywhere(run, value, like.axis, like.timeline)
        if isinstance(value, FinalValue) and np.ndim(value.array) == like.array.ndim
        else value
        for value in operands
    )


def reach_everywhere(values: Iterable[Any], timeline: Timeline) -> Reach | None:
    """Return the reach of frames that all read the same values, such as the first frame."""
    reach = reach_of(values)
    return None if reach is None else reach.everywhere(timeline)


def backwards(run: Pass) -> StreamError:
    """Return the error for an operation that reverses time."""
    return run.refusal(
        "it reverses time, so its first frame is the last of the stream",
        "use a model that runs forward in time",
        first=BOUNDED,
    )


def from_the_end(run: Pass) -> StreamError:
    """Return the error for positions that count from the end."""
    return run.refusal(
        "it counts frames from the end, so its first frame is known only when the stream has ended",
        "count from the start, such as jnp.arange(x.shape[0])",
    )


def _from_length(run: Pass, equation: JaxprEqn, operands: Sequence[Any]) -> Rows | Deferred:
    """Return the sum or difference of numbers of frames and a length, or the error of another operation."""
    signs, (x, *_) = entry_of(equation).signs, sorted(operands, key=is_length)
    counts = [value.index.affine for value in operands if isinstance(value, Chunk) and value.index.affine is not None]
    down = min((scale for scale, _ in counts), default=0) < 0
    unknown = Deferred(from_the_end(run) if down else run.unknown_yet(), down)
    if len(operands) != 2 or not signs or not isinstance(x, Chunk) or not counts:
        return unknown
    place = 0 if operands[0] is x else 1
    length, scale, offsets = operands[1 - place], signs[place] * counts[0][0], signs[place] * counts[0][1]
    dtype, axis, rank = type_of(equation.outvars[0]), x.axis, x.array.ndim
    if not is_length(length) or np.size(length) != 1 or abs(scale) != 1 or offsets.size != 1 or not is_wide(dtype):
        return unknown
    total = signs[1 - place] * length.reshape(-1)[0] + int(offsets.flat[0])  # of which the numbers fall, or grow
    constant = int(value_of(total, 0))
    at = lambda differences: along(scale * differences + constant, axis, rank).astype(dtype)  # noqa: E731
    fields: Any = {"size": x.timeline.size, "origin": -scale * (total - constant), "counts": (scale, constant)}
    rows = Rows(from_the_end(run), backwards=scale < 0, axis=axis, at=at, **fields)
    return rows if x.outer == 1 else unknown


def against_the_length(run: Pass, equation: JaxprEqn, operands: Sequence[Any]) -> Chunk | None:
    """Return a comparison of frame numbers with the length, or their minimum; None if the operation is neither.

    Example: a mask of the last frames. The length decides only the last frames, so each frame waits until the result is
    certain.
    """
    place = next(place for place, value in enumerate(operands) if isinstance(value, Chunk))
    chunk, limit = operands[place], operands[1 - place]
    if (fixed := index_after(equation, operands).fixed) is not None:
        shape = [1 if axis == chunk.axis else size for axis, size in enumerate(chunk.array.shape)]
        return run.make(jnp.broadcast_to(jnp.asarray(fixed), shape), chunk.axis, chunk.timeline, None, None)
    entry = entry_of(equation)
    is_least, size = entry.monoid == "min", chunk.timeline.size
    counted = chunk.index.counted if is_least else chunk.index.affine if entry.compares else None
    if counted is None or not is_length(limit) or np.size(limit) != 1 or chunk.outer != 1:
        return None
    scale, offsets = counted
    if scale == 0 or (is_least and scale < 0):
        return None
    beyond = constant_value(scale * size - limit.reshape(-1)[0], size)
    if beyond is None:
        return None
    # The last frame is frame ``size - 1``. In frame ``size``, the number would exceed the limit by this much.
    surplus = offsets + beyond
    # Until the stream has more frames than a lower bound, the length may be below the bound.
    least = [] if chunk.index.low is None else [chunk.index.low + beyond]
    wait = max(0, *(int(each) // scale for each in (*surplus.flat, *least)))
    chunk = run.spread(chunk)
    timeline = chunk.timeline
    delay = max(chunk.delay or 0, timeline.certain + wait)
    end, where = run.now.end(timeline), run.now.indices(timeline, delay)
    if is_least:
        x = run.delayed(chunk, delay)
        most = run.unstreamed(limit).reshape(()).astype(x.array.dtype)
        return run.same(x, x.array if end is None else jnp.minimum(x.array, most))
    left = np.full(where.shape, wait + 1) if end is None else end - where
    difference = jnp.asarray(surplus, jnp.int32) - along(jnp.asarray(left, jnp.int32) * scale, chunk.axis, surplus.ndim)
    zero = jnp.zeros_like(difference)
    (outcome,) = run.bind(equation, [difference, zero] if place == 0 else [zero, difference])
    shape = [run.frames_of(timeline) if axis == chunk.axis else size for axis, size in enumerate(chunk.array.shape)]
    return run.make(jnp.broadcast_to(outcome, shape), chunk.axis, timeline, delay, None)


def chosen(predicate: Any, cases: Sequence[Any]) -> Any:
    """Return the stream that a selection takes in all frames; None if the choice is not static or not a stream."""
    fixed = predicate.index.fixed if isinstance(predicate, Chunk) else None
    which = None if fixed is None else static_number(fixed)
    case = None if which is None else cases[int(which)]
    return case if isinstance(case, Chunk) else None


@RULES.add("iota")
def iota(run: Pass, equation: JaxprEqn) -> Chunk:
    """Count along time, or along a different axis, where all frames are equal."""
    shape, dimension = list(equation.params["shape"]), equation.params["dimension"]
    dtype = equation.params["dtype"]
    (axis,) = symbolic_axes(shape)
    size, shape[axis] = shape[axis], 1
    if dimension != axis:
        return run.make(lax.broadcasted_iota(dtype, shape, dimension), axis, run.clock.timeline(size), None, None)
    return frame_numbers(run, size, dtype, axis, shape)


def frame_numbers(run: Pass, size: Any, dtype: Any, axis: int = 0, others: Sequence[int] = (1,)) -> Chunk:
    """Return the number of each frame of an axis, in a shape with other axes."""
    timeline, shape = run.clock.timeline(size), list(others)
    delay = timeline.certain
    frames = frame_numbers_at(run, timeline, delay, dtype)
    shape[axis] = run.frames_of(timeline)
    array = jnp.broadcast_to(along(frames, axis, len(shape)), shape)
    with run.growing_by(timeline.per_unit if is_wide(dtype) else 0):
        chunk = run.make(array, axis, timeline, delay, None)
    return chunk.noting(Index.counting(dtype, len(shape), size))


def frame_numbers_at(run: Pass, timeline: Timeline, delay: int, dtype: Any) -> Any:
    """Return the number of each frame of a chunk as an array."""
    run.notes.repeat(1, timeline.per_unit)
    now, before = run.now, run.now.counted()
    first = jnp.asarray(now.count if isinstance(now.count, int) else before, before.dtype)
    first = first * np.asarray(timeline.per_unit, first.dtype) - np.asarray(delay, first.dtype)
    return now.cast_positions(first + jnp.arange(run.frames_of(timeline), dtype=first.dtype), timeline.per_unit, dtype)


@RULES.add("dim_as_value")
def dim_as_value(run: Pass, equation: JaxprEqn) -> np.ndarray:
    """Return the length as a static value, a symbolic dimension in an object array."""
    boxed = np.empty((), object)
    boxed[()] = equation.params["dim"]
    return boxed
