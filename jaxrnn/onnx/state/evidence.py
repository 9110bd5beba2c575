"""What speaks for an output being the updated value of an input: the flow of elements, and names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxrnn.onnx.state import names
from jaxrnn.onnx.state.flows import DataFlow, Flow
from jaxrnn.onnx.state.provenance import (
    COPY,
    DENSE,
    EXPOSED,
    GATED,
    MIXED,
    RETAINED,
    SCALED,
    SHOWN,
    SQUASHED,
    SUMMED,
    UPDATED,
    grades,
    positions,
)

#: Kinds of evidence, the strongest last; `SUSPECT` ones are no pairs, but too near one to be passed over in silence.
SUSPECT, NAMED, CELL, KEPT, LAST_OUTPUT, BUFFER, CARRIED, GROWN = range(8)


@dataclass(frozen=True)
class Edge:
    """One possible pair, and what speaks for it.

    Attributes:
        source: the input.
        output: the output.
        rank: the kind of evidence.
        closeness: share of the elements that it holds for, and how far (negative) they were moved.
        why: for `SUSPECT`, what is wrong with it.
        joins: the nodes that join an old buffer to new elements.
    """

    source: str
    output: str
    rank: int
    closeness: tuple[float, float] = (0, 0)
    why: str = ""
    joins: tuple[str, ...] = ()

    @property
    def affinity(self) -> int:
        """2 if the names say the same but for their direction, 1 if they also differ in numbers, else 0."""
        return names.affinity(self.source, self.output)


def find_edge(flow: DataFlow, source: str, output: str) -> Edge | None:
    """What speaks for an output being the updated value of an input of the same shape and dtype."""
    target = flow.outputs[output]
    if 0 in (target.shape or ()):
        return None  # what has no elements keeps nothing
    if target.ids is None or not target.deps:
        return _named(source, output)  # perhaps a flag that every step sets
    codes = target.codes.get(source, np.zeros(target.shape or (), np.int64)).ravel()
    edge = _by_flow(flow, source, output, codes)
    if edge is not None:
        return edge
    # A value that a step replaces, such as attention weights or the last input, owes nothing to the old one.
    named = _named(source, output)
    return named if named is not None and may_be_state(flow, named) else None


def _named(source: str, output: str) -> Edge | None:
    """The evidence that lies in names alone."""
    edge = Edge(source, output, NAMED)
    return edge if edge.affinity == 2 and not names.says_data(source) else None


def find_growth(flow: DataFlow, source: str, output: str) -> Edge | None:
    """Whether an output is an input with more at its end or its beginning, as a cache of keys that grows."""
    given, target = flow.inputs[source], flow.outputs[output]
    if given.shape is None or target.shape is None or len(given.shape) != len(target.shape) or 0 in given.shape:
        return None
    longer = [new > old for old, new in zip(given.shape, target.shape, strict=True)]
    codes = target.codes.get(source)
    if sum(longer) != 1 or any(new < old for old, new in zip(given.shape, target.shape, strict=True)) or codes is None:
        return None
    whole = np.sort(positions(codes[grades(codes) == COPY]))
    kept = np.array_equal(whole, np.arange(np.prod(given.shape)))
    return Edge(source, output, GROWN) if kept and not names.says_data(source) else None


def may_be_state(flow: DataFlow, edge: Edge) -> bool:
    """Whether an output could be an updated value: it depends on data, and is more than the input with a mask."""
    target = flow.outputs[edge.output]
    if target.ids is None or not target.deps or 0 in (target.shape or ()):
        return False
    codes = target.codes.get(edge.source, np.zeros(target.shape or (), np.int64)).ravel()
    masked = (positions(codes) == np.arange(codes.size)) & np.isin(grades(codes), (COPY, GATED))
    return not masked.all()


def _by_flow(flow: DataFlow, source: str, output: str, codes: np.ndarray) -> Edge | None:
    """The evidence that lies in where the elements went."""
    target = flow.outputs[output]
    place, grade = positions(codes), grades(codes)
    own = place == np.arange(codes.size)
    copied = own & (grade == COPY)
    carried = own & (grade == UPDATED)
    misplaced = ~own & (grade == UPDATED)
    if misplaced.any():
        why = "holds final values of the recurrence that it starts, but not at the places where it is read"
        return Edge(source, output, SUSPECT, why=why) if (misplaced | carried).all() else None
    scaled = own & (grade == SCALED)
    if scaled.any() and (scaled | carried).all():
        why = "holds final values of the recurrence that it starts, but after arithmetic with constants"
        return Edge(source, output, SUSPECT, why=why)
    if carried.any():
        return Edge(source, output, CARRIED, (float(carried.mean()), 0))
    linked, distance, joins = _joined(flow, source, target)
    moved_on = _moved_on(codes, target)
    if linked.any() or (moved_on.any() and target.deps - {source}):
        share = float((linked | moved_on | copied).mean())
        return Edge(source, output, BUFFER, (share, -distance), joins=joins)
    if not codes.any():
        return _held(flow, source, output)
    if (own & (grade == SHOWN)).any():
        return Edge(source, output, LAST_OUTPUT)
    return None if copied.all() else _computed(flow, source, output, codes)


def _computed(flow: DataFlow, source: str, output: str, codes: np.ndarray) -> Edge | None:
    """Evidence from arithmetic alone: what a model does to its state, it may as well do to its data.

    So something must speak for a state besides: its name, that another output is computed from the updated value, or
    that it is a counter. A sum that keeps the input as a whole is most often a residual connection: only its name can
    tell that it is a state.
    """
    target = flow.outputs[output]
    edge = Edge(source, output, KEPT)
    place, grade = positions(codes), grades(codes)
    own = place == np.arange(codes.size)
    used = any(flow.derived(other, output) for other in flow.outputs if other != output)
    counts = target.dtype is not None and np.dtype(target.dtype).kind in "iu"
    retained = own & (grade == RETAINED)
    if retained.any() and (retained | (codes == 0)).all():
        return edge if edge.affinity or used or counts else None  # the rest is replaced
    if (codes >= DENSE).all():
        if retained.any():
            return edge if edge.affinity or used or counts else None
        if (own & ((grade == SUMMED) | (grade == MIXED))).any():
            return edge if edge.affinity else None
    squashed = own & (grade == SQUASHED)
    if not ((codes == DENSE) | squashed).all() or not target.deps - {source}:
        return None
    hidden = any(
        (positions(other.ravel()) == np.arange(codes.size)).all() and (grades(other) == EXPOSED).all()
        for name, other in target.codes.items()
        if name != source
    )
    one_product = squashed.all() or target.depth[source] == 1
    return Edge(source, output, CELL) if one_product and (edge.affinity or used or hidden) else None


def _moved_on(codes: np.ndarray, target: Flow) -> np.ndarray:
    """Where the target holds elements of the source from a fixed distance away, as they were or added to."""
    place, grade = positions(codes), grades(codes)
    old = np.flatnonzero(((grade == COPY) | (grade == RETAINED) | (grade == SUMMED)) & (place != np.arange(codes.size)))
    mask = np.zeros(codes.size, bool)
    if 0 < old.size < codes.size:
        shape = target.shape or ()
        apart = np.subtract(np.unravel_index(place[old], shape), np.unravel_index(old, shape))
        mask[old] = (apart == apart[:, :1]).all()
    return mask


def _held(flow: DataFlow, source: str, output: str) -> Edge | None:
    """An output that is another input as it came, such as the previous sample: only a name can tell whose."""
    ids = flow.outputs[output].ids
    others = [other.ids for name, other in flow.inputs.items() if name != source and other.ids is not None]
    edge = Edge(source, output, CELL)
    used = any(source in other.deps for other in flow.outputs.values())
    whole = ids is not None and any(bool(np.isin(ids, other).all()) for other in others)
    return edge if used and whole and edge.affinity else None


def _joined(flow: DataFlow, source: str, target: Flow) -> tuple[np.ndarray, float, tuple[str, ...]]:
    """Where the target holds what lies a fixed distance further along an array that joins the source to new elements.

    Returns:
        A mask over the target's elements, the distance, and the joining nodes.
    """
    assert target.ids is not None
    wanted = target.ids.ravel()
    mask, distance, labels = np.zeros(wanted.size, bool), 0.0, []
    for label, join in flow.joins:
        if source not in join.codes or join.ids is None or join.shape is None:
            continue
        codes, ids = join.codes[source].ravel(), join.ids.ravel()
        copies = np.flatnonzero(grades(codes) == COPY)
        if copies.size in (0, ids.size):
            continue
        read_at = np.full(wanted.size, -1)
        read_at[positions(codes)[copies]] = copies
        order = np.argsort(ids, kind="stable")
        found = order[np.minimum(np.searchsorted(ids[order], wanted), ids.size - 1)]
        here = (ids[found] == wanted) & (wanted > 0) & (read_at >= 0)
        if not here.any():
            continue
        apart = np.subtract(np.unravel_index(found[here], join.shape), np.unravel_index(read_at[here], join.shape))
        step = apart[:, :1]
        if (apart == step).all() and np.count_nonzero(step) == 1:
            mask |= here
            distance = max(distance, float(np.abs(step).sum()))
            labels.append(label)
    return mask, distance, tuple(labels)
