"""The verifier of a stream's facts: measured from outside, by changing one frame and looking which outputs change."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from streaming_verifier import recording

from jaxrnn.streaming import Streamed
from jaxrnn.streaming.values import Chunk


@dataclass(frozen=True)
class Measured:
    """Facts of one output in recordings of one length.

    Attributes:
        look_ahead: as `Streamed.look_ahead`.
        receptive_field: input frames from the first to the last that an output frame depends on, at most.
        delay: the smallest with which each frame can leave once it depends on nothing that is to come; None for what is
            known at the end.
        frames: of the output; without any, the facts are not known.
    """

    look_ahead: int
    receptive_field: int
    delay: int | None
    frames: int


#: The longest recording to measure in.
LONGEST = 1 << 11

Recording = list[np.ndarray]  # the leaves of an input


class Offline:
    """A function on whole recordings, as leaves: compiled by JAX, or ``apply`` of another engine.

    Attributes:
        axes: of each leaf, the time axis or None.
        frames: of each leaf, the frames for so many input frames.
    """

    def __init__(self, function: Callable[..., Any], streamed: Streamed, *, compile: bool = True):
        plan = streamed._plan
        self.streamed, self._compile = streamed, compile
        self.leaves, self.axes = plan.leaves, [leaf.axis for leaf in plan.leaves]
        self._function = lambda leaves: jax.tree.leaves(function(jax.tree.unflatten(streamed._structure, leaves)))

    def on_each(self, recordings: list[Recording]) -> list[list[np.ndarray]]:
        """Return the outputs of each recording. One program computes all; recordings of one length are a batch."""
        if not self._compile:
            return [[np.asarray(leaf) for leaf in self._function(each)] for each in recordings]
        lengths: dict[Any, list[int]] = {}
        for place, leaves in enumerate(recordings):
            lengths.setdefault(tuple(leaf.shape for leaf in leaves), []).append(place)
        batches = [
            [np.stack(leaf) for leaf in zip(*(recordings[place] for place in places), strict=True)]
            for places in lengths.values()
        ]
        computed = jax.jit(lambda batches: [jax.vmap(self._function)(batch) for batch in batches])(batches)
        found: list[list[np.ndarray]] = [[]] * len(recordings)
        for places, outputs in zip(lengths.values(), computed, strict=True):
            for row, place in enumerate(places):
                found[place] = [np.asarray(leaf)[row] for leaf in outputs]
        return found

    def recording(self, total: int, seed: int) -> Recording:
        """Return random leaves for so many input frames."""
        frames = total // self.streamed.multiple
        return [recording(leaf.frames(frames), leaf.dtype, seed + place) for place, leaf in enumerate(self.leaves)]

    def places(self, place: int, frames: range) -> range:
        """Return the frames of a leaf that some input frames are."""
        times, multiple = self.leaves[place].times, self.streamed.multiple
        return range(frames.start * times // multiple, frames.stop * times // multiple)

    def part(self, leaves: Recording, frames: range) -> Recording:
        """Return some input frames of a recording."""
        return [
            leaf if axis is None else np.take(leaf, self.places(place, frames), axis)
            for place, (leaf, axis) in enumerate(zip(leaves, self.axes, strict=True))
        ]

    def joined(self, *parts: Recording) -> Recording:
        """Return recordings one after the other."""
        return [
            each[0] if axis is None else np.concatenate(each, axis)
            for axis, *each in zip(self.axes, *parts, strict=True)
        ]


def changed_frames(offline: Offline, leaves: Recording, total: int, nan: bool) -> list[Recording]:
    """Return the recording as it is, and copies in which one frame is another one, and copies in which it is NaN.

    NaN shows what is too small to see, and another frame what NaN is hidden from. A weight of 0 does not hide NaN, so
    attention is measured without NaN. The recording as it is goes along: a batch may be computed in another order than
    one recording.
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
                    copy[place] = other if np.issubdtype(copy.dtype, np.floating) else (copy[place] + 1) % 5
            recordings.append(copies)
    return recordings


