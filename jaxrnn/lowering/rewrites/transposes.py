"""Transposes moved after the nodes that do not mind, where they meet others and cancel.

A network with channels last is then one with channels first between its first and its last convolution.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxrnn.lowering.movement import concatenate, source_of, transpose
from jaxrnn.lowering.patterns import Known, Value, operator
from jaxrnn.lowering.rewrites.normalizations import axes_of
from jaxrnn.lowering.rewrites.reshapes import OF_ELEMENTS, PAIRS, is_passed_on
from jaxrnn.lowering.rewriting import Match, Rewrite
from jaxrnn.lowering.writer import Operand, constant_of, maker_of, shape_of

X, Y, KNOWN = Value("x"), Value("y"), Known("known")

Concat, Transpose = map(operator, ("Concat", "Transpose"))


def _order(match: Match, name: str) -> tuple[int, ...]:
    return tuple(match[name].attributes["perm"].as_ints())


def _meeting(match: Match) -> Operand | None:
    """A transpose of a transpose, as one or none."""
    before = _order(match, "transpose")
    return transpose(match.writer, match["x"], [before[axis] for axis in match.root.attributes["perm"].as_ints()])


def _after_elements(match: Match) -> Operand | None:
    """An operator on elements, before its operand is transposed."""
    if not is_passed_on(match["transpose"].outputs[0]):
        return None
    y = match.of_elements(match["x"])
    return transpose(match.writer, y, _order(match, "transpose"))


def _after_known(match: Match) -> Operand | None:
    """An operator on elements of a transpose and a known array, which is brought to the order before it."""
    order, known = _order(match, "transpose"), constant_of(match["known"])
    shape = shape_of(match["x"])
    if not is_passed_on(match["transpose"].outputs[0]):
        return None
    if known is None or known.ndim > len(order) or match.shape != tuple(shape[axis] for axis in order):
        return None
    whole = known.reshape((1,) * (len(order) - known.ndim) + known.shape)
    operands: list[Operand] = [match["x"], whole.transpose(np.argsort(order))]
    if constant_of(match.root.inputs[0]) is not None:
        operands.reverse()
    y = match.writer.node(match.root.op_type, *operands, shape=shape, dtype=match.dtype)
    return transpose(match.writer, y, order)


def _after_both(match: Match) -> Operand | None:
    """An operator on elements of two transposes of one order."""
    order, x, y = _order(match, "transpose"), match["x"], match["y"]
    if order != _order(match, "other") or shape_of(x) != shape_of(y):
        return None
    if not (is_passed_on(match["transpose"].outputs[0]) and is_passed_on(match["other"].outputs[0])):
        return None
    result = match.writer.node(match.root.op_type, x, y, shape=shape_of(x), dtype=match.dtype)
    return transpose(match.writer, result, order)


def _after_concatenation(match: Match) -> Operand | None:
    """Parts that are all transposes of one order, which nothing else uses."""
    makers = [maker_of(value, "Transpose") for value in match.root.inputs]
    alone = [each for each in makers if each and {use.node for use in each.outputs[0].uses()} == {match.root}]
    orders = {tuple(each.attributes["perm"].as_ints()) for each in alone}
    if len(alone) < max(len(makers), 2) or len(orders) > 1:
        return None
    (order,) = orders
    axis = order[match.root.attributes["axis"].as_int()]
    return transpose(match.writer, concatenate(match.writer, [source_of(each) for each in alone], axis), order)


def _of_reduction(match: Match) -> Operand | None:
    """A reduction whose other axes keep their order needs no transpose."""
    node, order = match.root, _order(match, "transpose")
    axes = axes_of(node)
    if axes is None:
        return None
    kept = [axis for place, axis in enumerate(order) if place not in axes]
    sources = sorted(order[axis] for axis in axes)
    shape = shape_of(match["x"])
    if node.attributes["keepdims"].as_int() or kept != sorted(kept):
        return None
    as_operand = len(node.inputs) > 1
    operands: Sequence[Operand] = (match["x"], np.array(sources, np.int64)) if as_operand else (match["x"],)
    attributes = {} if as_operand else {"axes": sources}
    result = tuple(shape[axis] for axis in kept)
    return match.writer.node(node.op_type, *operands, shape=result, dtype=match.dtype, keepdims=0, **attributes)


_TRANSPOSED, _OTHER = Transpose(X).named("transpose"), Transpose(Y).named("other")

REWRITES = (
    Rewrite(Transpose(_TRANSPOSED), _meeting, shares=True),
    *(Rewrite(operator(name)(_TRANSPOSED), _after_elements, shares=True, named=0) for name in OF_ELEMENTS),
    *(Rewrite(operator(name)(_TRANSPOSED, KNOWN), _after_known, shares=True, named=0) for name in PAIRS),
    *(Rewrite(operator(name)(KNOWN, _TRANSPOSED), _after_known, shares=True, named=0) for name in ("Div", "Sub")),
    *(Rewrite(operator(name)(_TRANSPOSED, _OTHER), _after_both, shares=True, named=0) for name in PAIRS),
    Rewrite(Concat(), _after_concatenation),
    *(
        Rewrite(operator(f"Reduce{name}")(_TRANSPOSED), _of_reduction, named=0)
        for name in ("Max", "Mean", "Min", "Prod", "Sum")
    ),
)
