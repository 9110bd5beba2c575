"""Pictures of a sound: its waveform, which takes the page's colours, and its spectrogram."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image
from scipy import signal

#: Columns of a picture, and rows of a spectrogram.
WIDTH, HEIGHT = 360, 112

#: What a spectrogram shows below the loudest of the sounds that it stands beside, in dB.
RANGE = 80

#: Samples of a spectrogram's window, and from one to the next: few for a fine picture of a short sound, but never so
#: many that something falls between two.
WINDOW, LEAST, MOST = 512, 32, 256

#: Windows that are looked at at once, so that memory is bounded.
BLOCK = 4096

#: Colours of a spectrogram: more would make the file larger, not the picture finer.
COLOURS = 48

#: Those that they lie between: dark to bright as evenly as the eye sees it.
MAGMA = ((0, 0, 4), (59, 15, 112), (140, 41, 129), (222, 73, 104), (254, 159, 109), (252, 253, 191))


def data_uri(content: bytes, kind: str) -> str:
    """Content as an address that holds it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def waveform(samples: np.ndarray, count: int, peak: float) -> str:
    """The outline of a sound: lowest and highest sample of each column.

    Args:
        samples: ``float[samples]``.
        count: samples that the picture is wide, so that sounds of unlike length stand in time below each other.
        peak: what reaches its upper edge.
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

    Of all windows and bins that fall on a point, it shows the loudest: nothing short or narrow is lost.
    """
    hop = min(MOST, max(LEAST, len(samples) // (4 * WIDTH)))
    padded = np.pad(samples, (WINDOW // 2, WINDOW))
    window = np.asarray(signal.get_window("hann", WINDOW))
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[: len(samples) : hop]
    up = np.linspace(0, WINDOW // 2 + 1, HEIGHT + 1).astype(int)[:-1]
    parts = []
    for start in range(0, len(frames), BLOCK):
        magnitude = np.abs(np.fft.rfft(frames[start : start + BLOCK] * window)) * (2 / window.sum())
        parts.append(np.maximum.reduceat(magnitude, up, axis=1).T)
    across = np.linspace(0, len(frames), min(WIDTH, len(frames)) + 1).astype(int)[:-1]
    loudest = np.maximum.reduceat(np.concatenate(parts, 1), across, axis=1)
    return 20 * np.log10(loudest + 1e-9)


def spectrogram(found: np.ndarray, share: float, top: float) -> str:
    """Levels as a PNG in a data URI.

    Args:
        found: what `levels` gives.
        share: how much of the picture's width the sound has.
        top: the level of the brightest colour, in dB; black is `RANGE` below.
    """
    steps = np.clip((found - top + RANGE) / RANGE, 0, 1) * (COLOURS - 1)
    wide = np.zeros((found.shape[0], max(1, round(found.shape[1] / share))), np.uint8)
    wide[:, : found.shape[1]] = np.round(steps)
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
