"""Every public name has a docstring, an example and an entry in the reference; examples of docstrings run."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from test_package import MODULES

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted((DOCS / "reference").glob("*.md"))
#: What mkdocstrings shows in its place.
ENTRY = re.compile(r"^::: (jaxrnn[\w.]*)$(?:\n    options:\n      members: \[(.*)\]$)?", re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def resolved(path: str) -> Any:
    """What a dotted path stands for."""
    module, rest = path, []
    while True:
        try:
            return functools.reduce(getattr, rest, importlib.import_module(module))
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest = [last, *rest]


def public_objects() -> dict[str, Any]:
    """Every public name by the shortest of its paths."""
    paths = [f"{module}.{name}" for module in MODULES for name in importlib.import_module(module).__all__]
    first: dict[Any, str] = {}
    for path in sorted(paths, key=lambda path: (path.count("."), path)):
        item = resolved(path)
        first.setdefault(id(item), path)
    return {path: resolved(path) for path in first.values()}


def members(item: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that a class of jaxrnn defines, or inherits from a private one."""
    for base in item.__mro__:
        if base.__module__.startswith("jaxrnn"):
            for name, member in vars(base).items():
                kinds = (property, functools.cached_property, classmethod, staticmethod)
                if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, kinds)):
                    yield name, member


def code_of(page: Path) -> str:
    """The code of a page, and of the pages and scripts of this repository that it links to."""
    text = page.read_text(encoding="utf-8")
    code = PYTHON.findall(text)
    for target in re.findall(r"\]\(([^)#:]+)", text):
        linked = (page.parent / target).resolve()
        if linked.suffix == ".py":
            code.append(linked.read_text(encoding="utf-8"))
        elif linked.suffix == ".md" and linked.parent == DOCS:
            code += PYTHON.findall(linked.read_text(encoding="utf-8"))
    return "\n".join(code)


def examples_in(text: str | None) -> list[str]:
    """The indented blocks of code of a docstring, after ``::``."""
    blocks = re.findall(r"::\n\n((?:(?:    .*)?\n)*    .*)$", inspect.cleandoc(text or ""), re.MULTILINE)
    return [inspect.cleandoc("\n" + block) for block in blocks]


def test_every_public_name_has_docstring_example_and_entry():
    entries = {path: (page, shown) for page in PAGES for path, shown in ENTRY.findall(page.read_text(encoding="utf-8"))}
    by_object = {id(resolved(path)): entry for path, entry in entries.items()}
    missing = []
    for path, item in public_objects().items():
        if id(item) not in by_object:
            missing.append(f"{path}: no entry")
            continue
        page, shown = by_object[id(item)]
        code = "\n".join([code_of(page), *examples_in(item.__doc__)])
        if not re.search(rf"(?<!\w){path.rpartition('.')[2]}\b", code):
            missing.append(f"{path}: no example")
        if (inspect.isclass(item) or inspect.isfunction(item)) and not item.__doc__:
            missing.append(f"{path}: no docstring")
        # An entry that lists the members of a class leaves out those that are none of its users'.
        for name, member in members(item) if isinstance(item, type) else ():
            if shown and name not in shown.split(", "):
                continue
            if not inspect.getdoc(member):
                missing.append(f"{path}.{name}: no docstring")
            if not re.search(rf"\.{name}\b", code):
                missing.append(f"{path}.{name}: no example")
    assert not missing, "\n".join(missing)
