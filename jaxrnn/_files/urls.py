"""Objects in stores by URL, which fsspec's drivers reach.

A store has whole objects and no folders: an object is read in ranges, and written whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from jaxrnn._files.messages import first_line
from jaxrnn.errors import InputError, JaxrnnError, MissingPackageError, StoreError, optional_package

#: The form of a URL.
URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
#: The number of parts between slashes that name a store: its scheme, nothing, and the bucket.
ROOT = 3


@dataclass(frozen=True)
class Url:
    """An object in a store, or the objects below a prefix, which is a folder as far as names go.

    Every method raises `StoreError` where the store cannot be reached or refuses, once the driver's own retries have
    failed, and `MissingPackageError` where the driver is not installed.

    Attributes:
        text: the URL, such as ``s3://bucket/folder/file.wav``.
        known_size: bytes of the object, where a listing has told.
    """

    text: str
    known_size: int | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    def __lt__(self, other: Url) -> bool:
        return self.text.split("/") < other.text.split("/")

    def __truediv__(self, name: str) -> Url:
        parts = self.text.split("/")
        for part in name.split("/"):
            if part == "..":
                del parts[max(ROOT, len(parts) - 1) :]
            elif part not in ("", "."):
                parts.append(part)
        return Url("/".join(parts))

    @property
    def name(self) -> str:
        """What stands after the last slash."""
        return self.text.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The end of the name, from its last dot on."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> Url:
        """What stands before the last slash; of a bucket, itself."""
        return self / ".."

    def info(self) -> Mapping[str, Any]:
        """What the store says of it: its ``type``, and its ``size`` in bytes.

        Raises:
            FileNotFoundError: there is nothing.
        """
        with self._reached("read") as (fs, path):
            return fs.info(path)

    def is_file(self) -> bool:
        """Whether there is such an object."""
        return self._type() == "file"

    def is_dir(self) -> bool:
        """Whether there are objects below it."""
        return self._type() == "directory"

    def exists(self) -> bool:
        """Whether it is either."""
        return self._type() is not None

    def _type(self) -> str | None:
        try:
            return self.info()["type"]
        except FileNotFoundError:
            return None

    @property
    def size(self) -> int:
        """Bytes of the object.

        Raises:
            FileNotFoundError: there is no such object.
        """
        if self.known_size is not None:
            return self.known_size
        info = self.info()
        if info["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, "objects lie below it, but it is none")
        return int(info["size"])

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: in a store, a name makes its folders."""

    def below(self) -> Iterator[Url]:
        """All objects below it, with their sizes."""
        with self._reached("listed") as (fs, path):
            found = fs.find(path, detail=True)
        for name, info in found.items():
            relative = name[len(path) :].lstrip("/")
            if relative and not relative.endswith("/") and info["type"] == "file":
                yield Url(f"{self.text}/{relative}", int(info["size"]))

    def read_range(self, start: int, stop: int) -> bytes:
        """Bytes ``start`` to ``stop``.

        Raises:
            FileNotFoundError: there is no such object.
        """
        with self._reached("read") as (fs, path):
            # Files of drivers that read by way of them would fetch megabytes in advance.
            options = {} if fs.async_impl else {"cache_type": "none"}
            return fs.cat_file(path, start=start, end=stop, **options)

    def read_bytes(self) -> bytes:
        """The whole object.

        Raises:
            FileNotFoundError: there is no such object.
        """
        with self._reached("read") as (fs, path):
            return fs.cat_file(path)

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """The whole object as text.

        Raises:
            FileNotFoundError: there is no such object.
        """
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def open(
        self, mode: str = "r", buffering: int = -1, encoding: str | None = None, errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:  # fmt: skip
        """The whole object as a file in memory, to read.

        Raises:
            FileNotFoundError: there is no such object.
        """
        file = io.BytesIO(self.read_bytes())
        return file if "b" in mode else io.TextIOWrapper(file, encoding or "utf-8", errors, newline)

    def get(self, file: Path) -> None:
        """Read the whole object into a file on this machine.

        Raises:
            FileNotFoundError: there is no such object.
        """
        with self._reached("read") as (fs, path):
            fs.get_file(path, os.fspath(file))

    def unlink(self) -> None:
        """Remove the object."""
        with self._reached("removed") as (fs, path):
            fs.rm_file(path)

    def put(self, file: Path) -> None:
        """Write the object, from a file on this machine: it is there as a whole or not at all.

        Raises:
            FileNotFoundError: there is no such bucket.
        """
        with self._reached("written") as (fs, path):
            fs.put_file(os.fspath(file), path)

    def write_bytes(self, data: bytes) -> None:
        """Write the object: it is there as a whole or not at all.

        Raises:
            FileNotFoundError: there is no such bucket.
        """
        with self._reached("written") as (fs, path):
            fs.pipe_file(path, data)

    def create(self, data: bytes) -> None:
        """Write an object that is not there yet; of several that do so at once, one succeeds.

        Raises:
            FileExistsError: it is there.
            FileNotFoundError: there is no such bucket.
        """
        with self._reached("written") as (fs, path):
            try:
                fs.pipe_file(path, data, mode="create")
            except OSError as error:
                if error.errno != errno.ENOSYS:
                    raise
                # A store without conditional writes: two that do so in the same moment both succeed.
                if fs.exists(path):
                    raise FileExistsError from None
                fs.pipe_file(path, data)

    @contextlib.contextmanager
    def _reached(self, done: str) -> Iterator[tuple[Any, str]]:
        """The driver and the object's path for it; what fails inside becomes one of the errors of the class."""
        path = ""
        try:
            fs, path = _driver(self.text)
            yield fs, path
        except JaxrnnError:
            raise
        except FileNotFoundError as error:
            said = first_line(error)
            raise FileNotFoundError(errno.ENOENT, "no such object" if path in said else said) from error
        except FileExistsError as error:
            raise FileExistsError(errno.EEXIST, "it exists") from error
        except Exception as error:  # of the driver and of the packages below it, of many kinds
            said = first_line(error, 300).rstrip(".")
            kind = type(error).__name__
            hint = ""
            if isinstance(error, PermissionError) or "credential" in f"{kind} {said}".lower():
                hint = f": the driver of {self.text.partition(':')[0]}:// needs credentials that may do so"
            raise StoreError(f"{self.text} cannot be {done}: {said} ({kind}){hint}") from error


def _driver(text: str) -> tuple[Any, str]:
    """The file system of fsspec for a URL, and the path in it.

    Raises:
        InputError: there is no driver for the scheme.
        MissingPackageError: its package is not installed.
    """
    with optional_package("fsspec", f"reaching {text}", "evaluate", "train"):
        from fsspec.core import url_to_fs
    try:
        # What another process writes is seen at once.
        return url_to_fs(text, use_listings_cache=False)
    except ImportError as error:
        missing = getattr(error.__cause__, "name", None) or "its driver"
        raise MissingPackageError(f"{missing} is needed for reaching {text}: pip install {missing}") from error
    except ValueError as error:
        raise InputError(f"{text} cannot be reached: {first_line(error)}") from error
