"""Where files are: paths on this machine, and URLs of objects in stores.

A `Url` has the methods of ``pathlib.Path`` that the rest of the library calls, so that a `Location` is either.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from jaxrnn._files.files import check_regular
from jaxrnn._files.urls import ROOT, URL, Url
from jaxrnn.errors import InputError

#: A file on this machine, or an object in a store.
Location = Path | Url


def location(text: str | os.PathLike[str] | Location) -> Location:
    """The location that a text names: a URL, or else a path.

    Raises:
        InputError: it is a URL with a password, or of nothing.
    """
    if isinstance(text, Url | Path):
        return text
    text = os.fspath(text)
    url = URL.fullmatch(text)
    if url is None:
        return Path(text)
    scheme, rest = url[1].lower(), url[2].rstrip("/")
    if scheme == "file":
        return Path("/", rest)
    parts = urlsplit(text)
    if parts.password or parts.username:
        raise InputError(
            f"{scheme}://...@{parts.hostname}: credentials do not belong in a URL, which stands in tables; "
            "give them to the driver by its own variables or files"
        )
    if not rest:
        raise InputError(f"{text} names no bucket")
    return Url(f"{scheme}://{rest}")


def joined(folder: Location, text: str) -> Location:
    """The location that a text names for something in a folder: a URL, an absolute path, or relative to the folder."""
    if URL.fullmatch(text):
        return location(text)
    return folder / text if isinstance(folder, Path) or not text.startswith("/") else Path(text)


def files_below(folder: Location, patterns: Iterable[str] = ("**/*",)) -> list[Any]:
    """The files below a folder whose relative names fit one of some patterns, in the order of their names.

    Args:
        folder: the folder.
        patterns: with ``*``, ``?``, ``[...]`` and ``**``.

    Raises:
        InputError: there is no such folder, or no such bucket.
    """
    if isinstance(folder, Path):
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder}")
        return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
    expressions = [re.compile(_translated(pattern)) for pattern in patterns]
    try:
        files = list(folder.below())
    except FileNotFoundError as error:
        raise InputError(f"there is no folder {folder}: {error.strerror}") from error
    return sorted(file for file in files if any(each.match(_relative(folder, file)) for each in expressions))


def _translated(pattern: str) -> str:
    from fsspec.utils import glob_translate

    return glob_translate(pattern)


def check_file(path: Location) -> Location:
    """What can be opened as a file: a regular one; of an object, only opening it tells.

    Raises:
        OSError: there is no such file, or it is of another kind.
    """
    return check_regular(path) if isinstance(path, Path) else path


def is_file(path: Location) -> bool:
    """Whether there is such a file; a name that no file can have is that of none."""
    return os.path.isfile(path) if isinstance(path, Path) else path.is_file()


def name_below(folder: Location, file: Location) -> str:
    """The name of a file relative to a folder that it is below of, without its suffix."""
    return bare_name(str(file.relative_to(str(folder))) if isinstance(file, Path) else _relative(folder, file))


def bare_name(text: str) -> str:
    """A path without its suffix; of a URL, what follows the bucket."""
    name = "/".join(text.split("/")[ROOT:]) if URL.fullmatch(text) else text
    return PurePath(name).with_suffix("").as_posix()


def _relative(folder: Location, file: Url) -> str:
    return file.text[len(str(folder)) + 1 :]
