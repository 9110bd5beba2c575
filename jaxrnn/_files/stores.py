"""Files on this machine and objects in stores, which drivers of fsspec reach by URL.

A `Location` is a path or a `Url`. A `Url` has the methods of ``pathlib.Path`` that the library calls. A store has no
folders: objects are read in ranges, and written whole or not at all. On this machine, only regular files are read and
replaced, because reading a FIFO or a device may never end.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import functools
import hashlib
import io
import math
import os
import re
import stat
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np

from jaxrnn._files.messages import first_line, too_large
from jaxrnn.errors import InputError, JaxrnnError, MissingPackageError, StoreError, check_kind, optional_package

#: The form of a URL.
URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
#: The number of slash-separated parts that name a store: the scheme, an empty part, and the bucket.
ROOT = 3
#: Bytes of the first read of an object, enough for most headers, and of a block: 16 seconds of speech.
HEAD, BLOCK = 2**14, 2**19
#: Blocks of an object that are kept in memory. Four concurrent readers of a block each use nine in two rounds.
KEPT = 10
#: Facts of a listing that change with the content of an object, in the order of preference.
_VERSIONS = ("ETag", "etag", "e_tag", "generation", "VersionId", "version_id", "md5Hash", "content_md5", "blob_id")
#: Concurrent requests.
REQUESTS = 32

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Url:
    """An object in a store, or a prefix of objects, which serves as a folder.

    Methods raise `StoreError` if the store cannot be reached or refuses after the driver's retries,
    `FileNotFoundError` if the object or bucket does not exist, and `MissingPackageError` if the driver is missing.

    Attributes:
        text: the URL, such as ``s3://bucket/folder/file.wav``.
        known: facts of the object from a listing, or None.
    """

    text: str
    known: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

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
        """The text after the last slash."""
        return self.text.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The file extension, with the dot."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> Url:
        """The URL up to the last slash; the parent of a bucket is the bucket."""
        return self / ".."

    def is_file(self) -> bool:
        """Return True if the object exists."""
        return self._info().get("type") == "file"

    def is_dir(self) -> bool:
        """Return True if there are objects below this prefix."""
        return self._info().get("type") == "directory"

    def exists(self) -> bool:
        """Return True for an object or a prefix of objects."""
        return bool(self._info())

    def _info(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError), self._reached("read") as (fs, path):
            return fs.info(path)
        return {}

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return int(self._facts["size"])

    @property
    def version(self) -> str | None:
        """The version or ETag of the object, which differs for another content; None if the store gives neither."""
        facts = self._facts
        versions = (f"{name} {facts[name]}" for name in _VERSIONS if facts.get(name))
        # A weak ETag of HTTP is the same for contents that only mean the same.
        return next((each for each in versions if "W/" not in each), None)

    @property
    def _facts(self) -> Mapping[str, Any]:
        if self.known is not None:
            return self.known
        with self._reached("read") as (fs, path):
            facts = fs.info(path)
        if facts["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, "it is a prefix of objects, not an object")
        return facts

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Return without effect, because stores have no folders."""

    def below(self) -> Iterator[Url]:
        """Yield all objects below this prefix, with their sizes."""
        with self._reached("listed") as (fs, path):
            found = fs.find(path, detail=True)
        for name, info in found.items():
            relative = name[len(path) :].lstrip("/")
            if relative and not relative.endswith("/") and info["type"] == "file":
                yield Url(
                    f"{self.text}/{relative}", {key: info[key] for key in ("type", "size", *_VERSIONS) if key in info}
                )

    def read_bytes(self, start: int | None = None, stop: int | None = None) -> bytes:
        """Read bytes ``start`` to ``stop``, by default all."""
        with self._reached("read") as (fs, path):
            # Drivers that read ranges through a buffered file would read megabytes ahead.
            options = {} if fs.async_impl or stop is None else {"cache_type": "none"}
            return fs.cat_file(path, start=start, end=stop, **options)

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """Read the object as text."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def open(
        self, mode: str = "r", buffering: int = -1, encoding: str | None = None, errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:  # fmt: skip
        """Read the whole object into memory, and return a readable file."""
        file = io.BytesIO(self.read_bytes())
        return file if "b" in mode else io.TextIOWrapper(file, encoding or "utf-8", errors, newline)

    def get(self, file: Path) -> None:
        """Download the object to a file."""
        with self._reached("read") as (fs, path):
            fs.get_file(path, os.fspath(file))

    def put(self, file: Path) -> None:
        """Upload a file as this object."""
        with self._reached("written") as (fs, path):
            fs.put_file(os.fspath(file), path)

    def create(self, data: bytes) -> None:
        """Write a new object; raise FileExistsError if the object exists.

        If several processes write at once, only one succeeds, provided that the store supports conditional writes.
        """
        with self._reached("written") as (fs, path):
            try:
                fs.pipe_file(path, data, mode="create")
            except OSError as error:
                if error.errno != errno.ENOSYS:
                    raise
                if fs.exists(path):  # a store without conditional writes
                    raise FileExistsError from None
                fs.pipe_file(path, data)

    def unlink(self) -> None:
        """Remove the object."""
        with self._reached("removed") as (fs, path):
            fs.rm_file(path)

    @contextmanager
    def _reached(self, done: str) -> Iterator[tuple[Any, str]]:
        """Yield the driver and the driver's path of the object, and convert the driver's exceptions."""
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
        except Exception as error:  # drivers and their packages raise many kinds
            said, kind = first_line(error, 300).rstrip("."), type(error).__name__
            hint = ""
            if isinstance(error, PermissionError) or "credential" in f"{kind} {said}".lower():
                hint = f": the driver of {self.text.partition(':')[0]}:// needs credentials that may do so"
            raise StoreError(f"{self.text} cannot be {done}: {said} ({kind}){hint}") from error


def _driver(text: str) -> tuple[Any, str]:
    with optional_package("fsspec", f"reaching {text}", "evaluate", "train"):
        from fsspec.core import url_to_fs
    try:
        # Without a cache of listings, new objects of other processes are visible immediately.
        return url_to_fs(text, use_listings_cache=False)
    except ImportError as error:
        missing = getattr(error.__cause__, "name", None) or "its driver"
        raise MissingPackageError(f"{missing} is needed for reaching {text}: pip install {missing}") from error
    except ValueError as error:
        raise InputError(f"{text} cannot be reached: {first_line(error)}") from error


#: A file on this machine, or an object in a store.
Location = Path | Url


def location(text: str | os.PathLike[str] | Location) -> Location:
    """Return the URL or the path that a text names; raise InputError for a URL with a password, or without a bucket."""
    if isinstance(text, Url | Path):
        return text
    text = str(local_path(text)) if isinstance(text, os.PathLike) else text
    check_kind("a file or folder", text, str, "a path or a URL")
    url = URL.fullmatch(text)
    if url is None:
        return Path(text)
    scheme, rest = url[1].lower(), url[2].rstrip("/")
    if scheme == "file":
        host, _, path = rest.partition("/")
        if host not in ("", "localhost"):
            raise InputError(f"{text} names the host {host!r}; a file of this machine is file:///PATH")
        return Path("/", unquote(path))
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise InputError(f"{text} is not a URL: {error}") from error
    if parts.password or parts.username:
        raise InputError(
            f"{scheme}://...@{parts.hostname}: credentials do not belong in a URL, which stands in tables; "
            "give them to the driver by its own variables or files"
        )
    if not rest:
        raise InputError(f"{text} names no bucket")
    return Url(f"{scheme}://{rest}")


def local_path(path: Any) -> Path:
    """Return a path on this machine; raise InputError for an object that is not a path."""
    check_kind("a file or folder", path, str | os.PathLike, "a path")
    return Path(path)


def resolved(folder: Location, text: str) -> Location:
    """Return the location that a text in a folder's file names: a URL, an absolute path, or a relative path."""
    if URL.fullmatch(text):
        return location(text)
    return folder / text if isinstance(folder, Path) or not text.startswith("/") else Path(text)


