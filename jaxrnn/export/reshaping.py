"""Reshapes, transposes, slices, pads and reductions as nodes. Constants move at once, and movements merge."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from jaxrnn.export.writer import Operand, Writer, constant_of, dtype_of, maker_of, shape_of


def reshape(writer: Writer, x: Operand, shape: Sequence[int]) -> Operand:
    """Reshape an operand."""
    shape = tuple(map(int, shape))
    if shape_of(x) == shape:
        return x
    if isinstance(x, np.ndarray):
        return x.reshape(shape)
    if (node := maker_of(x, "Reshape")) is not None:
        return reshape(writer, source_of(node), shape)
    return writer.node(
        "Reshape", x, np.array(shape, np.int64), shape=shape, dtype=dtype_of(x), allowzero=1 if 0 in shape else None
    )


def transpose(writer: Writer, x: Operand, order: Sequence[int]) -> Operand:
    """Reorder the axes."""
    order, shape = tuple(map(int, order)), shape_of(x)
    if order == tuple(range(len(shape))):
        return x
    if isinstance(x, np.ndarray):
        return x.transpose(order)
    result = tuple(shape[axis] for axis in order)
    large = [axis for axis in order if shape[axis] != 1]
    if large == sorted(large):
        return reshape(writer, x, result)
    if (node := maker_of(x, "Transpose")) is not None:
        before = node.attributes["perm"].as_ints()
        return transpose(writer, source_of(node), [before[axis] for axis in order])
    return writer.node("Transpose", x, shape=result, dtype=dtype_of(x), perm=list(order))


def cut(
    writer: Writer, x: Operand, starts: Sequence[int], ends: Sequence[int], steps: Sequence[int] | None = None
) -> Operand:
    """Slice along all axes. An end of -1 with a step of -1 includes element 0."""
    shape = shape_of(x)
    steps = [1] * len(shape) if steps is None else list(steps)
    if isinstance(x, np.ndarray):
        places = zip(starts, ends, steps, strict=True)
        return x[tuple(slice(start, None if end < 0 else end, step) for start, end, step in places)]
    axes = [axis for axis, size in enumerate(shape) if (starts[axis], steps[axis]) != (0, 1) or ends[axis] < size]
    if not axes:
        return x
    result = list(shape)
    for axis in axes:
        result[axis] = len(range(starts[axis], ends[axis], steps[axis]))
    if len(axes) == 1 and steps[axes[0]] == 1 and (part := _inside_part(writer, x, axes[0], starts, ends)) is not None:
        return part
    if all(steps[axis] == 1 for axis in axes) and (whole := _of_slice(writer, x, starts, ends)) is not None:
        return whole
    bounds = [
        [starts[axis] for axis in axes],
        [ends[axis] if ends[axis] >= 0 else np.iinfo(np.int64).min for axis in axes],
        axes,
        [steps[axis] for axis in axes],
    ]
    if all(steps[axis] == 1 for axis in axes):
        bounds.pop()
    return writer.node("Slice", x, *(np.array(each, np.int64) for each in bounds), shape=result, dtype=dtype_of(x))


def cut_along(writer: Writer, x: Operand, axis: int, start: int, end: int, step: int = 1) -> Operand:
    """Slice along an axis."""
    starts, ends, steps = [0] * len(shape_of(x)), list(shape_of(x)), [1] * len(shape_of(x))
    starts[axis], ends[axis], steps[axis] = start, end, step
    return cut(writer, x, starts, ends, steps)


def flip(writer: Writer, x: Operand, axes: Collection[int]) -> Operand:
    """Reverse the elements along axes, by steps of -1."""
    shape = shape_of(x)
    turned = [axis in axes and size > 1 for axis, size in enumerate(shape)]
    starts = [size - 1 if turn else 0 for turn, size in zip(turned, shape, strict=True)]
    ends = [-1 if turn else size for turn, size in zip(turned, shape, strict=True)]
    return cut(writer, x, starts, ends, [-1 if turn else 1 for turn in turned])


def _inside_part(writer: Writer, x: ir.Value, axis: int, starts: Sequence[int], ends: Sequence[int]) -> Operand | None:
    """Slice a single part of a concatenation, if the slice lies inside of the part."""
    node = maker_of(x, "Concat")
    if node is None or node.attributes["axis"].as_int() != axis:
        return None
    place = 0
    for part in node.inputs:
        assert part is not None
        size = shape_of(part)[axis]
        if place <= starts[axis] and ends[axis] <= place + size:
            begins, stops = list(starts), list(ends)
            begins[axis], stops[axis] = starts[axis] - place, ends[axis] - place
            return cut(writer, part, begins, stops)
        place += size
    return None


def _of_slice(writer: Writer, x: ir.Value, starts: Sequence[int], ends: Sequence[int]) -> Operand | None:
    """Merge a slice of a slice."""
    node = maker_of(x, "Slice")
    if node is None or len(node.inputs) > 4:
        return None
    begins, axes = constant_of(node.inputs[1]), constant_of(node.inputs[3])
    if begins is None or axes is None:
        return None
    before = dict(zip(axes.tolist(), begins.tolist(), strict=True))
    shift = [before.get(axis, 0) for axis in range(len(shape_of(x)))]
    return cut(
        writer,
        source_of(node),
        [start + by for start, by in zip(starts, shift, strict=True)],
        [end + by for end, by in zip(ends, shift, strict=True)],
    )


def concatenate(writer: Writer, parts: Sequence[Operand], axis: int) -> Operand:
    """Concatenate arrays along an axis."""
    parts = [part for part in parts if shape_of(part)[axis]] or list(parts[:1])
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate([np.asarray(part) for part in parts], axis)
    shape = list(shape_of(parts[0]))
    shape[axis] = sum(shape_of(part)[axis] for part in parts)
    return writer.node("Concat", *parts, shape=shape, dtype=dtype_of(parts[0]), axis=axis)


def pad(writer: Writer, x: Operand, widths: Sequence[tuple[int, int]], value: Operand) -> Operand:
    """Pad with a value, ``(before, after)`` for each axis."""
    if not any(map(any, widths)):
        return x
    if isinstance(x, np.ndarray) and isinstance(value, np.ndarray):
        return np.pad(x, widths, constant_values=value)
    shape = [low + size + high for size, (low, high) in zip(shape_of(x), widths, strict=True)]
    sizes = np.array([*(low for low, _ in widths), *(high for _, high in widths)], np.int64)
    return writer.node("Pad", x, sizes, value, shape=shape, dtype=dtype_of(x))


def reduction(writer: Writer, operator: str, x: Operand, axes: Sequence[int], shape: Sequence[int]) -> ir.Value:
    """Write a reduction to a shape, with or without the axes. The opset decides how a node states the axes."""
    as_operand = writer.opset >= (13 if operator == "ReduceSum" else 18)
    operands = (x, np.array(axes, np.int64)) if as_operand else (x,)
    keep = len(shape) == len(shape_of(x))
    attributes = {"keepdims": int(keep)} | ({} if as_operand else {"axes": axes})
    return writer.node(operator, *operands, shape=shape, dtype=dtype_of(x), **attributes)


def broadcast(writer: Writer, x: Operand, shape: Sequence[int], axes: Sequence[int] | None = None) -> Operand:
    """Broadcast an array to a shape. ``axes`` are the places of the axes in the result, by default the last."""
    shape, own = tuple(shape), shape_of(x)
    axes = range(len(shape) - len(own), len(shape)) if axes is None else axes
    spread = [1] * len(shape)
    for axis, size in zip(axes, own, strict=True):
        spread[axis] = size
    x = reshape(writer, x, spread)
    if tuple(spread) == shape:
        return x
    if isinstance(x, np.ndarray):
        return np.broadcast_to(x, shape)
    return writer.node("Expand", x, np.array(shape, np.int64), shape=shape, dtype=dtype_of(x))


def thin(x: Operand) -> Operand:
    """Return an operand before broadcasting, with the same rank. Elementwise operators broadcast anyway."""
    if isinstance(x, np.ndarray):
        repeated = (stride == 0 and size > 1 for stride, size in zip(x.strides, x.shape, strict=True))
        return x[(*(slice(0, 1) if each else slice(None) for each in repeated), ...)]
    node = maker_of(x, "Expand")
    if node is None or len(shape_of(source_of(node))) != len(shape_of(x)):
        return x
    return source_of(node)


def bare(x: Operand) -> Operand:
    """Return a scalar operand before repetition and added axes."""
    node = maker_of(x, "Expand", "Reshape")
    if node is None or math.prod(shape_of(source_of(node))) != 1:
        return x
    inner = bare(source_of(node))
    return inner if len(shape_of(inner)) <= len(shape_of(x)) else x


def source_of(node: ir.Node) -> ir.Value:
    """Return the first operand of a node."""
    value = node.inputs[0]
    assert value is not None
    return value
