"""Operations that work on each element alone: operands of different delay are brought together first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.equations import type_of
from jaxrnn.jaxprs.moves import ELEMENTWISE
from jaxrnn.streaming.access import out_shape
from jaxrnn.streaming.dimensions import is_symbolic, settled
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.reach import Reach, union
from jaxrnn.streaming.rules.counting import affine_of, against_the_length, chosen
from jaxrnn.streaming.timeline import LARGEST, Timeline
from jaxrnn.streaming.values import Chunk, Deferred, FinalValue, is_length, reach_of

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
    earliest = known_by(run, operands, like.timeline)
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


def known_by(run: Pass, values: Sequence[Any], timeline: Timeline) -> int:
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
    delay = known_by(run, [value], timeline)
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


RULES = dict.fromkeys(ELEMENTWISE, elementwise)
