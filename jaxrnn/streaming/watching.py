"""Watching `stream` at work: what it knows of every value, also of those before a refusal."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import shape_of
from jaxrnn.streaming.reach import Spans
from jaxrnn.streaming.sources import Path, node_scope_of
from jaxrnn.streaming.timeline import Clock
from jaxrnn.streaming.values import Chunk, FinalValue


@dataclass(frozen=True)
class StreamedValue:
    """What is known of one value in pulses.

    Attributes:
        shape: over all of time: sizes, as text where they depend on the length.
        axis: the time axis; None for a value that is known when the stream ends.
        delay: frames that come before its frame 0; None where all frames are equal, or at the end.
        rate: frames for each input frame; None at the end.
        first: the earliest input frame that a frame depends on, counted from its own place; None for all of the past.
        last: the latest one.
        varies: whether it depends on the input at all.
    """

    shape: tuple[int | str, ...]
    axis: int | None = None
    delay: int | None = None
    rate: Fraction | None = None
    first: int | None = None
    last: int = 0
    varies: bool = True


class Watched(dict[str, list[StreamedValue]]):
    """Values by the scope that they were traced in, in the order in which they were computed."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: Spans = {}


_WATCHED: contextvars.ContextVar[Watched | None] = contextvars.ContextVar("watched", default=None)


@contextlib.contextmanager
def watched() -> Iterator[Watched]:
    """Collect the values of whatever is streamed inside; after an error, those until then."""
    values = Watched()
    token = _WATCHED.set(values)
    try:
        yield values
    finally:
        _WATCHED.reset(token)
        values.spans.clear()


def tell(path: Path, equation: JaxprEqn, results: Sequence[object], clock: Clock) -> None:
    """Note the results of an equation inside `watched`."""
    values = _WATCHED.get()
    if values is None:
        return
    scope = node_scope_of(path)
    for variable, result in zip(equation.outvars, results, strict=True):
        shape = tuple(size if isinstance(size, int) else str(size) for size in shape_of(variable))
        if isinstance(result, Chunk):
            timeline, reach = result.timeline, result.reach
            known = StreamedValue(shape, result.axis, result.delay, timeline.rate, varies=reach is not None)
            if reach is not None:
                extent = reach.extent(timeline, clock, values.spans)
                known = dataclasses.replace(known, first=extent.first, last=extent.last)
            values.setdefault(scope, []).append(known)
        elif isinstance(result, FinalValue):
            values.setdefault(scope, []).append(StreamedValue(shape))
