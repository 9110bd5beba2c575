"""The weights of a recognised cell, joined for all of its gates, and its projected frames."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.cells import GRU, Weights, product
from jaxrnn.jaxprs.equations import shape_of, type_of
from jaxrnn.jaxprs.recognition.affine import Matrix
from jaxrnn.jaxprs.recognition.arrays import elements, taken
from jaxrnn.jaxprs.recognition.grid import GateInput, Submatrix
from jaxrnn.jaxprs.recognition.matching import Match
from jaxrnn.jaxprs.recognition.positions import Elements, identity_of
from jaxrnn.jaxprs.schedule import Values


def elements_of(values: Values, chosen: Elements) -> jax.Array:
    """Elements ``[rows, columns]`` of a variable, with time in front where they are not fixed."""
    value, stacked = values.of(chosen.atom)
    return elements(jnp.asarray(value), chosen.at, (values.length,) if stacked else ())


class Gates:
    """A match's gates on values of all frames."""

    def __init__(self, match: Match, values: Values):
        self.match, self.values = match, values
        self.hidden = match.grid.elements.shape[1]
        self.dtype = type_of(match.output)
        self._matrices: dict[Any, jax.Array] = {}

    def layer(self) -> tuple[jax.Array, Weights]:
        """The frames ``[time, rows, features]`` and the weights of a match that is a layer."""
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
        """The recurrent weights, as the cell's `step` takes them."""
        rows, bias = self._recurrent()
        bias = None if bias is None else jnp.concatenate([jnp.zeros_like(bias), bias])
        return self.match.cell.prepare(Weights(rows, rows, bias), self.dtype)[1]

    def _recurrent(self) -> tuple[jax.Array, jax.Array | None]:
        """The recurrent matrix ``[gates * hidden, hidden]`` and bias, in the layout of the operator."""
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
        """What enters the gates besides, ``[time, rows, gates * hidden]``."""
        gates = list(self.match.gates)
        total = self._added(gates)
        for operand, blocks in self._inputs():
            weights = self._joined(blocks, operand.at.shape[1])
            total = total + product(elements_of(self.values, operand), weights)
        rows = self.match.grid.elements.shape[0]
        return jnp.broadcast_to(total, (self.values.length, rows, len(gates) * self.hidden))

    def _inputs(self) -> list[tuple[Elements, list[list[Submatrix]]]]:
        """What matrices multiply, and for each gate the blocks of them."""
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
        """One matrix ``[rows, gates * hidden]`` of the blocks of each gate, which add up."""
        parts: list[jax.Array] = []
        waiting: list[Submatrix] = []

        def flush() -> None:
            if waiting:
                first = waiting[0]
                columns = np.concatenate([block.columns for block in waiting])
                part = taken(taken(self._matrix(first.matrix), first.rows, 0), columns, 1)
                parts.append(_times(part, first.coefficient))
                waiting.clear()

        for blocks in gates:
            if len(blocks) == 1 and (not waiting or _alike(blocks[0], waiting[0])):
                waiting.append(blocks[0])
                continue
            flush()
            if len(blocks) == 1:
                waiting.append(blocks[0])
                continue
            part = jnp.zeros((rows, self.hidden), self.dtype)
            for block in blocks:
                one = taken(taken(self._matrix(block.matrix), block.rows, 0), block.columns, 1)
                part = part + _times(one, block.coefficient)
            parts.append(part)
        flush()
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, 1)

    def _added(self, gates: list[GateInput]) -> jax.Array:
        """What is added to the gates, ``[..., rows or 1, gates * hidden]``."""
        # The same variable in several gates is read once; of a gate that adds it twice, each by itself.
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
        """The columns of some gates among zeros for the others."""
        nothing = jnp.zeros((*value.shape[:-1], self.hidden), self.dtype)
        parts = dict(zip(places, jnp.split(value, len(places), -1), strict=True))
        return jnp.concatenate([parts.get(place, nothing) for place in range(count)], -1)


def _times(array: jax.Array, coefficient: float) -> jax.Array:
    return array if coefficient == 1.0 else array * np.asarray(coefficient, array.dtype)


def _alike(a: Submatrix, b: Submatrix) -> bool:
    return a.matrix == b.matrix and a.coefficient == b.coefficient and np.array_equal(a.rows, b.rows)
