"""Pairs of inputs and their next values: proved by the flow of elements, suggested by names, or asked of the caller."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxrnn.answers import Answer
from jaxrnn.errors import StateError
from jaxrnn.jaxprs.flows import (
    COPY,
    DENSE,
    EXPOSED,
    MIXED,
    RETAINED,
    SCALED,
    SHOWN,
    SQUASHED,
    STEP,
    SUMMED,
    UPDATED,
    WRITTEN,
    DataFlow,
    Flow,
    grades,
    positions,
)
from jaxrnn.onnx.state.names import (
    affinity,
    continues,
    distance,
    resembles,
    says_data,
    says_nothing,
    says_result,
    says_state,
)

#: Kinds of evidence, the strongest last. From `CELL` on, the flow proves a pair. A `SUSPECT` edge leads from a
#: recurrence, but not to the values from which it would continue. Other kinds are arithmetic: `KEPT` as in averages
#: and written-out GRUs, `PRODUCT` as in a written-out RNN, `GATED` as in products and sums.
POSSIBLE, SUSPECT, GATED, PRODUCT, KEPT, CELL, LAST_OUTPUT, BUFFER, CARRIED, GROWN = range(10)


_REFILLED = "holds new elements in the places of the old ones: a buffer that every step fills"
_WRITTEN = "keeps its elements, unless the step overwrites them at a place that depends on data: a ring buffer"
_OVERWRITTEN = "keeps elements of it in their places and overwrites the others: a buffer"


@dataclass(frozen=True)
class Edge:
    """A possible pair: an input, and an output with the next value."""

    source: str
    output: str
    rank: int  # the kind of evidence
    #: the share of elements with this evidence, and the negated distance that they were moved
    closeness: tuple[float, float] = (0, 0)
    why: str = ""  # the reason, if the rank does not imply a reason
    joins: tuple[str, ...] = ()  # the labels of the nodes that concatenate an old buffer with new elements
    unchanged: bool = False  # whether the output is the input itself
    counts: bool = False  # whether the output is an integer that follows only from the input

    @property
    def affinity(self) -> int:
        """Return `affinity`: 2 if the names pair by convention."""
        return affinity(self.source, self.output)

    @property
    def is_named(self) -> bool:
        """Return True if the names suggest the pair, in any language."""
        return self.affinity > 0 or resembles(self.source, self.output)

    @property
    def is_nameless(self) -> bool:
        """Return True if the names do not tell state from data."""
        return says_state(self.source) or (says_nothing(self.source) and says_nothing(self.output))

    @property
    def evidence(self) -> float:
        """Return the evidence of the flow, in the order of the ranks; a value that is handed on has the least."""
        return -1 if self.unchanged else self.rank or 0.5 * bool(self.why)

    @property
    def is_proved(self) -> bool:
        """Return True if the flow of elements, perhaps with names, proves the pair."""
        return self.rank >= CELL or (self.rank == KEPT and self.affinity == 2)


def find_edge(
    flow: DataFlow, source: str, output: str, is_open: Sequence[bool], is_window: Callable[[str, str, int], Answer]
) -> Edge | None:
    """Return the evidence for a pair with equal dtypes and declared shapes that can agree.

    ``is_window`` tells for an input, an output and an open axis that the output grows less than the input.
    None means that the output has a shape or a type that the input cannot have.
    """
    before, target = flow.inputs[source], flow.outputs[output]
    if target.dtype is not None and target.dtype != before.dtype:
        return None
    if 0 in (target.shape or ()):
        return Edge(source, output, POSSIBLE) if target.shape == before.shape else None
    if target.value is not None:
        return Edge(source, output, POSSIBLE, why=_copied(flow, source, output))
    if target.ids is None or before.shape is None:
        return Edge(source, output, POSSIBLE)
    if before.shape != target.shape:
        return _growth(flow, source, output, is_open, is_window)
    codes = target.codes.get(source, np.zeros(target.shape or (), np.int64)).ravel()
    return _by_flow(flow, source, output, codes)


def _growth(
    flow: DataFlow, source: str, output: str, is_open: Sequence[bool], is_window: Callable[[str, str, int], Answer]
) -> Edge | None:
    """Return the evidence that an output is an input extended at an end, such as a growing cache of keys.

    A window of fixed length also extends an input that is shorter than the window, so a second size decides.
    """
    old, new, codes = flow.inputs[source].shape, flow.outputs[output].shape, flow.outputs[output].codes.get(source)
    if old is None or new is None or len(old) != len(new) or 0 in old:
        return None
    growth = [after - before for before, after in zip(old, new, strict=True)]
    if any(more and not free and size != 1 for more, free, size in zip(growth, is_open, old, strict=True)):
        return None
    if min(growth, default=0) < 0 or sum(size > 0 for size in growth) != 1 or codes is None:
        return Edge(source, output, POSSIBLE)
    axis = int(np.flatnonzero(growth)[0])
    places = np.sort(positions(codes[grades(codes) > 0]))
    if not is_open[axis] or not np.array_equal(places, np.arange(np.prod(old))):
        return Edge(source, output, POSSIBLE)
    window = is_window(source, output, axis)
    if window is False and (grades(codes)[codes >= STEP] == COPY).all():
        return Edge(source, output, GROWN)
    return Edge(source, output, POSSIBLE if window is True else GATED)


def _by_flow(flow: DataFlow, source: str, output: str, codes: np.ndarray) -> Edge:
    """Classify a pair of equal shapes by the flow of the input's elements."""
    target = flow.outputs[output]
    place, grade = positions(codes), grades(codes)
    own = place == np.arange(codes.size)
    copied, carried = own & (grade == COPY), own & (grade == UPDATED)
    misplaced = ~own & (grade == UPDATED)
    if misplaced.any():
        why = "holds final values of the recurrence that it starts, but not at the places where it is read"
        return Edge(source, output, SUSPECT if (misplaced | carried).all() else POSSIBLE, why=why)
    scaled = own & (grade == SCALED)
    if scaled.any() and (scaled | carried).all():
        why = "holds final values of the recurrence that it starts, but after arithmetic with constants"
        return Edge(source, output, SUSPECT, why=why)
    if carried.any():
        if _is_partly_returned(flow, source, carried):
            why = "holds the final values of only a part of the recurrence that it starts"
            return Edge(source, output, SUSPECT, why=why)
        return Edge(source, output, CARRIED, (float(carried.mean()), 0))
    linked, distance, joins = _joined(flow, source, target)
    moved_on = _moved_on(codes, target)
    written = own & (grade == WRITTEN)
    if (linked.any() or moved_on.any() or written.any()) and target.deps - {source}:
        share = float((linked | moved_on | copied | written).mean())
        if written.any() or moved_on.any() or (grade == COPY).any():
            ring = _WRITTEN * bool(written.any() and not moved_on.any())
            return Edge(source, output, BUFFER, (share, -distance), ring, joins)
        if not codes.any():  # an output that depends on the input may be features that are joined to their data
            return Edge(source, output, KEPT, (share, -distance), _REFILLED, joins)
    if copied.any() and (codes == 0).any() and (copied | (codes == 0)).all() and target.deps - {source}:
        return Edge(source, output, KEPT, why=_OVERWRITTEN)
    if (own & (grade == SHOWN)).any():
        return Edge(source, output, LAST_OUTPUT)
    if copied.all():
        return Edge(source, output, POSSIBLE, unchanged=True)
    return _computed(flow, source, output, codes)


