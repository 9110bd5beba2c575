"""Rules for slices, pads and concatenation along time.

These operations change the delay rather than the frames. Example: with a pulse of 4, step n reads frames 4n to 4n + 3
of an input x (delay 0). ``x[3:]`` has the same frames with indices 4n - 3 to 4n, so the delay is 3. After a pad of 3
frames at the start, the indices are 4n + 3 to 4n + 6. The delay is -3, and `init` runs a warm-up for frames 0 to 2.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import shape_of
from jaxrnn.streaming.dimensions import UndecidedError, constant_value, in_shape, is_symbolic, out_shape, symbolic_axes
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.reach import Reach, union
from jaxrnn.streaming.rules.elementwise import earliest_delay, refuse_final_values
from jaxrnn.streaming.values import Chunk, FinalValue, Late, along, reach_of


def slice_(run: Pass, equation: JaxprEqn, x: Any) -> Chunk | FinalValue:
    """Stream a slice, also along time."""
    starts, limits = list(equation.params["start_indices"]), list(equation.params["limit_indices"])
    strides = list(equation.params["strides"] or [1] * len(starts))
    x = as_table(run, x, out_shape(equation))
    start, limit, stride = starts[x.axis], limits[x.axis], strides[x.axis]
    size = out_shape(equation)[x.axis]
    if is_symbolic(size) or not is_symbolic(start):
        x = run.on_time(x)
    taken = take(run, x, start, stride, size, None if is_symbolic(size) else limit)
    others = [d for d in range(len(starts)) if d != x.axis]
    if isinstance(taken, Chunk) and all(in_shape(equation)[d] == out_shape(equation)[d] for d in others):
        return taken
    array = taken.array
    starts[x.axis], limits[x.axis], strides[x.axis] = 0, array.shape[x.axis], 1
    array = lax.slice(array, starts, limits, strides)
    if isinstance(taken, FinalValue):
        return taken.holding(array)
    affine = taken.affine if taken.affine is not None and taken.affine[1].size == 1 else None
    return run.make(array, x.axis, taken.timeline, taken.delay, taken.reach, affine)


@dataclass(frozen=True)
class Table:
    """A constant from which a slice takes one row for each frame, such as a positional encoding."""

    array: Any  # the constant
    axis: int  # the axis of the rows


def as_table(run: Pass, x: Any, shape: Any) -> Chunk | Table:
    """Return a stream unchanged, and a constant as a table with rows along the time axis of `shape`."""
    if isinstance(x, Chunk):
        return x
    refuse_final_values(run, [x])
    (axis,) = symbolic_axes(shape)
    return Table(x, axis)


def _rows(run: Pass, table: Table, start: int, stride: int, size: Any) -> Chunk:
    """Return rows of a table as a stream; the constraints guarantee that the table is long enough."""
    timeline = run.clock.timeline(size)
    delay, most = timeline.certain, table.array.shape[table.axis]
    run.facts.wait_for(timeline, delay + -(-most // stride))  # later frames have no row
    places = jnp.clip(jnp.asarray(run.indices(timeline, delay) * stride + start), 0, most - 1)
    return run.make(jnp.take(jnp.asarray(table.array), places, table.axis), table.axis, timeline, delay, None)


def take(run: Pass, x: Chunk | Table, start: Any, stride: int, size: Any, limit: Any = None) -> Chunk | FinalValue:
    """Take frames ``start``, ``start + stride``, ...: a stream, or a final value if the number of frames is fixed."""
    if not is_symbolic(size):
        assert isinstance(x, Chunk)
        return pick(run, x, start, stride, int(size))
    begin = constant_value(start, size)
    if begin is None:
        why = f"it starts at frame {start}, which depends on the length of the stream"
        raise run.refusal(why, "start at a fixed frame", UndecidedError)
    start, stride = begin, int(stride)
    if isinstance(x, Table):
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
    affine = x.affine and (x.affine[0] * stride, x.affine[1] + x.affine[0] * start)
    return run.make(array, x.axis, timeline, delay, reach, affine, x.lineage if stride == 1 else None)


def pick(run: Pass, x: Chunk, start: Any, stride: int, count: int) -> FinalValue:
    """Take a fixed number of the first or last frames as a final value."""
    x = run.spread(x)
    assert x.delay is not None
    if x.outer != 1:
        run.refuse("it slices an axis that merges another axis with time", "slice before the axes are merged")
    run.facts.sinks.append((x.timeline, x.delay))
    size, since, back = (count - 1) * stride + 1, None, None
    if is_symbolic(start):
        back = x.timeline.size - start
        if is_symbolic(back):
            run.refuse(
                f"it reads {count} frame(s) from frame {start} on, which moves with the stream",
                "read frames at a fixed distance from the start or the end",
            )
        back = int(back)
        run.facts.wait_for(x.timeline, x.delay + back)
        name, old = run.carry("last", lambda: _empty(run, x, back))
        frames = joined = jnp.concatenate([old, x.array], x.axis)
        if x.late is not None:
            joined = run.with_late(frames, x.axis, x, x.delay + back)
        run.store(name, lax.slice_in_dim(frames, x.frames, None, axis=x.axis), x.timeline, x.delay)
        end = run.end(x.timeline)
        here = run.start(x.timeline, x.delay)
        last = here + x.frames if end is None else end
        # If the recording has fewer frames, the result is the first frames, as in JAX.
        offset = jnp.clip(last - here, 0, x.frames) + jnp.clip(back - last, 0, back)
        places = jnp.clip(offset + np.arange(size, dtype=np.int32), 0, frames.shape[x.axis] - 1)
        chosen = jnp.take(joined, places, x.axis)
    else:
        run.facts.wait_for(x.timeline, x.delay + int(start) + size)
        since = Fraction(x.delay + int(start) + size, x.timeline.per_unit)
        name, old = run.carry("first", lambda: _empty(run, x, int(start) + size))
        slots = np.arange(int(start) + size, dtype=np.int32)
        offsets = slots - run.start(x.timeline, x.delay)
        here = (offsets >= 0) & (offsets < x.frames)
        fresh = jnp.take(x.array, jnp.clip(jnp.asarray(offsets), 0, x.frames - 1), x.axis)
        kept = jnp.where(along(jnp.asarray(here), x.axis, x.array.ndim), fresh, old)
        run.store(name, kept, x.timeline, x.delay)
        end = run.end(x.timeline)
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


def pad(run: Pass, equation: JaxprEqn, x: Any, value: Any) -> Chunk:
    """Stream a pad; a negative pad cuts frames, and an interior pad inserts values between frames."""
    refuse_final_values(run, [x, value])
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


def check_pads(run: Pass, low: Any, high: Any) -> None:
    """Refuse padding before the stream that depends on the length; padding after the end may have any size."""
    if is_symbolic(low):
        why = f"its padding ({low} in front, {high} after) depends on the length of the stream"
        raise run.refusal(why, "pad by a fixed number of frames", UndecidedError)


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
    if low:
        stream = run.on_time(stream)
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
    array, late = x.array, x.late
    where = jnp.asarray(run.indices(x.timeline, x.delay))
    if earliest_delay(run, first, timeline) > x.delay - low:
        since = [value.since for value in first if isinstance(value, FinalValue)]
        late = Late(fixed, max(units for units in since if units is not None))
    elif fixed is not None and (isinstance(run.count, int) or x.delay > 0):
        taken = jnp.take(fixed, jnp.clip(where + low, 0, low - 1), axis)
        array = jnp.where(along(where < 0, axis, array.ndim), taken, array)
    end = run.end(x.timeline)
    if after and end is not None:
        fixed = jnp.concatenate(after, axis) if len(after) > 1 else after[0]
        taken = jnp.take(fixed, jnp.clip(where - end, 0, fixed.shape[axis] - 1), axis)
        array = jnp.where(along(where >= end, axis, array.ndim), taken, array)
    reach = union([x.reach, reach_of(first), reach_of(last)])
    if reach is not None:
        reach = (x.reach or Reach.of_nothing(x.timeline)).concatenated(timeline, reach_of(first), low, reach_of(last))
    return dataclasses.replace(run.make(array, axis, timeline, x.delay - low, reach), late=late)


RULES = {"slice": slice_, "pad": pad}
