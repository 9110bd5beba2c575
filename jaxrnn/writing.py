"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxrnn.files import check_replaceable
from jaxrnn.locations import Location, Url


@contextmanager
def in_place_of(path: Location) -> Iterator[Path]:
    """A file to write that takes the place of another when all went well, and leaves no trace otherwise.

    It lies beside the other, in a folder of its own: there it gets the rights that any new file of the user's gets. One
    that becomes an object in a store lies in the folder for temporary files: a store takes objects whole.

    Args:
        path: the file that is to be written or replaced; its folder must be there.

    Yields:
        The path to write to.

    Raises:
        InputError: something else than a file is in its place.
        StoreError: a store cannot be reached or refuses.
    """
    if isinstance(path, Url):
        with tempfile.TemporaryDirectory(prefix="jaxrnn-") as folder:
            written = Path(folder, path.name)
            yield written
            path.put(written)
        return
    check_replaceable(path)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        written = Path(folder, path.name)
        yield written
        os.replace(written, path)
