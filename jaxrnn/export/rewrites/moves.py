"""Rewrites that move reshapes and transposes behind commuting nodes, until the moves meet and cancel.

A network with channels last then has channels first between the first and the last convolution.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from jaxrnn.export.movement import concatenate, reduction, reshape, source_of, transpose
from jaxrnn.export.patterns import Known, Match, Rewrite, Value, operator
from jaxrnn.export.rewrites.layers import axes_of
from jaxrnn.export.writer import Operand, constant_of, dtype_of, maker_of, shape_of
from jaxrnn.onnx.operators import elementwise_operators

X, Y, KNOWN = Value("x"), Value("y"), Known("known")

Concat, MatMul, Reshape, Transpose = map(operator, ("Concat", "MatMul", "Reshape", "Transpose"))

#: Unary elementwise operators.
OF_ELEMENTS = elementwise_operators()
#: Binary elementwise operators.
PAIRS = ("Add", "Div", "Max", "Min", "Mul", "Sub")
_PASSING = frozenset((*OF_ELEMENTS, *PAIRS, "Concat", "Reshape", "Transpose"))
_COMPARISONS = tuple(
    operator(name)(*operands)
    for name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    for operands in ((X, KNOWN), (KNOWN, X))
)


def is_passed_on(value: ir.Value) -> bool:
    """Return True if the movement can also pass all users of the value."""
    return all(use.node.op_type in _PASSING for use in value.uses()) and not value.is_graph_output()


def _moved(match: Match, y: Operand) -> Operand:
    """Apply the match's reshape or transpose to a value."""
    if match["move"].op_type == "Reshape":
        return reshape(match.writer, y, match.shape)
    return transpose(match.writer, y, _order(match, "move"))


def _after_elements(match: Match) -> Operand | None:
    """Move a reshape or transpose behind an elementwise operator."""
    return _moved(match, match.of_elements(match["x"])) if is_passed_on(match["move"].outputs[0]) else None


def _after_both(match: Match) -> Operand | None:
    """Move two equal reshapes or transposes behind a binary operator."""
    x, y, results = match["x"], match["y"], (match["move"].outputs[0], match["other"].outputs[0])
    if shape_of(x) != shape_of(y) or {shape_of(each) for each in results} != {match.shape}:
        return None
    if match["move"].op_type == "Transpose" and _order(match, "move") != _order(match, "other"):
        return None
    if not all(map(is_passed_on, results)):
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
    if not is_passed_on(match["move"].outputs[0]):
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


_RESHAPED, _OTHER_RESHAPED = Reshape(X).named("move"), Reshape(Y).named("other")


def _order(match: Match, name: str) -> tuple[int, ...]:
    return tuple(match[name].attributes["perm"].as_ints())


def _meeting(match: Match) -> Operand | None:
    before = _order(match, "move")
    return transpose(match.writer, match["x"], [before[axis] for axis in match.root.attributes["perm"].as_ints()])


def _transpose_after_known(match: Match) -> Operand | None:
    """Move a transpose behind an operator with a constant operand."""
    order, known = _order(match, "move"), constant_of(match["known"])
    shape = shape_of(match["x"])
    if not is_passed_on(match["move"].outputs[0]):
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


_TRANSPOSED, _OTHER_TRANSPOSED = Transpose(X).named("move"), Transpose(Y).named("other")


def _quantized_again(match: Match) -> Operand | None:
    """Remove QuantizeLinear of DequantizeLinear with the same scale and zero point."""
    x, (before, after) = match["x"], (match["before"], match.root)
    attributes = [{name: each.value for name, each in node.attributes.items()} for node in (before, after)]
    alike = len(before.inputs) == len(after.inputs) and all(
        a is b for a, b in zip(before.inputs[1:], after.inputs[1:], strict=True)
    )
    return x if alike and attributes[0] == attributes[1] and match.dtype == dtype_of(x) else None


REWRITES = (
    Rewrite(operator("QuantizeLinear")(operator("DequantizeLinear")(X).named("before")), _quantized_again, shares=True),
    Rewrite(Reshape(Reshape(X)), _reshaped, shares=True),
    *(Rewrite(operator(name)(_RESHAPED), _after_elements, shares=True, named=0) for name in OF_ELEMENTS),
    Rewrite(MatMul(_RESHAPED, KNOWN), _after_product, named=0),
    *(Rewrite(operator(name)(_RESHAPED, KNOWN), _reshape_after_known, shares=True, named=0) for name in PAIRS),
    *(Rewrite(operator(name)(_RESHAPED, _OTHER_RESHAPED), _after_both, shares=True, named=0) for name in PAIRS),
    *(Rewrite(Reshape(each.named("comparison")), _of_comparison, shares=True) for each in _COMPARISONS),
    Rewrite(Concat(), _after_reshaped_parts),
    Rewrite(Transpose(_TRANSPOSED), _meeting, shares=True),
    *(Rewrite(operator(name)(_TRANSPOSED), _after_elements, shares=True, named=0) for name in OF_ELEMENTS),
    *(Rewrite(operator(name)(_TRANSPOSED, KNOWN), _transpose_after_known, shares=True, named=0) for name in PAIRS),
    *(
        Rewrite(operator(name)(KNOWN, _TRANSPOSED), _transpose_after_known, shares=True, named=0)
        for name in ("Div", "Sub")
    ),
    *(Rewrite(operator(name)(_TRANSPOSED, _OTHER_TRANSPOSED), _after_both, shares=True, named=0) for name in PAIRS),
    Rewrite(Concat(), _after_transposed_parts),
    *(
        Rewrite(operator(f"Reduce{name}")(_TRANSPOSED), _of_reduction, named=0)
        for name in ("Max", "Mean", "Min", "Prod", "Sum")
    ),
)
