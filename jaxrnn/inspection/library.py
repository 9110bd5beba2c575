"""The library that lays graphs out in layers, which a page carries with it.

It is the module ``dagre.js`` of Netron, a revision of dagre for graphs of neural networks: one function of plain data,
105 kB, the same since Netron 8.0 (2024), with releases every few weeks and no dependency. A few nodes or thousands take
it milliseconds to seconds. Other Python packages that bring a layout in layers: graphviz_anywidget (1.2 MB of
WebAssembly, and the whole of Jupyter's widgets), ipyelk (1.9 MB, built into an extension of JupyterLab), dash-cytoscape
and ipycytoscape (no release since 2024 and 2022; built into one bundle each), ai-edge-model-explorer (a page of its own
that asks a server), and layouts in Python, such as fast-sugiyama, which a page could not do again when a body unfolds.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata, resources

from jaxrnn.errors import MissingPackageError, optional_package

#: How the module begins what it does; another one is none that a page can carry.
_LAYOUT = "dagre.layout = (nodes, edges, layout, state) =>"


@cache
def library() -> str:
    """The module's source, in which ``dagre.layout(nodes, edges, options, state)`` places the nodes and edges.

    Raises:
        MissingPackageError: Netron is not installed, or no longer brings the module in this form.
    """
    with optional_package("netron", "the page of a file", "graph"):
        source = resources.files("netron").joinpath("dagre.js")
    text = source.read_text(encoding="utf-8") if source.is_file() else ""
    if _LAYOUT not in text or "</script" in text:
        raise MissingPackageError(
            f"netron {metadata.version('netron')} lays graphs out in another way than the page of a file knows: "
            "pip install 'netron<10'"
        )
    return text


def credit() -> str:
    """What the page says about it."""
    return f"Layout: dagre as of Netron {metadata.version('netron')}, MIT licence, © Lutz Roeder, © Chris Pettitt."
