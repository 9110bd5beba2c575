"""Time in a pass: which frames a chunk holds, which frames exist, and the findings of the passes about a function."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Var

from jaxrnn.streaming.dimensions import Clock, Laps, Timeline, magnitude_of
from jaxrnn.streaming.values import Mask


@dataclass
class Findings:
    """Properties of a function that the passes find; all passes find the same properties."""

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


@dataclass(frozen=True, eq=False)
class Instant:
    """The time of a pass.

    Attributes:
        clock: the timelines.
        found: the findings of the passes.
        units: units of input frames in each chunk.
        count: units before this pass: an integer, negative during the warm-up, or a traced integer that stops at
            `Findings.horizon`.
        existing: number of input frames of this pass that exist, if the stream ends in this pass; otherwise None.
        before: the number of units before this pass, if some value needs the number.
        laps: the number of laps before this pass, if some value needs the number.
    """

    clock: Clock
    found: Findings
    units: int
    count: Any
    existing: Any = None
    before: Any = None
    laps: Any = None

    @property
    def total(self) -> Any:
        """The number of input frames up to the end of this pass; see `units_before`."""
        before = self.units_before
        here = self.units * self.clock.unit if self.existing is None else self.existing
        return before * np.asarray(self.clock.unit, before.dtype) + jnp.asarray(here, before.dtype)

    @property
    def units_before(self) -> Any:
        """The number of units before this pass, without the limit of `count`; 32-bit integers count in `Laps`."""
        self.found.counts = True
        return jnp.zeros((), jax.dtypes.canonicalize_dtype(np.int64)) if self.before is None else self.before

    def cast_positions(self, positions: Any, growth: Any, dtype: Any) -> Any:
        """Cast positions or lengths, which grow by `growth` in a unit, to a dtype.

        Signed integers of 32 bits count in laps. In other dtypes, the laps that were lost are added again.
        """
        here, there = (np.dtype(each) == np.int32 for each in (positions.dtype, dtype))
        if here == there or np.dtype(dtype) == np.bool_:
            return positions.astype(dtype)
        if there:  # from 64 bits
            lost = self._lost(self.found.laps.completed(self.units_before), growth, positions.dtype)
            return (positions - lost).astype(dtype)
        return self._with_laps(positions, growth, dtype)

    def _with_laps(self, positions: Any, growth: Any, dtype: Any) -> Any:
        self.found.counts_laps |= self.units_before.dtype == np.int32
        if self.before is None:
            return positions.astype(dtype)
        laps = self.found.laps.completed(self.before) if self.laps is None else self.laps
        # Floats are added in at least 32 bits, and integers modulo the size of their dtype.
        wide = np.float32 if jnp.issubdtype(dtype, jnp.floating) and np.dtype(dtype).itemsize < 4 else dtype
        return (positions.astype(wide) + self._lost(laps, growth, wide)).astype(dtype)

    def _lost(self, laps: Any, growth: Any, dtype: Any) -> Any:
        lap = np.asarray(self.found.laps.length * growth).astype(np.int64)
        return laps.astype(dtype) * lap.astype(dtype)

    def falling(self, growth: Any, dtype: Any) -> Any:
        """Return the difference between positions in this pass and in the next pass, if a lap ends in between."""
        before, laps = self.units_before, self.found.laps
        done = laps.completed(before + np.asarray(self.units, before.dtype)) - laps.completed(before)
        return self._lost(done, growth, dtype)

    def length(self, sizes: np.ndarray, dtype: Any) -> Any:
        """Return symbolic lengths as numbers of a dtype."""
        paces = [self.clock.pace(size) for size in sizes.flat]
        for period, _ in paces:
            self.found.laps.note(period)
        growth = np.array([growth for _, growth in paces], object).reshape(sizes.shape)
        total = self.total
        if total.dtype != np.int32 or not jnp.issubdtype(dtype, jnp.floating):
            return self.cast_positions(self.lengths(sizes), growth, dtype)
        # The length of a shorter recording of the same phase, and the growth since then: no product overflows.
        values = []
        for size, (period, each) in zip(sizes.flat, paces, strict=True):
            frames, far = period * self.clock.unit, magnitude_of(size)
            units = jnp.maximum(total - np.int32(far), np.int32(0)) // np.int32(frames)
            near = jnp.asarray(self.clock.length_of(size, total - units * np.int32(frames)), jnp.int32)
            values.append(near.astype(jnp.float32) + units.astype(jnp.float32) * np.float32(period * each))
        shorter = jnp.stack(values).reshape(sizes.shape)
        return self._with_laps(shorter, growth, dtype)

    def lengths(self, sizes: np.ndarray) -> Any:
        """Return symbolic lengths as integers, as if the stream ended here."""
        for item in sizes.flat:
            self.found.laps.note(self.clock.pace(item)[0])
        dtype = jax.dtypes.canonicalize_dtype(np.int64)
        items = [jnp.asarray(self.clock.length_of(item, self.total), dtype) for item in sizes.flat]
        return jnp.stack(items).reshape(sizes.shape)

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