def _is_partly_returned(flow: DataFlow, source: str, carried: np.ndarray) -> bool:
    """Return True if a recurrence starts from elements, and the output has the final values of only a part."""
    for site in flow.sites:
        codes = None if site.initial is None else site.initial.codes.get(source)
        if codes is not None:
            starts = carried[positions(codes[grades(codes) > 0])]
            if starts.any() and not starts.all():
                return True
    return False


def _computed(flow: DataFlow, source: str, output: str, codes: np.ndarray) -> Edge:
    """Classify a pair by the arithmetic between input and output, which a model may also apply to data.

    Arithmetic proves a pair only if it is a written-out LSTM: the cell is partly kept and added to, and the hidden
    state is computed from the next cell. Other arithmetic is stronger evidence if a second output depends on the
    result, or for counters.
    """
    target = flow.outputs[output]
    place, grade = positions(codes), grades(codes)
    own = place == np.arange(codes.size)
    used = any(flow.derived(other, output) for other in flow.outputs if other != output)
    counts = target.dtype is not None and np.dtype(target.dtype).kind in "iu"
    retained, dense = own & (grade == RETAINED), codes == DENSE
    squashed = own & (grade == SQUASHED)
    if retained.any() and used and not (retained | (codes == 0)).all():
        return Edge(source, output, CELL)  # hidden state and cell in one array
    if retained.any() and (retained | (codes == 0)).all():
        hidden = any(_comes_from_the_cell(flow, other, source, output) for other in flow.outputs)
        rank = CELL if hidden else KEPT if used or counts else GATED
        return Edge(source, output, rank, counts=counts and target.deps == {source})
    if own.all() and np.isin(grade, (SUMMED, MIXED)).any():
        return Edge(source, output, GATED)
    if (dense | squashed).all() and target.deps - {source}:
        cells = ((name, cell) for name in target.codes for cell in flow.outputs if name != source)
        if (
            dense.all()
            and target.depth[source] == 1
            and any(_comes_from_the_cell(flow, output, *each) for each in cells)
        ):
            return Edge(source, output, CELL)
        return Edge(source, output, PRODUCT if used and (squashed.all() or target.depth[source] == 1) else POSSIBLE)
    return Edge(source, output, POSSIBLE, why="" if codes.any() else _copied(flow, source, output))


