"""Objects in stores read in ranges: in blocks, each of which is fetched once while it is in use."""

from __future__ import annotations

import functools
import io
import math
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jaxrnn._files.locations import Location, Url

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
