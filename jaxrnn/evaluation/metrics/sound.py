"""Metrics of sound: energies, SI-SDR, SDR, STOI and PESQ."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import threading
import warnings
import zlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import scipy.linalg
from scipy import signal

from jaxrnn.errors import InputError, check_count, optional_package
from jaxrnn.evaluation.metrics.protocol import (
    LIMIT,
    Column,
    Judgement,
    Metric,
    NoValueError,
    Sums,
    SumsOf,
    over_whole,
    real,
)
from jaxrnn.signal.distortion import energies_of_sums

#: The lowest SI-SDR and SDR in dB, which silent outputs have: the range of the loss `jaxrnn.training.losses.si_sdr`.
FLOOR = -100.0

#: A smaller share of a sum of squares in float64 is rounding.
ROUNDING = 1e-14


def finite(array: np.ndarray) -> np.ndarray:
    """Return samples as ``float64[samples]``."""
    samples = real(array)
    if not np.isfinite(samples).all():
        raise NoValueError("there are samples that are not finite")
    return samples


def paired(output: np.ndarray, reference: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return an output and a reference as samples ``float64[samples]``."""
    assert reference is not None
    if np.size(output) != np.size(reference):
        shapes = f"{np.shape(reference)[1:]}, the output's {np.shape(output)[1:]}"
        raise NoValueError(f"a frame of the reference has the shape {shapes}")
    return finite(output), finite(reference)


