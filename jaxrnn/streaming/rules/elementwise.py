"""Operations on each element, and integers that count frames."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import JaxprEqn

from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.equations import type_of
from jaxrnn.jaxprs.moves import ELEMENTWISE
from jaxrnn.streaming.dimensions import is_symbolic, out_shape, settled, symbolic_axes
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.reach import Reach, union
from jaxrnn.streaming.timeline import LARGEST, Timeline
from jaxrnn.streaming.values import Affine, Chunk, Deferred, FinalValue, along, is_length, is_static, reach_of

#: What each operation with a singular derivative reads where no frame exists: inside its domain, and not at its edge.
# fmt: off
HARMLESS: dict[str, float] = {
    **dict.fromkeys((
        "abs", "acos", "asin", "atan2", "atanh", "cbrt", "digamma", "div", "erf_inv", "lgamma", "log", "log1p",
        "pow", "rem", "rsqrt", "sqrt",
    ), 0.5),
    "acosh": 2.0,
}
# fmt: on


#: The operands in which a derivative is singular, where it is not so in all of them.
_SINGULAR = {"div": (1,), "rem": (1,), "pow": (0,)}


def elementwise(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Any operation on each element alone."""
    name = equation.primitive.name
    operands = _whole(run, [_settled(equation, value) for value in operands])
    if name == "select_n":
        case = chosen(operands[0], operands[1:])
        if case is not None:
            return [case]
        unusable = next((value for value in operands if isinstance(value, Deferred)), None)
        if unusable is not None:
            return [unusable]
    known = against_the_length(run, name, operands)
    if known is not None:
        return [known]
    affine = affine_of(name, equation, operands)
    counting = [value.affine[0] for value in operands if isinstance(value, Chunk) and value.affine is not None]
    if any(map(is_length, operands)):
        down = min(counting, default=0) < 0
        return [Deferred(backwards(run) if down else unknown_yet(run), down)]
    if name in HARMLESS:
        singular = _SINGULAR.get(name, range(len(operands)))
        operands = tuple(
            run.harmless(value, HARMLESS[name]) if place in singular else value for place, value in enumerate(operands)
        )
    arrays, like = align(run, operands)
    ranks = {np.ndim(array) for array in arrays} - {0}
    if name in ("select_n", "clamp") and ranks:
        arrays = _same_shape(name, arrays)
    results = run.bind(equation, arrays)
    return [run.make(result, like.axis, like.timeline, like.delay, like.reach, affine) for result in results]


def _same_shape(name: str, arrays: list[Any]) -> list[Any]:
    """The arrays of equal shape; a scalar stays one where the operation lets it choose or limit whole arrays."""
    shape = np.broadcast_shapes(*map(np.shape, arrays))
    return [
        array if np.ndim(array) == 0 and (name == "clamp" or index == 0) else jnp.broadcast_to(array, shape)
        for index, array in enumerate(arrays)
    ]


def align(run: Pass, operands: Sequence[Any]) -> tuple[list[Any], Chunk]:
    """The arrays of operands with one time axis, all of the same frames, and a chunk that stands for their result."""
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
                value = run.spread(Chunk(value.array, value.axis, timeline, None, None), delay)
            value = run.delayed(value, delay).array
        arrays.append(run.unstreamed(value))
    return arrays, Chunk(None, like.axis, timeline, delay, reach)


def refuse_final_values(run: Pass, operands: Sequence[Any]) -> None:
    """Refuse to mix a value that is known only at the end into the stream."""
    if any(isinstance(value, FinalValue) or is_length(value) for value in operands):
        raise unknown_yet(run)


def earliest_delay(run: Pass, values: Sequence[Any], timeline: Timeline) -> int:
    """The smallest delay at which frames of a timeline may use values that are no streams.

    Raises:
        StreamError: one of them is known only when the stream has ended.
    """
    delay = -LARGEST
    for value in values:
        if is_length(value):
            raise unknown_yet(run)
        if isinstance(value, FinalValue):
            if value.since is None:
                raise unknown_yet(run)
            # Frame 0 is handed out when more units than delay / per_unit have come.
            delay = max(delay, timeline.per_unit * (math.ceil(value.since) - 1))
    return delay


