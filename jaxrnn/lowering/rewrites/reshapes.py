"""Reshapes moved after the nodes that do not mind, where they meet others and become one."""

from __future__ import annotations

import math

from jaxrnn.lowering.movement import concatenate, reshape, source_of
from jaxrnn.lowering.patterns import Known, Value, operator
from jaxrnn.lowering.rewriting import Match, Rewrite
from jaxrnn.lowering.writer import Operand, constant_of, maker_of, shape_of

X, KNOWN = Value("x"), Known("known")

Add, Concat, MatMul, Mul, Reshape = map(operator, ("Add", "Concat", "MatMul", "Mul", "Reshape"))

#: Operators on the elements of one operand.
_OF_ELEMENTS = (
    *("Abs", "Cast", "Ceil", "Celu", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu"),
    *("Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Sqrt"),
    *("Tanh", "ThresholdedRelu"),
)
_COMPARISONS = tuple(
    operator(name)(*operands)
    for name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    for operands in ((X, KNOWN), (KNOWN, X))
)


def _reshaped(match: Match) -> Operand | None:
    """A reshape of a reshape; none where the shape was there before."""
    return reshape(match.writer, match["x"], match.shape)


def _after_elements(match: Match) -> Operand | None:
    """An operator on elements, before its operand is reshaped."""
    node, x = match.root, match["x"]
    attributes = {name: each.value for name, each in node.attributes.items()}
    y = match.writer.node(node.op_type, x, shape=shape_of(x), dtype=match.dtype, **attributes)
    return reshape(match.writer, y, match.shape)


def _after_product(match: Match) -> Operand | None:
    """A product with a matrix of what only has its rows in other axes; of two axes, it may become a `Gemm`."""
    x, weight = match["x"], match["known"]
    shape, columns = shape_of(x), shape_of(weight)
    if len(columns) != 2 or len(match.shape) == 2 or len(shape) < 2 or shape[-1] != columns[0]:
        return None
    if shape[-1] != shape_of(match["reshape"].outputs[0])[-1]:
        return None
    y = match.writer.node("MatMul", x, weight, shape=(*shape[:-1], columns[1]), dtype=match.dtype)
    return reshape(match.writer, y, match.shape)


def _after_vector(match: Match) -> Operand | None:
    """A sum or a product with a vector along the last axis, or with a number."""
    x, known = match["x"], match["known"]
    shape, own = shape_of(x), shape_of(known)
    width = math.prod(own)
    if not own or own[-1] != width or not shape or width not in (1, shape[-1]) or match.shape[-1:] != shape[-1:]:
        return None
    if len(own) > len(shape) or match.shape != shape_of(match["reshape"].outputs[0]):
        return None
    y = match.writer.node(match.root.op_type, x, known, shape=shape, dtype=match.dtype)
    return reshape(match.writer, y, match.shape)


def _of_comparison(match: Match) -> Operand | None:
    """A comparison of a number with known ones, in the shape that is asked for."""
    x, known, node = match["x"], constant_of(match["known"]), match["comparison"]
    if shape_of(x) or known is None:
        return None
    operands = [x, known.reshape(match.shape)]
    if node.inputs[1] is x:
        operands.reverse()
    return match.writer.node(node.op_type, *operands, shape=match.shape, dtype=bool)


def _of_parts(match: Match) -> Operand | None:
    """Parts that were all reshaped alike, one after another before that."""
    axis = match.root.attributes["axis"].as_int()
    makers = [maker_of(value, "Reshape") for value in match.root.inputs]
    alone = [
        each for each in makers if each is not None and {use.node for use in each.outputs[0].uses()} == {match.root}
    ]
    if len(makers) < 2 or len(alone) < len(makers):
        return None
    sources = [source_of(maker) for maker in alone]
    shapes = {shape_of(source) for source in sources}
    if len(shapes) > 1 or 0 in match.shape:
        return None
    (shape,) = shapes
    # The parts lie one after another for each place along the axes in front, wherever that is in their shape.
    front = math.prod(match.shape[:axis])
    axes = [place for place in range(len(shape)) if math.prod(shape[:place]) == front]
    if not axes:
        return None
    return reshape(match.writer, concatenate(match.writer, sources, axes[-1]), match.shape)


_RESHAPED = Reshape(X).named("reshape")

REWRITES = (
    Rewrite(Reshape(Reshape(X)), _reshaped, shares=True),
    *(Rewrite(operator(name)(_RESHAPED), _after_elements, named=0) for name in _OF_ELEMENTS),
    Rewrite(MatMul(_RESHAPED, KNOWN), _after_product, named=0),
    Rewrite(Add(_RESHAPED, KNOWN), _after_vector, named=0),
    Rewrite(Mul(_RESHAPED, KNOWN), _after_vector, named=0),
    *(Rewrite(Reshape(each.named("comparison")), _of_comparison, shares=True) for each in _COMPARISONS),
    Rewrite(Concat(), _of_parts),
)
