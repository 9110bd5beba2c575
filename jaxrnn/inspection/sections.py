"""Sections of a long graph, so that people see a dozen parts first and open those that they want to look into.

A section is a run of nodes in the order in which they are computed, so no section needs a value of a later one, and
whatever is folded, what is left to draw has no cycle. Runs follow the modules that nodes come from, where exporters
tell; elsewhere they end where few values are handed on.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxrnn.model.graph_facts import GraphInfo

#: Graphs up to this many nodes stay as they are, and others have so many parts.
_WHOLE, _PARTS = 36, 12
#: Modules are sections where that leaves no more parts than this, none with more than this share of the graph.
_MODULES, _SHARE = 28, 0.9
#: The fewest nodes that are a section.
_FEWEST = 4


@dataclass(frozen=True)
class Section:
    """A run of nodes: its name, the number of the graph, and that of the section that it is a part of."""

    name: str
    graph: int
    parent: int | None


@dataclass
class Sections:
    """The sections of a file's graphs, and by node the section that it is in."""

    sections: list[Section] = field(default_factory=list)
    of_node: list[int | None] = field(default_factory=list)


def sections_of(graph: GraphInfo) -> Sections:
    """The sections of all graphs of a file."""
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
    """Divide nodes, all of one graph, that come from the same modules down to a depth."""
    for node in nodes:
        found.of_node[node] = parent
    if len(nodes) <= _WHOLE:
        return
    runs, depth = _by_module(graph, nodes, depth)
    named = bool(runs)
    if sum(1 if len(run) >= _FEWEST else len(run) for _, run in runs) > _MODULES:
        runs, named = [], False
    for name, run in runs or _by_hand_over(graph, spans, nodes):
        if len(run) >= _FEWEST:
            found.sections.append(Section(name, number, parent))
            _divide(graph, found, spans, run, number, len(found.sections) - 1, depth + named)


def _by_module(graph: GraphInfo, nodes: Sequence[int], depth: int) -> tuple[list[tuple[str, list[int]]], int]:
    """Runs of nodes from one module each, and the depth of these modules; none where modules do not cut well."""
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
            else:  # small ones beside each other are one
                rest = [node for _, run in group for node in run]
                joined.append((_summary(graph, rest), rest))
        return joined, depth


def _spans(graph: GraphInfo) -> list[tuple[int, int]]:
    """By value, the first node of its graph that makes or reads it and the last one, graphs inside of these counted."""
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


def _by_hand_over(
    graph: GraphInfo, spans: Sequence[tuple[int, int]], nodes: Sequence[int]
) -> list[tuple[str, list[int]]]:
    """Runs of about equal length, cut where the fewest values are handed on."""
    place = {node: index for index, node in enumerate(nodes)}
    change = [0] * (len(nodes) + 1)
    for first, last in spans:
        if first in place and last in place:
            change[place[first] + 1] += 1
            change[min(place[last] + 1, len(nodes))] -= 1
    handed = list(itertools.accumulate(change))  # over the cut before each node
    usual = -(-len(nodes) // min(_PARTS, -(-len(nodes) // (_WHOLE // 2))))
    least, most = max(1, usual // 2), 2 * usual
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(nodes) + 1):
        starts = range(max(0, end - most), end - least + 1)
        # Lengths are even but for what fewer values are worth.
        cost = min(((best[s][0] + handed[end] + ((end - s) / usual - 1) ** 2, s) for s in starts), default=None)
        best.append(cost or (float("inf"), 0))
    ends = [len(nodes)]
    while ends[-1] and best[ends[-1]][0] < float("inf"):
        ends.append(best[ends[-1]][1])
    cuts = [0, *reversed([end for end in ends if end])]
    return [(_summary(graph, nodes[start:end]), list(nodes[start:end])) for start, end in itertools.pairwise(cuts)]


def _summary(graph: GraphInfo, nodes: Sequence[int]) -> str:
    """What a run without a name is called: the operators with parameters, or else the most frequent ones."""

    def weighs(node: int) -> bool:
        return any(value is not None and graph.values[value].parameter for _, value in graph.nodes[node].inputs)

    heavy = [node for node in nodes if weighs(node)] or list(nodes)
    counts = Counter(graph.nodes[node].operator for node in heavy)
    said = [name if count == 1 else f"{count} {name}" for name, count in counts.most_common(3)]
    return ", ".join(said) + (", ..." if len(counts) > 3 else "")
