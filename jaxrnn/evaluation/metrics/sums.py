"""Metrics that are functions of sums over a recording: of any length, in a few numbers of memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrnn.evaluation.metrics.protocol import Column, Metric, NoValueError, Pool
from jaxrnn.si_sdr import energies_of_sums

#: Of sums of squares in float64, what is smaller than this part of them is rounding.
ROUNDING = 1e-14

#: A level is that of an output alone, and neither direction of it is better.
_LEVEL: dict[str, Any] = {"needs_reference": False, "unit": "dBFS", "higher_is_better": None}

#: From a piece of the output, of the reference and of the recording itself to its sums ``float64[size]``.
SumsOf = Callable[[np.ndarray, np.ndarray | None, np.ndarray | None], Any]


class Sums:
    """An accumulator that adds up the sums of pieces.

    Args:
        size: how many sums there are.
        of: the sums of a piece.
        values: the result of all sums ``float64[size]``.
        join: adds the sums of a piece to those before it.
    """

    def __init__(self, size: int, of: SumsOf, values: Callable[[np.ndarray], dict[str, Any]], join: Any = np.add):
        self._sums, self._of, self._values, self._join = np.zeros(size), of, values, join

    def add(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> None:
        """Add the sums of a piece."""
        self._sums = self._join(self._sums, self._of(output, reference, source))

    def result(self) -> dict[str, Any]:
        """The values of all sums."""
        return self._values(self._sums)


def counted(
    called: str, output: str | None, pool: Pool, of: SumsOf, columns: tuple[Column, ...], options: dict[str, Any]
) -> Metric:
    """A metric whose sums are counts, which add up over a corpus too."""

    def values(sums: np.ndarray) -> dict[str, Any]:
        return {column: float(value) for column, value in pool.values(sums).items()} | {pool.key: pool.counts(sums)}

    return Metric(called, lambda rate: Sums(pool.size, of, values), output, columns=columns, pool=pool, options=options)


def finite(array: np.ndarray) -> np.ndarray:
    """Samples ``float64[samples]`` that can be judged.

    Raises:
        NoValueError: one is not finite.
    """
    samples = np.asarray(array, np.float64).ravel()
    if not np.isfinite(samples).all():
        raise NoValueError("there are samples that are not finite")
    return samples


def paired(output: np.ndarray, reference: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """An output and its reference as samples ``float64[samples]`` that can be judged.

    Raises:
        NoValueError: one is not finite, or their frames are of different sizes.
    """
    assert reference is not None
    if np.size(output) != np.size(reference):
        shapes = f"{np.shape(reference)[1:]}, the output's {np.shape(output)[1:]}"
        raise NoValueError(f"a frame of the reference has the shape {shapes}")
    return finite(output), finite(reference)


def dot(x: np.ndarray, y: np.ndarray) -> float:
    """The sum of products, added up in one order whatever the number of cores, which BLAS does not promise."""
    return float(np.sum(x * y))


def decibels(signal: float, noise: float) -> float:
    """The ratio of two energies in dB: infinite without noise, else minus infinity without signal.

    Raises:
        NoValueError: an energy is not finite.
    """
    if not math.isfinite(signal + noise):
        raise NoValueError("there are samples that are not finite")
    if noise <= 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def _moments(output: np.ndarray, reference: np.ndarray | None) -> list[float]:
    """Sums of the output, the reference, and their difference, so that a good output costs no digits."""
    x, s = paired(output, reference)
    d = x - s
    return [s.size, x.sum(), s.sum(), d.sum(), dot(x, x), dot(s, s), dot(d, d), dot(x, s), dot(d, s)]


def _si_sdr(sums: np.ndarray, what: str = "output") -> float:
    """SI-SDR of `_moments`; ``what`` is the name of what was compared with the reference."""
    count, squares = sums[0], sums[4:]
    if not count:
        raise NoValueError(f"the {what} is empty")
    x, s, d = sums[1:4] / count
    means = np.array([x * x, s * s, d * d, x * s, d * s]) * count
    xx, ss, dd, xs, ds = (float(centred) for centred in squares - means)
    for name, centred, square in (("reference", ss, squares[1]), (what, xx, squares[0])):
        if centred <= ROUNDING * square:
            raise NoValueError(f"the {name} is constant")
    scale, whole, cross = (1.0, dd, ds) if dd < xx else (0.0, xx, xs)
    signal, rest = energies_of_sums(scale, ss, whole, cross)
    return decibels(signal, rest if rest > ROUNDING * whole else 0.0)


def _of_sound(
    kind: str,
    called: str,
    output: str | None,
    size: int,
    of: SumsOf,
    value: Callable[[np.ndarray], float],
    join: Any = np.add,
    **options: Any,
) -> Metric:
    """A metric of sound with one column."""

    def start(rate: Any) -> Sums:
        return Sums(size, of, lambda sums: {called: value(sums)}, join)

    return Metric(called, start, output, options={"kind": kind}, **options)


def si_sdr(called: str = "si_sdr", output: str | None = None) -> Metric:
    """SI-SDR of a sound against its reference, in dB; higher is better.

    The part of the output along the reference over the rest, both without their means (`jaxrnn.si_sdr`). Infinite for a
    scaled copy of the reference, minus infinity for an output without any of it, not defined for a constant reference,
    a constant output, or sound that is not finite.
    """
    return _of_sound("si_sdr", called, output, 9, lambda x, s, source: _moments(x, s), _si_sdr, unit="dB")


def si_sdr_improvement(called: str = "si_sdr_improvement", output: str | None = None) -> Metric:
    """SI-SDR of the output less that of the recording itself, both against the reference, in dB; higher is better.

    Not defined where either is not, or where both are infinite.
    """

    def of(output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> list[float]:
        assert source is not None
        return [*_moments(output, reference), *_moments(source, reference)]

    def value(sums: np.ndarray) -> float:
        return _si_sdr(sums[:9]) - _si_sdr(sums[9:], "recording")

    return _of_sound("si_sdr_improvement", called, output, 18, of, value, unit="dB", needs_source=True)


def snr(called: str = "snr", output: str | None = None) -> Metric:
    """The energy of the reference over that of the output's difference from it, in dB; higher is better.

    Unlike SI-SDR it counts a wrong level as noise. Infinite for a copy, not defined for a silent reference.
    """

    def of(output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> list[float]:
        x, s = paired(output, reference)
        d = x - s
        return [dot(s, s), dot(d, d)]

    def value(sums: np.ndarray) -> float:
        if sums[0] == 0:
            raise NoValueError("the reference is silent")
        return decibels(*map(float, sums))

    return _of_sound("snr", called, output, 2, of, value, unit="dB")


def level(called: str = "level", output: str | None = None) -> Metric:
    """The output's root mean square in dB of full scale; a sine of full scale has -3.01; silence minus infinity."""

    def of(output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> list[float]:
        x = finite(output)
        return [x.size, dot(x, x)]

    return _of_sound("level", called, output, 2, of, _level, **_LEVEL)


def peak(called: str = "peak", output: str | None = None) -> Metric:
    """The output's largest magnitude in dB of full scale; above 0 it clips; minus infinity for silence."""

    def of(output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> list[float]:
        x = finite(output)
        return [min(x.size, 1), np.abs(x).max(initial=0) ** 2]

    return _of_sound("peak", called, output, 2, of, _level, np.maximum, **_LEVEL)


def _level(sums: np.ndarray) -> float:
    count, energy = map(float, sums)
    if not count:
        raise NoValueError("the output is empty")
    return decibels(energy, count)
