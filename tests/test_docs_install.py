"""What a page installs is what its code imports."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [page for page in sorted(ROOT.glob("docs/*.md")) if "\n```python\n" in page.read_text(encoding="utf-8")]
NAME = re.compile(r"([\w.-]+)(?:\[([^]]*)\])?")


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.cache
def distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


def providers(package: str) -> set[str]:
    """The distributions that bring a package; where none is installed, that of its name."""
    return set(map(normalised, distributions().get(package, [package])))


@functools.cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def brought(requirement: str) -> set[str]:
    """The distributions that a requirement names, those of jaxrnn and its extras among them."""
    found = NAME.match(requirement)
    assert found is not None
    name, extras = found.groups("")
    names = {normalised(name)}
    if normalised(name) == "jaxrnn":
        optional = project()["optional-dependencies"]
        further = [
            *project()["dependencies"],
            *(each for extra in extras.split(",") if extra for each in optional[extra]),
        ]
        names.update(*map(brought, further))
    return names


def installed(text: str) -> set[str]:
    """The distributions that the commands of a page install, and jaxrnn with what it needs."""
    lines = re.findall(r"\bpip install ([^#\n]*)", text)
    words = [word.strip("'\"") for line in lines for word in line.split() if not word.startswith("-")]
    return set().union(*map(brought, ["jaxrnn", *filter(NAME.match, words)]))


def imported(text: str) -> set[str]:
    """The packages that the code of a page imports, but for those of Python and jaxrnn."""
    names = set()
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                names.add(str(node.module))
    return {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"jaxrnn"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_how_to_install_what_it_imports(page):
    text = page.read_text(encoding="utf-8")
    here = installed(text)
    assert [name for name in sorted(imported(text)) if here.isdisjoint(providers(name))] == []
