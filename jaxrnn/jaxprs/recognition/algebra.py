"""Normal forms of elementwise arithmetic: polynomials in hyperbolic tangents, and sums of products with matrices.

``sigmoid(x)`` is ``tanh(x / 2) / 2 + 1 / 2`` and tanh is odd. Therefore a cell has the same polynomial for all
spellings of its gates, such as ``1 - z`` and ``g + z (h - g)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import JaxprEqn, Literal

from jaxrnn._jax.varying import struct_of
from jaxrnn.cells.forms import product_type
from jaxrnn.jaxprs.equations import (
    Atom,
    bind,
    free_axes,
    shape_of,
    trace,
    type_of,
    variables,
)
from jaxrnn.jaxprs.numbering import fingerprint
from jaxrnn.jaxprs.primitives import Rules, entry_of
from jaxrnn.jaxprs.recognition.body import Body, Elements, everything, operands_of

#: The coefficient of each monomial; a monomial is the numbers of its terms, in order.
Polynomial = dict[tuple[int, ...], float]

#: Sums with more monomials are not part of a cell, and count as a single term.
_LARGEST = 12


@dataclass(frozen=True)
class Term:
    """A variable of polynomials."""

    #: ``"tanh"`` or ``"relu"`` of ``scale`` times the elements, or ``"carry"`` or ``"other"`` for the elements
    #: themselves
    kind: str
    elements: Elements  # elements of a variable, flat
    scale: float = 1.0  # a positive number


class Algebra:
    """The polynomials of a body; each distinct term has a number."""

    def __init__(self, body: Body):
        self.body = body
        self.terms: list[Term] = []
        self._numbers: dict[Any, int] = {}
        self._polynomials: dict[Any, Polynomial] = {}

    def number_of(self, term: Term) -> int:
        """Return the number of a term."""
        key = (term.kind, term.elements.key, term.scale)
        if key not in self._numbers:
            self._numbers[key] = len(self.terms)
            self.terms.append(term)
        return self._numbers[key]

    def polynomial(self, elements: Elements) -> Polynomial:
        """Return the polynomial of elements, in the elements of terms at the same positions."""
        key = elements.key
        if key not in self._polynomials:
            self._polynomials[key] = self._expand(elements)
        return self._polynomials[key]

    def _expand(self, elements: Elements) -> Polynomial:
        number = self.body.number(elements)
        if number is not None:
            return {(): number}
        atom, at = elements = self.body.source(elements)
        if not isinstance(atom, Literal) and atom in self.body.step.carry:
            return {(self.number_of(Term("carry", elements)),): 1.0}
        equation = self.body.equation_of(atom)
        rule = None if equation is None else RULES.of(equation)
        polynomial = None if rule is None else rule(self, equation, at)
        if polynomial is None or len(polynomial) > _LARGEST:
            return {(self.number_of(Term("other", elements)),): 1.0}
        return polynomial

    def scaled_source(self, elements: Elements) -> tuple[Elements, float]:
        """Return the source of elements before moves and multiplications by a number, and the number."""
        scale = 1.0
        while True:
            elements = self.body.source(elements)
            equation = self.body.equation_of(elements.atom)
            if equation is None or (rule := _SCALED.of(equation)) is None:
                return elements, scale
            if (before := rule(self, scale, *operands_of(equation, elements.at))) is None:
                return elements, scale
            elements, scale = before

    def factor(self, elements: Elements) -> float | None:
        """Return the finite number other than 0 that all elements equal, or None."""
        number = self.body.number(elements)
        return number if number and np.isfinite(number) else None

    def operands(self, elements: Elements, primitive: str) -> list[Elements] | None:
        """Return the operands of elements that this primitive computed, or None."""
        elements = self.body.source(elements)
        equation = self.body.equation_of(elements.atom)
        if equation is None or equation.primitive.name != primitive:
            return None
        return operands_of(equation, elements.at)

    def tanh(self, elements: Elements, scale: float = 1.0) -> Polynomial:
        """Return ``tanh(scale x)``."""
        source, factor = self.scaled_source(elements)
        scale *= factor
        return {(self.number_of(Term("tanh", source, abs(scale))),): float(np.sign(scale))}

    def relu(self, elements: Elements) -> Polynomial | None:
        """Return ``max(x, 0)``, or None if a factor is negative, because relu is not odd."""
        source, scale = self.scaled_source(elements)
        return {(self.number_of(Term("relu", source, scale)),): 1.0} if scale > 0 else None

    def sigmoid(self, elements: Elements, scale: float = 1.0) -> Polynomial:
        """Return ``1 / (1 + exp(-scale x))``."""
        return _sum({(): 0.5}, _times(self.tanh(elements, 0.5 * scale), {(): 0.5}))


def _sum(a: Polynomial, b: Polynomial, sign: float = 1.0) -> Polynomial:
    total = dict(a)
    for monomial, coefficient in b.items():
        total[monomial] = total.get(monomial, 0.0) + sign * coefficient
    return {monomial: coefficient for monomial, coefficient in total.items() if coefficient}


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for x, p in a.items():
        total = _sum(total, {tuple(sorted((*x, *y))): p * q for y, q in b.items()})
    return total


#: The rules of polynomials: ``(algebra, equation, positions) -> polynomial``, or None if the equation is a term.
RULES: Rules[Callable[[Algebra, JaxprEqn, np.ndarray], Polynomial | None]] = Rules()

#: The rules of multiplications by a number: ``(algebra, scale, *operands) -> (elements, scale)``, or None.
_SCALED: Rules[Callable[..., tuple[Elements, float] | None]] = Rules()


@_SCALED.add("neg")
def _negated(algebra: Algebra, scale: float, x: Elements) -> tuple[Elements, float]:
    return x, -scale


@_SCALED.add("mul")
def _multiplied(algebra: Algebra, scale: float, x: Elements, y: Elements) -> tuple[Elements, float] | None:
    for one, other in ((x, y), (y, x)):
        if (number := algebra.factor(other)) is not None:
            return one, scale * number
    return None


@_SCALED.add("div")
def _divided(algebra: Algebra, scale: float, x: Elements, y: Elements) -> tuple[Elements, float] | None:
    number = algebra.factor(y)
    return None if number is None else (x, scale / number)


def _unless_cancelled(total: Polynomial, *parts: Polynomial) -> Polynomial | None:
    """Return a sum, or None if terms cancelled: ``0 * x`` and ``x - x`` are NaN for infinite x."""
    return total if {monomial for part in parts for monomial in part if monomial} <= total.keys() else None


@RULES.add("add", "add_any", "neg", "sub")
def _linear(algebra: Algebra, equation: JaxprEqn, at: np.ndarray) -> Polynomial | None:
    parts = [algebra.polynomial(part) for part in operands_of(equation, at)]
    total: Polynomial = {}
    for part, sign in zip(parts, entry_of(equation).signs, strict=True):
        total = _sum(total, part, sign)
    return _unless_cancelled(total, *parts)


@RULES.add("mul")
def _product(algebra: Algebra, equation: JaxprEqn, at: np.ndarray) -> Polynomial | None:
    a, b = (algebra.polynomial(part) for part in operands_of(equation, at))
    return _unless_cancelled(_times(a, b), {tuple(sorted((*x, *y))): 1.0 for x in a for y in b})


@RULES.add("div")
def _quotient(algebra: Algebra, equation: JaxprEqn, at: np.ndarray) -> Polynomial | None:
    above, below = operands_of(equation, at)
    if (number := algebra.factor(below)) is not None:
        return _times(algebra.polynomial(above), {(): 1 / number})
    sigmoid = _inverse(algebra, below)
    return None if sigmoid is None else _times(algebra.polynomial(above), sigmoid)


@RULES.add("integer_pow")
def _power(algebra: Algebra, equation: JaxprEqn, at: np.ndarray) -> Polynomial | None:
    if equation.params["y"] != -1:
        return None
    return _inverse(algebra, operands_of(equation, at)[0])


def _inverse(algebra: Algebra, elements: Elements) -> Polynomial | None:
    """Match ``1 / (1 + exp(x))``, the sigmoid of ``-x``."""
    addends = algebra.operands(elements, "add") or []
    for one, other in zip(addends, addends[::-1], strict=True):
        power = algebra.operands(other, "exp")
        if power is not None and algebra.body.number(one) == 1.0:
            return algebra.sigmoid(power[0], -1.0)
    return None


@RULES.add("logistic")
def _sigmoid(algebra: Algebra, equation: JaxprEqn, at: np.ndarray) -> Polynomial:
    return algebra.sigmoid(operands_of(equation, at)[0])


@RULES.add("tanh")
def _tanh(algebra: Algebra, equation: JaxprEqn, at: np.ndarray) -> Polynomial:
    return algebra.tanh(operands_of(equation, at)[0])


@RULES.add("custom_jvp_call")
def _custom(algebra: Algebra, equation: JaxprEqn, at: np.ndarray) -> Polynomial | None:
    """Match `jax.nn.relu` by its derivative, which is 0 at 0. A maximum and other custom rules differ."""
    inner = equation.params["call_jaxpr"].jaxpr
    while len(inner.eqns) == 1 and "jaxpr" in inner.eqns[0].params:
        inner = inner.eqns[0].params["jaxpr"].jaxpr
    entries = [entry_of(each) for each in inner.eqns]
    if [(each.kind, each.monoid) for each in entries] != [("elementwise", "max")]:
        return None
    numbers = [atom.val for atom in inner.eqns[0].invars if isinstance(atom, Literal)]
    if len(numbers) != 1 or numbers[0] != 0 or len(variables(equation.invars)) != 1:
        return None
    struct = struct_of(equation.invars[0].aval)
    if _slope_of(lambda x: bind(equation, [x]), struct) != _slope_of(jax.nn.relu, struct):
        return None
    return algebra.relu(operands_of(equation, at)[0])


def _slope_of(function: Callable[..., Any], struct: jax.ShapeDtypeStruct) -> str:
    """Return a fingerprint of a function's derivative."""
    return fingerprint(trace(lambda x, tangent: jax.jvp(function, (x,), (tangent,))[1], struct, struct)[0])


