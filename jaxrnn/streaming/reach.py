"""Reach: the input frames that each frame of a value depends on.

A `Reach` is a small expression that rules build while they run: the input, a slice, a window, a union. The expression
is evaluated only on request, on recordings of a few lengths, with one interval of input frames for each frame. So
look-ahead and receptive field are exact at the start, in the middle and at the end of a recording.

Example: for ``y = x[1:] - x[:-1]``, frame i of y reads input frames i to i + 1. With 4 input frames, the span of y is
``first = [0, 1, 2]``, ``last = [1, 2, 3]``: look-ahead 1, receptive field 2.

Only intervals are kept: a frame that reads input frames 0 and 7 counts as a frame that reads 0 to 7.
"""

from __future__ import annotations

import collections
import functools
import operator
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from jaxrnn.streaming.dimensions import Clock, Timeline

#: The first input frame of an unbounded past, and the bounds of the interval of a frame that reads no input.
_ALL, _EMPTY = -(1 << 40), 1 << 40


class Span(NamedTuple):
    """The earliest and latest input frame that each frame depends on, ``int64[frames]``."""

    first: np.ndarray
    last: np.ndarray

    @classmethod
    def empty(cls, frames: int) -> Span:
        """Return the span of frames that read no input."""
        return cls(np.full(frames, _EMPTY), np.full(frames, -_EMPTY))

    def at(self, places: np.ndarray) -> Span:
        """Return the span of the frames with these indices; an index out of range reads no input."""
        inside = (places >= 0) & (places < len(self.first))
        if not len(self.first):
            return Span.empty(len(places))
        places = np.clip(places, 0, len(self.first) - 1)
        return Span(np.where(inside, self.first[places], _EMPTY), np.where(inside, self.last[places], -_EMPTY))

    def together(self) -> Span:
        """Return the span of a single frame that depends on all these frames."""
        return Span(
            np.min(self.first, keepdims=True, initial=_EMPTY), np.max(self.last, keepdims=True, initial=-_EMPTY)
        )

    def __or__(self, other: Span) -> Span:
        return Span(np.minimum(self.first, other.first), np.maximum(self.last, other.last))


