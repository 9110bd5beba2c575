"""Rules for scatters: writes inside each frame, and writes of frames at a fixed step along time, such as overlap-add.

Example of overlap-add: frame t of the updates has 4 elements, which are added to frames ``2*t`` to ``2*t + 3``. A step
with updates t to t + q - 1 completes frames ``2*t`` to ``2*t + 2*q - 1``, because later updates write to later frames.
The state contains partial sums of 2 frames.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.streaming.dimensions import constant_value, in_shape
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rules.elementwise import align, earliest_delay, reach_everywhere, refuse_final_values
from jaxrnn.streaming.rules.reductions import per_frame
from jaxrnn.streaming.rules.time import take
from jaxrnn.streaming.values import Chunk, along, is_length, is_static

_HINT = "select by position instead: jnp.where(jnp.arange(x.shape[0]) == 0, value, x)"
_JOIN: dict[str, Callable[[Any, Any], Any]] = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "min": jnp.minimum, "max": jnp.maximum
}  # fmt: skip


def scatter(run: Pass, equation: JaxprEqn, x: Any, indices: Any, updates: Any) -> Any:
    """Replace elements of a stream, or add to elements."""
    numbers, shape = equation.params["dimension_numbers"], in_shape(equation)
    if not isinstance(x, Chunk):
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
    if isinstance(indices, Chunk) and indices.columns is not None and time in numbers.inserted_window_dims:
        return _in_numbered_frames(run, equation, x, indices, updates, scattered)
    if numbers.scatter_dims_to_operand_dims == (time,):
        if isinstance(indices, Chunk) and time in numbers.inserted_window_dims and indices.affine is not None:
            hop, offsets = indices.affine
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
        elif is_static(indices) and not is_length(indices) and np.all(np.asarray(indices) >= 0):
            fixed = np.asarray(indices)
            if time in numbers.inserted_window_dims and not isinstance(updates, Chunk):
                return _at_fixed_frames(run, equation, x, fixed, updates)
    raise run.refusal("it writes frames at given positions in time", _HINT)


def _written(
    run: Pass, equation: JaxprEqn, x: Chunk, updates: Chunk, hop: int, places: np.ndarray, others: Sequence[int]
) -> Chunk:
    """Write element k of update t to frame ``hop * t + places[k]``; `others` are the axes of k in the updates."""
    kind = equation.primitive.name.removeprefix("scatter").strip("-_")
    apart = len(np.unique(places % hop)) == places.size
    refuse_final_values(run, [updates])
    timeline = x.timeline
    if (kind not in ("add", "sub") and not apart) or equation.params["mode"] == lax.GatherScatterMode.CLIP:
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
    if kind in ("add", "sub"):
        arrays, like = align(run, [x, made])
        return run.same(like, _JOIN[kind](*arrays))
    exists = run.fill(updates.holding(jnp.ones_like(along(jnp.arange(count), updates.axis, updates.array.ndim))), 0)
    ones = jnp.broadcast_to(exists.array.reshape(-1, *[1] * places.ndim), targets.shape)
    mask = along(overlapped(run, updates, ones, targets, size, hop * count), x.axis, x.array.ndim)
    arrays, like = align(run, [x, made, run.make(mask, x.axis, timeline, delay, None)])
    old, new, here = arrays
    array = jnp.where(here > 0, new if kind not in _JOIN else _JOIN[kind](old, new), old)
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
    found = numbered_frames(run, x, indices, numbers.scatter_dims_to_operand_dims)
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


def numbered_frames(run: Pass, x: Chunk, indices: Chunk, dims: Sequence[int]) -> tuple[Chunk, Chunk, Any] | None:
    """Split indices into frame numbers and other columns.

    Return the frames with these numbers, the other columns, and the axes that the other columns index. Return None if
    no column counts frames at a fixed step.
    """
    columns = indices.columns or ()
    if x.axis not in dims or len(columns) != len(dims) or indices.axis == indices.array.ndim - 1:
        return None
    column = dims.index(x.axis)
    if (affine := columns[column]) is None:
        return None
    hop, offsets = affine
    if hop < 1 or np.any(offsets != offsets.flat[0]) or offsets.flat[0] < 0:
        return None
    frames = take(run, run.on_time(x), int(offsets.flat[0]), hop, indices.timeline.size)
    kept = [place for place in range(len(dims)) if place != column]
    rest = indices.holding(indices.array[..., np.array(kept)])
    return (frames, rest, tuple(dims[place] for place in kept)) if isinstance(frames, Chunk) else None


def _at_fixed_frames(run: Pass, equation: JaxprEqn, x: Chunk, indices: np.ndarray, updates: Any) -> Chunk:
    """Write values to frames with static numbers, as in ``x.at[0].set(0)``; the values must not depend on the end."""
    if equation.params["mode"] == lax.GatherScatterMode.CLIP and np.any(indices > 0):
        run.refuse("it clips the positions of frames to the length of the stream", _HINT)
    x = run.spread(x)
    assert x.delay is not None
    x = run.delayed(x, max(x.delay, earliest_delay(run, [updates], x.timeline)))
    assert x.delay is not None
    run.facts.wait_for(x.timeline, x.delay + int(np.max(indices, initial=0)) + 1)
    here = jnp.asarray(indices, jnp.int32) - jnp.asarray(run.start(x.timeline, x.delay), jnp.int32)
    mode = lax.GatherScatterMode.FILL_OR_DROP  # frames of other steps
    (array,) = run.bind(equation, [x.array, here, run.unstreamed(updates)], mode=mode)
    reach = reach_everywhere([updates], x.timeline)
    return run.make(array, x.axis, x.timeline, x.delay, x.reach if reach is None else reach | (x.reach or reach))


#: JAX spells these primitives in two ways.
_SCATTERS = ["scatter", *(f"scatter{mark}{kind}" for mark in "-_" for kind in _JOIN)]
RULES: dict[str, Callable[..., Any]] = dict.fromkeys(_SCATTERS, scatter)
