"""What an entry of the gallery is, what it needs, and what it makes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxrnn.demo.audio import RATE, Samples
from tools.examples import import_example

recordings = import_example("recordings")


@dataclass(frozen=True)
class Picture:
    """A picture in two files, ``NAME.light.svg`` and ``NAME.dark.svg``; ``alt`` says what is in it."""

    name: str
    alt: str
    width: int
    height: int


@dataclass(frozen=True)
class Sound:
    """A sound to play, ``NAME.flac``."""

    name: str
    label: str


@dataclass(frozen=True)
class Figures:
    """Numbers that came out, as texts by what they are."""

    rows: dict[str, str]


@dataclass(frozen=True)
class Printed:
    """What was printed."""

    text: str


Item = Picture | Sound | Figures | Printed


@dataclass(frozen=True)
class Entry:
    """One thing that the gallery shows.

    Attributes:
        title: its heading.
        see: what to see, in two sentences.
        shown: the function whose text the page shows; `make` calls it.
        make: writes files into a folder; what they are, in the order of the page.
        models: files that it needs in JAXRNN_MODELS.
        recordings: files that it needs in JAXRNN_AUDIO.
        packages: what must be installed, and the extra that brings it.
        source: where models and recordings are from, with their licences.
    """

    title: str
    see: str
    shown: Callable[..., Any]
    make: Callable[[Path], list[Item]]
    models: Sequence[str] = ()
    recordings: Sequence[str] = ()
    packages: Sequence[tuple[str, str]] = ()
    source: str = ""

    @property
    def files(self) -> list[Path]:
        """The files that it needs, whether they are there or not."""
        return [model_path(name) for name in self.models] + [recording_path(name) for name in self.recordings]

    @property
    def missing(self) -> str:
        """What it needs and is not here, in one line; nothing where all is."""
        parts = [
            f"the package {name} (`pip install 'jaxrnn[{extra}]'`)"
            for name, extra in (("matplotlib", "plot"), *self.packages)
            if importlib.util.find_spec(name) is None
        ]
        for variable, names, place in (
            ("JAXRNN_MODELS", self.models, model_path),
            ("JAXRNN_AUDIO", self.recordings, recording_path),
        ):
            absent = [f"`{name}`" for name in names if not place(name).is_file()]
            if absent:
                parts.append(f"{' and '.join(absent)} in the folder that {variable} names")
        return ", and ".join(parts)


def model_path(name: str) -> Path:
    """Where a model is looked for."""
    return recordings.MODELS / name


def recording_path(name: str) -> Path:
    """Where a recording is looked for."""
    return recordings.AUDIO / name


def read_part(name: str, start: float, end: float) -> Samples:
    """Read the samples of a recording between two times in seconds."""
    return recordings.read_recording(recording_path(name))[round(start * RATE) : round(end * RATE)]


def save_sound(folder: Path, name: str, samples: Samples, label: str) -> Sound:
    """Write 16 kHz samples of full scale 1 as FLAC, without loss beyond 16 bits."""
    recordings.write_recording(folder / f"{name}.flac", samples)
    return Sound(name, label)