def _comes_from_the_cell(flow: DataFlow, hidden: str, source: str, cell: str) -> bool:
    """Return True if output ``hidden`` is a gate times a function of output ``cell``, the next value of ``source``."""
    outer, inner = (flow.outputs[name].codes.get(source) for name in (hidden, cell))
    if outer is None or inner is None or outer.shape != inner.shape or not flow.derived(hidden, cell):
        return False
    own = positions(outer.ravel()) == np.arange(outer.size)
    return bool(own.all() and (grades(outer) == EXPOSED).all() and (grades(inner) == RETAINED).all())


def _copied(flow: DataFlow, source: str, output: str) -> str:
    """Return the reason why an output that ignores an input may replace it: it has no other purpose."""
    target = flow.outputs[output]
    if not target.deps:
        return "is a constant: every step replaces it, as a flag that says that the stream has begun"
    others = [other.ids for name, other in flow.inputs.items() if name != source and other.ids is not None]
    copied = target.ids is not None and any(bool(np.isin(target.ids, other).all()) for other in others)
    return "is a copy of another input: every step replaces it, as the last frame" if copied else ""


def _moved_on(codes: np.ndarray, target: Flow) -> np.ndarray:
    """Mark elements of the target that are source elements from a fixed distance away, copied or added to."""
    place, grade = positions(codes), grades(codes)
    old = np.flatnonzero(((grade == COPY) | (grade == RETAINED) | (grade == SUMMED)) & (place != np.arange(codes.size)))
    mask = np.zeros(codes.size, bool)
    if 0 < old.size < codes.size:
        shape = target.shape or ()
        apart = np.subtract(np.unravel_index(place[old], shape), np.unravel_index(old, shape))
        mask[old] = (apart == apart[:, :1]).all()
    return mask


