"""Pair inputs with their next values: proved by the flow of elements, said by names, or asked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from jaxrnn._files.arguments import argument
from jaxrnn.errors import StateError
from jaxrnn.jaxprs.origins import DataFlow
from jaxrnn.onnx.state import evidence
from jaxrnn.onnx.state.evidence import (
    BUFFER,
    CARRIED,
    CELL,
    GROWN,
    KEPT,
    LAST_OUTPUT,
    PRODUCT,
    SUSPECT,
    Edge,
)

#: Beyond this number of inputs with equal evidence, names alone decide.
_MAX_ALTERNATIVES = 6


class Pairing:
    """The pairs that the flow proves or names say.

    If the input of an edge has a time axis, only the final value of a recurrence counts as evidence: a model without
    state treats data in all other ways.
    """

    def __init__(
        self,
        edges: Iterable[Edge],
        flow: DataFlow,
        declared: Mapping[str, Edge],
        over_time: Callable[[Edge], bool],
        inputs: Collection[str],
        outputs: Collection[str],
    ):
        self.flow, self.inputs, self.outputs = flow, list(inputs), list(outputs)
        self.pairs = dict(declared)
        self.edges = [edge for edge in edges if edge.rank >= CARRIED or not over_time(edge)]

    def find(self) -> dict[str, Edge]:
        """Return the pairs by input."""
        self._take_proved()
        self._take_said()
        self._take_arithmetic()
        self._check_complete()
        return self.pairs

    def take_proved(self) -> dict[str, Edge]:
        """Return the declared pairs and the proved pairs."""
        self._take_proved()
        return self.pairs

    def all_that_may_be(self) -> str:
        """Return how to declare the state, with a list of all possible pairs."""
        if not self.edges:
            return f"say that nothing is state: {_how([])}"
        first = [*self.pairs.values(), *self._free(self.edges)][:1]
        return f"say which of these pairs are state: {_listed(self.edges)}; for instance {_how(first)}"

    def _free(self, edges: Iterable[Edge]) -> list[Edge]:
        return [edge for edge in edges if not _uses(self.pairs.values(), edge)]

    def _take(self, edges: Sequence[Edge]) -> None:
        for group in _groups(edges):
            for edge in _best(group):
                self.pairs[edge.source] = edge

    def _data(self) -> list[str]:
        """Return the inputs that are not state so far."""
        return [name for name in self.inputs if name not in self.pairs]

    def _take_proved(self) -> None:
        for rank in (CARRIED, GROWN, BUFFER, LAST_OUTPUT, CELL):
            free = _first_hand(self._free(each for each in self.edges if each.rank == rank), self.flow)
            named = [edge for edge in free if edge.affinity == 2]
            if rank != CARRIED:  # a cache and what is joined to it both grow into the same output
                free = [edge for edge in free if edge in named or not _uses(named, edge)]
            self._take(free)
        for edge in self._free(edge for edge in self.edges if edge.rank == SUSPECT):
            raise StateError(
                f"output {edge.output!r} has the shape of input {edge.source!r} and {edge.why}; it is not clear that "
                f"it is the state's updated value. If it is, say so: {_how([edge])}"
            )

    def _take_said(self) -> None:
        """Take pairs with names that pair by convention, whatever arithmetic lies between."""
        said = [edge for edge in self.edges if edge.affinity == 2 and not edge.unchanged]
        self._check_agreement(said)
        free = self._free(said)
        doubtful = [edge for edge in free if evidence.says_data(edge.source) and not edge.is_proved]
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

    def _check_agreement(self, said: Sequence[Edge]) -> None:
        """Ask about pairs that names suggest if the flow proves a different pair with the same input or output."""
        for edge in said:
            proved = [other for other in self.pairs.values() if other != edge and _uses([other], edge)]
            proved = [other for other in proved if other.is_proved and other.affinity < 2]
            if proved and not edge.is_proved and len(self._data()) > 1:
                raise _ambiguous([*proved, edge], proved)

    def _take_arithmetic(self) -> None:
        """Take cells, averages and counters without telling names if each fits one pair only."""
        for rank in (KEPT, PRODUCT):
            weak = _first_hand([edge for edge in self._unnamed() if edge.rank == rank], self.flow)
            others = weak if rank == KEPT else self._free(self.edges)
            alone = [edge for edge in weak if not any(other != edge and _uses([other], edge) for other in others)]
            if len({edge.source for edge in alone}) < len(self._data()):
                self._take(alone)

    def _unnamed(self, arithmetic: bool = False) -> list[Edge]:
        """Return other possible pairs: the names have no meaning, or suggest state and pair with no other name.

        A file that names a pair by convention names all pairs. In other files, jaxrnn asks about arithmetic as in
        cells, whatever the names are.
        """
        named = any(edge.affinity == 2 for edge in self.pairs.values())

        def may_be(edge: Edge) -> bool:
            source, output = evidence.says_nothing(edge.source), evidence.says_nothing(edge.output)
            if evidence.says_state(edge.source) or (evidence.says_state(edge.output) and source) or (source and output):
                return True
            if evidence.says_data(edge.source) or (named and not edge.counts):
                return arithmetic and not named and edge.rank >= PRODUCT
            return edge.counts or (arithmetic and (source or output or edge.rank >= PRODUCT))

        read = {name for output in self.flow.outputs.values() for name in output.deps}
        return [edge for edge in self._free(self.edges) if edge.source in read and not edge.unchanged and may_be(edge)]

    def _check_complete(self) -> None:
        """Ask about pairs that may be state if names do not decide."""
        if len(self._data()) < 2:
            return  # one input is data
        candidates = _first_hand(self._unnamed(arithmetic=True), self.flow)
        if candidates:
            raise self._incomplete(candidates)

    def _incomplete(self, candidates: Sequence[Edge]) -> StateError:
        candidates = sorted(
            candidates, key=lambda edge: (-edge.rank, -edge.affinity, not evidence.says_state(edge.source))
        )
        pairs = list(self.pairs.values())
        return StateError(
            "the model's state may be incomplete: neither the flow of data nor names tell whether these pairs of an "
            f"input and an output of its shape are state: {_listed(candidates)}; found: {_listed(pairs) or 'none'}. "
            f"Name all pairs that are state, and no other pairs, for instance: {_how([*pairs, candidates[0]])}; "
            f"{argument('state', {})} declares that there is no state"
        )


def _uses(chosen: Iterable[Edge], edge: Edge) -> bool:
    return any(edge.source == other.source or edge.output == other.output for other in chosen)


def _first_hand(edges: list[Edge], flow: DataFlow) -> list[Edge]:
    """Drop edges to outputs that are computed from a different candidate of the same input."""

    def used(edge: Edge, other: Edge) -> bool:
        return edge.source == other.source and flow.derived(edge.output, other.output)

    return [edge for edge in edges if not any(used(edge, other) and not used(other, edge) for other in edges)]


def _groups(edges: Sequence[Edge]) -> Iterator[list[Edge]]:
    """Yield the edges in groups: edges of different groups share no input and no output."""
    remaining = list(edges)
    while remaining:
        group = [remaining.pop(0)]
        while near := [edge for edge in remaining if _uses(group, edge)]:
            group += near
            remaining = [edge for edge in remaining if edge not in near]
        yield group


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
        raise _ambiguous(dict.fromkeys(edge for choice in best for edge in choice), best[0])
    return best[0]


def _by_name(edges: list[Edge]) -> tuple[Edge, ...]:
    """Choose among many inputs with equal evidence: each input takes the one output with a similar name."""
    top = {edge.source: max(e.affinity for e in edges if e.source == edge.source) for edge in edges}
    named = [edge for edge in edges if 0 < edge.affinity == top[edge.source]]
    shared = [edge for edge in named if any(edge is not other and _uses([edge], other) for other in named)]
    if not named or shared:
        raise _ambiguous(shared or named or edges, (shared or named or edges)[:1])
    return tuple(named)


def _listed(edges: Iterable[Edge]) -> str:
    return ", ".join(f"{edge.source!r} -> {edge.output!r}" for edge in edges)


def _ambiguous(candidates: Iterable[Edge], example: Iterable[Edge]) -> StateError:
    return StateError(
        "the model's state is ambiguous: neither the flow of data nor names tell which of these pairs of an input and "
        f"its updated value are meant: {_listed(candidates)}. Name every pair that is, for instance: {_how(example)}"
    )


def _how(edges: Iterable[Edge]) -> str:
    return argument("state", {edge.source: edge.output for edge in edges}, "jaxrnn.load(path)")
