"""Definitions before opset 7 that differ from later definitions, for files that were not converted.

Before opset 7, operands did not broadcast as in NumPy. With ``broadcast=1``, the second operand is repeated along its
missing axes; the present axes match axes of the first operand from ``axis`` on, or the last axes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxrnn.onnx.operators import activations, arithmetic, linear, normalization, pooling
from jaxrnn.onnx.registry import earlier, inherits, since
from jaxrnn.onnx.values import Value, describe, traced


def aligned(function: Callable[[Value, Value], Value]) -> Callable[..., Value]:
    """Return an operator of two operands with the broadcasting before opset 7."""

    def apply(a: Value, b: Value, *, axis: int | None = None, broadcast: int = 0) -> Value:
        if not broadcast:
            if tuple(a.shape) != tuple(b.shape):
                raise ValueError(
                    f"the operands must have equal shapes without broadcast=1, not {describe(a)} and {describe(b)}"
                )
            return function(a, b)
        first = len(a.shape) - len(b.shape) if axis is None else axis % len(a.shape)
        trailing = len(a.shape) - first - len(b.shape)
        if first < 0 or trailing < 0:
            raise ValueError(f"{describe(b)} does not fit into {describe(a)} from axis {axis} on")
        return function(a, traced(b).reshape(*b.shape, *(1,) * trailing))

    return apply


def prelu(x: Value, slope: Value) -> Value:
    """PRelu: a single slope, or a slope for each channel."""
    shape = (-1,) if len(x.shape) < 2 else (-1, *(1,) * (len(x.shape) - 2))
    return activations.prelu(x, traced(slope).reshape(shape))


@inherits(linear.gemm)
def gemm(a: Value, b: Value, c: Value, *, broadcast: int = 0, **scaling: Any) -> Value:
    """Gemm; C is repeated along missing axes only with ``broadcast=1``."""
    result = linear.gemm(a, b, c, **scaling)
    if not broadcast and tuple(c.shape) != tuple(result.shape):
        raise ValueError(f"C must be {describe(result)} without broadcast=1, not {describe(c)}")
    return result


@inherits(normalization.batch_normalization_7)
def batch_normalization(
    x: Value, scale: Value, bias: Value, mean: Value, var: Value, *, is_test: int = 0, **attributes: Any
) -> list[Value]:
    """BatchNormalization for inference."""
    if not is_test:
        raise ValueError("BatchNormalization with is_test=0 (training) is not supported; export it for inference")
    return normalization.batch_normalization_7(x, scale, bias, mean, var, **attributes)


def _all_aligned(version: int, *names: str) -> dict[str, Any]:
    return {name: since(aligned(arithmetic.OPERATORS[name][7]), version) for name in names}


OPERATORS = {
    **_all_aligned(6, "Add", "Div", "Mul", "Sub"),
    **_all_aligned(1, "And", "Equal", "Greater", "Less", "Or", "Pow", "Xor"),
    "AveragePool": since(earlier(pooling.average_pool, "ceil_mode", "count_include_pad", "dilations"), 1),
    "BatchNormalization": since(batch_normalization, 6),
    "Gemm": since(gemm, 6),
    "PRelu": since(prelu, 6),
}
