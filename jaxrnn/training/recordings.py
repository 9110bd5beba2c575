"""Mixtures of recordings, drawn while a network trains: voices, rooms and noise."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import signal

from jaxrnn._files.messages import short_repr
from jaxrnn._files.stores import Location, Url, files_below, location
from jaxrnn.audio.recordings import SAMPLES, SoundFile, open_recording
from jaxrnn.audio.sounds import SOUNDS, check_rate
from jaxrnn.errors import InputError, check_count

#: A folder of sounds, a table of sounds or a sound, here or by URL; or several.
Sounds = str | Path | Url | list[str | Path | Url]
#: The lowest and the highest of numbers that are drawn uniformly.
Range = tuple[float, float]

#: The array of a mixture with the clean sound.
CLEAN = "clean"
#: Suffixes of tables of recordings.
TABLES = (".csv", ".parquet")
#: A part with no sample above this value, full scale 1, is silent; this many parts are drawn until one is not.
AUDIBLE, TRIES = 1e-3, 100
#: The most samples of an example, of all its voices together.
MAX_SAMPLES = 2**26


@short_repr
@dataclasses.dataclass(frozen=True)
class Mixtures:
    """Mixtures of recordings: a function that draws an example for `fit`, always of the same length.

    An example has the mixture under the name `input`, and the clean sound as ``clean``: ``float32[samples]``, or
    ``float32[speakers, samples]`` for several speakers. All recordings are equally likely, whatever their length, and
    so are all parts of a recording. Channels are averaged, and sounds of other rates are resampled. Silent parts are
    not used. Levels and ratios are those of the powers over the whole part.

    Attributes:
        clean: Clean recordings: a folder of sounds (WAV, FLAC and others), a CSV or Parquet table with a column
            ``path``, or a sound; or a list of these. Paths are here or URLs. A shorter recording begins at a random
            place, with silence around it.
        noise: Noises, in the same forms. A shorter noise is repeated.
        rooms: Impulse responses of rooms, in the same forms. The direct sound, the highest peak, keeps its place and
            its level.
        rate: Samples per second of the network.
        seconds: The length of an example.
        snr: The range of the ratio of all voices to the noise, in dB.
        level: The range of the level of the (first) voice, in dB of full scale.
        reverberant: The share of voices in a room, 0 to 1.
        dry: True if the clean sound is the voice without the room; False to keep the room.
        speakers: The number of recordings of ``clean`` that speak at the same time.
        balance: The range of the level of each further voice relative to the first, in dB.
        input: The name of the mixture: the input of the network.
        shape: The shape of the mixture, with -1 for the samples, such as ``[1, 1, -1]`` with a batch and a channel.

    Raises:
        InputError: A number is out of range, there are no recordings, or there is nothing to remove.
    """

    clean: Sounds
    noise: Sounds | None = None
    rooms: Sounds | None = None
    rate: int = 16_000
    seconds: float = 2.0
    snr: Range = (-5.0, 15.0)
    level: Range = (-35.0, -15.0)
    reverberant: float = 1.0
    dry: bool = False
    speakers: int = 1
    balance: Range = (-5.0, 5.0)
    input: str = SAMPLES
    shape: tuple[int, ...] = (-1,)

    def __post_init__(self):
        check_rate(self.rate, "rate")
        check_count("speakers", self.speakers)
        if not 0 < self.seconds * self.rate * self.speakers <= MAX_SAMPLES or self.length < 1:
            raise InputError(
                f"`seconds={self.seconds}` must give from 1 to {MAX_SAMPLES:,} samples of all speakers at "
                f"`rate={self.rate}`"
            )
        for name in ("snr", "level", "balance"):
            low, high = getattr(self, name)
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise InputError(f"`{name}` is the lowest and the highest number of dB, not {getattr(self, name)}")
        if not 0 <= self.reverberant <= 1:
            raise InputError(f"`reverberant` is a share from 0 to 1, not {self.reverberant}")
        if self.noise is None and self.speakers == 1 and (self.rooms is None or not self.dry):
            raise InputError(
                "mixtures equal the clean sound: give `noise`, or `rooms` with `dry=True`, or `speakers=2`"
            )
        if self.input == CLEAN:
            raise InputError(f"`input={CLEAN!r}` is the name of the clean sound: the network's input needs another")
        try:
            np.empty(self.length, bool).reshape(self.shape)
        except (TypeError, ValueError):
            raise InputError(f"`shape={self.shape}` does not hold {self.length} samples: write -1 for them") from None
        if len(self._files(CLEAN)) < self.speakers:
            raise InputError(f"`speakers={self.speakers}` of {len(self._files(CLEAN))} recordings: give more of them")
        _ = self._files("noise"), self._files("rooms")  # raises errors now

    @property
    def length(self) -> int:
        """The number of samples of an example."""
        return round(self.seconds * self.rate)

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """The options and the names of all recordings, in JSON's types."""
        kinds = {CLEAN, "noise", "rooms"}
        facts = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name not in kinds}
        for kind in sorted(kinds):
            names = "\n".join(path.name for path in self._files(kind))
            facts[kind] = [len(self._files(kind)), hashlib.blake2b(names.encode(), digest_size=16).hexdigest()]
        return facts

    def fixed(self, count: int, seed: int = 0) -> Sequence[dict[str, np.ndarray]]:
        """Return a sequence of mixtures that are always the same, for validation."""
        return FixedMixtures(self, check_count("count", count), check_count("seed", seed, 0))

    def __call__(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw an example: the mixture and the clean sound."""
        level, chosen, voices, targets = rng.uniform(*self.level), set(), [], []
        for speaker in range(self.speakers):
            response = np.ones(1)
            if self.rooms is not None and rng.random() < self.reverberant:
                response = self._response(rng)
            # A room also has the sound from before the part.
            before = len(response) - 1
            number, part = self._part(rng, CLEAN, before, chosen)
            chosen.add(number)
            heard = signal.fftconvolve(part, response)[before : before + self.length] if before else part
            power = level + (rng.uniform(*self.balance) if speaker else 0)
            gain = 10 ** (power / 20) / _root_mean_square(heard)
            voices.append(gain * heard)
            targets.append(gain * part[before:] if self.dry else voices[-1])
        mixture = np.sum(voices, axis=0)
        if self.noise is not None:
            _, noise = self._part(rng, "noise")
            ratio = 10 ** (rng.uniform(*self.snr) / 20) * _root_mean_square(noise)
            mixture = mixture + _root_mean_square(mixture) / ratio * noise
        clean = targets[0] if self.speakers == 1 else np.stack(targets)
        return {self.input: mixture.astype(np.float32).reshape(self.shape), CLEAN: clean.astype(np.float32)}

    def _part(
        self, rng: np.random.Generator, kind: str, before: int = 0, without: set[int] | None = None
    ) -> tuple[int, np.ndarray]:
        """Draw a part of a recording that is not silent, with samples before it; return the number of the recording."""
        files, length = self._files(kind), self.length
        for _ in range(TRIES):
            number = int(rng.integers(len(files)))
            if number in (without or ()):
                continue
            sound = self._open(kind, number)
            spare = sound.length - length
            start = int(rng.integers(abs(spare) + 1)) * (1 if spare >= 0 else -1)
            if spare < 0 and kind == "noise":
                part = np.resize(np.roll(sound.part(0, sound.length)[SAMPLES], start), length)
            else:
                part = sound.part(start - before, start + length)[SAMPLES]
            if not np.isfinite(part).all():
                raise InputError(f"{files[number]} has samples that are not finite")
            if np.abs(part[before:]).max() > AUDIBLE:
                return number, part.astype(np.float64)
        raise InputError(
            f"`{kind}`: {TRIES} parts of {self.seconds:g} s were silent (no sample above {AUDIBLE:g}), or there are "
            "too few recordings; give others"
        )

    def _response(self, rng: np.random.Generator) -> np.ndarray:
        """Draw an impulse response from the direct sound on, which is 1."""
        number = int(rng.integers(len(self._files("rooms"))))
        sound = self._open("rooms", number)
        if sound.length > 60 * self.rate:
            raise InputError(f"{self._files('rooms')[number]} has more than 60 s, and is no impulse response of a room")
        response = sound.part(0, sound.length)[SAMPLES].astype(np.float64)
        peak = int(np.argmax(np.abs(response)))
        if not np.isfinite(response).all() or not response[peak]:
            raise InputError(f"{self._files('rooms')[number]} is silent or not finite, so it is no impulse response")
        return response[peak:] / response[peak]

    def _files(self, kind: str) -> Sequence[Location]:
        return self._listed[kind]

    @functools.cached_property
    def _listed(self) -> dict[str, Sequence[Location]]:
        return {kind: _sounds_in(kind, getattr(self, kind)) for kind in (CLEAN, "noise", "rooms")}

    @functools.cached_property
    def _open(self) -> Any:
        # Headers are kept, so that each sound is opened only once for a part.
        @functools.lru_cache(4096)
        def opened(kind: str, number: int) -> SoundFile:
            path = self._files(kind)[number]
            if path.suffix.lower() not in SOUNDS:
                raise InputError(f"{path} is not a sound: the suffix must be one of {', '.join(SOUNDS)}")
            recording: Any = open_recording(path, self.rate)
            return recording

        return opened


@dataclasses.dataclass(frozen=True)
class FixedMixtures(Sequence[dict[str, np.ndarray]]):
    """Mixtures with numbers: each depends only on the seed and its number."""

    mixtures: Mixtures
    size: int
    seed: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self.size:
            raise IndexError(index)
        # Apart from the mixtures that a training draws with the same seed.
        return self.mixtures(np.random.default_rng([self.seed, index, 1]))


def _sounds_in(kind: str, places: Sounds | None) -> list[Location]:
    """List the sounds of folders, tables and files, in the order of the places, each sorted by name."""
    found: list[Location] = []
    for each in places if isinstance(places, list | tuple) else [] if places is None else [places]:
        place = location(each)
        if place.suffix.lower() in TABLES:
            from jaxrnn.audio.corpus import from_manifest

            found += [item.path for item in from_manifest(place)]
        elif place.suffix.lower() in SOUNDS and not place.is_dir():
            found.append(place)
        else:
            sounds = files_below(place, [f"**/*{suffix}" for suffix in SOUNDS])
            if not sounds:
                raise InputError(f"`{kind}`: {place} has no sounds ({', '.join(SOUNDS)})")
            found += sounds
    if places is not None and not found:
        raise InputError(f"`{kind}` names no recordings")
    return found


def _root_mean_square(sound: np.ndarray) -> float:
    return math.sqrt(np.mean(np.square(sound)))
