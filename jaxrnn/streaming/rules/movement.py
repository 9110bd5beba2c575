"""Rules for moving elements along other axes than time: transpose, reshape, broadcast, concatenate and split."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.streaming.dimensions import in_shape, is_symbolic, out_shape, symbolic_axes
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rules.elementwise import align, backwards, everywhere, refuse_final_values, unknown_yet
from jaxrnn.streaming.rules.time import concatenate_time, split_time
from jaxrnn.streaming.values import Chunk, Deferred, FinalValue, is_length, is_static, known_since, reach_of


def transpose(run: Pass, equation: JaxprEqn, x: Chunk) -> Chunk:
    """Stream a transpose."""
    permutation = equation.params["permutation"]
    axis = permutation.index(x.axis)
    return run.make(lax.transpose(x.array, permutation), axis, x.timeline, x.delay, x.reach)


def broadcast_in_dim(run: Pass, equation: JaxprEqn, x: Any, *_: Any) -> Chunk | Deferred:
    """Stream a broadcast: of a stream along other axes, or of a value along time, where all frames are equal."""
    shape, dimensions = list(equation.params["shape"]), equation.params["broadcast_dimensions"]
    (axis,) = symbolic_axes(shape)
    if isinstance(x, Chunk):
        if dimensions[x.axis] != axis:
            run.refuse("it repeats a stream along a second time axis", "repeat along axes of known size only")
        shape[axis] = x.array.shape[x.axis]
        array = lax.broadcast_in_dim(x.array, shape, dimensions)
        affine = x.affine and (x.affine[0], _stretched(x.affine[1], len(shape), dimensions))
        made = run.make(array, axis, x.timeline, x.delay, x.reach, affine)
        if x.clipped is None:
            return made
        (scale, offsets), *bounds = x.clipped
        return dataclasses.replace(made, clipped=((scale, _stretched(offsets, len(shape), dimensions)), *bounds))
    if is_length(x):
        return Deferred(unknown_yet(run))
    shape[axis] = 1
    timeline = run.clock.timeline(out_shape(equation)[axis])
    if isinstance(x, FinalValue):
        array = lax.broadcast_in_dim(run.unstreamed(x), shape, dimensions)
        return everywhere(run, FinalValue(array, known_since([x]), reach_of([x])), axis, timeline)
    known = is_static(x) and np.issubdtype(np.asarray(x).dtype, np.integer)
    affine = (0, _stretched(np.asarray(x), len(shape), dimensions)) if known else None
    return run.make(lax.broadcast_in_dim(jnp.asarray(x), shape, dimensions), axis, timeline, None, None, affine)


def _stretched(offsets: np.ndarray, rank: int, dimensions: Any) -> np.ndarray:
    """Reshape offsets to the rank of a broadcast."""
    shape = [1] * rank
    for size, place in zip(offsets.shape, dimensions, strict=True):
        shape[place] = size
    return offsets.reshape(shape)


def squeeze(run: Pass, equation: JaxprEqn, x: Chunk) -> Chunk:
    """Stream the removal of axes of size 1."""
    dimensions = {d % x.array.ndim for d in equation.params["dimensions"]}
    axis = x.axis - sum(d < x.axis for d in dimensions)
    affine = x.affine and (x.affine[0], np.squeeze(x.affine[1], tuple(dimensions)))
    return run.make(lax.squeeze(x.array, tuple(dimensions)), axis, x.timeline, x.delay, x.reach, affine)


def reshape(run: Pass, equation: JaxprEqn, x: Chunk, *_: Any) -> Chunk:
    """Stream a reshape; merging other axes into time or splitting them from time changes the rate."""
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
    affine = None
    if after_new == after:
        array, delay, reach = x.array, x.delay, x.reach
        if x.affine is not None and x.affine[1].size == 1:
            affine = x.affine[0], x.affine[1].reshape((1,) * len(new))
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
    # If all frames are equal, the array has one frame for each stream that shares the axis, or one in total.
    new[axis] = array.size // (before_new * after_new) if delay is None else timeline.outer * run.frames_of(timeline)
    return run.make(jnp.reshape(array, new), axis, timeline, delay, reach, affine)


def concatenate(run: Pass, equation: JaxprEqn, *operands: Any) -> Any:
    """Stream a concatenation."""
    dimension = equation.params["dimension"]
    if is_symbolic(out_shape(equation)[dimension]):
        return concatenate_time(run, equation, *operands)
    operands = tuple(map(run.on_time, operands))
    arrays, like = align(run, operands)
    arrays = _along_time(arrays, like)
    joined = run.same(like, lax.concatenate(arrays, dimension))
    columns = tuple(value.affine if isinstance(value, Chunk) else None for value in operands)
    alone = dimension == joined.array.ndim - 1 and all(array.shape[-1] == 1 for array in arrays)
    return dataclasses.replace(joined, columns=columns) if alone and any(columns) else joined


def stack(run: Pass, equation: JaxprEqn, *operands: Any) -> Chunk:
    """Stream a concatenation along a new axis."""
    new = equation.params["axis"]
    arrays, like = align(run, operands)
    array = jnp.stack(_along_time(arrays, like), new)
    return run.same(like, array, like.axis + (new <= like.axis))


def _along_time(arrays: list[Any], like: Chunk) -> list[Any]:
    """Broadcast arrays to one size along time, where a single frame may stand for equal frames."""
    most = max(array.shape[like.axis] for array in arrays)
    result = []
    for array in arrays:
        shape = list(array.shape)
        shape[like.axis] = most
        result.append(jnp.broadcast_to(array, shape))
    return result


def split(run: Pass, equation: JaxprEqn, x: Chunk) -> list[Any]:
    """Stream a split along time or along another axis."""
    if equation.params["axis"] == x.axis:
        return split_time(run, equation, x)
    return run.frame_by_frame(equation, x)


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
    refuse_final_values(run, [x])
    timeline, period = run.clock.timeline(shape[axis]), np.shape(x)[axis]
    repeats[axis] = 1
    array = jnp.tile(jnp.asarray(x), repeats)
    if period <= 1:
        return run.make(array, axis, timeline, None, None)
    delay = timeline.certain
    assert timeline.per_unit % period == 0  # each pass begins at the same row of the constant
    places = (np.arange(run.frames_of(timeline)) - delay) % period
    return run.make(jnp.take(array, jnp.asarray(places), axis), axis, timeline, delay, None)


def rev(run: Pass, equation: JaxprEqn, x: Chunk) -> list[Chunk]:
    """Stream a reversal of other axes than time."""
    if x.axis in equation.params["dimensions"]:
        raise backwards(run)
    return run.frame_by_frame(equation, x)


RULES = {
    "transpose": transpose,
    "broadcast_in_dim": broadcast_in_dim,
    "squeeze": squeeze,
    "reshape": reshape,
    "concatenate": concatenate,
    "stack": stack,
    "split": split,
    "tile": tile,
    "rev": rev,
}
