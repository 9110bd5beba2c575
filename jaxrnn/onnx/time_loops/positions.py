"""The counters of a loop in any trip: numbers that change by the same amount in every trip, known from the first two.

`LoopBody.change` tells which values these are. The amount comes from the body itself, evaluated on NumPy arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxrnn.errors import JaxrnnError, LimitError
from jaxrnn.onnx import symbols
from jaxrnn.onnx.evaluate import Subgraph
from jaxrnn.onnx.time_loops.body import FIXED, FREE, LoopBody
from jaxrnn.onnx.time_loops.hoisting import hoist_reads
from jaxrnn.onnx.values import Value, is_static


@dataclass(frozen=True)
class Line:
    """An integer that changes by the same amount in every trip: ``first + slope * trip``."""

    first: Any
    slope: int


class Positions:
    """The values of a loop's body in any trip, where they are known while tracing.

    Args:
        body: the body.
        carried: the carried values before the first trip.
    """

    def __init__(self, body: Subgraph, carried: Sequence[Value]):
        self.graph, self.carried = body, tuple(carried)
        # A cache of the instance: one of the class would keep every loop, with its tracers, alive.
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
        """A value in a trip, or None where it is not known while tracing."""
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
        """The elements of a value as lines, or None where they are not known."""
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
    """Whether a position moves, and lies inside an axis in every trip for every length."""
    last = line.first + line.slope * (trips - 1)
    low, high = (line.first, last) if line.slope > 0 else (last, line.first)
    return (
        line.slope != 0
        and symbols.less(0, low, or_equal=True) is True
        and symbols.less(high, size, or_equal=False) is True
    )
