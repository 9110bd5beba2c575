"""Frames outside of a chunk: placeholders where no frame exists, past frames, and frames that are known late."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.cells.forms import is_plain
from jaxrnn.streaming.narrow import WideOrigin
from jaxrnn.streaming.values import Chunk, along


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


@dataclass
class Content:
    """Arrays that a pass has made from the content of a lineage (see `Chunk`).

    Attributes:
        base: the lineage without delay, and the frames of delay.
        history: past frames.
        start: the value in frames before the first, if the chunk is filled.
        narrow: the narrow origin of a wider chunk.
        delayed: delayed arrays and their lineages, keyed by the frames of delay.
        filled: filled chunks, keyed by the frames and the value.
        moved: lineages of moved values, keyed by the movement.
    """

    base: tuple[object, int]
    history: History | None = None
    start: Any = None
    narrow: WideOrigin | None = None
    delayed: dict[int, tuple[Any, object]] = field(default_factory=dict)
    filled: dict[Any, Chunk] = field(default_factory=dict)
    moved: dict[Any, object] = field(default_factory=dict)


#: From this number of elements on, a history concatenates the next state separately from the frames for readers.
LONG = 1 << 13


class History:
    """Past frames of a lineage (see `Chunk`), in a state entry that all readers share.

    In the first pass, the entry grows to the largest number of past frames that a reader asks for. All past frames are
    still constant then.
    """

    def __init__(self, run: Any, kind: str, frames: Any, axis: int, start: Any, growth: Fraction | int):
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
            later = later - self._run.now.falling(self._growth, later.dtype)
        self._run.store(self._name, later)


def with_front(frames: Any, front: Any, time: int, where: Any, *, few: bool) -> Any:
    """Write the first frames of a recording into an array; `where` are the indices of the frames in the array."""
    count = front.shape[time]
    if isinstance(where, np.ndarray) and not np.any((where >= 0) & (where < count)):
        return frames
    if not few and not is_plain() and not isinstance(where, np.ndarray):
        # A convolution would compute the selection below again for each tap, which is slow for many frames.
        room = [(count, count, 0) if each == time else (0, 0, 0) for each in range(frames.ndim)]
        frames = lax.pad(frames, jnp.zeros((), frames.dtype), room)
        at = jnp.clip(count - where[0], 0, frames.shape[time] - count)
        frames = lax.dynamic_update_slice_in_dim(frames, front, at, time)
        return lax.slice_in_dim(frames, count, frames.shape[time] - count, axis=time)
    here = along(jnp.asarray((where >= 0) & (where < count)), time, frames.ndim)
    return jnp.where(here, jnp.take(front, jnp.clip(jnp.asarray(where), 0, count - 1), time), frames)
