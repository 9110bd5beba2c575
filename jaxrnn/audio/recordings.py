"""Recordings on disk or in a store, read part by part: sound, or arrays ``[time, ...]``."""

from __future__ import annotations

import contextlib
import math
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from scipy import signal

from jaxrnn._files.arrays import check_header, members_of, read_member, readable
from jaxrnn._files.progress import note
from jaxrnn._files.stores import Location, RangeArray, RangeFile, Ranges, check_file, listed_below
from jaxrnn.audio.sounds import check_finite, resampling
from jaxrnn.errors import InputError, optional_package

#: Suffixes of array files; all other files are sound.
ARRAYS = (".npy", ".npz")

#: Suffixes of sounds with random access. Other sounds in a store, such as MP3, are read whole.
SEEKABLE = (".wav", ".flac", ".aif", ".aiff", ".au", ".caf", ".rf64", ".w64")

#: libsndfile reports at least this number of frames for a sound of unknown length.
UNKNOWN = 2**62

#: Concurrent readers of files.
THREADS = 8

#: Samples that are checked at once.
CHECKED = 2**22

#: The array name of sound and of NPY files.
SAMPLES = "samples"

#: An array in memory or in a file.
Array = np.ndarray | RangeArray


def recordings_below(folder: Location, patterns: Sequence[str], what: str = "recordings") -> list[Any]:
    """Return the recordings below a folder, sorted by path; a line on standard error counts all that is left out.

    Raises:
        InputError: the folder does not exist, or has no recordings.
        StoreError: the store cannot be reached.
    """
    found, others = listed_below(folder, patterns)
    if not found:
        raise InputError(f"{folder} has no {what}: no files match {', '.join(patterns)}")
    if others:
        listed = ", ".join(f"{count:,} {kind}" for kind, count in others.most_common())
        note(f"{folder}: {len(found):,} {what}; left out: {listed}")
    return found


def open_recording(path: Location, rate: int | None, *, finite: bool = True) -> Recording:
    """Open a WAV, FLAC or other sound, or a NumPy file of arrays ``[time, ...]``; sound is resampled to ``rate``.

    ``rate`` None keeps the rate of the file. ``finite`` refuses a sound with NaN or infinities when that part is read.
    """
    try:
        check_file(path)
        recording = ArrayFile(path) if path.suffix.lower() in ARRAYS else SoundFile(path, rate, finite)
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}: {error.strerror}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    if not recording.length:
        raise InputError(f"{path} is empty: it holds no frame")
    return recording


