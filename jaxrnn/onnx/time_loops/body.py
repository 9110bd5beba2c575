"""Analysis of the body of a Loop: how carried values change, and which nodes can move out of subgraphs.

Converters write recurrent layers as Loops. The bodies count frames, pass constants on, and collect outputs in a
sequence or a growing tensor. Only the remaining values are the carry of a recurrence.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxrnn.onnx.evaluate import Block, BoundNode, origin, reads_of
from jaxrnn.onnx.registry import Movement, Traits

#: Narrower integers may wrap around.
_LEAST_BYTES = 4

#: How a value changes between trips: not at all; by a constant amount, if it is a number; in any other way.
FIXED, STEADY, FREE = "fixed", "steady", "free"


@dataclass(frozen=True)
class Growth:
    """A carried value that only grows."""

    value: ir.Value  # the part that each trip appends
    axis: int | None  # the axis of the concatenation; None for a sequence
    front: bool  # whether the value grows at its beginning, so that the last trip comes first


class LoopBody:
    """The body of a Loop, with carried values sorted by how they change.

    Slots are the carried values as inputs of the body. ``fixed`` are the numbers of the slots that never change,
    ``counters`` maps slots to the integer that each trip adds, ``growing`` maps slots to growth, and ``carried`` are
    the numbers of all other slots: the carry of a recurrence.
    """

    def __init__(self, block: Block, known: Callable[[ir.Value], np.ndarray | None], start: Sequence[Any]):
        """Sort the carried values."""
        self.block, self._known = block, known
        self.trip, self.condition, *slots = block.inputs
        self.slots = tuple(slots)
        self.makers = block.makers()
        results = [self.origin(value) for value in block.outputs[1 : 1 + len(slots)]]
        self.fixed = tuple(i for i, (slot, end) in enumerate(zip(slots, results, strict=True)) if end is slot)
        self.growing: dict[int, Growth] = {}
        self.counters: dict[int, np.ndarray] = {}
        for place, (slot, end) in enumerate(zip(slots, results, strict=True)):
            if place in self.fixed:
                continue
            growth = self._growth(slot, end)
            step = None if start[place] is None else self._step(slot, end)
            if growth is not None:
                self.growing[place] = growth
            elif step is not None and _is_integer(start[place]):
                self.counters[place] = step
        sorted_out = {*self.fixed, *self.growing, *self.counters}
        self.carried = tuple(place for place in range(len(slots)) if place not in sorted_out)
        # A cache of the instance: a cache of the class would keep every loop alive.
        self.change = functools.cache(self._change)

    def origin(self, value: ir.Value) -> ir.Value:
        """Follow Identity nodes of the body back to the value that they copy."""
        return origin(value, self.makers)

    def _change(self, value: ir.Value) -> str:
        """Return how a value changes from trip to trip: `FIXED`, `STEADY` or `FREE`."""
        if value is self.trip:
            return STEADY
        if value is self.condition:
            return FIXED  # a body runs only while the condition is true
        if value in self.slots:
            place = self.slots.index(value)
            return FIXED if place in self.fixed else STEADY if place in self.counters else FREE
        maker = self.makers.get(value)
        if maker is None:
            return FIXED
        return _combined(maker, [FIXED if key is None else self.change(key) for key in _all_reads(maker)])

    def constant(self, value: ir.Value) -> np.ndarray | None:
        """Return the array of a constant that the body reads, or None if it is not known while tracing."""
        value = self.origin(value)
        if value in self.block.constants:
            return self.block.constants[value]
        return None if value in self.makers or value in self.block.inputs else self._known(value)

    def _step(self, slot: ir.Value, end: ir.Value) -> np.ndarray | None:
        maker = self.makers.get(end)
        is_sum, is_difference = maker is not None and maker.applies("Add"), maker is not None and maker.applies("Sub")
        if maker is None or not (is_sum or is_difference):
            return None
        first, second = maker.inputs
        if first is None or second is None:
            return None
        if is_sum and self.origin(second) is slot:
            first, second = second, first
        step = self.constant(second)
        if self.origin(first) is not slot or step is None or not _is_integer(step) or step.size != 1:
            return None
        return -step if is_difference else step

    def _growth(self, slot: ir.Value, end: ir.Value) -> Growth | None:
        maker = self.makers.get(end)
        if maker is None or self._uses(slot) != 1 or self._uses(end) != 1:
            return None
        if maker.applies("Concat") and len(maker.inputs) == 2:
            first, second = maker.inputs
            if first is slot and second is not None and second is not slot:
                return Growth(second, maker.attributes["axis"], front=False)
            if second is slot and first is not None:
                return Growth(first, maker.attributes["axis"], front=True)
        if maker.applies("SequenceInsert"):
            sequence, value, *position = maker.inputs
            if sequence is not slot or value is None:
                return None
            if not position or position[0] is None:
                return Growth(value, None, front=False)
            place = self.constant(position[0])
            if place is not None and place.size == 1 and int(place.reshape(())) == 0:
                return Growth(value, None, front=True)
        return None

    @functools.cached_property
    def _counts(self) -> dict[ir.Value, int]:
        counts: dict[ir.Value, int] = {}
        for value in (*self.block.outputs, *(key for node in self.block.nodes for key in reads_of(node))):
            counts[value] = counts.get(value, 0) + 1
        return counts

    def _uses(self, value: ir.Value) -> int:
        return self._counts.get(value, 0)


def _all_reads(node: BoundNode) -> list[ir.Value | None]:
    return [*node.inputs, *(key for key in reads_of(node) if key not in node.inputs)]


def _combined(node: BoundNode, changes: Sequence[str]) -> str:
    traits = node.operator.traits
    if all(change == FIXED for change in changes):
        return FREE if traits.random else FIXED
    if FREE in changes or node.blocks:
        return FREE
    linear = traits.linear == "all" or traits.moves is Movement.JOINS
    linear_in_first = traits.moves_first and STEADY not in changes[1:]
    linear_in_one = traits.linear == "each" and changes.count(STEADY) == 1
    return STEADY if linear or linear_in_first or linear_in_one else FREE


def _is_integer(array: Any) -> bool:
    if not isinstance(array, np.ndarray):
        return False
    return array.dtype == object or (array.dtype.kind in "iu" and array.dtype.itemsize >= _LEAST_BYTES)


def _is_light(traits: Traits) -> bool:
    """Return True if an unused result costs little: moved elements, sizes, or sums for an index."""
    moves = traits.moves in (Movement.REARRANGES, Movement.CASTS, Movement.PICKS)
    return moves or traits.of_shape or traits.linear == "all"


def hoist_reads(block: Block, is_fixed: Callable[[ir.Value], bool]) -> Block:
    """Move cheap nodes out of subgraphs if they do not depend on other nodes of the subgraph."""
    nodes: list[BoundNode] = []
    constants, parameters = dict(block.constants), dict(block.parameters)
    for node in block.nodes:
        condition = node.inputs[0] if node.applies("If") else None
        if not node.blocks or (condition is not None and is_fixed(condition)):
            nodes.append(node)
            continue
        attributes = dict(node.attributes)
        for key, value in node.attributes.items():
            if not isinstance(value, Block):
                continue
            inner = hoist_reads(value, is_fixed)
            local: set[ir.Value] = set(inner.inputs)
            remaining = []
            for each in inner.nodes:
                light = _is_light(each.operator.traits) and not each.blocks
                if light and local.isdisjoint(reads_of(each)):
                    nodes.append(each)
                else:
                    remaining.append(each)
                    local.update(each.outputs)
            constants |= inner.constants
            parameters |= inner.parameters
            attributes[key] = dataclasses.replace(inner, nodes=remaining)
        nodes.append(dataclasses.replace(node, attributes=attributes))
    return dataclasses.replace(block, nodes=nodes, constants=constants, parameters=parameters)
