"""Small linear systems, whose solution is written out in elementary operators.

Engines neither solve nor decompose. A matrix of up to `LARGEST` rows and columns, as in a Kalman filter or a
beamformer, needs some operators for each row. A triangular system with a constant matrix of any size is a product.

Source: Golub and Van Loan, "Matrix Computations", sections 3.1 (substitution), 3.4 (pivots) and 4.2 (Cholesky).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.export.translator import SMALL, Translator
from jaxrnn.jaxprs.equations import shape_of, trace, type_of
from jaxrnn.jaxprs.primitives import entry_of

#: The largest number of rows and columns of a matrix whose solution is written out.
LARGEST = 8


def _written(translator: Translator, function: Callable[..., Any], equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Evaluate a function of the operands if the matrix is small."""
    sizes = shape_of(equation.invars[0])[-entry_of(equation).core :]
    if max(sizes) > LARGEST:
        translator.refuse(
            f"{translator.engine} has no operator for it, and a file contains its steps only for up to {LARGEST} rows "
            f"and columns, not for {' x '.join(map(str, sizes))}; compute it outside, and pass the result as an input"
        )
    structs = [jax.ShapeDtypeStruct(shape_of(each), type_of(each)) for each in equation.invars]
    return translator.evaluate(trace(function, *structs)[0], operands)


@SMALL.add("triangular_solve")
def substituted(translator: Translator, equation: JaxprEqn, matrix: Any, right: Any) -> Any:
    """Evaluate a triangular system: a product with the inverse of a constant matrix, or a substitution."""
    params = equation.params
    left, transposed = params["left_side"], params["transpose_a"]
    if isinstance(matrix, np.ndarray) and matrix.ndim == 2 and (params["unit_diagonal"] or np.diag(matrix).all()):
        inverse = _inverse(matrix, params)
        product = jnp.matmul if left else lambda inverse, b: jnp.matmul(b, inverse)
        struct = jax.ShapeDtypeStruct(shape_of(equation.invars[1]), type_of(equation.invars[1]))
        return translator.evaluate(trace(functools.partial(product, inverse), struct)[0], [right])[0]

    def function(a: Any, b: Any) -> Any:
        a = jnp.conj(a) if params["conjugate_a"] else a
        a, b = a if transposed != left else jnp.swapaxes(a, -1, -2), b if left else jnp.swapaxes(b, -1, -2)
        x = _substituted(a, b, params["lower"] == (transposed != left), params["unit_diagonal"])
        return x if left else jnp.swapaxes(x, -1, -2)

    return _written(translator, function, equation, matrix, right)[0]


def _inverse(matrix: np.ndarray, params: Any) -> np.ndarray:
    """Return the inverse of a constant triangular matrix."""
    lower = params["lower"]
    upper = np.triu(matrix.T if lower else matrix).astype(np.complex128 if matrix.dtype.kind == "c" else np.float64)
    if params["unit_diagonal"]:
        np.fill_diagonal(upper, 1)
    inverse = np.linalg.inv(np.conj(upper) if params["conjugate_a"] else upper)  # exchanges no rows of this triangle
    return (inverse.T if lower != params["transpose_a"] else inverse).astype(matrix.dtype)


def _substituted(a: Any, b: Any, lower: bool, unit_diagonal: bool) -> Any:
    """Solve ``a @ x = b`` row by row."""
    size = a.shape[-1]
    rows: dict[int, Any] = {}
    for row in range(size) if lower else reversed(range(size)):
        rest = b[..., row : row + 1, :]
        if rows:
            known = slice(0, row) if lower else slice(row + 1, size)
            rest = rest - a[..., row : row + 1, known] @ jnp.concatenate([rows[each] for each in sorted(rows)], -2)
        rows[row] = rest if unit_diagonal else rest / a[..., row : row + 1, row : row + 1]
    return jnp.concatenate([rows[row] for row in range(size)], -2)


@SMALL.add("cholesky")
def cholesky(translator: Translator, equation: JaxprEqn, matrix: Any) -> Any:
    """Evaluate a Cholesky decomposition; the result is NaN if the matrix is not positive definite."""
    return _written(translator, _factor, equation, matrix)[0]


def _factor(a: Any) -> Any:
    columns: list[Any] = []
    diagonal: list[Any] = []
    for place in range(a.shape[-1]):
        rest = a[..., place:, place : place + 1]
        if columns:
            known = jnp.concatenate(columns, -1)[..., place:, :]
            rest = rest - known @ jnp.swapaxes(jnp.conj(known[..., :1, :]), -1, -2)
        root = jnp.sqrt(jnp.real(rest[..., :1, :]))
        below = [rest[..., 1:, :] / root.astype(a.dtype)] if place + 1 < a.shape[-1] else []
        above = [jnp.zeros((*a.shape[:-2], place, 1), a.dtype)] if place else []
        columns.append(jnp.concatenate([*above, root.astype(a.dtype), *below], -2))
        diagonal.append(root)
    exists = jnp.all(jnp.concatenate(diagonal, -1) > 0, -1, keepdims=True)
    return jnp.where(exists, jnp.concatenate(columns, -1), jnp.asarray(np.nan, a.dtype))


@SMALL.add("lu")
def triangles(translator: Translator, equation: JaxprEqn, matrix: Any) -> list[Any]:
    """Evaluate an LU decomposition with the largest element of each column as pivot."""
    return _written(translator, _triangles, equation, matrix)


def _triangles(a: Any) -> tuple[Any, Any, Any]:
    (height, width), steps = a.shape[-2:], min(a.shape[-2:])
    rows, columns = jnp.arange(height)[:, None], jnp.arange(width)[None]
    order = jnp.broadcast_to(jnp.arange(height), a.shape[:-1])
    pivots: list[Any] = []
    for step in range(steps):
        column = a[..., step]
        # LAPACK compares the sums of absolute parts.
        sizes = jnp.abs(jnp.real(column)) + (jnp.abs(jnp.imag(column)) if jnp.iscomplexobj(a) else 0)
        pivots.append(jnp.argmax(jnp.where(rows[:, 0] >= step, sizes, -1), -1).astype(jnp.int32)[..., None])
        swapped = _swapped(height, step, pivots[-1])
        a, order = jnp.take_along_axis(a, swapped[..., None], -2), jnp.take_along_axis(order, swapped, -1)
        pivot = a[..., step : step + 1, step : step + 1]
        factor = a[..., :, step : step + 1] / jnp.where(pivot == 0, 1, pivot)
        reduced = jnp.where(columns > step, a - factor * a[..., step : step + 1, :], factor)
        a = jnp.where((rows > step) & (columns >= step), reduced, a)
    return a, jnp.concatenate(pivots, -1), order.astype(jnp.int32)


def _swapped(size: int, first: int, second: Any) -> Any:
    """Return the numbers of rows after two rows have changed places."""
    rows = jnp.arange(size, dtype=second.dtype)
    return jnp.where(rows == first, second, jnp.where(rows == second, first, rows))


@SMALL.add("lu_pivots_to_permutation")
def permuted(translator: Translator, equation: JaxprEqn, pivots: Any) -> Any:
    """Evaluate the order of rows after all changes of places."""

    def function(pivots: Any) -> Any:
        size = equation.params["permutation_size"]
        order = jnp.broadcast_to(jnp.arange(size, dtype=pivots.dtype), (*pivots.shape[:-1], size))
        for step in range(pivots.shape[-1]):
            order = jnp.take_along_axis(order, _swapped(size, step, pivots[..., step : step + 1]), -1)
        return order

    return _written(translator, function, equation, pivots)[0]