@RULES.add("cond")
def _choice(algebra: Algebra, equation: JaxprEqn, at: np.ndarray) -> Polynomial | None:
    """Return the polynomial on which all forms of a choice by platform agree."""
    if len(equation.outvars) != 1:
        return None
    forms = algebra.body.forms.get(equation.outvars[0], ())
    polynomials = [algebra.polynomial(Elements(form, at)) for form in forms]
    return polynomials[0] if polynomials and all(each == polynomials[0] for each in polynomials) else None


class Matrix(NamedTuple):
    """A fixed array as a matrix ``[K, N]``: axes in this order, with the first ``contracted`` axes joined."""

    atom: Atom
    order: tuple[int, ...]
    contracted: int


@dataclass(frozen=True)
class Product:
    """Elements of a product with a fixed matrix."""

    data: Elements  # the other factor, positions ``[rows, K]``
    matrix: Matrix
    #: for each element, the row of ``data`` and the column of the matrix
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
    """Elements as a sum."""

    addends: list[tuple[Elements, float]] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)  # products with matrices
    scaled: list[tuple[Gate, Sum]] = field(default_factory=list)  # sums that a gate multiplies


def gate_of(algebra: Algebra, elements: Elements) -> Gate | None:
    """Return elements as a gate, or None."""
    polynomial = algebra.polynomial(elements)
    terms = [monomial for monomial in polynomial if monomial]
    if len(polynomial) != 2 or polynomial.get(()) != 0.5 or len(terms[0]) != 1 or abs(polynomial[terms[0]]) != 0.5:
        return None
    number = terms[0][0]
    return Gate(number, 2 * polynomial[terms[0]]) if algebra.terms[number].kind == "tanh" else None