def dot(x: np.ndarray, y: np.ndarray) -> float:
    """Return the sum of products, added in a fixed order, which BLAS does not guarantee."""
    return float(np.sum(x * y))


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two energies in dB: infinite without noise, else minus infinity without signal."""
    if not math.isfinite(signal + noise):
        raise NoValueError("there are samples that are not finite")
    if noise <= 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def _moments(output: np.ndarray, reference: np.ndarray | None) -> list[float]:
    """Return sums of the output, the reference and the difference, so that good outputs lose no digits."""
    x, s = paired(output, reference)
    d = x - s
    return [s.size, x.sum(), s.sum(), d.sum(), dot(x, x), dot(s, s), dot(d, d), dot(x, s), dot(d, s)]


def _si_sdr(sums: np.ndarray, what: str = "output") -> float:
    """Return SI-SDR from `_moments`, at least `FLOOR`; ``what`` names the compared sound in messages."""
    count, squares = sums[0], sums[4:]
    if not count:
        raise NoValueError(f"the {what} is empty")
    x, s, d = sums[1:4] / count
    means = np.array([x * x, s * s, d * d, x * s, d * s]) * count
    xx, ss, dd, xs, ds = (float(centred) for centred in squares - means)
    if not np.isfinite(sums).all():
        raise NoValueError("there are samples that are not finite")
    if ss <= ROUNDING * squares[1]:
        raise NoValueError("the reference is constant")
    if xx <= ROUNDING * squares[0]:
        return FLOOR
    scale, whole, cross = (1.0, dd, ds) if dd < xx else (0.0, xx, xs)
    signal, rest = energies_of_sums(scale, ss, whole, cross)
    return max(FLOOR, decibels(signal, rest if rest > ROUNDING * whole else 0.0))


def _of_sound(
    kind: str,
    column: Column,
    output: str | None,
    size: int,
    of: SumsOf,
    value: Callable[[np.ndarray], float],
    join: Any = np.add,
    **options: Any,
) -> Metric:
    """Make a metric of sound with one column."""

    def start(rate: Any) -> Sums:
        return Sums(size, of, lambda sums: {column.name: value(sums)}, join)

    return Metric(column.name, (column,), start, output, options={"kind": kind}, **options)


def si_sdr(called: str = "si_sdr", output: str | None = None) -> Metric:
    """Make SI-SDR of a sound against a reference, in dB; higher is better.

    SI-SDR is the energy of the output along the reference over the remaining energy, after subtracting means
    (`jaxrnn.signal.si_sdr`). A scaled copy of the reference has an infinite value. A silent or constant output and an
    output orthogonal to the reference have -100 dB, the lowest value, so that a system which fails does not get a
    better mean. Scheibler, "SDR - medium rare with fast computations", ICASSP 2022, limits values in the same way. A
    constant reference and non-finite sound have no value.
    """
    return _of_sound("si_sdr", Column(called, "dB"), output, 9, lambda x, s, source: _moments(x, s), _si_sdr)


def si_sdr_improvement(called: str = "si_sdr_improvement", output: str | None = None) -> Metric:
    """Make SI-SDR of the output minus SI-SDR of the recording, both against the reference, in dB; higher is better.

    The value is missing if the reference or the recording is constant, or if both ratios are infinite.
    """

    def of(output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> list[float]:
        assert source is not None
        return [*_moments(output, reference), *_moments(source, reference)]

    def value(sums: np.ndarray) -> float:
        before = _si_sdr(sums[9:], "recording")
        if before == FLOOR:
            raise NoValueError("the recording is silent, or unlike the reference")
        return _si_sdr(sums[:9]) - before

    return _of_sound("si_sdr_improvement", Column(called, "dB"), output, 18, of, value, needs_source=True)


def snr(called: str = "snr", output: str | None = None) -> Metric:
    """Make the energy of the reference over the energy of the error, in dB; higher is better.

    Unlike SI-SDR, a wrong level counts as noise. A copy has an infinite value; a silent reference has none.
    """

    def of(output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> list[float]:
        x, s = paired(output, reference)
        d = x - s
        return [dot(s, s), dot(d, d)]

    def value(sums: np.ndarray) -> float:
        if sums[0] == 0:
            raise NoValueError("the reference is silent")
        return decibels(*map(float, sums))

    return _of_sound("snr", Column(called, "dB"), output, 2, of, value)


def level(called: str = "level", output: str | None = None) -> Metric:
    """Make the root mean square of the output in dBFS; a full-scale sine has -3.01, silence minus infinity."""

    def of(output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> list[float]:
        x = finite(output)
        return [x.size, dot(x, x)]

    return _of_sound("level", Column(called, "dBFS", None), output, 2, of, _level, needs_reference=False)


def peak(called: str = "peak", output: str | None = None) -> Metric:
    """Make the largest magnitude of the output in dBFS; values above 0 clip; silence has minus infinity."""

    def of(output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> list[float]:
        x = finite(output)
        return [min(x.size, 1), np.abs(x).max(initial=0) ** 2]

    column = Column(called, "dBFS", None)
    return _of_sound("peak", column, output, 2, of, _level, np.maximum, needs_reference=False)


def _level(sums: np.ndarray) -> float:
    count, energy = map(float, sums)
    if not count:
        raise NoValueError("the output is empty")
    return decibels(energy, count)


#: The largest relative residual of a solution.
_RESIDUAL = 1e-9


class Distortion:
    """Correlations over the length of the filter, which determine the best filter from the reference to the output."""

    def __init__(self, name: str, taps: int):
        self._name = name
        self._past = np.zeros(taps - 1)
        self._own, self._cross = np.zeros(taps), np.zeros(taps)
        self._energy = 0.0

    def add(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> None:
        """Add the correlations of these frames with present and past frames of the reference."""
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
        """Return the value by column."""
        if self._own[0] <= 0:
            raise NoValueError("the reference is silent")
        if self._energy == 0:
            return {self._name: FLOOR}
        along = min(max(float(_solved(self._own, self._cross) @ self._cross), 0.0), self._energy)
        rest = self._energy - along
        return {self._name: max(FLOOR, decibels(along, rest if rest > ROUNDING * self._energy else 0.0))}


def _correlated(sounds: np.ndarray, known: np.ndarray, taps: int) -> np.ndarray:
    """Return correlations ``[sounds, taps]`` by lag: entry k is the sum over n of ``sound[n] * reference[n - k]``.

    ``known`` is the reference, with ``taps - 1`` earlier samples first.
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
    """Solve a symmetric Toeplitz system, with the smallest solution if the reference lacks frequencies.

    Levinson's recursion is tried first, because its sums have a fixed order for any number of threads.
    """
    matrix = scipy.linalg.toeplitz(column)
    for solve in (lambda: scipy.linalg.solve_toeplitz(column, right), lambda: np.linalg.solve(matrix, right)):
        with contextlib.suppress(np.linalg.LinAlgError):
            found = solve()
            if np.abs(matrix @ found - right).max() <= _RESIDUAL * np.abs(right).max():
                return found
    return np.linalg.lstsq(matrix, right, rcond=ROUNDING * len(matrix))[0]


def sdr(called: str = "sdr", output: str | None = None, taps: int = 512) -> Metric:
    """Make SDR of BSS Eval version 3 for one source, in dB; higher is better.

    SDR is the energy of the output that a filter of ``taps`` samples can make from the reference, over the remaining
    energy: Vincent et al., "Performance measurement in blind audio source separation", 2006. Values above about 100 dB
    are rounding errors. An exact copy has an infinite value, a silent output -100 dB, and a silent reference none.

    Args:
        called: the name of the column.
        output: the judged output.
        taps: the length of the filter; BSS Eval uses 512.
    """
    check_count("sdr: taps", taps)
    column, options = Column(called, "dB"), {"kind": "sdr", "taps": taps}
    return Metric(called, (column,), lambda rate: Distortion(called, taps), output, options=options)


#: The value of pystoi for too little speech, and the shortest sound for pystoi in seconds.
_TOO_LITTLE, _SHORTEST = 1e-5, 0.4

#: The sample rate of telephone sound, which PESQ does not resample.
_NARROW = 8_000


