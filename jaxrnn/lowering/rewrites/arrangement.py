"""Nodes that do nothing, and movements of elements that are one."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from jaxrnn.lowering.movement import concatenate, cut, reshape, source_of
from jaxrnn.lowering.patterns import Known, Value, operator
from jaxrnn.lowering.rewriting import Match, Rewrite
from jaxrnn.lowering.writer import Operand, constant_of, dtype_of, maker_of, shape_of

X, Y, WHICH = Value("x"), Value("y"), Known("which")

Add, Cast, Concat, Div, Max, Min, Mul, Neg, Not, Reshape, Slice, Sub, Transpose, Where = map(
    operator,
    ("Add", "Cast", "Concat", "Div", "Max", "Min", "Mul", "Neg", "Not", "Reshape", "Slice", "Sub", "Transpose",
     "Where"),
)  # fmt: skip


def _operand(match: Match) -> Operand | None:
    return match["x"]


def _chosen(match: Match) -> Operand | None:
    """The case that a known condition chooses everywhere."""
    which = constant_of(match["which"])
    assert which is not None
    return match["x"] if np.all(which) else match["y"] if not np.any(which) else None


def _masked(match: Match) -> Operand | None:
    """A mask before it had axes of size 1 in front, which broadcasting adds."""
    mask, own = match["mask"], shape_of(match["which"])
    cases = match["x"], match["y"]
    front = len(shape_of(mask.outputs[0])) - len(own)
    if not own or shape_of(mask.outputs[0]) != (1,) * front + own:
        return None
    if np.broadcast_shapes(own, *map(shape_of, cases)) != match.shape:
        return None
    return match.writer.node("Where", match["which"], *cases, shape=match.shape, dtype=match.dtype)


def _cast_of_cast(match: Match) -> Operand | None:
    """One cast, where the first one has lost nothing."""
    x, between = match["x"], dtype_of(match["first"].outputs[0])
    if not np.can_cast(dtype_of(x), between, "safe"):
        return None
    if dtype_of(x) == match.dtype:
        return x
    return match.writer.node("Cast", x, dtype=match.dtype, to=int(ir.DataType.from_numpy(match.dtype)))


def _flat(match: Match) -> Operand | None:
    """Parts of parts, and slices of one value that follow one another as one."""
    node = match.root
    axis = node.attributes["axis"].as_int()
    parts: list[ir.Value] = []
    for value in node.inputs:
        assert value is not None
        inner = maker_of(value, "Concat")
        is_inner = inner is not None and inner.attributes["axis"].as_int() == axis and len(value.uses()) == 1
        parts += [each for each in inner.inputs if each is not None] if inner is not None and is_inner else [value]
    joined: list[Operand] = []
    for part in parts:
        before = joined[-1] if joined else None
        merged = _joined(match, before, part, axis) if isinstance(before, ir.Value) else None
        if merged is not None:
            joined[-1] = merged
        else:
            joined.append(part)
    return concatenate(match.writer, joined, axis) if len(joined) != len(node.inputs) else None


def _joined(match: Match, left: ir.Value, right: ir.Value, axis: int) -> Operand | None:
    """Two slices of one value that follow one another, as one."""
    first, second = _span(left, axis), _span(right, axis)
    if first is None or second is None or first[0] is not second[0] or first[2] != second[1]:
        return None
    source, start, end = first[0], first[1], second[2]
    shape = shape_of(source)
    starts, ends = [0] * len(shape), list(shape)
    starts[axis], ends[axis] = start, end
    return cut(match.writer, source, starts, ends)


def _span(value: ir.Value, axis: int) -> tuple[ir.Value, int, int] | None:
    """Of a slice along one axis, its source, start and end."""
    if (node := maker_of(value, "Split")) is not None and node.attributes["axis"].as_int() == axis:
        start = sum(shape_of(each)[axis] for each in node.outputs[: value.index()])
        return source_of(node), start, start + shape_of(value)[axis]
    node = maker_of(value, "Slice")
    if node is None or len(node.inputs) != 4:
        return None
    starts, ends, axes = (constant_of(each) for each in node.inputs[1:4])
    if starts is None or ends is None or axes is None or axes.tolist() != [axis]:
        return None
    return source_of(node), int(starts[0]), int(ends[0])


def _transposed(match: Match) -> Operand | None:
    """A transpose of a reshape that only adds axes of size 1, and other orders that keep the elements' order."""
    shape, order = shape_of(match["x"]), match.root.attributes["perm"].as_ints()
    large = [axis for axis in order if shape[axis] != 1]
    return reshape(match.writer, match["x"], match.shape) if large == sorted(large) else None


def _taken(match: Match) -> Operand | None:
    """A slice of one element along an axis that is then left out, as a ``Gather`` of its index."""
    part = match["slice"].outputs[0]
    shape = shape_of(part)
    for axis, size in enumerate(shape):
        span = _span(part, axis) if size == 1 and match.shape == shape[:axis] + shape[axis + 1 :] else None
        if span is not None:
            index = np.array(span[1], np.int64)
            return match.writer.node("Gather", span[0], index, shape=match.shape, dtype=match.dtype, axis=axis)
    return None


def _reshaped(match: Match) -> Operand | None:
    """A reshape of a reshape; one to the shape that was there."""
    inner = match["inner"]
    return reshape(match.writer, source_of(inner), match.shape)


REWRITES = (
    Rewrite(Add(X, -0.0), _operand),
    Rewrite(Sub(X, 0.0), _operand),
    Rewrite(Mul(X, 1.0), _operand),
    Rewrite(Div(X, 1.0), _operand),
    Rewrite(Max(X, -math.inf), _operand),
    Rewrite(Min(X, math.inf), _operand),
    Rewrite(Neg(Neg(X)), _operand, shares=True),
    Rewrite(Not(Not(X)), _operand, shares=True),
    Rewrite(Where(WHICH, X, Y), _chosen),
    Rewrite(Where(Reshape(Value("which")).named("mask"), X, Y), _masked, shares=True),
    Rewrite(Cast(Cast(X).named("first")), _cast_of_cast, shares=True),
    Rewrite(Concat(), _flat),
    Rewrite(Transpose(X), _transposed),
    Rewrite(Reshape(Reshape(X).named("inner")), _reshaped, shares=True),
    Rewrite(Reshape(Slice(X).named("slice")), _taken),
)
