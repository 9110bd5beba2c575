"""Labels as segments of time: a table of starts and ends, read as labels of frames at any rate."""

from __future__ import annotations

import csv
import math

import numpy as np

from jaxrnn._files.locations import Location, check_file
from jaxrnn.errors import InputError
from jaxrnn.evaluation.recordings import Recording, open_recording


class Segments:
    """A CSV file with the columns ``start`` and ``end`` in seconds; where they overlap, a time counts once."""

    def __init__(self, path: Location):
        ends = _joined(_read(path)).ravel()
        self._times = np.concatenate([[0.0], ends])
        #: The seconds that are labelled up to each of the times.
        self._labelled = np.concatenate([[0.0], np.cumsum(np.diff(ends, prepend=0.0) * (np.arange(len(ends)) % 2))])

    def labels(self, start: int, stop: int, rate: float) -> np.ndarray:
        """Labels ``float32[stop - start]`` of frames: 1 where at least half of a frame's time is in a segment.

        Args:
            start: the first frame; frame k is the time from ``k / rate`` to ``(k + 1) / rate``.
            stop: the frame after the last.
            rate: frames a second.
        """
        until = np.interp(np.arange(start, stop + 1) / rate, self._times, self._labelled)
        # Half a frame is half a frame, whatever the rounding of its ends.
        return (np.diff(until) * rate >= 0.5 - 1e-6).astype(np.float32)


def _read(path: Location) -> list[tuple[float, float]]:
    try:
        with check_file(path).open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, skipinitialspace=True)
            columns = [name.strip() for name in rows.fieldnames or ()]
            if not {"start", "end"} <= set(columns):
                raise InputError(
                    f"{path}: a table of segments has the columns start and end, in seconds, in its first line; "
                    f"found {', '.join(columns) or 'nothing'}"
                )
            rows.fieldnames = columns
            return [_segment(path, rows.line_num, row["start"], row["end"]) for row in rows]
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a table of segments: {error}") from error


def _segment(path: Location, line: int, start: str | None, end: str | None) -> tuple[float, float]:
    try:
        first, last = float(start or ""), float(end or "")
    except ValueError:
        raise InputError(
            f"{path}, line {line}: expected a start and an end in seconds, not {start!r}, {end!r}"
        ) from None
    if not 0 <= first <= last < math.inf:
        raise InputError(f"{path}, line {line}: expected 0 <= start <= end, not {first:g} and {last:g}")
    return first, last


def _joined(segments: list[tuple[float, float]]) -> np.ndarray:
    """Segments ``float64[segments, 2]`` in order; those that touch are one."""
    joined: list[list[float]] = []
    for first, last in sorted(segments):
        if joined and first <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return np.array(joined, np.float64).reshape(-1, 2)


def open_reference(path: Location, rate: int) -> Recording | Segments:
    """A reference: a recording, or with the ending ``.csv`` a table of segments.

    Raises:
        InputError: it cannot be read.
    """
    return Segments(path) if path.suffix.lower() == ".csv" else open_recording(path, rate)