#: Held while NumPy's global generator is seeded by a recording.
_SEEDED = threading.Lock()


def _needed(package: str, kind: str) -> Any:
    with optional_package(package, f"the metric {kind}"):
        return importlib.import_module(package)


def _sounds(output: np.ndarray, reference: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    x, s = paired(output, reference)
    for what, sound in (("reference", s), ("output", x)):
        if not sound.any():
            raise NoValueError(f"the {what} is silent")
    return x, s


def _of_whole_sounds(
    kind: str, judge: Judgement, called: str, output: str | None, limit: float, **options: Any
) -> Metric:
    """Make a metric of whole sounds."""
    metric = over_whole(judge, called, output, limit=limit, options={"kind": kind, **options})

    def start(rate: Any) -> Any:
        if rate != int(rate):
            raise InputError(f"the metric {kind} judges sound, not an output of {float(rate):g} frames a second")
        if options.get("band") == "wide" and rate == _NARROW:
            raise InputError("pesq of the wide band needs sound of at least 16,000 samples a second: take band: narrow")
        return metric.start(int(rate))

    return dataclasses.replace(metric, start=start, by_key=False)


def _intelligibility(kind: str, called: str, output: str | None, limit: float) -> Metric:
    pystoi = _needed("pystoi", kind)

    def judge(output: np.ndarray, reference: np.ndarray | None, rate: float) -> float:
        x, s = _sounds(output, reference)
        value = _TOO_LITTLE
        if len(s) > _SHORTEST * rate:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # The package draws from NumPy's global generator.
                with _SEEDED:
                    before = np.random.get_state()  # noqa: NPY002
                    np.random.seed(zlib.crc32(s.tobytes()))  # noqa: NPY002
                    try:
                        value = float(pystoi.stoi(s, x, rate, extended=kind == "estoi"))
                    finally:
                        np.random.set_state(before)  # noqa: NPY002
        if value == _TOO_LITTLE:
            raise NoValueError("there are less than 30 frames (0.4 s) of speech")
        return value

    return _of_whole_sounds(kind, judge, called, output, limit)


def stoi(called: str = "stoi", output: str | None = None, limit: float = LIMIT) -> Metric:
    """Make short-time objective intelligibility, 0 to 1, without unit; higher is better.

    Taal et al., "An algorithm for intelligibility prediction of time-frequency weighted noisy speech", 2011, computed
    by the package pystoi for sound of any rate. Silence and too little speech have no value.
    """
    return _intelligibility("stoi", called, output, limit)


def estoi(called: str = "estoi", output: str | None = None, limit: float = LIMIT) -> Metric:
    """Make extended STOI, at most 1, without unit; higher is better. Extended STOI is sensitive to modulated noise.

    Jensen and Taal, "An algorithm for predicting the intelligibility of speech masked by modulated noise maskers",
    2016.
    """
    return _intelligibility("estoi", called, output, limit)


def pesq(called: str | None = None, output: str | None = None, band: str = "wide", limit: float = LIMIT) -> Metric:
    """Make PESQ, a mean opinion score of about 1 to 4.64, without unit; higher is better.

    ITU-T P.862.2 for the wide band, P.862 with P.862.1 for the narrow band, computed by the package pesq: at 16 kHz, or
    for narrow-band sound of 8 kHz at 8 kHz. Other rates are resampled to 16 kHz. Sound without utterances and sound
    shorter than a quarter of a second have no value.

    Args:
        called: the name of the column; by default ``pesq`` or ``pesq_narrow``.
        output: the judged output.
        band: ``"wide"`` or ``"narrow"``.
        limit: seconds of the longest judged recording.

    Raises:
        InputError: the band is neither of the two.
        MissingPackageError: the package is not installed.
    """
    if band not in ("wide", "narrow"):
        raise InputError(f"pesq: band must be 'wide' or 'narrow', not {band!r}")
    package = _needed("pesq", "pesq")
    mode = {"wide": "wb", "narrow": "nb"}[band]

    def judge(output: np.ndarray, reference: np.ndarray | None, rate: int) -> float:
        x, s = _sounds(output, reference)
        at = _NARROW if rate == _NARROW else 16_000
        if rate != at:
            ratio = Fraction(at, rate)
            x, s = (signal.resample_poly(sound, ratio.numerator, ratio.denominator) for sound in (x, s))
        try:
            value = float(package.pesq(at, s.astype(np.float32), x.astype(np.float32), mode))
        except package.PesqError as error:
            said = error.args[0] if error.args else error
            raise NoValueError(said.decode() if isinstance(said, bytes) else str(said)) from error
        if math.isnan(value):
            raise NoValueError("the package pesq found no value")
        return value

    name = called or {"wide": "pesq", "narrow": "pesq_narrow"}[band]
    return _of_whole_sounds("pesq", judge, name, output, limit, band=band)
