"""Sections of a long graph: a reader sees about a dozen parts first, and unfolds some.

A section is a run of consecutive nodes in the order of evaluation. A section never needs a value of a later section, so
the drawing has no cycle, whichever sections are folded. Sections follow the modules of the exported network if the
exporter names them. Otherwise a section ends where few values cross to the next node.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxrnn.model.graph_facts import GraphInfo

#: Graphs of up to `_WHOLE` nodes are not divided; longer graphs get about `_PARTS` parts.
_WHOLE, _PARTS = 36, 12
#: Modules become sections if there are at most `_MODULES` parts and no part has more than this share of the nodes.
_MODULES, _SHARE = 28, 0.9
#: The fewest nodes of a section.
_FEWEST = 4


@dataclass(frozen=True)
class Section:
    """A run of nodes: name, number of the graph, and number of the enclosing section."""

    name: str
    graph: int
    parent: int | None


@dataclass
class Sections:
    """The sections of the graphs of a file, and the innermost section of each node."""

    sections: list[Section] = field(default_factory=list)
    of_node: list[int | None] = field(default_factory=list)


def sections_of(graph: GraphInfo) -> Sections:
    """Divide all graphs of a file into sections."""
    found = Sections(of_node=[None] * len(graph.nodes))
    spans = _spans(graph)
    for number in range(len(graph.graphs)):
        nodes = [place for place, node in enumerate(graph.nodes) if node.graph == number]
        _divide(graph, found, spans, nodes, number, None, 0)
    return found


def _divide(
    graph: GraphInfo,
    found: Sections,
    spans: Sequence[tuple[int, int]],
    nodes: Sequence[int],
    number: int,
    parent: int | None,
    depth: int,
) -> None:
    """Divide nodes of one graph that share their modules down to `depth`, recursively."""
    for node in nodes:
        found.of_node[node] = parent
    if len(nodes) <= _WHOLE:
        return
    runs, depth = _by_module(graph, nodes, depth)
    named = bool(runs)
    if sum(1 if len(run) >= _FEWEST else len(run) for _, run in runs) > _MODULES:
        runs, named = [], False
    for name, run in runs or _by_crossings(graph, spans, nodes):
        if len(run) >= _FEWEST:
            found.sections.append(Section(name, number, parent))
            _divide(graph, found, spans, run, number, len(found.sections) - 1, depth + named)


def _by_module(graph: GraphInfo, nodes: Sequence[int], depth: int) -> tuple[list[tuple[str, list[int]]], int]:
    """Return runs of nodes by module and the depth of the modules; no runs if modules do not divide the graph well."""
    while True:

        def module(node: int, at: int = depth) -> str:
            scope = graph.nodes[node].scope
            return scope[at] if len(scope) > at else ""

        runs = [(name, list(run)) for name, run in itertools.groupby(nodes, module)]
        largest, modules = max(len(run) for _, run in runs), {name for name, _ in runs} - {""}
        if not modules:
            return [], depth
        if len(modules) == 1 and largest > _SHARE * len(nodes):
            depth += 1
            continue
        if largest > _SHARE * len(nodes):
            return [], depth
        joined: list[tuple[str, list[int]]] = []
        for whole, group in itertools.groupby(runs, lambda each: bool(each[0]) and len(each[1]) >= _FEWEST):
            if whole:
                joined += group
            else:  # join small neighbouring runs
                rest = [node for _, run in group for node in run]
                joined.append((_summary(graph, rest), rest))
        return joined, depth


def _spans(graph: GraphInfo) -> list[tuple[int, int]]:
    """Return for each value the node that computes the value and its last reader, counting readers in subgraphs."""
    maker = {value: place for place, node in enumerate(graph.nodes) for value in node.outputs}
    last = dict(maker)
    for place, node in enumerate(graph.nodes):
        for _, value in node.inputs:
            if value not in maker:
                continue
            reader = place
            while graph.nodes[reader].graph != graph.nodes[maker[value]].graph:
                owner = graph.graphs[graph.nodes[reader].graph].node
                if owner is None:
                    break
                reader = owner
            last[value] = max(last[value], reader)
    return [(maker[value], last[value]) for value in maker]


def _by_crossings(
    graph: GraphInfo, spans: Sequence[tuple[int, int]], nodes: Sequence[int]
) -> list[tuple[str, list[int]]]:
    """Return runs of similar length, cut where the fewest values cross the cut."""
    place = {node: index for index, node in enumerate(nodes)}
    change = [0] * (len(nodes) + 1)
    for first, last in spans:
        if first in place and last in place:
            change[place[first] + 1] += 1
            change[min(place[last] + 1, len(nodes))] -= 1
    crossing = list(itertools.accumulate(change))  # values over the cut before each node
    usual = -(-len(nodes) // min(_PARTS, -(-len(nodes) // (_WHOLE // 2))))
    least, most = max(1, usual // 2), 2 * usual
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(nodes) + 1):
        starts = range(max(0, end - most), end - least + 1)
        # The cost trades crossing values against uneven lengths.
        cost = min(((best[s][0] + crossing[end] + ((end - s) / usual - 1) ** 2, s) for s in starts), default=None)
        best.append(cost or (float("inf"), 0))
    ends = [len(nodes)]
    while ends[-1] and best[ends[-1]][0] < float("inf"):
        ends.append(best[ends[-1]][1])
    cuts = [0, *reversed([end for end in ends if end])]
    return [(_summary(graph, nodes[start:end]), list(nodes[start:end])) for start, end in itertools.pairwise(cuts)]


def _summary(graph: GraphInfo, nodes: Sequence[int]) -> str:
    """Name a run by its most frequent operators with parameters, or else by its most frequent operators."""

    def weighs(node: int) -> bool:
        return any(value is not None and graph.values[value].parameter for _, value in graph.nodes[node].inputs)

    heavy = [node for node in nodes if weighs(node)] or list(nodes)
    counts = Counter(graph.nodes[node].operator for node in heavy)
    names = [name if count == 1 else f"{count} {name}" for name, count in counts.most_common(3)]
    return ", ".join(names) + (", ..." if len(counts) > 3 else "")
