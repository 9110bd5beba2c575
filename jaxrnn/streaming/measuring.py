"""The facts of a stream, measured from outside: one frame of a recording changes, and some outputs with it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.equations import bind, evaluate, shape_of, trace_inlined, type_of
from jaxrnn.streaming.streamed import Streamed
from jaxrnn.streaming.values import Chunk

#: The longest recording, in input frames.
LONGEST = 1 << 11

Leaves = list[np.ndarray]  # the arrays of an input


@dataclass(frozen=True)
class Measured:
    """Facts of an output in recordings of one length.

    Attributes:
        look_ahead: as `Streamed.look_ahead`.
        receptive_field: the largest number of input frames from the first to the last that an output frame depends on.
        delay: the smallest delay with which no frame leaves that later input still changes; None for a value that is
            known at the end.
        frames: the number of frames of the output. Without frames, the facts are unknown.
    """

    look_ahead: int
    receptive_field: int
    delay: int | None
    frames: int


def drawn(shape: Sequence[int], dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Return random frames: normal numbers, or integers from 0 to 4."""
    rng = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.complexfloating):
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    if np.issubdtype(dtype, np.inexact) or np.dtype(dtype).kind == "V":  # low precision
        return rng.normal(size=shape).astype(dtype)
    return rng.integers(0, 5, shape).astype(dtype)


