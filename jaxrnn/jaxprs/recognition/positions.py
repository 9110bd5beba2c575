"""Which element of what an element is: arrays of positions, followed back through everything that only moves elements.

A position is the number of an element in the flattened array. Slices, splits, joins, reshapes, transposes and
broadcasts, in any order and number, are so one thing: an array of positions in some other variable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import JaxprEqn, Literal

from jaxrnn.jaxprs.equations import Atom, bind, shape_of, type_of


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
    name, params = equation.primitive.name, equation.params
    if name == "convert_element_type":
        return everything(equation.invars[0]) if _same_type(equation) else None
    if name in _JOINING:
        starts = np.cumsum([0, *map(size_of, equation.invars)])
        parts = [everything(atom) + start for atom, start in zip(equation.invars, starts, strict=False)]
        return _JOINING[name](parts, params)
    if name == "split":
        ends = np.cumsum(params["sizes"])
        index = np.arange(ends[output] - params["sizes"][output], ends[output])
        return np.take(everything(equation.invars[0]), index, params["axis"])
    rule = _MOVING.get(name)
    if rule is not None:
        return rule(everything(equation.invars[0]), params, shape_of(equation.outvars[output]))
    if name in ("gather", "dynamic_slice"):
        return _indexed(equation)
    return None


def _same_type(equation: JaxprEqn) -> bool:
    return type_of(equation.invars[0]) == type_of(equation.outvars[0])


_JOINING: dict[str, Callable[[list[np.ndarray], Any], np.ndarray]] = {
    "concatenate": lambda parts, params: np.concatenate(parts, params["dimension"]),
    "stack": lambda parts, params: np.stack(parts, params["axis"]),
}


def _broadcast(x: np.ndarray, params: Any, shape: Sequence[int]) -> np.ndarray:
    spread = [1] * len(shape)
    for size, dimension in zip(x.shape, params["broadcast_dimensions"], strict=True):
        spread[dimension] = size
    return np.broadcast_to(x.reshape(spread), shape)


def _slice(x: np.ndarray, params: Any, shape: Sequence[int]) -> np.ndarray:
    strides = params["strides"] or (1,) * x.ndim
    return x[tuple(map(slice, params["start_indices"], params["limit_indices"], strides))]


def _reshape(x: np.ndarray, params: Any, shape: Sequence[int]) -> np.ndarray | None:
    return x.reshape(shape) if params.get("dimensions") is None else None


_MOVING: dict[str, Callable[[np.ndarray, Any, Sequence[int]], np.ndarray | None]] = {
    "broadcast_in_dim": _broadcast,
    "copy": lambda x, params, shape: x,
    "pvary": lambda x, params, shape: x,
    "expand_dims": lambda x, params, shape: x.reshape(shape),
    "reshape": _reshape,
    "rev": lambda x, params, shape: np.flip(x, params["dimensions"]),
    "slice": _slice,
    "squeeze": lambda x, params, shape: x.reshape(shape),
    "transpose": lambda x, params, shape: x.transpose(params["permutation"]),
}


def _indexed(equation: JaxprEqn) -> np.ndarray | None:
    """A gather or slice whose indices are literals, evaluated on positions."""
    data, *indices = equation.invars
    if not all(isinstance(index, Literal) for index in indices) or size_of(data) >= 2**31:
        return None
    with jax.ensure_compile_time_eval():
        values = [np.asarray(index.val, type_of(index)) for index in indices if isinstance(index, Literal)]
        at = np.asarray(bind(equation, [everything(data).astype(np.int32), *values])[0])
    # Outside of the array there is no element.
    return at.astype(np.int64) if at.size and at.min() >= 0 and at.max() < size_of(data) else None
