"""A pass: an evaluation of a traced function on the chunks of a step, and the methods that rules call.

Example: a causal convolution of 3 frames with a pulse of 4. Step n reads frames 4n to 4n + 3. The window of frame 4n
also needs frames 4n - 2 and 4n - 1, so the rule asks for `Pass.window(chunk, 2, "history")` and gets frames 4n - 2 to
4n + 3; the buffer of two frames is an entry of the state. In step 0, frames -2 and -1 do not exist: the buffer contains
placeholders, and `Pass.exists` is a mask of the frames that exist.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn._files.messages import short_repr
from jaxrnn.cells.forms import is_plain
from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.equations import bind, is_key
from jaxrnn.jaxprs.moves import moved_operands
from jaxrnn.streaming.diagnostics import (
    BOUNDED,
    Path,
    describe_equation,
    label_of,
    located,
    refusal,
    scope_of,
)
from jaxrnn.streaming.dimensions import Clock, Timeline
from jaxrnn.streaming.facts import Facts, Known
from jaxrnn.streaming.histories import Content, History, Placeholder, with_front
from jaxrnn.streaming.instants import Instant
from jaxrnn.streaming.integers import Index
from jaxrnn.streaming.narrow import WideOrigin, origin_of, streamed_operand
from jaxrnn.streaming.values import (
    Chunk,
    FinalValue,
    Reach,
    along,
    is_length,
    is_static,
    known_at_end,
    split_outer,
)


def listed(results: Any) -> list[Any]:
    """Return the results of a rule as a list."""
    return list(results) if isinstance(results, (list, tuple)) else [results]


def refuse_keys(run: Pass, chunk: Chunk) -> None:
    """Refuse a chunk of random keys, which the state cannot keep for a later frame."""
    if is_key(chunk.array.dtype):
        run.refuse("it delays random keys", "draw random numbers from the keys first")


class KeepsStateError(Exception):
    """Raised in a stateless pass when part of a function keeps state or changes the delay of frames."""


@short_repr
@dataclass
class Pass:
    """An evaluation of a jaxpr on chunks, with the state before and after.

    ``dataclasses.replace(run, state=...)`` is a pass over an inner jaxpr, with state entries of its own.

    Attributes:
        now: the time of the pass: the frames of a chunk, and which of these exist.
        state: state entries before this pass; None in the first pass, which creates the entries.
        placeholder: values in frames that do not exist.
        local: True to reduce over the frames of this chunk only, without state. Derivative rules need this: JAX adds
            the derivatives of all chunks.
        stateless: True to raise `KeepsStateError` for an equation that keeps state.
        prefix: prefix of the names of state entries.
        path: the current equation, preceded by the equations that contain this equation.
        begun: initial values of the entries that this pass creates.
        new: state entries after this pass.
    """

    now: Instant
    state: Mapping[str, Any] | None
    placeholder: Placeholder
    local: bool = False
    stateless: bool = False
    prefix: str = ""
    path: Path = ()
    begun: dict[str, Any] = field(default_factory=dict, init=False)
    new: dict[str, Any] = field(default_factory=dict, init=False)
    #: The growth of the results of the current equation; see `Index`.
    _growth: Fraction | int = field(default=0, init=False)
    #: How often this pass has used a name.
    _used: dict[str, int] = field(default_factory=dict, init=False)
    _contents: dict[object, Content] = field(default_factory=dict, init=False)
    _masks: dict[tuple[Timeline, int], Any] = field(default_factory=dict, init=False)

    @property
    def clock(self) -> Clock:
        """The timelines."""
        return self.now.clock

    @property
    def facts(self) -> Facts:
        """The facts about the function."""
        return self.now.facts

    @property
    def notes(self) -> Known:
        """The notes of rules; a pass that computes only checks that a note is among the facts."""
        return self.now.notes

    def frames_of(self, timeline: Timeline) -> int:
        """Return the number of frames in a chunk."""
        return self.now.frames_of(timeline)

    def exists(self, timeline: Timeline, delay: int) -> Any:
        """Return a mask of the frames of a chunk that exist: True for all, False for no frame, or ``bool[q]``."""
        key = timeline, delay
        if key not in self._masks:
            self._masks[key] = self.now.exists(timeline, delay)
        return self._masks[key]

    def is_empty(self, timeline: Timeline, delay: int) -> bool:
        """Return True if no frame of a chunk exists; no result reads such a chunk."""
        return isinstance(self.now.count, int) and self.exists(timeline, delay) is False

    def _content(self, lineage: object) -> Content:
        return self._contents.setdefault(lineage, Content((lineage, 0)))

    # -- state

    def carry(self, kind: str, start: Callable[[], Any]) -> tuple[str, Any]:
        """Return the name of a state entry, and the value of the entry before this pass.

        Args:
            kind: the purpose of the entry, such as "history"; part of the name.
            start: returns the initial value.
        """
        if self.stateless:
            raise KeepsStateError
        name = self.unique(f"{self.prefix}{label_of(self.path) if self.path else 'stream'}.{kind}")
        self.notes.note(kinds={**self.facts.kinds, name: kind.rstrip("0123456789")})
        return name, self.begin(name, start()) if self.state is None else self.state[name]

    def begin(self, name: str, value: Any) -> Any:
        """Set the initial value of an entry, in the first pass."""
        self.begun[name] = self.new[name] = value
        return value

    def unique(self, name: str) -> str:
        """Return the name, with a number appended if this pass has used the name before."""
        seen = self._used.get(name, 0)
        self._used[name] = seen + 1
        return name if seen == 0 else f"{name}.{seen + 1}"

    def store(self, name: str, value: Any, timeline: Timeline | None = None, delay: int | None = None) -> None:
        """Set a state entry for the next pass.

        Pass the timeline and delay of the chunk if the entry collects frames of this chunk. The entry then keeps the
        initial value until a frame of the chunk exists.
        """
        if timeline is not None and delay is not None and self.is_empty(timeline, delay):
            value = (self.begun if self.state is None else self.state)[name]
        self.new[name] = value

    # -- applying

    def bind(self, equation: JaxprEqn, arrays: Sequence[Any], **changed: Any) -> list[Any]:
        """Apply the primitive of an equation to arrays, with some parameters changed."""
        return bind(equation, [jnp.asarray(array) for array in arrays], **changed)

    def unstreamed(self, value: Any) -> Any:
        """Return the array of a value that is not streamed; a length is evaluated as if the stream ended here."""
        if isinstance(value, FinalValue):
            return value.array
        if is_length(value):
            return self.now.lengths(value)
        return value

    @contextlib.contextmanager
    def at(self, equation: JaxprEqn) -> Iterator[None]:
        """Make `equation` the current equation, which errors and state entries name."""
        outer, self.path = self.path, (*self.path, equation)
        try:
            with located(functools.partial(describe_equation, self.path)):
                yield
        finally:
            self.path = outer

    @contextlib.contextmanager
    def growing_by(self, growth: Fraction | int) -> Iterator[None]:
        """Set the growth in one unit of chunks that are made inside the context."""
        outer, self._growth = self._growth, growth
        self.notes.repeat(1, growth)
        try:
            yield
        finally:
            self._growth = outer

    def refuse(self, why: str, hint: str, first: str = "") -> NoReturn:
        """Raise the error for an equation that cannot be streamed.

        Args:
            why: the reason, such as "it sorts all frames".
            hint: a remedy, such as "sort along another axis".
            first: a remedy to name first.

        Raises:
            StreamError: always.
        """
        raise self.refusal(why, hint, first=first)

    def refusal(self, why: str, hint: str, kind: type[StreamError] = StreamError, *, first: str = "") -> StreamError:
        """Return the error for an equation that cannot be streamed; see `refuse`."""
        is_bounded = first == BOUNDED and self.facts.bands is not None  # the function has bounded futures
        return refusal(self.path, why, hint, kind, "" if is_bounded else first)

    def unknown_yet(self) -> StreamError:
        """Return the error for an operation that reads a value from the end of the stream in each frame."""
        return self.refusal(
            "it uses a value in every frame that is known only when the stream has ended (a sum, mean or maximum over "
            "time, a final state, or the length)",
            "use a causal form (cumulative or windowed statistics), or return the value as a separate output",
            first=BOUNDED,
        )

    def refuse_final_values(self, operands: Sequence[Any]) -> None:
        """Refuse operands that are known only when the stream ends."""
        if known_at_end(operands):
            raise self.unknown_yet()

    def fill(self, chunk: Chunk, value: Any) -> Chunk:
        """Return the chunk with `value` in the frames that do not exist."""
        assert chunk.delay is not None
        number: Any = np.asarray(value).item() if is_static(value) and np.size(value) == 1 else object()
        # 0.0 and -0.0 are equal, but their bytes are not.
        sign = np.asarray(number, complex).tobytes() if isinstance(number, (int, float, complex)) else b""
        made, key = self._content(chunk.lineage).filled, (chunk.timeline, chunk.delay, number, sign)
        if key not in made or chunk.late is not None:
            origin = self.origin_of(chunk)
            narrow = None if origin is None else origin.before(value)
            if origin is not None and narrow is not None:
                origin = dataclasses.replace(origin, chunk=self.fill(origin.chunk, narrow))
                filled = chunk.holding(origin.widened(origin.chunk.array, chunk.axis))
                self._content(filled.lineage).narrow = origin
            else:
                filled = chunk.holding(self._filled(chunk, value))
            made[key] = dataclasses.replace(filled, late=chunk.late)
            self._content(filled.lineage).start = jnp.asarray(value, chunk.array.dtype)
        return dataclasses.replace(made[key], reach=chunk.reach)

    def origin_of(self, chunk: Chunk) -> WideOrigin | None:
        """Return the narrow origin of a chunk, with the same frames."""
        origin = self._content(chunk.lineage).narrow
        if origin is None:
            return None
        narrow = dataclasses.replace(origin.chunk, timeline=chunk.timeline, delay=chunk.delay, reach=chunk.reach)
        return dataclasses.replace(origin, chunk=narrow)

    def note_origin(self, equation: JaxprEqn, operands: Sequence[Any], results: Sequence[Any]) -> None:
        """Note the narrow origin of a result."""
        chunk = streamed_operand(operands)
        if chunk is None or len(results) != 1 or not isinstance(results[0], Chunk):
            return
        origin = origin_of(equation, operands, results[0], self.origin_of(chunk), self.facts.positive)
        if origin is not None:
            self._content(results[0].lineage).narrow = origin

    def _filled(self, chunk: Chunk, value: Any) -> Any:
        assert chunk.delay is not None
        exists = self.exists(chunk.timeline, chunk.delay)
        if exists is True:
            return chunk.array
        value = jnp.asarray(value, chunk.array.dtype)
        if exists is False:
            return jnp.broadcast_to(value, chunk.array.shape)
        exists = jnp.asarray(exists)
        repeated = jnp.tile(exists, chunk.outer) if chunk.outer > 1 else exists
        mask = along(repeated, chunk.axis, chunk.array.ndim)
        return jnp.where(mask, chunk.array, value)

    def harmless(self, value: Any, replacement: float | np.ndarray | None = None) -> Any:
        """Replace frames that do not exist, so that an operation with a singular derivative can read the value."""
        if self.placeholder.harmless is None or is_plain() or not isinstance(value, Chunk) or value.delay is None:
            return value
        if not jnp.issubdtype(value.array.dtype, jnp.inexact):
            return value
        return self.fill(value, self.placeholder.harmless if replacement is None else replacement)

    # -- making chunks

    def make(
        self,
        array: Any,
        axis: int,
        timeline: Timeline,
        delay: int | None,
        reach: Reach | None,
        lineage: object = None,
    ) -> Chunk:
        """Create a chunk. Rules create chunks with this method only.

        The method notes the warm-up that the chunk needs, and delays frames until their existence is certain.

        Args:
            array: the frames, along `axis`.
            axis: the time axis.
            timeline: the timeline of the frames.
            delay: number of frames before frame 0; None if all frames are equal.
            reach: input frames that each frame depends on; None if no input is read.
            lineage: lineage of an earlier chunk with the same array, if any.
        """
        new = lineage is None
        lineage = object() if new else lineage
        if delay is None:
            return Chunk(array, axis, timeline, None, reach, lineage=lineage)
        delay = int(delay)
        if array.shape[axis] != timeline.outer * self.frames_of(timeline):
            self.refuse(
                f"its result has {timeline.size} frames, but frames arrive at a rate that differs from this length",
                "take every k-th frame, and cut off a fixed number of frames",
            )
        self.notes.note(warm_up=max(self.facts.warm_up, -(delay // timeline.per_unit)))
        self.notes.wait_for(timeline, delay)
        if new and self.is_empty(timeline, delay) and not is_key(array.dtype):
            # No result reads the frames, so a constant replaces the computation.
            array = lax.full(array.shape, self.placeholder.of(array.dtype), array.dtype)
        chunk = Chunk(array, axis, timeline, delay, reach, Index(growth=self._growth), lineage=lineage)
        return self.delayed(chunk, timeline.certain)

    def lineage(self, equation: JaxprEqn, value: Any) -> object:
        """Return the lineage of the result; equal movements of the same value have equal lineages."""
        lineage = getattr(value, "lineage", None)
        if lineage is None or len(equation.invars) > 1 or len(equation.outvars) > 1 or not moved_operands(equation):
            return object()
        return self._content(lineage).moved.setdefault((equation.primitive.name, str(equation.params)), object())

    def spread(self, chunk: Any, delay: int | None = None) -> Any:
        """Repeat the frame of a chunk in which all frames are equal; return other values unchanged.

        Args:
            chunk: the chunk, or any other value.
            delay: the least delay of the result; default: the least delay at which the frames certainly exist.
        """
        if not isinstance(chunk, Chunk) or chunk.delay is not None:
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
        """Return the chunk with a delay of at least `delay`; a buffer keeps the frames in between.

        Chunks of the same lineage share a buffer, as large as the longest wait.
        """
        chunk = self.spread(chunk, delay)
        assert chunk.delay is not None
        wait = delay - chunk.delay
        if wait <= 0:
            return chunk
        self.notes.wait_for(chunk.timeline, delay)
        base, earlier = self._content(chunk.lineage).base
        made, wait_from_base = self._content(base).delayed, earlier + wait
        if wait_from_base not in made:
            origin, lineage = self.origin_of(chunk), object()
            if origin is not None:
                origin = dataclasses.replace(origin, chunk=self.delayed(origin.chunk, delay))
                first = origin.widened(origin.chunk.array, chunk.axis)
            else:
                frames, axis = self._with_history(chunk, wait, "delay")
                first = lax.slice_in_dim(frames, 0, chunk.frames, axis=axis)
                first = jnp.moveaxis(first, axis, chunk.axis + (chunk.outer > 1)).reshape(chunk.array.shape)
            made[wait_from_base] = first, lineage
            self._contents[lineage] = Content((base, wait_from_base), narrow=origin)
        array, lineage = made[wait_from_base]
        return dataclasses.replace(chunk, array=array, delay=delay, lineage=lineage)

    def on_time(self, value: Any) -> Any:
        """Delay a chunk until the late frames are known, and insert these frames; see `Late`."""
        if not isinstance(value, Chunk) or value.late is None:
            return value
        assert value.delay is not None
        delay = max(value.delay, value.late.least_delay(value.timeline.per_unit))
        chunk = self.delayed(dataclasses.replace(value, late=None), delay)
        array = self.with_late(chunk.array, chunk.axis, value, delay)
        return self.make(array, chunk.axis, chunk.timeline, delay, chunk.reach)

    def with_late(self, frames: Any, time: int, chunk: Chunk, lead: int) -> Any:
        """Insert the late frames of a chunk.

        Args:
            frames: an array with the frames of the chunk.
            time: the time axis of this array.
            chunk: the chunk that has late frames.
            lead: number of frames in the array before frame 0.
        """
        assert chunk.late is not None
        self.notes.wait_for(chunk.timeline, lead + chunk.late.array.shape[chunk.axis])
        where = self.now.start(chunk.timeline, lead) + np.arange(frames.shape[time], dtype=np.int32)
        front = jnp.moveaxis(chunk.late.array, chunk.axis, time)
        return with_front(frames, front, time, where, few=chunk.frames < 8)

    def together(self, *values: Any) -> list[Any]:
        """Delay chunks to the largest of their delays; return other values unchanged."""
        delays = [value.delay for value in values if isinstance(value, Chunk) and value.delay is not None]
        return [
            self.delayed(value, max(delays)) if isinstance(value, Chunk) and value.delay is not None else value
            for value in values
        ]

    def window(self, chunk: Chunk, history: int, kind: str, initial: Any = None) -> Any:
        """Return the frames of a chunk, preceded by past frames from a buffer.

        Time is the first axis of the result. If several streams share the time axis, the second axis is the stream.

        Args:
            chunk: the chunk.
            history: number of past frames; a negative number drops frames of the chunk instead.
            kind: the kind of the state entry; see `carry`.
            initial: initial value of the buffer; default: the placeholder.
        """
        return jnp.moveaxis(*self.windowed(chunk, history, kind, initial), 0)

    def windowed(self, chunk: Chunk, history: int, kind: str, initial: Any = None) -> tuple[Any, int]:
        """Return the frames of `window` and their time axis.

        In plain forms, the time axis is the axis of the chunk. Otherwise time is the first axis: past frames are then
        contiguous in memory, and a single copy shifts the buffer.
        """
        frames, time = self._with_history(chunk, history, kind, initial)
        if chunk.late is not None:
            assert chunk.delay is not None
            frames = self.with_late(frames, time, chunk, chunk.delay + history)
        return frames, time

    def _with_history(self, chunk: Chunk, past: int, kind: str, initial: Any = None) -> tuple[Any, int]:
        """Return the frames of `windowed` without late frames."""
        refuse_keys(self, chunk)
        origin = self.origin_of(chunk)
        if origin is not None and past > 0 and initial is None:
            frames, time = self._with_history(origin.chunk, past, kind)
            wide = origin.widened(jnp.moveaxis(frames, time, chunk.axis), chunk.axis)
            return jnp.moveaxis(wide, chunk.axis, time), time
        frames, axis = split_outer(chunk.array, chunk), chunk.axis + (chunk.outer > 1)
        time = axis if is_plain() else 0
        frames = jnp.moveaxis(frames, axis, time)
        if past <= 0:
            return lax.slice_in_dim(frames, -past, None, axis=time), time
        base, wait = self._content(chunk.lineage).base if initial is None else (object(), 0)
        content = self._content(base)
        if content.history is None:
            initial = content.start if initial is None else initial
            start = self.placeholder.of(frames.dtype) if initial is None else initial
            content.history = History(self, kind, frames, time, start, chunk.index.growth)
        return content.history.frames(past, wait), time

    def same(self, chunk: Chunk, array: Any, axis: int | None = None) -> Chunk:
        """Create a chunk with new content for the frames of `chunk`; `axis` is the time axis, if it differs."""
        return self.make(array, chunk.axis if axis is None else axis, chunk.timeline, chunk.delay, chunk.reach)

    def frame_by_frame(self, equation: JaxprEqn, chunk: Chunk, *others: Any, axis: int | None = None) -> list[Chunk]:
        """Apply an equation that computes each frame separately; `axis` is the time axis of the results."""
        return [self.same(chunk, array, axis) for array in self.bind(equation, [chunk.array, *others])]

    @property
    def here(self) -> str:
        """The scope of the current equation."""
        return scope_of(self.path)
