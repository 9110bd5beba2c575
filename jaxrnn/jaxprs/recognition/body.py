"""A step under analysis: the values known for all frames, the origins of elements, and the pieces of the carry."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import JaxprEqn, Literal, Var

from jaxrnn.jaxprs.equations import Atom, dependents, shape_of, type_of
from jaxrnn.jaxprs.moves import move, moved_operands
from jaxrnn.jaxprs.own import forms_of, platforms_of
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.jaxprs.schedule import Step

#: Constants up to this size are checked for equal elements.
_LARGEST_CHECKED = 1 << 16


class Body:
    """A step with the dependencies of its variables and the origins of their elements.

    A variable is *fixed* if it is equal in all frames: it depends only on parameters and constants. A variable is
    *known* if it can be computed for all frames before the parts that are not yet planned. ``forms`` has the results of
    a choice by platform in each form.
    """

    def __init__(self, step: Step):
        self.step = step
        self.equations: list[JaxprEqn] = step.equations
        self._makers = dict(step.makers)
        self._constants = step.constants()
        self.forms: dict[Var, list[Atom]] = {}
        for choice in (equation for equation in step.equations if platforms_of(equation) is not None):
            forms = forms_of(choice)
            for place, result in enumerate(choice.outvars):
                self.forms[result] = [form.results[place] for form in forms]
            for form in forms:
                self._constants.update(form.constants)
                self._makers.update(
                    (variable, equation) for equation in form.equations for variable in equation.outvars
                )
        self._moves: dict[Var, np.ndarray | None] = {}
        self.known: set[Var] = set()
        self.learn([*step.fixed, *step.frame])

    def learn(self, new: Iterable[Var]) -> None:
        """Mark these variables, and all variables that follow from known variables, as known."""
        self.known.update(new)
        unknown = dependents(self.equations, self.step.carry, self.known)
        self.known.update(variable for variable in self.step.makers if variable not in unknown)

    def is_known(self, atom: Atom) -> bool:
        """Return True if an atom can be computed for all frames."""
        return isinstance(atom, Literal) or atom in self.known

    def is_fixed(self, atom: Atom) -> bool:
        """Return True if an atom is equal in all frames."""
        return isinstance(atom, Literal) or atom in self.step.fixed

    def equation_of(self, atom: Atom) -> JaxprEqn | None:
        """Return the equation that computes a variable."""
        return None if isinstance(atom, Literal) else self._makers.get(atom)

    def _origins(self, elements: Elements) -> list[tuple[np.ndarray, Elements]] | None:
        """Trace elements back through one move: for each operand its elements, flat; None without a move."""
        atom, at = elements
        if isinstance(atom, Literal) or atom not in self._makers:
            return None
        equation = self._makers[atom]
        if atom not in self._moves:
            self._moves[atom] = joined_positions(equation, equation.outvars.index(atom))
        moved = self._moves[atom]
        if moved is None:
            return None
        joined, start, origins = moved.reshape(-1)[at], 0, []
        for operand in equation.invars:
            inside = (start <= joined) & (joined < start + size_of(operand))
            if inside.any():
                origins.append((inside, Elements(operand, joined[inside] - start)))
            start += size_of(operand)
        return origins

    def sources(self, elements: Elements) -> Iterator[tuple[np.ndarray, Elements]]:
        """Trace elements back through all moves to the values that computed the elements.

        Yields a mask of the elements in the shape of ``elements.at``, and the source elements, as a flat choice.
        """
        pending = [(np.ones(elements.at.shape, bool), Elements(elements.atom, elements.at.reshape(-1)))]
        while pending:
            mask, flat = pending.pop()
            origins = self._origins(flat)
            if origins is None:
                yield mask, flat
            for inside, origin in origins or ():
                part = np.zeros(mask.shape, bool)
                part[mask] = inside
                pending.append((part, origin))

    def source(self, elements: Elements) -> Elements:
        """Trace elements back while all elements come from a single operand."""
        while (origins := self._origins(elements)) is not None and len(origins) == 1:
            ((_, origin),) = origins
            elements = Elements(origin.atom, origin.at.reshape(elements.at.shape))
        return elements

    def number(self, elements: Elements) -> float | None:
        """Return the floating-point number that all elements equal, or None."""
        atom, at = self.source(elements)
        value = atom.val if isinstance(atom, Literal) else self._constants.get(atom)
        if value is None or isinstance(value, Tracer) or not 0 < np.size(value) <= _LARGEST_CHECKED:
            return None
        if not jnp.issubdtype(getattr(value, "dtype", type(value)), jnp.floating):
            return None
        array = np.asarray(value)
        # A scalar operand is broadcast to all elements.
        values = array.reshape(-1)[at] if array.ndim else array
        return float(values.flat[0]) if (values == values.flat[0]).all() else None


def operands_of(equation: JaxprEqn, at: np.ndarray) -> list[Elements]:
    """Return the operands of an elementwise equation for the elements at these positions of its result.

    An operand may lack axes, or have axes of size 1 for larger axes of the result.
    """
    shape = shape_of(equation.outvars[0])
    return [
        Elements(atom, at if shape_of(atom) == shape else np.broadcast_to(everything(atom), shape).reshape(-1)[at])
        for atom in equation.invars
    ]


def all_elements(atom: Atom) -> Elements:
    """Return all elements of a variable, in order."""
    return Elements(atom, everything(atom).reshape(-1))


@dataclass(frozen=True)
class UpdateMask:
    """The condition of an update: elements that equal ``when`` are updated, and other elements are kept."""

    elements: Elements
    when: bool


@dataclass(frozen=True)
class CarryPiece:
    """Elements of an array of the carry."""

    carry: Var  # the variable of the array before the step
    at: np.ndarray  # the positions in the array
    source: Elements  # the elements after the step, if they are updated
    mask: UpdateMask | None = None  # the condition of the update; None for an unconditional update


class CarryPieces:
    """The pieces of all arrays of the carry.

    Attributes:
        pieces: pieces that cover all elements of the carry.
        updates: masked updates: variables that keep an old value under a mask, and their new values.
    """

    def __init__(self, body: Body):
        self.body = body
        self.updates: dict[Var, Atom] = {}
        self.pieces: list[CarryPiece] = []
        for carry, after in zip(body.step.carry, body.step.next_carry, strict=True):
            self.pieces += self._pieces(carry, after)

    def _pieces(self, carry: Var, after: Atom) -> Iterator[CarryPiece]:
        for mask, source in self.body.sources(all_elements(after)):
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
                yield CarryPiece(carry, at[part], inner, UpdateMask(chosen, condition.when))

    def _unmasked(self, carry: Var, at: np.ndarray, source: Elements) -> tuple[UpdateMask, Elements] | None:
        """Return the mask of elements that choose between old and new values, and the new values."""
        equation = self.body.equation_of(source.atom)
        if equation is None or entry_of(equation).arithmetic != "select" or len(equation.invars) != 3:
            return None
        chooser, *cases = operands_of(equation, source.at)
        chooser = self.body.source(chooser)
        if type_of(chooser.atom) != np.dtype(bool) or not self.body.is_known(chooser.atom):
            return None
        for new in (0, 1):
            old = self.body.source(cases[1 - new])
            if old.atom is carry and np.array_equal(old.at, at):
                return UpdateMask(chooser, bool(new)), cases[new]
        return None

    def of(self, variable: Var) -> list[CarryPiece]:
        """Return the pieces that become elements of this variable."""
        return [piece for piece in self.pieces if piece.source.atom is variable]

    def sources(self) -> list[Var]:
        """Return the variables that pieces become, without duplicates."""
        return list(dict.fromkeys(p.source.atom for p in self.pieces if not isinstance(p.source.atom, Literal)))


class Elements(NamedTuple):
    """Elements of a variable or a literal."""

    atom: Atom
    at: np.ndarray  # the positions of the elements, an array of any shape

    @property
    def key(self) -> tuple[Any, ...]:
        """Return a key that equal choices of elements share."""
        return (identity_of(self.atom), self.at.shape, self.at.tobytes())


def identity_of(atom: Atom) -> Any:
    """Return a key of an atom; equal literals have equal keys."""
    return ("literal", str(atom.val)) if isinstance(atom, Literal) else id(atom)


def size_of(atom: Atom) -> int:
    """Return the number of elements."""
    return math.prod(shape_of(atom))


def everything(atom: Atom) -> np.ndarray:
    """Return the positions of all elements, in the shape of the atom."""
    return np.arange(size_of(atom)).reshape(shape_of(atom))


def joined_positions(equation: JaxprEqn, output: int) -> np.ndarray | None:
    """Return the positions of a result's elements in the concatenated operands, in the shape of the result.

    None means that the equation does more than move elements.
    """
    entry = entry_of(equation)
    if equation.primitive.name == "convert_element_type":
        return everything(equation.invars[0]) if type_of(equation.invars[0]) == type_of(equation.outvars[0]) else None
    places = moved_operands(equation) or []
    # Choices, pads and updates mix elements of several operands.
    if entry.moved not in (slice(1), slice(None)) or equation.primitive.name == "stop_gradient":
        return None
    operands: list[Any] = []
    start = 0
    for index, atom in enumerate(equation.invars):
        if index in places:
            operands.append(everything(atom) + start)
            start += size_of(atom)
        elif isinstance(atom, Literal):
            operands.append(np.asarray(atom.val, type_of(atom)))
        else:
            return None
    moved = move(equation, operands)
    return None if moved is None else moved[output]
