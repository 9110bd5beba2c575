"""Matrix products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrnn.cells import product, product_operands
from jaxrnn.onnx.operators.arithmetic import alike, broadcast_sizes, shapes_of
from jaxrnn.onnx.registry import Pair, bounded, since
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


def _equal_in_matmul(attributes: Mapping[str, Any], operands: Sequence[Any], open_sizes: Any) -> Iterator[Pair]:
    first, second = shapes_of(operands)[:2]
    if first and second:
        yield first[-1], second[max(0, len(second) - 2)]
        if len(first) > 2 and len(second) > 2:
            yield from broadcast_sizes([first[:-2], second[:-2]])


def _equal_in_gemm(attributes: Mapping[str, Any], operands: Sequence[Any], open_sizes: Any) -> Iterator[Pair]:
    first, second, third = [*shapes_of(operands), None][:3]
    if first and second and len(first) == len(second) == 2:
        a = first[::-1] if attributes.get("transA") else first
        b = second[::-1] if attributes.get("transB") else second
        yield a[1], b[0]
        if third is not None:
            yield from broadcast_sizes([(a[0], b[1]), third])


OPERATORS = {
    "Det": since(determinant, 11, 22),
    "Einsum": since(einsum, 12, 28),
    "Gemm": bounded(gemm, 7, 9, 11, 13, equal_sizes=_equal_in_gemm),
    "MatMul": since(matmul, 1, 9, 13, equal_sizes=_equal_in_matmul),
}
