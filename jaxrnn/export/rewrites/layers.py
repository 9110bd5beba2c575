"""Rewrites into means, softmax, normalisations, and products with a bias or a scale."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from jaxrnn.export.patterns import Known, Match, Number, Rewrite, Value, by_channel, operator
from jaxrnn.export.reshaping import reduction, reshape, source_of
from jaxrnn.export.writer import Operand, constant_of, dtype_of, operand_of, shape_of

#: The opset that made the addend of ``Gemm`` optional.
_GEMM_OF_TWO = 11

X, Y, WEIGHT, SCALE, BIAS, ADDED = Value("x"), Value("y"), Known("weight"), Known("scale"), Known("bias"), Value("bias")
COUNT, EPSILON = Number("count"), Number("epsilon")

Add, AveragePool, BatchNormalization, Conv, ConvTranspose, Div, Exp, Gemm = map(
    operator, ("Add", "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "Div", "Exp", "Gemm")
)
InstanceNormalization, LayerNormalization, Log, MatMul, Mul, Reciprocal, ReduceMax, ReduceMean = map(
    operator,
    ("InstanceNormalization", "LayerNormalization", "Log", "MatMul", "Mul", "Reciprocal", "ReduceMax", "ReduceMean"),
)
ReduceSum, Reshape, Sqrt, Sub, Transpose = map(operator, ("ReduceSum", "Reshape", "Sqrt", "Sub", "Transpose"))


def axes_of(node: ir.Node) -> list[int] | None:
    """Return the axes of a reduction, or None if not constant."""
    rank = len(shape_of(source_of(node)))
    if "axes" in node.attributes:
        axes = node.attributes["axes"].as_ints()
    elif len(node.inputs) > 1:
        known = constant_of(node.inputs[1])
        if known is None:
            return None
        axes = known.tolist()
    else:
        axes = range(rank)
    return sorted(axis % rank for axis in axes)


def _kept_axes(node: ir.Node) -> list[int] | None:
    """Return the axes of a reduction with ``keepdims``, or None."""
    return axes_of(node) if len(shape_of(node.outputs[0])) == len(shape_of(source_of(node))) else None


def _keeping(match: Match) -> Operand | None:
    """Build a reduction with ``keepdims`` from a reduction and a reshape."""
    node = match["reduction"]
    axes, shape = axes_of(node), shape_of(match["x"])
    if axes is None or match.shape != tuple(1 if axis in axes else size for axis, size in enumerate(shape)):
        return None
    return reduction(match.writer, node.op_type, match["x"], axes, match.shape)


def _mean(match: Match) -> Operand | None:
    """Build ``ReduceMean`` from a sum divided by the number of terms."""
    node, x = match["sum"], match["x"]
    axes = axes_of(node)
    if axes is None or match.dtype.kind != "f" or match.shape != shape_of(node.outputs[0]):
        return None
    count = math.prod(shape_of(x)[axis] for axis in axes)
    if match["count"] != (count if match.root.op_type == "Div" else float(match.dtype.type(1 / count))):
        return None
    return reduction(match.writer, "ReduceMean", x, axes, match.shape)


def _softmax(operator: str) -> Callable[[Match], Operand | None]:
    def build(match: Match) -> Operand | None:
        axes, others = _kept_axes(match["max"]), _kept_axes(match["sum"])
        if axes is None or len(axes) != 1 or axes != others or match.writer.opset < 13:
            return None
        return match.node(operator, match["x"], axis=axes[0])

    return build


def _normalized(match: Match) -> Operand | None:
    """Build ``InstanceNormalization`` over all axes after the channels, or ``LayerNormalization``."""
    x = match["x"]
    shape, axes = shape_of(x), _kept_axes(match["mean"])
    if not axes or axes != _kept_axes(match["variance"]) or 0 in shape:
        return None
    first = len(shape) - len(axes)
    if axes != list(range(first, len(shape))):
        return None
    if first == 2 and shape[1] > 1:
        ones, zeros = np.ones(shape[1], match.dtype), np.zeros(shape[1], match.dtype)
        instance = match.node("InstanceNormalization", x, ones, zeros, epsilon=match["epsilon"])
        if instance is not None:
            return instance
    ones = np.ones(shape[first:], match.dtype)
    return match.node("LayerNormalization", x, ones, axis=first, epsilon=match["epsilon"])


def _divided(match: Match) -> Operand | None:
    """Replace a product with the reciprocal of a root."""
    return match.node("Div", match["x"], match["root"].outputs[0], shape=match.shape)


def _layer_scaled(match: Match) -> Operand | None:
    """Put a scale into a layer normalisation of scale 1."""
    node = match["layer"]
    axis = node.attributes["axis"].as_int()
    ones = constant_of(node.inputs[1])
    if ones is None or np.any(ones != 1):
        return None
    scale = _over_last(match, "scale", axis)
    return None if scale is None else match.like(node, scale)


def _layer_biased(match: Match) -> Operand | None:
    node = match["layer"]
    axis = node.attributes["axis"].as_int()
    bias = None if len(node.inputs) > 2 else _over_last(match, "bias", axis)
    return None if bias is None else match.like(node, node.inputs[1], bias)


def _over_last(match: Match, name: str, axis: int) -> Operand | None:
    """Return a value that spans exactly the axes from ``axis`` on, or None."""
    value, shape = match[name], match.shape
    own = (1,) * (len(shape) - len(shape_of(value))) + shape_of(value)
    fits = own == (1,) * axis + shape[axis:] and dtype_of(value) == match.dtype
    return reshape(match.writer, operand_of(value), shape[axis:]) if fits else None


def _is_plain(node: ir.Node) -> bool:
    scale, bias = (constant_of(each) for each in node.inputs[1:3])
    return scale is not None and bias is not None and bool(np.all(scale == 1) and not np.any(bias))


def _layer_of_instance(name: str) -> Callable[[Match], Operand | None]:
    """Return a builder of a layer normalisation from an instance normalisation and a value for each element."""

    def build(match: Match) -> Operand | None:
        node, value = match["instance"], _over_last(match, name, 2)
        if value is None or not _is_plain(node) or shape_of(value) == (1,):
            return None
        operands = [value] if name == "scale" else [np.ones(shape_of(value), match.dtype), value]
        epsilon = node.attributes["epsilon"].as_float()
        return match.node("LayerNormalization", source_of(node), *operands, axis=2, epsilon=epsilon)

    return build


def _instance_scaled(match: Match) -> Operand | None:
    """Put a scale and a bias for each channel into an instance normalisation."""
    node = match["instance"]
    if not _is_plain(node):
        return None
    scale, bias = by_channel(match, "scale"), by_channel(match, "bias")
    return None if scale is None or bias is None else match.like(node, scale, bias)


_CENTRED = Sub(X, ReduceMean(X).named("mean"))
_DEVIATION = Sqrt(Add(ReduceMean(Mul(_CENTRED, _CENTRED)).named("variance"), EPSILON))
_EXPONENTIAL = Exp(Sub(X, ReduceMax(X).named("max")))
_INSTANCE = InstanceNormalization(Value("normalized")).named("instance")
_LAYER = LayerNormalization(Value("normalized")).named("layer")


def _biased(match: Match) -> Operand | None:
    """Put a bias for each channel into a convolution."""
    node = match["product"]
    if match.shape != shape_of(node.outputs[0]):
        return None
    bias = by_channel(match, "bias")
    own = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
    if bias is None or (own is None and len(node.inputs) > 2):
        return None
    return match.like(node, node.inputs[1], bias if own is None else own + bias)


def _scaled(match: Match) -> Operand | None:
    """Multiply a scale for each channel into the weight and bias of a convolution."""
    node = match["product"]
    constants = [known for each in node.inputs[1:] if (known := constant_of(each)) is not None]
    if match.shape != shape_of(node.outputs[0]) or len(constants) < len(node.inputs) - 1:
        return None
    scale, (weight, *biases) = by_channel(match, "scale"), constants
    if not isinstance(scale, np.ndarray):
        return None
    columns = scale.reshape(-1, *(1,) * (weight.ndim - 1))
    if node.op_type == "ConvTranspose":  # [channels, out / groups, ...]
        if node.attributes["group"].as_int() > 1:
            return None
        columns = columns.swapaxes(0, 1)
    with np.errstate(all="ignore"):
        products = [weight * columns, *(bias * scale for bias in biases)]
    return match.like(node, *products) if all(map(_is_as_regular, products, constants)) else None


def _is_as_regular(product: np.ndarray, source: np.ndarray) -> bool:
    """Return True if a product is finite, normal, and zero only where the source is zero.

    Infinite inputs then lead to the same results.
    """
    smallest = np.abs(product[source != 0]).min(initial=np.inf)
    return bool(np.all(np.isfinite(product)) and smallest >= np.finfo(product.dtype).tiny)


def _batch_normalization(match: Match) -> Operand | None:
    """Build a batch normalisation from a scale and a bias for each channel."""
    if len(match.shape) < 3 or match.shape[1] == 1 or shape_of(match["x"]) != match.shape:
        return None
    if any(math.prod(shape_of(match[name])) == 1 for name in ("scale", "bias")):
        return None
    scale, bias = by_channel(match, "scale"), by_channel(match, "bias")
    if scale is None or bias is None:
        return None
    zeros, ones = np.zeros(match.shape[1], match.dtype), np.ones(match.shape[1], match.dtype)
    return match.node("BatchNormalization", match["x"], scale, bias, zeros, ones, epsilon=0.0)


def _gemm(match: Match) -> Operand | None:
    """Build ``Gemm`` from a product of matrices and an addend that broadcasts to the product.

    If the transposed weight is a parameter, ``Gemm`` gets the parameter with ``transB``.
    """
    x, y, added = match["x"], match["y"], match.get("bias", None)
    if len(shape_of(x)) != 2 or len(shape_of(y)) != 2 or match.shape != (shape_of(x)[0], shape_of(y)[1]):
        return None
    weight = operand_of(y)
    turned = isinstance(weight, np.ndarray) and not match.writer.is_parameter(weight)
    turned = turned and match.writer.is_parameter(np.asarray(weight).T)
    if added is None and (not turned or match.writer.opset < _GEMM_OF_TWO):
        return None
    operands = [x, np.asarray(weight).T if turned else y, *([] if added is None else [added])]
    return match.node("Gemm", *operands, shape=match.shape, transB=1 if turned else None)


def _gemm_biased(match: Match) -> Operand | None:
    node = match["product"]
    return None if len(node.inputs) > 2 else match.like(node, node.inputs[1], match["bias"])


def _transposing(side: str) -> Callable[[Match], Operand | None]:
    def build(match: Match) -> Operand | None:
        are_matrices = all(len(shape) == 2 for shape in (match.shape, shape_of(match["x"]), shape_of(match["y"])))
        if not are_matrices or match.writer.opset < _GEMM_OF_TWO:
            return None
        return match.node("Gemm", match["x"], match["y"], shape=match.shape, **{f"trans{side}": 1})

    return build


REWRITES = (
    *(
        Rewrite(Reshape(operator(name)(X).named("reduction")), _keeping)
        for name in ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")
    ),
    Rewrite(Div(ReduceSum(X).named("sum"), COUNT), _mean),
    Rewrite(Mul(ReduceSum(X).named("sum"), COUNT), _mean),
    Rewrite(Div(Mul(AveragePool(X).named("mean"), COUNT), COUNT), lambda match: match["mean"].outputs[0]),
    Rewrite(Div(_EXPONENTIAL, ReduceSum(_EXPONENTIAL).named("sum")), _softmax("Softmax")),
    Rewrite(Sub(Sub(X, ReduceMax(X).named("max")), Log(ReduceSum(_EXPONENTIAL).named("sum"))), _softmax("LogSoftmax")),
    Rewrite(Mul(_CENTRED, Reciprocal(_DEVIATION)), _normalized),
    Rewrite(Div(_CENTRED, _DEVIATION), _normalized),
    Rewrite(Mul(X, Reciprocal(Sqrt(Value("square")).named("root"))), _divided),
    Rewrite(Mul(_INSTANCE, SCALE), _layer_of_instance("scale")),
    Rewrite(Add(_INSTANCE, BIAS), _layer_of_instance("bias")),
    Rewrite(Mul(_LAYER, SCALE), _layer_scaled),
    Rewrite(Add(_LAYER, BIAS), _layer_biased),
    Rewrite(Add(Mul(_INSTANCE, SCALE), BIAS), _instance_scaled),
    *(Rewrite(Mul(each(X, WEIGHT).named("product"), SCALE), _scaled) for each in (Conv, ConvTranspose)),
    *(Rewrite(Add(each(X, Y).named("product"), BIAS), _biased) for each in (Conv, ConvTranspose)),
    Rewrite(Add(Mul(X, SCALE), BIAS), _batch_normalization),
    Rewrite(Add(MatMul(X, Y), ADDED), _gemm),
    Rewrite(MatMul(X, Y), _gemm),
    Rewrite(MatMul(Transpose(X), Y), _transposing("A")),
    Rewrite(MatMul(X, Transpose(Y)), _transposing("B")),
    Rewrite(Add(Gemm(X, Y).named("product"), ADDED), _gemm_biased),
)
