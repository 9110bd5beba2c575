"""Frames that exist, in each row of a batch: moved to the front in their order, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxrnn.lowering.lowering import Lowering
from jaxrnn.lowering.movement import broadcast, reshape
from jaxrnn.lowering.rules.elementwise import cast, elements
from jaxrnn.lowering.rules.reduction import reduced
from jaxrnn.lowering.writer import Operand, dtype_of, shape_of


@dataclass(frozen=True)
class Existing:
    """Which frames exist.

    Attributes:
        lowering: what writes them.
        order: the numbers of the frames that exist, then those of the others, ``int64[time, rows]``; one row stands for
            all.
        count: how many exist, ``int32[rows]``.
    """

    lowering: Lowering
    order: Operand
    count: Operand

    @classmethod
    def of(cls, lowering: Lowering, exists: Operand) -> Existing:
        """Those of a mask ``bool[time, rows]``."""
        frames = shape_of(exists)[0]
        numbers = np.arange(frames, dtype=np.int64)[:, None]
        if isinstance(exists, np.ndarray):
            return cls(lowering, np.argsort(~exists, 0, kind="stable"), exists.sum(0, dtype=np.int32))
        count = reduced(lowering.writer, "ReduceSum", cast(lowering, exists, np.int32), [0])
        places = elements(lowering, "Where", exists, numbers, numbers + frames, dtype=np.int64)
        return cls(lowering, _sorting(lowering, places), count)

    def lengths(self, batch: int) -> Operand:
        """The number of frames in each row of a batch."""
        return broadcast(self.lowering.writer, self.count, (batch,))

    @property
    def some(self) -> Operand:
        """Whether a row has frames, ``bool[rows, 1]``."""
        some = elements(self.lowering, "Greater", self.count, np.zeros((), np.int32), dtype=bool)
        return reshape(self.lowering.writer, some, (*shape_of(some), 1))

    def to_front(self, x: Operand) -> Operand:
        """Frames ``[time, ..., rows, features]``, those that exist first."""
        return self._moved(x, self.order)

    def back(self, x: Operand) -> Operand:
        """Frames where they were."""
        return self._moved(x, _sorting(self.lowering, self.order))

    def _moved(self, x: Operand, order: Operand) -> Operand:
        writer, shape = self.lowering.writer, shape_of(x)
        frames, rows = shape_of(order)
        if isinstance(order, np.ndarray) and (order == np.arange(frames)[:, None]).all():
            return x
        if rows == 1:
            order = reshape(writer, order, (frames,))
            return writer.node("Gather", x, order, shape=shape, dtype=dtype_of(x), axis=0)
        order = broadcast(writer, reshape(writer, order, (frames, *[1] * (len(shape) - 3), rows, 1)), shape)
        return writer.node("GatherElements", x, order, shape=shape, dtype=dtype_of(x), axis=0)


def _sorting(lowering: Lowering, numbers: Operand) -> Operand:
    """The order that sorts different numbers ``int64[time, rows]`` along time."""
    if isinstance(numbers, np.ndarray):
        return np.argsort(numbers, 0)
    shape = shape_of(numbers)
    results = [(shape, np.int64), (shape, np.int64)]
    inputs = numbers, np.array(shape[:1], np.int64)
    return lowering.writer.nodes_of("TopK", inputs, results, axis=0, largest=0)[1]
