"""Parts of a schedule that are not loops of their equations: recognised cells, and values of the previous frame."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Var

from jaxrnn.cells.cell import GRU, Weights
from jaxrnn.cells.forms import is_plain, product, product_type
from jaxrnn.cells.recurrence import run_layer, sequence
from jaxrnn.jaxprs.equations import Atom, Environment, shape_of, type_of, variables
from jaxrnn.jaxprs.recognition.algebra import Matrix
from jaxrnn.jaxprs.recognition.body import Elements, identity_of
from jaxrnn.jaxprs.recognition.matching import CellMatch, CellState, GateInput, Submatrix
from jaxrnn.jaxprs.schedule import Part, Values


@dataclass(frozen=True)
class RecognisedCell(Part):
    """A recognised cell, which runs over all frames as a sequence."""

    match: CellMatch  # the cell in its step
    is_layer: bool  # whether the cell is a layer with its own frames and weights
    scope: str  # the scope of the hidden state in the step, which is the name of an ONNX node

    @classmethod
    def of(cls, match: CellMatch, is_fixed: Callable[[Atom], bool], scope: str) -> RecognisedCell:
        """Return the part of a match, in a step with these fixed atoms."""
        return cls(tuple(match.reads), (match.output,), match, match.is_layer(is_fixed), scope)

    @property
    def bytes_a_frame(self) -> int:
        """Return the bytes of the gates in a frame."""
        return self.match.grid.elements.size * self.match.cell.gates * type_of(self.match.output).itemsize

    def run(self, values: Values, init: Environment) -> Environment:
        """Run over all frames; the final values are the next carry."""
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
            with jax.named_scope(self.scope) if self.scope else contextlib.nullcontext():
                weights, frames = gates.recurrent(), gates.projected()
                final, y = sequence(match.cell, False, product_type(), weights, initial, frames, exists)
        values.stacked[match.output] = _restored(y, match.states[0], (values.length,))
        return {
            state.new.atom: _restored(value, state, ())
            for value, state in zip(final, match.states, strict=True)
            if isinstance(state.new.atom, Var)
        }


def _restored(value: jax.Array, state: CellState, lead: tuple[Any, ...]) -> jax.Array:
    """Return elements of a cell as a value of their variable."""
    shape = shape_of(state.new.atom)
    places = np.empty(state.new.at.size, int)
    places[state.new.at.reshape(-1)] = np.arange(state.new.at.size)
    return elements(value, places.reshape(-1, shape[-1] if shape else 1), lead).reshape((*lead, *shape))


@dataclass(frozen=True)
class Delayed(Part):
    """Moved elements of the carry that equal a known variable in the previous frame."""

    before: Elements  # the values before the first step
    source: Elements  # the values after each step

    @classmethod
    def of(cls, variable: Var, before: Elements, source: Elements) -> Delayed:
        """Return the part that computes a variable of moved elements of the carry."""
        return cls(tuple(variables([source.atom])), (variable,), before, source)

    def run(self, values: Values, init: Environment) -> Environment:
        """Run over all frames; there is a final value if the elements are a whole array of the carry."""
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


def elements_of(values: Values, chosen: Elements) -> jax.Array:
    """Return elements ``[rows, columns]`` of a variable; unfixed variables have a leading time axis."""
    value, stacked = values.of(chosen.atom)
    return elements(jnp.asarray(value), chosen.at, (values.length,) if stacked else ())


class Gates:
    """The gates of a match on values of all frames."""

    def __init__(self, match: CellMatch, values: Values):
        self.match, self.values = match, values
        self.hidden = match.grid.elements.shape[1]
        self.dtype = type_of(match.output)
        self._matrices: dict[Any, jax.Array] = {}

    def layer(self) -> tuple[jax.Array, Weights]:
        """Return the frames ``[time, rows, features]`` and the weights of a match that is a layer."""
        lead = self.values.length, self.match.grid.elements.shape[0]
        parts = [(elements_of(self.values, operand), blocks) for operand, blocks in self._inputs()]
        x = [jnp.broadcast_to(part, (*lead, part.shape[-1])) for part, _ in parts]
        w = [self._joined(blocks, part.shape[-1]) for part, (_, blocks) in zip(x, parts, strict=True)]
        rows, bias = self._recurrent()
        added = jnp.broadcast_to(self._added(list(self.match.gates)), (1, rows.shape[0]))[0]
        bias = jnp.zeros_like(added) if bias is None else bias
        weights = Weights(jnp.concatenate(w).T, rows, jnp.concatenate([added, bias]))
        return jnp.concatenate(x, -1), weights

    def recurrent(self) -> Any:
        """Return the recurrent weights in the form for the cell's `step`."""
        rows, bias = self._recurrent()
        bias = None if bias is None else jnp.concatenate([jnp.zeros_like(bias), bias])
        return self.match.cell.prepare(Weights(rows, rows, bias), self.dtype)[1]

    def _recurrent(self) -> tuple[jax.Array, jax.Array | None]:
        """Return the recurrent matrix ``[gates * hidden, hidden]`` and bias, in the layout of the operator."""
        blocks, bias = [gate.recurrent or gate.reset_recurrent for gate in self.match.gates], None
        cell = self.match.cell
        if isinstance(cell, GRU) and cell.linear_before_reset:
            scaled = self.match.gates[-1].scaled
            assert scaled is not None
            blocks[-1] = scaled.recurrent
            candidate = jnp.broadcast_to(self._added([scaled]), (1, self.hidden))[0]
            bias = jnp.concatenate([jnp.zeros(2 * self.hidden, self.dtype), candidate])
        return self._joined(blocks, self.hidden).T, bias

    def projected(self) -> jax.Array:
        """Return the other inputs of the gates, ``[time, rows, gates * hidden]``."""
        gates = list(self.match.gates)
        total = self._added(gates)
        for operand, blocks in self._inputs():
            weights = self._joined(blocks, operand.at.shape[1])
            total = total + product(elements_of(self.values, operand), weights)
        rows = self.match.grid.elements.shape[0]
        return jnp.broadcast_to(total, (self.values.length, rows, len(gates) * self.hidden))

    def _inputs(self) -> list[tuple[Elements, list[list[Submatrix]]]]:
        """Return the multiplied inputs, and the blocks of matrices for each gate."""
        gates = self.match.gates
        operands: dict[Any, Elements] = {}
        blocks: dict[Any, list[list[Submatrix]]] = {}
        for place, gate in enumerate(gates):
            for operand, block in gate.inputs:
                operands.setdefault(operand.key, operand)
                blocks.setdefault(operand.key, [[] for _ in gates])[place].append(block)
        return [(operand, blocks[key]) for key, operand in operands.items()]

    def _matrix(self, matrix: Matrix) -> jax.Array:
        key = (id(matrix.atom), matrix.order)
        if key not in self._matrices:
            shape = shape_of(matrix.atom)
            rows = int(np.prod([shape[axis] for axis in matrix.order[: matrix.contracted]], dtype=int))
            value = jnp.asarray(self.values.of(matrix.atom)[0]).astype(self.dtype)
            self._matrices[key] = value.transpose(matrix.order).reshape(rows, -1)
        return self._matrices[key]

    def _joined(self, gates: list[list[Submatrix]], rows: int) -> jax.Array:
        """Join the blocks of all gates to a matrix ``[rows, gates * hidden]``."""
        parts: list[jax.Array] = []
        waiting: list[Submatrix] = []

        def flush() -> None:
            if waiting:
                parts.append(self._block(waiting[0], np.concatenate([block.columns for block in waiting])))
                waiting.clear()

        for blocks in gates:
            if len(blocks) != 1 or (waiting and not _alike(blocks[0], waiting[0])):
                flush()
            if len(blocks) == 1:
                waiting.append(blocks[0])
                continue
            part = jnp.zeros((rows, self.hidden), self.dtype)
            for block in blocks:
                part = part + self._block(block, block.columns)
            parts.append(part)
        flush()
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, 1)

    def _block(self, block: Submatrix, columns: np.ndarray) -> jax.Array:
        """Return a block with these columns of its matrix."""
        array = taken(taken(self._matrix(block.matrix), block.rows, 0), columns, 1)
        return array if block.coefficient == 1.0 else array * np.asarray(block.coefficient, array.dtype)

    def _added(self, gates: list[GateInput]) -> jax.Array:
        """Return the addends of the gates, ``[..., rows or 1, gates * hidden]``."""
        # A variable that several gates add is read once. If a gate adds a variable twice, each addend is read.
        chosen: dict[Any, list[tuple[int, Elements, float]]] = {}
        for place, gate in enumerate(gates):
            counts: Counter[Any] = Counter()
            for added, coefficient in gate.addends:
                key = identity_of(added.atom)
                chosen.setdefault((key, counts[key]), []).append((place, added, coefficient))
                counts[key] += 1
        total = jnp.zeros((1, len(gates) * self.hidden), self.dtype)
        for entries in chosen.values():
            at = np.concatenate([added.at for _, added, _ in entries], 1)
            value = elements_of(self.values, Elements(entries[0][1].atom, at))
            scales = np.repeat(np.asarray([scale for *_, scale in entries], self.dtype), self.hidden)
            value = value if (scales == 1).all() else value * scales
            places = [place for place, *_ in entries]
            if places != list(range(len(gates))):
                value = self._spread(value, places, len(gates))
            total = total + value
        return total

    def _spread(self, value: jax.Array, places: list[int], count: int) -> jax.Array:
        """Place the columns of some gates among zeros for the other gates."""
        nothing = jnp.zeros((*value.shape[:-1], self.hidden), self.dtype)
        parts = dict(zip(places, jnp.split(value, len(places), -1), strict=True))
        return jnp.concatenate([parts.get(place, nothing) for place in range(count)], -1)


