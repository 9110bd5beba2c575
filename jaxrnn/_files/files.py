"""Files are regular ones: a FIFO may never answer, a device may never end, and neither is to be replaced by a file."""

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
    """The path of a regular file, which may be a link to one.

    Raises:
        OSError: there is no such file, or it is of another kind.
    """
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:  # a NUL, or what no file system can spell
        raise OSError(errno.EINVAL, f"{os.fspath(path)!r} cannot be the name of a file") from error
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(mode), 'of another kind')}, not a regular file")
    return Path(path)


def check_replaceable(path: Path) -> None:
    """Refuse a path that leads to something else than a file, where a file is to be written.

    Raises:
        InputError: names what is there.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file in it")
    if path.exists() and not path.is_file():
        kind = _KINDS.get(stat.S_IFMT(path.stat().st_mode), "of another kind")
        raise InputError(f"{path} is {kind}, not a regular file: give the name of a file")


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written where it is to be, before any work is done.

    Raises:
        InputError: the folder is not there, or something else than a file is in the file's place.
    """
    check_replaceable(path)
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}")
