"""Sounds inside a page, with their waveforms and spectrograms."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import soundfile
from PIL import Image
from scipy import signal

from jaxrnn._files.stores import Location
from jaxrnn.audio.recordings import ARRAYS, SAMPLES, open_recording
from jaxrnn.audio.sounds import as_int16
from jaxrnn.errors import InputError
from jaxrnn.evaluation.report.table import duration, text

#: The highest rate that FLAC has; from 2**16 on, rates are multiples of ten.
FLAC = 655_350


@dataclass
class Sound:
    """A sound on the page: the first seconds as a data URI, with pictures and notes on missing or changed parts.

    ``share`` is the share of the picture's width, beside longer sounds.
    """

    label: str
    notes: list[str] = field(default_factory=list)
    samples: np.ndarray | None = None
    share: float = 1.0
    uri: str | None = None
    waveform: str | None = None
    spectrogram: str | None = None


class Player:
    """Sounds for one page: up to `SECONDS` of each sound, and `MEGABYTES` of all sounds.

    ``used`` counts bytes of embedded sound, and ``left_out`` sounds without room.
    """

    SECONDS, MEGABYTES = 10.0, 16.0

    def __init__(self, rate: int):
        self._rate = rate
        self.used = self.left_out = 0

    def sounds(self, paths: Mapping[str, Location | str]) -> list[Sound]:
        """Return the sounds of a recording on a common scale. ``paths`` is a dict from labels to paths or reasons."""
        sounds = [self._read(label, path) for label, path in paths.items()]
        present = [(sound, sound.samples, levels(sound.samples)) for sound in sounds if sound.samples is not None]
        count = max((len(samples) for _, samples, _ in present), default=0)
        peak = max((float(np.abs(samples).max()) for _, samples, _ in present), default=0.0)
        top = max((float(array.max()) for *_, array in present), default=0.0)
        for sound, samples, array in present:
            sound.waveform = waveform(samples, count, peak)
            sound.spectrogram = spectrogram(array, len(samples) / count, top)
            sound.share = len(samples) / count
            encoded, kind = encode(samples, self._rate)
            if self.used + len(encoded) > self.MEGABYTES * 1e6:
                self.left_out += 1
                sound.notes.append(f"Not embedded: the page's {self.MEGABYTES:g} MB of sound are used up.")
            else:
                self.used += len(encoded)
                sound.uri = data_uri(encoded, kind)
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
            recording = open_recording(path, self._rate, finite=False)
            samples = recording.part(0, min(recording.length, max(1, round(self.SECONDS * self._rate))))[SAMPLES]
        except (InputError, OSError) as error:
            sound.notes.append(f"Not shown: {text(error, 400)}")
            return sound
        if len(samples) < recording.length:
            first, whole = (duration(count / self._rate) for count in (len(samples), recording.length))
            sound.notes.append(f"Cut: the first {first} of {whole}.")
        if not np.isfinite(samples).all():
            sound.notes.append("Values that are not finite are silence here.")
            samples = np.nan_to_num(samples, nan=0.0, posinf=0.0, neginf=0.0)
        peak = float(np.abs(samples).max())
        if peak > 1:
            sound.notes.append(f"It goes {20 * np.log10(peak):.1f} dB over full scale and is clipped here.")
        sound.samples = np.clip(samples, -1, 1)
        return sound


def encode(samples: np.ndarray, rate: int) -> tuple[bytes, str]:
    """Encode 16-bit sound as FLAC, or as WAV for rates that FLAC lacks; return the bytes and the media type.

    Equal samples give equal bytes, unlike an Ogg stream, which begins with a random number.
    """
    name = "FLAC" if rate < 2**16 or (rate <= FLAC and rate % 10 == 0) else "WAV"
    file = io.BytesIO()
    soundfile.write(file, as_int16(samples), rate, subtype="PCM_16", format=name)
    return file.getvalue(), f"audio/{name.lower()}"


#: Columns of a picture, and rows of a spectrogram.
WIDTH, HEIGHT = 360, 112

#: The range of a spectrogram below the loudest sound of a recording, in dB.
RANGE = 80

#: Samples of a spectrogram's window, and the smallest and the largest hop: small for a fine picture of a short sound,
#: and never so large that windows leave gaps.
WINDOW, LEAST, MOST = 512, 32, 256

#: Colours of a spectrogram: more would make the file larger, not the picture finer.
COLOURS = 48

#: Colours to interpolate, dark to bright in perceptually even steps.
MAGMA = ((0, 0, 4), (59, 15, 112), (140, 41, 129), (222, 73, 104), (254, 159, 109), (252, 253, 191))


def data_uri(content: bytes, kind: str) -> str:
    """Return content as a data URI."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def waveform(samples: np.ndarray, count: int, peak: float) -> str:
    """Draw the outline of a sound, ``float[samples]``, as SVG.

    ``count`` samples fill the width, so that all sounds of a recording share a time scale. ``peak`` reaches the edges.
    """
    edges = np.linspace(0, count, min(WIDTH, count) + 1).astype(int)
    padded = np.zeros(count)
    padded[: len(samples)] = samples
    low, high = (ufunc.reduceat(padded, edges[:-1]) for ufunc in (np.minimum, np.maximum))
    upper, lower = (np.round(50 - 48 * side / max(peak, 1e-9), 1) for side in (high, low))
    lower = np.maximum(lower, upper + 0.6)  # silence is a line, not nothing
    places = np.arange(len(upper))
    points = [f"{x} {y:g}" for x, y in zip(places, upper, strict=True)]
    points += [f"{x} {y:g}" for x, y in zip(places[::-1], lower[::-1], strict=True)]
    outline, wide = "L".join(points), max(1, len(upper) - 1)
    return f'<svg viewBox="0 0 {wide} 100" preserveAspectRatio="none" aria-hidden="true"><path d="M{outline}Z"/></svg>'


