"""What enters an activation, as a sum: products with fixed matrices, and what is added to them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.cells.products import product_type
from jaxrnn.jaxprs.equations import Atom, shape_of, type_of
from jaxrnn.jaxprs.recognition.algebra import Algebra
from jaxrnn.jaxprs.recognition.body import operands_of
from jaxrnn.jaxprs.recognition.positions import Elements, everything


class Matrix(NamedTuple):
    """A fixed array seen as a matrix ``[K, N]``: its axes in this order, the first ``contracted`` of them joined."""

    atom: Atom
    order: tuple[int, ...]
    contracted: int


@dataclass(frozen=True)
class Product:
    """Elements of a product with a fixed matrix.

    Attributes:
        data: the other factor, positions ``[rows, K]``.
        matrix: the matrix.
        row, column: for each element, its row of ``data`` and its column of the matrix.
        coefficient: a number to multiply with.
    """

    data: Elements
    matrix: Matrix
    row: np.ndarray
    column: np.ndarray
    coefficient: float


@dataclass(frozen=True)
class Gate:
    """A sigmoid of ``sign`` times a term's elements times twice its scale."""

    term: int
    sign: float


@dataclass
class Sum:
    """Elements as a sum of what they are made of.

    Attributes:
        addends: elements and their coefficients.
        products: products with matrices.
        scaled: sums that a gate multiplies.
    """

    addends: list[tuple[Elements, float]] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    scaled: list[tuple[Gate, Sum]] = field(default_factory=list)


def gate_of(algebra: Algebra, elements: Elements) -> Gate | None:
    """The gate that elements are, if they are one."""
    polynomial = algebra.polynomial(elements)
    terms = [monomial for monomial in polynomial if monomial]
    if len(polynomial) != 2 or polynomial.get(()) != 0.5 or len(terms[0]) != 1 or abs(polynomial[terms[0]]) != 0.5:
        return None
    number = terms[0][0]
    return Gate(number, 2 * polynomial[terms[0]]) if algebra.terms[number].kind == "tanh" else None


def expand(algebra: Algebra, elements: Elements, coefficient: float = 1.0) -> Sum | None:
    """Elements as a sum; None where something in it is neither known nor a product with a fixed matrix."""
    total = Sum()
    return total if _add(algebra, elements, coefficient, total) else None


def _add(algebra: Algebra, elements: Elements, coefficient: float, total: Sum) -> bool:
    body = algebra.body
    elements = body.source(elements)
    if not body.is_fixed(elements.atom):
        elements, factor = algebra.scaled_source(elements)
        coefficient *= factor
    atom, at = elements
    if body.is_fixed(atom):
        total.addends.append((elements, coefficient))
        return True
    equation = body.equation_of(atom)
    name = "" if equation is None else equation.primitive.name
    if equation is not None and name in ("add", "sub", "add_any"):
        signs = (1.0, -1.0 if name == "sub" else 1.0)
        parts = zip(operands_of(equation, at), signs, strict=True)
        return all(_add(algebra, part, coefficient * sign, total) for part, sign in parts)
    if equation is not None and name == "dot_general":
        product = _affine_product(algebra, equation, at, coefficient)
        if product is not None:
            total.products.append(product)
            return True
    if body.is_known(atom):
        total.addends.append((elements, coefficient))
        return True
    if equation is not None and name == "mul":
        parts = operands_of(equation, at)
        for one, other in (parts, parts[::-1]):
            gate = gate_of(algebra, one)
            inner = None if gate is None else expand(algebra, other, coefficient)
            if gate is not None and inner is not None:
                total.scaled.append((gate, inner))
                return True
    return False


def _affine_product(algebra: Algebra, equation: JaxprEqn, at: np.ndarray, coefficient: float) -> Product | None:
    """Elements of a ``dot_general``, if one operand is fixed and there is no batch to speak of."""
    contract, batch = equation.params["dimension_numbers"]
    operands = [_in_full_precision(algebra, atom) for atom in equation.invars]
    shapes = [shape_of(atom) for atom in operands]
    fixed = [algebra.body.is_fixed(atom) for atom in operands]
    if sum(fixed) != 1 or equation.params["precision"] is not None:
        return None
    if len({_full_type(atom) for atom in (*operands, *equation.outvars)}) > 1:
        return None
    if any(shape[axis] != 1 for shape, axes in zip(shapes, batch, strict=True) for axis in axes):
        return None
    free = [
        tuple(axis for axis in range(len(shape)) if axis not in (*contracted, *batched))
        for shape, contracted, batched in zip(shapes, contract, batch, strict=True)
    ]
    counts = [math.prod(shape[axis] for axis in axes) for shape, axes in zip(shapes, free, strict=True)]
    places = np.unravel_index(at, tuple(counts))  # a batch of one changes no position
    matrix = fixed.index(True)
    data = 1 - matrix
    order = (*free[data], *batch[data], *contract[data])
    positions = everything(operands[data]).transpose(order).reshape(counts[data], -1)
    return Product(
        Elements(operands[data], positions),
        Matrix(operands[matrix], (*contract[matrix], *batch[matrix], *free[matrix]), len(contract[matrix])),
        places[data],
        places[matrix],
        coefficient,
    )


def _full_type(atom: Atom) -> Any:
    """The element type in full precision: a packed weight of a product has the compute dtype."""
    low = product_type()
    return np.dtype(np.float32) if low is not None and type_of(atom) == low else type_of(atom)


def _in_full_precision(algebra: Algebra, atom: Atom) -> Atom:
    """The operand of a product before `jaxrnn.cells.matrix_products_in` lowered its precision."""
    equation = algebra.body.equation_of(atom)
    low = product_type()
    if low is None or equation is None or equation.primitive.name != "convert_element_type":
        return atom
    before = equation.invars[0]
    return before if type_of(atom) == low and type_of(before) == np.float32 else atom
