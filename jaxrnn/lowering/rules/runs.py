"""Frames that exist as one run in each row of a batch: moved to the front, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxrnn.lowering.lowering import Lowering
from jaxrnn.lowering.movement import broadcast, reshape
from jaxrnn.lowering.rules.elementwise import cast, elements
from jaxrnn.lowering.rules.reduction import reduced
from jaxrnn.lowering.writer import Operand, dtype_of, shape_of


@dataclass(frozen=True)
class Runs:
    """Where frames exist.

    Attributes:
        lowering: what writes them.
        first: the number of the first one in each row, ``int64[rows]``; one row stands for all.
        count: how many there are, ``int32[rows]``.
        frames: how many frames there are, existing or not.
    """

    lowering: Lowering
    first: Operand
    count: Operand
    frames: int

    @classmethod
    def of(cls, lowering: Lowering, exists: Operand) -> Runs:
        """Those of a mask ``bool[time, rows]``."""
        frames, rows = shape_of(exists)
        if isinstance(exists, np.ndarray):
            return cls(lowering, exists.argmax(0), exists.sum(0, dtype=np.int32), frames)
        numbers, node = cast(lowering, exists, np.int32), lowering.writer.node
        first = node("ArgMax", numbers, shape=(rows,), dtype=np.int64, axis=0, keepdims=0)
        return cls(lowering, first, reduced(lowering.writer, "ReduceSum", numbers, [0]), frames)

    def lengths(self, batch: int) -> Operand:
        """The number of frames in each row of a batch."""
        return broadcast(self.lowering.writer, self.count, (batch,))

    @property
    def some(self) -> Operand:
        """Whether a row has frames, ``bool[rows, 1]``."""
        some = elements(self.lowering, "Greater", self.count, np.zeros((), np.int32), dtype=bool)
        return reshape(self.lowering.writer, some, (*shape_of(some), 1))

    def to_front(self, x: Operand) -> Operand:
        """Frames ``[time, ..., rows, features]``, turned so that those that exist come first."""
        return self._turned(x, "Add")

    def back(self, x: Operand) -> Operand:
        """Frames where they were."""
        return self._turned(x, "Sub")

    def _turned(self, x: Operand, operator: str) -> Operand:
        if isinstance(self.first, np.ndarray) and not self.first.any():
            return x
        writer, shape = self.lowering.writer, shape_of(x)
        numbers = np.arange(self.frames, dtype=np.int64)[:, None]
        moved = elements(self.lowering, operator, numbers, reshape(writer, self.first, (1, *shape_of(self.first))))
        order = elements(self.lowering, "Mod", moved, np.array(self.frames, np.int64))
        if shape_of(order)[1] == 1:
            order = reshape(writer, order, (self.frames,))
            return writer.node("Gather", x, order, shape=shape, dtype=dtype_of(x), axis=0)
        order = reshape(writer, order, (self.frames, *[1] * (len(shape) - 3), shape_of(order)[1], 1))
        order = broadcast(writer, order, shape)
        return writer.node("GatherElements", x, order, shape=shape, dtype=dtype_of(x), axis=0)