class Reach:
    """The input frames that the frames of a value depend on. Equal expressions are the same object.

    A value that is not a stream has a single interval, and no timeline. `compute` returns the span from the length of
    the recording and the spans of `parents`, the expressions that this expression reads. `wide` bounds the number
    of frames that this expression adds to an interval, in frames of the trace.
    """

    def __init__(self, timeline: Timeline | None, compute: Callable[..., Span], parents: tuple[Reach, ...], wide: int):
        self._timeline, self._compute, self._parents, self._wide = timeline, compute, parents, wide
        self._extents: dict[Any, Extent] = {}

    # -- expressions

    @staticmethod
    def of_input(timeline: Timeline, times: int, multiple: int) -> Reach:
        """Return the reach of an input with `times` frames for each group of `multiple` input frames."""

        def compute(total: int) -> Span:
            own = np.arange(_count(timeline, total)) * multiple // times
            return Span(own, own)

        return _interned(timeline, compute, ("input", timeline, times, multiple), ())

    @staticmethod
    def of_nothing(timeline: Timeline) -> Reach:
        """Return the reach of frames that read no input."""
        return _interned(timeline, lambda total: Span.empty(_count(timeline, total)), ("nothing", timeline), ())

    def __or__(self, other: Reach) -> Reach:
        if self is other:
            return self
        parts = {*self._parts, *other._parts}
        covered = {part._parents[0] for part in parts if part._compute is _accumulated}
        parts = sorted(parts - covered, key=id)
        return parts[0] if len(parts) == 1 else _interned(self._timeline, _union, ("union",), tuple(parts))

    @property
    def _parts(self) -> tuple[Reach, ...]:
        return self._parents if self._compute is _union else (self,)

    @property
    def unbounded(self) -> Reach:
        """The reach of frames that depend on these frames and on all earlier frames."""
        parts = (
            part if part._compute is _accumulated else _interned(part._timeline, _accumulated, ("past",), (part,))
            for part in self._parts
        )
        return functools.reduce(operator.or_, parts)

    def taken(self, timeline: Timeline, start: int, stride: int) -> Reach:
        """Return the reach of frames ``start``, ``start + stride``, ..."""

        def compute(total: int, span: Span) -> Span:
            return span.at(start + stride * np.arange(_count(timeline, total)))

        return _interned(timeline, compute, ("take", timeline, start, stride), (self,), abs(start) + stride)

    def under(self, timeline: Timeline, length: int, stride: int, dilation: int, spacing: int, low: int) -> Reach:
        """Return the reach of windows, in the terms of ``lax.conv_general_dilated``.

        Frames are dilated by `spacing` and padded by `low` frames at the start. Window j reads `length` of these
        frames, from ``j * stride`` on, with a step of `dilation`.
        """

        def compute(total: int, span: Span) -> Span:
            count = _count(timeline, total)
            seen = np.arange((count - 1) * stride + (length - 1) * dilation + 1 if count else 0) - low
            spread = span.at(np.where(seen % spacing, -1, seen // spacing))
            first = _sliding(np.minimum, spread.first, length, dilation)[::stride]
            return Span(first[:count], _sliding(np.maximum, spread.last, length, dilation)[::stride][:count])

        key = ("window", timeline, length, stride, dilation, spacing, low)
        return _interned(timeline, compute, key, (self,), ((length - 1) * dilation + abs(low)) // spacing + stride)

    def merged(self, timeline: Timeline, times: int) -> Reach:
        """Return the reach after each frame was replaced by `times` frames."""

        def compute(total: int, span: Span) -> Span:
            return span.at(np.arange(_count(timeline, total)) // times)

        return _interned(timeline, compute, ("merge", timeline, times), (self,))

    def split(self, timeline: Timeline, times: int) -> Reach:
        """Return the reach after each group of `times` frames became one frame."""
        return self.under(timeline, times, times, 1, 1, 0)

    def concatenated(self, timeline: Timeline, front: Reach | None, low: int, after: Reach | None) -> Reach:
        """Return the reach of these frames after `low` front frames and before other frames; None reads no input."""
        parents = [each for each in (front, after) if each is not None]

        def compute(total: int, span: Span, *others: Span) -> Span:
            places, end = np.arange(_count(timeline, total)) - low, len(span.first)
            result, values = span.at(places), iter(others)
            for known, here in ((front, places < 0), (after, places >= end)):
                if known is not None:
                    value = next(values)
                    result = Span(np.where(here, value.first, result.first), np.where(here, value.last, result.last))
            return result

        key = ("join", timeline, low, front is None, after is None)
        return _interned(timeline, compute, key, (self, *parents), low)

    def picked(self, start: int, stride: int, count: int, *, back: int | None = None) -> Reach:
        """Return the reach of a few frames, from `start` on or from `back` frames before the end."""

        def compute(total: int, span: Span) -> Span:
            begin = start if back is None else max(len(span.first) - back, 0)
            return span.at(begin + stride * np.arange(count)).together()

        return _interned(
            None, compute, ("pick", start, stride, count, back), (self,), start + stride * count + (back or 0)
        )

    @property
    def of_all(self) -> Reach:
        """The reach of a value that depends on all frames."""
        return _interned(None, _over_all, ("all",), (self,))

    def everywhere(self, timeline: Timeline) -> Reach:
        """Return the reach of frames that all depend on this single value."""
        return self.taken(timeline, 0, 0)

    # -- evaluation

    def span(self, total: int, kept: Spans | None = None) -> Span:
        """Return the intervals in a recording of `total` frames of the trace."""
        order = [node for node in self._ancestors() if kept is None or (node, total) not in kept]
        readers = collections.Counter(parent for node in order for parent in node._parents)
        spans = {} if kept is None else kept
        for node in order:
            spans[node, total] = node._compute(total, *(spans[parent, total] for parent in node._parents))
            readers.subtract(node._parents)
            for parent in set(node._parents) if kept is None else ():
                if not readers[parent]:
                    del spans[parent, total]  # save memory
        return spans[self, total]

    def extent(self, timeline: Timeline | None, clock: Clock, kept: Spans | None = None) -> Extent:
        """Return the largest intervals over all frames; `kept` is a cache of spans that other values may share."""
        key = timeline, clock
        if key not in self._extents:
            self._extents[key] = self._measured(timeline, clock, kept)
        return self._extents[key]

    def _measured(self, timeline: Timeline | None, clock: Clock, kept: Spans | None) -> Extent:
        bound = self._bound(clock.unit)
        # Shorter recordings would not do: their windows reach beyond an end, or do not fit. The power of two makes
        # many values share `kept`.
        lengths = clock.lengths(1 << (2 * bound + 8).bit_length())
        found = [_extent_of(self.span(total, kept), timeline, clock, total) for total in lengths]
        extent = functools.reduce(operator.or_, found)
        far = max(abs(extent.first or 0), abs(extent.last), extent.field or 0)
        if lengths[0] > 2 * bound + 8 and far > bound * clock.multiple:  # the interval grows with the recording
            return extent._replace(first=None, field=None)
        return extent

    def _bound(self, unit: int) -> int:
        """Return an upper bound of the frames of the trace between a frame and the input frames that it depends on."""
        bounds: dict[Reach, int] = {}
        for node in self._ancestors():
            bounds[node] = node._wide + max((bounds[parent] for parent in node._parents), default=4 * unit)
        return bounds[self]

    def _ancestors(self) -> list[Reach]:
        """Return the expressions that this expression depends on, parents first, and this expression."""
        order: list[Reach] = []
        seen, stack = set(), [(self, False)]
        while stack:
            node, done = stack.pop()
            if done:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                stack += [(node, True), *((parent, False) for parent in node._parents)]
        return order


class ComparableReach:
    """A reach that compares equal if the intervals in a long recording are equal."""

    def __init__(self, reach: Reach, timeline: Timeline):
        self._reach, self._unit = reach, timeline.unit

    def __hash__(self) -> int:
        return hash(ComparableReach)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ComparableReach):
            return NotImplemented
        if self._reach is other._reach:
            return True
        reaches = self._reach, other._reach
        total = self._unit * (2 * max(reach._bound(self._unit) for reach in reaches) // self._unit + 1)
        one, two = (reach.span(total) for reach in reaches)
        return np.array_equal(one.first, two.first) and np.array_equal(one.last, two.last)


#: Spans, keyed by reach and length of the recording.
Spans = dict[tuple[Reach, int], Span]


class Extent(NamedTuple):
    """The largest interval of input frames that a frame of a value depends on."""

    first: int | None  # the earliest input frame, relative to the frame; None if unbounded
    last: int  # the latest input frame, relative to the frame
    field: int | None  # number of input frames from the first to the last; None if unbounded

    def __or__(self, other: Extent) -> Extent:
        first = None if self.first is None or other.first is None else min(self.first, other.first)
        field = None if self.field is None or other.field is None else max(self.field, other.field)
        return Extent(first, max(self.last, other.last), field)


def _extent_of(span: Span, timeline: Timeline | None, clock: Clock, total: int) -> Extent:
    depends = span.last > -_EMPTY
    first, last = span.first[depends], span.last[depends]
    if not len(first):
        return Extent(0, 0, 0)
    places: Any = last  # a value that is not a stream has no place in time
    if timeline is not None:
        places = (np.arange(len(span.first)) * timeline.unit * clock.multiple // timeline.per_unit)[depends]
    latest = int(np.max(last - places))
    if np.any(first == _ALL):
        return Extent(None, latest, None)
    return Extent(int(np.min(first - places)), latest, int(np.max(last - first)) + 1)


#: All expressions, keyed by their parts. Equal expressions are the same object, so loops detect a fixed point.
_EXPRESSIONS: weakref.WeakValueDictionary[Any, Reach] = weakref.WeakValueDictionary()


def _interned(
    timeline: Timeline | None, compute: Callable[..., Span], detail: Any, parents: tuple[Reach, ...], frames: int = 0
) -> Reach:
    """Return the unique expression with this key; `frames` bounds how far a frame reaches into a parent."""
    key = (*detail, *parents)
    known = _EXPRESSIONS.get(key)
    if known is None:
        times = [parent._timeline for parent in parents if parent._timeline is not None]
        wide = max((-(-frames * each.unit // each.per_unit) for each in times), default=0)
        known = _EXPRESSIONS.setdefault(key, Reach(timeline, compute, parents, wide))
    return known


def _count(timeline: Timeline, total: int) -> int:
    return int(timeline.length(total))


def _union(total: int, *spans: Span) -> Span:
    return functools.reduce(operator.or_, spans)


def _accumulated(total: int, span: Span) -> Span:
    last = np.maximum.accumulate(span.last)
    return Span(np.where(last > -_EMPTY, _ALL, _EMPTY), last)


def _over_all(total: int, span: Span) -> Span:
    return _accumulated(total, span.together())


def _sliding(extreme: np.ufunc, values: np.ndarray, length: int, dilation: int) -> np.ndarray:
    """Return the maximum or minimum of each window of `length` values with a step of `dilation`, by doubling."""
    width = 1
    while 2 * width <= length:
        values = extreme(values[: max(len(values) - width * dilation, 0)], values[width * dilation :])
        width *= 2
    rest = (length - width) * dilation
    return extreme(values[: len(values) - rest], values[rest:]) if rest else values


def union(reaches: Iterable[Reach | None]) -> Reach | None:
    """Return the reach of a value that depends on several values; None reads no input."""
    known = [reach for reach in reaches if reach is not None]
    return functools.reduce(operator.or_, known) if known else None
