"""Rewrites of movements: nodes without an effect are removed, and movements of elements merge, move and cancel.

The last rewrites move reshapes and transposes behind commuting nodes, until the moves meet and cancel. A network with
channels last then has channels first between the first and the last convolution.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxrnn.export.patterns import Either, Known, Match, Rewrite, Value, attributes_of, operator
from jaxrnn.export.reshaping import concatenate, cut_along, reduction, reshape, source_of, transpose
from jaxrnn.export.rewrites.layers import axes_of
from jaxrnn.export.writer import Operand, Writer, constant_of, dtype_of, maker_of, shape_of
from jaxrnn.jaxprs.casts import kept
from jaxrnn.onnx.operators import elementwise_operators

X, Y, WHICH, KNOWN = Value("x"), Value("y"), Known("which"), Known("known")

Add, Cast, Concat, Div, MatMul, Max, Min, Mul, Neg, Not, Reshape, Slice, Split, Sub, Transpose, Where = map(
    operator,
    ("Add", "Cast", "Concat", "Div", "MatMul", "Max", "Min", "Mul", "Neg", "Not", "Reshape", "Slice", "Split", "Sub",
     "Transpose", "Where"),
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
    """Merge two casts if the first cast keeps every value."""
    x, between = match["x"], dtype_of(match["first"].outputs[0])
    if not kept(dtype_of(x), between).all:
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


SIMPLIFICATIONS = (
    Rewrite(Add(X, Either(0.0, -0.0)), _operand),  # XLA also ignores the sign of zero here
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
    for (source, axis, graph_of_slices), slices in groups.items():
        first = slices[0][2]
        slices.sort(key=lambda each: each[0])
        starts, ends = [start for start, _, _ in slices], [end for _, end, _ in slices]
        if len(slices) < 2 or [*starts, shape_of(source)[axis]] != [0, *ends]:
            continue
        here = writer.inside()
        here.scope = first.meta.get("scope", "")
        kinds = [(shape_of(node.outputs[0]), dtype_of(source)) for _, _, node in slices]
        parts = here.nodes_of("Split", [source, np.subtract(ends, starts)], kinds, axis=axis)
        graph_of_slices.insert_before(first, here.nodes)
        for part, (_, _, node) in zip(parts, slices, strict=True):
            node.outputs[0].replace_all_uses_with(part, replace_graph_outputs=True)
            graph_of_slices.remove(node, safe=True)


#: Unary elementwise operators.
_OF_ELEMENTS = elementwise_operators()
#: Binary elementwise operators.
_PAIRS = ("Add", "Div", "Max", "Min", "Mul", "Sub")
_PASSING = frozenset((*_OF_ELEMENTS, *_PAIRS, "Concat", "Reshape", "Transpose"))


def _is_passed_on(value: ir.Value) -> bool:
    """Return True if the movement can also pass all users of the value."""
    return all(use.node.op_type in _PASSING for use in value.uses()) and not value.is_graph_output()


def _moved(match: Match, y: Operand) -> Operand:
    """Apply the match's reshape or transpose to a value."""
    if match["move"].op_type == "Reshape":
        return reshape(match.writer, y, match.shape)
    return transpose(match.writer, y, _order(match, "move"))


def _after_elements(match: Match) -> Operand | None:
    """Move a reshape or transpose behind an elementwise operator."""
    if not _is_passed_on(match["move"].outputs[0]):
        return None
    x, root = match["x"], match.root
    y = match.writer.node(root.op_type, x, shape=shape_of(x), dtype=match.dtype, **attributes_of(root))
    return _moved(match, y)


def _after_both(match: Match) -> Operand | None:
    """Move two equal reshapes or transposes behind a binary operator."""
    x, y, results = match["x"], match["y"], (match["move"].outputs[0], match["other"].outputs[0])
    if shape_of(x) != shape_of(y) or {shape_of(each) for each in results} != {match.shape}:
        return None
    if match["move"].op_type == "Transpose" and _order(match, "move") != _order(match, "other"):
        return None
    if not all(map(_is_passed_on, results)):
        return None
    return _moved(match, match.writer.node(match.root.op_type, x, y, shape=shape_of(x), dtype=match.dtype))


