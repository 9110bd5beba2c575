"""Matrix products."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxrnn.cells import product, product_operands
from jaxrnn.onnx.operators.arithmetic import alike
from jaxrnn.onnx.registry import since
from jaxrnn.onnx.values import Value, traced


def matmul(a: Value, b: Value) -> Value:
    """MatMul, as numpy.matmul."""
    alike(a, b)
    return product(traced(a), traced(b))


def gemm(
    a: Value, b: Value, c: Value = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Value:
    """Gemm: alpha A' B' + beta C."""
    alike(a, b, c)
    a, b = traced(a), traced(b)
    result = product(a.T if transA else a, b.T if transB else b)
    if alpha != 1.0:
        result = _scaled(result, alpha)
    if c is None:
        return result
    return result + (traced(c) if beta == 1.0 else _scaled(traced(c), beta))


def _scaled(x, factor: float):
    if jnp.issubdtype(x.dtype, jnp.integer):
        return (x * np.float64(factor)).astype(x.dtype)
    return x * x.dtype.type(factor)


def einsum(*inputs: Value, equation: str) -> Value:
    """Einsum."""
    alike(*inputs)
    arrays = [traced(value) for value in inputs]
    return jnp.einsum(equation.replace(" ", ""), *product_operands(*arrays), preferred_element_type=arrays[0].dtype)


def determinant(x: Value) -> Value:
    """Det of square matrices."""
    return jnp.linalg.det(traced(x))


OPERATORS = {
    "Det": since(determinant, 11, 22),
    "Einsum": since(einsum, 12, 28),
    "Gemm": since(gemm, 7, 9, 11, 13),
    "MatMul": since(matmul, 1, 9, 13),
}
