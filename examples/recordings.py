"""Shared functions of the examples: find, read and write recordings, and run models over them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

import jaxrnn

RATE = 16_000
MODELS = Path(os.environ.get("JAXRNN_MODELS", Path(__file__).parents[2] / "shared" / "models"))
AUDIO = Path(os.environ.get("JAXRNN_AUDIO", Path(__file__).parents[2] / "shared" / "audio"))

Samples = NDArray[np.float32]
Arrays = Mapping[str, Any]


@functools.lru_cache(maxsize=8)
def scanner(model: jaxrnn.Model) -> Callable[[Arrays], dict[str, np.ndarray]]:
    """Return a function from stacked frames to outputs, from a new state.

    The function is stored with the model, so a second recording of the same length is not compiled again.
    """
    scan = jax.jit(model.scan)
    packed: dict[tuple[tuple[int, ...], ...], Any] = {}

    def over(frames: Arrays) -> dict[str, np.ndarray]:
        shapes = tuple(frames[info.name].shape[1:] for info in model.spec.inputs)
        if shapes not in packed:
            packed[shapes] = model.pack(model.params, dims=_sizes(model, shapes))
        outputs, _ = scan(packed[shapes], model.init(), frames)
        return {name: np.asarray(value) for name, value in outputs.items()}

    return over


def _sizes(model: jaxrnn.Model, shapes: tuple[tuple[int, ...], ...]) -> dict[str, int]:
    """Return sizes for the open dimensions of the file."""
    return {
        name: size
        for info, shape in zip(model.spec.inputs, shapes, strict=True)
        for name, size in zip(info.shape or (), shape, strict=True)
        if isinstance(name, str)
    }


def load_model(folder: Path, *names: str, **options: Any) -> list[jaxrnn.Model]:
    """Read models from a folder; the options are those of ``jaxrnn.load``."""
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise jaxrnn.InputError(
            f"no {' and no '.join(missing)} in {folder}: pass --models or set JAXRNN_MODELS to the folder of the models"
        )
    return [jaxrnn.load(folder / name, **options) for name in names]


def read_recording(path: Path, at_least: int = 1) -> Samples:
    """Read a mono recording of 16 kHz as ``float32[samples]``, full scale 1."""
    soundfile = _soundfile()
    if not path.is_file():
        raise jaxrnn.InputError(f"there is no file {path}")
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise jaxrnn.InputError(f"{path} cannot be read: {error.error_string}") from error
    channels = samples.shape[1]
    if rate != RATE or channels != 1:
        raise jaxrnn.InputError(
            f"{path} has {channels} channel(s) at {rate} Hz, but one at {RATE} Hz is expected: "
            f"convert it, for instance with 'sox {path.name} -r {RATE} -c 1 converted.wav'"
        )
    if len(samples) < at_least:
        raise jaxrnn.InputError(f"{path} has {len(samples)} samples; at least {at_least} are needed")
    return samples[:, 0]


def write_recording(path: Path, samples: Samples) -> None:
    """Write a mono recording of 16 kHz, clipped at full scale."""
    soundfile = _soundfile()
    try:
        soundfile.write(path, np.clip(samples, -1, 1), RATE)
    except soundfile.LibsndfileError as error:
        raise jaxrnn.InputError(f"{path} cannot be written: {error.error_string}") from error


def speed_text(samples: int, seconds: float) -> str:
    """Return a text with the duration of a recording, the processing time, and the ratio."""
    length = samples / RATE
    return f"{length:.1f} s in {seconds:.2f} s with compilation: {length / seconds:.0f} times real time"


def blocks_of(samples: np.ndarray, size: int, hop: int) -> np.ndarray:
    """Return all whole blocks of a signal, ``[blocks, size]``, at a distance of ``hop`` samples."""
    return np.lib.stride_tricks.sliding_window_view(samples, size)[::hop]


def overlap_add(blocks: np.ndarray, hop: int, samples: int) -> np.ndarray:
    """Overlap-add blocks ``[blocks, size]`` at a distance of ``hop`` samples, and return ``[samples]``.

    The size is a multiple of the hop. Values beyond ``samples`` are dropped.
    """
    count, size = blocks.shape
    parts = blocks.reshape(count, size // hop, hop)
    result = np.zeros((count + size // hop - 1, hop))
    for index in range(size // hop):
        result[index : index + count] += parts[:, index]
    flat = result.reshape(-1)[:samples]
    return np.concatenate([flat, np.zeros(samples - len(flat))])


def _soundfile() -> Any:
    try:
        import soundfile
    except ImportError as error:
        raise jaxrnn.MissingPackageError(
            "reading and writing recordings needs soundfile: pip install 'jaxrnn[audio]'"
        ) from error
    return soundfile