def _sources(match: Match, operator: str) -> tuple[list[ir.Node], list[ir.Value]]:
    """Return the makers of all parts of a concatenation and their operands; empty if a part has a second user."""
    makers = [maker_of(value, operator) for value in match.root.inputs]
    alone = [each for each in makers if each and {use.node for use in each.outputs[0].uses()} == {match.root}]
    return (alone, [source_of(each) for each in alone]) if len(alone) == len(makers) > 1 else ([], [])


def _after_reshaped_parts(match: Match) -> Operand | None:
    """Move equal reshapes of all parts behind their concatenation."""
    _, sources = _sources(match, "Reshape")
    shapes = {shape_of(source) for source in sources}
    if len(shapes) != 1 or 0 in match.shape:
        return None
    (shape,) = shapes
    # The axis of the source with as many elements before it as the axis of the result.
    front = math.prod(match.shape[: match.root.attributes["axis"].as_int()])
    axes = [place for place in range(len(shape)) if math.prod(shape[:place]) == front]
    if not axes:
        return None
    return reshape(match.writer, concatenate(match.writer, sources, axes[-1]), match.shape)


def _after_transposed_parts(match: Match) -> Operand | None:
    """Move equal transposes of all parts behind their concatenation."""
    nodes, sources = _sources(match, "Transpose")
    orders = {tuple(each.attributes["perm"].as_ints()) for each in nodes}
    if len(orders) != 1:
        return None
    (order,) = orders
    axis = order[match.root.attributes["axis"].as_int()]
    return transpose(match.writer, concatenate(match.writer, sources, axis), order)


def _reshaped(match: Match) -> Operand | None:
    return reshape(match.writer, match["x"], match.shape)


def _after_product(match: Match) -> Operand | None:
    """Move a reshape of the rows behind a product with a matrix. With two axes, it may become ``Gemm``."""
    x, weight = match["x"], match["known"]
    shape, columns = shape_of(x), shape_of(weight)
    if len(columns) != 2 or len(match.shape) == 2 or len(shape) < 2 or shape[-1] != columns[0]:
        return None
    if shape[-1] != shape_of(match["move"].outputs[0])[-1]:
        return None
    y = match.writer.node("MatMul", x, weight, shape=(*shape[:-1], columns[1]), dtype=match.dtype)
    return reshape(match.writer, y, match.shape)


def _reshape_after_known(match: Match) -> Operand | None:
    """Move a reshape behind an operator with a constant operand along unchanged axes."""
    x, known = match["x"], constant_of(match["known"])
    before, after = shape_of(x), match.shape
    if not _is_passed_on(match["move"].outputs[0]):
        return None
    if known is None or after != shape_of(match["move"].outputs[0]) or not before or 0 in after:
        return None
    own = (1,) * (len(after) - known.ndim) + known.shape
    moved = _along(own, before, after)
    if moved is None:
        return None
    y = match.writer.node(match.root.op_type, x, known.reshape(moved), shape=before, dtype=match.dtype)
    return reshape(match.writer, y, after)


