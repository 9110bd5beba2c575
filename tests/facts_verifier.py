"""The verifier of a stream's facts: measured from outside, by changing one frame and looking which outputs change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """

    look_ahead: int
    receptive_field: int
    delay: int | None


def changes(function: Callable[..., Any], x: np.ndarray, axis: int, nan: bool = True) -> list[np.ndarray]:
    """Return ``bool[input frames, ...]`` for each output: which elements change when one input frame does.

    A frame becomes another one, and NaN: NaN shows what is too small to see, and another one what NaN is hidden from.
    A weight of 0 does not hide NaN, so attention is measured without it.
    """
    rng = np.random.default_rng(5)
    changed: list[Any] | None = None
    for scale in (1.0, np.nan) if nan else (1.0,):
        # The recording as it is goes along: a batch may be computed in another order than one recording.
        copies = np.stack([x] * (x.shape[axis] + 1))
        for frame in range(x.shape[axis]):
            place = (frame, *(slice(None),) * axis, frame)
            other = rng.normal(size=copies[place].shape) * scale
            copies[place] = other if np.issubdtype(x.dtype, np.floating) else (copies[place] + 1) % 5
        found = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(jax.vmap(function))(copies))]
        here = [~((leaf[:-1] == leaf[-1:]) | ((leaf[:-1] != leaf[:-1]) & (leaf[-1:] != leaf[-1:]))) for leaf in found]
        changed = here if changed is None else [a | b for a, b in zip(changed, here, strict=True)]
    assert changed is not None
    return changed


def measure(
    function: Callable[..., Any], streamed: Streamed, shape: Sequence[int], axis: int, total: int, nan: bool = True
) -> list[Any]:
    """Return the facts of every output; None for one that depends on no input."""
    x = recording(_with(shape, axis, total), streamed._plan.leaves[0].dtype, total)
    delays, results = least_delays(function, streamed, x, axis, nan), []
    outputs = zip(streamed._plan.outputs, changes(function, x, axis, nan), delays, strict=True)
    for kind, changed, delay in outputs:
        streams = isinstance(kind, Chunk)
        depends = np.moveaxis(changed, kind.axis + 1, 1) if streams else changed[:, None]
        depends = depends.reshape(*depends.shape[:2], -1).any(2).T  # [output frames, input frames]
        some = depends.any(1)
        if not some.any():
            results.append(Measured(0, 0, delay))
            continue
        first, last = np.argmax(depends, 1)[some], total - 1 - np.argmax(depends[:, ::-1], 1)[some]
        ahead = 0
        if streams:
            places = np.arange(len(depends)) * kind.timeline.unit * streamed.multiple // kind.timeline.per_unit
            ahead = max(0, int(np.max(last - places[some])))
        results.append(Measured(ahead, int(np.max(last - first)) + 1, delay))
    return results


def least_delays(
    function: Callable[..., Any], streamed: Streamed, x: np.ndarray, axis: int, nan: bool = True
) -> list[int | None]:
    """Return for each output the smallest delay with which no frame leaves that what is to come may still change.

    Recordings that begin alike and go on differently, or end, show which frames those are.
    """
    unit, total, plan = streamed.smallest_pulse, x.shape[axis], streamed._plan
    allowed = streamed.multiple * np.flatnonzero(plan.lengths.allow(np.arange(total // streamed.multiple + 1)))
    least = [0 if isinstance(kind, Chunk) else None for kind in plan.outputs]
    compiled = jax.jit(function)
    for pulses in (*range(1, 7), total // unit // 2):
        given, ends = pulses * unit, [int(length) for length in allowed if length >= pulses * unit]
        begin, end = np.take(x, range(given), axis), np.take(recording(x.shape, x.dtype, 77), range(given, total), axis)
        other = np.concatenate([begin, end], axis)
        recordings = [x, other, *(np.take(other, range(end), axis) for end in ends[: unit + 1])]
        if nan and np.issubdtype(x.dtype, np.floating):
            recordings.append(np.concatenate([begin, np.full_like(end, np.nan)], axis))
        found = [list(map(np.asarray, jax.tree.leaves(compiled(each)))) for each in recordings]
        for index, (kind, *outputs) in enumerate(zip(plan.outputs, *found, strict=True)):
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


def _with(shape: Sequence[int], axis: int, total: int) -> list[int]:
    return [total if d == axis else size for d, size in enumerate(shape)]


def check_facts(
    function: Callable[..., Any],
    streamed: Streamed,
    shape: Sequence[int],
    axis: int = 0,
    *,
    total: int,
    larger: bool,
    nan: bool = True,
) -> None:
    """Hold the facts of a stream against what is measured; with `larger`, they may be larger."""
    found = measure(function, streamed, shape, axis, total, nan)
    ahead = max(each.look_ahead for each in found)
    field = max(each.receptive_field for each in found)
    delays = [getattr(kind, "delay", None) for kind in streamed._plan.outputs]
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
