"""Sounds inside a page: their first seconds, without loss, up to the size that a page may have."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import soundfile

from jaxrnn._files.locations import Location
from jaxrnn.errors import InputError
from jaxrnn.evaluation.recordings import ARRAYS, SAMPLES, open_recording
from jaxrnn.evaluation.report.pictures import data_uri, levels, spectrogram, waveform
from jaxrnn.evaluation.report.wording import duration, text

#: The highest rate that FLAC has.
FLAC = 655_350


@dataclass
class Sound:
    """A sound as the page holds it.

    Attributes:
        label: input, output or reference.
        notes: what is missing or changed, and why.
        samples: the first seconds ``float32[samples]``; None where there is nothing to hear.
        seconds: the length of the samples.
        share: the share of its pictures' width that it takes, beside longer sounds.
        uri: the sound as a data URI; None where it is not embedded.
        waveform: a picture, as SVG.
        spectrogram: a picture, as a data URI.
    """

    label: str
    notes: list[str] = field(default_factory=list)
    samples: np.ndarray | None = None
    seconds: float = 0.0
    share: float = 1.0
    uri: str | None = None
    waveform: str | None = None
    spectrogram: str | None = None


class Player:
    """Makes sounds for one page.

    Args:
        rate: samples a second, as the system runs.

    Attributes:
        SECONDS: of each sound, at most.
        MEGABYTES: of all sounds, at most.
        used: bytes of sound in the page so far.
        left_out: sounds for which there was no room.
    """

    SECONDS, MEGABYTES = 10.0, 16.0

    def __init__(self, rate: int):
        self._rate = rate
        self.used = self.left_out = 0

    def sounds(self, paths: Mapping[str, Location | str]) -> list[Sound]:
        """The sounds of one recording, drawn on one scale.

        Args:
            paths: by label, or why there is no sound. For a file that is missing or cannot be read, there is a note.
        """
        sounds = [self._read(label, path) for label, path in paths.items()]
        present = [(sound, sound.samples) for sound in sounds if sound.samples is not None]
        if not present:
            return sounds
        count = max(len(samples) for _, samples in present)
        peak = max(float(np.abs(samples).max()) for _, samples in present)
        pictures = [levels(samples) for _, samples in present]
        top = max(float(array.max()) for array in pictures)
        for (sound, samples), array in zip(present, pictures, strict=True):
            sound.waveform = waveform(samples, count, peak)
            sound.spectrogram = spectrogram(array, len(samples) / count, top)
            sound.share = len(samples) / count
            self._embed(sound, samples)
        return sounds

    def _read(self, label: str, path: Location | str) -> Sound:
        sound = Sound(text(label))
        if isinstance(path, str):
            sound.notes.append(path)
            return sound
        if path.suffix.lower() in ARRAYS:
            sound.notes.append(f"{text(path.name)} holds arrays, not sound.")
            return sound
        try:
            recording = open_recording(path, self._rate)
            samples = recording.part(0, min(recording.length, max(1, round(self.SECONDS * self._rate))))[SAMPLES]
        except (InputError, OSError) as error:
            sound.notes.append(f"Not shown: {text(error, 400)}")
            return sound
        sound.seconds = len(samples) / self._rate
        if len(samples) < recording.length:
            sound.notes.append(
                f"Cut: the first {duration(sound.seconds)} of {duration(recording.length / self._rate)}."
            )
        if not np.isfinite(samples).all():
            sound.notes.append("Values that are not finite are silence here.")
            samples = np.nan_to_num(samples, nan=0.0, posinf=0.0, neginf=0.0)
        peak = float(np.abs(samples).max())
        if peak > 1:
            sound.notes.append(f"It goes {20 * np.log10(peak):.1f} dB over full scale and is clipped here.")
        sound.samples = np.clip(samples, -1, 1)
        return sound

    def _embed(self, sound: Sound, samples: np.ndarray) -> None:
        encoded, kind = encode(samples, self._rate)
        if self.used + len(encoded) > self.MEGABYTES * 1e6:
            self.left_out += 1
            sound.notes.append(f"Not embedded: the page's {self.MEGABYTES:g} MB of sound are used up.")
        else:
            self.used += len(encoded)
            sound.uri = data_uri(encoded, kind)


def encode(samples: np.ndarray, rate: int) -> tuple[bytes, str]:
    """A sound with 16 bits a sample as FLAC, or as WAV for a rate that FLAC does not have, and its media type.

    The same samples always give the same bytes, unlike an Ogg stream, which begins with a random number.
    """
    name = "FLAC" if rate <= FLAC else "WAV"
    file = io.BytesIO()
    soundfile.write(file, np.round(samples * 32767).astype(np.int16), rate, subtype="PCM_16", format=name)
    return file.getvalue(), f"audio/{name.lower()}"
