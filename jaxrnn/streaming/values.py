"""Values in the interpreter of `stream`: chunks of frames, final values, deferred values, and static values.

Other values, such as parameters, are arrays, which are the same in each step.

Example of late frames: ``jnp.concatenate([x[2:3], x])`` puts a copy of frame 2 first. The copy has index 0, but is
available only after three frames. The chunk has `Late` frames: the array contains a placeholder at index 0, and
`Late.array` is the copy. Rules without support for late frames get a delayed chunk instead (`Pass.on_time`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn._files.messages import short_repr
from jaxrnn.errors import StreamError
from jaxrnn.streaming.diagnostics import Path
from jaxrnn.streaming.dimensions import Timeline, is_symbolic
from jaxrnn.streaming.index_rules import index_of
from jaxrnn.streaming.integers import UNKNOWN, Index
from jaxrnn.streaming.reach import Reach, union


@dataclass(frozen=True)
class Late:
    """The first frames of a chunk if later frames decide these frames, such as a copy of frame 2 before a stream."""

    array: Any  # these frames; the time axis is the axis of the chunk
    since: tuple[Fraction, ...]  # units of input after which each frame is known

    def least_delay(self, per_unit: int, reader: Callable[[int], int] = lambda frame: frame) -> int:
        """Return the delay at which each frame is known when the chunk of its first reader leaves.

        Frame f is read by frames from ``reader(f)`` on, of which each unit has `per_unit`.
        """
        return max((math.ceil(units) - 1) * per_unit - reader(frame) for frame, units in enumerate(self.since))


@short_repr
@dataclass(frozen=True)
class Chunk:
    """The frames of a streamed value in one step: frames ``[n*q - delay, n*q - delay + q)`` in step n.

    With ``delay=None``, all frames are equal, and the array contains a single frame.

    Attributes:
        array: frames along `axis`. If ``timeline.outer > 1``, the axis concatenates several streams.
        axis: the time axis.
        timeline: the number of frames that exist.
        delay: number of frames before frame 0.
        reach: input frames that each frame depends on; None if no input is read.
        index: what is known of integers that follow from the numbers of the frames.
        late: the first frames, if `array` does not contain them yet. Rules without support for late frames get a
            delayed chunk (`Pass.on_time`).
        lineage: an identity of the content. New content has a new lineage. Slices share the lineage, with different
            delays and facts. Only the function determines lineages, so all passes find the same lineages; identity of
            arrays does not have this property.
    """

    array: Any
    axis: int
    timeline: Timeline
    delay: int | None
    reach: Reach | None
    index: Index = UNKNOWN
    late: Late | None = None
    lineage: object = field(default_factory=object, compare=False, repr=False)

    @property
    def outer(self) -> int:
        """The number of streams that are concatenated along the axis."""
        return self.timeline.outer

    @property
    def frames(self) -> int:
        """The number of frames of one stream in the chunk."""
        return self.array.shape[self.axis] // self.outer

    def noting(self, index: Index) -> Chunk:
        """Return the chunk with an index, except for the growth, which is known."""
        return dataclasses.replace(self, index=dataclasses.replace(index, growth=self.index.growth))

    def holding(self, array: Any, axis: int | None = None) -> Chunk:
        """Return a chunk with a new array for the same frames; `axis` is the time axis, if it differs."""
        return Chunk(array, self.axis if axis is None else axis, self.timeline, self.delay, self.reach)


@short_repr
@dataclass(frozen=True)
class FinalValue:
    """A value that is known when the stream ends, such as a final carry or a sum over time.

    In a step, the array is the value for a stream that ends here.

    Attributes:
        array: the value.
        since: units of input after which the value is final, as for the first frame; None if only the end decides.
        reach: the input frames that the value depends on; None if no input is read.
        lineage: an identity of the content, as in `Chunk`.
    """

    array: Any
    since: Fraction | None = None
    reach: Reach | None = None
    lineage: object = field(default_factory=object, compare=False, repr=False)

    def holding(self, array: Any) -> FinalValue:
        """Return a value with a new array that is known at the same time."""
        return FinalValue(array, self.since, self.reach)


#: Larger than any distance between two frames.
FAR = 1 << 40


@dataclass(frozen=True)
class Low:
    """Minus infinity, or a value so low that the exponential is 0 beside the exponential of any score."""

    level: float


@dataclass(frozen=True)
class Band:
    """The frames that attention to all frames sees: `past` before the block of a query, and `future` after the block.

    None stands for a side without a bound.
    """

    past: int | None
    future: int | None = None
    block: int = 1

    def bounds(self, sides: Collection[str]) -> bool:
        """Return True if the band bounds the sides, of ``"earlier"`` and ``"later"``."""
        return all({"earlier": self.past, "later": self.future}[side] is not None for side in sides)

    def on(self, sides: Collection[str]) -> Band:
        """Return the band without bounds on other sides."""
        return Band(self.past if "earlier" in sides else None, self.future if "later" in sides else None, self.block)


@dataclass(frozen=True)
class Mask:
    """An equation that writes minus infinity, or a low `value`, into scores, or the first one that reads the scores.

    A mask of positions writes into scores. The scores of attention to all frames have a maximum over keys.
    """

    path: Path
    keys: int  # the side of the keys; later keys are masked
    value: float
    reads: bool = False  # True for the equation that reads the scores
    band: Band | None = None  # the band that the attention gets


#: The value outside of the bounds of a mask: a number or `Low`; None if unknown.
Outside = bool | int | float | Low | None


@dataclass(frozen=True, eq=False)
class Pairs:
    """An expression with time on two axes, the sides 0 and 1.

    The distance of a pair is the frame of side 1 minus the frame of side 0.

    Attributes:
        compute: ``grid -> array``.
        axes: the axes of both sides, in ascending order.
        timeline: the timeline of both sides.
        leaves: the chunks in the expression, with their sides.
        low, below: below the distance `low`, elements are `below`.
        high, above: above the distance `high`, elements are `above`.
        index: what is known of elements that depend only on the numbers of the frames.
        unclear: the first comparison that no index describes.
        shape, dtype: the shape for a whole recording, and the type of the elements.
        origin: the equation that computes the value, and the operands; None and the operand of a broadcast.
        masked: the equations in which a mask writes minus infinity into the scores.
    """

    compute: Callable[[Any], Any]
    axes: tuple[int, ...]
    timeline: Timeline
    leaves: tuple[tuple[Chunk, int], ...] = ()
    low: int = FAR
    high: int = -FAR
    below: Outside = None
    above: Outside = None
    index: Index = UNKNOWN
    unclear: str | None = None
    shape: tuple[Any, ...] = ()
    dtype: Any = None
    origin: tuple[Any, Sequence[Any]] = (None, ())
    masked: tuple[Mask, ...] = ()
    _kept: dict[Any, Any] = field(default_factory=dict)

    def made_by(self, equation: Any, operands: Sequence[Any]) -> Pairs:
        """Return the value with this equation as the origin."""
        (result,) = equation.outvars
        return dataclasses.replace(
            self, shape=tuple(result.aval.shape), dtype=result.aval.dtype, origin=(equation, operands)
        )

    def on(self, grid: Any) -> Any:
        """Return the elements for the pairs of a step."""
        if grid not in self._kept:
            self._kept[grid] = self.compute(grid)
        return self._kept[grid]

    def moved(self, compute: Callable[[Any], Any], axes: Iterable[int]) -> Pairs:
        """Return the same elements in a new layout."""
        first, second = axes
        if first < second:
            index = self.index.of_pairs
            return dataclasses.replace(self, compute=compute, axes=(first, second), shape=(), index=index, _kept={})
        return dataclasses.replace(
            self,
            compute=lambda grid: compute(grid.mirrored),
            axes=(second, first),
            shape=(),
            leaves=tuple((chunk, 1 - side) for chunk, side in self.leaves),
            low=-self.high,
            high=-self.low,
            below=self.above,
            above=self.below,
            index=self.index.of_pairs.swapped,
            _kept={},
        )


def known_since(values: Iterable[Any]) -> Fraction | None:
    """Return the units after which a result of values that are not streams is final; None if only the end decides."""
    since = [
        value.since if isinstance(value, FinalValue) else None if is_length(value) else Fraction(0) for value in values
    ]
    known = [units for units in since if units is not None]
    return max(known, default=Fraction(0)) if len(known) == len(since) else None


def reach_of(values: Iterable[Any]) -> Reach | None:
    """Return the reach of a result of values that are not streams."""
    return union(value.reach for value in values if isinstance(value, FinalValue))


@dataclass(frozen=True)
class Deferred:
    """A value that cannot be streamed. The error is raised only if the value is used in the end."""

    error: StreamError  # the error
    backwards: bool = False  # True if the value counts down from the end


@dataclass(frozen=True, eq=False, kw_only=True)
class Postponed(Deferred):
    """A value that does not fit into a step, but from which later equations take parts that fit."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Joined(Postponed):
    """Pairs of frames and other columns, such as an attention sink, joined along one of both time axes.

    With axis -1, the only part is a number, which all elements equal.
    """

    axis: int
    parts: tuple[Any, ...]
    shapes: tuple[tuple[Any, ...], ...]  # of each part, for a whole recording


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows(Postponed):
    """Constant rows that follow from their distance from the end: row r is a function of ``r - origin``.

    Example: rows ``512 - n`` to 512 of a table, where the origin is n, the length.
    """

    axis: int
    size: Any  # a symbolic dimension
    origin: Any  # a symbolic dimension
    at: Callable[[Any], Any]  # the rows for a vector of differences
    counts: tuple[int, int] | None = (
        None  # factor and summand, if the rows are numbers ``factor * difference + summand``
    )


