"""Mixtures of recordings, drawn while a network trains: voices, rooms and noise."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from scipy import signal

from jaxrnn._files.messages import short_repr
from jaxrnn._files.stores import Location
from jaxrnn.audio.checking import examine_recording, faults_within
from jaxrnn.audio.contents import Places, facts_of, recordings_at
from jaxrnn.audio.recordings import SAMPLES, open_recording
from jaxrnn.audio.sounds import SOUNDS, check_rate
from jaxrnn.errors import InputError, check_count

#: The lowest and the highest of numbers that are drawn uniformly.
Range = tuple[float, float]

#: The options of `Mixtures` that change no mixture of the same recordings.
NOT_DRAWN = ("trust_names", "check", "skip")
#: The array of a mixture with the clean sound.
CLEAN = "clean"
#: A part with no sample above this value, full scale 1, is silent; this many parts are drawn until one is not.
AUDIBLE, TRIES = 1e-3, 100
#: The most samples of an example or of all examples for validation.
MAX_SAMPLES = 2**26
#: The longest impulse response in seconds, and the largest level or ratio.
MAX_RESPONSE, MAX_DECIBELS = 60, 200


@short_repr
@dataclasses.dataclass(eq=False)
class Mixtures:
    """Mixtures of recordings: a function that draws an example for `fit`, always of the same length.

    An example has the mixture under the name `input`, and the clean sound as ``clean``: ``float32[samples]``, or
    ``float32[speakers, samples]``. All recordings are equally likely, and so are all parts of a recording. Channels are
    averaged, and other rates are resampled. Silent parts are not used. Levels are powers over the whole part.

    Attributes:
        clean: Clean recordings: a folder of sounds (WAV, FLAC and others), a CSV or Parquet table with a column
            ``path``, a pattern such as ``voices/*.wav``, or a sound; or a list of these, here or by URL. Shorter
            recordings have silence around them.
        noise: Noises, in the same forms. Shorter noises are repeated.
        rooms: Impulse responses of rooms, in the same forms. The direct sound keeps its place and level.
        rate: Samples per second of the network.
        seconds: The length of an example.
        snr: The range of the ratio of all voices to the noise, in dB.
        level: The range of the level of the first voice, in dB of full scale.
        reverberant: The share of voices in a room, 0 to 1.
        dry: True if the clean sound is the voice without the room.
        speakers: The number of recordings of ``clean`` that speak at the same time.
        balance: The range of the level of each further voice relative to the first, in dB.
        peak: The largest magnitude of a mixture, 1 for full scale. A louder mixture is scaled down, with its clean
            sound; None keeps all levels.
        input: The name of the mixture: the input of the network.
        shape: The shape of the mixture, with -1 for the samples, such as ``[1, 1, -1]`` with a batch and a channel.
        trust_names: True to resume on objects of a store that gives neither versions nor ETags, if names and sizes are
            equal. By default, a training on such objects is not resumed, because they may have changed.
        check: True to read all samples of all recordings first, and to raise an error that lists every fault: files
            that cannot be read, are empty or cut, and samples that are NaN.
        skip: The largest share of recordings to leave out for a fault, such as 0.01. All recordings are read first, so
            that the same recordings are left out when a training resumes.
        left_out: By recording that is left out, the fault.

    Raises:
        InputError: A number is out of range, there are no recordings, or there is nothing to remove.
    """

    clean: Places
    noise: Places | None = None
    rooms: Places | None = None
    rate: int = 16_000
    seconds: float = 2.0
    snr: Range = (-5.0, 15.0)
    level: Range = (-35.0, -15.0)
    reverberant: float = 1.0
    dry: bool = False
    speakers: int = 1
    balance: Range = (-5.0, 5.0)
    peak: float | None = 1.0
    input: str = SAMPLES
    shape: tuple[int, ...] = (-1,)
    trust_names: bool = False
    check: bool = False
    skip: float = 0.0

    def __post_init__(self):
        check_rate(self.rate, "rate")
        check_count("speakers", self.speakers)
        if not 1 <= self.seconds * self.rate * self.speakers <= MAX_SAMPLES:
            raise InputError(f"`seconds={self.seconds}` must give 1 to {MAX_SAMPLES:,} samples of all speakers")
        self.length = round(self.seconds * self.rate)
        for name in ("snr", "level", "balance"):
            low, high = getattr(self, name)
            if not -MAX_DECIBELS <= low <= high <= MAX_DECIBELS:
                raise InputError(f"`{name}` is the lowest and the highest number of dB, not {getattr(self, name)}")
        if self.peak is not None and not 0 < self.peak < math.inf:
            raise InputError(f"`peak` is the largest magnitude of a mixture, above 0, or None, and not {self.peak}")
        if not 0 <= self.reverberant <= 1:
            raise InputError(f"`reverberant` is a share from 0 to 1, not {self.reverberant}")
        if self.noise is None and self.speakers == 1 and (self.rooms is None or not self.dry):
            raise InputError("mixtures equal the clean sound: give `noise`, `rooms` with `dry=True`, or `speakers=2`")
        if self.input == CLEAN:
            raise InputError(f"`input={CLEAN!r}` is the name of the clean sound: the network's input needs another")
        try:
            np.empty(self.length, bool).reshape(self.shape)
        except (TypeError, ValueError):
            raise InputError(f"`shape={self.shape}` does not hold {self.length} samples: write -1 for them") from None
        self._sounds = {kind: self._sounds_of(kind) for kind in (CLEAN, "noise", "rooms")}
        examine = functools.partial(examine_recording, rate=self.rate)
        self.left_out = faults_within(self.recordings, examine, self.check, self.skip)
        for kind, sounds in self._sounds.items():
            self._sounds[kind] = [path for path in sounds if path not in self.left_out]
            if sounds and not self._sounds[kind]:
                raise InputError(
                    f"`{kind}`: each of the {len(sounds)} recordings has a fault: {self.left_out[sounds[0]]}"
                )
        if len(self._sounds[CLEAN]) < self.speakers:
            raise InputError(f"`speakers={self.speakers}` of {len(self._sounds[CLEAN])} recordings: give more of them")

    def _sounds_of(self, kind: str) -> list[Location]:
        places = getattr(self, kind)
        try:
            return [] if places is None else recordings_at(places, [f"**/*{suffix}" for suffix in SOUNDS], "sounds")
        except InputError as error:
            raise InputError(f"`{kind}`: {error}") from error

    @property
    def recordings(self) -> list[Location]:
        """All recordings that are used, of all kinds."""
        return [path for sounds in self._sounds.values() for path in sounds]

    @property
    def identity(self) -> dict[str, Any]:
        """The options and a digest of the recordings, which must be the same when a training resumes.

        The digest has the name and the content of each recording; an unchanged file is read only once, and objects in a
        store are known by version or ETag. ``unknown_contents`` counts objects without either, if there are any.
        """
        facts = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name not in NOT_DRAWN}
        return facts | facts_of(self._sounds, "sounds")

    def drawn(self, count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
        """Return examples that stay the same, for `Validation`; all are in memory."""
        if check_count("count", count) * self.length * self.speakers > MAX_SAMPLES:
            raise InputError(f"{count} mixtures of {self.seconds:g} s have more than {MAX_SAMPLES:,} samples")
        # Unlike the mixtures that a training draws with the same seed.
        return [self(np.random.default_rng([seed, number, 1])) for number in range(count)]

    def __call__(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw an example: the mixture and the clean sound."""
        level, chosen, voices, targets = rng.uniform(*self.level), [], [], []
        for speaker in range(self.speakers):
            response = np.ones(1)
            if self.rooms is not None and rng.random() < self.reverberant:
                response = self._response(rng)
            before = len(response) - 1  # a room also has the sound from before the part
            dry = self._part(rng, CLEAN, before, chosen)
            voice = signal.fftconvolve(dry, response)[before : before + self.length] if before else dry
            power = level + (rng.uniform(*self.balance) if speaker else 0)
            gain = 10 ** (power / 20) / _amplitude(voice)
            voices.append(gain * voice)
            targets.append(gain * dry[before:] if self.dry else voices[-1])
        mixture = np.sum(voices, axis=0)
        if self.noise is not None:
            noise = self._part(rng, "noise")
            mixture = mixture + noise * (_amplitude(mixture) / _amplitude(noise) / 10 ** (rng.uniform(*self.snr) / 20))
        clean = targets[0] if self.speakers == 1 else np.stack(targets)
        if self.peak is not None and (loudest := np.max(np.abs(mixture))) > self.peak:
            mixture, clean = (sound * (self.peak / loudest) for sound in (mixture, clean))
        return {self.input: mixture.astype(np.float32).reshape(self.shape), CLEAN: clean.astype(np.float32)}

    def _part(
        self, rng: np.random.Generator, kind: str, before: int = 0, without: list[Location] | None = None
    ) -> np.ndarray:
        """Draw a part that is not silent, with samples before it, of a recording that is not listed; and list it."""
        sounds, without = self._sounds[kind], [] if without is None else without
        for _ in range(TRIES):
            path = sounds[rng.integers(len(sounds))]
            if path in without:
                continue
            sound = open_recording(path, self.rate)
            spare = sound.length - self.length
            start = int(rng.integers(abs(spare) + 1)) * (1 if spare >= 0 else -1)
            if spare < 0 and kind == "noise":
                part = np.resize(np.roll(self._read(path), start), self.length)
            else:
                part = sound.part(start - before, start + self.length)[SAMPLES].astype(np.float64)
            if np.abs(part[before:]).max() > AUDIBLE:
                without.append(path)
                return part
        raise InputError(
            f"`{kind}`: {TRIES} parts of {self.seconds:g} s were silent or of the same speaker; silence has no sample "
            f"above {AUDIBLE:g} of full scale: give other recordings, or more of them"
        )

    def _response(self, rng: np.random.Generator) -> np.ndarray:
        """Draw an impulse response from the direct sound on, which is 1."""
        path = self._sounds["rooms"][rng.integers(len(self._sounds["rooms"]))]
        response = self._read(path)
        peak = int(np.argmax(np.abs(response)))
        if not np.isfinite(response).all() or not response[peak] or len(response) > MAX_RESPONSE * self.rate:
            raise InputError(f"{path} is no impulse response of a room: silent, not finite or above {MAX_RESPONSE} s")
        return response[peak:] / response[peak]

    def _read(self, path: Location) -> np.ndarray:
        sound = open_recording(path, self.rate)
        return sound.part(0, sound.length)[SAMPLES].astype(np.float64)


def _amplitude(sound: np.ndarray) -> float:
    return math.sqrt(np.mean(np.square(sound)))
