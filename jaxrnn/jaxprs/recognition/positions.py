"""Which element of what an element is: arrays of positions, followed back through everything that only moves elements.

A position is the number of an element in the flattened array. Slices, splits, joins, reshapes, transposes and
broadcasts, in any order and number, are so one thing: an array of positions in some other variable.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import JaxprEqn, Literal

from jaxrnn.jaxprs.equations import Atom, shape_of, type_of
from jaxrnn.jaxprs.moves import move, moved_operands


class Elements(NamedTuple):
    """Elements of a variable, or of a literal.

    Attributes:
        atom: what they are elements of.
        at: their positions, an array of any shape.
    """

    atom: Atom
    at: np.ndarray

    @property
    def key(self) -> tuple[Any, ...]:
        """What two equal choices of elements have in common."""
        return (identity_of(self.atom), self.at.shape, self.at.tobytes())


def identity_of(atom: Atom) -> Any:
    """A key that two atoms share if they are one value."""
    return ("literal", str(atom.val)) if isinstance(atom, Literal) else id(atom)


def size_of(atom: Atom) -> int:
    """How many elements it has."""
    return math.prod(shape_of(atom))


def everything(atom: Atom) -> np.ndarray:
    """The positions of all its elements, in its shape."""
    return np.arange(size_of(atom)).reshape(shape_of(atom))


def joined_positions(equation: JaxprEqn, output: int) -> np.ndarray | None:
    """Where the elements of a result come from, as positions in its operands, concatenated.

    Args:
        equation: any equation.
        output: the number of the result.

    Returns:
        Positions in the shape of the result; None where the equation does more than move elements.
    """
    name = equation.primitive.name
    if name == "convert_element_type":
        return everything(equation.invars[0]) if type_of(equation.invars[0]) == type_of(equation.outvars[0]) else None
    places = moved_operands(equation) or []
    if name in _WRITING or not places:
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


#: Moves whose results hold elements of their own, or whose derivative is another one.
_WRITING = frozenset({"dynamic_update_slice", "pad", "scatter", "select_n", "stop_gradient"})
