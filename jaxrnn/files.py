"""Files that are read: regular ones, since a FIFO may never answer and a device may never end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

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
