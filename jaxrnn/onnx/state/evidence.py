"""The evidence that an output is the updated value of an input: the flow of elements, and names."""

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

#: Kinds of evidence, the strongest last. A `SUSPECT` edge is no pair, but too close to one to be ignored silently.
SUSPECT, NAMED, CELL, KEPT, LAST_OUTPUT, BUFFER, CARRIED, GROWN = range(8)


@dataclass(frozen=True)
class Edge:
    """A possible pair of an input and its updated value.

    Attributes:
        source: the input.
        output: the output.
        rank: the kind of evidence.
        closeness: the share of elements that the evidence holds for, and the negated distance that they were moved.
        why: for `SUSPECT`, why it is no pair; else the reason, where the rank does not say it.
        joins: the labels of the nodes that concatenate an old buffer with new elements.
    """

    source: str
    output: str
    rank: int
    closeness: tuple[float, float] = (0, 0)
    why: str = ""
    joins: tuple[str, ...] = ()

    @property
    def affinity(self) -> int:
        """2 if the names differ only in their direction, 1 if they also differ in numbers, else 0."""
        return names.affinity(self.source, self.output)


def find_edge(flow: DataFlow, source: str, output: str) -> Edge | None:
    """The evidence that an output is the updated value of an input of the same shape and dtype."""
    target = flow.outputs[output]
    if 0 in (target.shape or ()):
        return None  # without elements there is no state
    if target.ids is None or not target.deps:
        return _by_name(source, output)  # it may be a flag that every step sets
    codes = target.codes.get(source, np.zeros(target.shape or (), np.int64)).ravel()
    edge = _by_flow(flow, source, output, codes)
    if edge is not None:
        return edge
    # A value that every step replaces, such as attention weights or the last input, does not depend on the old one.
    named = _by_name(source, output)
    return named if named is not None and may_be_state(flow, named) else None


def _by_name(source: str, output: str) -> Edge | None:
    """The evidence of names alone."""
    edge = Edge(source, output, NAMED)
    return edge if edge.affinity == 2 and not names.says_data(source) else None


def find_growth(flow: DataFlow, source: str, output: str) -> Edge | None:
    """The evidence that an output is an input extended at its end or its beginning, such as a growing cache of keys."""
    old, new, codes = flow.inputs[source].shape, flow.outputs[output].shape, flow.outputs[output].codes.get(source)
    if old is None or new is None or codes is None or len(old) != len(new) or 0 in old:
        return None
    growth = [after - before for before, after in zip(old, new, strict=True)]
    if min(growth, default=0) < 0 or sum(size > 0 for size in growth) != 1:
        return None
    copied = np.sort(positions(codes[grades(codes) == COPY]))
    complete = np.array_equal(copied, np.arange(np.prod(old)))
    return Edge(source, output, GROWN) if complete and not names.says_data(source) else None


def may_be_state(flow: DataFlow, edge: Edge) -> bool:
    """Whether an output could be an updated value: it depends on data, and is not just the input under a mask."""
    target = flow.outputs[edge.output]
    if target.ids is None or not target.deps or 0 in (target.shape or ()):
        return False
    codes = target.codes.get(edge.source, np.zeros(target.shape or (), np.int64)).ravel()
    masked = (positions(codes) == np.arange(codes.size)) & np.isin(grades(codes), (COPY, GATED))
    return not masked.all()


def _by_flow(flow: DataFlow, source: str, output: str, codes: np.ndarray) -> Edge | None:
    """The evidence of where the elements of the input went."""
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
        return _replaced(flow, source, output)
    if (own & (grade == SHOWN)).any():
        return Edge(source, output, LAST_OUTPUT)
    return None if copied.all() else _computed(flow, source, output, codes)


def _computed(flow: DataFlow, source: str, output: str, codes: np.ndarray) -> Edge | None:
    """The evidence of arithmetic, which a model may also apply to its data.

    So there must be more: a name, another output that is computed from the updated value, or an integer that counts. A
    sum that keeps the whole input is most often a residual connection, which only a name can turn into state.
    """
    target = flow.outputs[output]
    edge = Edge(source, output, KEPT)
    place, grade = positions(codes), grades(codes)
    own = place == np.arange(codes.size)
    used = any(flow.derived(other, output) for other in flow.outputs if other != output)
    counts = target.dtype is not None and np.dtype(target.dtype).kind in "iu"
    retained = own & (grade == RETAINED)
    if retained.any() and (retained | (codes == 0)).all():
        return edge if edge.affinity or used or counts else None  # the other elements are replaced
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
    """Where the target holds elements of the source from a fixed distance away, copied or added to."""
    place, grade = positions(codes), grades(codes)
    old = np.flatnonzero(((grade == COPY) | (grade == RETAINED) | (grade == SUMMED)) & (place != np.arange(codes.size)))
    mask = np.zeros(codes.size, bool)
    if 0 < old.size < codes.size:
        shape = target.shape or ()
        apart = np.subtract(np.unravel_index(place[old], shape), np.unravel_index(old, shape))
        mask[old] = (apart == apart[:, :1]).all()
    return mask


def _replaced(flow: DataFlow, source: str, output: str) -> Edge | None:
    """The evidence that an output, a copy of another input such as the last sample, replaces this one: a name."""
    ids = flow.outputs[output].ids
    others = [other.ids for name, other in flow.inputs.items() if name != source and other.ids is not None]
    edge = Edge(source, output, CELL, why="is a copy of another input: every step replaces it, as the last frame")
    used = any(source in other.deps for other in flow.outputs.values())
    copied = ids is not None and any(bool(np.isin(ids, other).all()) for other in others)
    return edge if used and copied and edge.affinity else None


def _joined(flow: DataFlow, source: str, target: Flow) -> tuple[np.ndarray, float, tuple[str, ...]]:
    """Where the target is a window of a concatenation of the source and new elements, some elements further along.

    Returns:
        A mask over the target's elements, the distance, and the labels of the concatenating nodes.
    """
    assert target.ids is not None
    target_ids = target.ids.ravel()
    mask, distance, labels = np.zeros(target_ids.size, bool), 0.0, []
    for label, join in flow.joins:
        if source not in join.codes or join.ids is None or join.shape is None:
            continue
        codes, ids = join.codes[source].ravel(), join.ids.ravel()
        copies = np.flatnonzero(grades(codes) == COPY)
        if copies.size in (0, ids.size):
            continue
        old = np.full(target_ids.size, -1)  # where the join holds the source's element at each position
        old[positions(codes)[copies]] = copies
        order = np.argsort(ids, kind="stable")
        new = order[np.minimum(np.searchsorted(ids[order], target_ids), ids.size - 1)]  # and the target's element
        linked = (ids[new] == target_ids) & (target_ids > 0) & (old >= 0)
        if not linked.any():
            continue
        apart = np.subtract(np.unravel_index(new[linked], join.shape), np.unravel_index(old[linked], join.shape))
        step = apart[:, :1]
        if (apart == step).all() and np.count_nonzero(step) == 1:
            mask |= linked
            distance = max(distance, float(np.abs(step).sum()))
            labels.append(label)
    return mask, distance, tuple(labels)
