"""Entries of the gallery, with the files and packages that they need, and the items that they make."""

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
    """A picture in two files, ``NAME.light.svg`` and ``NAME.dark.svg``; ``alt`` describes the picture."""

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
    """Results as texts, by name."""

    rows: dict[str, str]


@dataclass(frozen=True)
class Printed:
    """Printed output."""

    text: str


Item = Picture | Sound | Figures | Printed


@dataclass(frozen=True)
class Entry:
    """An entry of the gallery.

    Attributes:
        title: the heading.
        see: a guide to the results, in two sentences.
        shown: the function whose code the page shows; `make` calls this function.
        make: writes files into a folder, and returns the items in the order of the page.
        models: required files in JAXRNN_MODELS.
        recordings: required files in JAXRNN_AUDIO.
        packages: required packages, with the extras that install the packages.
        source: origin of models and recordings, with their licences.
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
        """The required files, also if they are missing."""
        return [model_path(name) for name in self.models] + [recording_path(name) for name in self.recordings]

    @property
    def missing(self) -> str:
        """The missing packages and files in one line; empty if nothing is missing."""
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
    """Return the path of a model."""
    return recordings.MODELS / name


def recording_path(name: str) -> Path:
    """Return the path of a recording."""
    return recordings.AUDIO / name


def read_part(name: str, start: float, end: float) -> Samples:
    """Read the samples of a recording between two times in seconds."""
    return recordings.read_recording(recording_path(name))[round(start * RATE) : round(end * RATE)]


def save_sound(folder: Path, name: str, samples: Samples, label: str) -> Sound:
    """Write 16 kHz samples of full scale 1 as FLAC, without loss beyond 16 bits."""
    recordings.write_recording(folder / f"{name}.flac", samples)
    return Sound(name, label)
