"""The counters of a loop in any trip, and the number of trips.

A counter changes by the same amount in every trip. The first two trips, evaluated on NumPy arrays, determine the
counter in all trips. The number of trips is the solution of the loop's condition.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from jax.core import max_dim, min_dim

from jaxrnn.errors import JaxrnnError, LimitError
from jaxrnn.onnx import symbols
from jaxrnn.onnx.evaluate import BoundNode, Subgraph
from jaxrnn.onnx.time_loops.body import FIXED, FREE, LoopBody, hoist_reads
from jaxrnn.onnx.values import Value, is_known, is_static


@dataclass(frozen=True)
class Line:
    """An integer that changes by the same amount in every trip: ``first + slope * trip``."""

    first: Any
    slope: int


class Positions:
    """The values of a loop's body in any trip, if known while tracing."""

    def __init__(self, body: Subgraph, carried: Sequence[Value]):
        self.graph, self.carried = body, tuple(carried)
        # A cache of the instance: a cache of the class would keep every loop, with its tracers, alive.
        self.known = functools.cache(self._known)
        start = [value if is_static(value) else None for value in carried]
        self.body = LoopBody(body.block, self._outside, start)
        if any(node.blocks for node in body.block.nodes):
            block = hoist_reads(body.block, lambda key: self.body.change(key) == FIXED)
            self.body = LoopBody(block, self._outside, start)

    def _outside(self, key: ir.Value) -> np.ndarray | None:
        value = self.graph.value_outside(key)
        return value if is_static(value) else None

    def evaluate(self, keys: Sequence[ir.Value], trip: int) -> list[Value]:
        """Evaluate values of the body in a trip; they may depend only on fixed values and counters."""
        body = self.body
        slots = dict(enumerate(self.carried))
        for place, step in body.counters.items():
            slots[place] = self.carried[place] + step.reshape(()) * trip
        part = body.block.part(body.block.inputs, keys)
        return list(self.graph.with_block(part)(np.asarray(trip, np.int64), np.asarray(True), *slots.values()))

    def _known(self, key: ir.Value, trip: int) -> np.ndarray | None:
        """Return a value in a trip, or None if it is not known while tracing."""
        if self.body.change(key) == FREE:
            return None
        try:
            (value,) = self.evaluate([key], trip)
        except LimitError:
            raise
        except JaxrnnError:
            return None
        return value if is_static(value) else None

    def lines(self, key: ir.Value | None) -> tuple[Line, ...] | None:
        """Return the elements of a value as lines, or None if unknown."""
        first, second = (None, None) if key is None else (self.known(key, 0), self.known(key, 1))
        if first is None or second is None or not symbols.are_whole(first) or first.shape != second.shape:
            return None
        lines = []
        for before, after in zip(first.reshape(-1).tolist(), second.reshape(-1).tolist(), strict=True):
            slope = symbols.size_of(after) - symbols.size_of(before)
            if not isinstance(slope, int):
                return None
            lines.append(Line(symbols.size_of(before), slope))
        return tuple(lines)


def stays_inside(line: Line, size: Any, trips: Any) -> bool:
    """Return True if a position moves, and is inside an axis in every trip for every length."""
    last = line.first + line.slope * (trips - 1)
    low, high = (line.first, last) if line.slope > 0 else (last, line.first)
    return (
        line.slope != 0
        and symbols.less(0, low, or_equal=True) is True
        and symbols.less(high, size, or_equal=False) is True
    )


#: A limit beyond any length: the Loop has none.
_HUGE = 2**31
#: By `Traits.compares`: whether the operands are swapped, and whether they may be equal.
_ORDERED = {"<": (False, False), "<=": (False, True), ">": (True, False), ">=": (True, True)}


