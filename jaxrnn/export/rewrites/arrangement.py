"""Rewrites that remove nodes without an effect, and merge movements of elements."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxrnn.export.movement import concatenate, cut_along, reshape, source_of
from jaxrnn.export.patterns import Known, Match, Rewrite, Value, either, operator
from jaxrnn.export.writer import Operand, Writer, constant_of, dtype_of, maker_of, shape_of

X, Y, WHICH = Value("x"), Value("y"), Known("which")

Add, Cast, Concat, Div, Max, Min, Mul, Neg, Not, Reshape, Slice, Split, Sub, Transpose, Where = map(
    operator,
    ("Add", "Cast", "Concat", "Div", "Max", "Min", "Mul", "Neg", "Not", "Reshape", "Slice", "Split", "Sub", "Transpose",
     "Where"),
)  # fmt: skip


def _operand(match: Match) -> Operand | None:
    return match["x"]


def _chosen(match: Match) -> Operand | None:
    which = constant_of(match["which"])
    assert which is not None
    return match["x"] if np.all(which) else match["y"] if not np.any(which) else None


def _masked(match: Match) -> Operand | None:
    """Remove leading axes of size 1 from a mask, which broadcasting adds."""
    mask, own = match["mask"], shape_of(match["which"])
    cases = match["x"], match["y"]
    front = len(shape_of(mask.outputs[0])) - len(own)
    if not own or shape_of(mask.outputs[0]) != (1,) * front + own:
        return None
    if np.broadcast_shapes(own, *map(shape_of, cases)) != match.shape:
        return None
    return match.writer.node("Where", match["which"], *cases, shape=match.shape, dtype=match.dtype)


def _cast_of_cast(match: Match) -> Operand | None:
    """Merge two casts if the first cast is lossless."""
    x, between = match["x"], dtype_of(match["first"].outputs[0])
    if not np.can_cast(dtype_of(x), between, "safe"):
        return None
    if dtype_of(x) == match.dtype:
        return x
    return match.writer.node("Cast", x, dtype=match.dtype, to=int(ir.DataType.from_numpy(match.dtype)))


def _flat(match: Match) -> Operand | None:
    """Flatten nested concatenations, and merge consecutive slices of a value."""
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
    first, second = span_of(left, axis), span_of(right, axis)
    if first is None or second is None or first[0] is not second[0] or first[2] != second[1]:
        return None
    return cut_along(match.writer, first[0], axis, first[1], second[2])


def span_of(value: ir.Value, axis: int) -> tuple[ir.Value, int, int] | None:
    """Return the source, start and end of a slice along an axis."""
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


def _reflected(match: Match) -> Operand | None:
    """Build a reflecting ``Pad`` from a value between reversed parts of the value."""
    axis = match.root.attributes["axis"].as_int()
    spans = [_backwards(value, axis) for value in match.root.inputs]
    middle = [index for index, span in enumerate(spans) if span is None]
    if len(middle) != 1 or len(spans) not in (2, 3) or middle[0] > 1 or (len(spans) == 3 and middle[0] != 1):
        return None
    x, widths = _reflection(match.root.inputs[middle[0]], axis)
    size = shape_of(x)[axis]
    for index, span in enumerate(spans):
        if span is None:
            continue
        source, first, last = span
        side = int(index > middle[0])
        # The first element of the part before has index 1; the part after ends at size - 2.
        if source is not x or widths[side] or (last != 1 if side == 0 else first != size - 2):
            return None
        widths[side] = first - last + 1
    sizes = [[width if place == axis else 0 for place in range(len(match.shape))] for width in widths]
    return match.writer.node(
        "Pad", x, np.array(sizes, np.int64).reshape(-1), shape=match.shape, dtype=match.dtype, mode="reflect"
    )


def _reflection(value: ir.Value | None, axis: int) -> tuple[ir.Value, list[int]]:
    """Return the source and the widths of a reflecting ``Pad`` along an axis."""
    assert value is not None
    node = maker_of(value, "Pad")
    sizes = None if node is None or "mode" not in node.attributes else constant_of(node.inputs[1])
    if node is None or sizes is None:
        return value, [0, 0]
    low, high = sizes.reshape(2, -1).tolist()
    others = any(width for place, width in enumerate((*low, *high)) if place % len(low) != axis)
    return (value, [0, 0]) if others else (source_of(node), [low[axis], high[axis]])


def _backwards(value: ir.Value | None, axis: int) -> tuple[ir.Value, int, int] | None:
    """Return the source, first and last index of a reversed slice along an axis."""
    node = maker_of(value, "Slice")
    if node is None or len(node.inputs) != 5 or value is None:
        return None
    starts, _, axes, steps = (constant_of(each) for each in node.inputs[1:])
    if starts is None or axes is None or steps is None or axes.tolist() != [axis] or steps.tolist() != [-1]:
        return None
    first = int(starts[0])
    source, last = source_of(node), first - shape_of(value)[axis] + 1
    span = span_of(source, axis)
    return (source, first, last) if span is None else (span[0], span[1] + first, span[1] + last)


def _transposed(match: Match) -> Operand | None:
    """Build a ``Reshape`` from a transpose that moves axes of size 1 only."""
    shape, order = shape_of(match["x"]), match.root.attributes["perm"].as_ints()
    large = [axis for axis in order if shape[axis] != 1]
    return reshape(match.writer, match["x"], match.shape) if large == sorted(large) else None


def _only_part(match: Match) -> Operand | None:
    """Build a slice from a split with a single used part."""
    axis = match.root.attributes["axis"].as_int()
    used = [value for value in match.root.outputs if value.uses() or value.is_graph_output()]
    span = span_of(match.result, axis)
    return cut_along(match.writer, span[0], axis, *span[1:]) if used == [match.result] and span else None


def _taken(match: Match) -> Operand | None:
    """Build a ``Gather`` from a slice of a single element and a removed axis."""
    part = match["slice"].outputs[0]
    shape = shape_of(part)
    for axis, size in enumerate(shape):
        span = span_of(part, axis) if size == 1 and match.shape == shape[:axis] + shape[axis + 1 :] else None
        if span is not None:
            index = np.array(span[1], np.int64)
            return match.writer.node("Gather", span[0], index, shape=match.shape, dtype=match.dtype, axis=axis)
    return None


REWRITES = (
    Rewrite(Add(X, either(0.0, -0.0)), _operand),  # XLA also ignores the sign of zero here
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
    Rewrite(Concat(), _reflected),
    Rewrite(Transpose(X), _transposed),
    Rewrite(Split(X), _only_part),
    Rewrite(Reshape(Slice(X).named("slice")), _taken),
)


def split_slices(graph: ir.Graph, writer: Writer) -> None:
    """Replace consecutive slices that cover a whole axis by a single ``Split``."""
    groups: dict[Any, list[tuple[int, int, ir.Node]]] = defaultdict(list)
    for node in graph.all_nodes():
        axes = constant_of(node.inputs[3]) if node.op_type == "Slice" and len(node.inputs) == 4 else None
        if axes is None or axes.size != 1 or not (node.outputs[0].uses() or node.outputs[0].is_graph_output()):
            continue
        axis = int(axes[0])
        if (span := span_of(node.outputs[0], axis)) is not None:
            source, start, end = span
            groups[source, axis, node.graph].append((start, end, node))
    for (source, axis, _), slices in groups.items():
        ends = [0, *(end for _, end, _ in sorted(slices, key=lambda each: each[0]))]
        starts = sorted(start for start, _, _ in slices)
        if len(slices) > 1 and [*starts, shape_of(source)[axis]] == ends:
            _split(writer.inside(), source, axis, slices)


def _split(writer: Writer, source: ir.Value, axis: int, slices: list[tuple[int, int, ir.Node]]) -> None:
    first = slices[0][2]
    writer.scope = first.meta.get("scope", "")
    in_order = sorted(slices, key=lambda each: each[0])
    sizes = np.array([end - start for start, end, _ in in_order], np.int64)
    kinds = [(shape_of(node.outputs[0]), dtype_of(source)) for _, _, node in in_order]
    parts = writer.nodes_of("Split", [source, sizes], kinds, axis=axis)
    assert first.graph is not None
    first.graph.insert_before(first, writer.nodes)
    for part, (_, _, node) in zip(parts, in_order, strict=True):
        node.outputs[0].replace_all_uses_with(part, replace_graph_outputs=True)
        assert node.graph is not None
        node.graph.remove(node, safe=True)
