"""A Loop with a known number of trips, run as a scan over the frames that it reads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.cells.forms import in_chunks
from jaxrnn.jaxprs.scanning import scan_cells
from jaxrnn.onnx.evaluate import BoundNode, Subgraph
from jaxrnn.onnx.limits import current
from jaxrnn.onnx.time_loops.body import FIXED, STEADY, Growth, Positions, Progression, stays_inside
from jaxrnn.onnx.values import Stacked, Value, all_traced, describe, is_sequence, is_static, traced


class CarryTypeError(TypeError):
    """The error for a carried value with a new type after a trip."""


class TimeLoop:
    """A Loop over time."""

    def __init__(self, body: Subgraph, carried: Sequence[Value]):
        self.positions = Positions(body, carried)

    def reads_backwards(self, trips: Any) -> bool:
        """Return True if a later trip reads an earlier frame, so that no later call can go on from the last trip."""
        return any(line.slope < 0 for read in self._reads(trips) for line in read.positions)

    def _reads(self, trips: Any) -> list[Read]:
        nodes = self.positions.body.block.nodes
        return [read for node in nodes if (read := read_of(self.positions, node, trips)) is not None]

    def run(self, trips: Any, scan: Callable[..., Any] = scan_cells) -> list[Value] | None:
        """Return the outputs of the Loop, by a scan; None if ``scan`` needs recurrent cells and finds no cell."""
        body, block, reads = self.positions.body, self.positions.body.block, self._reads(trips)
        slots = [body.slots[place] for place in (*body.fixed, *body.counters, *body.carried)]
        fixed = [self.positions.carried[place] for place in body.fixed]
        grown = [growth.value for growth in body.growing.values()]
        results = [block.outputs[1 + place] for place in body.carried]
        part = block.part(
            [body.trip, body.condition, *slots, *(read.node.outputs[0] for read in reads)],
            [*results, *grown, *block.outputs[1 + len(body.slots) :]],
        )
        graph, count = Subgraph(part, self.positions.graph.outer), len(results)

        def step(carry: tuple[Value, ...], frame: Any) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
            trip, read_frames = frame
            counted = [self._counted(place, trip) for place in body.counters]
            outputs = graph(trip, np.asarray(True), *fixed, *counted, *carry, *read_frames)
            return all_traced(outputs[:count]), all_traced(outputs[count:])

        carry = all_traced([self.positions.carried[place] for place in body.carried])
        read_frames = [frames_of(read, trips) for read in reads]
        frame_shapes = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in read_frames]
        after, _ = jax.eval_shape(step, carry, (jax.ShapeDtypeStruct((), np.int64), frame_shapes))
        before, later = ([(x.shape, x.dtype) for x in jax.tree.leaves(values)] for values in (carry, after))
        if before != later:
            raise CarryTypeError
        if isinstance(trips, int):
            current().check((trips,), np.int64)
        frames = (jnp.arange(trips, dtype=jnp.int64), read_frames)
        results = in_chunks(functools.partial(scan, step), carry, frames)
        return None if results is None else self._collected(trips, *results)

    def _counted(self, place: int, trip: Any) -> jax.Array:
        start, step = self.positions.carried[place], self.positions.body.counters[place].reshape(())
        counted = traced(start).astype(jnp.int64) + trip * traced(step).astype(jnp.int64)
        return counted.astype(traced(start).dtype)

    def _collected(self, trips: Any, last: Sequence[Value], new_values: Sequence[Value]) -> list[Value]:
        body = self.positions.body
        results: list[Value] = list(self.positions.carried)
        for place, value in zip(body.carried, last, strict=True):
            results[place] = value
        for place, step in body.counters.items():
            like = self.positions.carried[place]
            item = like + step.reshape(()).item() * trips
            array = np.asarray(item, None if isinstance(np.ravel(item)[0], (int, np.integer)) else object)
            results[place] = (
                array.reshape(like.shape)
                if array.dtype == object
                else array.astype(np.int64).astype(like.dtype, copy=False)
            )
        for (place, growth), values in zip(body.growing.items(), new_values, strict=False):
            results[place] = _grown(growth, self.positions.carried[place], values)
        return [*results, *new_values[len(body.growing) :]]


def _grown(growth: Growth, start: Value, values: Value) -> Value:
    """Return the final value of a growing value from the parts that each trip appends."""
    if growth.front:
        values = lax.rev(values, (0,))
    if growth.axis is None:
        parts = [start.array] if isinstance(start, Stacked) else [jnp.stack(list(map(traced, start)))] if start else []
        return Stacked(jnp.concatenate([values, *parts] if growth.front else [*parts, values]) if parts else values)
    axis = growth.axis % (values.ndim - 1)
    merged = jnp.moveaxis(values, 0, axis)
    shape = list(merged.shape)
    shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    merged = merged.reshape(shape)
    if start.shape[axis] == 0:
        return merged
    return jnp.concatenate([merged, traced(start)] if growth.front else [traced(start), merged], axis)


#: An axis, the positions along it, and the shape that replaces it.
_Access = tuple[int, tuple[Progression, ...], tuple[int, ...]]

#: A node that reads more frames in each trip stays in the loop.
_MAX_FRAMES = 64


@dataclass(frozen=True)
class Read:
    """A node that reads frames of a fixed value at positions that move with the trips."""

    node: BoundNode
    data: Value
    axis: int | None  # the axis of the frames; None for the elements of a sequence
    positions: tuple[Progression, ...]  # the position of each frame in the result
    shape: tuple[int, ...]  # the shape of the frames in the result, in place of the axis


def read_of(positions: Positions, node: BoundNode, trips: Any) -> Read | None:
    """Return the read of a node at moving positions, or None if a position may be outside of the axis."""
    reads = node.operator.traits.reads
    if not reads:
        return None
    data, *others = node.inputs
    if data is None or positions.body.change(data) != FIXED:
        return None
    if not any(key is not None and positions.body.change(key) == STEADY for key in others):
        return None
    value = positions.evaluate(data, 0)
    if value is None:
        return None
    if reads == "element":
        return _element(positions, node, value, trips)
    if is_sequence(value) or is_static(value):
        return None
    access = _gathered(positions, node, value) if reads == "indices" else _sliced(positions, node, value)
    if access is None:
        return None
    axis, places, shape = access
    if 0 < len(places) <= _MAX_FRAMES and all(stays_inside(line, value.shape[axis], trips) for line in places):
        return Read(node, value, axis, places, shape)
    return None


def _element(positions: Positions, node: BoundNode, value: Value, trips: Any) -> Read | None:
    lines = positions.lines(node.inputs[1])
    if lines is None or len(lines) != 1:
        return None
    if isinstance(value, tuple):
        if not value or len({describe(item) for item in value}) != 1:
            return None
        value = Stacked(jnp.stack([traced(item) for item in value]))
    if not isinstance(value, Stacked) or not stays_inside(lines[0], value.array.shape[0], trips):
        return None
    return Read(node, value, None, lines, ())


def _gathered(positions: Positions, node: BoundNode, value: Value) -> _Access | None:
    key = node.inputs[1]
    lines = positions.lines(key)
    if key is None or lines is None:
        return None
    indices = positions.known(key, 0)
    assert indices is not None
    return node.attributes.get("axis", 0) % value.ndim, lines, indices.shape


def _sliced(positions: Positions, node: BoundNode, value: Value) -> _Access | None:
    """Return the access of a Slice along one axis, with the same number of consecutive frames in each trip."""
    if len(node.inputs) < 3:
        return None
    _, starts, ends, axes, steps, *_ = (*node.inputs, None, None)
    begin, end = positions.lines(starts), positions.lines(ends)
    chosen = (Progression(0, 0),) if axes is None else positions.lines(axes)
    stride = (Progression(1, 0),) if steps is None else positions.lines(steps)
    parts = (begin, end, chosen, stride)
    if any(part is None or len(part) != 1 for part in parts):
        return None
    (begin,), (end,), (axis,), (stride,) = parts  # type: ignore[misc]
    frames = end.first - begin.first
    if stride != Progression(1, 0) or axis.slope or begin.slope != end.slope or not isinstance(frames, int):
        return None
    places = tuple(Progression(begin.first + offset, begin.slope) for offset in range(min(frames, _MAX_FRAMES + 1)))
    return int(axis.first) % value.ndim, places, (frames,)


def frames_of(read: Read, trips: Any) -> jax.Array:
    """Return the frames of a read in all trips, ``[trips, ...]``."""
    if read.axis is None:
        return _strip(read.data.array, read.positions[0], trips)
    frames = jnp.moveaxis(traced(read.data), read.axis, 0)
    if read.shape == ():
        return _strip(frames, read.positions[0], trips)
    strips = [_strip(frames, line, trips) for line in read.positions]
    stacked = strips[0][:, None] if len(strips) == 1 else jnp.stack(strips, 1)
    shaped = stacked.reshape((stacked.shape[0], *read.shape, *stacked.shape[2:]))
    ranks = len(read.shape)
    return jnp.moveaxis(shaped, range(1, 1 + ranks), range(1 + read.axis, 1 + read.axis + ranks))


def _strip(frames: jax.Array, line: Progression, trips: Any) -> jax.Array:
    """Return the frames at the positions of a line, in the order of the trips."""
    low, high = line.ends(trips)
    if line.slope == 1 and str(low) == "0" and str(trips) == str(frames.shape[0]):
        return frames
    taken = lax.slice_in_dim(frames, low, high + 1, abs(line.slope), 0)
    return taken if line.slope > 0 else lax.rev(taken, (0,))