class SoundFile:
    """A sound, averaged over channels and resampled while reading.

    A part equals the same part of the whole file resampled by ``scipy.signal.resample_poly``: the filter has finite
    length, so reading a part needs a fixed number of samples on either side.
    """

    frame: Mapping[str, tuple[int, ...]] = {SAMPLES: ()}
    kinds: Mapping[str, str] = {SAMPLES: "floats"}

    def __init__(self, path: Location, rate: int | None, finite: bool):
        self.path, self._finite = path, finite
        self._ranges = None if isinstance(path, Path) else Ranges(path, whole=path.suffix.lower() not in SEEKABLE)
        with self._opened() as file:
            self._frames, file_rate, channels, said = file.frames, file.samplerate, file.channels, file.extra_info
        if self._frames >= UNKNOWN:
            raise InputError(f"{path} has no length in its header: write the file again with a tool that sets it")
        self.form, self._cut = f"{file_rate:,} samples a second in {channels} channel{'s' * (channels > 1)}", _cut(said)
        self._up, self._down = resampling(path, file_rate, file_rate if rate is None else rate)
        self.length = -(-self._frames * self._up // self._down)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        with optional_package("soundfile", "reading sound", "audio"):
            import soundfile
        with contextlib.ExitStack() as stack:
            source: Any = self.path
            if self._ranges is not None:
                # While libsndfile, in C, waits for the first block, it would let no other thread open a file.
                self._ranges.read(0, 1)
                source = stack.enter_context(RangeFile(self._ranges, quiet=True))
            try:
                file = stack.enter_context(soundfile.SoundFile(source))
            except soundfile.LibsndfileError as error:
                raise InputError(f"{self.path} cannot be read: {error.error_string}") from error
            except TypeError as error:  # raw samples without a header
                raise InputError(f"{self.path} cannot be read: {error}") from error
            yield file

    def check(self, *, headers: bool = False) -> None:
        """Read all samples, at the rate of the file; raise an InputError if one is bad or missing."""
        if self._cut:
            raise InputError(f"{self.path} is cut: {self._cut}")
        for first in range(0, 0 if headers else self._frames, CHECKED):
            self._read(first, min(first + CHECKED, self._frames))

    def part(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Read samples ``float32[stop - start]`` at the requested rate, full scale 1."""
        first, last = max(start, 0), min(stop, self.length)
        if first >= last:
            return {SAMPLES: np.zeros(stop - start, np.float32)}
        samples = self._read(first, last) if self._up == self._down else self._resampled(first, last)
        return {SAMPLES: np.pad(samples, (first - start, stop - last))}

    def _read(self, first: int, last: int) -> np.ndarray:
        with self._opened() as file:
            try:
                file.seek(first)
                samples = file.read(last - first, dtype="float32", always_2d=True)
            except Exception as error:  # libsndfile raises several types
                raise InputError(f"{self.path} cannot be read from sample {first} on: {error}") from error
        if self._finite:
            check_finite(samples, self.path, first)
        if len(samples) < last - first:
            raise InputError(f"{self.path} ends at sample {first + len(samples)}, but says that it has {self._frames}")
        return samples[:, 0] if samples.shape[1] == 1 else samples.mean(1, dtype=np.float32)

    def _resampled(self, first: int, last: int) -> np.ndarray:
        # The filter of resample_poly reads this many samples of the file on either side.
        reach = -(-10 * max(self._up, self._down) // self._up) + 1
        begin = max(0, (first * self._down // self._up - reach) // self._down) * self._down
        end = min(self._frames, -(-last * self._down // self._up) + reach)
        samples = signal.resample_poly(self._read(begin, end).astype(np.float64), self._up, self._down)
        offset = begin // self._down * self._up
        return samples[first - offset : last - offset].astype(np.float32)


def _cut(said: str) -> str | None:
    """Return what libsndfile says of a header that declares more bytes than the file has, or None.

    A program that wrote into a pipe did not know the length, and declared the largest.
    """
    for line in re.finditer(r"(\w+) +: (\d+) \(should be (\d+)\)", said):
        if int(line[3]) < int(line[2]) < 2**31 - 2**16:
            return f"its header says {int(line[2]):,} bytes, but {int(line[3]):,} are there"
    return None


class ArrayFile:
    """The array of a NPY file, or a dict of the arrays of a NPZ file, each ``[time, ...]``.

    Between two parts, no file stays open and no array stays in memory. Only compressed arrays are kept, from the first
    part to the last.
    """

    def __init__(self, path: Location):
        self.path = path
        self._ranges = None if isinstance(path, Path) else Ranges(path)
        self._unpacked: dict[str, np.ndarray] = {}
        arrays = self._arrays()
        shapes: dict[str, tuple[int, ...]] = {name: array.shape for name, array in arrays.items()}
        if len({shape[:1] for shape in shapes.values()}) != 1 or () in shapes.values():
            raise InputError(f"{path}: expected arrays [time, ...] of one length, not {shapes}")
        self.length = next(iter(shapes.values()))[0]
        self.frame: Mapping[str, tuple[int, ...]] = {name: shape[1:] for name, shape in shapes.items()}
        kinds = {"f": "floats", "c": "complex numbers"}
        self.kinds: Mapping[str, str] = {
            name: kinds.get(array.dtype.kind, "integers") for name, array in arrays.items()
        }
        self.form = f"frames of {dict(self.frame)} with {dict(self.kinds)}"
        self._unpacked = {}

    def check(self, *, headers: bool = False) -> None:
        """Read all numbers; raise an InputError if one is bad or missing."""
        for first in range(0, 0 if headers else self.length, CHECKED // 16):
            for name, frames in self.part(first, min(first + CHECKED // 16, self.length)).items():
                check_finite(frames, f"{self.path}, {name!r}", first)

    def _arrays(self) -> Mapping[str, Array]:
        with readable(self.path), self._opened() as file:
            if self.path.suffix.lower() == ".npy":
                size = file.seek(0, os.SEEK_END)
                file.seek(0)
                return {SAMPLES: self._mapped(*check_header(file, size, self.path.name), file.tell())}
            with zipfile.ZipFile(file) as archive:
                return {name: self._member(archive, member) for name, member in members_of(archive).items()}

    def _opened(self) -> IO[bytes]:
        return self.path.open("rb") if self._ranges is None else cast(IO[bytes], RangeFile(self._ranges))

    def _member(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
        if member.compress_type != zipfile.ZIP_STORED:
            # Another thread that reads the last part may release the arrays at any moment.
            array = self._unpacked.get(member.filename)
            if array is None:
                array = self._unpacked[member.filename] = read_member(archive, member)
            return array
        with archive.open(member) as file:
            header, offset = check_header(file, member.file_size, member.filename), file.tell()
        with self._opened() as file:
            # The offset is in the local header, which may differ from the header in the archive's directory.
            file.seek(member.header_offset + 26)
            name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
        return self._mapped(*header, member.header_offset + 30 + name + extra + offset)

    def _mapped(self, shape: tuple[int, ...], in_columns: bool, dtype: np.dtype, offset: int) -> Array:
        """Return a lazily read array."""
        if not math.prod(shape):
            return np.zeros(shape, dtype)
        if self._ranges is not None:
            return RangeArray(self._ranges, offset, shape, dtype, in_columns)
        return np.memmap(str(self.path), dtype, "r", offset, shape, "F" if in_columns else "C")

    def part(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Read frames ``[stop - start, ...]`` of all arrays."""
        first, last = max(start, 0), max(min(stop, self.length), 0)
        parts = {}
        for name, array in self._arrays().items():
            with readable(self.path):
                frames = np.array(array[first : max(first, last)])
            before = min(first, stop) - start
            pads = [(before, stop - start - before - len(frames)), *[(0, 0)] * (array.ndim - 1)]
            parts[name] = np.pad(frames, pads)
        if stop >= self.length:
            self._unpacked = {}
        return parts


#: A recording that is read part by part. ``length`` is the number of frames: samples at the requested rate, or the
#: first axis of arrays. By array, ``frame`` is the shape of one frame, and ``kinds`` the kind of the numbers.
Recording = SoundFile | ArrayFile