def _alike(a: Submatrix, b: Submatrix) -> bool:
    return a.matrix == b.matrix and a.coefficient == b.coefficient and np.array_equal(a.rows, b.rows)


#: The most runs that are read as slices; more runs are read by index.
_MOST_RUNS = 8


def taken(array: jax.Array, index: np.ndarray, axis: int) -> jax.Array:
    """Evaluate ``jnp.take`` along an axis with known indices, as joined slices if the indices form few runs."""
    if np.array_equal(index, np.arange(array.shape[axis])):
        return array
    starts = [0, *(np.flatnonzero(np.diff(index) != 1) + 1).tolist()]
    if len(starts) > _MOST_RUNS or not index.size:
        return jnp.take(array, index, axis)
    parts = [
        jax.lax.slice_in_dim(array, int(index[start]), int(index[end - 1]) + 1, axis=axis)
        for start, end in zip(starts, [*starts[1:], len(index)], strict=True)
    ]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis)


def elements(array: jax.Array, at: np.ndarray, lead: Sequence[int] = ()) -> jax.Array:
    """Return elements of the part of an array after its leading axes.

    The result is ``[*lead, rows, columns]``, with a single row if all rows are equal.
    """
    rest = array.shape[len(lead) :]
    size = int(np.prod(rest, dtype=int))
    if np.array_equal(at.reshape(-1), np.arange(size)):
        return array.reshape((*lead, *at.shape))
    if (at == at[:1]).all():
        at = at[:1]
    rows, columns = at.shape
    if (at == at[0, 0]).all():
        one = taken(array.reshape((*lead, size)), at[0, :1], -1)
        return jnp.broadcast_to(one[..., None, :], (*lead, 1, columns))
    if rows == 1:
        return taken(array.reshape((*lead, size)), at[0], -1)[..., None, :]
    down = int(at[1, 0] - at[0, 0])
    if (np.diff(at, axis=0) != down).any():
        return jnp.take(array.reshape((*lead, size)), at, -1)
    if down == 1 and columns > 1 and (np.diff(at[0]) == rows).all() and at[0, 0] % rows == 0 and size % rows == 0:
        # Columns are concatenated.
        columnwise = array.reshape((*lead, size // rows, rows))
        first = int(at[0, 0]) // rows
        return jnp.swapaxes(jax.lax.slice_in_dim(columnwise, first, first + columns, axis=len(lead)), -1, -2)
    width = abs(down)
    first, inside = int(at[0, 0]) // width if width else 0, at[0] % width if width else at[0]
    if down > 0 and size % width == 0 and (at[0] // width == first).all():
        rowwise = array.reshape((*lead, size // width, width))
        return taken(jax.lax.slice_in_dim(rowwise, first, first + rows, axis=len(lead)), inside, -1)
    return jnp.take(array.reshape((*lead, size)), at, -1)
