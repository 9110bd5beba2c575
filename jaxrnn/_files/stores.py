"""Files on this machine and objects in stores."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import math
import os
import re
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any, TypeVar, cast
from urllib.parse import urlsplit

import numpy as np

from jaxrnn._files.files import check_regular, check_replaceable
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


#: Bytes of the first block, which holds most headers, and of the others: 16 seconds of speech.
HEAD, BLOCK = 2**14, 2**19
#: Bytes of all blocks that are kept; the least recently used go.
KEPT = 2**27
#: Requests at once.
REQUESTS = 32

Item = TypeVar("Item")
Result = TypeVar("Result")


class Blocks:
    """The blocks of all objects that are being read. Threads that need the same one wait for the first of them."""

    def __init__(self, kept: int = KEPT):
        self._kept, self._held = kept, 0
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[Ranges, int], Future[bytes]] = OrderedDict()

    def get(self, ranges: Ranges, first: int, last: int) -> list[bytes]:
        """Blocks ``first`` to ``last`` of an object; those that are missing are one request."""
        with self._lock:
            futures, missing = {}, []
            for index in range(first, last + 1):
                future = self._blocks.pop((ranges, index), None)
                if future is None:
                    future = Future()
                    missing.append(index)
                    self._held += ranges.span(index)[1] - ranges.span(index)[0]
                futures[index] = self._blocks[ranges, index] = future
            while self._held > self._kept and len(self._blocks) > len(futures):
                (other, index), _ = self._blocks.popitem(last=False)
                self._held -= other.span(index)[1] - other.span(index)[0]
        if missing:
            self._fetch(ranges, missing, futures)
        return [future.result() for future in futures.values()]

    def _fetch(self, ranges: Ranges, missing: list[int], futures: dict[int, Future[bytes]]) -> None:
        begin, end = ranges.span(missing[0])[0], ranges.span(missing[-1])[1]
        try:
            data = ranges.url.read_range(begin, end)
        except BaseException as error:
            with self._lock:
                for index in missing:
                    if self._blocks.pop((ranges, index), None) is not None:
                        self._held -= ranges.span(index)[1] - ranges.span(index)[0]
            for index in missing:
                futures[index].set_exception(error)
            raise
        for index in missing:
            start, stop = ranges.span(index)
            futures[index].set_result(data[start - begin : stop - begin])


_BLOCKS = Blocks()


def at_once(
    function: Callable[[Item], Result], items: Iterable[Item], places: Iterable[Location | None]
) -> list[Result]:
    """A function of each item: one after the other, or at once where some of the files are in a store, which is far."""
    if any(isinstance(place, Url) for place in places):
        return list(_threads().map(function, items))
    return list(map(function, items))


def local_copy(place: Location) -> Path:
    """A file or folder on this machine: the place itself, or a copy of what is in a store, until the process ends.

    Raises:
        StoreError: the store cannot be reached.
    """
    if isinstance(place, Path):
        return place
    copy = Path(tempfile.mkdtemp(dir=_copies().name), place.name)
    if place.is_file():
        place.get(copy)
        return copy
    files = {url: copy / url.text[len(place.text) + 1 :] for url in place.below()} if place.is_dir() else {}
    for file in files.values():
        file.parent.mkdir(parents=True, exist_ok=True)
    at_once(lambda url: url.get(files[url]), files, files)
    return copy


@functools.cache
def _copies() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="jaxrnn-")


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(REQUESTS)


class Ranges:
    """The bytes of an object.

    Args:
        url: the object.
        whole: whether any part of it is all of it: for formats that are read from end to end in any case.

    Raises:
        FileNotFoundError: there is no such object.
    """

    def __init__(self, url: Url, *, whole: bool = False):
        self.url, self.size = url, url.size
        self._head = self.size if whole else HEAD

    def span(self, index: int) -> tuple[int, int]:
        """The bytes of a block, from and to."""
        start = self._head + (index - 1) * BLOCK if index else 0
        return start, min(start + BLOCK if index else self._head, self.size)

    def _index(self, place: int) -> int:
        return 0 if place < self._head else 1 + (place - self._head) // BLOCK

    def prepare(self) -> None:
        """Fetch the first block, before a reader in C asks for it that lets no other open a file meanwhile."""
        self.read(0, 1)

    def read(self, start: int, stop: int) -> bytes:
        """Bytes ``start`` to ``stop``, or to the end; fewer where the object has become shorter."""
        stop = min(stop, self.size)
        if start >= stop:
            return b""
        first, last = self._index(start), self._index(stop - 1)
        offset = self.span(first)[0]
        return b"".join(_BLOCKS.get(self, first, last))[start - offset : stop - offset]


class RangeFile(io.RawIOBase):
    """The bytes of an object as a file to read.

    Args:
        ranges: the bytes.
        quiet: for readers in C, through which no exception passes: a read that fails is the end of the file.

    Attributes:
        failure: why a read failed, of a quiet file.
    """

    def __init__(self, ranges: Ranges, *, quiet: bool = False):
        self._ranges, self._quiet, self._place = ranges, quiet, 0
        self.name = ranges.url.name
        self.failure: BaseException | None = None

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The place of the next byte."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._ranges.size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def __exit__(self, *exception: object) -> None:
        """Raise what a quiet file has kept, in place of what came of it."""
        super().__exit__(*exception)  # pyright: ignore[reportArgumentType]
        if self.failure is not None:
            raise self.failure

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as there is room for."""
        try:
            data = self._ranges.read(self._place, self._place + len(buffer)) if self.failure is None else b""
        except Exception as error:
            if not self._quiet:
                raise
            self.failure, data = error, b""
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)


class RangeArray:
    """An array ``[time, ...]`` in an object, whose frames are read when they are asked for.

    Args:
        ranges: the bytes of the object.
        offset: the place of the array in them.
        shape: of the array.
        dtype: of its elements.
        in_columns: whether the first axis is the one that moves fastest; then the whole array is read.
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
