"""Products of the domain ``com.microsoft``: matrix products and convolutions fused with other operators."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrnn.cells import product
from jaxrnn.onnx.operators.arithmetic import alike
from jaxrnn.onnx.operators.convolution import conv
from jaxrnn.onnx.operators.matrix import gemm
from jaxrnn.onnx.operators.microsoft.activations import activate, coefficients_of
from jaxrnn.onnx.registry import inherits, since
from jaxrnn.onnx.values import Value, traced


def _turned(x: Value, last: int, batch: int) -> jax.Array:
    """An operand, optionally with its first axis moved before the last and its last two axes exchanged."""
    x = traced(x)
    if x.ndim < 2:
        return x
    if batch:
        x = jnp.moveaxis(x, 0, -2)
    return jnp.swapaxes(x, -1, -2) if last else x


def fused_matmul(
    a: Value,
    b: Value,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Value:
    """FusedMatMul (and TransposeMatMul, its older name): a scaled product of transposed operands."""
    alike(a, b)
    result = product(_turned(a, transA, transBatchA), _turned(b, transB, transBatchB))
    return result if alpha == 1.0 else result * result.dtype.type(alpha)


@inherits(gemm)
def fused_gemm(
    a: Value,
    b: Value,
    c: Value = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    **scaling: Any,
) -> Value:
    """FusedGemm: an activation of what Gemm gives; its coefficients go by name."""
    coefficients = {"alpha": activation_alpha, "beta": activation_beta, "gamma": activation_gamma}
    names = coefficients_of(activation) if activation else ()
    unknown = [name for name, value in coefficients.items() if value is not None and name not in names]
    if unknown:
        raise ValueError(f"the activation {activation!r} has no coefficient {unknown[0]!r}")
    result = gemm(a, b, c, **scaling)
    return activate(result, activation, [coefficients.get(name) for name in names])


@inherits(conv)
def fused_conv(
    x: Value,
    w: Value,
    b: Value = None,
    z: Value = None,
    *,
    activation: str = "",
    activation_params: tuple[float, ...] = (),
    **window: Any,
) -> Value:
    """FusedConv: an activation of what Conv gives, plus a tensor where one is given."""
    y = conv(x, w, b, **window)
    return activate(y if z is None else y + traced(z), activation, activation_params)


OPERATORS = {
    "com.microsoft::FusedConv": since(fused_conv, 1),
    "com.microsoft::FusedGemm": since(fused_gemm, 1),
    "com.microsoft::FusedMatMul": since(fused_matmul, 1),
    "com.microsoft::TransposeMatMul": since(fused_matmul, 1),
}
