"""Docstrings as Markdown: what mkdocstrings does not know of how they are written here.

A name between single backticks is something of jaxrnn, and becomes a link to its entry in the reference if it has one.
An indented block after ``::`` is code.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from griffe import Alias, Class, Extension, GriffeLoader, Module, Object

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
#: A name of jaxrnn in a docstring. Double backticks are code of any kind.
NAME = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")
#: A paragraph that ends in ``::`` and the indented block after it.
CODE = re.compile(r"^(?P<before>.*)::\n\n(?P<code>(?:(?:    .*)?\n)*    .*)$", re.MULTILINE)


class Docstrings(Extension):
    """Rewrites all docstrings of a package once it has been read."""

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **kwargs: object) -> None:
        """Rewrite the docstrings of this package."""
        if pkg.name != "jaxrnn":
            return
        names = _entries()
        for item in _objects(pkg):
            if item.docstring is not None:
                item.docstring.value = _linked(_fenced(item.docstring.value), item, names)


def _entries() -> dict[str, list[str]]:
    """By name, the paths of what has an entry in the reference."""
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
    """Indented blocks of code between fences."""

    def fenced(block: re.Match[str]) -> str:
        before = "**Example**" if block["before"] == "Example" else f"{block['before']}:"
        return f"{before}\n\n```python\n{textwrap.dedent(block['code'])}\n```"

    return CODE.sub(fenced, text)


def _linked(text: str, item: Object, names: dict[str, list[str]]) -> str:
    """Names of jaxrnn with links, which lead nowhere and are no error if the reference has no such entry."""

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
    """Of several paths, the one in the package of the docstring, else the shortest."""
    package = ".".join(item.path.split(".")[:2])
    return min(paths, key=lambda path: (not path.startswith(package), path.count("."), path))
