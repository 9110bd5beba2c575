"""The body of a Loop: how carried values change, the positions of counters in any trip, and the number of trips.

Converters write recurrent layers as Loops. The bodies count frames, pass constants on, and collect outputs in a
sequence or a growing tensor. Only the remaining values are the carry of a recurrence. A counter changes by the same
amount in each trip. The first two trips, evaluated on NumPy arrays, determine the counter in all trips. The number of
trips is the solution of the loop's condition.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from jax.core import max_dim, min_dim

from jaxrnn.errors import JaxrnnError, LimitError
from jaxrnn.onnx import symbols
from jaxrnn.onnx.evaluate import Block, BoundNode, Subgraph, copied_from, reads_of
from jaxrnn.onnx.registry import Movement, Traits
from jaxrnn.onnx.values import Value, is_known, is_static

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

    def __init__(
        self,
        block: Block,
        known: Callable[[ir.Value], np.ndarray | None],
        start: Sequence[Any],
        is_exact: Callable[[BoundNode], bool],
    ):
        """Sort the carried values; ``is_exact`` returns True for a cast that keeps all values of a steady input."""
        self.block, self._known, self._is_exact = block, known, is_exact
        self.trip, self.condition, *slots = block.inputs
        self.slots = tuple(slots)
        self.makers = block.makers()
        results = [self.copied_from(value) for value in block.outputs[1 : 1 + len(slots)]]
        self.fixed = tuple(i for i, (slot, end) in enumerate(zip(slots, results, strict=True)) if end is slot)
        self.growing: dict[int, Growth] = {}
        self.counters: dict[int, np.ndarray] = {}
        for place, (slot, end) in enumerate(zip(slots, results, strict=True)):
            if place in self.fixed:
                continue
            growth = self._growth(slot, end)
            step = None if start[place] is None else self._step(slot, end, np.shape(start[place]))
            if growth is not None:
                self.growing[place] = growth
            elif step is not None and _is_integer(start[place]):
                self.counters[place] = step
        sorted_out = {*self.fixed, *self.growing, *self.counters}
        self.carried = tuple(place for place in range(len(slots)) if place not in sorted_out)
        # A cache of the instance: a cache of the class would keep all loops alive.
        self.change = functools.cache(self._change)

    def copied_from(self, value: ir.Value) -> ir.Value:
        """Follow Identity nodes of the body back to the value that they copy."""
        return copied_from(value, self.makers)

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
        reads = [*maker.inputs, *(key for key in reads_of(maker) if key not in maker.inputs)]
        changes = [FIXED if key is None else self.change(key) for key in reads]
        traits = maker.operator.traits
        if all(change == FIXED for change in changes):
            return FREE if traits.random else FIXED
        if FREE in changes or maker.blocks:
            return FREE
        linear = traits.linear == "all" or traits.moves is Movement.JOINS
        linear_in_first = traits.moves_first and STEADY not in changes[1:]
        if linear_in_first and traits.moves is Movement.CASTS:
            linear_in_first = self._is_exact(maker)
        linear_in_one = traits.linear == "each" and changes.count(STEADY) == 1
        return STEADY if linear or linear_in_first or linear_in_one else FREE

    def constant(self, value: ir.Value) -> np.ndarray | None:
        """Return the array of a constant that the body reads, or None if the value is not static."""
        value = self.copied_from(value)
        if value in self.block.constants:
            return self.block.constants[value]
        return None if value in self.makers or value in self.block.inputs else self._known(value)

    def _step(self, slot: ir.Value, end: ir.Value, shape: tuple[int, ...]) -> np.ndarray | None:
        maker = self.makers.get(end)
        is_sum, is_difference = maker is not None and maker.applies("Add"), maker is not None and maker.applies("Sub")
        if maker is None or not (is_sum or is_difference):
            return None
        first, second = maker.inputs
        if first is None or second is None:
            return None
        if is_sum and self.copied_from(second) is slot:
            first, second = second, first
        step = self.constant(second)
        if self.copied_from(first) is not slot or step is None or not _is_integer(step) or step.size != 1:
            return None
        if step.ndim > len(shape):  # the second trip would have another shape
            return None
        return -step if is_difference else step

    def _growth(self, slot: ir.Value, end: ir.Value) -> Growth | None:
        maker = self.makers.get(end)
        if maker is None or self._uses[slot] != 1 or self._uses[end] != 1:
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
    def _uses(self) -> Counter[ir.Value]:
        """The number of uses of each value."""
        return Counter([*self.block.outputs, *(key for node in self.block.nodes for key in reads_of(node))])


def _is_integer(array: Any) -> bool:
    """Return True for integers that do not wrap around; unsigned integers do below 0."""
    if not isinstance(array, np.ndarray):
        return False
    return array.dtype == object or (array.dtype.kind == "i" and array.dtype.itemsize >= _LEAST_BYTES)


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


@dataclass(frozen=True)
class Progression:
    """An integer that changes by the same amount in each trip: ``first + slope * trip``."""

    first: Any
    slope: int

    def ends(self, trips: Any) -> tuple[Any, Any]:
        """Return the lowest and the highest integer in this number of trips."""
        last = self.first + self.slope * (trips - 1)
        return (self.first, last) if self.slope > 0 else (last, self.first)


#: Limits from here on exceed all lengths, and count as no limit.
_HUGE = 2**31
#: By `Traits.compares`: whether the operands are swapped, and whether they may be equal.
_ORDERED = {"<": (False, False), "<=": (False, True), ">": (True, False), ">=": (True, True)}


class Positions:
    """The values of a loop's body in any trip, and the number of trips, if known while tracing.

    The condition of a loop is a list of claims that lines are below zero; a next trip follows if all claims are true.
    """

    def __init__(self, body: Subgraph, carried: Sequence[Value]):
        self.graph, self.carried = body, tuple(carried)
        # A cache of the instance: a cache of the class would keep all loops and their tracers alive.
        self.known = functools.cache(self._known)
        start = [value if is_static(value) else None for value in carried]
        self.body = LoopBody(body.block, self._outside, start, self._is_exact)
        if any(node.blocks for node in body.block.nodes):
            block = hoist_reads(body.block, lambda key: self.body.change(key) == FIXED)
            self.body = LoopBody(block, self._outside, start, self._is_exact)

    def _outside(self, key: ir.Value) -> np.ndarray | None:
        """Return a value of the enclosing graphs, or None if the value is not computed yet or not static."""
        try:
            value = self.graph.outer[key]
        except KeyError:
            return None
        return value if is_static(value) else None

    def _is_exact(self, cast: BoundNode) -> bool:
        """Return True if a cast keeps the values of the input in all trips: a cast to integers keeps whole numbers."""
        source = cast.inputs[0]
        before = None if source is None else self.known(source, 0)
        after = self.evaluate(cast.outputs[0], 0)
        if before is None or not is_static(after):
            return False
        if _is_integer(after):
            return _is_integer(before) or self.lines(source) is not None
        return after.dtype.kind == "f" and after.dtype.itemsize >= _LEAST_BYTES

    def evaluate(self, key: ir.Value, trip: int) -> Value:
        """Return the value in a trip, from fixed values and counters, or None if the value depends on more."""
        body = self.body
        slots = dict(enumerate(self.carried))
        for place, step in body.counters.items():
            slots[place] = self.carried[place] + step.reshape(()) * trip
        part = Subgraph(body.block.part(body.block.inputs, [key]), self.graph.outer)
        try:
            (value,) = part(np.asarray(trip, np.int64), np.asarray(True), *slots.values())
        except LimitError:
            raise
        except JaxrnnError:
            return None
        return value

    def _known(self, key: ir.Value, trip: int) -> np.ndarray | None:
        """Return a value in a trip, or None if the value is not static."""
        if self.body.change(key) == FREE:
            return None
        value = self.evaluate(key, trip)
        return value if is_static(value) else None

    def lines(self, key: ir.Value | None) -> tuple[Progression, ...] | None:
        """Return the elements of a value as lines, or None if unknown."""
        first, second = (None, None) if key is None else (self.known(key, 0), self.known(key, 1))
        if first is None or second is None or first.shape != second.shape:
            return None
        if not symbols.are_whole(first) or not symbols.are_whole(second):
            return None
        lines = []
        for before, after in zip(first.reshape(-1).tolist(), second.reshape(-1).tolist(), strict=True):
            slope = symbols.size_of(after) - symbols.size_of(before)
            if not isinstance(slope, int):
                return None
            lines.append(Progression(symbols.size_of(before), slope))
        return tuple(lines)

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
            return bounds[0]  # the condition after the last trip does not matter
        claims = self._claims(self.body.block.outputs[0])
        if claims is None:
            return None
        # A claim that is true in all trips sets no bound.
        always = [line.slope <= 0 and symbols.less(line.first, 0, or_equal=False) is True for line in claims]
        counts = [_count(line) for line, is_true in zip(claims, always, strict=True) if not is_true]
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

    def _claims(self, key: ir.Value) -> list[Progression] | None:
        """Return the lines that must be below zero after a trip for a next trip, or None if unknown."""
        body = self.body
        key = body.copied_from(key)
        if key is body.condition:
            return []
        if body.change(key) == FIXED:
            value = self.known(key, 0)
            if value is None or value.size != 1:
                return None
            item = value.reshape(()).item()
            if isinstance(item, symbols.Claim):
                return [Progression(difference, 0) for difference in item.below_zero]
            return [] if item else [Progression(0, 0)]
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
            inner = body.makers.get(body.copied_from(inputs[0]))
            return None if inner is None else self._compared(inner, negated=True)
        return self._compared(maker, negated=False)

    def _compared(self, node: BoundNode, *, negated: bool) -> list[Progression] | None:
        if node.operator.traits.compares not in _ORDERED:
            return None
        first, second = (self.lines(key) for key in node.inputs)
        if first is None or second is None or len(first) != 1 or len(second) != 1:
            return None
        swapped, or_equal = _ORDERED[node.operator.traits.compares]
        if swapped != negated:
            first, second = second, first
        ((a,), (b,)) = first, second
        return [Progression(a.first - b.first - (or_equal != negated), a.slope - b.slope)]


def stays_inside(line: Progression, size: Any, trips: Any) -> bool:
    """Return True if a position moves, and is inside an axis in all trips for all lengths."""
    low, high = line.ends(trips)
    return (
        line.slope != 0
        and symbols.less(0, low, or_equal=True) is True
        and symbols.less(high, size, or_equal=False) is True
    )


def _as_numpy(value: Value) -> Value:
    """Convert a value to a NumPy array if Python can read it."""
    return np.asarray(value) if value is not None and not is_static(value) and is_known(value) else value


def _equal(first: Any, second: Any) -> bool:
    return str(first - second) == "0"


def _count(line: Progression) -> Any:
    """Return the trips that a claim allows if true before the first trip; None if the loop may never end."""
    before = line.first - line.slope
    if line.slope > 0:
        return -(before // line.slope)
    ends = symbols.less(line.first, 0, or_equal=False) is False
    return 0 if ends else None


def _least(first: Any, second: Any) -> Any:
    return first if _equal(first, second) else min_dim(first, second)
