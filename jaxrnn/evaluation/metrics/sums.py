"""Metrics that are sums over a recording: of any length, in a few numbers of memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrnn.evaluation.metrics.protocol import Metric, NoValueError
from jaxrnn.si_sdr import energies_of_sums

#: Of sums of squares in float64, what is smaller than this part of them is rounding.
ROUNDING = 1e-14


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


class ScaleInvariant:
    """SI-SDR from sums of the output, the reference, and their difference, so that a good output costs no digits."""

    def __init__(self, name: str):
        self._name, self._count = name, 0
        self._sums, self._squares = np.zeros(3), np.zeros(5)

    def add(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> None:
        """Add to the sums."""
        x, s = paired(output, reference)
        d = x - s
        self._count += s.size
        self._sums += [x.sum(), s.sum(), d.sum()]
        self._squares += [dot(x, x), dot(s, s), dot(d, d), dot(x, s), dot(d, s)]

    def value(self, what: str = "output") -> float:
        """In dB; ``what`` is the name of what was compared with the reference."""
        if not self._count:
            raise NoValueError(f"the {what} is empty")
        x, s, d = self._sums / self._count
        means = np.array([x * x, s * s, d * d, x * s, d * s]) * self._count
        xx, ss, dd, xs, ds = (float(centred) for centred in self._squares - means)
        for name, centred, square in (("reference", ss, self._squares[1]), (what, xx, self._squares[0])):
            if centred <= ROUNDING * square:
                raise NoValueError(f"the {name} is constant")
        scale, whole, cross = (1.0, dd, ds) if dd < xx else (0.0, xx, xs)
        signal, rest = energies_of_sums(scale, ss, whole, cross)
        return decibels(signal, rest if rest > ROUNDING * whole else 0.0)

    def result(self) -> dict[str, Any]:
        """One column."""
        return {self._name: self.value()}


class Improvement:
    """SI-SDR of the output less that of the recording itself."""

    def __init__(self, name: str):
        self._name, self._after, self._before = name, ScaleInvariant(name), ScaleInvariant(name)

    def add(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> None:
        """Add to both."""
        assert source is not None
        self._after.add(output, reference, None)
        self._before.add(source, reference, None)

    def result(self) -> dict[str, Any]:
        """Infinite minus infinite is not defined."""
        return {self._name: self._after.value() - self._before.value("recording")}


class SignalToNoise:
    """SNR: the energy of the reference over that of the output's difference from it."""

    def __init__(self, name: str):
        self._name, self._signal, self._noise = name, 0.0, 0.0

    def add(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> None:
        """Add to both energies."""
        x, s = paired(output, reference)
        d = x - s
        self._signal += dot(s, s)
        self._noise += dot(d, d)

    def result(self) -> dict[str, Any]:
        """One column."""
        if self._signal == 0:
            raise NoValueError("the reference is silent")
        return {self._name: decibels(self._signal, self._noise)}


class Level:
    """The root of the mean square."""

    def __init__(self, name: str):
        self._name, self._energy, self._count = name, 0.0, 0

    def add(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> None:
        """Add to the energy."""
        x = finite(output)
        self._energy += dot(x, x)
        self._count += x.size

    def result(self) -> dict[str, Any]:
        """One column."""
        if not self._count:
            raise NoValueError("the output is empty")
        return {self._name: decibels(self._energy, self._count)}


class Peak:
    """The largest magnitude."""

    def __init__(self, name: str):
        self._name, self._peak = name, -1.0

    def add(self, output: np.ndarray, reference: np.ndarray | None, source: np.ndarray | None) -> None:
        """Look for a larger one."""
        if np.size(output):
            self._peak = float(np.maximum(self._peak, np.max(np.abs(finite(output)))))

    def result(self) -> dict[str, Any]:
        """One column."""
        if self._peak < 0:
            raise NoValueError("the output is empty")
        return {self._name: decibels(self._peak**2, 1.0)}


def _named(kind: Callable[[str], Any], name: str) -> Callable[[Any], Any]:
    return lambda rate: kind(name)


def si_sdr(called: str = "si_sdr", output: str | None = None) -> Metric:
    """SI-SDR of a sound against its reference, in dB; higher is better.

    The part of the output along the reference over the rest, both without their means (`jaxrnn.si_sdr`). Infinite for a
    scaled copy of the reference, minus infinity for an output without any of it, not defined for a constant reference,
    a constant output, or sound that is not finite.
    """
    return Metric(called, _named(ScaleInvariant, called), output, unit="dB", options={"kind": "si_sdr"})


def si_sdr_improvement(called: str = "si_sdr_improvement", output: str | None = None) -> Metric:
    """SI-SDR of the output less that of the recording itself, both against the reference, in dB; higher is better.

    Not defined where either is not, or where both are infinite.
    """
    start = _named(Improvement, called)
    return Metric(called, start, output, unit="dB", needs_source=True, options={"kind": "si_sdr_improvement"})


def snr(called: str = "snr", output: str | None = None) -> Metric:
    """The energy of the reference over that of the output's difference from it, in dB; higher is better.

    Unlike SI-SDR it counts a wrong level as noise. Infinite for a copy, not defined for a silent reference.
    """
    return Metric(called, _named(SignalToNoise, called), output, unit="dB", options={"kind": "snr"})


def level(called: str = "level", output: str | None = None) -> Metric:
    """The output's root mean square in dB of full scale; a sine of full scale has -3.01; silence minus infinity."""
    start = _named(Level, called)
    return Metric(called, start, output, False, "dBFS", None, options={"kind": "level"})


def peak(called: str = "peak", output: str | None = None) -> Metric:
    """The output's largest magnitude in dB of full scale; above 0 it clips; minus infinity for silence."""
    start = _named(Peak, called)
    return Metric(called, start, output, False, "dBFS", None, options={"kind": "peak"})
