"""The page: its parts in one file that needs no other."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from markupsafe import Markup

from jaxrnn._files.messages import bytes_of, environment, plain
from jaxrnn.inspection.library import credit, library
from jaxrnn.inspection.sections import sections_of
from jaxrnn.model.inspection import Inspection
from jaxrnn.version import __version__

_TEMPLATES = Path(__file__).parent / "templates"
#: In the order in which they build on each other.
_SCRIPTS = ("graph", "text", "cards", "layout", "draw", "view", "hover", "detail", "panel", "main")


def render(inspection: Inspection) -> str:
    """The page as text."""
    page = environment(_TEMPLATES)
    page.filters["bytes"] = bytes_of
    facts = facts_of(inspection)
    own = "\n".join(_file(f"{name}.js") for name in _SCRIPTS)
    # Names of the library's own stay apart from the page's.
    script = f"{library()}\n{{\n{own}}}\n"
    return page.get_template("page.html").render(
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
