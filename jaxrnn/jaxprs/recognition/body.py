"""The body of a loop over time: its equations, what is known before the loop runs, and where elements come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from jaxrnn.jaxprs.equations import variables
from jaxrnn.jaxprs.recognition.positions import Atom, Elements, everything, joined_positions, shape_of, size_of

#: Constants up to this size are looked at as numbers.
_LOOKED_AT = 1 << 16


class Body:
    """One step as a jaxpr, with what each variable depends on.

    A variable is *fixed* if it is the same in every frame: it comes from parameters and constants alone. It is *known*
    if it can be computed for all frames before the loops that are yet to be found.

    Args:
        closed: the jaxpr; its inputs are parameters, one frame and the carry, its outputs end with the next carry.
        sizes: how many inputs are parameters, and how many belong to the frame.
    """

    def __init__(self, closed: ClosedJaxpr, sizes: tuple[int, int]):
        jaxpr = closed.jaxpr
        first, second = sizes[0], sum(sizes)
        self.closed = closed
        self.equations: list[JaxprEqn] = list(jaxpr.eqns)
        self.params: list[Var] = jaxpr.invars[:first]
        self.frame: list[Var] = jaxpr.invars[first:second]
        self.carry: list[Var] = jaxpr.invars[second:]
        cut = len(jaxpr.outvars) - len(self.carry)
        self.outputs: list[Atom] = jaxpr.outvars[:cut]
        self.next_carry: list[Atom] = jaxpr.outvars[cut:]
        self.maker: dict[Var, tuple[JaxprEqn, int]] = {
            variable: (equation, index) for equation in jaxpr.eqns for index, variable in enumerate(equation.outvars)
        }
        self._constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        self.fixed: set[Var] = {*jaxpr.constvars, *self.params}
        self._spread(self.fixed)
        self.known: set[Var] = {*self.fixed, *self.frame}
        self._spread(self.known)
        self._moves: dict[Var, np.ndarray | None] = {}

    def learn(self, found: Iterable[Var]) -> None:
        """These variables are known from here on, and all that follows from them."""
        self.known.update(found)
        self._spread(self.known)

    def _spread(self, group: set[Var]) -> None:
        for equation in self.equations:
            if all(variable in group for variable in variables(equation.invars)):
                group.update(equation.outvars)

    def is_known(self, atom: Atom) -> bool:
        """Whether it can be computed for all frames already."""
        return isinstance(atom, Literal) or atom in self.known

    def is_fixed(self, atom: Atom) -> bool:
        """Whether it is the same in every frame."""
        return isinstance(atom, Literal) or atom in self.fixed

    def equation_of(self, atom: Atom) -> JaxprEqn | None:
        """What computes it."""
        return None if isinstance(atom, Literal) or atom not in self.maker else self.maker[atom][0]

    def _positions(self, variable: Var) -> np.ndarray | None:
        if variable not in self._moves:
            equation, index = self.maker[variable]
            self._moves[variable] = joined_positions(equation, index)
        return self._moves[variable]

    def sources(self, elements: Elements) -> Iterator[tuple[np.ndarray, Elements]]:
        """What elements are elements of, behind everything that only moves them.

        Yields:
            Which of the given elements (a mask in the shape of ``elements.at``), and what they are, a flat choice.
        """
        pending = [(np.ones(elements.at.shape, bool), elements.atom, elements.at.reshape(-1))]
        while pending:
            mask, atom, at = pending.pop()
            moved = None if isinstance(atom, Literal) or atom not in self.maker else self._positions(atom)
            if moved is None:
                yield mask, Elements(atom, at)
                continue
            joined = moved.reshape(-1)[at]
            start, equation = 0, self.equation_of(atom)
            for operand in () if equation is None else equation.invars:
                inside = (start <= joined) & (joined < start + size_of(operand))
                if inside.any():
                    part = np.zeros(mask.shape, bool)
                    part[mask] = inside
                    pending.append((part, operand, joined[inside] - start))
                start += size_of(operand)

    def source(self, elements: Elements) -> Elements:
        """The same where all of them come from one place, else the elements themselves or what they first were."""
        while not isinstance(elements.atom, Literal) and elements.atom in self.maker:
            moved = self._positions(elements.atom)
            if moved is None:
                break
            joined, start = moved.reshape(-1)[elements.at], 0
            if not joined.size:
                break
            for operand in self.maker[elements.atom][0].invars:
                if start <= joined.min() and joined.max() < start + size_of(operand):
                    elements = Elements(operand, joined - start)
                    break
                start += size_of(operand)
            else:
                break
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
