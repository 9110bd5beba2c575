"""The frames that a loop reads: nodes that index a fixed value by a counter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxrnn.errors import JaxrnnError, LimitError
from jaxrnn.onnx.blocks import BoundNode
from jaxrnn.onnx.time_loops.body import FIXED, STEADY
from jaxrnn.onnx.time_loops.positions import Line, Positions, stays_inside
from jaxrnn.onnx.values import Stacked, Value, is_sequence, is_static, traced

#: An axis, the positions along it, and the shape that replaces it.
_Access = tuple[int, tuple[Line, ...], tuple[int, ...]]

#: A read of more frames in each trip stays in the loop.
_MAX_FRAMES = 64


@dataclass(frozen=True)
class Read:
    """A node that reads frames of a fixed value at positions that move with the trips.

    Attributes:
        node: the node.
        data: the value.
        axis: the axis of the frames; None for the elements of a sequence.
        positions: the position of each frame that it reads.
        shape: the shape of the frames in the result, in place of the axis.
    """

    node: BoundNode
    data: Value
    axis: int | None
    positions: tuple[Line, ...]
    shape: tuple[int, ...]


def read_of(positions: Positions, node: BoundNode, trips: Any) -> Read | None:
    """The read of a node at positions that move with the trips; None where one may lie outside of the axis."""
    reads = node.operator.traits.reads
    if not reads:
        return None
    data, *others = node.inputs
    if data is None or positions.body.change(data) != FIXED:
        return None
    if not any(key is not None and positions.body.change(key) == STEADY for key in others):
        return None
    try:
        (value,) = positions.evaluate([data], 0)
    except LimitError:
        raise
    except JaxrnnError:
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
        if not value or len({(item.shape, item.dtype) for item in value}) != 1:
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
    """The access of a Slice along one axis, of equally many consecutive frames in every trip."""
    if len(node.inputs) < 3:
        return None
    _, starts, ends, axes, steps, *_ = (*node.inputs, None, None)
    begin, end = positions.lines(starts), positions.lines(ends)
    chosen = (Line(0, 0),) if axes is None else positions.lines(axes)
    stride = (Line(1, 0),) if steps is None else positions.lines(steps)
    parts = (begin, end, chosen, stride)
    if any(part is None or len(part) != 1 for part in parts):
        return None
    (begin,), (end,), (axis,), (stride,) = parts  # type: ignore[misc]
    frames = end.first - begin.first
    if stride != Line(1, 0) or axis.slope or begin.slope != end.slope or not isinstance(frames, int):
        return None
    places = tuple(Line(begin.first + offset, begin.slope) for offset in range(min(frames, _MAX_FRAMES + 1)))
    return int(axis.first) % value.ndim, places, (frames,)


def frames_of(read: Read, trips: Any) -> jax.Array:
    """The frames of a read in all trips, ``[trips, ...]``."""
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


def _strip(frames: jax.Array, line: Line, trips: Any) -> jax.Array:
    """The frames at the positions of a line, in the order of the trips."""
    last = line.first + line.slope * (trips - 1)
    low, high = (line.first, last) if line.slope > 0 else (last, line.first)
    if line.slope == 1 and str(low) == "0" and str(trips) == str(frames.shape[0]):
        return frames
    taken = lax.slice_in_dim(frames, low, high + 1, abs(line.slope), 0)
    return taken if line.slope > 0 else lax.rev(taken, (0,))
