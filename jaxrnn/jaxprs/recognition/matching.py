"""The forms of the LSTM, GRU and RNN cells as polynomials of their gates, and the grid of their elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jax.extend.core import Var

from jaxrnn.cells.cell import GRU, LSTM, RNN, Activation
from jaxrnn.jaxprs.equations import Atom, variables
from jaxrnn.jaxprs.recognition.algebra import Algebra, Gate, Matrix, Polynomial, Product, Sum, Term, expand
from jaxrnn.jaxprs.recognition.body import CarryPiece, CarryPieces, Elements, UpdateMask, all_elements, size_of


@dataclass(frozen=True)
class CellState:
    """An array of a cell's carry."""

    carry: Var  # the variable of the body's carry with the array
    at: np.ndarray  # the elements in the carry, ``[rows, hidden]``
    new: Elements  # the elements after the step


@dataclass(frozen=True)
class CellMatch:
    """A cell in a body."""

    cell: LSTM | GRU | RNN
    grid: CellGrid
    states: tuple[CellState, ...]  # the carry, with the hidden state first
    gates: tuple[GateInput, ...]  # the inputs of the gates, in the order of the cell
    mask: UpdateMask | None  # the condition of updates, ``[rows, 1]``

    @property
    def output(self) -> Var:
        """Return the variable of the hidden state after the step."""
        variable = self.states[0].new.atom
        assert isinstance(variable, Var)
        return variable

    @property
    def reads(self) -> list[Var]:
        """Return the variables that the cell reads in each frame, and the weights."""
        atoms = [atom for gate in self.gates for atom in gate.atoms]
        if self.mask is not None:
            atoms.append(self.mask.elements.atom)
        return list(dict.fromkeys(variables(atoms)))

    def is_layer(self, is_fixed: Callable[[Atom], bool]) -> bool:
        """Return True if only products of frames, products of the carry and fixed biases enter the gates."""
        added = [each for gate in self.gates for each, _ in gate.addends]
        biases = all(is_fixed(each.atom) and (each.at == each.at[:1]).all() for each in added)
        return biases and any(gate.inputs for gate in self.gates)


def match(algebra: Algebra, carries: CarryPieces, variable: Var) -> CellMatch | None:
    """Return the cell whose next hidden state is this variable; None without a cell or with unknown inputs."""
    elements = all_elements(variable)
    if not elements.at.size:
        return None
    polynomial = algebra.polynomial(elements)
    for piece in carries.of(variable):
        if not np.array_equal(np.sort(piece.source.at), elements.at):
            continue
        hidden = _ordered(piece, elements.at)
        for form in (_lstm, _gru, _rnn):
            result = form(algebra, carries, hidden, polynomial)
            if result is not None:
                return result
    return None


def _ordered(piece: CarryPiece, at: np.ndarray) -> CarryPiece:
    """Return a piece with its elements in the order of these positions of the new value."""
    order = np.argsort(piece.source.at)[np.searchsorted(np.sort(piece.source.at), at)]
    mask = piece.mask
    if mask is not None:
        mask = UpdateMask(Elements(mask.elements.atom, mask.elements.at[order]), mask.when)
    return CarryPiece(piece.carry, piece.at[order], Elements(piece.source.atom, at), mask)


def _rnn(algebra: Algebra, carries: CarryPieces, hidden: CarryPiece, polynomial: Polynomial) -> CellMatch | None:
    ((monomial, sign), *others) = polynomial.items() or [((), 0.0)]
    if others or len(monomial) != 1 or algebra.terms[monomial[0]].kind not in ("tanh", "relu") or abs(sign) != 1:
        return None
    kind = algebra.terms[monomial[0]].kind
    if kind == "relu" and sign < 0:
        return None
    return _matched(algebra, RNN((Activation(kind.capitalize()),)), (hidden,), [(monomial[0], sign)])


