"""What a pass keeps for the next one: the entries of the state, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxrnn.streaming.moments import Moment
from jaxrnn.streaming.sources import Path, label_of
from jaxrnn.streaming.timeline import Timeline


class KeepsStateError(Exception):
    """A part of a function keeps state, or brings frames to other delays."""


class Memory(Moment):
    """The state of a stream before and after a pass.

    Attributes:
        state: the entries before it; None in the first pass, where every entry begins.
        stateless: what keeps state raises `KeepsStateError`.
        prefix: of the names of entries.
        path: the equation at hand, after those inside of which it is.
        begun, new: the entries that begin in this pass, and those after it.
    """

    state: Mapping[str, Any] | None
    stateless: bool
    prefix: str
    path: Path
    begun: dict[str, Any]
    new: dict[str, Any]
    _used: dict[str, int]

    def carry(self, kind: str, start: Callable[[], Any]) -> tuple[str, Any]:
        """An entry of the state: its name and its value before this pass."""
        if self.stateless:
            raise KeepsStateError
        label = label_of(self.path) if self.path else "stream"
        name = self.unique(f"{self.prefix}{label}.{kind}")
        self.facts.kinds[name] = kind.rstrip("0123456789")
        if self.state is None:
            self.begun[name] = self.new[name] = start()
            return name, self.begun[name]
        return name, self.state[name]

    def unique(self, name: str) -> str:
        """The name, numbered where it has been used before in this pass."""
        seen = self._used.get(name, 0)
        self._used[name] = seen + 1
        return name if seen == 0 else f"{name}.{seen + 1}"

    def store(self, name: str, value: Any, timeline: Timeline | None = None, delay: int | None = None) -> None:
        """Set an entry of the state for the next pass.

        What gathers the frames of a chunk, with this timeline and delay, stays what it begins with until one exists.
        """
        if timeline is not None and delay is not None and self.is_empty(timeline, delay):
            value = (self.begun if self.state is None else self.state)[name]
        self.new[name] = value
