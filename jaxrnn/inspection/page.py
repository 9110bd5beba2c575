"""The page: its parts in one file that needs no other."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from jaxrnn.inspection.library import credit, library
from jaxrnn.inspection.sections import sections_of
from jaxrnn.messages import bytes_of
from jaxrnn.model.inspection import Inspection, inspect_model
from jaxrnn.onnx.reading import Source
from jaxrnn.plain import plain
from jaxrnn.version import __version__
from jaxrnn.writing import in_place_of

_TEMPLATES = Path(__file__).parent / "templates"
_SCRIPTS = ("graph.js", "layout.js", "draw.js", "view.js", "panel.js", "main.js")


def write_page(source: Source, path: Path | str, *, symbol: str | None = None) -> None:
    """Write one HTML file that shows an ONNX file: its graph, state, streams and parameters.

    The bodies of Scan, Loop and If unfold in place, state is drawn as arrows from outputs back to inputs, and values
    that move in time have a colour. The page needs no network.

    Args:
        source: path, bytes or ``onnx.ModelProto``; operators that cannot be run are shown too.
        path: the page to write.
        symbol: the dimension that is time; without it, the first that the model can be streamed over.

    Raises:
        ModelError: the file is malformed, inconsistent or unsafe.
        UnsupportedError: its format is not supported.
        InputError: no input has that dimension.
    """
    write_inspection(inspect_model(source, streams=symbol or True, graph=True), path)


def write_inspection(inspection: Inspection, path: Path | str) -> None:
    """Write the page of a file whose nodes and values were gathered."""
    with in_place_of(Path(path)) as written:
        written.write_text(render(inspection), encoding="utf-8")


def render(inspection: Inspection) -> str:
    """The page as text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["bytes"] = bytes_of
    facts = facts_of(inspection)
    own = "\n".join(_file(name) for name in _SCRIPTS)
    # Names of the library's own stay apart from the page's; "</" would end the script.
    script = f"{library()}\n{{\n{own}}}\n".replace("</script", "<\\/script")
    return environment.get_template("page.html").render(
        title=Path(inspection.label).name,
        facts=facts,
        data=_embedded(facts),
        style=_file("page.css"),
        script=script,
        # The browser runs this script and no other, whatever text is in the page.
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
        credit=credit(),
    )


def facts_of(inspection: Inspection) -> dict[str, Any]:
    """What the page shows, in JSON's types."""
    assert inspection.graph is not None, "the nodes and values were not gathered"
    sections = sections_of(inspection.graph)
    return {
        **plain(inspection),
        "parameter_count": inspection.parameter_count,
        "parameter_bytes": inspection.parameter_bytes,
        "sections": plain(sections.sections),
        "section_of_node": sections.of_node,
    }


def _embedded(facts: dict[str, Any]) -> Markup:
    """JSON as the content of a script element: no text in it can end that, or begin a comment."""
    text = json.dumps(facts, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


def _file(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")
