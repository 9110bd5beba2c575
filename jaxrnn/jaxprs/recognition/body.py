"""A step under analysis: what is known of all frames already, and where elements come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import JaxprEqn, Literal, Var

from jaxrnn.jaxprs.equations import Atom, shape_of
from jaxrnn.jaxprs.platforms import forms_of, platforms_of
from jaxrnn.jaxprs.recognition.positions import Elements, everything, joined_positions, size_of
from jaxrnn.jaxprs.slices import dependents
from jaxrnn.jaxprs.step import Step

#: Constants up to this size are looked at as numbers.
_LOOKED_AT = 1 << 16


class Body:
    """One step, with what each variable depends on, and where its elements come from.

    A variable is *fixed* if it is the same in every frame: it comes from parameters and constants alone. It is *known*
    if it can be computed for all frames before the parts that are not yet planned.

    Attributes:
        step: the step.
        forms: by result of a choice by platform, what it is in each of its forms.
        known: the known variables, fixed ones among them.
    """

    def __init__(self, step: Step):
        self.step = step
        self.equations: list[JaxprEqn] = step.equations
        self._makers = dict(step.makers)
        self._constants = step.constants()
        self.forms: dict[Var, list[Atom]] = {}
        for choice in (equation for equation in step.equations if platforms_of(equation) is not None):
            self._look_into(choice)
        self._moves: dict[Var, np.ndarray | None] = {}
        self.known: set[Var] = set()
        self.learn([*step.fixed, *step.frame])

    def learn(self, new: Iterable[Var]) -> None:
        """These variables are known from here on, and all that follows from them."""
        self.known.update(new)
        unknown = dependents(self.equations, self.step.carry, self.known)
        self.known.update(variable for variable in self.step.makers if variable not in unknown)

    def _look_into(self, choice: JaxprEqn) -> None:
        forms = forms_of(choice)
        for place, result in enumerate(choice.outvars):
            self.forms[result] = [form.results[place] for form in forms]
        for form in forms:
            self._constants.update(form.constants)
            self._makers.update((variable, equation) for equation in form.equations for variable in equation.outvars)

    def is_known(self, atom: Atom) -> bool:
        """Whether it can be computed for all frames already."""
        return isinstance(atom, Literal) or atom in self.known

    def is_fixed(self, atom: Atom) -> bool:
        """Whether it is the same in every frame."""
        return isinstance(atom, Literal) or atom in self.step.fixed

    def equation_of(self, atom: Atom) -> JaxprEqn | None:
        """What computes it."""
        return None if isinstance(atom, Literal) else self._makers.get(atom)

    def _origins(self, elements: Elements) -> list[tuple[np.ndarray, Elements]] | None:
        """One move back: for each operand which of the elements come from it, and what they are there, a flat choice.

        None where they are computed, or an input.
        """
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
        """What elements are elements of, before everything that only moves them.

        Yields:
            Which of the elements (a mask in the shape of ``elements.at``), and what they are, a flat choice.
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
        """The same as long as all of them come from one operand."""
        while (origins := self._origins(elements)) is not None and len(origins) == 1:
            ((_, origin),) = origins
            elements = Elements(origin.atom, origin.at.reshape(elements.at.shape))
        return elements

    def number(self, elements: Elements) -> float | None:
        """The one number that all of these elements are; None where they differ or depend on anything."""
        atom, at = self.source(elements)
        value = atom.val if isinstance(atom, Literal) else self._constants.get(atom)
        if value is None or isinstance(value, Tracer) or not 0 < np.size(value) <= _LOOKED_AT:
            return None
        if not jnp.issubdtype(getattr(value, "dtype", type(value)), jnp.floating):
            return None
        array = np.asarray(value)
        # An operand without axes stands for as many equal elements as there are.
        values = array.reshape(-1)[at] if array.ndim else array
        return float(values.flat[0]) if (values == values.flat[0]).all() else None


def operands_of(equation: JaxprEqn, at: np.ndarray) -> list[Elements]:
    """What enters an element-wise equation for the elements at these positions of its result.

    An operand may have no axes, or axes of size 1 where the result has larger ones.
    """
    shape = shape_of(equation.outvars[0])
    return [
        Elements(atom, at if shape_of(atom) == shape else np.broadcast_to(everything(atom), shape).reshape(-1)[at])
        for atom in equation.invars
    ]


def whole(atom: Atom) -> Elements:
    """All elements of a variable, in order."""
    return Elements(atom, everything(atom).reshape(-1))