def expand(algebra: Algebra, elements: Elements, coefficient: float = 1.0) -> Sum | None:
    """Return elements as a sum, or None if a part is neither known nor a product with a fixed matrix."""
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
    if equation is not None and (signs := entry_of(equation).signs):
        parts = zip(operands_of(equation, at), signs, strict=True)
        return all(_add(algebra, part, coefficient * sign, total) for part, sign in parts)
    if equation is not None and equation.primitive.name == "dot_general":
        product = _affine_product(algebra, equation, at, coefficient)
        if product is not None:
            total.products.append(product)
            return True
    if body.is_known(atom):
        total.addends.append((elements, coefficient))
        return True
    factors = algebra.operands(elements, "mul") or []
    for one, other in zip(factors, factors[::-1], strict=True):
        gate = gate_of(algebra, one)
        inner = None if gate is None else expand(algebra, other, coefficient)
        if gate is not None and inner is not None:
            total.scaled.append((gate, inner))
            return True
    return False


def _affine_product(algebra: Algebra, equation: JaxprEqn, at: np.ndarray, coefficient: float) -> Product | None:
    """Return elements of a ``dot_general`` with one fixed operand and no batch axes."""
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
    free = free_axes(equation)
    counts = [math.prod(shape[axis] for axis in axes) for shape, axes in zip(shapes, free, strict=True)]
    places = np.unravel_index(at, tuple(counts))  # a batch axis of size 1 does not change positions
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
    """Return the element type in full precision; packed weights of products have the compute dtype."""
    low = product_type()
    return np.dtype(np.float32) if low is not None and type_of(atom) == low else type_of(atom)


def _in_full_precision(algebra: Algebra, atom: Atom) -> Atom:
    """Return the operand of a product before `matrix_products_in` lowered its precision."""
    equation = algebra.body.equation_of(atom)
    low = product_type()
    if low is None or equation is None or equation.primitive.name != "convert_element_type":
        return atom
    before = equation.invars[0]
    return before if type_of(atom) == low and type_of(before) == np.float32 else atom
