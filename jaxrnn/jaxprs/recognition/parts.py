"""Parts of a schedule that are no loop of their equations: recognised cells, and values that are known a frame late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Var

from jaxrnn.cells import is_plain, run_layer
from jaxrnn.cells.products import product_type
from jaxrnn.cells.sequence import sequence
from jaxrnn.jaxprs.equations import Atom, Environment, shape_of, type_of, variables
from jaxrnn.jaxprs.recognition.arrays import elements
from jaxrnn.jaxprs.recognition.matching import CellState, Match
from jaxrnn.jaxprs.recognition.positions import Elements
from jaxrnn.jaxprs.recognition.weights import Gates, elements_of
from jaxrnn.jaxprs.schedule import Part, Values


@dataclass(frozen=True)
class RecognisedCell(Part):
    """A recognised cell, which runs over all frames as a sequence.

    Attributes:
        match: the cell in its step.
        is_layer: whether it is a layer, with frames and weights of its own.
    """

    match: Match
    is_layer: bool

    @classmethod
    def of(cls, match: Match, is_fixed: Callable[[Atom], bool]) -> RecognisedCell:
        """The part that a match is in a step in which some atoms are fixed."""
        return cls(tuple(match.reads), (match.output,), match, match.is_layer(is_fixed))

    @property
    def bytes_a_frame(self) -> int:
        """Bytes of its gates."""
        return self.match.grid.elements.size * self.match.cell.gates * type_of(self.match.output).itemsize

    def run(self, values: Values, init: Environment) -> Environment:
        """As `Part.run`; the final values are what the carry becomes."""
        match, gates = self.match, Gates(self.match, values)
        shape = match.grid.elements.shape
        exists = None
        if match.mask is not None:
            chosen = elements_of(values, match.mask.elements)
            exists = jnp.broadcast_to(chosen if match.mask.when else ~chosen, (values.length, shape[0], 1))
        initial = tuple(jnp.broadcast_to(elements(init[state.carry], state.at), shape) for state in match.states)
        if is_plain() and self.is_layer:
            x, weights = gates.layer()
            one = jax.tree.map(lambda array: array[None], (weights, initial))
            mask = None if exists is None else exists[..., 0]
            y, final = run_layer([match.cell], one[0], x, one[1], exists=mask)
            y, final = y[:, 0], [array[0] for array in final]
        else:
            weights, frames = gates.recurrent(), gates.projected()
            final, y = sequence(match.cell, False, product_type(), weights, initial, frames, exists)
        values.stacked[match.output] = _restored(y, match.states[0], (values.length,))
        return {
            state.new.atom: _restored(value, state, ())
            for value, state in zip(final, match.states, strict=True)
            if isinstance(state.new.atom, Var)
        }


def _restored(value: jax.Array, state: CellState, lead: tuple[Any, ...]) -> jax.Array:
    """Elements of a cell as the variable that they are."""
    shape = shape_of(state.new.atom)
    places = np.empty(state.new.at.size, int)
    places[state.new.at.reshape(-1)] = np.arange(state.new.at.size)
    return elements(value, places.reshape(-1, shape[-1] if shape else 1), lead).reshape((*lead, *shape))


@dataclass(frozen=True)
class Delayed(Part):
    """Elements of the carry, moved, of which each becomes an element of a known variable: that one, a frame later.

    Attributes:
        before: what they are before the first step.
        source: what they become.
    """

    before: Elements
    source: Elements

    @classmethod
    def of(cls, variable: Var, before: Elements, source: Elements) -> Delayed:
        """The part that gives a variable, moved elements of the carry."""
        return cls(tuple(variables([source.atom])), (variable,), before, source)

    def run(self, values: Values, init: Environment) -> Environment:
        """As `Part.run`; there is a final value if the elements are a whole array of the carry."""
        (variable,) = self.gives
        shape = shape_of(variable)
        rows = (-1, shape[-1]) if shape and shape[-1] else (self.before.at.size, 1)
        before, source = (Elements(choice.atom, choice.at.reshape(rows)) for choice in (self.before, self.source))
        assert isinstance(before.atom, Var)
        first = jnp.broadcast_to(elements(init[before.atom], before.at), before.at.shape)
        later = jnp.broadcast_to(elements_of(values, source), (values.length, *source.at.shape))
        late = jnp.concatenate([first[None], later[:-1]])
        values.stacked[variable] = late.reshape((values.length, *shape))
        return {variable: later[-1].reshape(shape)} if variable is before.atom else {}
