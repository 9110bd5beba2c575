"""MkDocs hooks for the gallery: render changed entries, and insert all entries at the marker of the page.

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

from tools.gallery import kept, make, markdown  # noqa: E402

FOLDER = ROOT / "build" / "gallery"
PAGE, PICTURES = "gallery.md", "gallery"
MARKER = "<!-- gallery -->"

_logger = logging.getLogger("mkdocs.hooks.gallery")


def on_config(config: MkDocsConfig) -> None:
    """Add the root again, because MkDocs restores the path after loading a hook."""
    find_root()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pictures and sounds, and fill in the page of the gallery."""
    page = files.get_file_from_path(PAGE)
    assert page is not None, f"docs/{PAGE} is there"
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
    sounds = posixpath.relpath(PICTURES, posixpath.dirname(page.dest_uri) or ".")
    text = page.content_string.replace(MARKER, markdown(entries, pictures=PICTURES, sounds=sounds))
    files.remove(page)
    files.append(File.generated(config, PAGE, content=text))
    return files
