"""The forms of the LSTM, GRU and RNN cells, as polynomials of their gates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jax.extend.core import Var

from jaxrnn.cells import GRU, LSTM, RNN, Activation
from jaxrnn.jaxprs.equations import Atom, variables
from jaxrnn.jaxprs.recognition.affine import Gate, Sum, expand
from jaxrnn.jaxprs.recognition.algebra import Algebra, Polynomial
from jaxrnn.jaxprs.recognition.body import whole
from jaxrnn.jaxprs.recognition.carries import Carries, CarryPiece, Mask
from jaxrnn.jaxprs.recognition.grid import GateInput, Grid, find_grid, gate_input
from jaxrnn.jaxprs.recognition.positions import Elements, size_of


@dataclass(frozen=True)
class CellState:
    """One array of a cell's carry.

    Attributes:
        carry: the variable of the body's carry that holds it.
        at: its elements there, ``[rows, hidden]``.
        new: the same elements after the step.
    """

    carry: Var
    at: np.ndarray
    new: Elements


@dataclass(frozen=True)
class Match:
    """A cell in a body.

    Attributes:
        cell: the cell.
        grid: where its elements are.
        states: its carry, the hidden state first.
        gates: what enters its gates, in the order of the cell.
        mask: where it is updated, ``[rows, 1]``.
    """

    cell: LSTM | GRU | RNN
    grid: Grid
    states: tuple[CellState, ...]
    gates: tuple[GateInput, ...]
    mask: Mask | None

    @property
    def output(self) -> Var:
        """The variable of the hidden state after the step."""
        variable = self.states[0].new.atom
        assert isinstance(variable, Var)
        return variable

    @property
    def reads(self) -> list[Var]:
        """The variables that it reads: of every frame, and weights."""
        atoms = [atom for gate in self.gates for atom in gate.atoms]
        if self.mask is not None:
            atoms.append(self.mask.elements.atom)
        return list(dict.fromkeys(variables(atoms)))

    def is_layer(self, is_fixed: Callable[[Atom], bool]) -> bool:
        """Whether nothing enters its gates but products of frames, products of the carry, and fixed biases."""
        added = [each for gate in self.gates for each, _ in gate.addends]
        biases = all(is_fixed(each.atom) and (each.at == each.at[:1]).all() for each in added)
        return biases and any(gate.inputs for gate in self.gates)


def match(algebra: Algebra, carries: Carries, variable: Var) -> Match | None:
    """The cell whose hidden state becomes this variable; None if there is none, or if it waits for unknown inputs."""
    elements = whole(variable)
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
    """A piece with its elements in the order of these positions of what it becomes."""
    order = np.argsort(piece.source.at)[np.searchsorted(np.sort(piece.source.at), at)]
    mask = piece.mask
    if mask is not None:
        mask = Mask(Elements(mask.elements.atom, mask.elements.at[order]), mask.when)
    return CarryPiece(piece.carry, piece.at[order], Elements(piece.source.atom, at), mask)


def _rnn(algebra: Algebra, carries: Carries, hidden: CarryPiece, polynomial: Polynomial) -> Match | None:
    ((monomial, sign), *others) = polynomial.items() or [((), 0.0)]
    if others or len(monomial) != 1 or algebra.terms[monomial[0]].kind not in ("tanh", "relu") or abs(sign) != 1:
        return None
    kind = algebra.terms[monomial[0]].kind
    if kind == "relu" and sign < 0:
        return None
    return _matched(algebra, RNN((Activation(kind.capitalize()),)), (hidden,), [(monomial[0], sign)])


def _gru(algebra: Algebra, carries: Carries, hidden: CarryPiece, polynomial: Polynomial) -> Match | None:
    """``h' = (1/2 - Z/2) G + (1/2 + Z/2) h``, in tanh Z and G."""
    singles = [m[0] for m in polynomial if len(m) == 1 and polynomial[m] in (0.5, -0.5)]
    carry = next((n for n in singles if algebra.terms[n].kind == "carry" and polynomial[n,] == 0.5), None)
    g = next((n for n in singles if algebra.terms[n].kind == "tanh"), None)
    if carry is None or g is None or len(polynomial) != 4 or not _is(algebra, carry, hidden):
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
    """The one gate that scales the hidden state, before its product with a matrix or after it."""
    numbers = _numbers(hidden)
    grid = find_grid(algebra, [candidate], numbers)
    gate = None if grid is None else gate_input(algebra, grid, candidate, numbers)
    return gate.resets[0] if gate is not None and len(set(gate.resets)) == 1 else None


