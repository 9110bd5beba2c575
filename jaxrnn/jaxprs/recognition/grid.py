"""A cell's elements as rows of hidden units, and the parts of its gates seen in that grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jax.extend.core import Var

from jaxrnn.jaxprs.equations import Atom
from jaxrnn.jaxprs.recognition.affine import Gate, Matrix, Product, Sum
from jaxrnn.jaxprs.recognition.algebra import Algebra, Term
from jaxrnn.jaxprs.recognition.positions import Elements


@dataclass(frozen=True)
class Submatrix:
    """``coefficient * matrix[rows][:, columns]``."""

    matrix: Matrix
    rows: np.ndarray
    columns: np.ndarray
    coefficient: float


@dataclass
class GateInput:
    """What enters one gate.

    Attributes:
        recurrent: blocks ``[hidden, hidden]``, whose sum multiplies the hidden state.
        reset_recurrent: the same for the hidden state that a reset gate has scaled.
        inputs: elements ``[rows, K]``, and the blocks ``[K, hidden]`` that multiply them.
        addends: elements ``[rows, hidden]`` and their coefficients.
        resets: the reset gates.
        scaled: what a reset gate multiplies.
    """

    recurrent: list[Submatrix] = field(default_factory=list)
    reset_recurrent: list[Submatrix] = field(default_factory=list)
    inputs: list[tuple[Elements, Submatrix]] = field(default_factory=list)
    addends: list[tuple[Elements, float]] = field(default_factory=list)
    resets: list[Gate] = field(default_factory=list)
    scaled: GateInput | None = None

    @property
    def atoms(self) -> list[Atom]:
        """What it is computed from, but for the carry."""
        blocks = [*self.recurrent, *self.reset_recurrent, *(block for _, block in self.inputs)]
        elements = [*(operand for operand, _ in self.inputs), *(added for added, _ in self.addends)]
        inner = [] if self.scaled is None else self.scaled.atoms
        return [*(block.matrix.atom for block in blocks), *(each.atom for each in elements), *inner]


@dataclass(frozen=True)
class _Part:
    """Columns of a product's data: elements of the hidden state, scaled by a gate or not, or known ones."""

    columns: np.ndarray
    hidden: np.ndarray | None
    known: Elements | None = None
    reset: Gate | None = None


class Grid:
    """Where a cell's elements are.

    Attributes:
        elements: ``[rows, hidden]``, the numbers of the elements.
    """

    def __init__(self, elements: np.ndarray):
        self.elements = elements
        self._row, self._column = (np.empty(elements.size, int) for _ in range(2))
        self._row[elements], self._column[elements] = np.indices(elements.shape)

    def columns_of(self, elements: np.ndarray) -> np.ndarray | None:
        """The hidden unit of each column of ``elements[rows, K]``, if its rows are the grid's."""
        columns = self._column[elements]
        right = elements.shape[0] == self.elements.shape[0] and (columns == columns[:1]).all()
        return columns[0] if right and (self._row[elements] == np.arange(elements.shape[0])[:, None]).all() else None

    def place(self, at: np.ndarray) -> np.ndarray:
        """Values of the elements, in the grid."""
        return at[self.elements]


def find_grid(algebra: Algebra, sums: list[Sum], hidden: Mapping[Var, np.ndarray]) -> Grid | None:
    """The grid in which the first product of the hidden state has its rows."""
    for total in sums:
        for product in total.products:
            for part in _parts(algebra, product, hidden) or ():
                if part.hidden is not None and np.array_equal(np.sort(part.hidden, axis=None), _all(hidden)):
                    return Grid(part.hidden)
        inner = find_grid(algebra, [inner for _, inner in total.scaled], hidden)
        if inner is not None:
            return inner
    return None


def _all(hidden: Mapping[Var, np.ndarray]) -> np.ndarray:
    numbers = np.concatenate([positions.reshape(-1) for positions in hidden.values()])
    return np.arange(numbers.max() + 1)