def _joined(flow: DataFlow, source: str, target: Flow) -> tuple[np.ndarray, float, tuple[str, ...]]:
    """Mark the target as a window of a concatenation of the source and new elements, shifted by some elements.

    Returns a mask over the target's elements, the distance, and the labels of the concatenating nodes.
    """
    assert target.ids is not None
    target_ids = target.ids.ravel()
    mask, distance, labels = np.zeros(target_ids.size, bool), 0.0, set[str]()
    # The smallest first: a larger concatenation joins parts of the state.
    for label, join in sorted(flow.joins, key=lambda each: np.prod(each[1].shape or ())):
        if source not in join.codes or join.ids is None or join.shape is None:
            continue
        codes, ids = join.codes[source].ravel(), join.ids.ravel()
        copies = np.flatnonzero(grades(codes) == COPY)
        if copies.size in (0, ids.size):
            continue
        old = np.full(target_ids.size, -1)  # the place in the join of the source's element at each position
        old[positions(codes)[copies]] = copies
        order = np.argsort(ids, kind="stable")
        new = order[np.minimum(np.searchsorted(ids[order], target_ids), ids.size - 1)]  # and the target's element
        linked = (ids[new] == target_ids) & (target_ids > 0) & (old >= 0)
        if not linked.any():
            continue
        apart = np.subtract(np.unravel_index(new[linked], join.shape), np.unravel_index(old[linked], join.shape))
        step = apart[:, :1]
        if (apart == step).all() and np.count_nonzero(step) == 1 and (linked & ~mask).any():
            mask |= linked
            distance = max(distance, float(np.abs(step).sum()))
            labels.add(label)
    return mask, distance, tuple(dict.fromkeys(label for label, _ in flow.joins if label in labels))


#: Beyond this number of inputs with equal evidence, only names decide.
_MAX_ALTERNATIVES = 6


