"""Where each element of a value comes from, as codes, and the arithmetic of codes.

For every value and every *source* (a graph input that may be state) there is an integer array of the value's shape, its
*codes*. A code tells from which element of the source an element came, and how:

- 0: it does not depend on the source;
- `DENSE`: it depends on many elements of the source, or on no single one;
- ``position * STEP + grade``, with positions from 1: it came from that one element, in the way that the grade names.

What moves elements (`jaxrnn.jaxprs.moves`) moves their codes. Arithmetic on elements combines them by the tables below.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Codes = np.ndarray

#: How an element came from one element of a source, the most direct last.
OTHER, SCALED, GATED, SUMMED, MIXED, EXPOSED, SQUASHED, RETAINED, WRITTEN, SHOWN, UPDATED, COPY = range(1, 13)
# COPY      only moved
# UPDATED   through a recurrence, from its initial to its final value, and otherwise only moved
# SHOWN     the same, but read from the recurrence's sequence of outputs at its last step
# WRITTEN   kept, unless this step overwrites it at a place that depends on data
# RETAINED  kept in part and added to, as in an average or the cell of an LSTM; or an integer counted up
# SQUASHED  retained or summed, then through a function of one argument
# EXPOSED   that, then multiplied, as the hidden state of an LSTM comes from its cell
# SUMMED    added to, but kept as a whole: an integral, or a residual connection
# MIXED     summed, then multiplied
# GATED     multiplied
# SCALED    a recurrence's final value after arithmetic with constants
# OTHER     any other arithmetic, element by element

STEP = 16
DENSE = OTHER  # position 0

#: The kinds of primitives on elements; every other one is "other". Two kinds more are "count", adding to integers, and
#: "write", replacing elements at places that depend on data.
KINDS = {
    "add": "add",
    "add_any": "add",
    "sub": "add",
    "mul": "multiply",
    "div": "multiply",
    "neg": "multiply",
    "select_n": "select",
    "max": "keep",
    "min": "keep",
    "clamp": "keep",
    "rem": "keep",
}


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

#: By kind: the new grade of an element where the other operands do not depend on the source.
_ALONE = {
    "add": _table(_ADDED),
    "multiply": _table(_MULTIPLIED),
    "select": _table(_ADDED | _SELECTED),
    "keep": _table(_ADDED | {SQUASHED: SQUASHED}),
    "write": _table(dict.fromkeys(_ADDED, RETAINED) | {COPY: WRITTEN, WRITTEN: WRITTEN} | _SELECTED),
    "count": _table(dict.fromkeys((COPY, SUMMED, RETAINED), RETAINED)),
    "other": _table(_SQUASHED),
}
#: The same where the other operands depend on no input.
_ALONE_WITH_CONSTANTS = _ALONE | {
    "add": _table(_OFFSET | _CONSTANT),
    "multiply": _table(_MULTIPLIED | _CONSTANT),
    "select": _table(_OFFSET | _SELECTED | {COPY: GATED, SUMMED: MIXED}),
    "keep": _table(_OFFSET | {COPY: OTHER, SQUASHED: SQUASHED}),
}


def _together() -> dict[str, np.ndarray]:
    """By kind: the new grade where both operands came from the same element."""
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
    """The codes of a source itself: every element is a copy of itself."""
    count = int(np.prod(shape, dtype=np.int64))
    return ((np.arange(count, dtype=np.int64) + 1) * STEP + COPY).reshape(tuple(shape))


def positions(codes: Codes) -> np.ndarray:
    """The position in the source, from 0; -1 where there is no single one."""
    return codes // STEP - 1


def grades(codes: Codes) -> np.ndarray:
    """The grade where there is a single position; 0 elsewhere."""
    return np.where(codes >= STEP, codes % STEP, 0)


def dense(codes: Codes) -> Codes:
    """Drop the positions: every dependence becomes `DENSE`."""
    return np.minimum(codes, DENSE)


def carried(codes: Codes) -> Codes:
    """From the initial value of a recurrence to its final one: elements keep their positions."""
    return np.where(codes >= STEP, codes // STEP * STEP + UPDATED, codes)


def shown(codes: Codes) -> Codes:
    """The final value of a recurrence, read from its last output."""
    return np.where(codes % STEP == UPDATED, codes - UPDATED + SHOWN, codes)


def alone(kind: str, codes: Codes, with_constants: bool) -> Codes:
    """The codes after element-wise arithmetic with operands that do not depend on the source."""
    table = (_ALONE_WITH_CONSTANTS if with_constants else _ALONE)[kind]
    return np.where(codes >= STEP, codes - codes % STEP + table[codes % STEP], codes)


def combine(kind: str, first: Codes, second: Codes) -> Codes:
    """The codes after element-wise arithmetic on two operands that both depend on the source."""
    single, double = first >= STEP, second >= STEP
    same = single & double & (first // STEP == second // STEP)
    together = first - first % STEP + _TOGETHER[kind][first % STEP, second % STEP]
    lone = np.where(single, alone(kind, first, False), alone(kind, second, False))
    spread = np.where(single & double, DENSE, np.maximum(dense(first), dense(second)))
    return np.where(same, together, np.where(single ^ double, lone, spread))
