"""MkDocs hooks for the gallery: render changed entries, and insert them at the markers of two pages.

With JAXRNN_GALLERY=kept in the environment, the page shows earlier entries, and no entry is rendered.
"""

from __future__ import annotations

import logging
import os
import posixpath
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent


def find_root() -> None:
    """Add the root of the repository to Python's path, as `python -m mkdocs` does but `mkdocs` does not."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))


find_root()

from tools.gallery import home, kept, make, markdown  # noqa: E402

FOLDER = ROOT / "build" / "gallery"
PICTURES = "gallery"
PAGES = {"gallery.md": "<!-- gallery -->", "index.md": "<!-- players and numbers -->"}

_logger = logging.getLogger("mkdocs.hooks.gallery")


def on_config(config: MkDocsConfig) -> None:
    """Add the root again, because MkDocs restores the path after loading a hook."""
    find_root()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pictures and sounds, and fill in the page of the gallery and the home page."""
    if os.environ.get("JAXRNN_GALLERY") == "kept":
        entries = kept(FOLDER)
    else:
        entries = make(FOLDER, watch=lambda name: _logger.info("Gallery: making %s", name))
    for made in entries:
        if made.missing:
            _logger.info("Gallery: no %s, which needs %s", made.name, made.missing)
        for path in sorted((FOLDER / made.name).glob("*.svg")) + sorted((FOLDER / made.name).glob("*.flac")):
            uri = f"{PICTURES}/{made.name}/{path.name}"
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    for uri, marker in PAGES.items():
        page = files.get_file_from_path(uri)
        assert page is not None, f"docs/{uri} is there"
        sounds = posixpath.relpath(PICTURES, posixpath.dirname(page.dest_uri) or ".")
        if uri == "index.md":
            content = home(entries[0], sounds=sounds)
        else:
            content = markdown(entries, pictures=PICTURES, sounds=sounds)
        text = page.content_string.replace(marker, content)
        files.remove(page)
        files.append(File.generated(config, uri, content=text))
    return files