def files_below(folder: Location, patterns: Iterable[str] = ("**/*",)) -> list[Any]:
    """Return a sorted list of the files below a folder with relative names that match a glob pattern in any case."""
    return listed_below(folder, patterns)[0]


def listed_below(folder: Location, patterns: Iterable[str]) -> tuple[list[Any], Counter[str]]:
    """Return the files of `files_below`, and counts of the kinds of files that the patterns leave out."""
    wanted = [tuple(pattern.lower().split("/")) for pattern in patterns]
    is_deep = any(part == "**" for pattern in wanted for part in pattern)
    depth = math.inf if is_deep else max(map(len, wanted), default=0)
    found: list[Any] = []
    others: Counter[str] = Counter()
    for names, path, kind in _below_folder(folder, depth) if isinstance(folder, Path) else _below_url(folder):
        if kind is None and any(_matches(names, pattern) for pattern in wanted):
            found.append(path)
        else:
            suffix = PurePosixPath(names[-1]).suffix.lower()
            others[kind or (f"*{suffix}" if suffix else "without a suffix")] += 1
    return sorted(found), others


def _below_folder(folder: Path, depth: float) -> Iterator[tuple[list[str], Path, str | None]]:
    """Yield the parts of the relative name, the path and the kind of all files (None) and other entries."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    failed: list[OSError] = []
    for here, folders, files in os.walk(folder, onerror=failed.append, followlinks=True):
        above = list(Path(here).relative_to(folder).parts)
        loops = [name for name in folders if _leads_above(Path(here, name))]
        for name in [*files, *loops]:
            path = Path(here, name)
            yield [*above, name], path, None if path.is_file() else _kind_of(path)
        inside = [name for name in folders if name not in loops]
        folders[:] = inside if len(above) + 1 < depth else []
        for name in inside[len(folders) :]:
            yield [*above, name], Path(here, name), "folders"
    for error in failed:
        path = Path(os.fspath(error.filename))
        yield [*path.relative_to(folder).parts, ""], path, "folders without permission"


def _leads_above(folder: Path) -> bool:
    """Return True for a link to a folder that contains the link."""
    return folder.is_symlink() and Path(os.path.realpath(folder.parent)).is_relative_to(os.path.realpath(folder))


def _kind_of(path: Path) -> str:
    if path.is_symlink():
        return "links to folders above" if path.is_dir() else "links that lead nowhere"
    return "FIFOs, sockets and devices"


def _below_url(folder: Url) -> Iterator[tuple[list[str], Url, str | None]]:
    try:
        files = list(folder.below())
    except FileNotFoundError as error:
        raise InputError(f"there is no folder {folder}: {error.strerror}") from error
    for file in files:
        yield _relative(folder, file).split("/"), file, None


def _matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return True if the parts of a name match those of a glob pattern; ``**`` stands for any number of folders."""
    if not pattern or not names:
        return not pattern and not names
    if pattern[0] == "**":
        return any(_matches(names[start:], pattern[1:]) for start in range(len(names)))
    return fnmatch.fnmatchcase(names[0].lower(), pattern[0]) and _matches(names[1:], pattern[1:])


