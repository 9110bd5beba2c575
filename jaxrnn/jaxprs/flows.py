"""Codes for the origins of elements, and the rules by which elementwise arithmetic combines codes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxrnn.jaxprs.primitives import Entry


@dataclass
class Flow:
    """The facts about a value."""

    shape: tuple[int, ...] | None  # the sizes; None if unknown
    dtype: Any
    value: Any = None  # the array itself, if it is known
    #: the identity of each element, which moves preserve; 0 for constants. None if no input is read.
    ids: np.ndarray | None = None
    #: for each source, the origin of each element; see `source_codes`
    codes: dict[str, np.ndarray] = field(default_factory=dict)
    #: for each source, the least number of contractions between source and value
    depth: dict[str, int] = field(default_factory=dict)
    deps: frozenset[str] = frozenset()  # the inputs that affect the value
    ancestors: int = 0  # a bit mask of the `producers` from which the value was computed
    #: the label of a node, and the only value from which the node computes this value elementwise
    argument: tuple[str, Flow] | None = None


@dataclass(frozen=True)
class Site:
    """A carry of a recurrence: its initial value, and whether a later call could continue the recurrence."""

    label: str
    operator: str
    slot: str
    length: int | None
    forward: bool
    initial: Flow | None
    final: Flow


@dataclass(frozen=True)
class Lost:
    """A node that may hold a recurrence and that cannot be followed."""

    label: str
    why: str
    starts: tuple[Flow, ...] | None = None  # the initial values of its carries; None if unknown or absent


@dataclass
class DataFlow:
    """The values, recurrences and joins between the inputs and the outputs of a graph."""

    inputs: dict[str, Flow] = field(default_factory=dict)  # the named inputs
    outputs: dict[str, Flow] = field(default_factory=dict)  # the outputs by name
    sites: list[Site] = field(default_factory=list)  # the carries of recurrences
    joins: list[tuple[str, Flow]] = field(default_factory=list)  # labels and results of concatenations
    #: labels, and the sizes of the axes along which a window or a recurrence slides
    lengths: list[tuple[str, tuple[int | None, ...]]] = field(default_factory=list)
    #: for each group of new elements, in order, the first identity and the labels of the nodes
    producers: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    _of_outputs: dict[str, frozenset[int]] = field(default_factory=dict)  # the `producers` of complete outputs

    def producers_of(self, ids: np.ndarray) -> list[int]:
        """Return the numbers of the `producers` of the elements with these identities."""
        starts = np.array([start for start, _ in self.producers])
        return sorted(set((np.searchsorted(starts, np.unique(ids[ids > 0]), side="right") - 1).tolist()))

    def labels_of(self, ids: np.ndarray) -> list[str]:
        """Return the labels of the nodes that produced the elements with these identities."""
        labels = itertools.chain.from_iterable(self.producers[index][1] for index in self.producers_of(ids))
        return list(dict.fromkeys(labels))

    def derived(self, later: str, earlier: str) -> bool:
        """Return True if an output is computed from elements of a second output."""
        ends, starts = map(self._producers_of_output, (later, earlier))
        return any(self.outputs[later].ancestors >> number & 1 for number in starts - ends)

    def _producers_of_output(self, name: str) -> frozenset[int]:
        if name not in self._of_outputs:
            ids = self.outputs[name].ids
            self._of_outputs[name] = frozenset(() if ids is None else self.producers_of(ids))
        return self._of_outputs[name]


def constant(value: Any) -> Flow:
    """Return the flow of a known value."""
    value = np.asarray(value)
    return Flow(value.shape, value.dtype, value)


def union(flows: Iterable[Flow]) -> Flow:
    """Return a value with the dependencies of all these values."""
    flow = Flow(None, None)
    for item in flows:
        flow.deps, flow.ancestors = flow.deps | item.deps, flow.ancestors | item.ancestors
    return flow


def half_of(flow: Flow, half: tuple[int, int] | None) -> Flow:
    """Return one direction of a bidirectional carry; see `Carried.half`."""
    if half is None:
        return flow
    axis, place = half

    def cut(array: np.ndarray) -> np.ndarray:
        return np.take(array, [place], axis)

    return dataclasses.replace(
        flow,
        shape=tuple(1 if index == axis else size for index, size in enumerate(flow.shape or ())),
        value=None if flow.value is None else cut(flow.value),
        ids=None if flow.ids is None else cut(flow.ids),
        codes={name: cut(codes) for name, codes in flow.codes.items()},
    )


def carry(final: Flow, start: Flow | None) -> None:
    """Mark the elements of a final value as updates of the elements of the initial value at the same positions.

    An initial value may be a source that is moved, selected, masked or added to. A function of a source, such as Tanh,
    makes it data from which a recurrence starts.
    """
    for name, codes in (start.codes if start is not None else {}).items():
        computed = np.isin(grades(codes), (OTHER, SCALED, SQUASHED, EXPOSED))
        updated = np.where(computed, codes - codes % STEP + OTHER, carried(codes))
        final.codes[name] = np.where(codes >= STEP, updated, final.codes[name])


def combined(
    kind: str, shape: tuple[int, ...], operands: Sequence[Flow], conditions: Sequence[Flow]
) -> dict[str, np.ndarray]:
    """Return the codes of elementwise arithmetic. The result depends densely on the sources of a condition."""
    result = {}
    for name in dict.fromkeys(name for flow in (*operands, *conditions) for name in flow.codes):
        dependent = [flow for flow in operands if name in flow.codes]
        planes = [np.broadcast_to(flow.codes[name], shape) for flow in dependent]
        # A source minus its mean, or plus a function of only the source, is normalised or transformed, not carried on.
        transformed = any(flow.deps == {name} and (flow.codes[name] < STEP).all() for flow in dependent)
        chosen = "other" if transformed and kind in ("add", "count") else kind
        codes = planes[0] if planes else np.zeros(shape, np.int64)
        if len(planes) == 1:
            free = all(not flow.deps for flow in operands if name not in flow.codes)
            codes = alone(chosen, codes, free)
        for plane in planes[1:]:
            codes = combine(chosen, codes, plane)
        for flow in conditions:
            if name in flow.codes:
                # A condition of a different shape selects positions.
                same = flow.shape in (shape, ())
                codes = np.maximum(codes, dense(flow.codes[name]) if same else DENSE)
        result[name] = codes
    return result


def is_all(flow: Flow, number: int) -> bool:
    """Return True if all elements are known to equal this number."""
    return isinstance(flow.value, np.ndarray) and flow.value.dtype.kind in "iuf" and bool(np.all(flow.value == number))


def without_neutral(entry: Entry, operands: Sequence[Flow]) -> Sequence[Flow]:
    """Return the operands without zeros in sums and ones in products; differences and quotients keep the first."""
    neutral = {"add": 0, "multiply": 1}.get(entry.arithmetic)
    if neutral is None:
        return operands
    first = [] if entry.monoid else operands[:1]
    return [*first, *(flow for flow in operands[len(first) :] if not is_all(flow, neutral))]


Codes = np.ndarray

#: Grades: how an element was computed from a single element of a source, the most direct last.
OTHER, SCALED, GATED, SUMMED, MIXED, EXPOSED, SQUASHED, RETAINED, WRITTEN, SHOWN, UPDATED, COPY = range(1, 13)
# COPY      only moved
# UPDATED   through a recurrence, from its initial to its final value, and otherwise only moved
# SHOWN     updated, but read from the last step of the recurrence's outputs
# WRITTEN   kept, unless this step overwrites it at a place that depends on data
# RETAINED  kept in part and added to, as in an average or the cell of an LSTM; or an integer counted up
# SQUASHED  retained or summed, then through a function of one argument
# EXPOSED   squashed, then multiplied, as in the hidden state of an LSTM
# SUMMED    added to, but kept as a whole: an integral, or a residual connection
# MIXED     summed, then multiplied
# GATED     multiplied
# SCALED    a recurrence's final value after arithmetic with constants
# OTHER     any other arithmetic, element by element

STEP = 16
DENSE = OTHER  # position 0

#: The kinds of arithmetic are those of `Entry.arithmetic` without "convert", and also "count", which adds to integers,
#: and "write", which replaces elements at places that depend on data.


def _table(entries: dict[int, int]) -> np.ndarray:
    table = np.full(COPY + 1, OTHER)
    table[0] = 0
    for grade, result in entries.items():
        table[grade] = result
    return table


_ADDED = {COPY: SUMMED, SUMMED: SUMMED, GATED: RETAINED, MIXED: RETAINED, RETAINED: RETAINED, WRITTEN: RETAINED}
_OFFSET = {COPY: SUMMED, SUMMED: SUMMED, GATED: GATED, MIXED: MIXED, RETAINED: RETAINED, WRITTEN: RETAINED}
_MULTIPLIED = {
    COPY: GATED,
    GATED: GATED,
    SUMMED: MIXED,
    MIXED: MIXED,
    RETAINED: RETAINED,
    WRITTEN: RETAINED,
    SQUASHED: EXPOSED,
    EXPOSED: EXPOSED,
}
_SELECTED = {SQUASHED: SQUASHED, SHOWN: SHOWN, UPDATED: UPDATED}
_SQUASHED = dict.fromkeys((RETAINED, SUMMED, SQUASHED), SQUASHED)
_CONSTANT = {UPDATED: SCALED, SCALED: SCALED}

#: By kind: the new grade of an element if the other operands do not depend on the source.
_ALONE = {
    "add": _table(_ADDED),
    "multiply": _table(_MULTIPLIED),
    "select": _table(_ADDED | _SELECTED),
    "keep": _table(_ADDED | {SQUASHED: SQUASHED}),
    "write": _table(dict.fromkeys(_ADDED, RETAINED) | {COPY: WRITTEN, WRITTEN: WRITTEN} | _SELECTED),
    "count": _table(dict.fromkeys((COPY, SUMMED, RETAINED), RETAINED)),
    "other": _table(_SQUASHED),
}
#: The same if the other operands do not depend on any input.
_ALONE_WITH_CONSTANTS = _ALONE | {
    "add": _table(_OFFSET | _CONSTANT),
    "multiply": _table(_MULTIPLIED | _CONSTANT),
    "select": _table(_OFFSET | _SELECTED | {COPY: GATED, SUMMED: MIXED}),
    "keep": _table(_OFFSET | {COPY: OTHER, SQUASHED: SQUASHED}),
}


def _together() -> dict[str, np.ndarray]:
    """Return for each kind the grade of a result if both operands came from the same element."""
    tables = {kind: np.full((COPY + 1, COPY + 1), OTHER) for kind in _ALONE}
    for kind in ("add", "select", "keep", "write"):
        table = tables[kind]
        for first in _ADDED:
            for second in _ADDED:
                pair = {first, second}
                mixed = RETAINED if pair & {MIXED, RETAINED} or pair == {SUMMED, GATED} else SUMMED
                table[first, second] = GATED if pair <= {COPY, GATED} else mixed
    for kind in ("select", "write"):
        table = tables[kind]
        for weaker, *stronger in ((COPY,), (UPDATED, COPY), (SHOWN, UPDATED, COPY)):
            table[weaker, weaker] = weaker
            for grade in stronger:
                table[weaker, grade] = table[grade, weaker] = weaker
    return tables


_TOGETHER = _together()


def source_codes(shape: Sequence[int]) -> Codes:
    """Return the codes of a source: each element is a copy of itself."""
    count = int(np.prod(shape, dtype=np.int64))
    return ((np.arange(count, dtype=np.int64) + 1) * STEP + COPY).reshape(tuple(shape))


def positions(codes: Codes) -> np.ndarray:
    """Return the position in the source, from 0; -1 for elements without a single position."""
    return codes // STEP - 1


def grades(codes: Codes) -> np.ndarray:
    """Return the grade of elements with a single position; 0 for other elements."""
    return np.where(codes >= STEP, codes % STEP, 0)


def dense(codes: Codes) -> Codes:
    """Drop the positions: all dependences become `DENSE`."""
    return np.minimum(codes, DENSE)


def carried(codes: Codes) -> Codes:
    """Convert codes of an initial value to codes of the final value: elements keep their positions."""
    return np.where(codes >= STEP, codes // STEP * STEP + UPDATED, codes)


def shown(codes: Codes) -> Codes:
    """Return the codes of a final value that is read from the last output."""
    return np.where(codes % STEP == UPDATED, codes - UPDATED + SHOWN, codes)


def alone(kind: str, codes: Codes, with_constants: bool) -> Codes:
    """Return the codes after elementwise arithmetic with operands that do not depend on the source."""
    table = (_ALONE_WITH_CONSTANTS if with_constants else _ALONE)[kind]
    return np.where(codes >= STEP, codes - codes % STEP + table[codes % STEP], codes)


def combine(kind: str, first: Codes, second: Codes) -> Codes:
    """Return the codes after elementwise arithmetic on two operands that both depend on the source."""
    single, double = first >= STEP, second >= STEP
    same = single & double & (first // STEP == second // STEP)
    together = first - first % STEP + _TOGETHER[kind][first % STEP, second % STEP]
    lone = np.where(single, alone(kind, first, False), alone(kind, second, False))
    spread = np.where(single & double, DENSE, np.maximum(dense(first), dense(second)))
    return np.where(same, together, np.where(single ^ double, lone, spread))
