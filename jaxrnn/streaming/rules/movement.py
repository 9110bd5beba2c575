"""Rules for moving elements along other axes than time, and for gathers and dynamic slices."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import is_key, trace, type_of
from jaxrnn.streaming.dimensions import (
    constant_value,
    gathered_axes,
    in_shape,
    is_symbolic,
    largest_value,
    out_shape,
    symbolic_axes,
)
from jaxrnn.streaming.integers import Index
from jaxrnn.streaming.interpreter import RULES, interpret
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rules.elementwise import (
    align,
    backwards,
    everywhere,
    from_the_end,
)
from jaxrnn.streaming.rules.reductions import per_frame, within_frames
from jaxrnn.streaming.rules.time import (
    RowTable,
    are_inside,
    as_table,
    concatenate_time,
    numbered_frames,
    pick,
    split_time,
    take,
)
from jaxrnn.streaming.rules.windows import Window, framed
from jaxrnn.streaming.values import (
    Chunk,
    Deferred,
    FinalValue,
    Late,
    Rows,
    along,
    is_fixed,
    is_length,
    is_static,
    static_integer,
)


@RULES.add("transpose")
def transpose(run: Pass, equation: JaxprEqn, x: Chunk) -> Chunk:
    """Stream a transpose."""
    permutation = equation.params["permutation"]
    return run.same(x, lax.transpose(x.array, permutation), permutation.index(x.axis))


@RULES.add("broadcast_in_dim")
def broadcast_in_dim(run: Pass, equation: JaxprEqn, x: Any, *_: Any) -> Chunk | Deferred:
    """Stream a broadcast: of a stream along other axes, or of a value along time, where all frames are equal."""
    shape, dimensions = list(equation.params["shape"]), equation.params["broadcast_dimensions"]
    (axis,) = symbolic_axes(shape)
    if isinstance(x, Chunk):
        if dimensions[x.axis] != axis:
            run.refuse("it repeats a stream along a second time axis", "repeat along axes of known size only")
        shape[axis] = x.array.shape[x.axis]
        return run.same(x, lax.broadcast_in_dim(x.array, shape, dimensions), axis)
    if is_length(x):
        return Deferred(run.unknown_yet())
    shape[axis] = 1
    timeline = run.clock.timeline(out_shape(equation)[axis])
    if isinstance(x, FinalValue):
        return everywhere(run, x.holding(lax.broadcast_in_dim(x.array, shape, dimensions)), axis, timeline)
    return run.make(lax.broadcast_in_dim(jnp.asarray(x), shape, dimensions), axis, timeline, None, None)


@RULES.add("reshape")
def reshape(run: Pass, equation: JaxprEqn, x: Chunk, *_: Any) -> Chunk:
    """Stream a reshape; merging axes into time, or splitting axes from time, changes the rate."""
    run.refuse_final_values([x])
    if equation.params["dimensions"] is not None:
        run.refuse("it reorders axes while it reshapes", "transpose first")
    old, new = list(in_shape(equation)), list(out_shape(equation))
    axes = symbolic_axes(new)
    if not axes:
        run.refuse(
            f"its result has the shape {new} for every length",
            "take sizes from the shape of the input; if an exporter fixed the length, export with an open (dynamic) "
            "time axis",
        )
    (axis,) = axes
    whole, parts = ([place for place, size in enumerate(shape) if str(size) != "1"] for shape in (old, new))
    if [str(old[place]) for place in whole] == [str(new[place]) for place in parts]:
        new[axis] = x.array.shape[x.axis]
        return run.same(x, jnp.reshape(x.array, new), axis)
    before, after = math.prod(old[: x.axis]) * x.outer, math.prod(old[x.axis + 1 :])
    before_new, after_new = math.prod(new[:axis]), math.prod(new[axis + 1 :])
    if before * after == 0:
        new[axis] = 1
        return run.make(jnp.zeros(new, x.array.dtype), axis, run.clock.timeline(out_shape(equation)[axis]), None, None)
    if before % before_new:
        run.refuse(
            "it divides the recording into a fixed number of parts, and each starts only when the one before ends",
            "divide the recording into parts of a fixed length",
        )
    timeline = run.clock.timeline(new[axis], before // before_new)
    if after_new == after:
        array, delay, reach = x.array, x.delay, x.reach
    elif after % after_new == 0:  # other axes merge into time: more frames
        x = run.spread(x)
        times = after // after_new
        array, delay = x.array, (x.delay or 0) * times
        reach = x.reach and x.reach.merged(timeline, times)
    elif after_new % after == 0:  # time splits into frames of frames: fewer frames
        x = run.spread(x)
        times = after_new // after
        assert x.delay is not None
        delay = -(-x.delay // times)
        array = run.delayed(x, delay * times).array
        reach = x.reach and x.reach.split(timeline, times)
    else:
        run.refuse("its output frames do not contain whole input frames", "group whole frames")
    # If all frames are equal, the array has one frame for each stream that shares the axis, or a single frame.
    new[axis] = array.size // (before_new * after_new) if delay is None else timeline.outer * run.frames_of(timeline)
    return run.make(jnp.reshape(array, new), axis, timeline, delay, reach)


@RULES.add("concatenate", takes=(Late,))
def concatenate(run: Pass, equation: JaxprEqn, *operands: Any) -> Any:
    """Stream a concatenation."""
    dimension = equation.params["dimension"]
    if is_symbolic(out_shape(equation)[dimension]):
        return concatenate_time(run, equation, *operands)
    operands = tuple(map(run.on_time, operands))
    arrays, like = align(run, operands)
    arrays = _along_time(arrays, like)
    return run.same(like, lax.concatenate(arrays, dimension))


def _along_time(arrays: list[Any], like: Chunk) -> list[Any]:
    """Broadcast arrays to the same size along time; a single frame represents equal frames."""
    most = max(array.shape[like.axis] for array in arrays)
    result = []
    for array in arrays:
        shape = list(array.shape)
        shape[like.axis] = most
        result.append(jnp.broadcast_to(array, shape))
    return result


@RULES.add("split")
def split(run: Pass, equation: JaxprEqn, x: Chunk) -> list[Any]:
    """Stream a split along any axis."""
    if equation.params["axis"] == x.axis:
        return split_time(run, equation, x)
    return run.frame_by_frame(equation, x)


@RULES.add("tile")
def tile(run: Pass, equation: JaxprEqn, x: Any) -> Any:
    """Stream a repetition along other axes than time, or of a constant along time."""
    if not isinstance(x, Chunk):
        return _over_and_over(run, equation, x)
    if equation.params["reps"][x.axis] != 1:
        run.refuse("its second copy of the recording starts only when the first has ended", "repeat along another axis")
    return run.frame_by_frame(equation, x)


def _over_and_over(run: Pass, equation: JaxprEqn, x: Any) -> Chunk:
    """Repeat a constant along time, cut to the length of the stream."""
    shape, repeats = out_shape(equation), list(equation.params["reps"])
    (axis,) = symbolic_axes(shape)
    run.refuse_final_values([x])
    timeline, period = run.clock.timeline(shape[axis]), np.shape(x)[axis]
    repeats[axis] = 1
    array = jnp.tile(jnp.asarray(x), repeats)
    if period <= 1:
        return run.make(array, axis, timeline, None, None)
    delay = timeline.certain
    assert timeline.per_unit % period == 0  # each pass begins at the same row of the constant
    places = (np.arange(run.frames_of(timeline)) - delay) % period
    return run.make(jnp.take(array, jnp.asarray(places), axis), axis, timeline, delay, None)


@RULES.add("rev")
def rev(run: Pass, equation: JaxprEqn, x: Chunk) -> Any:
    """Stream a reversal of other axes than time."""
    if x.axis not in equation.params["dimensions"]:
        return run.frame_by_frame(equation, x)
    if x.index.affine is None or x.index.affine[1].size != 1:
        raise backwards(run) if x.reach is not None else from_the_end(run)
    return in_reverse(run, equation, x.axis, x.index.affine[0], int(x.index.affine[1].flat[0]))


def in_reverse(run: Pass, equation: JaxprEqn, axis: int, scale: int, first: Any) -> Any:
    """Reverse numbers of frames: row r is ``scale * r + first``."""
    shape, dtype = out_shape(equation), type_of(equation.outvars[0])

    def reverse() -> Any:
        down = lax.broadcasted_iota(dtype, shape, axis) * np.asarray(-scale, dtype)
        return down + jnp.asarray(scale * (shape[axis] - 1) + first, dtype)

    return interpret(run, trace(reverse)[0], [])[0]


_ORDER = "it reads frames in an order that is not a fixed step forward"
_STREAMED_INDICES = "it reads frames at indices that depend on the stream"
_HINT = "read frames at fixed positions, at a fixed step, or up to a fixed distance from the end"


_CARRIED = (
    "to repeat the last valid frame, carry the frame: jaxrnn.signal.associative_scan(lambda a, b: "
    "(jnp.where(b[1], b[0], a[0]), a[1] | b[1]), (x, valid))[0]"
)


@RULES.add("dynamic_slice", takes=(Late,))
def dynamic_slice(run: Pass, equation: JaxprEqn, x: Any, *starts: Any) -> Any:
    """Stream a dynamic slice; the start must be static along time."""
    if not isinstance(x, Chunk) and not symbolic_axes(out_shape(equation)):
        run.refuse("it slices a constant at a position that moves with time", "compute the slice frame by frame")
    x = as_table(run, x, out_shape(equation))
    sizes = list(equation.params["slice_sizes"])
    start = static_integer(starts[x.axis])
    others = [value for index, value in enumerate(starts) if index != x.axis]
    run.refuse_final_values(others)
    if start is None or any(isinstance(value, Chunk) for value in others):
        is_table = not isinstance(x, Chunk) and not isinstance(starts[x.axis], Chunk)
        hint = "index the table with offset + jnp.arange(x.shape[0]): a slice would begin earlier near the table's end"
        run.refuse("its first frame is not known while tracing", hint if is_table else _HINT)
    if isinstance(x, Chunk) and not is_symbolic(sizes[x.axis]):
        x = run.on_time(x)
    taken = take(run, x, start, 1, sizes[x.axis])
    if isinstance(taken, Rows):
        raise taken.error
    is_whole = all(
        size == old for d, (size, old) in enumerate(zip(sizes, in_shape(equation), strict=True)) if d != x.axis
    )
    if isinstance(taken, Chunk) and is_whole:
        return taken
    taken = run.on_time(taken)
    sizes[x.axis] = taken.array.shape[x.axis]
    begins = [0 if index == x.axis else value for index, value in enumerate(starts)]
    array = lax.dynamic_slice(taken.array, [jnp.asarray(value, jnp.int32) for value in begins], sizes)
    if isinstance(taken, FinalValue):
        return taken.holding(array)
    return run.same(taken, array, x.axis)


@RULES.add("dynamic_update_slice")
def dynamic_update_slice(run: Pass, equation: JaxprEqn, x: Any, new: Any, *starts: Any) -> list[Chunk]:
    """Stream the overwriting of a part of each frame; a part with all frames begins at frame 0."""
    whole = out_shape(equation)
    (axis,) = symbolic_axes(whole)
    if str(in_shape(equation, 1)[axis]) != str(whole[axis]) or any(isinstance(value, Chunk) for value in starts):
        run.refuse(
            "it overwrites some frames, or elements at places that move with time",
            "overwrite the same part of each frame",
        )
    return within_frames(run, equation, x, new, *starts)


@RULES.add("gather", takes=(Deferred, Late))
def gather(run: Pass, equation: JaxprEqn, x: Any, indices: Any) -> Any:
    """Stream indexing: slices and steps along time, any indices along other axes, and tables indexed by a stream."""
    if isinstance(x, Deferred):
        raise x.error
    if isinstance(indices, Deferred):
        if indices.backwards:
            raise backwards(run)
        run.refuse(
            f"{_ORDER}, or may be negative, which counts from the end",
            f"keep the numbers at 0 or above, such as jnp.maximum(i - 1, 0); {_HINT}; {_CARRIED}",
        )
    run.refuse_final_values([x] if is_static(indices) else [x, indices])
    indices = run.on_time(indices)
    if isinstance(indices, Chunk) and indices.index.affine is None:
        x = run.on_time(x)
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    if not isinstance(x, Chunk):
        if isinstance(indices, Chunk) or not symbolic_axes(sizes):
            return _look_up(run, equation, x, indices)
        x = as_table(run, x, sizes)
    if isinstance(indices, Chunk):
        assert isinstance(x, Chunk)
        return _at_streamed_indices(run, equation, x, indices)
    if x.axis in numbers.operand_batching_dims:
        run.refuse(_STREAMED_INDICES, _HINT)
    return _at_constant_indices(run, equation, x, indices)


def _at_streamed_indices(run: Pass, equation: JaxprEqn, x: Chunk, indices: Chunk) -> Chunk:
    """Index a stream by a second stream."""
    numbers = equation.params["dimension_numbers"]
    is_dropped = x.axis in numbers.collapsed_slice_dims
    if indices.index.counted is not None and indices.index.affine is None:
        if equation.params["slice_sizes"][x.axis] != 1:
            run.refuse(_STREAMED_INDICES, f"{_HINT}; {_CARRIED}")  # a window begins at the bound
        x, indices = _with_edges(run, equation, x, indices)
    # Each frame of the indices may apply to the same frame of the stream.
    pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    if (x.axis, indices.axis) in pairs and x.outer == indices.outer:
        return _in_each_frame(run, equation, run.on_time(x), indices)
    is_alone = numbers.start_index_map == (x.axis,) and not numbers.operand_batching_dims
    found = numbered_frames(run, equation, x, indices, numbers.start_index_map) if is_dropped and not is_alone else None
    if found is not None:
        result, others = _in_numbered_frames(run, equation, *found), indices.index.columns
        inside = [
            each.fixed is not None and np.all((each.fixed >= 0) & (each.fixed < in_shape(equation)[axis]))
            for each, axis in zip(others, numbers.start_index_map, strict=bool(others))
            if axis != x.axis
        ]
        is_same = all(inside) and found[0].index.of_pairs.affine is not None  # in all elements of a frame
        return result.noting(found[0].index.placed((), result.array.ndim)) if is_same else result
    if x.axis in numbers.operand_batching_dims or indices.index.affine is None:
        run.refuse(_STREAMED_INDICES, f"{_HINT}; {_CARRIED}")
    return _frames(run, equation, x, indices) if is_dropped else _windows(run, equation, x, indices)


def _at_constant_indices(run: Pass, equation: JaxprEqn, x: Chunk | RowTable, indices: Any) -> Any:
    """Index a stream, or a table, by indices that are the same in each step."""
    numbers, sizes, axis = equation.params["dimension_numbers"], list(equation.params["slice_sizes"]), x.axis
    is_full = all(sizes[d] == old for d, old in enumerate(in_shape(equation)) if d != axis)
    if not is_full or numbers.collapsed_slice_dims or not is_symbolic(sizes[axis]):
        x = run.on_time(x)
    taken: Any = x
    if axis in numbers.start_index_map:
        column, is_alone = numbers.start_index_map.index(axis), numbers.start_index_map == (axis,)
        if isinstance(x, Chunk) and axis in numbers.collapsed_slice_dims:
            if is_fixed(indices) and np.size(indices) > 0 and np.all(indices[..., column] >= 0):
                return _static_frames(run, equation, x, indices, column)
            if is_alone and is_length(indices):
                return _last_frames(run, equation, x, indices)
        if not is_static(indices) or np.ndim(indices) != 1 or axis in numbers.collapsed_slice_dims:
            run.refuse("its frame indices are not known while tracing", _HINT)
        taken = take(run, x, static_integer(np.asarray(indices)[column : column + 1]), 1, sizes[axis])
        indices = np.array([0 if place == column else value for place, value in enumerate(indices)], np.int32)
        if isinstance(taken, Chunk | Rows) and is_full and is_alone and not numbers.collapsed_slice_dims:
            return taken
        if isinstance(taken, Rows):
            raise taken.error
    elif isinstance(x, RowTable):
        taken = take(run, x, 0, 1, sizes[axis])
    taken = run.on_time(taken)
    sizes[axis] = taken.array.shape[axis]
    (array,) = run.bind(equation, [taken.array, indices], slice_sizes=tuple(sizes))
    if isinstance(taken, FinalValue):
        return taken.holding(array)
    kept = [d for d in range(len(sizes)) if d not in {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}]
    return run.same(taken, array, numbers.offset_dims[kept.index(axis)])


def _in_each_frame(run: Pass, equation: JaxprEqn, x: Chunk, indices: Chunk, **changed: Any) -> Chunk:
    """Index inside each frame, with indices that may differ from frame to frame."""
    indices, out = run.fill(run.spread(indices), 0), gathered_axes(equation)[indices.axis]
    return per_frame(run, equation, (x, indices), (x.axis, indices.axis), out, **changed)[0]


def _in_numbered_frames(run: Pass, equation: JaxprEqn, x: Chunk, indices: Chunk, others: Any) -> Chunk:
    """Index inside frames, as in ``x[jnp.arange(n), places]``."""
    numbers = equation.params["dimension_numbers"]
    changed = numbers._replace(
        collapsed_slice_dims=tuple(d for d in numbers.collapsed_slice_dims if d != x.axis),
        start_index_map=others,
        operand_batching_dims=(*numbers.operand_batching_dims, x.axis),
        start_indices_batching_dims=(*numbers.start_indices_batching_dims, indices.axis),
    )
    return _in_each_frame(run, equation, x, indices, dimension_numbers=changed)


def _static_frames(run: Pass, equation: JaxprEqn, x: Chunk, indices: Any, column: int) -> FinalValue:
    """Take frames with static numbers; by the mode, a missing frame is the fill value or the last frame."""
    low, most = int(np.min(indices[..., column])), int(np.max(indices[..., column]))
    first, end = pick(run, x, 0, 1, most + 1), run.now.end(x.timeline)
    places, frames = jnp.asarray(indices), np.asarray(indices)[..., column]
    if end is not None:
        # In the type of the length, which may be wider or narrower than the type of the indices.
        frames = jnp.asarray(np.minimum(frames, np.iinfo(end.dtype).max), end.dtype)
        places = places.at[..., column].set(jnp.minimum(frames, end - 1).astype(places.dtype))
    (array,) = run.bind(equation, [first.array, places])
    fills = equation.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP and not is_key(array.dtype)
    first = dataclasses.replace(first, reach=x.reach and x.reach.picked(low, 1, most + 1 - low))
    if end is None or not fills:
        return first.holding(array)
    batch = gathered_axes(equation)
    shape = [size if d in batch else 1 for d, size in enumerate(array.shape)]
    missing = jnp.asarray(equation.params["fill_value"], array.dtype)
    return first.holding(jnp.where((frames < end).reshape(shape), array, missing))


def _last_frames(run: Pass, equation: JaxprEqn, x: Chunk, indices: Any) -> FinalValue:
    """Take frames at static distances from the end."""
    back = [x.timeline.size - number for number in indices.reshape(-1)]
    if any(is_symbolic(distance) or distance < 1 for distance in back):
        run.refuse("it reads frames at positions that move with the stream", _HINT)
    most = max(map(int, back))
    last, end = pick(run, x, x.timeline.size - most, 1, most), run.now.end(x.timeline)
    places = most - np.asarray(back, np.int32).reshape(indices.shape)
    # If the recording has fewer frames, `last` begins with frame 0, and earlier indices are out of bounds.
    short = 0 if end is None else jnp.clip(most - end, 0)
    (array,) = run.bind(equation, [last.array, jnp.asarray(places, jnp.int32) - jnp.asarray(short, jnp.int32)])
    return last.holding(array)


def _frames(run: Pass, equation: JaxprEqn, x: Chunk, indices: Chunk) -> Chunk:
    """Take frames at a fixed step: every second frame, or windows of frames with a hop."""
    numbers = equation.params["dimension_numbers"]
    sizes = equation.params["slice_sizes"]
    assert indices.index.affine is not None
    hop, offsets = indices.index.affine
    is_regular = (
        numbers.start_index_map == (x.axis,)
        and offsets.shape[-1] == 1
        and indices.axis < indices.array.ndim - 1
        and hop > 0
        and np.all(offsets >= 0)
        and all(size == x.array.shape[d] for d, size in enumerate(sizes) if d != x.axis)
    )
    if not is_regular or not are_inside(x, in_shape(equation, 1)[indices.axis], hop, int(np.max(offsets))):
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
    batch, order = gathered_axes(equation), list(numbers.offset_dims)
    order[part.axis : part.axis] = batch
    array = jnp.moveaxis(array, range(array.ndim), order)
    made = run.make(array, batch[indices.axis], timeline, part.delay, part.reach)
    if offsets.size > 1 or x.index.of_pairs.affine is None:
        return made
    return made.noting(x.index.taken(int(offsets.flat[0]), hop, array.ndim))  # numbers of every second frame


def _windows(run: Pass, equation: JaxprEqn, x: Chunk, indices: Chunk) -> Chunk:
    """Take windows of frames at a fixed step, as `dynamic_slice` does under `vmap`."""
    numbers, sizes, shape = equation.params["dimension_numbers"], equation.params["slice_sizes"], [*in_shape(equation)]
    shape[x.axis] = x.timeline.size
    size, rank, batch = sizes[x.axis], len(out_shape(equation)), gathered_axes(equation)
    if numbers.start_index_map != (x.axis,) or is_symbolic(size):
        run.refuse(_STREAMED_INDICES, _HINT)
    kept = [dim for dim in range(len(shape)) if dim not in numbers.collapsed_slice_dims]
    places = dict(zip(kept, numbers.offset_dims, strict=True))
    order = [*batch, places.pop(x.axis), *places.values()]
    by_frame = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(len(batch) + 1, rank)),
        collapsed_slice_dims=tuple(sorted((*numbers.collapsed_slice_dims, x.axis))),
        start_index_map=(x.axis,),
    )
    parts = tuple(1 if dim == x.axis else each for dim, each in enumerate(sizes))

    def frames(x: Any, start: Any) -> Any:
        index = start[..., None, :] + np.arange(size, dtype=start.dtype)[:, None] if size > 1 else start[..., None, :]
        found = lax.gather(x, index, by_frame, parts, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS)
        return jnp.transpose(found, [order.index(dim) for dim in range(rank)])

    structs = [
        jax.ShapeDtypeStruct(shape, x.array.dtype),
        jax.ShapeDtypeStruct(in_shape(equation, 1), indices.array.dtype),
    ]
    (result,) = interpret(run, trace(frames, *structs)[0], [x, indices])
    return result


def _with_edges(run: Pass, equation: JaxprEqn, x: Chunk, indices: Chunk) -> tuple[Chunk, Chunk]:
    """Return a stream with repeated first and last frames, and the numbers of frames without their bounds."""
    assert indices.index.counted is not None
    (hop, offsets), low, high = indices.index.counted, indices.index.low, indices.index.high
    size, count = x.timeline.size, in_shape(equation, 1)[indices.axis]
    ends = high is not None and constant_value(high - (size - 1), size) == 0
    # Frames after the end that the last index reads.
    beyond = largest_value(hop * (count - 1) + int(np.max(offsets)) - (size - 1), count)
    starts = low == 0 or (low is None and np.all(offsets >= 0))
    if x.outer != 1 or not starts or beyond is None or not (ends or (beyond <= 0 and high is None)):
        run.refuse(_ORDER, _HINT)
    pads = max(0, -int(np.min(offsets))), max(0, beyond)
    shape = list(in_shape(equation))
    config = [pads if axis == x.axis else (0, 0) for axis in range(len(shape))]
    padded, _ = trace(lambda x: jnp.pad(x, config, mode="edge"), jax.ShapeDtypeStruct(shape, x.array.dtype))
    (x,) = interpret(run, padded, [x], late=True) if any(pads) else [x]
    return x, indices.noting(Index.of(hop, 0, offsets + pads[0]))


def _look_up(run: Pass, equation: JaxprEqn, table: Any, indices: Any) -> Chunk:
    """Index a constant table by a stream, as an embedding does."""
    if not isinstance(indices, Chunk) or any(map(is_symbolic, equation.params["slice_sizes"])):
        run.refuse("it slices a constant by a length that grows with the stream", "compute it frame by frame")
    (array,) = run.bind(equation, [table, indices.array])
    return run.same(indices, array, gathered_axes(equation)[indices.axis])