def changes(found: list[list[np.ndarray]], total: int) -> list[np.ndarray]:
    """Return ``bool[input frames, ...]`` for each output: which elements change when one input frame does."""
    changed = []
    for whole, *others in zip(*found, strict=True):
        copies = np.stack(others)
        differs = ~((copies == whole) | ((copies != copies) & (whole != whole)))
        changed.append(differs.reshape(len(others) // total, total, *whole.shape).any(0))
    return changed


def measure(offline: Offline, total: int, nan: bool = True) -> list[Any]:
    """Return the facts of every output."""
    streamed, x = offline.streamed, offline.recording(total, total)
    frames, continued = changed_frames(offline, x, total, nan), continuations(offline, x, total, nan)
    found = offline.on_each([*frames, *(each for recordings in continued.values() for each in recordings)])
    delays = least_delays(streamed, found[0], continued, iter(found[len(frames) :]))
    outputs = zip(streamed._plan.facts.outputs, changes(found[: len(frames)], total), delays, strict=True)
    results = []
    for kind, changed, delay in outputs:
        streams = isinstance(kind, Chunk)
        depends = np.moveaxis(changed, kind.axis + 1, 1) if streams else changed[:, None]
        depends = depends.any(tuple(range(2, depends.ndim))).T  # [output frames, input frames]
        some = depends.any(1)
        if not some.any():
            results.append(Measured(0, 0, delay, len(depends)))
            continue
        first, last = np.argmax(depends, 1)[some], total - 1 - np.argmax(depends[:, ::-1], 1)[some]
        ahead = 0
        if streams:
            places = np.arange(len(depends)) * kind.timeline.unit * streamed.multiple // kind.timeline.per_unit
            ahead = max(0, int(np.max(last - places[some])))
        results.append(Measured(ahead, int(np.max(last - first)) + 1, delay, len(depends)))
    return results


def continuations(offline: Offline, x: Recording, total: int, nan: bool) -> dict[int, list[Recording]]:
    """Return recordings that begin with as many pulses of ``x`` as their key, and go on differently, or end."""
    unit, plan = offline.streamed.smallest_pulse, offline.streamed._plan
    multiple = offline.streamed.multiple
    allowed = multiple * np.flatnonzero(plan.lengths.allow(np.arange(total // multiple + 1)))
    other = offline.recording(total, 77)
    continued = {}
    half = total // unit // 2
    for pulses in (*range(1, 7), half):
        # Each length is a part of the program: few recordings end.
        given, ends = pulses * unit, [int(length) for length in allowed if length >= pulses * unit]
        end = offline.part(other, range(given, total))
        changed = offline.joined(offline.part(x, range(given)), end)
        ends = ends[: unit + 1 : max(1, unit // 4)] if pulses in (2, half) else []
        continued[pulses] = [changed, *(offline.part(changed, range(end)) for end in ends)]
        if nan and all(np.issubdtype(leaf.dtype, np.floating) for leaf in x):
            nothing = [np.full_like(leaf, np.nan) for leaf in end]
            continued[pulses].append(offline.joined(offline.part(x, range(given)), nothing))
    return continued


def least_delays(
    streamed: Streamed,
    whole: list[np.ndarray],
    continued: dict[int, list[Recording]],
    found: Iterator[list[np.ndarray]],
) -> list[int | None]:
    """Return for each output the smallest delay with which no frame leaves that what is to come may still change.

    Args:
        streamed: a stream.
        whole: the outputs of the recording.
        continued: recordings that begin like the recording, by the number of pulses.
        found: the outputs of these, one after the other.
    """
    kinds = streamed._plan.facts.outputs
    least = [0 if isinstance(kind, Chunk) else None for kind in kinds]
    for pulses, recordings in continued.items():
        computed = [whole, *itertools.islice(found, len(recordings))]
        for index, (kind, *outputs) in enumerate(zip(kinds, *computed, strict=True)):
            if isinstance(kind, Chunk):
                frames = [np.moveaxis(each, kind.axis, 0).astype(np.float64) for each in outputs]
                settled = min(_settled(frames[0], each) for each in frames[1:])
                least[index] = max(least[index], pulses * kind.timeline.per_unit - settled)
    return least


def _settled(one: np.ndarray, other: np.ndarray) -> int:
    """Return the number of frames from the first on that are equal, but for rounding."""
    count = min(len(one), len(other))
    scale = max(1.0, np.max(np.abs(one), initial=0, where=np.isfinite(one)))
    same = np.isclose(one[:count], other[:count], rtol=0, atol=1e-5 * scale, equal_nan=True)
    same = same.all(tuple(range(1, same.ndim)))
    return count if same.all() else int(np.argmin(same))


def check_facts(
    function: Callable[..., Any],
    streamed: Streamed,
    *,
    larger: bool,
    total: int | None = None,
    nan: bool = True,
    compile: bool = True,
    something: bool = True,
) -> None:
    """Hold the facts of a stream against what is measured.

    Args:
        function: on whole recordings.
        streamed: the same as a stream.
        larger: whether the facts may be larger.
        total: the least number of input frames of a recording; None for some 36, or ten of the smallest pulses.
        nan: whether frames become NaN, too.
        compile: False for a function that is not JAX's.
        something: False for outputs that no frame changes.
    """
    smallest, allow = streamed.smallest_pulse, streamed._plan.lengths.allow
    offline = Offline(function, streamed, compile=compile)
    total = total or max(36, 10 * smallest, 2 * streamed._plan.lengths.least * streamed.multiple)
    while True:
        total = max(n for n in range(0, total + 1, smallest) if allow(n // streamed.multiple))
        found = measure(offline, total, nan)
        field = max(each.receptive_field for each in found)
        bounded = streamed.receptive_field is not None
        if all(each.frames for each in found) and not (bounded and 2 * field > total):
            break
        assert 2 * total <= LONGEST, f"{total} frames do not show what the outputs depend on: {found}"
        total *= 2
    if something:
        assert any(each.receptive_field for each in found), "nothing is measured: no output changes with a frame"
    ahead = max(each.look_ahead for each in found)
    delays = [getattr(kind, "delay", None) for kind in streamed._plan.facts.outputs]
    least = [each.delay for each in found]
    said = streamed.look_ahead, streamed.receptive_field, delays
    # None stands for all of the past: a recurrence may forget it before its first frame is reached.
    measured = ahead, (None if streamed.receptive_field is None and field > 4 else field), least
    if larger:
        assert said[0] >= ahead, (said, measured)
        assert said[1] is None or said[1] >= field, (said, measured)
        assert all(delay is None or delay >= each for delay, each in zip(delays, least, strict=True)), (said, measured)
    else:
        assert said == measured, f"said {said}, measured {measured}"
