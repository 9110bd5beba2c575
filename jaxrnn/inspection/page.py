"""The HTML page of an ONNX file.

The page carries the library that lays out its graph: the module ``dagre.js`` of Netron, a revision of dagre for graphs
of neural networks. The module is one function of plain data, 105 kB, unchanged since Netron 8.0 (2024), with releases
every few weeks and no dependency. It lays out a few nodes or thousands in milliseconds to seconds.

Other Python packages with a layered layout were rejected: graphviz_anywidget (1.2 MB of WebAssembly, and Jupyter's
widgets), ipyelk (1.9 MB, built into an extension of JupyterLab), dash-cytoscape and ipycytoscape (no release since 2024
and 2022), ai-edge-model-explorer (its page asks a server), and layouts in Python such as fast-sugiyama (the page could
not lay out again when a body unfolds).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrnn._files.messages import as_json, bytes_of, environment
from jaxrnn._files.stores import in_place_of
from jaxrnn.errors import MissingPackageError, optional_package
from jaxrnn.inspection.sections import sections_of
from jaxrnn.model.inspection import Inspection, inspect_model
from jaxrnn.onnx.reading import Source
from jaxrnn.version import __version__

if TYPE_CHECKING:
    from markupsafe import Markup

_TEMPLATES = Path(__file__).parent / "templates"
#: The scripts of the page; each uses the ones before.
_SCRIPTS = ("graph", "text", "cards", "layout", "draw", "view", "hover", "detail", "panel", "main")
#: The signature of the layout function that the page calls.
_LAYOUT = "dagre.layout = (nodes, edges, layout, state) =>"
_TASK, _EXTRA = "the page of a file", "graph"


def write_page(source: Source, path: Path | str, *, symbol: str | None = None) -> None:
    """Write an HTML file that shows an ONNX file: its graph, state, streams and parameters.

    The bodies of Scan, Loop and If unfold in place. State is drawn as arrows from outputs back to inputs, and values
    along time are coloured. The page works offline.

    Args:
        source: path, bytes or ``onnx.ModelProto``; unsupported operators are shown too.
        path: the page to write.
        symbol: the dimension that is time; by default the first dimension that the model can be streamed over.

    Raises:
        ModelError: the file is malformed, inconsistent or unsafe.
        UnsupportedError: the format of the file is not supported.
        InputError: no input has the dimension ``symbol``.
        MissingPackageError: the packages of the extra ``graph`` are not installed.
    """
    write = page_writer()
    write(inspect_model(source, streams=symbol or True, graph=True), Path(path))


def page_writer() -> Callable[[Inspection, Path], None]:
    """Return a function that writes the page of an inspection; raise if packages of the page are missing."""
    with optional_package(None, _TASK, _EXTRA):
        import jinja2  # noqa: F401
    library()  # the inspection of a large file takes long: raise before

    def write(inspection: Inspection, path: Path) -> None:
        page = render(inspection)
        with in_place_of(path) as written:
            written.write_text(page, encoding="utf-8")

    return write


def render(inspection: Inspection) -> str:
    """Return the page as text."""
    page = environment(_TEMPLATES)
    page.filters["bytes"] = bytes_of
    facts = facts_of(inspection)
    own = "\n".join(_file(f"{name}.js") for name in _SCRIPTS)
    # The block keeps the names of the page out of the scope of the library.
    script = f"{library()}\n{{\n{own}}}\n"
    return page.get_template("page.html").render(
        title=Path(inspection.label).name,
        facts=facts,
        data=_embedded(facts),
        style=_file("page.css"),
        script=script,
        # The browser runs this script only, whatever other text the page contains.
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


@cache
def library() -> str:
    """Return the source of the layout library, or raise if this Netron has another layout function."""
    with optional_package("netron", _TASK, _EXTRA):
        source = resources.files("netron").joinpath("dagre.js")
    text = source.read_text(encoding="utf-8") if source.is_file() else ""
    if _LAYOUT not in text or "</script" in text:
        raise MissingPackageError(
            f"the page of a file cannot use the layout function of netron {metadata.version('netron')}: "
            "pip install 'netron<10'"
        )
    return text


def _embedded(facts: dict[str, Any]) -> Markup:
    """Return JSON for a script element, with every character escaped that could end the element."""
    from markupsafe import Markup

    text = json.dumps(facts, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


def _file(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")
