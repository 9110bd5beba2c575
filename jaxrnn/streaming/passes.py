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

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Var

from jaxrnn._files.messages import short_repr
from jaxrnn.cells.forms import is_plain
from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.equations import bind, is_key
from jaxrnn.jaxprs.moves import moved_operands
from jaxrnn.streaming.diagnostics import (
    Path,
    describe_equation,
    hint_for_equation,
    hint_for_node,
    in_words_of_file,
    is_of_file,
    label_of,
    located,
    location_of_equation,
    scope_of,
)
from jaxrnn.streaming.dimensions import Clock, Laps, Timeline, magnitude_of
from jaxrnn.streaming.narrow import WideOrigin, origin_of, streamed_operand
from jaxrnn.streaming.values import (
    Affine,
    Chunk,
    FinalValue,
    Mask,
    Reach,
    along,
    is_length,
    is_static,
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


@dataclass(frozen=True)
class Placeholder:
    """Values in frames that do not exist. Results never depend on these values; tests set NaN to check that."""

    value: float = 0.0  # fills buffers before the first frame, and input after the last frame
    integer: int = 0  # the same for integers; booleans are True unless this is zero
    #: replaces operands of operations with a singular derivative, so that no gradient becomes NaN; None to
    #: keep the operands
    harmless: float | None = 0.5

    def of(self, dtype: Any) -> Any:
        """Return the placeholder of a dtype."""
        if jnp.issubdtype(dtype, jnp.inexact):
            return self.value
        return bool(self.integer) if jnp.issubdtype(dtype, np.bool_) else self.integer


#: From this number of elements on, a history concatenates the next state separately from the frames for readers.
LONG = 1 << 13


class History:
    """Past frames of a lineage (see `Chunk`), in a state entry that all readers share.

    In the first pass, the entry grows to the largest number of past frames that a reader asks for. All past frames are
    still constant then.
    """

    def __init__(self, run: Pass, kind: str, frames: Any, axis: int, start: Any, growth: Fraction | int):
        self._run, self._frames, self._axis, self._start, self._growth = run, frames, axis, start, growth
        self._name, self._old = run.carry(kind, lambda: self._constant(1))
        self._joined: Any = None

    def _constant(self, past: int) -> Any:
        shape = (*self._frames.shape[: self._axis], past, *self._frames.shape[self._axis + 1 :])
        return lax.full(shape, self._start, self._frames.dtype)

    def frames(self, past: int, wait: int) -> Any:
        """Return the frames of `wait` frames ago, preceded by `past` earlier frames."""
        run, axis, count = self._run, self._axis, self._frames.shape[self._axis]
        if run.state is None and past + wait > self._old.shape[axis]:
            self._old, self._joined = run.begin(self._name, self._constant(past + wait)), None
        if self._joined is None:
            self._joined = self._keep()
        end = self._joined.shape[axis] - wait
        whole = wait == 0 and past + count == end
        return self._joined if whole else lax.slice_in_dim(self._joined, end - count - past, end, axis=axis)

    def _keep(self) -> Any:
        old, frames, axis = self._old, self._frames, self._axis
        if is_plain():
            joined = jnp.concatenate([old, frames], axis)
            self._store(lax.slice_in_dim(joined, frames.shape[axis], None, axis=axis))
            return joined
        # XLA's CPU backend copies flat arrays at full speed; for several axes, the backend computes each index.
        past, new = old.reshape(-1), frames.reshape(-1)
        flat = jnp.concatenate([past, new])
        later = flat[new.size :]
        if new.size < past.size >= LONG:
            # XLA would compute a slice of the concatenation as a second concatenation, element by element.
            later = jnp.concatenate([past[new.size :], new])
        self._store(later.reshape(old.shape))
        return flat.reshape(old.shape[0] + frames.shape[0], *frames.shape[1:])

    def _store(self, later: Any) -> None:
        """Keep frames for the next pass; positions fall back with the count of units."""
        if self._growth and later.dtype == np.int32:
            later = later - self._run.falling(self._growth, later.dtype)
        self._run.store(self._name, later)


@dataclass
class Facts:
    """Facts about a function that the passes find; all passes find the same facts."""

    warm_up: int = 0  # units that must run before the first input, because some values have frames that early
    horizon: int = 0  # units after which no result depends on the number of frames
    counts: bool = False  # True if some value needs the number of units
    laps: Laps = field(default_factory=Laps)  # how a 32-bit count of units avoids overflow
    counts_laps: bool = False  # True if some value needs the number of laps
    #: timeline and delay of each value that the flush must complete
    sinks: list[tuple[Timeline, int]] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)  # the kind of each state entry, such as "delay" or "carry"
    #: for each loop, the templates of the carry until they stop changing
    carries: dict[Any, Any] = field(default_factory=dict)
    #: the largest number of earlier frames that unbounded attention sees, in the pass that finds the masks
    past: int | None = None
    masks: list[Mask] = field(default_factory=list)
    positive: frozenset[Var] = frozenset()  # factors of wide values that are positive and finite; see `narrow`

    def wait_for(self, timeline: Timeline, frames: int) -> None:
        """Extend the horizon to the time when this number of frames has come."""
        self.horizon = max(self.horizon, timeline.settled, -(-frames // timeline.per_unit))


@short_repr
@dataclass
class Pass:
    """An evaluation of a jaxpr on chunks, with the state before and after.

    Attributes:
        clock: the timelines.
        units: units of input frames in each chunk.
        count: units before this pass: an integer, negative during the warm-up, or a traced integer that stops at
            `Facts.horizon`.
        existing: number of input frames of this pass that exist, if the stream ends in this pass; otherwise None.
        state: state entries before this pass; None in the first pass, which creates the entries.
        facts: facts that the passes find.
        placeholder: values in frames that do not exist.
        before: the number of units before this pass, if some value needs the number.
        laps: the number of laps before this pass, if some value needs the number.
        local: True to reduce over the frames of this chunk only, without state. Derivative rules need this.
        stateless: True to raise `KeepsStateError` for an equation that keeps state.
        prefix: prefix of the names of state entries.
        path: the current equation, preceded by the equations that contain this equation.
        begun: initial values of the entries that this pass creates.
        new: state entries after this pass.
    """

    clock: Clock
    units: int
    count: Any
    existing: Any
    state: Mapping[str, Any] | None
    facts: Facts
    placeholder: Placeholder
    before: Any = None
    laps: Any = None
    local: bool = False
    stateless: bool = False
    prefix: str = ""
    path: Path = ()
    begun: dict[str, Any] = field(default_factory=dict)
    new: dict[str, Any] = field(default_factory=dict)
    #: The growth of the results of the current equation; see `Chunk`.
    _growth: Fraction | int = 0
    _used: dict[str, int] = field(default_factory=dict)
    #: Histories, keyed by lineage.
    _histories: dict[object, History] = field(default_factory=dict)
    #: The lineage without delay and the frames of delay, keyed by the lineage of a delayed chunk.
    _origins: dict[object, tuple[object, int]] = field(default_factory=dict)
    #: Delayed arrays and lineages, keyed by the lineage without delay and the frames of delay.
    _delayed: dict[tuple[object, int], tuple[Any, object]] = field(default_factory=dict)
    #: Filled chunks, keyed by the chunk and the value, and the value, keyed by the lineage of the filled chunk.
    _fills: dict[Any, Chunk] = field(default_factory=dict)
    _starts: dict[object, Any] = field(default_factory=dict)
    #: Lineages of moved values, keyed by the movement and the lineage before.
    _moved: dict[Any, object] = field(default_factory=dict)
    #: Narrow origins, keyed by the lineage of the wider chunk.
    _narrow: dict[object, WideOrigin] = field(default_factory=dict)
    #: Masks of existing frames, keyed by timeline and delay.
    _exist: dict[tuple[Timeline, int], Any] = field(default_factory=dict)

    # -- time

    @property
    def total(self) -> Any:
        """The number of input frames up to the end of this pass; see `units_before`."""
        before = self.units_before
        here = self.units * self.clock.unit if self.existing is None else self.existing
        return before * np.asarray(self.clock.unit, before.dtype) + jnp.asarray(here, before.dtype)

    @property
    def units_before(self) -> Any:
        """The number of units before this pass, without the limit of `count`; 32-bit integers count in `Laps`."""
        self.facts.counts = True
        return jnp.zeros((), jax.dtypes.canonicalize_dtype(np.int64)) if self.before is None else self.before

    def cast_positions(self, positions: Any, growth: Any, dtype: Any) -> Any:
        """Cast positions or lengths, which grow by `growth` in a unit, to a dtype.

        Signed integers of 32 bits count in laps. In other dtypes, the laps that were lost are added again.
        """
        here, there = (np.dtype(each) == np.int32 for each in (positions.dtype, dtype))
        if here == there or np.dtype(dtype) == np.bool_:
            return positions.astype(dtype)
        if there:  # from 64 bits
            lost = self._lost(self.facts.laps.completed(self.units_before), growth, positions.dtype)
            return (positions - lost).astype(dtype)
        return self._with_laps(positions, growth, dtype)

    def _with_laps(self, positions: Any, growth: Any, dtype: Any) -> Any:
        self.facts.counts_laps |= self.units_before.dtype == np.int32
        if self.before is None:
            return positions.astype(dtype)
        laps = self.facts.laps.completed(self.before) if self.laps is None else self.laps
        # Floats are added in at least 32 bits, and integers modulo the size of their dtype.
        wide = np.float32 if jnp.issubdtype(dtype, jnp.floating) and np.dtype(dtype).itemsize < 4 else dtype
        return (positions.astype(wide) + self._lost(laps, growth, wide)).astype(dtype)

    def _lost(self, laps: Any, growth: Any, dtype: Any) -> Any:
        lap = np.asarray(self.facts.laps.length * growth).astype(np.int64)
        return laps.astype(dtype) * lap.astype(dtype)

    def falling(self, growth: Any, dtype: Any) -> Any:
        """Return the difference between positions in this pass and in the next pass, if a lap ends in between."""
        before, laps = self.units_before, self.facts.laps
        done = laps.completed(before + np.asarray(self.units, before.dtype)) - laps.completed(before)
        return self._lost(done, growth, dtype)

    def length(self, sizes: np.ndarray, dtype: Any) -> Any:
        """Return symbolic lengths as numbers of a dtype."""
        paces = [self.clock.pace(size) for size in sizes.flat]
        for period, _ in paces:
            self.facts.laps.note(period)
        growth = np.array([growth for _, growth in paces], object).reshape(sizes.shape)
        total = self.total
        if total.dtype != np.int32 or not jnp.issubdtype(dtype, jnp.floating):
            return self.cast_positions(self.unstreamed(sizes), growth, dtype)
        # The length of a shorter recording of the same phase, and the growth since then: no product overflows.
        values = []
        for size, (period, each) in zip(sizes.flat, paces, strict=True):
            frames, far = period * self.clock.unit, magnitude_of(size)
            units = jnp.maximum(total - np.int32(far), np.int32(0)) // np.int32(frames)
            near = jnp.asarray(self.clock.length_of(size, total - units * np.int32(frames)), jnp.int32)
            values.append(near.astype(jnp.float32) + units.astype(jnp.float32) * np.float32(period * each))
        shorter = jnp.stack(values).reshape(sizes.shape)
        return self._with_laps(shorter, growth, dtype)

    def start(self, timeline: Timeline, delay: int) -> Any:
        """Return the index of the first frame of a chunk: an integer or a traced integer."""
        return self.count * timeline.per_unit - delay

    def frames_of(self, timeline: Timeline) -> int:
        """Return the number of frames in a chunk."""
        return self.units * timeline.per_unit

    def indices(self, timeline: Timeline, delay: int) -> Any:
        """Return the indices of the frames of a chunk, ``int[q]``: a NumPy array if `count` is an integer."""
        return self.start(timeline, delay) + np.arange(self.frames_of(timeline), dtype=np.int32)

    def end(self, timeline: Timeline) -> Any:
        """Return the number of frames of the whole stream, or None before the stream ends."""
        if self.existing is None:
            return None
        return timeline.length(self.count * self.clock.unit + self.existing)

    def exists(self, timeline: Timeline, delay: int) -> Any:
        """Return a mask of the frames of a chunk that exist: True for all, False for no frame, or ``bool[q]``."""
        key = timeline, delay
        if key not in self._exist:
            self._exist[key] = self._exists(timeline, delay)
        return self._exist[key]

    def _exists(self, timeline: Timeline, delay: int) -> Any:
        end = self.end(timeline)
        if isinstance(self.count, int):
            known = self.indices(timeline, delay) >= 0
        elif delay <= 0:
            known = True  # a traced count is never negative
        else:
            # Frame i exists from this number of units on.
            known = self.count >= -((np.arange(self.frames_of(timeline), dtype=np.int32) - delay) // timeline.per_unit)
        if end is not None:
            known = known & (self.indices(timeline, delay) < end)
        if isinstance(known, np.ndarray):
            return bool(known[0]) if np.all(known == known[0]) else known
        return known

    def is_empty(self, timeline: Timeline, delay: int) -> bool:
        """Return True if no frame of a chunk exists; no result reads such a chunk."""
        return isinstance(self.count, int) and self.exists(timeline, delay) is False

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
        self.facts.kinds[name] = kind.rstrip("0123456789")
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
            for item in value.reshape(-1):
                self.facts.laps.note(self.clock.pace(item)[0])
            dtype = jax.dtypes.canonicalize_dtype(np.int64)
            items = [jnp.asarray(self.clock.length_of(item, self.total), dtype) for item in value.reshape(-1)]
            return jnp.stack(items).reshape(value.shape)
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
        self.facts.laps.note(1, growth)
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
        where = "the model " if is_of_file() else "the function "
        if self.path:
            where = f"{describe_equation(self.path)} "
            if is_of_file():
                hint = hint_for_node(self.path) or in_words_of_file(hint)
            else:
                hint = hint_for_equation(self.path[-1].primitive.name, location_of_equation(self.path), hint)
        error = kind(f"{where}cannot be streamed: {why}; {f'{first}, or ' if first else ''}{hint}")
        error.located = True
        return error

    def fill(self, chunk: Chunk, value: Any) -> Chunk:
        """Return the chunk with `value` in the frames that do not exist."""
        assert chunk.delay is not None
        number: Any = np.asarray(value).item() if is_static(value) and np.size(value) == 1 else object()
        # 0.0 and -0.0 are equal, but their bytes are not.
        sign = np.asarray(number, complex).tobytes() if isinstance(number, (int, float, complex)) else b""
        key = chunk.lineage, chunk.timeline, chunk.delay, number, sign
        if key not in self._fills or chunk.late is not None:
            origin = self.origin_of(chunk)
            narrow = None if origin is None else origin.before(value)
            if origin is not None and narrow is not None:
                origin = dataclasses.replace(origin, chunk=self.fill(origin.chunk, narrow))
                filled = chunk.holding(origin.widened(origin.chunk.array, chunk.axis))
                self._narrow[filled.lineage] = origin
            else:
                filled = chunk.holding(self._filled(chunk, value))
            self._fills[key] = dataclasses.replace(filled, late=chunk.late)
            self._starts[filled.lineage] = jnp.asarray(value, chunk.array.dtype)
        return dataclasses.replace(self._fills[key], reach=chunk.reach)

    def origin_of(self, chunk: Chunk) -> WideOrigin | None:
        """Return the narrow origin of a chunk, with the same frames."""
        origin = self._narrow.get(chunk.lineage)
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
            self._narrow[results[0].lineage] = origin

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
        affine: Affine | None = None,
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
            affine: scale and offsets of integers that count frames; see `Chunk`.
            lineage: lineage of an earlier chunk with the same array, if any.
        """
        new = lineage is None
        lineage = object() if new else lineage
        if delay is None:
            return Chunk(array, axis, timeline, None, reach, affine, lineage=lineage)
        delay = int(delay)
        if array.shape[axis] != timeline.outer * self.frames_of(timeline):
            self.refuse(
                f"its result has {timeline.size} frames, but frames arrive at a rate that differs from this length",
                "take every k-th frame, and cut off a fixed number of frames",
            )
        self.facts.warm_up = max(self.facts.warm_up, -(delay // timeline.per_unit))
        self.facts.wait_for(timeline, delay)
        if new and self.is_empty(timeline, delay) and not is_key(array.dtype):
            # No result reads the frames, so a constant replaces the computation.
            array = lax.full(array.shape, self.placeholder.of(array.dtype), array.dtype)
        chunk = Chunk(array, axis, timeline, delay, reach, affine, growth=self._growth, lineage=lineage)
        return self.delayed(chunk, timeline.certain)

    def lineage(self, equation: JaxprEqn, value: Any) -> object:
        """Return the lineage of the result; equal movements of the same value have equal lineages."""
        lineage = getattr(value, "lineage", None)
        if lineage is None or len(equation.invars) > 1 or len(equation.outvars) > 1 or not moved_operands(equation):
            return object()
        return self._moved.setdefault((equation.primitive.name, str(equation.params), lineage), object())

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
        self.facts.wait_for(chunk.timeline, delay)
        base, earlier = self._origins.get(chunk.lineage, (chunk.lineage, 0))
        key = (base, earlier + wait)
        if key not in self._delayed:
            origin, lineage = self.origin_of(chunk), object()
            if origin is not None:
                origin = dataclasses.replace(origin, chunk=self.delayed(origin.chunk, delay))
                self._narrow[lineage], first = origin, origin.widened(origin.chunk.array, chunk.axis)
            else:
                frames, axis = self._with_history(chunk, wait, "delay")
                first = lax.slice_in_dim(frames, 0, chunk.frames, axis=axis)
                first = jnp.moveaxis(first, axis, chunk.axis + (chunk.outer > 1)).reshape(chunk.array.shape)
            self._delayed[key], self._origins[lineage] = (first, lineage), key
        array, lineage = self._delayed[key]
        return dataclasses.replace(chunk, array=array, delay=delay, lineage=lineage)

    def on_time(self, value: Any) -> Any:
        """Delay a chunk until the late frames are known, and insert these frames; see `Late`."""
        if not isinstance(value, Chunk) or value.late is None:
            return value
        assert value.delay is not None
        delay = max(value.delay, value.late.first_pass * value.timeline.per_unit)
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
        front = jnp.moveaxis(chunk.late.array, chunk.axis, time)
        count = front.shape[time]
        self.facts.wait_for(chunk.timeline, lead + count)
        where = self.start(chunk.timeline, lead) + np.arange(frames.shape[time], dtype=np.int32)
        if isinstance(where, np.ndarray) and not np.any((where >= 0) & (where < count)):
            return frames
        if chunk.frames >= 8 and not is_plain() and not isinstance(where, np.ndarray):
            # A convolution would compute the selection below again for each tap, which is slow for many frames.
            room = [(count, count, 0) if each == time else (0, 0, 0) for each in range(frames.ndim)]
            frames = lax.pad(frames, jnp.zeros((), frames.dtype), room)
            at = jnp.clip(count - where[0], 0, frames.shape[time] - count)
            frames = lax.dynamic_update_slice_in_dim(frames, front, at, time)
            return lax.slice_in_dim(frames, count, frames.shape[time] - count, axis=time)
        here = along(jnp.asarray((where >= 0) & (where < count)), time, frames.ndim)
        return jnp.where(here, jnp.take(front, jnp.clip(jnp.asarray(where), 0, count - 1), time), frames)

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
        base, wait = self._origins.get(chunk.lineage, (chunk.lineage, 0)) if initial is None else (object(), 0)
        if base not in self._histories:
            start = self._starts.get(base, self.placeholder.of(frames.dtype)) if initial is None else initial
            self._histories[base] = History(self, kind, frames, time, start, chunk.growth)
        return self._histories[base].frames(past, wait), time

    def same(self, chunk: Chunk, array: Any, axis: int | None = None) -> Chunk:
        """Create a chunk with new content for the frames of `chunk`; `axis` is the time axis, if it differs."""
        return self.make(array, chunk.axis if axis is None else axis, chunk.timeline, chunk.delay, chunk.reach)

    def frame_by_frame(self, equation: JaxprEqn, chunk: Chunk, *others: Any, axis: int | None = None) -> list[Chunk]:
        """Apply an equation that computes each frame separately; `axis` is the time axis of the results."""
        return [self.same(chunk, array, axis) for array in self.bind(equation, [chunk.array, *others])]

    def child(
        self, prefix: str, state: Mapping[str, Any] | None, *, local: bool = False, stateless: bool = False
    ) -> Pass:
        """Create a pass over an inner jaxpr, with separate state entries."""
        return Pass(
            self.clock,
            self.units,
            self.count,
            self.existing,
            state,
            self.facts,
            self.placeholder,
            before=self.before,
            laps=self.laps,
            prefix=prefix,
            path=self.path,
            local=local or self.local,
            stateless=stateless or self.stateless,
        )

    @property
    def here(self) -> str:
        """The scope of the current equation."""
        return scope_of(self.path)