@dataclass(frozen=True, eq=False)
class Shifted:
    """The sum of a stream and a final value, which is a chunk with one frame. A missing part is None.

    The final value is a weighted sum of values: `factors` are the weights, keyed by lineage.
    """

    stream: Chunk | None
    final: Chunk | None
    factors: Mapping[object, float] = field(default_factory=dict)

    @classmethod
    def by(cls, final: Chunk | None) -> Shifted:
        """Return a final value as a sum without a stream."""
        return cls(None, final, {} if final is None else {final.lineage: 1})


@dataclass(frozen=True, eq=False, kw_only=True)
class Awaiting(Deferred):
    """A product of factors. Some factors are known only when the stream ends, and missing factors are None.

    Attributes:
        axis: the time axis.
        timeline: the timeline of the frames.
        final: a factor that is known when the stream ends, as a chunk with one frame.
        stream: a factor that is a stream.
        exponent: the exponential of this sum is a factor.
        shifted: further factors.
    """

    axis: int
    timeline: Timeline
    final: Chunk | None = None
    stream: Chunk | None = None
    exponent: Shifted | None = None
    shifted: tuple[Shifted, ...] = ()

    @property
    def is_final(self) -> bool:
        """True if all frames are equal."""
        return self.stream is None and self.exponent is None and not self.shifted

    @property
    def sum(self) -> Shifted | None:
        """The value as a stream plus a final value, or None."""
        if self.is_final:
            return Shifted.by(self.final)
        if self.exponent is None and self.final is None and not self.shifted:
            return Shifted(self.stream, None)
        alone = self.final is self.stream is self.exponent is None and len(self.shifted) == 1
        return self.shifted[0] if alone else None

    def each(self, function: Callable[[Chunk], Chunk], **changed: Any) -> Awaiting:
        """Apply a function to all chunks; the same sums stay the same."""
        known: dict[int, Shifted] = {}

        def of(chunk: Chunk | None) -> Chunk | None:
            return None if chunk is None else function(chunk)

        def of_sum(each: Shifted) -> Shifted:
            moved = Shifted.by(of(each.final))
            return known.setdefault(id(each), dataclasses.replace(moved, stream=of(each.stream)))

        exponent = None if self.exponent is None else of_sum(self.exponent)
        return dataclasses.replace(
            self, final=of(self.final), stream=of(self.stream), exponent=exponent,
            shifted=tuple(map(of_sum, self.shifted)), **changed,
        )  # fmt: skip


