"""The table of public names on the first page of the reference: ``python -m tools.reference_page [--write]``.

The names are the entries of `docs/reference/*.md`, and the sentences are the first lines of docstrings.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import griffe

from jaxrnn._files.writing import in_place_of

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
PAGE = FOLDER / "index.md"
HEAD = """## All names

The first line of each docstring. `python -m tools.reference_page --write` makes this table.

| name | what it is or does |
|---|---|
"""


def entries() -> list[tuple[str, str]]:
    """Return the names of all entries, sorted, with their pages."""
    found = [
        (name, page.name)
        for page in FOLDER.glob("*.md")
        for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    return sorted(found, key=lambda each: each[0].lower())


def table() -> str:
    """Return the table, with its heading. The sources are read as the site reads them, and not imported."""
    package = griffe.load("jaxrnn", search_paths=[str(FOLDER.parents[1])], resolve_aliases=True)
    rows = []
    for name, page in entries():
        found = package[name.removeprefix("jaxrnn.")]
        if found.is_module:  # a module and its function have one name
            found = found[name.rpartition(".")[2]]
        docstring = found.docstring
        if docstring is None:
            raise ValueError(f"{name} has no docstring")
        line = re.sub(r"``([^`]+)``", r"`\1`", docstring.value.partition("\n")[0]).replace("|", "\\|")
        rows.append(f"| [`{name}`]({page}#{name}) | {line} |")
    return HEAD + "\n".join(rows) + "\n"


def with_table(page: str) -> str:
    """Return the page with the table of today as its last section."""
    return page.partition("## All names")[0].rstrip() + "\n\n" + table()


if __name__ == "__main__":
    text = with_table(PAGE.read_text(encoding="utf-8"))
    if "--write" in sys.argv[1:]:
        with in_place_of(PAGE) as path:
            path.write_text(text, encoding="utf-8")
    else:
        print(table(), end="")
