"""Examples in ``.npz`` files, read one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrnn._files.arrays import read_arrays
from jaxrnn._files.stores import Location, files_below, location
from jaxrnn.errors import InputError


class NpzFiles(Sequence[dict[str, np.ndarray]]):
    """One example in each file, its arrays by name; a file is read whenever its example is asked for.

    Args:
        files: a folder, or a pattern with ``*``, ``?`` or ``**``, here or by URL; in the order of their names.

    Raises:
        InputError: there is no such file; when an example is asked for, that its file is no such archive.
        StoreError: they are in a store that cannot be reached.
    """

    def __init__(self, files: Location):
        is_folder = files.is_dir()
        self.files = files_below(files, ("*.npz",)) if is_folder else _matched(files)
        if not self.files:
            raise InputError(f"there are no .npz files in {files}" if is_folder else f"there is no file {files}")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            raise TypeError("examples are read one at a time: the index must be a number")
        return read_npz(self.files[index])

    def label(self, index: int) -> str:
        """What messages call an example."""
        return f"example {index} ({self.files[index].name})"


def _matched(pattern: Location) -> Sequence[Location]:
    """The files of a pattern; what stands before its first sign is a folder, whatever its name."""
    parts = (pattern.absolute().as_posix() if isinstance(pattern, Path) else str(pattern)).split("/")
    for place, part in enumerate(parts):
        if "*" in part or "?" in part:
            folder = location("/".join(parts[:place]) or "/")
            return files_below(folder, ("/".join(parts[place:]),)) if folder.is_dir() else ()
    return (pattern,) if pattern.is_file() else ()


def read_npz(path: Location) -> dict[str, np.ndarray]:
    """The arrays of a ``.npz`` file by name.

    Raises:
        InputError: it cannot be read, or is no such file; names it.
    """
    loaded = read_arrays(path)
    if isinstance(loaded, np.ndarray):
        raise InputError(f"{path} holds one array without a name; write it with numpy.savez(path, name=array)")
    return loaded