def is_static(value: Any) -> bool:
    """Return True if a value is known while tracing: a number or NumPy array, perhaps of symbolic dimensions."""
    return isinstance(value, (np.ndarray, np.generic, int, float, bool))


def is_length(value: Any) -> bool:
    """Return True if a static value depends on the length of the stream."""
    return isinstance(value, np.ndarray) and value.dtype == object


def is_fixed(value: Any) -> bool:
    """Return True for a static value that is the same for all lengths of the stream."""
    return is_static(value) and not is_length(value)


def is_awaited(value: Any) -> bool:
    """Return True for a value that only the end of the stream decides."""
    return isinstance(value, Awaiting) or is_length(value) or (isinstance(value, FinalValue) and value.since is None)


def known_at_end(values: Sequence[Any]) -> bool:
    """Return True if a value is known only when the stream ends."""
    return any(isinstance(value, FinalValue) or is_length(value) for value in values)


def static_integer(value: Any) -> Any:
    """Return a static value of one element as an integer or symbolic dimension; otherwise None."""
    if not is_static(value) or np.size(value) != 1:
        return None
    item = np.asarray(value).reshape(-1)[0]
    if is_symbolic(item):
        return item if is_length(value) else None
    return int(item)


def static_number(value: Any) -> Any:
    """Return the number that all elements of a static array equal, or None."""
    array = np.asarray(value) if is_fixed(value) else np.empty(0)
    return array.flat[0].item() if array.size and np.all(array == array.flat[0]) else None


def term_of(value: Any) -> Index:
    """Return the index of an operand."""
    if isinstance(value, Chunk | Pairs):
        return value.index
    if is_fixed(value):
        return Index.constant(np.asarray(value))
    return Index.of(0, 0, value) if is_length(value) else UNKNOWN


def index_after(equation: JaxprEqn, operands: Sequence[Any]) -> Index:
    """Return the index of a result."""
    like = next((value for value in operands if isinstance(value, Chunk | Pairs)), None)
    return index_of(equation, list(map(term_of, operands)), 1 if like is None else like.timeline.per_unit)


def along(vector: Any, axis: int, rank: int) -> Any:
    """Reshape a vector to lie along one axis of an array of the given rank."""
    return jnp.reshape(vector, [-1 if index == axis else 1 for index in range(rank)])


def split_outer(array: Any, chunk: Chunk) -> Any:
    """Move streams that share the time axis to a separate axis before the time axis."""
    if chunk.outer == 1:
        return array
    shape = list(array.shape)
    shape[chunk.axis : chunk.axis + 1] = [chunk.outer, shape[chunk.axis] // chunk.outer]
    return array.reshape(shape)
