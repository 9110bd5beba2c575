"""Outputs as files: sound as WAV, other outputs as NPY, piece by piece, and there only once they are whole."""

from __future__ import annotations

import contextlib
import glob
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np

from jaxrnn.errors import InputError


def runs(process: str) -> bool:
    """Whether a process of this machine is there."""
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True


class Writer:
    """One output of one recording.

    Args:
        path: where it is to be; the ending says what it is.
        rate: samples a second of a sound.
    """

    def __init__(self, path: Path, rate: int):
        self.path, self._rate = path, rate
        self._partial = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.partial")
        self._file: Any = None
        self._shape: tuple[int, ...] = ()
        self._dtype = np.dtype(np.float32)
        self._count = 0

    def add(self, values: np.ndarray) -> None:
        """Append frames ``[frames, ...]``.

        Raises:
            InputError: the disk is full, or the folder cannot be written.
        """
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._tidy()
                self._file = self._open(values)
            if self.path.suffix == ".wav":
                self._file.write(np.clip(values, -1, 1))
            else:
                self._file.write(np.ascontiguousarray(values).tobytes())
            self._count += len(values)
        except (OSError, RuntimeError) as error:
            self.discard()
            raise InputError(f"{self.path} cannot be written: {error}") from error

    def _tidy(self) -> None:
        """Remove what processes of this machine left of the same file when they were killed."""
        machine = f".{self.path.name}.{socket.gethostname()}."
        for left in self.path.parent.glob(f"{glob.escape(machine)}*.partial"):
            if not runs(left.name.removeprefix(machine).removesuffix(".partial")):
                left.unlink(missing_ok=True)

    def _open(self, values: np.ndarray) -> Any:
        if self.path.suffix == ".wav":
            import soundfile

            return soundfile.SoundFile(self._partial, "w", self._rate, 1, subtype="FLOAT", format="WAV")
        self._shape, self._dtype = values.shape[1:], values.dtype
        file = open(self._partial, "wb+")  # noqa: SIM115 - closed by finish or discard
        self._head(file, 0)
        return file

    def _head(self, file: Any, count: int) -> None:
        """The head of a NPY file, of one length whatever the count is."""
        text = f"{{'descr': {np.lib.format.dtype_to_descr(self._dtype)!r}, 'fortran_order': False, "
        text += f"'shape': {(count, *self._shape)!r}, }}"
        file.write(b"\x93NUMPY\x01\x00" + (246).to_bytes(2, "little") + text.ljust(245).encode() + b"\n")

    def finish(self) -> None:
        """Put the file in its place."""
        if self._file is None:
            return
        try:
            if self.path.suffix != ".wav":
                self._file.seek(0)
                self._head(self._file, self._count)
            self._file.close()
            if self.path.suffix == ".wav":
                _forget_when(self._partial)
            os.replace(self._partial, self.path)
        except (OSError, RuntimeError) as error:
            self.discard()
            raise InputError(f"{self.path} cannot be written: {error}") from error

    def discard(self) -> None:
        """Leave nothing."""
        with contextlib.suppress(OSError, RuntimeError):
            if self._file is not None:
                self._file.close()
        self._file = None
        self._partial.unlink(missing_ok=True)


def _forget_when(wav: Path) -> None:
    """Take out of a sound's head when it was written, which its ``PEAK`` chunk tells: equal sounds are equal files."""
    with open(wav, "r+b") as file:
        chunk = file.read(256).find(b"PEAK")
        if chunk >= 0:
            # Behind the chunk's name and size come its version and the time, four bytes each.
            file.seek(chunk + 12)
            file.write(bytes(4))
