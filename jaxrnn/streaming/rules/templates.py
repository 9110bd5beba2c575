"""Chunks across a boundary that only arrays may cross, such as the body of a loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.reach import Content
from jaxrnn.streaming.values import Chunk, Deferred, FinalValue


@dataclasses.dataclass(frozen=True)
class Template:
    """What a value is, without its array: a chunk and where it lies, a value known at the end, or (None) an array."""

    chunk: Chunk | None = None
    final: bool = False

    @classmethod
    def of(cls, value: Any) -> Template:
        """What a value is."""
        if isinstance(value, Chunk):
            return cls(dataclasses.replace(value, array=None))
        return cls(final=isinstance(value, FinalValue))

    def around(self, array: Any, axis: int = 0) -> Any:
        """The value of this kind that holds an array, in which time is so many axes further back."""
        if self.chunk is not None:
            return self.chunk.holding(array, self.chunk.axis + axis)
        return FinalValue(array) if self.final else array

    @property
    def delay(self) -> int | None:
        """The delay of a chunk with frames of its own."""
        return None if self.chunk is None else self.chunk.delay

    @property
    def is_same_as(self) -> tuple[Any, ...]:
        """What must be equal for one to stand for the other."""
        if self.chunk is None:
            return (self.final,)
        timeline, reach = self.chunk.timeline, self.chunk.reach
        reads = None if reach is None else Content(reach, timeline)
        return (self.chunk.axis, self.chunk.delay, self.chunk.outer, str(timeline.size), reads)


def around(kinds: Sequence[Template], arrays: Sequence[Any]) -> list[Any]:
    """The values of these kinds that hold the arrays."""
    return [kind.around(array) for kind, array in zip(kinds, arrays, strict=True)]


def array_of(value: Any) -> Any:
    """The array of a value.

    Raises:
        StreamError: it cannot be streamed.
    """
    if isinstance(value, Deferred):
        raise value.error
    return value.array if isinstance(value, (Chunk, FinalValue)) else value


def arrays_of(values: Sequence[Any]) -> list[Any]:
    """The arrays of values."""
    return [array_of(value) for value in values]


def templates_of(function: Callable[[Any], list[Any]], arrays: Any) -> list[Template]:
    """What the values are that a function makes of arrays, without computing them."""
    templates: list[Template] = []

    def trial(arrays: Any) -> list[Any]:
        values = function(arrays)
        templates.extend(map(Template.of, values))
        return arrays_of(values)

    jax.eval_shape(trial, arrays)
    return templates


def slice_kind(value: Any) -> Template:
    """What one slice of a scanned value is: time lies one axis further in front."""
    kind = Template.of(value)
    return Template.of(kind.around(None, -1)) if kind.chunk is not None else kind


def made(run: Pass, kind: Template, array: Any, further: int = 0) -> Any:
    """A value of a kind, made anew outside of what only arrays leave; time may lie further back."""
    if kind.chunk is None:
        return array
    chunk = kind.chunk
    return run.make(array, chunk.axis + further, chunk.timeline, chunk.delay, chunk.reach)
