"""Pictures of a sound: its waveform, which takes the page's colours, and its spectrogram."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image
from scipy import signal

#: Columns of a picture, and rows of a spectrogram.
WIDTH, HEIGHT = 360, 112

#: The range of a spectrogram below the loudest sound of a recording, in dB.
RANGE = 80

#: Samples of a spectrogram's window, and the least and the most from one to the next: few for a fine picture of a short
#: sound, and never so many that something falls between two.
WINDOW, LEAST, MOST = 512, 32, 256

#: Colours of a spectrogram: more would make the file larger, not the picture finer.
COLOURS = 48

#: Colours that they lie between: dark to bright, as evenly as the eye sees it.
MAGMA = ((0, 0, 4), (59, 15, 112), (140, 41, 129), (222, 73, 104), (254, 159, 109), (252, 253, 191))


def data_uri(content: bytes, kind: str) -> str:
    """Content as an address that holds it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def waveform(samples: np.ndarray, count: int, peak: float) -> str:
    """The outline of a sound: lowest and highest sample of each column.

    Args:
        samples: ``float[samples]``.
        count: samples of the picture's width, so that sounds of different lengths share a scale of time.
        peak: the magnitude that reaches its edges.
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
    """Level of a sound in dB, ``float[HEIGHT, columns]``, lowest frequency first; a full-scale tone has 0 dB.

    A point shows the loudest of all windows and bins that fall on it: nothing short or narrow is lost.
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
    """Levels as a PNG in a data URI.

    Args:
        level: as `levels` returns it.
        share: the share of the picture's width that the sound has.
        top: the level of the brightest colour, in dB; black is `RANGE` below.
    """
    steps = np.clip((level - top + RANGE) / RANGE, 0, 1) * (COLOURS - 1)
    wide = np.zeros((level.shape[0], max(1, round(level.shape[1] / share))), np.uint8)
    wide[:, : level.shape[1]] = np.round(steps)
    picture = Image.fromarray(wide[::-1]).convert("P")
    shades = np.linspace(0, 1, COLOURS), np.linspace(0, 1, len(MAGMA))
    picture.putpalette(
        np.stack([np.interp(*shades, channel) for channel in zip(*MAGMA, strict=True)], 1)
        .round()
        .astype(np.uint8)
        .tobytes()
    )
    file = io.BytesIO()
    picture.save(file, "png", optimize=True)
    return data_uri(file.getvalue(), "image/png")