def _gru(algebra: Algebra, carries: CarryPieces, hidden: CarryPiece, polynomial: Polynomial) -> CellMatch | None:
    """Match ``h' = (1/2 - Z/2) G + (1/2 + Z/2) h``, in tanh Z and G."""
    singles = [m[0] for m in polynomial if len(m) == 1 and polynomial[m] in (0.5, -0.5)]
    carry = next((n for n in singles if algebra.terms[n].kind == "carry" and polynomial[n,] == 0.5), None)
    g = next((n for n in singles if algebra.terms[n].kind == "tanh"), None)
    if carry is None or g is None or len(polynomial) != 4 or not _is_piece(algebra, carry, hidden):
        return None
    z = _other(polynomial, carry)
    if z is None or _other(polynomial, g) != z or algebra.terms[z].kind != "tanh":
        return None
    sign, gate = 2 * polynomial[g,], 2 * polynomial[_pair(z, carry)]
    if abs(gate) != 1 or polynomial[_pair(z, g)] != -0.5 * sign * gate:
        return None
    candidate = expand(algebra, algebra.terms[g].elements)
    resets = None if candidate is None else _resets(algebra, candidate, hidden)
    if resets is None:
        return None
    cell = GRU(linear_before_reset=bool(candidate is not None and candidate.scaled))
    return _matched(algebra, cell, (hidden,), [(z, gate), (resets.term, resets.sign), (g, sign)])


def _resets(algebra: Algebra, candidate: Sum, hidden: CarryPiece) -> Gate | None:
    """Return the gate that scales the hidden state, before or after its product with a matrix."""
    grid = find_grid(algebra, [candidate], hidden)
    gate = None if grid is None else gate_input(algebra, grid, candidate, hidden)
    return gate.resets[0] if gate is not None and len(set(gate.resets)) == 1 else None


def _lstm(algebra: Algebra, carries: CarryPieces, hidden: CarryPiece, polynomial: Polynomial) -> CellMatch | None:
    """Match ``c' = (1/2 + F/2) c + (1/2 + I/2) G`` and ``h' = (1/2 + O/2) tanh(c')``, in tanh F, I, G and O."""
    c_tanh = next((m[0] for m in polynomial if len(m) == 1 and polynomial[m] == 0.5), None)
    o = None if c_tanh is None else _other(polynomial, c_tanh)
    if c_tanh is None or o is None or len(polynomial) != 2 or algebra.terms[c_tanh].scale != 1.0:
        return None
    o_sign = 2 * polynomial[_pair(o, c_tanh)]
    if abs(o_sign) != 1 or any(algebra.terms[n].kind != "tanh" for n in (c_tanh, o)):
        return None
    new = algebra.terms[c_tanh].elements
    inner = algebra.polynomial(new)
    singles = [m[0] for m in inner if len(m) == 1 and inner[m] in (0.5, -0.5)]
    carry = next((n for n in singles if algebra.terms[n].kind == "carry" and inner[n,] == 0.5), None)
    g = next((n for n in singles if algebra.terms[n].kind == "tanh"), None)
    if carry is None or g is None or len(inner) != 4:
        return None
    f, i = _other(inner, carry), _other(inner, g)
    if f is None or i is None or any(algebra.terms[n].kind != "tanh" for n in (f, i)):
        return None
    sign = 2 * inner[g,]
    f_sign, i_sign = 2 * inner[_pair(f, carry)], 2 * sign * inner[_pair(i, g)]
    if abs(f_sign) != 1 or abs(i_sign) != 1 or size_of(new.atom) != new.at.size:
        return None
    pieces = [piece for piece in carries.of(new.atom) if _becomes(piece, new)] if isinstance(new.atom, Var) else []
    for piece in pieces:
        cell_state = _ordered(piece, new.at)
        if _is_piece(algebra, carry, cell_state):
            gates = [(i, i_sign), (o, o_sign), (f, f_sign), (g, sign)]
            return _matched(algebra, LSTM(), (hidden, cell_state), gates)
    return None