class Condition:
    """The condition of a loop as claims that lines are below zero; a next trip follows if all claims are true."""

    def __init__(self, positions: Positions):
        self.positions, self.body = positions, positions.body

    def trips(self, limit: Value, go_on: Value) -> Any:
        """Return the number of trips, an integer or a symbolic dimension; None if the number depends on data."""
        limit, go_on = _as_numpy(limit), _as_numpy(go_on)
        bounds, without_end = [], None
        if limit is not None:
            if not is_static(limit):
                return None
            size = symbols.size_of(limit.reshape(()).item())
            if size is None:
                return None
            if not isinstance(size, int) or size < _HUGE:
                bounds.append(max_dim(size, 0))
            else:
                without_end = size
        if not is_static(go_on):
            return None
        started = go_on.reshape(()).item()
        if not isinstance(started, symbols.Claim) and not started:
            return 0
        if not isinstance(started, symbols.Claim) and bounds and isinstance(bounds[0], int) and bounds[0] <= 1:
            return bounds[0]  # the condition is not evaluated after so few trips
        claims = self._claims(self.body.block.outputs[0])
        if claims is None:
            return None
        counts = [_count(line) for line in claims if not _always(line)]
        if None in counts:
            return None
        if isinstance(started, symbols.Claim):
            # The condition of the first trip must equal the condition of all other trips.
            before = [line.first - line.slope for line in claims]
            if not all(any(_equal(each, other) for other in before) for each in started.below_zero):
                return None
            bounds += [max_dim(count, 0) for count in counts]
        else:
            bounds += [max_dim(count, 1) for count in counts]
        return functools.reduce(_least, bounds) if bounds else without_end

    def _claims(self, key: ir.Value) -> list[Line] | None:
        """Return the lines that must be below zero after a trip for a next trip, or None if unknown."""
        body = self.body
        key = body.origin(key)
        if key is body.condition:
            return []
        if body.change(key) == FIXED:
            return self._fixed_claims(self.positions.known(key, 0))
        maker = body.makers.get(key)
        if maker is None:
            return None
        inputs = [key for key in maker.inputs if key is not None]
        if maker.applies("And"):
            parts = [self._claims(part) for part in inputs]
            return None if None in parts else [line for part in parts if part is not None for line in part]
        if maker.operator.traits.moves_first:
            return self._claims(inputs[0])
        if maker.applies("Not"):
            inner = body.makers.get(body.origin(inputs[0]))
            return None if inner is None else self._compared(inner, negated=True)
        return self._compared(maker, negated=False)

    def _fixed_claims(self, value: np.ndarray | None) -> list[Line] | None:
        if value is None or value.size != 1:
            return None
        item = value.reshape(()).item()
        if isinstance(item, symbols.Claim):
            return [Line(difference, 0) for difference in item.below_zero]
        return [] if item else [Line(0, 0)]

    def _compared(self, node: BoundNode, *, negated: bool) -> list[Line] | None:
        if node.operator.traits.compares not in _ORDERED:
            return None
        first, second = (self.positions.lines(key) for key in node.inputs)
        if first is None or second is None or len(first) != 1 or len(second) != 1:
            return None
        swapped, or_equal = _ORDERED[node.operator.traits.compares]
        if swapped != negated:
            first, second = second, first
        ((a,), (b,)) = first, second
        return [Line(a.first - b.first - (or_equal != negated), a.slope - b.slope)]


def _as_numpy(value: Value) -> Value:
    """Convert a known value to a NumPy array."""
    return np.asarray(value) if value is not None and not is_static(value) and is_known(value) else value


def _equal(first: Any, second: Any) -> bool:
    return str(first - second) == "0"


def _always(line: Line) -> bool:
    """Return True if a claim is true in every trip."""
    return line.slope <= 0 and symbols.less(line.first, 0, or_equal=False) is True


def _count(line: Line) -> Any:
    """Return the trips that a claim allows if true before the first trip; None if the loop ends never or later."""
    before = line.first - line.slope
    if line.slope > 0:
        return -(before // line.slope)
    ends = symbols.less(line.first, 0, or_equal=False) is False
    return 0 if ends else None


def _least(first: Any, second: Any) -> Any:
    return first if _equal(first, second) else min_dim(first, second)
