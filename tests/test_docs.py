"""The pages of the documentation run, print what they show, and refer to files that are there."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from pathlib import Path
from types import ModuleType

import matplotlib as mpl
import pytest
from tiers import of_tiers

DOCS = Path(__file__).parent.parent / "docs"
PICTURES = DOCS / "pictures"
#: The pages whose code runs, and how many blocks of it they have at least.
PAGES = {
    "streaming.md": 12,
    "training.md": 9,
    "flax.md": 8,
    "linen.md": 5,
    "equinox.md": 5,
    "functions.md": 5,
    "low-precision.md": 5,
    "evaluation.md": 4,
    "platforms.md": 2,
    "compiled.md": 3,
    "deploying.md": 6,
}
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(page: Path) -> list[tuple[str, str, int]]:
    """Language, content and the line before the content of every block of code or of its output."""
    text = page.read_text(encoding="utf-8")
    return [(found[1], found[2], text[: found.start(2)].count("\n")) for found in BLOCK.finditer(text)]


@pytest.mark.parametrize(("name", "blocks"), of_tiers(PAGES.items(), [("functions.md", PAGES["functions.md"])]))
def test_code_runs_and_prints_what_the_page_shows(name, blocks, tmp_path, monkeypatch):
    """The blocks of one page run in one namespace; a block of text behind one of code is what it prints."""
    monkeypatch.chdir(tmp_path)  # a page may write files
    page = DOCS / name
    namespace: dict[str, object] = {"__name__": "page"}
    printed, runs = "", 0
    for language, content, line in blocks_of(page):
        if language == "text":
            assert [text.rstrip() for text in printed.splitlines()] == content.splitlines(), f"{page.name}, line {line}"
            continue
        output = io.StringIO()
        # The line numbers of the page stand in tracebacks.
        code = compile("\n" * line + content, str(page), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(output):
            exec(code, namespace)
        printed, runs = output.getvalue(), runs + 1
    assert runs >= blocks


@pytest.mark.parametrize("name", PAGES)
def test_every_output_is_shown(name):
    """No block prints what the page does not show."""
    kinds = [(language, "print(" in content) for language, content, _ in blocks_of(DOCS / name)]
    for (language, prints), (behind, _) in zip(kinds, [*kinds[1:], ("", False)], strict=True):
        assert language != "python" or prints == (behind == "text")


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


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
        assert len(kept) < 60_000
        # Another matplotlib may place a glyph elsewhere.
        if f"Matplotlib v{mpl.__version__}".encode() in kept:
            assert path.read_bytes() == kept, f"run docs/pictures/draw.py: {path.name} has changed"