def check_file(path: Location, most: int | None = None) -> Location:
    """Check a path by `check_regular`; an object is checked when opened."""
    return check_regular(path, most) if isinstance(path, Path) else path


def name_below(folder: Location, file: Location) -> str:
    """Return the name of a file relative to a folder above it, without the suffix."""
    return bare_name(str(file.relative_to(str(folder))) if isinstance(file, Path) else _relative(folder, file))


def bare_name(text: str) -> str:
    """Return a path without the suffix; for a URL, the path below the bucket."""
    name = "/".join(text.split("/")[ROOT:]) if URL.fullmatch(text) else text
    return PurePath(name).with_suffix("").as_posix()


def _relative(folder: Location, file: Url) -> str:
    return file.text[len(str(folder)) + 1 :]


def place(written: Path, path: Location) -> None:
    """Move a finished file to a location."""
    if isinstance(path, Url):
        path.put(written)
        written.unlink()
    else:
        os.replace(written, path)


def local_copy(place: Location) -> Path:
    """Return a path on this machine: the location itself, or a download that is kept until the process ends."""
    if isinstance(place, Path):
        return place
    copy = Path(tempfile.mkdtemp(dir=_copies().name), place.name)
    files = {place: copy} if place.is_file() else {url: copy / _relative(place, url) for url in place.below()}
    for file in files.values():
        file.parent.mkdir(parents=True, exist_ok=True)
    at_once(lambda url: url.get(files[url]), files, files)
    return copy


@functools.cache
def _copies() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="jaxrnn-")


def at_once(
    function: Callable[[Item], Result], items: Iterable[Item], places: Iterable[Location | None]
) -> list[Result]:
    """Map a function over items: in concurrent threads if a place is in a store, else in sequence.

    After an error no further item begins. The error is raised when all threads have finished their items.
    """
    if not any(isinstance(place, Url) for place in places):
        return list(map(function, items))
    futures = [_threads().submit(function, item) for item in items]
    wait(futures, return_when=FIRST_EXCEPTION)
    begun = [future for future in futures if not future.cancel()]  # all, without an error
    wait(begun)
    return [future.result() for future in begun]


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(REQUESTS)


