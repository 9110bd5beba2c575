"""What the carry of a body is made of: pieces of it, and what becomes of each in a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jax.extend.core import Literal, Var

from jaxrnn.jaxprs.equations import Atom, type_of
from jaxrnn.jaxprs.recognition.body import Body, operands_of, whole
from jaxrnn.jaxprs.recognition.positions import Elements


@dataclass(frozen=True)
class Mask:
    """Where a piece is updated: where the elements, booleans, are ``when``; elsewhere it stays as it was."""

    elements: Elements
    when: bool


@dataclass(frozen=True)
class CarryPiece:
    """Elements of one array of the carry.

    Attributes:
        carry: the variable that is the array before the step.
        at: their positions in it.
        source: what they are after the step, where they are updated.
        mask: where they are; None for everywhere.
    """

    carry: Var
    at: np.ndarray
    source: Elements
    mask: Mask | None = None


class Carries:
    """The pieces of all arrays of the carry.

    Attributes:
        pieces: every element of the carry is in one of them.
        updates: masked updates, variables that are an old value where a mask says so, and what they are elsewhere.
    """

    def __init__(self, body: Body):
        self.body = body
        self.updates: dict[Var, Atom] = {}
        self.pieces: list[CarryPiece] = []
        for carry, after in zip(body.step.carry, body.step.next_carry, strict=True):
            self.pieces += self._pieces(carry, after)

    def _pieces(self, carry: Var, after: Atom) -> Iterator[CarryPiece]:
        for mask, source in self.body.sources(whole(after)):
            at = np.flatnonzero(mask)
            updated = self._unmasked(carry, at, source)
            if updated is None:
                yield CarryPiece(carry, at, source)
                continue
            condition, new = updated
            assert not isinstance(source.atom, Literal)
            self.updates[source.atom] = new.atom
            for part, inner in self.body.sources(new):
                chosen = Elements(condition.elements.atom, condition.elements.at[part])
                yield CarryPiece(carry, at[part], inner, Mask(chosen, condition.when))

    def _unmasked(self, carry: Var, at: np.ndarray, source: Elements) -> tuple[Mask, Elements] | None:
        """The mask of elements that are chosen between what they were and something new, and that."""
        equation = self.body.equation_of(source.atom)
        if equation is None or equation.primitive.name != "select_n" or len(equation.invars) != 3:
            return None
        chooser, *cases = operands_of(equation, source.at)
        chooser = self.body.source(chooser)
        if type_of(chooser.atom) != np.dtype(bool) or not self.body.is_known(chooser.atom):
            return None
        for new in (0, 1):
            old = self.body.source(cases[1 - new])
            if old.atom is carry and np.array_equal(old.at, at):
                return Mask(chooser, bool(new)), cases[new]
        return None

    def of(self, variable: Var) -> list[CarryPiece]:
        """The pieces that become elements of this variable."""
        return [piece for piece in self.pieces if piece.source.atom is variable]

    def sources(self) -> list[Var]:
        """What pieces become, each variable once."""
        return list(dict.fromkeys(p.source.atom for p in self.pieces if not isinstance(p.source.atom, Literal)))