def _along(own: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of a constant before a reshape, from the shape after the reshape."""
    if math.prod(own) == 1:
        return ()
    if math.prod(own[:-1]) == 1 and own[-1] in (1, before[-1]) and before[-1] == after[-1]:
        return own[-1:]
    large = [axis for axis, size in enumerate(after) if size > 1]
    if [after[axis] for axis in large] != [size for size in before if size > 1]:
        return None
    sizes = iter(large)  # the shapes differ in axes of size 1 only
    return tuple(own[next(sizes)] if size > 1 else 1 for size in before)


def _of_comparison(match: Match) -> Operand | None:
    """Merge a reshape into the comparison of a scalar with constants."""
    x, known, node = match["x"], constant_of(match["known"]), match["comparison"]
    if shape_of(x) or known is None or any(use.node.op_type != "Reshape" for use in node.outputs[0].uses()):
        return None
    operands = [x, known.reshape(match.shape)]
    if node.inputs[1] is x:
        operands.reverse()
    return match.writer.node(node.op_type, *operands, shape=match.shape, dtype=bool)


def _order(match: Match, name: str) -> tuple[int, ...]:
    return tuple(match[name].attributes["perm"].as_ints())


def _meeting(match: Match) -> Operand | None:
    before = _order(match, "move")
    return transpose(match.writer, match["x"], [before[axis] for axis in match.root.attributes["perm"].as_ints()])


def _transpose_after_known(match: Match) -> Operand | None:
    """Move a transpose behind an operator with a constant operand."""
    order, known = _order(match, "move"), constant_of(match["known"])
    shape = shape_of(match["x"])
    if not _is_passed_on(match["move"].outputs[0]):
        return None
    if known is None or known.ndim > len(order) or match.shape != tuple(shape[axis] for axis in order):
        return None
    known = known.reshape((1,) * (len(order) - known.ndim) + known.shape)
    operands: list[Operand] = [match["x"], known.transpose(np.argsort(order))]
    if constant_of(match.root.inputs[0]) is not None:
        operands.reverse()
    y = match.writer.node(match.root.op_type, *operands, shape=shape, dtype=match.dtype)
    return transpose(match.writer, y, order)


def _of_reduction(match: Match) -> Operand | None:
    """Remove a transpose before a reduction if the kept axes stay in order."""
    node, order = match.root, _order(match, "move")
    axes = axes_of(node)
    if axes is None:
        return None
    kept = [axis for place, axis in enumerate(order) if place not in axes]
    sources = sorted(order[axis] for axis in axes)
    shape = shape_of(match["x"])
    if node.attributes["keepdims"].as_int() or kept != sorted(kept):
        return None
    return reduction(match.writer, node.op_type, match["x"], sources, [shape[axis] for axis in kept])


def _quantized_again(match: Match) -> Operand | None:
    """Remove QuantizeLinear of DequantizeLinear with the same scale and zero point."""
    x, before, after = match["x"], match["before"], match.root
    alike = len(before.inputs) == len(after.inputs) and all(
        a is b for a, b in zip(before.inputs[1:], after.inputs[1:], strict=True)
    )
    return x if alike and attributes_of(before) == attributes_of(after) and match.dtype == dtype_of(x) else None


_RESHAPED, _OTHER_RESHAPED = Reshape(X).named("move"), Reshape(Y).named("other")
_TRANSPOSED, _OTHER_TRANSPOSED = Transpose(X).named("move"), Transpose(Y).named("other")
_COMPARISONS = tuple(
    operator(name)(*operands)
    for name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    for operands in ((X, KNOWN), (KNOWN, X))
)

REWRITES = (
    Rewrite(operator("QuantizeLinear")(operator("DequantizeLinear")(X).named("before")), _quantized_again, shares=True),
    Rewrite(Reshape(Reshape(X)), _reshaped, shares=True),
    *(Rewrite(operator(name)(_RESHAPED), _after_elements, shares=True, named=0) for name in _OF_ELEMENTS),
    Rewrite(MatMul(_RESHAPED, KNOWN), _after_product, named=0),
    *(Rewrite(operator(name)(_RESHAPED, KNOWN), _reshape_after_known, shares=True, named=0) for name in _PAIRS),
    *(Rewrite(operator(name)(_RESHAPED, _OTHER_RESHAPED), _after_both, shares=True, named=0) for name in _PAIRS),
    *(Rewrite(Reshape(each.named("comparison")), _of_comparison, shares=True) for each in _COMPARISONS),
    Rewrite(Concat(), _after_reshaped_parts),
    Rewrite(Transpose(_TRANSPOSED), _meeting, shares=True),
    *(Rewrite(operator(name)(_TRANSPOSED), _after_elements, shares=True, named=0) for name in _OF_ELEMENTS),
    *(Rewrite(operator(name)(_TRANSPOSED, KNOWN), _transpose_after_known, shares=True, named=0) for name in _PAIRS),
    *(
        Rewrite(operator(name)(KNOWN, _TRANSPOSED), _transpose_after_known, shares=True, named=0)
        for name in ("Div", "Sub")
    ),
    *(Rewrite(operator(name)(_TRANSPOSED, _OTHER_TRANSPOSED), _after_both, shares=True, named=0) for name in _PAIRS),
    Rewrite(Concat(), _after_transposed_parts),
    *(
        Rewrite(operator(f"Reduce{name}")(_TRANSPOSED), _of_reduction, named=0)
        for name in ("Max", "Mean", "Min", "Prod", "Sum")
    ),
)
