"""Where files are: paths on this machine, and URLs of objects in stores, which fsspec's drivers reach.

A `Url` has the methods of ``pathlib.Path`` that the rest of the library calls, so that a `Location` is either. A store
has whole objects and no folders: an object is read in ranges, and written whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any
from urllib.parse import urlsplit

from jaxrnn.errors import InputError, MissingPackageError, StoreError, optional_package
from jaxrnn.files import check_regular
from jaxrnn.messages import first_line

#: The form of a URL, and the scheme of files on this machine.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_FILE = "file"
#: The number of parts between slashes that name a store: its scheme, nothing, and the bucket.
_ROOT = 3


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
                del parts[max(_ROOT, len(parts) - 1) :]
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
        fs, path = _driver(self.text)
        try:
            yield fs, path
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
                hint = f": the driver {type(fs).__module__.partition('.')[0]} needs credentials that may do so"
            raise StoreError(f"{self.text} cannot be {done}: {said} ({kind}){hint}") from error


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
    url = _URL.fullmatch(text)
    if url is None:
        return Path(text)
    scheme, rest = url[1].lower(), url[2].rstrip("/")
    if scheme == _FILE:
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
    if _URL.fullmatch(text):
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


def name_below(folder: Location, file: Location) -> str:
    """The name of a file relative to a folder that it is below of, without its suffix."""
    return bare_name(str(file.relative_to(str(folder))) if isinstance(file, Path) else _relative(folder, file))


def bare_name(text: str) -> str:
    """A path without its suffix; of a URL, what follows the bucket."""
    name = "/".join(text.split("/")[_ROOT:]) if _URL.fullmatch(text) else text
    return PurePath(name).with_suffix("").as_posix()


def _relative(folder: Location, file: Url) -> str:
    return file.text[len(str(folder)) + 1 :]


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
