"""Conversion of docstrings to Markdown for mkdocstrings.

A name of jaxrnn between single backticks becomes a link if the reference has an entry for the name. An indented block
after ``::`` becomes a block of code.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from griffe import Alias, Class, Extension, GriffeLoader, Module, Object

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
#: A name of jaxrnn in a docstring. Double backticks mark other code.
NAME = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")
#: A paragraph that ends in ``::`` and the indented block after it.
CODE = re.compile(r"^(?P<before>.*)::\n\n(?P<code>(?:(?:    .*)?\n)*    .*)$", re.MULTILINE)


class Docstrings(Extension):
    """A Griffe extension that rewrites the docstrings of jaxrnn."""

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **kwargs: object) -> None:
        """Rewrite all docstrings of a loaded package if the package is jaxrnn."""
        if pkg.name != "jaxrnn":
            return
        names = _entries()
        for item in _objects(pkg):
            if item.docstring is not None:
                item.docstring.value = _linked(_fenced(item.docstring.value), item, names)


def _entries() -> dict[str, list[str]]:
    """Return the paths of the entries in the reference, by name."""
    names: dict[str, list[str]] = {}
    for page in sorted(REFERENCE.glob("*.md")):
        for path in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            names.setdefault(path.rpartition(".")[2], []).append(path)
    return names


def _objects(item: Object) -> Iterator[Object]:
    yield item
    for member in item.members.values():
        if not isinstance(member, Alias):
            yield from _objects(member)


def _fenced(text: str) -> str:
    """Put fences around indented blocks of code."""

    def fenced(block: re.Match[str]) -> str:
        before = "**Example**" if block["before"] == "Example" else f"{block['before']}:"
        return f"{before}\n\n```python\n{textwrap.dedent(block['code'])}\n```"

    return CODE.sub(fenced, text)


def _linked(text: str, item: Object, names: dict[str, list[str]]) -> str:
    """Add optional links to names of jaxrnn. A name without an entry in the reference stays without a link."""

    def linked(name: re.Match[str]) -> str:
        path = _path(name[1], item, names)
        code = f"<code>{name[1]}</code>"
        return code if path is None else f'<autoref identifier="{path}" optional>{code}</autoref>'

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else NAME.sub(linked, part) for part in parts)


def _path(name: str, item: Object, names: dict[str, list[str]]) -> str | None:
    """Return the path of a name in a docstring: a member of the same class, or any documented name."""
    if name.startswith("jaxrnn."):
        return name
    first, _, rest = name.partition(".")
    owner = item if isinstance(item, Class) else item.parent
    if isinstance(owner, Class) and first in owner.all_members:
        return f"{_nearest(names.get(owner.name, [owner.path]), item)}.{name}"
    if first not in names:
        return None
    return ".".join(filter(None, [_nearest(names[first], item), rest]))


def _nearest(paths: list[str], item: Object) -> str:
    """Return the path in the package of the docstring, or else the shortest path."""
    package = ".".join(item.path.split(".")[:2])
    return min(paths, key=lambda path: (not path.startswith(package), path.count("."), path))