def everywhere(run: Pass, value: Any, axis: int, timeline: Timeline) -> Chunk:
    """A value that is no stream as one, the same in every frame; its array has one frame on the axis.

    Raises:
        StreamError: it is known only when the stream has ended.
    """
    delay = earliest_delay(run, [value], timeline)
    return run.spread(Chunk(run.unstreamed(value), axis, timeline, None, reach_everywhere([value], timeline)), delay)


def _whole(run: Pass, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Operands of which those with an axis for time are streams."""
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
    """Return the reach of frames that all use values which are not streams, such as the first frame."""
    reach = reach_of(values)
    return None if reach is None else reach.everywhere(timeline)


def backwards(run: Pass) -> StreamError:
    """The error for what goes through time from its end."""
    return run.refusal(
        "it reverses time, so its first frame is the last of the stream",
        "use a model that runs forward in time (a bidirectional recurrence needs the whole recording)",
    )


def unknown_yet(run: Pass) -> StreamError:
    """The error for what a stream needs before it is known."""
    return run.refusal(
        "it uses a value in every frame that is known only when the stream has ended (a sum, mean or maximum over "
        "time, a final state, or the length)",
        "use a causal form (cumulative or windowed statistics), or return the value as a separate output",
    )


def _settled(equation: JaxprEqn, value: Any) -> Any:
    """A length that is the same number wherever the result has any frames, as that number."""
    if not is_length(value) or np.size(value) != 1:
        return value
    (size,) = (size for size in out_shape(equation) if is_symbolic(size))
    number = settled(value.reshape(-1)[0], size)
    return value if number is None else np.full(np.shape(value), number, type_of(equation.outvars[0]))


_ORDER = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}
_COMPARISONS = {**_ORDER, "eq": operator.eq, "ne": operator.ne}


def affine_of(name: str, equation: JaxprEqn, operands: Sequence[Any]) -> Affine | None:
    """Scale and offsets of the result of an operation on each element; None where it does not count frames."""
    terms = [_term(value) for value in operands]
    if not any(isinstance(value, Chunk) for value in operands) or any(term is None for term in terms):
        return None
    known = [term for term in terms if term is not None]
    if name not in _ORDER and not is_wide(type_of(equation.outvars[0])):
        return None
    if name in ("convert_element_type", "copy", "stop_gradient"):
        return known[0]
    if len(known) != 2:
        return None
    (scale, offsets), (other_scale, other_offsets) = known
    if name == "add":
        return scale + other_scale, offsets + other_offsets
    if name == "sub":
        return scale - other_scale, offsets - other_offsets
    if name == "mul" and 0 in (scale, other_scale):
        (scale, offsets), (_, factor) = known if other_scale == 0 else known[::-1]
        return (scale * int(factor.reshape(-1)[0]), offsets * factor) if scale == 0 or factor.size == 1 else None
    if name in _ORDER:
        return _decided(name, scale - other_scale, offsets - other_offsets)
    return None


def against_the_length(run: Pass, name: str, operands: Sequence[Any]) -> Chunk | None:
    """A comparison of frames' numbers with the length, such as a mask of the last frames; None where it is another.

    It comes out the same for all frames but some last ones, so it waits until it is certain that a frame is not one.
    """
    compare = _COMPARISONS.get(name)
    places = [place for place, value in enumerate(operands) if isinstance(value, Chunk) and value.affine is not None]
    if compare is None or len(places) != 1 or not is_length(operands[1 - places[0]]):
        return None
    chunk, limit = operands[places[0]], operands[1 - places[0]]
    scale, offsets = chunk.affine
    size = chunk.timeline.size
    beyond = settled(scale * size - limit.reshape(-1)[0], size) if np.size(limit) == 1 and chunk.outer == 1 else None
    if scale == 0 or beyond is None:
        return None
    # Frame i is ``size - i`` frames before the end, and there its number is more than the length by this:
    surplus = offsets + beyond
    wait = max(0, *(int(each) // scale for each in surplus.flat))
    chunk = run.spread(chunk)
    timeline = chunk.timeline
    delay = max(chunk.delay or 0, timeline.certain + wait)
    run.facts.wait_for(timeline, delay)
    end, where = run.end(timeline), run.indices(timeline, delay)
    left = np.full(where.shape, wait + 1) if end is None else end - where
    difference = jnp.asarray(surplus, jnp.int32) - along(jnp.asarray(left, jnp.int32) * scale, chunk.axis, surplus.ndim)
    outcome = compare(difference, 0) if places[0] == 0 else compare(0, difference)
    shape = [run.frames_of(timeline) if axis == chunk.axis else size for axis, size in enumerate(chunk.array.shape)]
    return run.make(jnp.broadcast_to(outcome, shape), chunk.axis, timeline, delay, None)


def is_wide(dtype: Any) -> bool:
    """Whether a type counts without wrapping around, for as long as a stream may last, and below 0 too."""
    return np.issubdtype(dtype, np.signedinteger) and np.dtype(dtype).itemsize >= 4


def _term(value: Any) -> Affine | None:
    """What an operand contributes: a known number is the same in every frame."""
    if isinstance(value, Chunk):
        return value.affine
    if is_static(value) and not is_length(value) and np.asarray(value).dtype.kind in "iub":
        return 0, np.asarray(value)
    return None


def _decided(name: str, scale: int, offsets: np.ndarray) -> Affine | None:
    """A comparison with 0 that has one outcome in every frame from the first on."""
    compare = _ORDER[name]
    first = compare(offsets, 0)
    # Growing numbers keep what they are above 0, falling ones what they are below it.
    stays = (scale >= 0 and np.all(offsets >= 0)) or (scale <= 0 and np.all(offsets < 0))
    if not stays or (name in ("gt", "le") and scale != 0):
        return None
    return 0, first


def chosen(predicate: Any, cases: Sequence[Any]) -> Any:
    """The one of several streams that a choice takes in every frame; None where that is not known."""
    if not isinstance(predicate, Chunk) or predicate.affine is None or predicate.affine[0] != 0:
        return None
    outcomes = np.unique(predicate.affine[1])
    if len(outcomes) != 1:
        return None
    case = cases[int(outcomes[0])]
    return case if isinstance(case, Chunk) else None


def iota(run: Pass, equation: JaxprEqn) -> Chunk:
    """Counting along time, from a true counter, or along another axis, the same in every frame."""
    shape, dimension = list(equation.params["shape"]), equation.params["dimension"]
    dtype = equation.params["dtype"]
    (axis,) = symbolic_axes(shape)
    timeline = run.clock.timeline(shape[axis])
    shape[axis] = 1
    if dimension != axis:
        return run.make(lax.broadcasted_iota(dtype, shape, dimension), axis, timeline, None, None)
    delay = timeline.certain
    run.facts.counts = True
    # Counted in the type of the result, it wraps around where the whole recording's would.
    units = run.count if isinstance(run.count, int) else run.units_before
    count, per_unit, late = (_wrapped(number, dtype) for number in (units, timeline.per_unit, delay))
    first = count * per_unit - late
    frames = first + jnp.arange(run.frames_of(timeline), dtype=dtype)
    shape[axis] = run.frames_of(timeline)
    array = jnp.broadcast_to(along(frames, axis, len(shape)), shape)
    affine = (1, np.zeros((1,) * len(shape), np.int64)) if is_wide(dtype) else None
    return run.make(array, axis, timeline, delay, None, affine)


def _wrapped(number: Any, dtype: Any) -> Any:
    return number.astype(dtype) if isinstance(number, Array) else jnp.asarray(np.asarray(number).astype(dtype))


def dim_as_value(run: Pass, equation: JaxprEqn) -> np.ndarray:
    """The length as a value: known, as a symbolic dimension, until arithmetic needs a number."""
    boxed = np.empty((), object)
    boxed[()] = equation.params["dim"]
    return boxed


RULES: dict[str, Any] = {**dict.fromkeys(ELEMENTWISE, elementwise), "iota": iota, "dim_as_value": dim_as_value}
