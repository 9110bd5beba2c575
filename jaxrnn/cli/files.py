"""Arrays in the files that options name."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxrnn._files.arrays import read_arrays
from jaxrnn._files.stores import in_place_of
from jaxrnn.errors import InputError


def load_array(path: Path) -> np.ndarray:
    """The array of a .npy file."""
    loaded = read_arrays(path)
    if isinstance(loaded, np.ndarray):
        return loaded
    raise InputError(f"{path} holds arrays by name ({', '.join(loaded)}); give it with --inputs")


def load_archive(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a .npz file by name."""
    loaded = read_arrays(path)
    if isinstance(loaded, np.ndarray):
        raise InputError(f"{path} holds one array without a name; give it with --input NAME={path}")
    return loaded


def save_archive(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a .npz file that is either whole or not there."""
    with in_place_of(path) as written, zipfile.ZipFile(written, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, _storable(array), allow_pickle=False)


def _storable(array: np.ndarray) -> np.ndarray:
    """Types that NumPy's files do not know, such as bfloat16, go as raw bytes."""
    known = array.dtype.isbuiltin == 1 or array.dtype.kind in "US"
    return array if known else array.view(np.dtype((np.void, array.dtype.itemsize)))