def _becomes(piece: CarryPiece, new: Elements) -> bool:
    return np.array_equal(np.sort(piece.source.at), np.sort(new.at)) and len(np.unique(new.at)) == new.at.size


def _pair(a: int, b: int) -> tuple[int, ...]:
    return tuple(sorted((a, b)))


def _other(polynomial: Polynomial, number: int) -> int | None:
    """Return the single term that multiplies this term."""
    pairs = [m for m in polynomial if len(m) == 2 and number in m]
    others = [m[1] if m[0] == number else m[0] for m in pairs]
    return others[0] if len(others) == 1 else None


def _is_piece(algebra: Algebra, number: int, piece: CarryPiece) -> bool:
    """Return True if a term is a piece of the carry before the step."""
    atom, at = algebra.terms[number].elements
    return atom is piece.carry and np.array_equal(at, piece.at)


def _matched(
    algebra: Algebra, cell: LSTM | GRU | RNN, pieces: tuple[CarryPiece, ...], terms: list[tuple[int, float]]
) -> CellMatch | None:
    """Return the match if the cell allows the inputs of all gates."""
    sums = []
    for place, (number, sign) in enumerate(terms):
        term = algebra.terms[number]
        # All terms except the last are sigmoids, with twice the input of the tanh.
        factor = 1.0 if place == len(terms) - 1 else 2.0
        total = expand(algebra, term.elements, factor * sign * term.scale)
        if total is None:
            return None
        sums.append(total)
    grid = find_grid(algebra, sums, pieces[0])
    if grid is None:
        return None
    gates = [gate_input(algebra, grid, total, pieces[0]) for total in sums]
    entered = tuple(gate for gate in gates if gate is not None)
    if len(entered) < len(gates) or not _allowed(algebra, cell, entered):
        return None
    states = tuple(
        CellState(p.carry, grid.place(p.at), Elements(p.source.atom, grid.place(p.source.at))) for p in pieces
    )
    masks = [_row_mask(grid, piece.mask) for piece in pieces]
    if any((mask is None) != (piece.mask is None) for mask, piece in zip(masks, pieces, strict=True)):
        return None
    if any(_mask_key(mask) != _mask_key(masks[0]) for mask in masks):
        return None
    return CellMatch(cell, grid, states, entered, masks[0])


def _allowed(algebra: Algebra, cell: LSTM | GRU | RNN, gates: tuple[GateInput, ...]) -> bool:
    unreset = gates[:-1] if isinstance(cell, GRU) else gates
    if any(gate.resets or gate.scaled or gate.reset_recurrent for gate in unreset):
        return False
    if not isinstance(cell, GRU):
        return True
    candidate = gates[-1]
    if candidate.recurrent:
        return False
    inner = candidate.scaled
    if inner is None:
        return not cell.linear_before_reset
    fixed = all(algebra.body.is_fixed(e.atom) and (e.at == e.at[:1]).all() for e, _ in inner.addends)
    other = inner.resets or inner.inputs or candidate.reset_recurrent
    return cell.linear_before_reset and bool(inner.recurrent) and fixed and not other


def _row_mask(grid: CellGrid, mask: UpdateMask | None) -> UpdateMask | None:
    """Return a mask that is equal for all hidden units of a row, ``[rows, 1]``."""
    if mask is None:
        return None
    at = grid.place(mask.elements.at)
    return UpdateMask(Elements(mask.elements.atom, at[:, :1]), mask.when) if (at == at[:, :1]).all() else None


def _mask_key(mask: UpdateMask | None) -> object:
    return None if mask is None else (mask.elements.key, mask.when)


@dataclass(frozen=True)
class Submatrix:
    """``coefficient * matrix[rows][:, columns]``."""

    matrix: Matrix
    rows: np.ndarray
    columns: np.ndarray
    coefficient: float


