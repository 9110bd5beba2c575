"""The HTML page of a file: graph, state, streams and parameters, with long graphs in sections.

A reader sees about a dozen sections first, and unfolds some. A section is a run of consecutive nodes in the order of
evaluation. A section never needs a value of a later section, so the drawing has no cycle for any choice of folded
sections. Sections follow the modules of the exported network if the exporter names the modules. Otherwise a section
ends where few values cross to the next node.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from jaxrnn._files.messages import as_json, bytes_of, environment
from jaxrnn._files.stores import local_path
from jaxrnn.errors import MissingPackageError, optional_package
from jaxrnn.inspection.card import write_text
from jaxrnn.model.graph_facts import GraphInfo
from jaxrnn.model.inspection import Inspection, inspect_model
from jaxrnn.onnx.reading import Source
from jaxrnn.version import __version__

_TEMPLATES = Path(__file__).parent / "templates"
#: The scripts of the page; each script uses the previous scripts.
_SCRIPTS = ("graph", "text", "cards", "layout", "draw", "view", "hover", "detail", "panel", "main")
#: The signature of the layout function that the page calls.
_LAYOUT = "dagre.layout = (nodes, edges, layout, state) =>"


def write_page(source: Source, path: Path | str, *, symbol: str | None = None) -> None:
    """Write an HTML page that shows the graph, state, streams and parameters of an ONNX file.

    The bodies of Scan, Loop and If unfold in place. State is drawn as arrows from outputs back to inputs, and values
    along time are coloured. The page works offline.

    Args:
        source: path, bytes or ``onnx.ModelProto``; unsupported operators are also shown.
        path: the page to write.
        symbol: the dimension that is time; by default the first dimension that the model can be streamed over.

    Raises:
        ModelError: the file is malformed, inconsistent or unsafe.
        UnsupportedError: the format of the file is not supported.
        InputError: no input has the dimension ``symbol``.
        MissingPackageError: the packages of the extra ``graph`` are not installed.
    """
    library()  # raises before the inspection of a large file, which takes long
    write_text(local_path(path), render(inspect_model(source, streams=symbol or True, graph=True)))


def render(inspection: Inspection) -> str:
    """Return the page as text."""
    page = environment(_TEMPLATES)
    page.filters["bytes"] = bytes_of
    page.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    facts = facts_of(inspection)
    own = "\n".join(_file(f"{name}.js") for name in _SCRIPTS)
    # The block keeps the names of the page out of the scope of the library.
    script = f"{library()}\n{{\n{own}}}\n"
    return page.get_template("page.html").render(
        title=Path(inspection.label).name,
        facts=facts,
        style=_file("page.css"),
        script=script,
        # The browser runs only this script, even if names in the file contain scripts.
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
        credit=f"Layout: dagre as of Netron {metadata.version('netron')}, MIT licence, © Lutz Roeder, © Chris Pettitt.",
    )


def facts_of(inspection: Inspection) -> dict[str, Any]:
    """Return the facts that the page shows, in JSON's types."""
    assert inspection.graph is not None, "the nodes and values were not gathered"
    sections = sections_of(inspection.graph)
    return {
        **as_json(inspection),
        "parameter_count": inspection.parameter_count,
        "parameter_bytes": inspection.parameter_bytes,
        "sections": as_json(sections.sections),
        "section_of_node": sections.of_node,
    }


def library() -> str:
    """Return the source of the layout library, or raise if a package or the layout function of the page is missing."""
    with optional_package(None, "the page of a file", "graph"):
        import jinja2  # noqa: F401

        source = resources.files("netron").joinpath("dagre.js")
    text = source.read_text(encoding="utf-8") if source.is_file() else ""
    if _LAYOUT not in text or "</script" in text:
        raise MissingPackageError(
            f"the page of a file cannot use the layout function of netron {metadata.version('netron')}: "
            "pip install 'netron<10'"
        )
    return text


def _file(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


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
    """Divide nodes of a graph with the same modules down to `depth`, recursively."""
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
    """Return runs of nodes by module, and the depth of the modules; no runs if modules divide the graph unevenly."""
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
    """Return the first and last node of each value: the node that computes the value, and the last reader."""
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
    """Name a run by the most frequent operators, counting only nodes with parameters, if any."""

    def weighs(node: int) -> bool:
        return any(value is not None and graph.values[value].parameter for _, value in graph.nodes[node].inputs)

    heavy = [node for node in nodes if weighs(node)] or list(nodes)
    counts = Counter(graph.nodes[node].operator for node in heavy)
    names = [name if count == 1 else f"{count} {name}" for name, count in counts.most_common(3)]
    return ", ".join(names) + (", ..." if len(counts) > 3 else "")
