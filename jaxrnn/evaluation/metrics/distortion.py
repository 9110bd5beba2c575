"""SDR as BSS Eval defines it, from sums of correlations."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import scipy.linalg

from jaxrnn.errors import check_count
from jaxrnn.evaluation.metrics.protocol import Column, Metric, NoValueError
from jaxrnn.evaluation.metrics.sums import ROUNDING, decibels, dot, paired

#: What a solution may leave of its right side.
_RESIDUAL = 1e-9


class Distortion:
    """Correlations over the length of the filter, which determine the best filter from the reference to the output."""

    def __init__(self, name: str, taps: int):
        self._name = name
        self._past = np.zeros(taps - 1)
        self._own, self._cross = np.zeros(taps), np.zeros(taps)
        self._energy = 0.0

    def add(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> None:
        """Add the correlations of these frames with those of the reference, past ones included."""
        x, s = paired(output, reference)
        if not x.size:
            return
        known = np.concatenate([self._past, s])
        own, cross = _correlated(np.stack([s, x]), known, len(self._own))
        self._own += own
        self._cross += cross
        self._energy += dot(x, x)
        self._past = known[len(known) - len(self._past) :]

    def result(self) -> dict[str, Any]:
        """The value, by the name of its column."""
        if self._own[0] <= 0 or self._energy == 0:
            raise NoValueError(f"the {'output' if self._own[0] > 0 else 'reference'} is silent")
        along = min(max(float(_solved(self._own, self._cross) @ self._cross), 0.0), self._energy)
        rest = self._energy - along
        return {self._name: decibels(along, rest if rest > ROUNDING * self._energy else 0.0)}


def _correlated(sounds: np.ndarray, known: np.ndarray, taps: int) -> np.ndarray:
    """Correlations ``[sounds, taps]`` by lag: entry k is the sum over n of ``sound[n] * reference[n - k]``.

    Args:
        sounds: ``[sounds, samples]``.
        known: the reference, with its ``taps - 1`` samples before in front.
        taps: the number of lags.
    """
    # Overlap-save: the transforms of blocks are added, and one inverse transform is left.
    size = max(4096, 1 << (4 * taps - 1).bit_length())
    block = size - taps + 1
    count = -(-sounds.shape[1] // block)
    padded = np.pad(sounds, ((0, 0), (0, count * block - sounds.shape[1])))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(known, (0, count * block + taps - 1 - len(known))), size)[
        ::block
    ]
    spectra = np.conj(np.fft.rfft(padded.reshape(len(sounds), count, block), size)) * np.fft.rfft(windows)
    return np.fft.irfft(spectra.sum(1), size)[:, :taps][:, ::-1]


def _solved(column: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The solution of a symmetric Toeplitz system; the smallest one where the reference lacks frequencies.

    Levinson's recursion comes first: its sums have one order, however many threads a linear algebra library has.
    """
    matrix = scipy.linalg.toeplitz(column)
    for solve in (lambda: scipy.linalg.solve_toeplitz(column, right), lambda: np.linalg.solve(matrix, right)):
        with contextlib.suppress(np.linalg.LinAlgError):
            found = solve()
            if np.abs(matrix @ found - right).max() <= _RESIDUAL * np.abs(right).max():
                return found
    return np.linalg.lstsq(matrix, right, rcond=ROUNDING * len(matrix))[0]


def sdr(called: str = "sdr", output: str | None = None, taps: int = 512) -> Metric:
    """SDR of BSS Eval version 3 for one source, in dB; higher is better.

    What of the output a filter of ``taps`` samples can make of the reference, over the rest: Vincent et al.,
    "Performance measurement in blind audio source separation", 2006. Values above about 100 dB are rounding; infinite
    for an exact copy, not defined for a silent reference or output.

    Args:
        called: name of the column.
        output: the output that it judges.
        taps: length of the filter; BSS Eval's is 512.
    """
    check_count("sdr: taps", taps)
    column, options = Column(called, "dB"), {"kind": "sdr", "taps": taps}
    return Metric(called, (column,), lambda rate: Distortion(called, taps), output, options=options)
