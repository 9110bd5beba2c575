"""When a pass takes place: which frames its chunks hold, which of them exist, and what passes learn on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.streaming.timeline import Clock, Timeline


@dataclass(frozen=True)
class Absent:
    """What stands in frames that do not exist. Results never depend on it; tests set NaN to see that.

    Attributes:
        value: in buffers before the first frame, and in the input after the last.
        integer: the same for integers; for booleans, whether it is zero.
        harmless: what operations with a singular derivative read in place of such frames, so that no gradient becomes
            NaN; None to let them read what is there.
    """

    value: float = 0.0
    integer: int = 0
    harmless: float | None = 0.5

    def of(self, dtype: Any) -> Any:
        """What stands in frames of an element type."""
        if jnp.issubdtype(dtype, jnp.inexact):
            return self.value
        return bool(self.integer) if jnp.issubdtype(dtype, np.bool_) else self.integer


@dataclass
class Facts:
    """What passes learn about a function on the way, the same in every pass.

    Attributes:
        warm_up: units that must have run before the first input, because values have frames that early.
        sinks: timeline and delay of whatever the flush has to run through.
        kinds: for each entry of the state, what it is for.
        horizon: units after which nothing depends on the number of frames any more.
        counts: whether some value needs the true number of units.
        carries: by loop, what its carries become before they settle.
    """

    warm_up: int = 0
    horizon: int = 0
    counts: bool = False
    sinks: list[tuple[Timeline, int]] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    carries: dict[Any, Any] = field(default_factory=dict)

    def wait_for(self, timeline: Timeline, frames: int) -> None:
        """Something depends on the number of frames until so many have come."""
        self.horizon = max(self.horizon, timeline.settled, -(-frames // timeline.per_unit))


class Moment:
    """The place of a pass in time.

    Attributes:
        clock: the timelines.
        units: units of input frames in every chunk.
        count: units before this pass: an integer, negative in the warm-up, or a traced one that stops growing when
            nothing depends on it any more.
        existing: input frames of this pass that exist, when the stream ends in it; None while more may come.
        before: the true number of units before this pass, where some value asks for it.
        facts: what passes learn.
    """

    clock: Clock
    units: int
    count: Any
    existing: Any
    before: Any
    facts: Facts

    @property
    def total(self) -> Any:
        """The true number of input frames when this pass is over, for values known at the end."""
        before = self.units_before
        here = self.units * self.clock.unit if self.existing is None else self.existing
        return before * np.asarray(self.clock.unit, before.dtype) + jnp.asarray(here, before.dtype)

    @property
    def units_before(self) -> Any:
        """The true number of units before this pass; it counts on without end."""
        self.facts.counts = True
        return jnp.zeros((), jax.dtypes.canonicalize_dtype(np.int64)) if self.before is None else self.before

    def start(self, timeline: Timeline, delay: int) -> Any:
        """The frame that a chunk of this pass begins with: an integer or traced."""
        return self.count * timeline.per_unit - delay

    def frames_of(self, timeline: Timeline) -> int:
        """Frames in a chunk of this pass."""
        return self.units * timeline.per_unit

    def indices(self, timeline: Timeline, delay: int) -> Any:
        """The frames that a chunk of this pass holds, ``int[q]``: a NumPy array where they are known."""
        return self.start(timeline, delay) + np.arange(self.frames_of(timeline), dtype=np.int32)

    def end(self, timeline: Timeline) -> Any:
        """The number of frames that there will ever be; None while more may come."""
        if self.existing is None:
            return None
        return timeline.length(self.count * self.clock.unit + self.existing)

    def exists(self, timeline: Timeline, delay: int) -> Any:
        """Which frames of a chunk exist: True or False where that is known of all of them, else ``bool[q]``."""
        end = self.end(timeline)
        if isinstance(self.count, int):
            known = self.indices(timeline, delay) >= 0
        elif delay <= 0:
            known = True  # a count that is not known while tracing is never negative
        else:
            # By each frame, the units before this pass from which on it exists.
            known = self.count >= -((np.arange(self.frames_of(timeline), dtype=np.int32) - delay) // timeline.per_unit)
        if end is not None:
            known = known & (self.indices(timeline, delay) < end)
        if isinstance(known, np.ndarray):
            return bool(known[0]) if np.all(known == known[0]) else known
        return known

    def is_empty(self, timeline: Timeline, delay: int) -> bool:
        """Whether it is known that no frame of a chunk exists: what it holds is then never read."""
        return isinstance(self.count, int) and self.exists(timeline, delay) is False
