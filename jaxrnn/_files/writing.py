"""Files and objects that are written whole or not at all, and those that grow."""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from jaxrnn._files.files import check_replaceable
from jaxrnn._files.locations import Location, Url


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
            place(written, path)
        return
    check_replaceable(path)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        written = Path(folder, path.name)
        yield written
        place(written, path)


def place(written: Path, path: Location) -> None:
    """Move a finished file into its place, whole or not at all.

    Raises:
        OSError: the disk or the bucket does not take it.
        StoreError: a store cannot be reached or refuses.
    """
    if isinstance(path, Url):
        path.put(written)
        written.unlink()
    else:
        os.replace(written, path)


def open_new(path: Location, check: Callable[[], object] = lambda: None) -> IO[bytes]:
    """A file to append to, which must not be there.

    Args:
        path: the file.
        check: called before an object in a store is written, which others may also do; may raise.

    Raises:
        FileExistsError: it is there.
        StoreError: a store cannot be reached or refuses.
    """
    return path.open("xb") if isinstance(path, Path) else cast(IO[bytes], GrowingObject(path, check))


class GrowingObject(io.BytesIO):
    """An object to append to. A store has no appending: all of it is written again, after some time and at its end.

    Args:
        url: the object, which must not be there.
        check: called before it is written.

    Attributes:
        PAUSE: seconds without a write after one, at least.
        SHARE: of the time, at most, that goes into writes.

    Raises:
        FileExistsError: it is there.
    """

    PAUSE, SHARE = 1.0, 0.1

    def __init__(self, url: Url, check: Callable[[], object]):
        super().__init__()
        check()
        url.create(b"")
        self._url, self._check, self._written, self._due = url, check, 0, 0.0

    def flush(self) -> None:
        """Write what has come, unless that was done just before."""
        if time.monotonic() >= self._due:
            self._write()

    def close(self) -> None:
        """Write what has come."""
        if not self.closed:
            self._write()
        super().close()

    def _write(self) -> None:
        before, self._written = self._written, self.tell()
        if self._written == before:
            return  # or that has failed, and those who wrote it know
        began = time.monotonic()
        self._check()
        self._url.write_bytes(self.getvalue())
        now = time.monotonic()
        self._due = now + max(self.PAUSE, (now - began) / self.SHARE)
