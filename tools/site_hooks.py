"""MkDocs hooks that add pages for files outside of ``docs``.

Pages are read in the repository and on the site. In both, a link to a file of the repository is a relative path, such
as ``../examples/stream_function.py``. On the site, the link leads to a page with the text of the file, or to a copy of
the file if it is not shown as text (a picture, a table of results). Links to missing files stay unchanged, so that the
build warns.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from tools import cli_page

ROOT = Path(__file__).parent.parent
#: Files at the root that are pages of the site. The README is the first page.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "security.md",
}
#: Files that are shown as text, and their languages.
LANGUAGES = {".py": "python", ".sh": "sh", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}
#: The target of a relative link or picture, without the anchor.
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#\s])")
FENCED = re.compile(r"^(`{3,}|~{3,}).*?^\1`*[ ]*$", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add links to view and edit pages if the configuration has the address of the repository."""
    config.edit_uri = "edit/main/docs/" if config.repo_url else None
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, the page of the command line, and linked files outside of ``docs``."""
    for name, uri in PAGES.items():
        if uri not in files.src_uris:
            text = (ROOT / name).read_text(encoding="utf-8")
            moved = LINK.sub(lambda link: posixpath.relpath(link[1], "docs"), text)
            files.append(File.generated(config, uri, content=moved))
    files.append(File.generated(config, "reference/cli.md", content=cli_page.page()))
    pages = files.documentation_pages()
    for target in sorted({target for page in pages for target in outside(page.src_uri, page.content_string)}):
        file = shown(target, config)
        if file.src_uri not in files.src_uris:
            files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links to files outside of ``docs`` by links to the added pages."""
    folder = posixpath.dirname(page.file.src_uri)
    if page.parent is None:  # a tab with a single page needs no navigation
        page.meta.setdefault("hide", ["navigation"])

    def moved(link: re.Match[str]) -> str:
        target = repository_path(page.file.src_uri, link[1])
        return link[1] if target is None else posixpath.relpath(place(target), folder or ".")

    return outside_of_code(markdown, lambda text: LINK.sub(moved, text))


def outside(page: str, text: str) -> set[str]:
    """Return the files outside of ``docs`` that a page links to, relative to the root of the repository."""
    targets = {repository_path(page, link[1]) for link in LINK.finditer(FENCED.sub("", text))}
    return {target for target in targets if target is not None and target not in PAGES}


def repository_path(page: str, link: str) -> str | None:
    """Return the path of a link's file from the root of the repository; None inside of ``docs``, or without a file."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith(("docs/", "../")) or not (ROOT / path).is_file() else path


def place(target: str) -> str:
    """Return the path on the site of a file outside of ``docs``."""
    if target in PAGES:
        return PAGES[target]
    return f"source/{target}.md" if language(target) is not None else f"source/{target}"


def language(target: str) -> str | None:
    """Return the language in which a file is shown; None if the file is copied."""
    return "text" if target == "LICENSE" else LANGUAGES.get(Path(target).suffix)


def shown(target: str, config: MkDocsConfig) -> File:
    """Return the page or the copy of a file."""
    if language(target) is None:
        file = File.generated(config, place(target), abs_src_path=str(ROOT / target))
    else:
        text = (ROOT / target).read_text(encoding="utf-8").rstrip("\n")
        fence = "`" * 4
        front = f"---\ntitle: {Path(target).name}\nsearch:\n  exclude: true\n---\n\n# `{target}`\n\n"
        content = f'{front}{fence}{language(target)} linenums="1"\n{text}\n{fence}\n'
        file = File.generated(config, place(target), content=content)
    file.inclusion = InclusionLevel.NOT_IN_NAV
    return file


def outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """Change the parts of a text outside of fenced code."""
    parts: list[str] = []
    start = 0
    for code in FENCED.finditer(text):
        parts += [change(text[start : code.start()]), code[0]]
        start = code.end()
    return "".join([*parts, change(text[start:])])
