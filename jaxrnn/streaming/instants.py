"""Time in a pass: the frames of a chunk, and the frames that exist."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.streaming.dimensions import Clock, Timeline, magnitude_of
from jaxrnn.streaming.facts import Facts, Known


@dataclass(frozen=True, eq=False)
class Instant:
    """The time of a pass.

    Attributes:
        clock: the timelines.
        notes: the facts, and the place for notes of the pass.
        units: units of input frames in each chunk.
        count: units before this pass: an integer, negative during the warm-up, or a traced integer that stops at
            `Facts.horizon`.
        existing: number of input frames of this pass that exist, if the stream ends in this pass; otherwise None.
        before: the number of units before this pass, if some value needs the number.
        laps: the number of laps before this pass, if some value needs the number.
    """

    clock: Clock
    notes: Known
    units: int
    count: Any
    existing: Any = None
    before: Any = None
    laps: Any = None

    @property
    def facts(self) -> Facts:
        """The facts about the function."""
        return self.notes.facts

    def counted(self) -> Any:
        """Return the number of units before this pass, without the limit of `count`, and note that the state counts it.

        32-bit integers count in `Laps`.
        """
        self.notes.note(counts=True)
        return jnp.zeros((), jax.dtypes.canonicalize_dtype(np.int64)) if self.before is None else self.before

    def total(self) -> Any:
        """Return the number of input frames up to the end of this pass; see `counted`."""
        before = self.counted()
        here = self.units * self.clock.unit if self.existing is None else self.existing
        return before * np.asarray(self.clock.unit, before.dtype) + jnp.asarray(here, before.dtype)

    def cast_positions(self, positions: Any, growth: Any, dtype: Any) -> Any:
        """Cast positions or lengths, which grow by `growth` in a unit, to a dtype.

        Signed integers of 32 bits count in laps. In other dtypes, the laps that were lost are added again.
        """
        here, there = (np.dtype(each) == np.int32 for each in (positions.dtype, dtype))
        if here == there or np.dtype(dtype) == np.bool_:
            return positions.astype(dtype)
        if there:  # from 64 bits
            lost = self._lost(self.facts.laps.completed(self.counted()), growth, positions.dtype)
            return (positions - lost).astype(dtype)
        return self._with_laps(positions, growth, dtype)

    def _with_laps(self, positions: Any, growth: Any, dtype: Any) -> Any:
        if self.counted().dtype == np.int32:
            self.notes.note(counts_laps=True)
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
        before, laps = self.counted(), self.facts.laps
        done = laps.completed(before + np.asarray(self.units, before.dtype)) - laps.completed(before)
        return self._lost(done, growth, dtype)

    def length(self, sizes: np.ndarray, dtype: Any) -> Any:
        """Return symbolic lengths as numbers of a dtype."""
        paces = [self.clock.pace(size) for size in sizes.flat]
        for period, _ in paces:
            self.notes.repeat(period)
        growth = np.array([growth for _, growth in paces], object).reshape(sizes.shape)
        total = self.total()
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
            self.notes.repeat(self.clock.pace(item)[0])
        dtype = jax.dtypes.canonicalize_dtype(np.int64)
        total = self.total()
        items = [jnp.asarray(self.clock.length_of(item, total), dtype) for item in sizes.flat]
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