@dataclass
class GateInput:
    """The input of a gate."""

    #: blocks ``[hidden, hidden]``, whose sum multiplies the hidden state
    recurrent: list[Submatrix] = field(default_factory=list)
    #: blocks that multiply the hidden state after the reset gate
    reset_recurrent: list[Submatrix] = field(default_factory=list)
    #: elements ``[rows, K]``, and the blocks ``[K, hidden]`` that multiply them
    inputs: list[tuple[Elements, Submatrix]] = field(default_factory=list)
    #: elements ``[rows, hidden]`` and their coefficients
    addends: list[tuple[Elements, float]] = field(default_factory=list)
    resets: list[Gate] = field(default_factory=list)
    scaled: GateInput | None = None  # the inputs that a reset gate multiplies

    @property
    def atoms(self) -> list[Atom]:
        """Return the variables from which the input is computed, except the carry."""
        blocks = [*self.recurrent, *self.reset_recurrent, *(block for _, block in self.inputs)]
        elements = [*(operand for operand, _ in self.inputs), *(added for added, _ in self.addends)]
        inner = [] if self.scaled is None else self.scaled.atoms
        return [*(block.matrix.atom for block in blocks), *(each.atom for each in elements), *inner]


@dataclass(frozen=True)
class _Part:
    """Columns of a product's data: elements of the hidden state, perhaps scaled by a gate, or known elements."""

    columns: np.ndarray
    hidden: np.ndarray | None
    known: Elements | None = None
    reset: Gate | None = None


class CellGrid:
    """The places of a cell's elements; ``elements`` are the numbers of the elements, ``[rows, hidden]``."""

    def __init__(self, elements: np.ndarray):
        self.elements = elements
        self._row, self._column = (np.empty(elements.size, int) for _ in range(2))
        self._row[elements], self._column[elements] = np.indices(elements.shape)

    def columns_of(self, elements: np.ndarray) -> np.ndarray | None:
        """Return the hidden unit of each column of ``elements[rows, K]`` if the rows are the grid's."""
        columns = self._column[elements]
        right = elements.shape[0] == self.elements.shape[0] and (columns == columns[:1]).all()
        return columns[0] if right and (self._row[elements] == np.arange(elements.shape[0])[:, None]).all() else None

    def place(self, at: np.ndarray) -> np.ndarray:
        """Arrange values of the elements in the grid."""
        return at[self.elements]


def find_grid(algebra: Algebra, sums: list[Sum], hidden: CarryPiece) -> CellGrid | None:
    """Return the grid with the rows of the first product of the hidden state."""
    every = np.arange(hidden.at.size)
    for total in sums:
        for product in total.products:
            for part in _parts(algebra, product, hidden) or ():
                if part.hidden is not None and np.array_equal(np.sort(part.hidden, axis=None), every):
                    return CellGrid(part.hidden)
        inner = find_grid(algebra, [inner for _, inner in total.scaled], hidden)
        if inner is not None:
            return inner
    return None


def gate_input(algebra: Algebra, grid: CellGrid, total: Sum, hidden: CarryPiece) -> GateInput | None:
    """Return a sum as the input of a gate in the grid, or None if parts do not fit the grid."""
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


def _parts(algebra: Algebra, product: Product, hidden: CarryPiece) -> list[_Part] | None:
    """Split the columns of a product's data by kind, or return None if a cell does not multiply such data."""
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


def _scaled_by_gate(algebra: Algebra, elements: Elements, hidden: CarryPiece) -> tuple[np.ndarray, Gate | None] | None:
    """Return the elements of the hidden state and the gate that multiplies the elements, in the order of the cell."""
    polynomial = dict(algebra.polynomial(elements))
    carry = next((m for m in polynomial if len(m) == 1 and algebra.terms[m[0]].kind == "carry"), None)
    if carry is None:
        return None
    variable, at = algebra.terms[carry[0]].elements
    if variable is not hidden.carry:
        return None
    number_of = np.full(size_of(variable), -1)
    number_of[hidden.at] = np.arange(hidden.at.size)
    numbers, coefficient = number_of[at], polynomial.pop(carry)
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
