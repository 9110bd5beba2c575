"""Which output carries the updated value of which input: the choice among all pairs by their evidence."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence

from jaxrnn.errors import StateError
from jaxrnn.onnx.state.evidence import BUFFER, CARRIED, CELL, GROWN, KEPT, LAST_OUTPUT, NAMED, SUSPECT, Edge
from jaxrnn.onnx.state.flows import DataFlow
from jaxrnn.voices import argument

#: Beyond this number of inputs with equal evidence, names alone decide.
_MAX_ALTERNATIVES = 6


def choose(
    edges: Iterable[Edge],
    flow: DataFlow,
    declared: dict[str, Edge],
    over_time: Callable[[Edge], bool],
    inputs: Collection[str],
) -> dict[str, Edge]:
    """The pairs that the evidence supports, by input.

    The final value of a recurrence is sufficient evidence. Anything weaker a model without state may also do to its
    data. There, an input must remain that is no state, an output too where names do not tell, and the input may have no
    time axis.

    Args:
        edges: every possible pair.
        flow: where the elements went.
        declared: the pairs that are certain, by input.
        over_time: whether the input of a pair has a time axis, as data does.
        inputs: all inputs of the model.

    Raises:
        StateError: several choices are equally good; the message lists them.
    """
    edges = list(edges)
    chosen = dict(declared)
    alike = [edge for edge in edges if edge.rank != SUSPECT and edge.affinity == 2 and not over_time(edge)]
    for rank in (GROWN, CARRIED, BUFFER, LAST_OUTPUT, KEPT, CELL):
        free = [edge for edge in edges if edge.rank == rank and not _uses(chosen.values(), edge)]
        if rank < CARRIED:
            free = [edge for edge in free if not over_time(edge)]
        free = _first_hand(free, flow)
        if rank < BUFFER:  # an output with a name like an input is the update of that input, or of none
            free = [edge for edge in free if edge.affinity == 2 or not _uses(alike, edge)]
        if rank < BUFFER and any(edge.affinity for edge in free):
            free = [edge for edge in free if edge.affinity]
        limit = len(free)
        if rank < CARRIED:
            named = all(edge.affinity for edge in free)
            limit = min(len(inputs) - 1, len(flow.outputs) - (0 if named else 1)) - len(chosen)
        if rank < BUFFER and not all(edge.affinity == 2 for edge in free):
            # Names that are alike say more than arithmetic, which data go through, too.
            limit -= len({edge.source for edge in alike if not _uses((*chosen.values(), *free), edge)})
        groups = list(_groups(free))
        if sum(min(len({e.source for e in g}), len({e.output for e in g})) for g in groups) > limit:
            groups = [free]
        for group in groups:
            for edge in _best(group, limit):
                chosen[edge.source] = edge
    for edge in _named(alike, chosen, flow, inputs):
        chosen[edge.source] = edge
    for edge in edges:
        if edge.rank == SUSPECT and not _uses(chosen.values(), edge):
            raise StateError(
                f"output {edge.output!r} has the shape of input {edge.source!r} and {edge.why}; it is not clear that "
                f"it is the state's updated value. If it is, say so: {_how([edge])}"
            )
    return chosen


def _named(edges: list[Edge], chosen: dict[str, Edge], flow: DataFlow, inputs: Collection[str]) -> list[Edge]:
    """The pairs that names alone make; none where no input would be left for data.

    No output need be left: what a step gives may be known only when a recording has ended.
    """
    free = [edge for edge in edges if edge.rank == NAMED and not _uses(chosen.values(), edge)]
    limit = min(len(inputs) - 1, len(flow.outputs)) - len(chosen)
    if len({edge.source for edge in free}) > limit:
        return []
    return [edge for group in _groups(free) for edge in _best(group, limit)]


def _uses(chosen: Iterable[Edge], edge: Edge) -> bool:
    return any(edge.source == other.source or edge.output == other.output for other in chosen)


def _first_hand(edges: list[Edge], flow: DataFlow) -> list[Edge]:
    """The edges without the outputs that are computed from another candidate for the same input: they use the state.

    Raises:
        StateError: all names contradict.
    """

    def used(edge: Edge, other: Edge) -> bool:
        return edge.source == other.source and flow.derived(edge.output, other.output)

    direct = [edge for edge in edges if not any(used(edge, other) and not used(other, edge) for other in edges)]
    named = [edge for edge in edges if edge.affinity == 2 and edge not in direct]
    if named and not any(edge.affinity for edge in direct):
        raise _ambiguous([*named, *direct], named[:1])
    return direct


def _groups(edges: Sequence[Edge]) -> Iterable[list[Edge]]:
    """The edges in groups: edges of different groups share no input and no output."""
    remaining = list(edges)
    while remaining:
        group = [remaining.pop(0)]
        while near := [edge for edge in remaining if _uses(group, edge)]:
            group += near
            remaining = [edge for edge in remaining if edge not in near]
        yield group


def _best(edges: list[Edge], limit: int) -> tuple[Edge, ...]:
    """The best choice of at most ``limit`` edges that share nothing: by number, then closeness, then names."""
    if limit <= 0 or not edges:
        return ()
    sources = list(dict.fromkeys(edge.source for edge in edges))
    if len(sources) > _MAX_ALTERNATIVES:
        return _by_name(edges, limit)
    options = [[None, *(edge for edge in edges if edge.source == source)] for source in sources]
    scored: dict[tuple[float, ...], list[tuple[Edge, ...]]] = {}
    for picked in itertools.product(*options):
        choice = tuple(edge for edge in picked if edge is not None)
        if 0 < len(choice) <= limit and len({edge.output for edge in choice}) == len(choice):
            columns = zip(*((*edge.closeness, edge.affinity) for edge in choice), strict=True)
            scored.setdefault((len(choice), *map(sum, columns)), []).append(choice)
    best = scored[max(scored)]
    if len(best) > 1:
        raise _ambiguous(dict.fromkeys(edge for choice in best for edge in choice), best[0])
    return best[0]


def _by_name(edges: list[Edge], limit: int) -> tuple[Edge, ...]:
    """The choice among many inputs with equal evidence: each takes the one output with a name like its own."""
    top = {edge.source: max(e.affinity for e in edges if e.source == edge.source) for edge in edges}
    named = [edge for edge in edges if 0 < edge.affinity == top[edge.source]]
    shared = [edge for edge in named if any(edge is not other and _uses([edge], other) for other in named)]
    if not named or shared or len(named) > limit:
        raise _ambiguous(shared or named or edges, (shared or named or edges)[:1])
    return tuple(named)


def incomplete(candidates: Sequence[Edge], pairs: Sequence[Edge]) -> StateError:
    """The error for further pairs that may be state."""
    return StateError(
        "the model's state may be incomplete: neither the flow of data nor names tell whether these pairs of an input "
        f"and an output of its shape are state: {_listed(candidates)}; found: {_listed(pairs) or 'none'}. Name "
        f"all that are and no others, for instance: {_how([*pairs, candidates[0]])}; {argument('state', {})} "
        "says that there is none"
    )


def _listed(edges: Iterable[Edge]) -> str:
    return ", ".join(f"{edge.source!r} -> {edge.output!r}" for edge in edges)


def _ambiguous(candidates: Iterable[Edge], example: Iterable[Edge]) -> StateError:
    return StateError(
        "the model's state is ambiguous: neither the flow of data nor names tell which of these pairs of an input and "
        f"its updated value are meant: {_listed(candidates)}. Name every pair that is, for instance: {_how(example)}"
    )


def _how(edges: Iterable[Edge]) -> str:
    return argument("state", {edge.source: edge.output for edge in edges}, "jaxrnn.load(path)")
