"""What flows through the interpreter of `stream`: chunks of streamed values, values known at the end, and known ones.

Everything else, a parameter or what is computed from parameters alone, is a plain array: it is the same in every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import brief
from jaxrnn.errors import StreamError
from jaxrnn.streaming.dimensions import is_symbolic
from jaxrnn.streaming.reach import Reach, union
from jaxrnn.streaming.timeline import Timeline

Affine = tuple[int, np.ndarray]


@dataclass(frozen=True)
class Late:
    """The first frames of a value that come before they are known, such as a copy of frame 0 in front of a stream.

    Attributes:
        array: these frames, with time on the axis of the chunk.
        since: units of input after which the frames are known.
    """

    array: Any
    since: Fraction

    @property
    def first_pass(self) -> int:
        """The pass of one unit, counted from 0, at the end of which the frames are known."""
        return math.ceil(self.since) - 1


@brief
@dataclass(frozen=True)
class Chunk:
    """The frames of a streamed value that one step handles: frames ``[n*q - delay, n*q - delay + q)`` in step n.

    ``delay`` None means that all frames are equal, so that they align with anything; the array then holds one.

    Attributes:
        array: frames along ``axis``; where ``timeline.outer`` is above 1, that many streams, concatenated.
        axis: the time axis.
        timeline: how many frames exist.
        delay: frames that come before frame 0.
        reach: what a frame depends on; None where it depends on no input at all.
        affine: for integers that count frames, scale and offsets: frame i holds ``scale * i + offsets``. The offsets
            are known, of the array's rank, with one frame.
        late: frames that `array` does not have yet, from frame 0 on. Rules that do not know of late frames get chunks
            without them (`Pass.on_time`).
        lineage: stands for what the array holds. New content has one of its own, which slices of it along time share,
            at other delays and with facts of their own. The function alone decides that, so it is the same in every
            pass; whether two arrays are one object is not.
    """

    array: Any
    axis: int
    timeline: Timeline
    delay: int | None
    reach: Reach | None
    affine: Affine | None = None
    late: Late | None = None
    lineage: object = field(default_factory=object, compare=False, repr=False)

    @property
    def outer(self) -> int:
        """How many streams are concatenated along the axis."""
        return self.timeline.outer

    @property
    def frames(self) -> int:
        """Frames of one stream in the chunk."""
        return self.array.shape[self.axis] // self.outer

    def holding(self, array: Any, axis: int | None = None) -> Chunk:
        """The same frames with other content, perhaps elsewhere in the layout."""
        return Chunk(array, self.axis if axis is None else axis, self.timeline, self.delay, self.reach)


@brief
@dataclass(frozen=True)
class FinalValue:
    """A value that is known when the stream ends: a final carry, a sum over all of time.

    In a step, the array holds what the value would be if the stream ended there.

    Attributes:
        array: the value.
        since: units of input after which it stays as it is, as the first frame does; None where the end settles it.
        reach: the input frames that the value depends on; None where it depends on no input.
    """

    array: Any
    since: Fraction | None = None
    reach: Reach | None = None

    def holding(self, array: Any) -> FinalValue:
        """Another value that is known when this one is."""
        return FinalValue(array, self.since, self.reach)


def settled_since(values: Iterable[Any]) -> Fraction | None:
    """Units after which what is computed from values that are no streams stays as it is; None if only the end does."""
    since = [
        value.since if isinstance(value, FinalValue) else None if is_length(value) else Fraction(0) for value in values
    ]
    known = [units for units in since if units is not None]
    return max(known, default=Fraction(0)) if len(known) == len(since) else None


def reach_of(values: Iterable[Any]) -> Reach | None:
    """Return the reach of what is computed from values that are not streams."""
    return union(value.reach for value in values if isinstance(value, FinalValue))


@dataclass(frozen=True)
class Deferred:
    """A value that cannot be streamed, nor what is computed from it, which matters only if it is chosen in the end.

    Attributes:
        error: why.
        backwards: whether it counts down from the end.
    """

    error: StreamError
    backwards: bool = False


def is_static(value: Any) -> bool:
    """Whether a value is known while tracing: a NumPy array, of dtype object where it holds symbolic dimensions."""
    return isinstance(value, (np.ndarray, np.generic, int, float, bool))


def is_length(value: Any) -> bool:
    """Whether a known value depends on the length of the stream."""
    return isinstance(value, np.ndarray) and value.dtype == object


def static_integer(value: Any) -> Any:
    """The one integer or symbolic dimension of a known value; None where it is not known."""
    if not is_static(value) or np.size(value) != 1:
        return None
    item = np.asarray(value).reshape(-1)[0]
    if is_symbolic(item):
        return item if is_length(value) else None
    return int(item)


def along(vector: Any, axis: int, rank: int) -> Any:
    """A vector along one axis of an array of a rank."""
    return jnp.reshape(vector, [-1 if index == axis else 1 for index in range(rank)])


def split_outer(array: Any, chunk: Chunk) -> Any:
    """The array with streams that share its time axis on an axis of their own, in front of the time axis."""
    if chunk.outer == 1:
        return array
    shape = list(array.shape)
    shape[chunk.axis : chunk.axis + 1] = [chunk.outer, shape[chunk.axis] // chunk.outer]
    return array.reshape(shape)