class WholeFunction:
    """A function of whole recordings, as a function of the leaves of its input.

    Attributes:
        axes: the time axis of each leaf, or None.
    """

    def __init__(self, function: Callable[..., Any], streamed: Streamed, *, compile: bool = True):
        self.streamed, self._compile = streamed, compile
        self.leaves = streamed._plan.leaves
        self.axes = [leaf.axis for leaf in self.leaves]
        self._function = lambda leaves: jax.tree.leaves(function(jax.tree.unflatten(streamed._structure, leaves)))

    def of_each(self, recordings: Sequence[Leaves]) -> list[Leaves]:
        """Return the outputs for each recording. If JAX can compile the function, one program computes all outputs."""
        if self._compile:
            try:
                return self._batched(recordings)
            except NotImplementedError:  # a primitive without a rule for batches, or without a lowering
                self._compile = False
        return [list(map(np.asarray, self._function(each))) for each in recordings]

    def _batched(self, recordings: Sequence[Leaves]) -> list[Leaves]:
        """Compute recordings of one length as a batch."""
        lengths: dict[Any, list[int]] = {}
        for place, leaves in enumerate(recordings):
            lengths.setdefault(tuple(leaf.shape for leaf in leaves), []).append(place)
        batches = [
            [np.stack(leaf) for leaf in zip(*(recordings[place] for place in places), strict=True)]
            for places in lengths.values()
        ]
        closed, structure = trace_inlined(
            lambda batches: [jax.vmap(self._function)(batch) for batch in batches], batches
        )
        results = jax.jit(lambda arguments: evaluate(closed, arguments, _unless_empty))(jax.tree.leaves(batches))
        computed = jax.tree.unflatten(structure, results)
        found: list[Leaves] = [[]] * len(recordings)
        for places, outputs in zip(lengths.values(), computed, strict=True):
            for row, place in enumerate(places):
                found[place] = [np.asarray(leaf)[row] for leaf in outputs]
        return found

    def recording(self, total: int, seed: int) -> Leaves:
        """Return random leaves for a number of input frames."""
        frames = total // self.streamed.multiple
        return [drawn(leaf.frames(frames), leaf.dtype, seed + place) for place, leaf in enumerate(self.leaves)]

    def places(self, place: int, frames: range) -> range:
        """Return the frames of a leaf for a range of input frames."""
        times, multiple = self.leaves[place].times, self.streamed.multiple
        return range(frames.start * times // multiple, frames.stop * times // multiple)

    def part(self, leaves: Leaves, frames: range) -> Leaves:
        """Return a range of input frames of a recording."""
        return [
            leaf if axis is None else np.take(leaf, self.places(place, frames), axis)
            for place, (leaf, axis) in enumerate(zip(leaves, self.axes, strict=True))
        ]

    def joined(self, *parts: Leaves) -> Leaves:
        """Concatenate recordings along time."""
        return [
            each[0] if axis is None else np.concatenate(each, axis)
            for axis, *each in zip(self.axes, *parts, strict=True)
        ]


def measured(offline: WholeFunction, total: int | None = None, *, nan: bool) -> list[Measured]:
    """Return the facts of each output.

    Args:
        offline: the function.
        total: the least length of the recordings in input frames; by default 36, or ten of the smallest pulses.
            Recordings grow until they show all that an output depends on.
        nan: also write NaN into frames, which shows a dependence that is smaller than a rounding step. A weight of 0
            does not hide NaN, so attention is measured without NaN.

    Raises:
        StreamError: recordings of `LONGEST` frames do not show the facts.
    """
    streamed = offline.streamed
    lengths, smallest = streamed._plan.lengths, streamed.smallest_pulse
    total = total or max(36, 10 * smallest, 2 * lengths.least * streamed.multiple)
    while True:
        allowed = [each for each in range(0, total + 1, smallest) if lengths.allow(each // streamed.multiple)]
        found = _measured(offline, max(allowed), nan)
        widest = max(each.receptive_field for each in found)
        is_seen = streamed.receptive_field is None or 2 * widest <= total
        if all(each.frames for each in found) and is_seen:
            return found
        total *= 2
        if total > LONGEST:
            raise StreamError(f"recordings of {total // 2} frames do not show what the outputs depend on: {found}")


def _measured(offline: WholeFunction, total: int, nan: bool) -> list[Measured]:
    streamed, x = offline.streamed, offline.recording(total, total)
    frames, continued = _changed_frames(offline, x, total, nan), _continuations(offline, x, total, nan)
    found = offline.of_each([*frames, *(each for recordings in continued.values() for each in recordings)])
    delays = _least_delays(streamed, found[0], continued, iter(found[len(frames) :]))
    results = []
    changes = _changes(found[: len(frames)], total)
    for kind, changed, delay in zip(streamed._plan.facts.outputs, changes, delays, strict=True):
        moves = isinstance(kind, Chunk)
        depends = np.moveaxis(changed, kind.axis + 1, 1) if moves else changed[:, None]
        depends = np.asarray(depends.any(tuple(range(2, depends.ndim)))).T  # [output frames, input frames]
        some = depends.any(1)
        if not some.any():
            results.append(Measured(0, 0, delay, depends.shape[0]))
            continue
        first, last = np.argmax(depends, 1)[some], total - 1 - np.argmax(depends[:, ::-1], 1)[some]
        ahead = 0
        if moves:
            places = np.arange(len(depends)) * kind.timeline.unit * streamed.multiple // kind.timeline.per_unit
            ahead = max(0, int(np.max(last - places[some])))
        results.append(Measured(ahead, int(np.max(last - first)) + 1, delay, len(depends)))
    return results


def _changed_frames(offline: WholeFunction, leaves: Leaves, total: int, nan: bool) -> list[Leaves]:
    """Return the recording, and copies in which one frame differs or is NaN.

    The recording itself belongs to the list because a batch may round differently than one recording.
    """
    rng = np.random.default_rng(5)
    recordings = [leaves]
    for scale in (1.0, np.nan) if nan else (1.0,):
        for frame in range(total):
            copies = [leaf.copy() for leaf in leaves]
            for index, (copy, axis) in enumerate(zip(copies, offline.axes, strict=True)):
                if axis is None:
                    continue
                for each in offline.places(index, range(frame, frame + 1)):
                    place = (*(slice(None),) * axis, each)
                    other = rng.normal(size=copy[place].shape) * scale
                    copy[place] = other if np.issubdtype(copy.dtype, np.inexact) else (copy[place] + 1) % 5
            recordings.append(copies)
    return recordings


def _changes(found: Sequence[Leaves], total: int) -> list[np.ndarray]:
    """Return ``bool[input frames, ...]`` for each output: the elements that change with an input frame."""
    changed = []
    for whole, *others in zip(*found, strict=True):
        copies = np.stack(others)
        differs = ~((copies == whole) | ((copies != copies) & (whole != whole)))
        changed.append(differs.reshape(len(others) // total, total, *whole.shape).any(0))
    return changed


def _continuations(offline: WholeFunction, x: Leaves, total: int, nan: bool) -> dict[int, list[Leaves]]:
    """Return recordings that begin with some pulses of ``x`` and then end or differ, by the number of pulses."""
    streamed = offline.streamed
    unit, multiple = streamed.smallest_pulse, streamed.multiple
    allowed = multiple * np.flatnonzero(streamed._plan.lengths.allow(np.arange(total // multiple + 1)))
    other = offline.recording(total, 77)
    continued = {}
    half = total // unit // 2
    for pulses in (*range(1, 7), half):
        # Each length takes time to compile, so few recordings end.
        given, ends = pulses * unit, [int(length) for length in allowed if length >= pulses * unit]
        end = offline.part(other, range(given, total))
        changed = offline.joined(offline.part(x, range(given)), end)
        ends = ends[: unit + 1 : max(1, unit // 4)] if pulses in (2, half) else []
        continued[pulses] = [changed, *(offline.part(changed, range(end)) for end in ends)]
        if nan and all(np.issubdtype(leaf.dtype, np.floating) for leaf in x):
            nothing = [np.full_like(leaf, np.nan) for leaf in end]
            continued[pulses].append(offline.joined(offline.part(x, range(given)), nothing))
    return continued


def _least_delays(
    streamed: Streamed, whole: Leaves, continued: dict[int, list[Leaves]], found: Iterator[Leaves]
) -> list[int | None]:
    """Return the smallest delay of each output with which no frame leaves that later input still changes.

    `whole` are the outputs of the recording, and `found` the outputs of the recordings in `continued`, in order.
    """
    kinds = streamed._plan.facts.outputs
    least: list[int | None] = [0 if isinstance(kind, Chunk) else None for kind in kinds]
    for pulses, recordings in continued.items():
        computed = [whole, *itertools.islice(found, len(recordings))]
        for index, (kind, *outputs) in enumerate(zip(kinds, *computed, strict=True)):
            if isinstance(kind, Chunk):
                wide = [np.moveaxis(each, kind.axis, 0) for each in outputs]
                frames = [each.astype(np.complex128 if each.dtype.kind == "c" else np.float64) for each in wide]
                settled = min(_settled(frames[0], each) for each in frames[1:])
                least[index] = max(least[index] or 0, pulses * kind.timeline.per_unit - settled)
    return least


def _settled(one: np.ndarray, other: np.ndarray) -> int:
    """Return the number of leading frames that are equal except for rounding."""
    count = min(len(one), len(other))
    scale = max(1.0, np.max(np.abs(one), initial=0, where=np.isfinite(one)))
    same = np.isclose(one[:count], other[:count], rtol=0, atol=1e-5 * scale, equal_nan=True)
    same = same.all(tuple(range(1, same.ndim)))
    return count if same.all() else int(np.argmin(same))


def _unless_empty(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    """Apply an equation, except for empty results.

    XLA ends the process for some, such as ``concatenate([zeros, x[:-1]])[1:]`` of one frame.
    """
    if all(0 in shape_of(each) for each in equation.outvars) and not equation.effects:
        return [jnp.zeros(shape_of(each), type_of(each)) for each in equation.outvars]
    return bind(equation, operands)
