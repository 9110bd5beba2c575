"""Checks for regular files: a FIFO may never answer, a device may never end, and neither may be replaced by a file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from jaxrnn.errors import InputError

#: What a path may lead to in place of a regular file.
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def check_regular(path: str | os.PathLike[str]) -> Path:
    """Check that a path leads to a regular file, possibly by a link; otherwise raise OSError."""
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:  # a NUL, or what no file system can spell
        raise OSError(errno.EINVAL, f"{os.fspath(path)!r} cannot be the name of a file") from error
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(mode), 'of another kind')}, not a regular file")
    return Path(path)


def check_replaceable(path: Path) -> None:
    """Check that a file can be written to a path: raise InputError for a folder, a FIFO or a device."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file in it")
    if path.exists() and not path.is_file():
        kind = _KINDS.get(stat.S_IFMT(path.stat().st_mode), "of another kind")
        raise InputError(f"{path} is {kind}, not a regular file: give the name of a file")


def check_writable(path: Path) -> None:
    """Check before any work that a file can be written to a path, in an existing folder; otherwise raise InputError."""
    check_replaceable(path)
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}")