class Ranges:
    """The bytes of an object, read in blocks by any number of threads, with a cache of blocks.

    With ``whole``, the first read fetches the whole object, for formats without random access.
    """

    def __init__(self, url: Url, *, whole: bool = False):
        from fsspec.caching import BlockCache

        self.url, self.size = url, url.size
        self._lock = threading.Lock()
        self._first = self.size if whole else min(HEAD, self.size)
        self._head: bytes | None = None
        self._blocks: Any = BlockCache(BLOCK, self._fetch, self.size, KEPT)

    def read(self, start: int, stop: int) -> bytes:
        """Read bytes ``start`` to ``stop``; fewer at the end of the object."""
        stop = min(stop, self.size)
        if start >= stop:
            return b""
        with self._lock:
            if self._head is None:
                self._head = self.url.read_bytes(0, self._first)
            return self._head[start:stop] if stop <= self._first else self._blocks._fetch(start, stop)

    def _fetch(self, start: int, stop: int) -> bytes:
        head = (self._head or b"")[start:stop]
        return head + self.url.read_bytes(start + len(head), min(stop, self.size))


class RangeFile(io.RawIOBase):
    """The bytes of an object as a readable file.

    With ``quiet``, a failed read looks like the end of the file, for readers in C, which do not forward exceptions. The
    end of the context raises the exception.
    """

    def __init__(self, ranges: Ranges, *, quiet: bool = False):
        self._ranges, self._quiet, self._place = ranges, quiet, 0
        self.name = ranges.url.name
        self._failure: BaseException | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the offset of the next byte."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._ranges.size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer, up to the end of the object."""
        try:
            data = self._ranges.read(self._place, self._place + len(buffer)) if self._failure is None else b""
        except Exception as error:
            if not self._quiet:
                raise
            self._failure, data = error, b""
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # pyright: ignore[reportArgumentType]
        if self._failure is not None:
            raise self._failure


class RangeArray:
    """An array ``[time, ...]`` in an object, from a byte offset on; slices of frames are read on demand.

    With ``in_columns``, the array is in Fortran order, and each read fetches the whole array.
    """

    def __init__(self, ranges: Ranges, offset: int, shape: tuple[int, ...], dtype: np.dtype, in_columns: bool):
        self.shape, self.dtype, self.ndim = shape, dtype, len(shape)
        self._ranges, self._offset, self._in_columns = ranges, offset, in_columns and self.ndim > 1

    def __getitem__(self, frames: slice) -> np.ndarray:
        length, *frame = self.shape
        first, last, _ = frames.indices(length)
        if self._in_columns:
            return self._read(0, length, frame, "F")[first:last]
        return self._read(first, max(first, last), frame, "C")

    def _read(self, first: int, last: int, shape: list[int], order: Any) -> np.ndarray:
        frame = math.prod(shape) * self.dtype.itemsize
        data = self._ranges.read(self._offset + first * frame, self._offset + last * frame)
        return np.frombuffer(data, self.dtype).reshape((last - first, *shape), order=order)


#: Names of kinds of files that are not regular, for messages.
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def check_regular(path: str | os.PathLike[str], most: int | None = None) -> Path:
    """Check that a path leads to a regular file, possibly by a link, of at most `most` bytes; otherwise raise OSError.

    A file that is read whole needs a limit: a sparse file can claim more bytes than any memory has.
    """
    path = local_path(path)
    try:
        found = os.stat(path)
    except ValueError as error:  # a NUL, or characters that no file system supports
        raise OSError(errno.EINVAL, f"{os.fspath(path)!r} cannot be the name of a file") from error
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "of another kind")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file")
    if most is not None and found.st_size > most:
        raise OSError(errno.EFBIG, too_large(found.st_size, most))
    return path


def check_replaceable(path: Path) -> None:
    """Check that a file can be written to a path: raise InputError for a folder, a FIFO or a device."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file in it")
    if path.exists() and not path.is_file():
        kind = _KINDS.get(stat.S_IFMT(path.stat().st_mode), "of another kind")
        raise InputError(f"{path} is {kind}, not a regular file: give the name of a file")


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return a dict of the SHA-256 of regular files in a folder; raise OSError for an unreadable file."""
    return {name: hashlib.sha256(check_regular(folder / name).read_bytes()).hexdigest() for name in names}


def check_writable(path: Path) -> None:
    """Check before any work that a file can be written to a path, in an existing folder; otherwise raise InputError."""
    check_replaceable(path)
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path} cannot be written: the folder {path.parent} is read-only, or belongs to another user")
