"""NumPy files of arrays from untrusted sources: no header can cause a large allocation."""

from __future__ import annotations

import contextlib
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from jaxrnn._files.messages import bytes_of, too_large
from jaxrnn._files.stores import Location, check_file, location
from jaxrnn.errors import InputError

#: The default limit of an array in a file: 2**31 float32 numbers.
MAX_ARRAY_BYTES = 2**33
#: The limits of the bytes in a compressed file: a number of bytes, and a multiple of the size of the file; the larger
#: limit applies. Recordings and weights shrink to a half or a tenth, and masks or labels to a thousandth.
UNPACKED, RATIO = 2**30, 100

#: The errors of NumPy and zipfile for broken files.
BROKEN = (
    ValueError, EOFError, KeyError, RuntimeError, MemoryError, SyntaxError, tokenize.TokenError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_arrays(path: str | os.PathLike[str] | Location) -> np.ndarray | dict[str, np.ndarray]:
    """Read the array of a ``.npy`` file, or the arrays of a ``.npz`` file as a dict."""
    path = location(path)
    with readable(path), check_file(path).open("rb") as file:
        is_archive = file.read(2) == b"PK"
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if not is_archive:
            return _read(file, size, "the array")
        with zipfile.ZipFile(file) as archive:
            return {name: read_member(archive, member) for name, member in members_of(archive).items()}


def read_npz(path: Location) -> dict[str, np.ndarray]:
    """Return a dict of the arrays of a ``.npz`` file."""
    loaded = read_arrays(path)
    if isinstance(loaded, np.ndarray):
        raise InputError(f"{path} holds one array without a name; write it with numpy.savez(path, name=array)")
    return loaded


def read_shapes(path: Location) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of a ``.npz`` file, from the headers."""
    with readable(path), check_file(path).open("rb") as file, zipfile.ZipFile(file) as archive:
        shapes = {}
        for name, member in members_of(archive).items():
            with archive.open(member) as header:
                shapes[name] = check_header(header, member.file_size, name)[0]
        return shapes


@contextlib.contextmanager
def readable(path: str | os.PathLike[str] | Location) -> Iterator[None]:
    """Convert errors inside of the context to an InputError that names the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except BROKEN as error:
        raise InputError(
            f"{path} does not hold NumPy arrays of numbers: {error}; write it with numpy.save or numpy.savez"
        ) from error


def members_of(archive: zipfile.ZipFile) -> Mapping[str, zipfile.ZipInfo]:
    """Return a dict of the entries of an archive without reading the arrays."""
    members = archive.infolist()
    assert archive.fp is not None, "it is open"
    held = archive.fp.seek(0, os.SEEK_END)
    size, allowed = sum(member.file_size for member in members), max(UNPACKED, RATIO * held)
    if size > allowed:
        raise InputError(
            f"it unpacks to {bytes_of(size)} from {bytes_of(held)}, and no more than {bytes_of(allowed)} are allowed "
            "for a file of that size; write it with numpy.savez, which does not pack"
        )
    return {member.filename.removesuffix(".npy"): member for member in members}


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Read an array of an archive."""
    with archive.open(member) as file:
        return _read(file, member.file_size, member.filename)


def _read(file: Any, size: int, label: str) -> np.ndarray:
    shape, _, dtype = check_header(file, size, label)
    needed = math.prod(shape) * dtype.itemsize
    if needed > MAX_ARRAY_BYTES:
        raise InputError(f"{label}: {too_large(needed, MAX_ARRAY_BYTES)}")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def check_header(file: BinaryIO | Any, size: int, label: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header of an array, and check that the array is not larger than the file.

    Returns the shape, True for Fortran order, and the element type. Afterwards, the file is at the first byte of the
    array. ``size`` is in bytes, including the header; ``label`` names the array in messages. Raises ValueError for an
    invalid header, missing data, or an array of objects.
    """
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"{label} is of version {version} of the format")
    shape, in_columns, dtype = _HEADERS[version](file)
    needed, held = math.prod(shape) * dtype.itemsize, size - file.tell()
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"{label} holds objects and not numbers")
    if min(shape, default=0) < 0 or needed > held:
        raise ValueError(f"{label} says it is {dtype}{list(shape)}, which takes {needed} bytes, but holds {held}")
    return shape, in_columns, dtype
