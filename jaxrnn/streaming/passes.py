"""A pass: one evaluation of a traced function on the chunks of a step, and all that rules need to know of it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn._files.messages import brief
from jaxrnn.cells import is_plain
from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.equations import bind
from jaxrnn.streaming.dimensions import value_of
from jaxrnn.streaming.memory import Memory
from jaxrnn.streaming.mends import in_words_of_file, mend_of_equation
from jaxrnn.streaming.moments import Absent, Facts
from jaxrnn.streaming.sources import Path, describe_equation, is_of_file, located, place_of_equation, scope_of
from jaxrnn.streaming.timeline import Clock, Timeline
from jaxrnn.streaming.values import Affine, Chunk, FinalValue, Reach, along, is_length, split_outer


@brief
@dataclass
class Pass(Memory):
    """One evaluation of a jaxpr on chunks.

    Attributes:
        clock, units, count, existing, facts, before: as in `Moment`.
        state, stateless, prefix, path, begun, new: as in `Memory`.
        absent: what stands in frames that do not exist.
        local: reductions over time give the part of this chunk and keep no state: for reverse rules.
    """

    clock: Clock
    units: int
    count: Any
    existing: Any
    state: Mapping[str, Any] | None
    facts: Facts
    absent: Absent
    before: Any = None
    local: bool = False
    stateless: bool = False
    prefix: str = ""
    path: Path = ()
    begun: dict[str, Any] = field(default_factory=dict)
    new: dict[str, Any] = field(default_factory=dict)
    _used: dict[str, int] = field(default_factory=dict)
    #: Delayed arrays and their lineages, by the lineage and delay that they had and the delay that they have.
    _delayed: dict[tuple[object, int, int], tuple[Any, object]] = field(default_factory=dict)
    #: Which frames exist, by the timeline and delay of their chunks.
    _exist: dict[tuple[Timeline, int], Any] = field(default_factory=dict)

    # -- applying

    def bind(self, equation: JaxprEqn, arrays: Sequence[Any], **changed: Any) -> list[Any]:
        """Apply an equation's primitive to arrays, with some of its parameters changed."""
        return bind(equation, [jnp.asarray(array) for array in arrays], **changed)

    def unstreamed(self, value: Any) -> Any:
        """The array of a value that is not streamed; what depends on the length is evaluated as if it ended here."""
        if isinstance(value, FinalValue):
            return value.array
        if is_length(value):
            dtype = jax.dtypes.canonicalize_dtype(np.int64)
            items = [jnp.asarray(value_of(item, self.total), dtype) for item in value.reshape(-1)]
            return jnp.stack(items).reshape(value.shape)
        return value

    @contextlib.contextmanager
    def at(self, equation: JaxprEqn) -> Iterator[None]:
        """What is done here is done for an equation: errors and state name it."""
        outer, self.path = self.path, (*self.path, equation)
        try:
            with located(functools.partial(describe_equation, self.path)):
                yield
        finally:
            self.path = outer

    def refuse(self, why: str, mend: str) -> NoReturn:
        """Say that the equation at hand cannot be streamed.

        Raises:
            StreamError: always.
        """
        raise self.refusal(why, mend)

    def refusal(self, why: str, mend: str, kind: type[StreamError] = StreamError) -> StreamError:
        """The error that says that the equation at hand cannot be streamed."""
        where = "the model " if is_of_file() else "the function "
        if self.path:
            where = f"{describe_equation(self.path)} "
            known = mend_of_equation(self.path[-1].primitive.name, place_of_equation(self.path))
            mend = in_words_of_file(mend) if is_of_file() else known or mend
        error = kind(f"{where}cannot be streamed: {why}; {mend}")
        error.located = True
        return error

    def exists(self, timeline: Timeline, delay: int) -> Any:
        """As in `Moment`: one mask for all chunks of a timeline and delay."""
        key = timeline, delay
        if key not in self._exist:
            self._exist[key] = super().exists(timeline, delay)
        return self._exist[key]

    def fill(self, chunk: Chunk, value: Any) -> Chunk:
        """The chunk with a value in every frame that does not exist."""
        assert chunk.delay is not None
        exists = self.exists(chunk.timeline, chunk.delay)
        if exists is True:
            return self._filled(chunk, chunk.array)
        value = jnp.asarray(value, chunk.array.dtype)
        if exists is False:
            return self._filled(chunk, jnp.broadcast_to(value, chunk.array.shape))
        exists = jnp.asarray(exists)
        repeated = jnp.tile(exists, chunk.outer) if chunk.outer > 1 else exists
        mask = along(repeated, chunk.axis, chunk.array.ndim)
        return self._filled(chunk, jnp.where(mask, chunk.array, value))

    def _filled(self, chunk: Chunk, array: Any) -> Chunk:
        return dataclasses.replace(chunk.holding(array), late=chunk.late)

    def harmless(self, value: Any, replacement: float | None = None) -> Any:
        """A value that an operation with a singular derivative may read, in frames that do not exist too."""
        if self.absent.harmless is None or is_plain() or not isinstance(value, Chunk) or value.delay is None:
            return value
        if not jnp.issubdtype(value.array.dtype, jnp.inexact):
            return value
        return self.fill(value, self.absent.harmless if replacement is None else replacement)

    # -- making chunks

    def make(
        self,
        array: Any,
        axis: int,
        timeline: Timeline,
        delay: int | None,
        reach: Reach | None,
        affine: Affine | None = None,
        lineage: object = None,
    ) -> Chunk:
        """The one way to make a streamed value: it sees to the warm-up, and delays frames until they are certain.

        With the lineage of another chunk, it holds that chunk's very array.
        """
        lineage = object() if lineage is None else lineage
        if delay is None:
            return Chunk(array, axis, timeline, None, reach, affine, lineage=lineage)
        delay = int(delay)
        if array.shape[axis] != timeline.outer * self.frames_of(timeline):
            self.refuse(
                f"its result has {timeline.size} frames, but they arrive at another rate than this length grows",
                "take every k-th frame, and cut off a fixed number of frames",
            )
        self.facts.warm_up = max(self.facts.warm_up, -(delay // timeline.per_unit))
        self.facts.wait_for(timeline, delay)
        if self.is_empty(timeline, delay):
            array = lax.full(array.shape, self.absent.of(array.dtype), array.dtype)  # nobody reads what it was
        chunk = Chunk(array, axis, timeline, delay, reach, affine, lineage=lineage)
        return self.delayed(chunk, max(delay, timeline.certain))

    def spread(self, chunk: Chunk, delay: int | None = None) -> Chunk:
        """A chunk with frames of its own, where all are equal: they exist with any delay from the certain one on."""
        if chunk.delay is not None:
            return chunk
        timeline = chunk.timeline
        shape = list(chunk.array.shape)
        axis = chunk.axis
        least = timeline.certain if delay is None else max(delay, timeline.certain)
        if timeline.outer == 1:
            shape[axis] = self.frames_of(timeline)
            return self.make(jnp.broadcast_to(chunk.array, shape), axis, timeline, least, chunk.reach)
        inner = jnp.expand_dims(jnp.moveaxis(chunk.array, axis, 0), 1)
        frames = jnp.broadcast_to(inner, (inner.shape[0], self.frames_of(timeline), *inner.shape[2:]))
        if chunk.array.shape[axis] != timeline.outer:
            frames = jnp.broadcast_to(frames, (timeline.outer, *frames.shape[1:]))
        shape[axis] = timeline.outer * self.frames_of(timeline)
        flat = frames.reshape(shape[axis], *frames.shape[2:])
        return self.make(jnp.moveaxis(flat, 0, axis), axis, timeline, least, chunk.reach)

    def delayed(self, chunk: Chunk, delay: int) -> Chunk:
        """The chunk with a larger delay, the frames in between kept in a buffer.

        Chunks of one lineage share the buffer, and nothing else.
        """
        assert chunk.delay is not None
        wait = delay - chunk.delay
        if wait <= 0:
            return chunk
        self.facts.wait_for(chunk.timeline, delay)
        key = (chunk.lineage, chunk.delay, delay)
        if key not in self._delayed:
            frames, place = self._joined(chunk, wait, "delay", None)
            first = lax.slice_in_dim(frames, 0, chunk.frames, axis=place)
            first = jnp.moveaxis(first, place, chunk.axis + (chunk.outer > 1))
            self._delayed[key] = first.reshape(chunk.array.shape), object()
        array, lineage = self._delayed[key]
        return dataclasses.replace(chunk, array=array, delay=delay, lineage=lineage)

    def on_time(self, value: Any) -> Any:
        """Return a chunk without late frames: its delay is large enough for all frames to be known."""
        if not isinstance(value, Chunk) or value.late is None:
            return value
        assert value.delay is not None
        delay = max(value.delay, value.late.first_pass * value.timeline.per_unit)
        chunk = self.delayed(dataclasses.replace(value, late=None), delay)
        array = self.with_late(chunk.array, chunk.axis, value, delay)
        return self.make(array, chunk.axis, chunk.timeline, delay, chunk.reach)

    def with_late(self, frames: Any, place: int, chunk: Chunk, lead: int) -> Any:
        """Return frames with the late ones of a chunk in their places; the first frame is ``lead`` before frame 0."""
        assert chunk.late is not None
        front = jnp.moveaxis(chunk.late.array, chunk.axis, place)
        count = front.shape[place]
        self.facts.wait_for(chunk.timeline, lead + count)
        where = self.start(chunk.timeline, lead) + np.arange(frames.shape[place], dtype=np.int32)
        if isinstance(where, np.ndarray) and not np.any((where >= 0) & (where < count)):
            return frames
        here = along(jnp.asarray((where >= 0) & (where < count)), place, frames.ndim)
        return jnp.where(here, jnp.take(front, jnp.clip(jnp.asarray(where), 0, count - 1), place), frames)

    def together(self, *values: Any) -> list[Any]:
        """Values, of which chunks with frames of their own all have the largest of their delays."""
        delays = [value.delay for value in values if isinstance(value, Chunk) and value.delay is not None]
        return [
            self.delayed(value, max(delays)) if isinstance(value, Chunk) and value.delay is not None else value
            for value in values
        ]

    def window(self, chunk: Chunk, history: int, kind: str, initial: Any = None) -> Any:
        """The chunk's frames with frames before it in front, from a buffer; a negative number drops frames instead.

        Time is the first axis of the result; streams that share the time axis keep an axis in its place.
        """
        return jnp.moveaxis(*self.windowed(chunk, history, kind, initial), 0)

    def windowed(self, chunk: Chunk, history: int, kind: str, initial: Any = None) -> tuple[Any, int]:
        """As `window`, with the axis of time: where the chunk has it in plain forms.

        Otherwise it is the first: past frames then lie side by side in memory, and shifting them is one copy.
        """
        joined, place = self._joined(chunk, history, kind, initial)
        if chunk.late is not None:
            assert chunk.delay is not None
            joined = self.with_late(joined, place, chunk, chunk.delay + history)
        return joined, place

    def _joined(self, chunk: Chunk, history: int, kind: str, initial: Any) -> tuple[Any, int]:
        frames, axis = split_outer(chunk.array, chunk), chunk.axis + (chunk.outer > 1)
        place = axis if is_plain() else 0
        frames = jnp.moveaxis(frames, axis, place)
        if history <= 0:
            return lax.slice_in_dim(frames, -history, None, axis=place), place
        shape = (*frames.shape[:place], history, *frames.shape[place + 1 :])
        value = self.absent.of(frames.dtype) if initial is None else initial
        name, old = self.carry(kind, lambda: lax.full(shape, value, frames.dtype))
        if is_plain():
            joined = jnp.concatenate([old, frames], place)
            self.store(name, lax.slice_in_dim(joined, chunk.frames, None, axis=place), chunk.timeline, chunk.delay)
            return joined, place
        # In one dimension, these are plain copies to XLA's CPU backend; in several it computes an index each time.
        flat = jnp.concatenate([old.reshape(-1), frames.reshape(-1)])
        self.store(name, flat[frames.size :].reshape(shape), chunk.timeline, chunk.delay)
        return flat.reshape(history + chunk.frames, *frames.shape[1:]), place

    def same(self, chunk: Chunk, array: Any, axis: int | None = None) -> Chunk:
        """The frames of a chunk with other content, perhaps elsewhere in the layout."""
        return self.make(array, chunk.axis if axis is None else axis, chunk.timeline, chunk.delay, chunk.reach)

    def frame_by_frame(self, equation: JaxprEqn, chunk: Chunk, *others: Any, axis: int | None = None) -> list[Chunk]:
        """An equation that works on each frame alone, as it stands; ``axis`` is that of time in the results."""
        return [self.same(chunk, array, axis) for array in self.bind(equation, [chunk.array, *others])]

    def child(
        self, prefix: str, state: Mapping[str, Any] | None, *, local: bool = False, stateless: bool = False
    ) -> Pass:
        """A pass over an inner jaxpr, with its own entries of the state."""
        return Pass(
            self.clock,
            self.units,
            self.count,
            self.existing,
            state,
            self.facts,
            self.absent,
            before=self.before,
            prefix=prefix,
            path=self.path,
            local=local or self.local,
            stateless=stateless or self.stateless,
        )

    @property
    def here(self) -> str:
        """The scope of the equation at hand."""
        return scope_of(self.path)
