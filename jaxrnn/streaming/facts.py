"""Facts about a function, which `jaxrnn.streaming.plan.analyse` collects and all later passes read."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Var

from jaxrnn.jaxprs.equations import evaluate
from jaxrnn.jaxprs.moves import split
from jaxrnn.steps.stepspec import Layout, State
from jaxrnn.streaming.diagnostics import Path
from jaxrnn.streaming.dimensions import Laps, Timeline
from jaxrnn.streaming.values import Band, Mask


class Initial:
    """The state before the first frame: mostly constants, and a small program for entries that depend on arguments.

    `closed` computes the state entries, in the order of the layout, from the leaves of the parameters and the inputs
    that are constant in time.
    """

    def __init__(self, layout: Layout, closed: ClosedJaxpr):
        self.layout, self.closed = layout, closed

    @functools.cached_property
    def _split(self) -> tuple[list[np.ndarray | None], ClosedJaxpr, list[bool]]:
        return split(self.closed)

    @property
    def depends(self) -> list[bool]:
        """For each argument, True if the state depends on the argument."""
        return self._split[2]

    @functools.cached_property
    def known(self) -> State | None:
        """The state as NumPy arrays, or None if an entry depends on arguments."""
        values, *_ = self._split
        if any(value is None for value in values):
            return None
        return self.layout.pack(dict(zip(self.layout.places, values, strict=True)))

    def __call__(self, arguments: Sequence[Any]) -> State:
        """Return the state for some arguments."""
        values, rest, _ = self._split
        computed = iter(evaluate(rest, arguments))
        entries = [next(computed) if value is None else value for value in values]
        return self.layout.pack(dict(zip(self.layout.places, entries, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Properties of a function on chunks."""

    warm_up: int  # units that run before the first input, because some values have frames that early
    horizon: int  # units after which no result depends on the number of frames
    counts: bool  # True if some value needs the number of units
    laps: Laps  # how a 32-bit count of units avoids overflow
    counts_laps: bool = False  # True if some value needs the number of laps
    #: timeline and delay of each value that the flush must complete
    sinks: frozenset[tuple[Timeline, int]] = frozenset()
    kinds: Mapping[str, str] = field(default_factory=dict)  # the kind of each state entry, such as "delay" or "carry"
    #: for each loop around time, the templates of the carry until they stop changing
    carries: Mapping[Any, Any] = field(default_factory=dict)
    #: the band of the attention at a path, in the analysis that finds the masks of attention to all frames
    bands: Callable[[Path], Band] | None = None
    masks: tuple[Mask, ...] = ()
    positive: frozenset[Var] = frozenset()  # factors of wide values that are positive and finite; see `narrow`
    outputs: tuple[Any, ...] = ()  # chunks and final values without arrays; other outputs are None
    results: tuple[Any, ...] = ()  # the shape and dtype of each output, for the smallest pulse


class NewFactError(AssertionError):
    """Raised if a pass that computes notes a fact that the analysis has not found."""


class Known:
    """The facts in a pass that computes: each note of the pass is among the facts."""

    def __init__(self, facts: Facts):
        self.facts = facts

    def note(self, **facts: Any) -> None:
        """Note facts, keyed by attributes of `Facts`."""
        new = {name: value for name, value in facts.items() if value != getattr(self.facts, name)}
        if new:
            self._learn(new)

    def _learn(self, new: dict[str, Any]) -> None:
        raise NewFactError(f"a pass finds {new}, which the analysis has not found")

    def wait_for(self, timeline: Timeline, frames: int) -> None:
        """Note that results depend on the number of frames until this number has come."""
        self.note(horizon=max(self.facts.horizon, timeline.settled, -(-frames // timeline.per_unit)))

    def complete(self, timeline: Timeline, delay: int) -> None:
        """Note a value that the flush must complete."""
        self.note(sinks=self.facts.sinks | {(timeline, delay)})

    def repeat(self, period: int, growth: Fraction | int = 0) -> None:
        """Note values of this period, in units, which grow by `growth` in a unit; see `Laps`."""
        self.note(laps=self.facts.laps.including(period, growth))


class Collected(Known):
    """The facts in the pass that analyses, which collects the notes of rules.

    The pass may read facts before they are complete: no unit has come yet, so that horizon and laps do not matter.
    """

    def _learn(self, new: dict[str, Any]) -> None:
        self.facts = dataclasses.replace(self.facts, **new)
