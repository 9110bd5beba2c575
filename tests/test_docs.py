"""The pages of the documentation run, print what they show, and refer to files that are there."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import matplotlib as mpl
import pytest
from tiers import of_tiers

DOCS = Path(__file__).resolve().parent.parent / "docs"
PICTURES = DOCS / "pictures"
BLOCK = re.compile(
    r"^(?:<!-- needs: (?P<needs>[^>]+) -->\n+)?```(?P<language>python|text)\n(?P<content>.*?)^```$", re.M | re.S
)
#: The first line of a page none of whose code runs without these packages.
NEEDS = re.compile(r"<!-- needs: ([^>]+) -->\n")


class Block(NamedTuple):
    """A block of code or of what it prints: the lines before its content, and the packages that it needs."""

    language: str
    content: str
    line: int
    needs: str


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["content"], text[: found.start("content")].count("\n"), found["needs"] or "")
        for found in BLOCK.finditer(text)
    ]


def missing(needs: str) -> list[str]:
    """The packages of ``name, name`` that are not installed; what is no package (``a GPU``) always is missing."""
    return [name for name in map(str.strip, needs.split(",")) if name and importlib.util.find_spec(name) is None]


#: The pages whose code runs: all that have any.
PAGES = sorted(
    page.relative_to(DOCS).as_posix()
    for page in DOCS.rglob("*.md")
    if "\n```python\n" in page.read_text(encoding="utf-8")
)
#: Pages that are made when the site is built; `mkdocs build --strict` checks links to them.
MADE = {"changelog.md", "contributing.md", "security.md", "reference/cli.md"}


@pytest.mark.parametrize("name", of_tiers(PAGES, ["functions.md"]))
def test_code_runs_and_prints_what_the_page_shows(name, tmp_path, monkeypatch):
    """The blocks of one page run in one namespace; a block of text behind one of code is what it prints.

    ``<!-- needs: torch, onnxscript -->`` before a block, or as the first line of a page, leaves it out where one of the
    packages is missing; the test then says so and counts as skipped after all other blocks have run.
    """
    monkeypatch.chdir(tmp_path)  # a page may write files
    page = DOCS / name
    whole_page = NEEDS.match(page.read_text(encoding="utf-8"))
    if whole_page and missing(whole_page[1]):
        pytest.skip(f"{name} needs {', '.join(missing(whole_page[1]))}")
    namespace: dict[str, object] = {"__name__": "page"}
    printed: str | None = ""
    left_out = {}
    for block in blocks_of(page):
        if block.language == "text":
            if printed is not None:
                lines = [text.rstrip() for text in printed.splitlines()]
                assert lines == block.content.splitlines(), f"{name}, line {block.line}"
            continue
        if missing(block.needs):
            left_out[block.line], printed = missing(block.needs), None
            continue
        output = io.StringIO()
        # The line numbers of the page stand in tracebacks.
        code = compile("\n" * block.line + block.content, str(page), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(output):
            exec(code, namespace)
        printed = output.getvalue()
    if left_out:
        pytest.skip("; ".join(f"line {line} needs {', '.join(names)}" for line, names in left_out.items()))


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_found_and_every_output_shown(name):
    """No block prints what the page does not show."""
    blocks = blocks_of(DOCS / name)
    text = (DOCS / name).read_text(encoding="utf-8")
    assert sum(block.language == "python" for block in blocks) == len(re.findall(r"^ *```python", text, re.M))
    for block, behind in zip(blocks, [*blocks[1:], None], strict=True):
        shown = behind is not None and behind.language == "text"
        assert block.language != "python" or ("print(" in block.content) == shown, f"{name}, line {block.line}"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        assert "://" in target or path.exists() or path.relative_to(DOCS).as_posix() in MADE, target


def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw", PICTURES / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_are_those_of_the_script(tmp_path):
    drawn = drawing().draw(tmp_path)
    assert {path.name for path in drawn} == {path.name for path in PICTURES.glob("*.svg")}
    for path in drawn:
        kept = (PICTURES / path.name).read_bytes()
        assert len(kept) < 90_000
        # Another matplotlib may place a glyph elsewhere.
        if f"Matplotlib v{mpl.__version__}".encode() in kept:
            assert path.read_bytes() == kept, f"run docs/pictures/draw.py: {path.name} has changed"


#: Words that mark a module with a shortcut: private names of JAX, derivative rules and forms by platform.
SHORTCUTS = re.compile(r"jax\._src|xla_client|@jax\.custom_[jv][vj]p|partial\(jax\.custom|by_platform\(")


def test_every_shortcut_has_tests_that_exist():
    """The table names modules and tests that exist, and every module that `SHORTCUTS` finds."""
    _, table = (DOCS / "architecture.md").read_text(encoding="utf-8").split("\n## Shortcuts")
    lines = [line for line in table.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    package, tests = DOCS.parent / "jaxrnn", DOCS.parent / "tests"
    named = set()
    for shortcut, where, equal, by in rows[2:]:
        modules, functions = re.findall(r"`([\w/]+\.py)`", where), re.findall(r"`(\w+\.py)::(\w+)`", by)
        assert modules, shortcut
        assert functions, shortcut
        assert equal, shortcut
        assert [name for name in modules if not (package / name).is_file()] == [], shortcut
        for name, function in functions:
            assert f"\ndef {function}(" in (tests / name).read_text(encoding="utf-8"), f"{name}::{function}"
        named.update(modules)
    found = (path for path in package.rglob("*.py") if SHORTCUTS.search(path.read_text(encoding="utf-8")))
    assert {path.relative_to(package).as_posix() for path in found} - named == set()
