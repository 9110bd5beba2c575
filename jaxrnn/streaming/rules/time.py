"""Rules for slices, pads and concatenation along time, and for scatters, which write frames or inside each frame.

Slices, pads and concatenation change the delay rather than the frames. Example: with a pulse of 4, step n reads frames
4n to 4n + 3 of an input x (delay 0). ``x[3:]`` has the same frames with indices 4n - 3 to 4n, so the delay is 3. After
a pad of 3 frames at the start, the indices are 4n + 3 to 4n + 6. The delay is -3, and `init` runs a warm-up for frames
0 to 2.

Scatters along time write at a fixed step, as overlap-add does. Example: frame t of the updates has 4 elements, which
are added to frames ``2*t`` to ``2*t + 3``. A step with updates t to t + q - 1 completes frames ``2*t`` to
``2*t + 2*q - 1``, because later updates write to later frames. The state contains partial sums of 2 frames.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import shape_of, type_of
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.streaming.dimensions import (
    Timeline,
    UndecidedError,
    constant_value,
    frames_of_window,
    in_shape,
    is_at_least,
    is_symbolic,
    largest_value,
    out_shape,
    symbolic_axes,
    value_of,
)
from jaxrnn.streaming.interpreter import RULES
from jaxrnn.streaming.passes import Pass, refuse_keys
from jaxrnn.streaming.reach import Reach, union
from jaxrnn.streaming.rules.elementwise import align, earliest_delay, reach_everywhere
from jaxrnn.streaming.rules.reductions import per_frame, total_by_place
from jaxrnn.streaming.rules.windows import check_pads
from jaxrnn.streaming.totals import join_of
from jaxrnn.streaming.values import Chunk, FinalValue, Late, Rows, along, is_fixed, reach_of

_HINT = "select by position instead: jnp.where(jnp.arange(x.shape[0]) == 0, value, x)"


@RULES.add("slice", takes=(Late,))
def slice_(run: Pass, equation: JaxprEqn, x: Any) -> Any:
    """Stream a slice, also along time."""
    starts, limits = list(equation.params["start_indices"]), list(equation.params["limit_indices"])
    strides = list(equation.params["strides"] or [1] * len(starts))
    x = as_table(run, x, out_shape(equation))
    start, stride, size = starts[x.axis], strides[x.axis], out_shape(equation)[x.axis]
    if isinstance(x, Chunk) and x.index.affine is not None and not is_symbolic(start) and not is_symbolic(size):
        hop, offsets = x.index.affine
        shape = [limits[axis] if axis == x.axis else each for axis, each in enumerate(in_shape(equation))]
        numbers = np.broadcast_to(offsets + hop * along(np.arange(limits[x.axis]), x.axis, len(shape)), shape)
        return lax.slice(numbers.astype(type_of(equation.outvars[0])), starts, limits, strides)
    others = [d for d in range(len(starts)) if d != x.axis]
    is_whole = all(in_shape(equation)[d] == out_shape(equation)[d] for d in others)
    if not is_whole or not (is_symbolic(size) or is_symbolic(start)):
        x = run.on_time(x)
    taken = take(run, x, start, stride, size)
    if isinstance(taken, Chunk | Rows) and is_whole:
        return taken
    if isinstance(taken, Rows):
        raise taken.error
    array = taken.array
    starts[x.axis], limits[x.axis], strides[x.axis] = 0, array.shape[x.axis], 1
    array = lax.slice(array, starts, limits, strides)
    if isinstance(taken, FinalValue):
        return taken.holding(array)
    return run.make(array, x.axis, taken.timeline, taken.delay, taken.reach).noting(taken.index.of_pairs)


@dataclass(frozen=True)
class RowTable:
    """A constant from which a slice takes one row for each frame, such as a positional encoding."""

    array: Any  # the constant
    axis: int  # the axis of the rows


def as_table(run: Pass, x: Any, shape: Any) -> Chunk | RowTable:
    """Return a stream unchanged, and a constant as a table with rows along the time axis of `shape`."""
    if isinstance(x, Chunk):
        return x
    run.refuse_final_values([x])
    (axis,) = symbolic_axes(shape)
    return RowTable(x, axis)


def _rows(run: Pass, table: RowTable, start: int, stride: int, size: Any) -> Chunk:
    """Return rows of a table as a stream; the constraints guarantee that the table is long enough."""
    timeline = run.clock.timeline(size)
    delay, most = timeline.certain, table.array.shape[table.axis]
    run.notes.wait_for(timeline, delay + -(-most // stride))  # later frames have no row
    places = jnp.clip(jnp.asarray(run.now.indices(timeline, delay) * stride + start), 0, most - 1)
    return run.make(jnp.take(jnp.asarray(table.array), places, table.axis), table.axis, timeline, delay, None)


def take(run: Pass, x: Chunk | RowTable, start: Any, stride: int, size: Any) -> Any:
    """Take frames ``start``, ``start + stride``, ...: a stream, or a final value if the number of frames is fixed.

    Rows of a table from a place on that depends on the length are `Rows`.
    """
    if not is_symbolic(size):
        assert isinstance(x, Chunk)
        return pick(run, x, start, stride, int(size))
    begin = constant_value(start, size)
    if begin is None:
        why = f"it starts at frame {start}, which depends on the length of the stream"
        error = run.refusal(why, "start at a fixed frame", UndecidedError)
        if not isinstance(x, RowTable) or int(stride) != 1:
            raise error
        row, table = int(value_of(start, 0)), x  # of the table, for a difference of 0
        at = lambda differences: jnp.take(jnp.asarray(table.array), row + differences, table.axis, mode="clip")  # noqa: E731
        return Rows(error, axis=x.axis, size=size, origin=row - start, at=at)
    start, stride = begin, int(stride)
    if isinstance(x, RowTable):
        return _rows(run, x, start, stride, size)
    if start == 0 and stride == 1 and str(size) == str(x.timeline.size):
        return x
    if x.outer != 1:
        run.refuse("it slices an axis that merges another axis with time", "slice before the axes are merged")
    timeline = run.clock.timeline(size)
    if x.delay is None:
        return run.make(x.array, x.axis, timeline, None, x.reach and x.reach.taken(timeline, start, stride))
    delay, first = divmod(x.delay + start, stride)
    array = x.array if stride == 1 else lax.slice_in_dim(x.array, first, None, stride, x.axis)
    reach = x.reach and x.reach.taken(timeline, start, stride)
    made = run.make(array, x.axis, timeline, delay, reach, x.lineage if stride == 1 else None)
    made = made.noting(x.index.taken(start, stride, x.array.ndim))
    if x.late is None or start >= x.late.array.shape[x.axis]:
        return made
    front = lax.slice_in_dim(x.late.array, start, None, stride, x.axis)
    return dataclasses.replace(made, late=Late(front, x.late.since[start::stride]))


def pick(run: Pass, x: Chunk, start: Any, stride: int, count: int) -> FinalValue:
    """Take a fixed number of the first or last frames as a final value."""
    refuse_keys(run, x)
    x = run.spread(x)
    assert x.delay is not None
    if x.outer != 1:
        run.refuse("it slices an axis that merges another axis with time", "slice before the axes are merged")
    run.notes.complete(x.timeline, x.delay)
    size, since, back = (count - 1) * stride + 1, None, None
    if is_symbolic(start):
        back = x.timeline.size - start
        if is_symbolic(back):
            run.refuse(
                f"it reads {count} frame(s) from frame {start} on, which moves with the stream",
                "read frames at a fixed distance from the start or the end",
            )
        back = int(back)
        run.notes.wait_for(x.timeline, x.delay + back)
        name, old = run.carry("last", lambda: _empty(run, x, back))
        frames = joined = jnp.concatenate([old, x.array], x.axis)
        if x.late is not None:
            joined = run.with_late(frames, x.axis, x, x.delay + back)
        run.store(name, lax.slice_in_dim(frames, x.frames, None, axis=x.axis), x.timeline, x.delay)
        end = run.now.end(x.timeline)
        here = run.now.start(x.timeline, x.delay)
        last = here + x.frames if end is None else end
        # If the recording has fewer frames, the result is the first frames, as in JAX.
        offset = jnp.clip(last - here, 0, x.frames) + jnp.clip(back - last, 0, back)
        places = jnp.clip(offset + np.arange(size, dtype=np.int32), 0, frames.shape[x.axis] - 1)
        chosen = jnp.take(joined, places, x.axis)
    else:
        run.notes.wait_for(x.timeline, x.delay + int(start) + size)
        since = Fraction(x.delay + int(start) + size, x.timeline.per_unit)
        name, old = run.carry("first", lambda: _empty(run, x, int(start) + size))
        slots = np.arange(int(start) + size, dtype=np.int32)
        offsets = slots - run.now.start(x.timeline, x.delay)
        here = (offsets >= 0) & (offsets < x.frames)
        fresh = jnp.take(x.array, jnp.clip(jnp.asarray(offsets), 0, x.frames - 1), x.axis)
        kept = jnp.where(along(jnp.asarray(here), x.axis, x.array.ndim), fresh, old)
        run.store(name, kept, x.timeline, x.delay)
        end = run.now.end(x.timeline)
        # If the recording has fewer frames, the result is the last frames, as in JAX.
        begin = int(start) if end is None else jnp.clip(jnp.minimum(int(start), end - size), 0)
        chosen = lax.dynamic_slice_in_dim(kept, begin, size, x.axis)
    reach = x.reach and x.reach.picked(0 if back is not None else int(start), stride, count, back=back)
    return FinalValue(lax.slice_in_dim(chosen, 0, size, stride, x.axis), since, reach)


def _empty(run: Pass, x: Chunk, frames: int) -> Any:
    shape = list(x.array.shape)
    shape[x.axis] = frames
    return jnp.full(shape, run.placeholder.of(x.array.dtype), x.array.dtype)


def split_time(run: Pass, equation: JaxprEqn, x: Chunk) -> list[Any]:
    """Split time into slices."""
    begin: Any = 0
    parts = []
    for size in equation.params["sizes"]:
        parts.append(take(run, x, begin, 1, size if is_symbolic(size) else int(size)))
        begin = begin + size
    return parts


@RULES.add("pad")
def pad(run: Pass, equation: JaxprEqn, x: Any, value: Any) -> Chunk:
    """Stream a pad; a negative pad cuts frames, and an interior pad inserts values between frames."""
    run.refuse_final_values([x, value])
    if isinstance(value, Chunk):
        run.refuse("its padding value changes with time", "pad with a constant")
    config = [tuple(entry) for entry in equation.params["padding_config"]]
    assert isinstance(x, Chunk)
    low, high, interior = config[x.axis]
    config[x.axis] = (0, 0, 0)
    if low != 0 or interior != 0 or is_symbolic(high) or high != 0:
        x = pad_time(run, x, low, high, int(interior), value, out_shape(equation)[x.axis])
        if not any(map(any, config)):
            return x
    return run.same(x, lax.pad(x.array, value, [(int(before), int(after), int(gap)) for before, after, gap in config]))


def pad_time(run: Pass, x: Chunk, low: Any, high: Any, interior: int, value: Any, size: Any) -> Chunk:
    """Pad a chunk along time: frames that do not exist get the padding value, and the delay decreases by `low`."""
    x = run.spread(x)
    assert x.delay is not None
    if x.outer != 1:
        run.refuse("it pads an axis that merges another axis with time", "pad before the axes are merged")
    check_pads(run, low, high)
    filled = run.fill(x, value)
    array = filled.array
    spacing = interior + 1
    if interior:
        config = [(0, 0, 0)] * array.ndim
        config[x.axis] = (0, interior, interior)
        array = lax.pad(array, jnp.asarray(value, array.dtype), config)
    timeline = run.clock.timeline(size)
    reach = x.reach and x.reach.under(timeline, 1, 1, 1, spacing, int(low))
    lineage = None if interior else filled.lineage
    return run.make(array, x.axis, timeline, x.delay * spacing - int(low), reach, lineage=lineage)


def concatenate_time(run: Pass, equation: JaxprEqn, *operands: Any) -> Chunk:
    """Stream a concatenation along time: a stream with fixed frames before and after."""
    axis = equation.params["dimension"]
    sizes = [shape_of(atom)[axis] for atom in equation.invars]
    streams = [index for index, size in enumerate(sizes) if is_symbolic(size)]
    if len(streams) > 1:
        run.refuse(
            "the second stream starts only when the first has ended",
            "join streams along another axis",
        )
    (place,) = streams
    stream = operands[place]
    assert isinstance(stream, Chunk)
    if stream.outer != 1:
        run.refuse("it joins along an axis that merges another axis with time", "join before the axes are merged")
    low = sum(int(size) for size in sizes[:place])
    timeline = run.clock.timeline(out_shape(equation)[axis])
    first, last = (
        [value for value, size in zip(operands[part], sizes[part], strict=True) if size]
        for part in (slice(place), slice(place + 1, None))
    )
    # Frames after the end of the stream may depend on the end.
    x = run.spread(stream)
    assert x.delay is not None
    front = [jnp.asarray(run.unstreamed(value), x.array.dtype) for value in first]
    after = [jnp.asarray(run.unstreamed(value), x.array.dtype) for value in last]
    fixed = jnp.concatenate(front, axis) if len(front) > 1 else front[0] if front else None
    array = x.array
    where = jnp.asarray(run.now.indices(x.timeline, x.delay))
    late = _late_after(run, first, fixed, x, timeline)
    if late is None and fixed is not None and (isinstance(run.now.count, int) or x.delay > 0):
        taken = jnp.take(fixed, jnp.clip(where + low, 0, low - 1), axis)
        array = jnp.where(along(where < 0, axis, array.ndim), taken, array)
    end = run.now.end(x.timeline)
    if after and end is not None:
        fixed = jnp.concatenate(after, axis) if len(after) > 1 else after[0]
        taken = jnp.take(fixed, jnp.clip(where - end, 0, fixed.shape[axis] - 1), axis)
        array = jnp.where(along(where >= end, axis, array.ndim), taken, array)
    reach = union([x.reach, reach_of(first), reach_of(last)])
    if reach is not None:
        reach = (x.reach or Reach.of_nothing(x.timeline)).concatenated(timeline, reach_of(first), low, reach_of(last))
    return dataclasses.replace(run.make(array, axis, timeline, x.delay - low, reach), late=late)


def _late_after(run: Pass, first: Sequence[Any], fixed: Any, x: Chunk, timeline: Timeline) -> Late | None:
    """Return the late frames of a stream behind other frames; None if all are known when they leave."""
    earliest_delay(run, first, timeline)  # refuses values that only the end decides
    since = [
        (value.since if isinstance(value, FinalValue) else None) or Fraction(0)
        for value in first
        for _ in range(np.shape(run.unstreamed(value))[x.axis])
    ]
    if x.late is not None:
        parts = [x.late.array] if fixed is None else [fixed, x.late.array]
        return Late(lax.concatenate(parts, x.axis), (*since, *x.late.since))
    assert x.delay is not None
    late = Late(fixed, tuple(since))
    return late if since and late.least_delay(timeline.per_unit) > x.delay - len(since) else None


@RULES.add(kind="scatter")
def scatter(run: Pass, equation: JaxprEqn, x: Any, indices: Any, updates: Any) -> Any:
    """Replace elements of a stream, or add to elements."""
    numbers, shape = equation.params["dimension_numbers"], in_shape(equation)
    if not isinstance(x, Chunk):
        scattered = [d for d in range(len(in_shape(equation, 2))) if d not in numbers.update_window_dims]
        chunks = isinstance(indices, Chunk) and isinstance(updates, Chunk)
        if entry_of(equation).monoid and chunks and updates.axis == scattered[indices.axis]:
            return total_by_place(run, equation, x, indices, updates)
        run.refuse("it writes into a constant at places along time", "write x.at[...] with x of the stream's shape")
    time = x.axis
    inside = [d for d in range(len(shape)) if d not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)]
    scattered = [d for d in range(len(in_shape(equation, 2))) if d not in numbers.update_window_dims]
    if time in numbers.operand_batching_dims:
        paired = numbers.scatter_indices_batching_dims[numbers.operand_batching_dims.index(time)]
        return per_frame(run, equation, (x, indices, updates), (time, paired, scattered[paired]), time)
    if time in inside and time not in numbers.scatter_dims_to_operand_dims and not isinstance(indices, Chunk):
        place = numbers.update_window_dims[inside.index(time)]
        if str(in_shape(equation, 2)[place]) == str(shape[time]):
            return per_frame(run, equation, (x, indices, updates), (time, None, place), time)
    if numbers.operand_batching_dims or x.outer != 1:
        raise run.refusal("it writes frames at given positions in time", _HINT)
    if isinstance(indices, Chunk) and indices.index.columns and time in numbers.inserted_window_dims:
        return _in_numbered_frames(run, equation, x, indices, updates, scattered)
    if numbers.scatter_dims_to_operand_dims == (time,):
        if isinstance(indices, Chunk) and time in numbers.inserted_window_dims and indices.index.affine is not None:
            hop, offsets = indices.index.affine
            shape = [1 if axis == indices.axis else size for axis, size in enumerate(indices.array.shape)]
            offsets = np.broadcast_to(offsets, shape)
            fits = offsets.shape[-1] == 1 and indices.axis < indices.array.ndim - 1 and isinstance(updates, Chunk)
            if fits and hop > 0 and np.all(offsets >= 0) and updates.axis == scattered[indices.axis]:
                places = np.moveaxis(offsets[..., 0], indices.axis, 0)[0]
                others = [d for place, d in enumerate(scattered) if place != indices.axis]
                return _written(run, equation, x, updates, hop, places, others)
        elif isinstance(updates, Chunk) and time in inside and isinstance(indices, np.ndarray) and indices.size == 1:
            place = numbers.update_window_dims[inside.index(time)]
            start = constant_value(indices.reshape(-1)[0], in_shape(equation, 2)[place])
            if start is not None and start >= 0 and updates.axis == place:
                return _written(run, equation, x, updates, 1, np.array(start), [])
        elif is_fixed(indices) and np.all(np.asarray(indices) >= 0):
            fixed = np.asarray(indices)
            if time in numbers.inserted_window_dims and not isinstance(updates, Chunk):
                return _at_fixed_frames(run, equation, x, fixed, updates)
            if (changed := frames_of_window(equation, time)) is not None and not isinstance(updates, Chunk):
                places = fixed.reshape(-1, 1) + np.arange(in_shape(equation, 2)[changed[0]], dtype=fixed.dtype)[:, None]
                if is_at_least(shape[time], int(places.max()) + 1):
                    return _at_fixed_frames(run, equation, x, places, updates, dimension_numbers=changed[1])
    raise run.refusal("it writes frames at given positions in time", _HINT)


def _written(
    run: Pass, equation: JaxprEqn, x: Chunk, updates: Chunk, hop: int, places: np.ndarray, others: Sequence[int]
) -> Chunk:
    """Write element k of update t to frame ``hop * t + places[k]``; `others` are the axes of k in the updates."""
    monoid = entry_of(equation).monoid
    apart = len(np.unique(places % hop)) == places.size
    timeline = x.timeline
    clips = equation.params["mode"] == lax.GatherScatterMode.CLIP
    if clips:
        count = updates.timeline.size
        beyond = largest_value((count - 1) * hop + int(places.max()) - timeline.size, count)
        clips = beyond is None or beyond >= 0
    if (monoid != "sum" and not apart) or clips:
        run.refuse("it writes several values to one frame, or clips the positions of frames", _HINT)
    updates = run.on_time(run.spread(updates))
    assert updates.delay is not None
    if updates.outer != 1 or timeline.per_unit != hop * updates.timeline.per_unit:
        run.refuse(
            f"it writes to {timeline.size} frames, which arrive at another rate than its updates",
            "write into an array with a fixed number of frames for each update",
        )
    low, most = int(places.min()), int(places.max())
    reach = updates.reach and updates.reach.under(timeline, most - low + 1, 1, 1, hop, most)
    # Move the time axis to the front, followed by the axes of the elements of an update.
    front = [updates.axis, *others]
    rest = [d for d in range(updates.array.ndim) if d not in front]
    filled = jnp.transpose(run.fill(updates, 0).array, [*front, *rest])
    count = updates.frames
    targets = hop * np.arange(count).reshape(-1, *[1] * places.ndim) + (places - low)
    size = max(hop * (count - 1) + most - low + 1, hop * count)
    parts = overlapped(run, updates, filled, targets, size, hop * count)
    delay = hop * updates.delay - low
    order = list(range(1, parts.ndim))
    order.insert(x.axis, 0)
    made = run.make(jnp.transpose(parts, order), x.axis, timeline, delay, reach)
    if monoid == "sum":
        (old, new), like = align(run, [x, made])
        return run.same(like, old - new if entry_of(equation).subtracts else old + new)
    exists = run.fill(updates.holding(jnp.ones_like(along(jnp.arange(count), updates.axis, updates.array.ndim))), 0)
    ones = jnp.broadcast_to(exists.array.reshape(-1, *[1] * places.ndim), targets.shape)
    mask = along(overlapped(run, updates, ones, targets, size, hop * count), x.axis, x.array.ndim)
    arrays, like = align(run, [x, made, run.make(mask, x.axis, timeline, delay, None)])
    old, new, here = arrays
    array = jnp.where(here > 0, join_of(monoid)(old, new) if monoid else new, old)
    return run.same(like, array)


def overlapped(run: Pass, like: Chunk, updates: Any, targets: np.ndarray, size: int, ready: int) -> Any:
    """Add updates at target frames, and partial sums of earlier passes; return the completed frames."""
    if updates.dtype == np.bool_:
        return overlapped(run, like, updates.astype(np.int32), targets, size, ready) > 0
    window = updates.shape[targets.ndim :]
    parts = jnp.zeros((size, *window), updates.dtype).at[targets.reshape(-1)].add(updates.reshape(-1, *window))
    waiting = size - ready
    if waiting:
        name, old = run.carry("sums", functools.partial(jnp.zeros, (waiting, *window), updates.dtype))
        if waiting < size:
            old = jnp.pad(old, [(0, ready), *[(0, 0)] * len(window)])
        parts = parts + old
        run.store(name, parts[ready:], like.timeline, like.delay)
    return parts[:ready]


def _in_numbered_frames(
    run: Pass, equation: JaxprEqn, x: Chunk, indices: Chunk, updates: Any, scattered: Sequence[int]
) -> Any:
    """Write into frames at indices with a column of frame numbers, as in ``x.at[jnp.arange(n), places]``."""
    numbers = equation.params["dimension_numbers"]
    found = numbered_frames(run, equation, x, indices, numbers.scatter_dims_to_operand_dims)
    if found is None or found[0].timeline is not x.timeline or found[0].delay != x.delay:
        raise run.refusal("it writes frames at given positions in time", _HINT)
    frames, rest, others = found
    changed = numbers._replace(
        inserted_window_dims=tuple(d for d in numbers.inserted_window_dims if d != x.axis),
        scatter_dims_to_operand_dims=others,
        operand_batching_dims=(x.axis,),
        scatter_indices_batching_dims=(indices.axis,),
    )
    axes = x.axis, indices.axis, scattered[indices.axis]
    return per_frame(run, equation, (frames, rest, updates), axes, x.axis, dimension_numbers=changed)


def numbered_frames(
    run: Pass, equation: JaxprEqn, x: Chunk, indices: Chunk, dims: Sequence[int]
) -> tuple[Chunk, Chunk, Any] | None:
    """Split indices into frame numbers and other columns.

    Return the frames with these numbers, the other columns, and the axes that the other columns index. Return None if
    no column counts existing frames at a fixed step.
    """
    columns = indices.index.columns or (indices.index,)
    if x.axis not in dims or len(columns) != len(dims) or indices.axis == indices.array.ndim - 1:
        return None
    column = dims.index(x.axis)
    if (affine := columns[column].affine) is None:
        return None
    hop, offsets = affine
    size, first = in_shape(equation, 1)[indices.axis], int(offsets.flat[0])
    if hop < 1 or np.any(offsets != first) or first < 0 or not are_inside(x, size, hop, first):
        return None
    frames = take(run, run.on_time(x), first, hop, indices.timeline.size)
    kept = [place for place in range(len(dims)) if place != column]
    rest = indices.holding(indices.array[..., np.array(kept, int)])
    return (frames, rest, tuple(dims[place] for place in kept)) if isinstance(frames, Chunk) else None


def are_inside(x: Chunk, size: Any, hop: int, largest: int) -> bool:
    """Return True if the indices read only existing frames, for all lengths of the recording."""
    beyond = largest_value((size - 1) * hop + largest - x.timeline.size, size)
    return beyond is not None and beyond < 0


def _at_fixed_frames(
    run: Pass, equation: JaxprEqn, x: Chunk, indices: np.ndarray, updates: Any, **changed: Any
) -> Chunk:
    """Write values to frames with static numbers, as in ``x.at[0].set(0)``; the values must not depend on the end."""
    if equation.params["mode"] == lax.GatherScatterMode.CLIP and np.any(indices > 0):
        run.refuse("it clips the positions of frames to the length of the stream", _HINT)
    x = run.delayed(run.spread(x), earliest_delay(run, [updates], x.timeline))
    assert x.delay is not None
    run.notes.wait_for(x.timeline, x.delay + int(np.max(indices, initial=0)) + 1)
    here = jnp.asarray(indices, jnp.int32) - jnp.asarray(run.now.start(x.timeline, x.delay), jnp.int32)
    mode = lax.GatherScatterMode.FILL_OR_DROP  # frames of other steps
    (array,) = run.bind(equation, [x.array, here, run.unstreamed(updates)], mode=mode, **changed)
    reach = reach_everywhere([updates], x.timeline)
    return run.make(array, x.axis, x.timeline, x.delay, x.reach if reach is None else reach | (x.reach or reach))