class Pairing:
    """The pairs that the flow proves or names suggest."""

    def __init__(
        self,
        edges: Iterable[Edge],
        flow: DataFlow,
        declared: Mapping[str, Edge],
        inputs: Collection[str],
        outputs: Collection[str],
    ):
        self.flow, self.inputs, self.outputs = flow, list(inputs), list(outputs)
        self.pairs = dict(declared)
        self.edges = list(edges)

    def find(self) -> dict[str, Edge]:
        """Return the pairs by input."""
        self.take_proved()
        self._take_said()
        self._take_arithmetic()
        if against := self._otherwise_named():
            raise self._disagree(against)
        return self.pairs

    def check_complete(self) -> None:
        """Ask about the other pairs that could be state."""
        if candidates := self._doubtful():
            raise self._incomplete(candidates)

    def _doubtful(self) -> list[Edge]:
        """Return the other pairs that could be state: neither the flow nor names tell. One input is data."""
        return self._first_hand(self._unnamed(asking=True)) if len(self._data()) > 1 else []

    def left_out(self) -> list[Edge]:
        """Return the pairs that are data by declaration, although names or arithmetic suggest state."""
        said = [edge for edge in self._free(self.edges) if edge.affinity == 2 and not edge.unchanged]
        return list(dict.fromkeys([*said, *self._doubtful()])) if len(self._data()) > 1 else []

    def all_that_may_be(self) -> str:
        """Return how to declare the state, with a list of all possible pairs."""
        if not self.edges:
            return f"say that nothing is state: {_how([])}"
        likely = [edge for edge in _likeliest(self.edges) if edge.is_proved or not says_data(edge.source)]
        return f"say which of these pairs are state: {_listed(self.edges)}; for instance {self._how(likely)}"

    def declaration(self, more: Iterable[Edge] = ()) -> str:
        """Return the declaration of the pairs so far, of more pairs, and of doubtful pairs that can be state, too."""
        chosen = [*self.pairs.values(), *more]
        for edge in _likeliest(self._doubtful()):
            if not _uses(chosen, edge) and len(chosen) + 1 < len(self.inputs):
                chosen.append(edge)
        return _how(chosen)

    def _how(self, candidates: Sequence[Edge]) -> str:
        """Return a declaration of the pairs so far, and of all candidates that can be state together.

        The pairs that names suggest follow. One input is data. A name for a result is no next state.
        """
        chosen = list(self.pairs.values())
        likely = [edge for edge in candidates if not says_result(edge.output)] or candidates
        for edge in (*likely, *(edge for edge in self.edges if edge.affinity == 2 and not says_data(edge.source))):
            if not _uses(chosen, edge) and len(chosen) + 1 < len(self.inputs):
                chosen.append(edge)
        return _how(chosen)

    def _ambiguous(self, candidates: Iterable[Edge], chosen: Sequence[Edge], why: str) -> StateError:
        return StateError(
            f"the model's state is ambiguous: {why} which of these pairs of an input and its updated value are meant: "
            f"{_listed(candidates)}. Name every pair that is, for instance: {self._how(chosen)}"
        )

    def _free(self, edges: Iterable[Edge]) -> list[Edge]:
        return [edge for edge in edges if not _uses(self.pairs.values(), edge)]

    def _first_hand(self, edges: list[Edge]) -> list[Edge]:
        """Drop edges to outputs that are computed from a different candidate of the same input."""

        def used(edge: Edge, other: Edge) -> bool:
            return edge.source == other.source and self.flow.derived(edge.output, other.output)

        return [edge for edge in edges if not any(used(edge, other) and not used(other, edge) for other in edges)]

    def _take(self, edges: Sequence[Edge]) -> None:
        for group in _groups(edges):
            try:
                best = _best(group)
            except _TieError as tie:
                raise self._ambiguous(tie.edges, tie.chosen, f"{_NEITHER} tell") from None
            self.pairs.update({edge.source: edge for edge in best})

    def _data(self) -> list[str]:
        """Return the inputs that are not state so far."""
        return [name for name in self.inputs if name not in self.pairs]

    def take_proved(self) -> dict[str, Edge]:
        """Return the declared pairs and the proved pairs."""
        for rank in (CARRIED, BUFFER, LAST_OUTPUT, CELL, GROWN):
            free = self._first_hand(self._free(each for each in self.edges if each.rank == rank))
            if rank == GROWN:
                free = self._beside_data(free)
            alike = {rank, GROWN} if rank == BUFFER else {rank}
            named = [each for each in self._free(self.edges) if each.affinity == 2 and each.rank in alike]
            if rank != CARRIED:  # a cache and what is joined to it both grow into the same output
                free = [edge for edge in free if edge in named or not _uses(named, edge)]
            self._take(free)
        for edge in self._free(edge for edge in self.edges if edge.rank == SUSPECT):
            raise StateError(
                f"output {edge.output!r} has the shape of input {edge.source!r} and {edge.why}; it is not clear that "
                f"it is the state's updated value. If it is, say so: {self._how([edge])}"
            )
        return self.pairs

    def _beside_data(self, grown: list[Edge]) -> list[Edge]:
        """Return the growing caches. A step has data, and data that are padded or joined to a cache grow, too."""
        said = {edge.source for edge in self.edges if edge.joins or (edge.affinity == 2 and not edge.unchanged)}
        doubtful = [edge for edge in grown if edge.affinity < 2 or not says_state(edge.source)]
        data = set(self._data()) - said - {edge.source for edge in doubtful}
        return grown if data else [edge for edge in grown if edge not in doubtful]

    def _take_said(self) -> None:
        """Take pairs with names that pair by convention, after any arithmetic."""
        said = [edge for edge in self.edges if edge.affinity == 2 and not edge.unchanged]
        if against := self._exchange() or [edge for each in said for edge in self._against(each)]:
            raise self._disagree(against)
        free = self._free(said)
        doubtful = [edge for edge in free if says_data(edge.source) and not edge.is_proved]
        certain = [edge for edge in free if edge not in doubtful]
        left = set(self._data()) - {edge.source for edge in certain}
        if doubtful and left - {edge.source for edge in doubtful}:
            raise self._incomplete([*doubtful, *certain])
        if not left and len(self._data()) == 1:
            return  # the remaining input is data, because a step has data
        if not left and certain:
            raise self._incomplete(certain)
        if len({edge.source for edge in doubtful}) > 1:
            raise self._incomplete([*doubtful, *certain])
        self._take(certain)

    def _against(self, said: Edge) -> list[Edge]:
        """Return a pair that names suggest, and pairs with the same input or output that the flow proves."""
        others = [edge for edge in self.pairs.values() if edge != said and _uses([edge], said)]
        proved = [edge for edge in others if edge.is_proved and edge.affinity < 2]
        left_over = said.source not in self.pairs and len(self._data()) == 1 and says_data(said.source)
        return [*proved, said] if proved and not said.is_proved and not left_over else []

    def _exchange(self) -> list[Edge]:
        """Return pairs that the flow suggests in place of named pairs whose outputs are exchanged, and the named pairs.

        Each pair of the flow has at least the evidence of the named pairs with its input and with its output.
        """
        named = [edge for edge in self.edges if edge.affinity == 2]
        of_input, of_output = {edge.source: edge for edge in named}, {edge.output: edge for edge in named}
        crossing = [
            edge
            for edge in self.edges
            if edge.affinity < 2 and edge.evidence > 0 and edge.source in of_input and edge.output in of_output
            if edge.evidence >= max(of_input[edge.source].evidence, of_output[edge.output].evidence)
        ]
        for first in crossing:
            if first.evidence > of_output[first.output].evidence:
                path = [first]
                for last in path:  # the path becomes longer here
                    source = of_output[last.output].source
                    path += [edge for edge in crossing if edge.source == source and edge not in path]
                if any(of_output[edge.output].source == first.source for edge in path):
                    return [*path, *(of_output[edge.output] for edge in path)]
        return []

    def _otherwise_named(self) -> list[Edge]:
        """Return pairs of the flow, and the pairs that names in any language say of an input or an output of these.

        An output that the flow supports as well, such as the sum of the state and the data, is no contradiction.
        """
        by_flow = [edge for edge in self.pairs.values() if edge.affinity < 2]
        for edge in by_flow:
            if not continues(edge.source, edge.output):
                others = [other for other in self.edges if other != edge and _uses([edge], other)]
                others = [other for other in others if other.rank in (POSSIBLE, PRODUCT) and not other.unchanged]
                if others := [other for other in others if continues(other.source, other.output)]:
                    return [edge, *others]
        known = {(edge.source, edge.output): edge for edge in self.edges}
        for one, other in itertools.combinations(by_flow, 2):
            exchanged = [known.get((one.source, other.output)), known.get((other.source, one.output))]
            pairs = [edge for edge in exchanged if edge is not None]
            if len(pairs) == 2 and sum(map(_distance, pairs)) < sum(map(_distance, (one, other))):
                return [one, other, *pairs]
        return []

    def _disagree(self, edges: Iterable[Edge]) -> StateError:
        """Return the error for pairs that the flow suggests, followed by pairs that names say."""
        edges = list(dict.fromkeys(edges))
        by_flow = [edge for edge in edges if edge.affinity < 2]
        return self._ambiguous(edges, by_flow, "the flow of data and names disagree on")

    def _take_arithmetic(self) -> None:
        """Take cells, averages and counters with other names if each fits only a single pair."""
        for rank in (KEPT, PRODUCT):
            weak = self._first_hand([edge for edge in self._unnamed() if edge.rank == rank])
            others = weak if rank == KEPT else self._free(self.edges)
            alone = [edge for edge in weak if not any(other != edge and _uses([other], edge) for other in others)]
            if len({edge.source for edge in alone}) < len(self._data()):
                self._take(alone)

    def _unnamed(self, asking: bool = False) -> list[Edge]:
        """Return other possible pairs, to take by arithmetic or to ask about.

        A file that names a pair by convention names all pairs, so that other names are names of data, unless the name
        of an output continues the name of the input. In other files, jaxrnn asks about each output that follows from
        an input, unless the input has a name for data.
        """
        named = any(edge.affinity == 2 for edge in self.pairs.values())

        def may_be(edge: Edge) -> bool:
            source, output = says_nothing(edge.source), says_nothing(edge.output)
            if says_state(edge.source) or (says_state(edge.output) and source) or (source and output):
                return True
            if says_data(edge.source):
                return asking and not named and edge.rank >= PRODUCT
            if named and not edge.is_named:
                return edge.counts
            follows = edge.source in self.flow.outputs[edge.output].deps or bool(edge.why) or edge.is_named
            return edge.counts or (asking and (source or output or follows))

        read = {name for output in self.flow.outputs.values() for name in output.deps}
        return [edge for edge in self._free(self.edges) if edge.source in read and not edge.unchanged and may_be(edge)]

    def _incomplete(self, candidates: Sequence[Edge]) -> StateError:
        candidates = _likeliest(candidates)
        return StateError(
            f"the model's state may be incomplete: {_NEITHER} tell whether these pairs of an input and an output of "
            f"its shape are state: {_listed(candidates)}; found: {_listed(self.pairs.values()) or 'none'}. Name all "
            f"pairs that are state, and no other pairs, for instance: {self._how(candidates)}; "
            f"`state={{}}` declares that there is no state"
        )


