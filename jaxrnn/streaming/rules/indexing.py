"""Rules for gathers and dynamic slices: static indices along time, any indices along other axes."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.streaming.dimensions import (
    constant_value,
    in_shape,
    is_symbolic,
    magnitude_of,
    out_shape,
    symbolic_axes,
    value_of,
)
from jaxrnn.streaming.interpreter import interpret
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rules.elementwise import refuse_final_values
from jaxrnn.streaming.rules.frames import per_frame
from jaxrnn.streaming.rules.scatters import numbered_frames
from jaxrnn.streaming.rules.time import Table, as_table, pick, take
from jaxrnn.streaming.rules.windows import Window, framed
from jaxrnn.streaming.values import Chunk, Deferred, FinalValue, along, is_length, is_static, static_integer

_ORDER = "it reads frames in an order that is not a fixed step forward"
_HINT = "read frames at fixed positions, at a fixed step, or up to a fixed distance from the end"


def dynamic_slice(run: Pass, equation: JaxprEqn, x: Any, *starts: Any) -> Chunk | FinalValue:
    """Stream a dynamic slice; its start must be static along time."""
    if not isinstance(x, Chunk) and not symbolic_axes(out_shape(equation)):
        run.refuse("it slices a constant at a position that moves with time", "compute the slice frame by frame")
    x = as_table(run, x, out_shape(equation))
    sizes = list(equation.params["slice_sizes"])
    start = static_integer(starts[x.axis])
    others = [value for index, value in enumerate(starts) if index != x.axis]
    refuse_final_values(run, others)
    if start is None or any(isinstance(value, Chunk) for value in others):
        run.refuse("its first frame is not known while tracing", _HINT)
    taken = take(run, x, start, 1, sizes[x.axis])
    sizes[x.axis] = taken.array.shape[x.axis]
    begins = [0 if index == x.axis else value for index, value in enumerate(starts)]
    array = lax.dynamic_slice(taken.array, [jnp.asarray(value, jnp.int32) for value in begins], sizes)
    if isinstance(taken, FinalValue):
        return taken.holding(array)
    return run.make(array, x.axis, taken.timeline, taken.delay, taken.reach)


def gather(run: Pass, equation: JaxprEqn, x: Any, indices: Any) -> Chunk | FinalValue:
    """Stream indexing: slices and steps along time, any indices along other axes, and tables indexed by a stream."""
    if isinstance(x, Deferred):
        raise x.error
    if isinstance(indices, Deferred):
        if indices.backwards:
            raise indices.error
        run.refuse(_ORDER, _HINT)
    refuse_final_values(run, [x] if is_static(indices) else [x, indices])
    indices = run.on_time(indices)
    if not (isinstance(x, Chunk) and isinstance(indices, Chunk) and indices.affine is not None):
        x = run.on_time(x)
    numbers = equation.params["dimension_numbers"]
    sizes = list(equation.params["slice_sizes"])
    if not isinstance(x, Chunk):
        if isinstance(indices, Chunk) or not symbolic_axes(sizes):
            return _look_up(run, equation, x, indices)
        x = as_table(run, x, sizes)
    axis = x.axis
    if isinstance(x, Chunk) and isinstance(indices, Chunk) and indices.clipped is not None:
        x, indices = _with_edges(run, equation, x, indices)
    if isinstance(x, Chunk) and isinstance(indices, Chunk) and _is_frame_by_frame(numbers, x, indices):
        x = run.on_time(x)
        return _in_each_frame(run, equation, x, indices)
    if isinstance(x, Chunk) and isinstance(indices, Chunk) and axis in numbers.collapsed_slice_dims:
        found = numbered_frames(run, x, indices, numbers.start_index_map)
        if found is not None:
            return _in_numbered_frames(run, equation, *found)
    if axis in numbers.operand_batching_dims or (
        isinstance(indices, Chunk) and not (indices.affine and axis in numbers.collapsed_slice_dims)
    ):
        run.refuse("it reads frames at indices that depend on the stream", _HINT)
    if isinstance(indices, Chunk):
        assert isinstance(x, Chunk)
        return _frames(run, equation, x, indices)
    taken: Any = x
    if axis in numbers.start_index_map:
        column = numbers.start_index_map.index(axis)
        if isinstance(x, Table):
            pass
        elif numbers.start_index_map == (axis,) and axis in numbers.collapsed_slice_dims and _is_fixed(indices):
            return _static_frames(run, equation, x, indices)
        elif numbers.start_index_map == (axis,) and axis in numbers.collapsed_slice_dims and is_length(indices):
            return _last_frames(run, equation, x, indices)
        if not is_static(indices) or np.ndim(indices) != 1 or axis in numbers.collapsed_slice_dims:
            run.refuse("its frame indices are not known while tracing", _HINT)
        taken = take(run, x, static_integer(np.asarray(indices)[column : column + 1]), 1, sizes[axis])
        indices = np.array([0 if place == column else value for place, value in enumerate(indices)], np.int32)
        whole = all(
            size == old for d, (size, old) in enumerate(zip(sizes, in_shape(equation), strict=True)) if d != axis
        )
        if (
            isinstance(taken, Chunk)
            and whole
            and numbers.start_index_map == (axis,)
            and not numbers.collapsed_slice_dims
        ):
            return taken
    elif isinstance(x, Table):
        taken = take(run, x, 0, 1, sizes[axis])
    sizes[axis] = taken.array.shape[axis]
    (array,) = run.bind(equation, [taken.array, indices], slice_sizes=tuple(sizes))
    if isinstance(taken, FinalValue):
        return taken.holding(array)
    kept = [d for d in range(len(sizes)) if d not in {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}]
    return run.make(array, numbers.offset_dims[kept.index(axis)], taken.timeline, taken.delay, taken.reach)


def _is_frame_by_frame(numbers: Any, x: Chunk, indices: Chunk) -> bool:
    """Return True if each frame of the indices applies to the same frame of the stream."""
    pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    return (x.axis, indices.axis) in pairs and x.outer == indices.outer


def _in_each_frame(run: Pass, equation: JaxprEqn, x: Chunk, indices: Chunk) -> Chunk:
    """Index inside each frame, with indices that may differ from frame to frame."""
    batch = [d for d in range(len(out_shape(equation))) if d not in equation.params["dimension_numbers"].offset_dims]
    indices = run.fill(run.spread(indices), 0)
    return per_frame(run, equation, (x, indices), (x.axis, indices.axis), batch[indices.axis])[0]


def _in_numbered_frames(run: Pass, equation: JaxprEqn, x: Chunk, indices: Chunk, others: Any) -> Chunk:
    """Index inside frames, as in ``x[jnp.arange(n), places]``."""
    numbers = equation.params["dimension_numbers"]
    changed = numbers._replace(
        collapsed_slice_dims=tuple(d for d in numbers.collapsed_slice_dims if d != x.axis),
        start_index_map=others,
        operand_batching_dims=(*numbers.operand_batching_dims, x.axis),
        start_indices_batching_dims=(*numbers.start_indices_batching_dims, indices.axis),
    )
    batch = [d for d in range(len(out_shape(equation))) if d not in numbers.offset_dims]
    indices = run.fill(run.spread(indices), 0)
    out = batch[indices.axis]
    return per_frame(run, equation, (x, indices), (x.axis, indices.axis), out, dimension_numbers=changed)[0]


def _static_frames(run: Pass, equation: JaxprEqn, x: Chunk, indices: Any) -> FinalValue:
    """Take frames with static numbers; a missing frame is NaN or the last frame, as the mode of the gather says."""
    first, end = pick(run, x, 0, 1, int(np.max(indices)) + 1), run.end(x.timeline)
    places = jnp.asarray(indices)
    (array,) = run.bind(
        equation, [first.array, places if end is None else jnp.minimum(places, (end - 1).astype(places.dtype))]
    )
    fills = equation.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP and jnp.issubdtype(array.dtype, jnp.inexact)
    low = int(np.min(indices))
    first = dataclasses.replace(first, reach=x.reach and x.reach.picked(low, 1, int(np.max(indices)) + 1 - low))
    if end is None or not fills:
        return first.holding(array)
    batch = [d for d in range(array.ndim) if d not in equation.params["dimension_numbers"].offset_dims]
    shape = [array.shape[d] if d in batch else 1 for d in range(array.ndim)]
    return first.holding(jnp.where((places[..., 0] < end).reshape(shape), array, jnp.nan))


def _last_frames(run: Pass, equation: JaxprEqn, x: Chunk, indices: Any) -> FinalValue:
    """Take frames at static distances from the end."""
    back = [x.timeline.size - number for number in indices.reshape(-1)]
    if any(is_symbolic(distance) or distance < 1 for distance in back):
        run.refuse("it reads frames at positions that move with the stream", _HINT)
    most = max(map(int, back))
    last, end = pick(run, x, x.timeline.size - most, 1, most), run.end(x.timeline)
    places = most - np.asarray(back, np.int32).reshape(indices.shape)
    # A recording with fewer frames gives its first frames; indices before these frames are out of bounds.
    short = 0 if end is None else jnp.clip(most - end, 0)
    (array,) = run.bind(equation, [last.array, jnp.asarray(places, jnp.int32) - jnp.asarray(short, jnp.int32)])
    return last.holding(array)


def _is_fixed(indices: Any) -> bool:
    """Return True for static frame numbers, counted from the first frame."""
    return is_static(indices) and not is_length(indices) and np.size(indices) > 0 and bool(np.all(indices >= 0))


def _frames(run: Pass, equation: JaxprEqn, x: Chunk, indices: Chunk) -> Chunk:
    """Take frames whose numbers grow by a fixed step: every second frame, or windows of frames with a hop."""
    numbers = equation.params["dimension_numbers"]
    sizes, rank = equation.params["slice_sizes"], len(out_shape(equation))
    assert indices.affine is not None
    hop, offsets = indices.affine
    plain = (
        numbers.start_index_map == (x.axis,)
        and offsets.shape[-1] == 1
        and indices.axis < indices.array.ndim - 1
        and hop > 0
        and np.all(offsets >= 0)
        and all(size == x.array.shape[d] for d, size in enumerate(sizes) if d != x.axis)
    )
    if not plain or not _inside(x, in_shape(equation, 1)[indices.axis], hop, int(np.max(offsets))):
        run.refuse(_ORDER, _HINT)
    low = int(np.min(offsets))
    window = Window(length=int(np.max(offsets)) - low + 1, stride=hop, dilation=1, spacing=1, low=-low)
    size = in_shape(equation, 1)[indices.axis]
    part = framed(run, x, window, 0, 0, size)
    timeline = run.clock.timeline(size)
    shape = [*indices.array.shape[:-1]]
    shape[indices.axis] = 1
    each = np.broadcast_to(offsets[..., 0] - low, shape)
    places = each + along(np.arange(run.frames_of(timeline)) * hop, indices.axis, each.ndim)
    array = jnp.take(part.frames, jnp.asarray(places, jnp.int32), part.axis)
    # The axes of the indices replace the time axis. In the result, these axes are the batch axes of the gather.
    batch = [d for d in range(rank) if d not in numbers.offset_dims]
    order = list(numbers.offset_dims)
    order[part.axis : part.axis] = batch
    array = jnp.moveaxis(array, range(rank), order)
    return run.make(array, batch[indices.axis], timeline, part.delay, part.reach)


def _with_edges(run: Pass, equation: JaxprEqn, x: Chunk, indices: Chunk) -> tuple[Chunk, Chunk]:
    """Return a stream with repeated first and last frames, and the numbers of frames without their bounds."""
    assert indices.clipped is not None
    (hop, offsets), low, high = indices.clipped
    size, count = x.timeline.size, in_shape(equation, 1)[indices.axis]
    ends = high is not None and constant_value(high - (size - 1), size) == 0
    # Frames after the end that the last index reads.
    beyond = _largest(hop * (count - 1) + int(np.max(offsets)) - (size - 1), count)
    starts = low == 0 or (low is None and np.all(offsets >= 0))
    if x.outer != 1 or not starts or beyond is None or not (ends or (beyond <= 0 and high is None)):
        run.refuse(_ORDER, _HINT)
    pads = max(0, -int(np.min(offsets))), max(0, beyond)
    shape = list(in_shape(equation))
    config = [pads if axis == x.axis else (0, 0) for axis in range(len(shape))]
    padded = jax.make_jaxpr(lambda x: jnp.pad(x, config, mode="edge"))(jax.ShapeDtypeStruct(shape, x.array.dtype))
    (x,) = interpret(run, padded, [x], late=True) if any(pads) else [x]
    return x, dataclasses.replace(indices, affine=(hop, offsets + pads[0]), clipped=None)


def _inside(x: Chunk, size: Any, hop: int, largest: int) -> bool:
    """Return True if all frames exist that the indices read, for every length of the recording."""
    beyond = _largest((size - 1) * hop + largest - x.timeline.size, size)
    return beyond is not None and beyond < 0


def _largest(dimension: Any, size: Any) -> int | None:
    """Return the largest value of a dimension over all lengths with ``size > 0``; None if the dimension grows."""
    far = max(magnitude_of(dimension), magnitude_of(size))
    lengths = np.arange(1, 3 * far + 2)
    values, counts = (np.broadcast_to(value_of(each, lengths), lengths.shape) for each in (dimension, size))
    most = int(np.max(values[counts > 0]))
    return most if np.max(values[: 2 * far][counts[: 2 * far] > 0]) == most else None


def _look_up(run: Pass, equation: JaxprEqn, table: Any, indices: Any) -> Chunk:
    """Index a constant table by a stream, as an embedding does."""
    numbers = equation.params["dimension_numbers"]
    if not isinstance(indices, Chunk) or any(map(is_symbolic, equation.params["slice_sizes"])):
        run.refuse("it slices a constant by a length that grows with the stream", "compute it frame by frame")
    (array,) = run.bind(equation, [table, indices.array])
    rank = array.ndim
    batch = [d for d in range(rank) if d not in numbers.offset_dims]
    return run.make(array, batch[indices.axis], indices.timeline, indices.delay, indices.reach)


RULES = {"dynamic_slice": dynamic_slice, "gather": gather}
