"""Products with what is added to them and what scales them: `Conv` and `ConvTranspose` with a bias, `Gemm`."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from jaxrnn.lowering.patterns import Known, Op, Value, operator
from jaxrnn.lowering.rewriting import Match, Rewrite, by_channel
from jaxrnn.lowering.writer import Operand, constant_of, operand_of, shape_of

X, Y, WEIGHT, SCALE, BIAS, ADDED = Value("x"), Value("y"), Known("weight"), Known("scale"), Known("bias"), Value("bias")

Add, BatchNormalization, Conv, ConvTranspose, Gemm, MatMul, Mul, Transpose = map(
    operator, ("Add", "BatchNormalization", "Conv", "ConvTranspose", "Gemm", "MatMul", "Mul", "Transpose")
)


def _biased(match: Match) -> Operand | None:
    """A bias for each channel as the convolution's own."""
    node = match["product"]
    if match.shape != shape_of(node.outputs[0]):
        return None
    bias = by_channel(match, "bias")
    own = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
    if bias is None or (own is None and len(node.inputs) > 2):
        return None
    return match.like(node, node.inputs[1], bias if own is None else own + bias)


def _scaled(match: Match) -> Operand | None:
    """A scale for each channel in the weight and the bias: the second axis of the result is the weight's first."""
    node = match["product"]
    if match.shape != shape_of(node.outputs[0]):
        return None
    scale, weight = by_channel(match, "scale"), constant_of(match["weight"])
    own = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
    if not isinstance(scale, np.ndarray) or weight is None or (own is None and len(node.inputs) > 2):
        return None
    columns = scale.reshape(-1, *(1,) * (weight.ndim - 1))
    if node.op_type == "ConvTranspose":  # [channels, out / groups, ...]
        if node.attributes["group"].as_int() > 1:
            return None
        columns = columns.swapaxes(0, 1)
    with np.errstate(all="ignore"):
        products = [weight * columns] if own is None else [weight * columns, own * scale]
    sources = [weight] if own is None else [weight, own]
    if not all(map(_is_as_regular, products, sources)):
        return None
    return match.like(node, *products)


def _is_as_regular(product: np.ndarray, source: np.ndarray) -> bool:
    """Whether a product is finite and has all its digits, and is zero where its source is.

    Infinities that meet it later then give the same.
    """
    smallest = np.abs(product[source != 0]).min(initial=np.inf)
    return bool(np.all(np.isfinite(product)) and smallest >= np.finfo(product.dtype).tiny)


def _batch_normalization(match: Match) -> Operand | None:
    """A scale and a bias for each channel, of what has been normalised already."""
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
    """A product of matrices and what is added to it, which is broadcast to it."""
    x, y, added = match["x"], match["y"], match.get("bias", None)
    if len(shape_of(x)) != 2 or len(shape_of(y)) != 2 or match.shape != (shape_of(x)[0], shape_of(y)[1]):
        return None
    return _of_parameters(match, x, y, added)


def _of_parameters(match: Match, x: ir.Value, y: ir.Value, added: ir.Value | None) -> Operand | None:
    """``Gemm``, which transposes a weight by itself where that is the parameter."""
    weight = operand_of(y)
    turned = isinstance(weight, np.ndarray) and not match.writer.is_parameter(weight)
    turned = turned and match.writer.is_parameter(np.asarray(weight).T)
    if added is None and not turned:
        return None
    operands = [x, np.asarray(weight).T if turned else y, *([] if added is None else [added])]
    return match.node("Gemm", *operands, shape=match.shape, transB=1 if turned else None)


def _gemm_biased(match: Match) -> Operand | None:
    node, added = match["product"], match["bias"]
    if len(node.inputs) > 2:
        return None
    return match.like(node, node.inputs[1], added)


def _transposing(side: str) -> Callable[[Match], Operand | None]:
    """``Gemm`` of an operand that was transposed."""

    def build(match: Match) -> Operand | None:
        if len(match.shape) != 2 or len(shape_of(match["x"])) != 2 or len(shape_of(match["y"])) != 2:
            return None
        return match.node("Gemm", match["x"], match["y"], shape=match.shape, **{f"trans{side}": 1})

    return build


def _with_bias(product: Op) -> Op:
    return Add(product.named("product"), BIAS)


REWRITES = (
    *(Rewrite(Mul(each(X, WEIGHT).named("product"), SCALE), _scaled) for each in (Conv, ConvTranspose)),
    *(Rewrite(_with_bias(each(X, Y)), _biased) for each in (Conv, ConvTranspose)),
    Rewrite(Add(Mul(X, SCALE), BIAS), _batch_normalization),
    Rewrite(Add(MatMul(X, Y), ADDED), _gemm),
    Rewrite(MatMul(X, Y), _gemm),
    Rewrite(MatMul(Transpose(X), Y), _transposing("A")),
    Rewrite(MatMul(X, Transpose(Y)), _transposing("B")),
    Rewrite(Add(Gemm(X, Y).named("product"), ADDED), _gemm_biased),
)