def _lstm(algebra: Algebra, carries: Carries, hidden: CarryPiece, polynomial: Polynomial) -> Match | None:
    """``c' = (1/2 + F/2) c + (1/2 + I/2) G`` and ``h' = (1/2 + O/2) tanh(c')``, in tanh F, I, G and O."""
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
        if _is(algebra, carry, cell_state):
            gates = [(i, i_sign), (o, o_sign), (f, f_sign), (g, sign)]
            return _matched(algebra, LSTM(), (hidden, cell_state), gates)
    return None


def _becomes(piece: CarryPiece, new: Elements) -> bool:
    return np.array_equal(np.sort(piece.source.at), np.sort(new.at)) and len(np.unique(new.at)) == new.at.size


def _pair(a: int, b: int) -> tuple[int, ...]:
    return tuple(sorted((a, b)))


def _other(polynomial: Polynomial, number: int) -> int | None:
    """The one term that this one is multiplied with."""
    pairs = [m for m in polynomial if len(m) == 2 and number in m]
    others = [m[1] if m[0] == number else m[0] for m in pairs]
    return others[0] if len(others) == 1 else None


def _is(algebra: Algebra, number: int, piece: CarryPiece) -> bool:
    """Whether a term is a piece of the carry, before the step."""
    atom, at = algebra.terms[number].elements
    return atom is piece.carry and np.array_equal(at, piece.at)


def _numbers(hidden: CarryPiece) -> dict[Var, np.ndarray]:
    """For each element of the array that holds the hidden state, which of its elements it is; -1 for others."""
    numbers = np.full(size_of(hidden.carry), -1)
    numbers[hidden.at] = np.arange(hidden.at.size)
    return {hidden.carry: numbers}


def _matched(
    algebra: Algebra, cell: LSTM | GRU | RNN, pieces: tuple[CarryPiece, ...], terms: list[tuple[int, float]]
) -> Match | None:
    """The match, if what enters every gate is what the cell allows."""
    sums = []
    for place, (number, sign) in enumerate(terms):
        term = algebra.terms[number]
        # All but the last are sigmoids, of twice what enters the tanh.
        factor = 1.0 if place == len(terms) - 1 else 2.0
        total = expand(algebra, term.elements, factor * sign * term.scale)
        if total is None:
            return None
        sums.append(total)
    numbers = _numbers(pieces[0])
    grid = find_grid(algebra, sums, numbers)
    if grid is None:
        return None
    gates = [gate_input(algebra, grid, total, numbers) for total in sums]
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
    return Match(cell, grid, states, entered, masks[0])


def _allowed(algebra: Algebra, cell: LSTM | GRU | RNN, gates: tuple[GateInput, ...]) -> bool:
    plain = gates[:-1] if isinstance(cell, GRU) else gates
    if any(gate.resets or gate.scaled or gate.reset_recurrent for gate in plain):
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


def _row_mask(grid: Grid, mask: Mask | None) -> Mask | None:
    """A mask that is the same for all hidden units of a row, ``[rows, 1]``."""
    if mask is None:
        return None
    at = grid.place(mask.elements.at)
    return Mask(Elements(mask.elements.atom, at[:, :1]), mask.when) if (at == at[:, :1]).all() else None


def _mask_key(mask: Mask | None) -> object:
    return None if mask is None else (mask.elements.key, mask.when)