def levels(samples: np.ndarray) -> np.ndarray:
    """Return levels of a sound in dB, ``float[HEIGHT, columns]``, lowest frequency first; a full-scale tone has 0 dB.

    A pixel shows the loudest of its windows and bins, so that short and narrow events stay visible.
    """
    hop = min(MOST, max(LEAST, len(samples) // (4 * WIDTH)))
    transform = signal.ShortTimeFFT(np.asarray(signal.get_window("hann", WINDOW)), hop, 1, scale_to="magnitude")
    padded = np.pad(samples, (0, max(0, WINDOW - len(samples))))
    # The windows whose centres are samples of the sound.
    magnitudes = 2 * np.abs(transform.stft(padded, 0, -(-len(samples) // hop)))
    rows, columns = (
        np.linspace(0, size, count + 1).astype(int)[:-1]
        for size, count in zip(magnitudes.shape, (HEIGHT, min(WIDTH, magnitudes.shape[1])), strict=True)
    )
    loudest = np.maximum.reduceat(np.maximum.reduceat(magnitudes, rows, axis=0), columns, axis=1)
    return 20 * np.log10(loudest + 1e-9)


def spectrogram(level: np.ndarray, share: float, top: float) -> str:
    """Draw levels as a PNG in a data URI.

    The sound takes a ``share`` of the width. Levels are from `RANGE` below ``top`` (black) to ``top``.
    """
    steps = np.clip((level - top + RANGE) / RANGE, 0, 1) * (COLOURS - 1)
    wide = np.zeros((level.shape[0], max(1, round(level.shape[1] / share))), np.uint8)
    wide[:, : level.shape[1]] = np.round(steps)
    picture = Image.fromarray(wide[::-1]).convert("P")
    shades = np.linspace(0, 1, COLOURS), np.linspace(0, 1, len(MAGMA))
    palette = np.stack([np.interp(*shades, channel) for channel in zip(*MAGMA, strict=True)], 1)
    picture.putpalette(palette.round().astype(np.uint8).tobytes())
    file = io.BytesIO()
    picture.save(file, "png", optimize=True)
    return data_uri(file.getvalue(), "image/png")
