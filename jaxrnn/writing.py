"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxrnn.errors import InputError


@contextmanager
def in_place_of(path: Path) -> Iterator[Path]:
    """A file to write that takes the place of another when all went well, and leaves no trace otherwise.

    It lies beside the other, in a folder of its own: there it gets the rights that any new file of the user's gets.

    Args:
        path: the file that is to be written or replaced; its folder must be there.

    Yields:
        The path to write to.
    """
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        written = Path(folder, path.name)
        yield written
        os.replace(written, path)


def check_writable(path: Path) -> None:
    """Refuse a file whose folder is not there, before any work is done.

    Raises:
        InputError: says what is missing.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}")