def _distance(edge: Edge) -> float:
    return distance(edge.source, edge.output)


_NEITHER = "neither the flow of data nor names"


def _likeliest(edges: Iterable[Edge]) -> list[Edge]:
    def order(edge: Edge) -> tuple[float, ...]:
        likely = (edge.output.startswith(edge.source), says_state(edge.source), says_state(edge.output))
        return -edge.rank, -edge.affinity, *(not each for each in likely)

    return sorted(edges, key=order)


def _uses(chosen: Iterable[Edge], edge: Edge) -> bool:
    return any(edge.source == other.source or edge.output == other.output for other in chosen)


def _groups(edges: Sequence[Edge]) -> Iterator[list[Edge]]:
    """Yield the edges in groups: edges of different groups share no input and no output."""
    remaining = list(edges)
    while remaining:
        group = [remaining.pop(0)]
        while near := [edge for edge in remaining if _uses(group, edge)]:
            group += near
            remaining = [edge for edge in remaining if edge not in near]
        yield group


class _TieError(Exception):
    """The error for edges with equal evidence, with some edges as an example."""

    def __init__(self, edges: Iterable[Edge], chosen: Sequence[Edge]):
        super().__init__()
        self.edges, self.chosen = edges, chosen


def _best(edges: list[Edge]) -> tuple[Edge, ...]:
    """Return the best choice of disjoint edges: by number, then closeness, then names."""
    sources = list(dict.fromkeys(edge.source for edge in edges))
    if len(sources) > _MAX_ALTERNATIVES:
        return _by_name(edges)
    options = [[None, *(edge for edge in edges if edge.source == source)] for source in sources]
    scored: dict[tuple[float, ...], list[tuple[Edge, ...]]] = {}
    for picked in itertools.product(*options):
        choice = tuple(edge for edge in picked if edge is not None)
        if choice and len({edge.output for edge in choice}) == len(choice):
            columns = zip(*((*edge.closeness, edge.affinity) for edge in choice), strict=True)
            scored.setdefault((len(choice), *map(sum, columns)), []).append(choice)
    best = scored[max(scored)]
    if len(best) > 1:
        raise _TieError(dict.fromkeys(edge for choice in best for edge in choice), best[0])
    return best[0]


def _by_name(edges: list[Edge]) -> tuple[Edge, ...]:
    """Choose among many inputs with equal evidence: each input takes the only output with a similar name."""
    top = {edge.source: max(e.affinity for e in edges if e.source == edge.source) for edge in edges}
    named = [edge for edge in edges if 0 < edge.affinity == top[edge.source]]
    shared = [edge for edge in named if any(edge is not other and _uses([edge], other) for other in named)]
    if not named or shared:
        raise _TieError(shared or named or edges, shared or named or edges)
    return tuple(named)


def _listed(edges: Iterable[Edge]) -> str:
    return ", ".join(f"{edge.source!r} -> {edge.output!r}" for edge in edges)


def _how(edges: Iterable[Edge]) -> str:
    return f"`jaxrnn.load(path, state={ {edge.source: edge.output for edge in edges} })`"
