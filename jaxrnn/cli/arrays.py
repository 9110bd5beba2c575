"""Arrays and sounds that commands read and write."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxrnn._files.arrays import read_arrays
from jaxrnn._files.writing import in_place_of
from jaxrnn.cli.errors import echo
from jaxrnn.errors import InputError


def load_array(path: Path) -> np.ndarray:
    """Return the array of a ``.npy`` file."""
    loaded = read_arrays(path)
    if isinstance(loaded, np.ndarray):
        return loaded
    raise InputError(f"{path} holds arrays by name ({', '.join(loaded)}); give it with --inputs")


def load_archive(path: Path) -> dict[str, np.ndarray]:
    """Return the named arrays of a ``.npz`` file."""
    loaded = read_arrays(path)
    if isinstance(loaded, np.ndarray):
        raise InputError(f"{path} holds one array without a name; give it with --input NAME={path}")
    return loaded


def save_outputs(path: Path, arrays: Mapping[str, np.ndarray], rate: float | None) -> None:
    """Write named outputs as ``.npz``, or the output ``audio`` of a function of waveforms as ``.wav``."""
    if path.suffix.lower() != ".wav":
        save_archive(path, arrays)
        return
    from jaxrnn.audio.sounds import write_wav
    from jaxrnn.audio.waveforms import AUDIO

    if AUDIO not in arrays or rate is None:
        audio = f"an output {AUDIO!r}, as with --stft"
        rated = "a sample rate: give a sound file or --rate"
        raise InputError(f"{path} needs {rated if AUDIO in arrays else audio}")
    samples = arrays[AUDIO]
    write_wav(path, samples, int(rate) if rate == int(rate) else rate)  # type: ignore[arg-type]  # refused there
    if clipped := int(np.count_nonzero(np.abs(samples) > 1)):
        echo(f"warning: {path}: {clipped:,} of {samples.size:,} samples exceed full scale and are clipped", err=True)


def save_archive(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a ``.npz`` file completely or not at all."""
    with in_place_of(path) as written, zipfile.ZipFile(written, "w") as archive:
        for name, array in arrays.items():
            if array.dtype.kind == "O":  # strings, which NumPy would pickle
                array = array.astype(np.str_)
            elif array.dtype.isbuiltin != 1 and array.dtype.kind not in "US":
                # NumPy files cannot hold dtypes such as bfloat16.
                array = array.view(np.dtype((np.void, array.dtype.itemsize)))
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
