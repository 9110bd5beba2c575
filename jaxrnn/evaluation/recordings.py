"""A recording on disk, of which any part can be read without the rest: sound, or arrays with time in front."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy import signal

from jaxrnn.arrays import check_header, members_of, read_member, readable
from jaxrnn.errors import InputError, MissingPackageError
from jaxrnn.evaluation.limits import resampling

#: Endings of files that hold arrays; all others are sound.
ARRAYS = (".npy", ".npz")

#: Frames that libsndfile tells of a sound whose file does not say how many there are, or more.
UNKNOWN = 2**62

#: Where a part of a recording is one array without a name of its own.
SAMPLES = "samples"


class Recording(Protocol):
    """What can be read part by part.

    Attributes:
        length: frames in all: samples of a sound at the rate that was asked for, or the arrays' first axis.
        frame: by array, the shape of one frame.
    """

    length: int
    frame: Mapping[str, tuple[int, ...]]

    def part(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """The frames from ``start`` to ``stop``, with zeros where there are none."""
        ...


def open_recording(path: Path, rate: int, channel: int | None = None) -> Recording:
    """Look at a file: its length and what it holds, without reading all of it.

    Args:
        path: a WAV, FLAC or other sound, or a NumPy file of arrays ``[time, ...]``.
        rate: samples a second that a sound is wanted in.
        channel: which channel of a sound with several; None for their mean.

    Raises:
        InputError: there is no such file, it is empty, or it is not what its ending says.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    recording = ArrayFile(path) if path.suffix.lower() in ARRAYS else SoundFile(path, rate, channel)
    if not recording.length:
        raise InputError(f"{path} is empty: it holds no frame")
    return recording


class SoundFile:
    """A sound, resampled while it is read.

    A part is equal to the same part of the whole file resampled by ``scipy.signal.resample_poly``: the filter is of
    finite length, so that a part needs only as much more around it.
    """

    frame: Mapping[str, tuple[int, ...]] = {SAMPLES: ()}

    def __init__(self, path: Path, rate: int, channel: int | None = None):
        self.path, self._channel = path, channel
        with self._opened() as file:
            self._frames, own, channels = file.frames, file.samplerate, file.channels
        if channel is not None and not 0 <= channel < channels:
            raise InputError(f"{path} has {channels} channel(s), so there is no channel {channel} (they count from 0)")
        if self._frames >= UNKNOWN:
            raise InputError(f"{path} does not say how long it is: write it anew, with its length")
        try:
            self._up, self._down = resampling(own, rate)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        self.length = -(-self._frames * self._up // self._down)

    def _opened(self) -> Any:
        try:
            import soundfile
        except ImportError as error:
            raise MissingPackageError("reading sound needs soundfile: pip install 'jaxrnn[audio]'") from error
        try:
            return soundfile.SoundFile(self.path)
        except soundfile.LibsndfileError as error:
            raise InputError(f"{self.path} cannot be read: {error.error_string}") from error
        except TypeError as error:  # samples without a head
            raise InputError(f"{self.path} cannot be read: {error}") from error

    def part(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Samples ``float32[stop - start]`` at the rate that was asked for, full scale 1."""
        first, last = max(start, 0), min(stop, self.length)
        if first >= last:
            return {SAMPLES: np.zeros(stop - start, np.float32)}
        found = self._read(first, last) if self._up == self._down else self._resampled(first, last)
        return {SAMPLES: np.pad(found, (first - start, stop - last))}

    def _read(self, first: int, last: int) -> np.ndarray:
        """Samples of the file as it is."""
        with self._opened() as file:
            try:
                file.seek(first)
                samples = file.read(last - first, dtype="float32", always_2d=True)
            except Exception as error:  # libsndfile's own, of several kinds
                raise InputError(f"{self.path} cannot be read from sample {first} on: {error}") from error
        if len(samples) < last - first:
            raise InputError(f"{self.path} ends at sample {first + len(samples)}, but says that it has {self._frames}")
        if self._channel is not None:
            return samples[:, self._channel]
        return samples[:, 0] if samples.shape[1] == 1 else samples.mean(1, dtype=np.float32)

    def _resampled(self, first: int, last: int) -> np.ndarray:
        # resample_poly's filter reaches so many of its own samples to either side.
        reach = -(-10 * max(self._up, self._down) // self._up) + 1
        begin = max(0, (first * self._down // self._up - reach) // self._down) * self._down
        end = min(self._frames, -(-last * self._down // self._up) + reach)
        samples = signal.resample_poly(self._read(begin, end).astype(np.float64), self._up, self._down)
        offset = begin // self._down * self._up
        return samples[first - offset : last - offset].astype(np.float32)


class ArrayFile:
    """Arrays with time in front: the one of a NPY file, or those of a NPZ file by name.

    Nothing stays open or in memory between two parts, except arrays of a NPZ file that are packed: those are held from
    the first part to the last.
    """

    def __init__(self, path: Path):
        self.path = path
        self._unpacked: dict[str, np.ndarray] = {}
        arrays = self._arrays()
        shapes = {name: array.shape for name, array in arrays.items()}
        if len({shape[:1] for shape in shapes.values()}) != 1 or () in shapes.values():
            raise InputError(f"{path}: expected arrays with one number of frames in front, not {shapes}")
        self.length = next(iter(shapes.values()))[0]
        self.frame: Mapping[str, tuple[int, ...]] = {name: shape[1:] for name, shape in shapes.items()}
        self._unpacked = {}

    def _arrays(self) -> Mapping[str, np.ndarray]:
        with readable(self.path):
            if self.path.suffix.lower() == ".npy":
                with self.path.open("rb") as file:
                    check_header(file, self.path.stat().st_size, self.path.name)
                return {SAMPLES: np.load(self.path, mmap_mode="r", allow_pickle=False)}
            with zipfile.ZipFile(self.path) as archive:
                return {name: self._member(archive, member) for name, member in members_of(archive).items()}

    def _member(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
        held = self._unpacked
        if member.filename in held:
            return held[member.filename]
        if member.compress_type != zipfile.ZIP_STORED:
            held[member.filename] = read_member(archive, member)
            return held[member.filename]
        with archive.open(member) as file:
            shape, in_columns, dtype = check_header(file, member.file_size, member.filename)
            head = file.tell()
        if not math.prod(shape):
            return np.zeros(shape, dtype)
        with open(self.path, "rb") as file:
            # The member's own header, which may differ from that in the archive's list, says where it begins.
            file.seek(member.header_offset + 26)
            name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
        offset = member.header_offset + 30 + name + extra + head
        return np.memmap(self.path, dtype, "r", offset, shape, "F" if in_columns else "C")

    def part(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Frames ``[stop - start, ...]`` of every array."""
        first, last = max(start, 0), max(min(stop, self.length), 0)
        parts = {}
        for name, array in self._arrays().items():
            found = np.array(array[first : max(first, last)])
            before = min(first, stop) - start
            pads = [(before, stop - start - before - len(found)), *[(0, 0)] * (array.ndim - 1)]
            parts[name] = np.pad(found, pads)
        if stop >= self.length:
            self._unpacked = {}
        return parts