def gate_input(algebra: Algebra, grid: Grid, total: Sum, hidden: Mapping[Var, np.ndarray]) -> GateInput | None:
    """A sum in the grid.

    Args:
        algebra: of the body.
        grid: where the elements are.
        total: the sum.
        hidden: for each element of the carries, which element of the cell it is; -1 for others.

    Returns:
        None where the parts do not lie in the grid, or depend on the carry in another way.
    """
    result = GateInput()
    result.addends = [(Elements(e.atom, grid.place(e.at)), coefficient) for e, coefficient in total.addends]
    for product in total.products:
        parts = _parts(algebra, product, hidden)
        rows, columns = grid.place(product.row), grid.place(product.column)
        if parts is None or (rows != rows[:, :1]).any() or (columns != columns[:1]).any():
            return None
        for part in parts:
            if part.known is not None:
                block = Submatrix(product.matrix, part.columns, columns[0], product.coefficient)
                result.inputs.append((Elements(part.known.atom, part.known.at[rows[:, 0]]), block))
                continue
            assert part.hidden is not None
            units = grid.columns_of(part.hidden[rows[:, 0]])
            if units is None or not np.array_equal(np.sort(units), np.arange(grid.elements.shape[1])):
                return None
            block = Submatrix(product.matrix, part.columns[np.argsort(units)], columns[0], product.coefficient)
            (result.recurrent if part.reset is None else result.reset_recurrent).append(block)
            if part.reset is not None:
                result.resets.append(part.reset)
    for gate, inner in total.scaled:
        scaled = gate_input(algebra, grid, inner, hidden)
        if scaled is None or result.scaled is not None:
            return None
        result.scaled = scaled
        result.resets.append(gate)
    return result


def _parts(algebra: Algebra, product: Product, hidden: Mapping[Var, np.ndarray]) -> list[_Part] | None:
    """The columns of a product's data by what they are; None where some are nothing that a cell multiplies."""
    body, data = algebra.body, product.data
    if body.is_known(data.atom):
        return [_Part(np.arange(data.at.shape[1]), None, data)]
    parts = []
    for mask, flat in body.sources(data):
        if (mask != mask[:1]).any():
            return None
        columns = np.flatnonzero(mask[0])
        elements = Elements(flat.atom, flat.at.reshape(len(mask), len(columns)))
        if body.is_known(elements.atom):
            parts.append(_Part(columns, None, elements))
            continue
        scaled = _scaled_by_gate(algebra, flat, hidden)
        if scaled is None:
            return None
        numbers, gate = scaled
        parts.append(_Part(columns, numbers.reshape(elements.at.shape), None, gate))
    return parts


def _scaled_by_gate(
    algebra: Algebra, elements: Elements, hidden: Mapping[Var, np.ndarray]
) -> tuple[np.ndarray, Gate | None] | None:
    """Which elements of the hidden state these are, and the gate in front of them, in the order of the cell."""
    polynomial = dict(algebra.polynomial(elements))
    carry = next((m for m in polynomial if len(m) == 1 and algebra.terms[m[0]].kind == "carry"), None)
    if carry is None:
        return None
    variable, at = algebra.terms[carry[0]].elements
    if not isinstance(variable, Var) or variable not in hidden:
        return None
    numbers, coefficient = hidden[variable].reshape(-1)[at], polynomial.pop(carry)
    if (numbers < 0).any() or len(polynomial) > 1:
        return None
    if not polynomial:
        return (numbers, None) if coefficient == 1.0 else None
    ((monomial, half),) = polynomial.items()
    gates = [algebra.terms[number] for number in monomial if number != carry[0]]
    if coefficient != 0.5 or abs(half) != 0.5 or len(monomial) != 2 or len(gates) != 1 or gates[0].kind != "tanh":
        return None
    if len(np.unique(numbers)) != numbers.size:
        return None
    source, places = gates[0].elements
    in_order = Term("tanh", Elements(source, places[np.argsort(numbers)]), gates[0].scale)
    return numbers, Gate(algebra.number_of(in_order), 2 * half)
