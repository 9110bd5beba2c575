"""Synthetic recordings for the benchmark of corpora: pairs of noisy and clean speech, and files of hours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile

from benchmarks.networks import RATE
from jaxrnn.demo.signals import NOISES, voiced

#: Seconds of the shortest and of the longest file of a corpus.
SHORTEST, LONGEST = 1.0, 20.0
#: Seconds of the voice and the noise that the files are cut from.
CUT_FROM = 60.0
#: Seconds of a long file that are held at once.
HELD = 60
#: The level of voice and noise, of full scale.
VOICE, NOISE = 0.05, 0.02


def write_corpus(folder: Path, files: int) -> float:
    """Write ``noisy/NNNN.wav`` and ``clean/NNNN.wav`` with random lengths, and return the seconds of all files."""
    rng = np.random.default_rng(0)
    length = round(CUT_FROM * RATE)
    voice, noise = VOICE * voiced(rng, length), NOISE * NOISES["hum"](rng, length)
    for kind in ("noisy", "clean"):
        (folder / kind).mkdir(parents=True)
    total = 0
    for index in range(files):
        samples = round(rng.uniform(SHORTEST, LONGEST) * RATE)
        first, second = rng.integers(length - samples, size=2)
        clean = voice[first : first + samples]
        soundfile.write(folder / "clean" / f"{index:04d}.wav", clean, RATE)
        soundfile.write(folder / "noisy" / f"{index:04d}.wav", clean + noise[second : second + samples], RATE)
        total += samples
    return total / RATE


def write_sound(path: Path, seconds: int) -> None:
    """Write noise in parts."""
    with soundfile.SoundFile(path, "w", RATE, 1) as file:
        for part in _parts(seconds, RATE, ()):
            file.write(part)


def write_features(path: Path, seconds: int, rate: int, inputs: dict[str, tuple[int, ...]]) -> None:
    """Write an ``.npz`` file of random features; ``rate`` is in frames per second, ``inputs`` are shapes of a frame."""
    np.savez(
        path,
        allow_pickle=False,
        **{name: np.concatenate([*_parts(seconds, rate, shape)]) for name, shape in inputs.items()},
    )


def _parts(seconds: int, rate: int, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(0)
    for start in range(0, seconds, HELD):
        frames = min(HELD, seconds - start) * rate
        yield (0.1 * rng.standard_normal((frames, *shape), np.float32)).astype(np.float32)
