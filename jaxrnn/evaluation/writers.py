"""Outputs as files, sound as WAV and others as NPY, written piece by piece and moved into place once complete."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from jaxrnn._files.locations import Location
from jaxrnn._files.writing import place
from jaxrnn.errors import InputError


def partial_of(folder: Location) -> Path:
    """The folder of unfinished files: beside the folder of outputs, or for a store the one for temporary files."""
    return folder.with_name(f"{folder.name}.partial") if isinstance(folder, Path) else Path(tempfile.gettempdir())


def discard_partial(folder: Location) -> None:
    """Remove what killed processes have left beside a folder of outputs."""
    if isinstance(folder, Path):
        shutil.rmtree(partial_of(folder), ignore_errors=True)


class Writer:
    """One output of one recording.

    Args:
        folder: the folder of outputs.
        name: of the file in it; its suffix determines the format.
        rate: samples a second of a sound.
    """

    def __init__(self, folder: Location, name: str, rate: int):
        self.path, self._rate = folder / name, rate
        # Nobody else has this name, not even another process that computes the same unit.
        self._partial = partial_of(folder) / f"{uuid.uuid4().hex}{self.path.suffix}"
        self._file: Any = None
        self._header: dict[str, Any] = {}

    def add(self, values: np.ndarray) -> None:
        """Append frames ``[frames, ...]``.

        Raises:
            InputError: the disk is full, or the folder cannot be written.
        """
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._partial.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._open(values)
            if self.path.suffix == ".wav":
                self._file.write(np.clip(values, -1, 1))
            else:
                self._file.write(np.ascontiguousarray(values).tobytes())
                count, *frame = self._header["shape"]
                self._header["shape"] = (count + len(values), *frame)
        except (OSError, RuntimeError) as error:
            self.discard()
            raise InputError(f"{self.path} cannot be written: {error}") from error

    def _open(self, values: np.ndarray) -> Any:
        if self.path.suffix == ".wav":
            import soundfile

            return soundfile.SoundFile(self._partial, "w", self._rate, 1, subtype="FLOAT", format="WAV")
        self._header = np.lib.format.header_data_from_array_1_0(values[:0])
        file = open(self._partial, "wb+")  # noqa: SIM115 - closed by finish or discard
        np.lib.format.write_array_header_1_0(file, self._header)
        return file

    def finish(self) -> None:
        """Complete the file and move it into place."""
        if self._file is None:
            return
        try:
            if self.path.suffix != ".wav":
                # NumPy leaves room in a header for any number of frames.
                self._file.seek(0)
                np.lib.format.write_array_header_1_0(self._file, self._header)
            self._file.close()
            if self.path.suffix == ".wav":
                _clear_time(self._partial)
            place(self._partial, self.path)
        except (OSError, RuntimeError) as error:
            self.discard()
            raise InputError(f"{self.path} cannot be written: {error}") from error

    def discard(self) -> None:
        """Remove the partial file."""
        with contextlib.suppress(OSError, RuntimeError):
            if self._file is not None:
                self._file.close()
        self._file = None
        self._partial.unlink(missing_ok=True)


def _clear_time(wav: Path) -> None:
    """Clear the time of writing in the ``PEAK`` chunk of a sound, so that equal sounds are equal files."""
    with open(wav, "r+b") as file:
        chunk = file.read(256).find(b"PEAK")
        if chunk >= 0:
            # The name and the size of the chunk are followed by its version and the time, four bytes each.
            file.seek(chunk + 12)
            file.write(bytes(4))
