"""Synthetic speech-like signals and noises of 16 kHz, drawn from a NumPy generator.

A voiced signal follows the source-filter model: harmonics of a moving pitch, weighted by moving resonances (formants),
in syllables with pauses, and bursts of hiss in place of consonants. The ranges follow Fant, "Acoustic Theory of Speech
Production", 1960, and Klatt, "Software for a cascade/parallel formant synthesizer", JASA 67, 1980.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxrnn._files.messages import short_repr
from jaxrnn.demo.audio import RATE, Samples
from jaxrnn.errors import InputError

#: Samples from tick to tick of a contour (10 ms).
TICK = RATE // 100
#: Lowest and highest frequency of the first four formants over vowels, and the bandwidths, in Hz.
FORMANTS = np.array([[320, 780], [900, 2300], [2300, 3000], [3300, 3900]], float)
BANDWIDTHS = np.array([80, 100, 140, 220], float)[:, None]
#: The highest frequency of a harmonic, in Hz.
HIGHEST = 7_600

Contour = NDArray[np.float64]


@short_repr
class Mixture(NamedTuple):
    """A clean signal and the noisy signal, ``float32[samples]`` each."""

    clean: Samples
    noisy: Samples


class Syllable(NamedTuple):
    """A syllable: start and length in seconds, and gain."""

    start: float
    length: float
    gain: float


def voiced(rng: np.random.Generator, samples: int) -> Samples:
    """Draw a speech-like signal of a single speaker: ``float32[samples]`` of unit power, at least 2 samples."""
    ticks = samples // TICK + 2
    syllables = _rhythm(rng, samples / RATE)
    loudness = _envelope(syllables, ticks)
    pitch = _pitch(rng, ticks)
    tilt, tract = rng.uniform(0.8, 1.4), rng.uniform(0.9, 1.15)
    amplitudes = loudness * _harmonics(pitch, _formants(rng, syllables, ticks) * tract, tilt)
    signal = _additive(pitch, amplitudes, samples, rng.uniform(0, 2 * np.pi))
    breath = shaped_noise(rng, samples, lambda f: f / 3_000 * np.exp(-f / 3_000))
    signal += rng.uniform(0.01, 0.06) * _per_sample(loudness, samples) * breath * np.sqrt(np.mean(signal**2))
    _add_bursts(rng, signal, syllables)
    return _unit_power(signal)


def _rhythm(rng: np.random.Generator, seconds: float) -> list[Syllable]:
    """Draw at least one syllable, and further consecutive syllables with occasional pauses."""
    # The first syllable begins inside of the signal, even if the signal is short.
    syllables, now = [], min(rng.uniform(0.05, 0.25), seconds / 4)
    while now < seconds or not syllables:
        length = rng.uniform(0.12, 0.36)
        syllables.append(Syllable(now, length, rng.uniform(0.4, 1.0)))
        pause = rng.uniform(0.25, 0.8) if rng.random() < 0.2 else rng.uniform(0.01, 0.09)
        now += length + pause
    return syllables


def _envelope(syllables: list[Syllable], ticks: int) -> Contour:
    """Return the loudness at each tick: a flattened half sine for each syllable."""
    times = np.arange(ticks) * (TICK / RATE)
    loudness = np.zeros(ticks)
    for start, length, gain in syllables:
        place = (times - start) / length
        inside = (place > 0) & (place < 1)
        loudness[inside] += gain * np.sin(np.pi * place[inside]) ** 0.6
    return loudness


def _pitch(rng: np.random.Generator, ticks: int) -> Contour:
    """Draw the pitch in Hz at each tick: a base, slow intonation, and a jitter of 0.4 %."""
    times = np.arange(ticks) * (TICK / RATE)
    base = np.exp(rng.uniform(np.log(85), np.log(270)))
    intonation = sum(
        rng.uniform(0.03, 0.10) * np.sin(2 * np.pi * (rate * times + rng.random()))
        for rate in rng.uniform([0.15, 0.6, 1.5], [0.4, 1.2, 3.0])
    )
    return base * np.exp(intonation + 0.004 * rng.standard_normal(ticks))


def _formants(rng: np.random.Generator, syllables: list[Syllable], ticks: int) -> Contour:
    """Draw formant frequencies ``[4, ticks]``: a target for each syllable, interpolated in between."""
    targets = rng.uniform(FORMANTS[:, :1], FORMANTS[:, 1:], (len(FORMANTS), len(syllables)))
    centres = [start + length / 2 for start, length, _ in syllables]
    times = np.arange(ticks) * (TICK / RATE)
    return np.stack([np.interp(times, centres, row) for row in targets])


def _harmonics(pitch: Contour, formants: Contour, tilt: float) -> Contour:
    """Return amplitudes ``[harmonics, ticks]`` of a falling source spectrum after a cascade of resonances."""
    count = int(HIGHEST / pitch.min())
    order = np.arange(1, count + 1)[:, None]
    frequency = order * pitch
    gain = order**-tilt * (frequency < HIGHEST)
    for track, width in zip(formants, BANDWIDTHS, strict=True):
        gain = gain * track**2 / np.hypot(track**2 - frequency**2, width * frequency)
    # This factor for all higher resonances keeps the cascade from falling too steeply.
    return gain * (1 + (frequency / 2_500) ** 2) ** 1.5


def _additive(pitch: Contour, amplitudes: Contour, samples: int, phase: float) -> NDArray[np.float64]:
    """Sum harmonics as complex exponentials: harmonic n + 1 is harmonic n times the fundamental."""
    cycles = np.cumsum(_per_sample(pitch, samples)) / RATE
    fundamental = np.exp(2j * np.pi * (cycles % 1)).astype(np.complex64)
    harmonic = np.full(samples, np.exp(1j * phase), np.complex64)
    signal = np.zeros(samples)
    for amplitude in amplitudes:
        harmonic *= fundamental
        signal += _per_sample(amplitude, samples) * harmonic.imag
    return signal


def _add_bursts(rng: np.random.Generator, signal: NDArray[np.float64], syllables: list[Syllable]) -> None:
    """Add band-shaped hiss before some syllables, in place, similar to fricatives and plosives."""
    scale = np.sqrt(np.mean(signal**2))
    for start, _, gain in syllables:
        if rng.random() > 0.45:
            continue
        length = int(rng.uniform(0.03, 0.13) * RATE)
        begin = max(0, int(start * RATE) - int(0.8 * length))
        centre, width = rng.uniform(1_800, 6_500), rng.uniform(500, 1_800)
        hiss = _band(rng, length, centre, width) * np.hanning(length)
        loud = gain * rng.uniform(0.3, 1.2) * scale
        end = min(len(signal), begin + length)
        signal[begin:end] += loud * hiss[: max(0, end - begin)]


def white(rng: np.random.Generator, samples: int) -> Samples:
    """Draw white noise ``float32[samples]`` of unit power."""
    return rng.standard_normal(samples, np.float32)


def pink(rng: np.random.Generator, samples: int) -> Samples:
    """Draw noise ``float32[samples]`` of unit power that falls as 1/f, and is flat below 30 Hz."""
    return shaped_noise(rng, samples, lambda f: np.maximum(f, 30) ** -0.5)


def hum(rng: np.random.Generator, samples: int) -> Samples:
    """Draw mains hum ``float32[samples]`` of unit power: 50 or 60 Hz with harmonics and a slow drift."""
    ticks = samples // TICK + 2
    drift = np.cumsum(rng.standard_normal(ticks)) * 1e-4
    pitch = rng.choice([50.0, 60.0]) * (1 + drift - drift.mean())
    falling = np.arange(1, 41) ** -rng.uniform(0.5, 1.2)
    amplitudes = (falling * rng.uniform(0, 1, 40))[:, None] * np.ones(ticks)
    return _unit_power(_additive(pitch, amplitudes, samples, rng.uniform(0, 2 * np.pi)))


def babble(rng: np.random.Generator, samples: int) -> Samples:
    """Draw coloured noise ``float32[samples]`` of unit power with slowly swelling bands, similar to distant voices."""
    ticks = samples // TICK + 2
    total = np.zeros(samples)
    for centre in np.exp(rng.uniform(np.log(150), np.log(5_000), 8)):
        swell = np.exp(
            1.2 * np.interp(np.arange(ticks), np.arange(0, ticks + 12, 12), rng.standard_normal(-(-(ticks + 12) // 12)))
        )
        total += _per_sample(swell, samples) * _band(rng, samples, centre, 0.35 * centre) * centre**-0.4
    return _unit_power(total)


#: The named noises.
NOISES: dict[str, Callable[[np.random.Generator, int], Samples]] = {
    "white": white,
    "pink": pink,
    "hum": hum,
    "babble": babble,
}


def noise(rng: np.random.Generator, samples: int) -> Samples:
    """Draw a random mixture of all `NOISES`: ``float32[samples]`` of unit power."""
    shares = rng.dirichlet(np.full(len(NOISES), 0.6))
    return _unit_power(
        sum(
            (np.sqrt(share) * make(rng, samples) for share, make in zip(shares, NOISES.values(), strict=True)),
            np.zeros(samples),
        )
    )


def mix(clean: Samples, disturbance: Samples, snr: float, level: float = -26) -> Mixture:
    """Add noise to a signal.

    Args:
        clean: ``float32[samples]``.
        disturbance: noise, ``float32[samples]``.
        snr: ratio of the signal power to the noise power over the whole length, in dB.
        level: power of the clean signal in the result, in dB relative to full scale.

    Raises:
        InputError: the signal or the noise is silent, so that its power cannot be scaled, or the shapes differ.
    """
    if np.shape(clean) != np.shape(disturbance):
        raise InputError(
            f"mix needs equal lengths, not {len(clean):,} samples of signal and {len(disturbance):,} of noise"
        )
    for name, samples in {"signal": clean, "noise": disturbance}.items():
        if not np.any(samples):
            raise InputError(f"the {name} is silent: mix needs samples other than 0")
    signal, added = _of_power(clean, level), _of_power(disturbance, level - snr)
    return Mixture(signal, np.add(signal, added, dtype=np.float32))


def mixture(rng: np.random.Generator, seconds: float, snr: float) -> Mixture:
    """Draw a voiced signal and a noise, and mix both at ``snr`` dB."""
    samples = round(seconds * RATE)
    return mix(voiced(rng, samples), noise(rng, samples), snr)


def shaped_noise(
    rng: np.random.Generator, samples: int, response: Callable[[NDArray[np.floating]], NDArray[np.floating]]
) -> Samples:
    """Filter white noise by ``response``, an amplitude for each frequency in Hz, and scale the result to unit power."""
    spectrum = np.fft.rfft(rng.standard_normal(samples))
    return _unit_power(np.fft.irfft(spectrum * response(np.fft.rfftfreq(samples, 1 / RATE)), samples))


def _band(rng: np.random.Generator, samples: int, centre: float, width: float) -> Samples:
    return shaped_noise(rng, samples, lambda f: np.exp(-0.5 * ((f - centre) / width) ** 2))


def _per_sample(contour: NDArray[np.floating], samples: int) -> NDArray[np.float64]:
    """Interpolate a contour linearly between ticks, for each sample."""
    ramp = np.arange(TICK) / TICK
    steps = np.diff(contour)
    return (contour[:-1, None] + steps[:, None] * ramp).reshape(-1)[:samples]


def _unit_power(signal: NDArray[np.floating]) -> Samples:
    return (signal / np.sqrt(np.mean(np.square(signal, dtype=np.float64)))).astype(np.float32)


def _of_power(signal: NDArray[np.floating], decibels: float) -> Samples:
    return (_unit_power(signal) * 10 ** (decibels / 20)).astype(np.float32)
