"""Losses of signals and spectra: SI-SDR, mean errors of numbers, of magnitudes and of complex spectra."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrnn.errors import InputError
from jaxrnn.si_sdr import energies
from jaxrnn.training.losses.frames import Loss, Output, TimeAxis, comparison, masked_mean, named_by_call, present


@named_by_call
def mse(output: Output, target: str, *, times: str | None = None, time_axis: TimeAxis = "auto") -> Loss:
    """The mean squared error over all numbers of frames that exist; of complex numbers, the squared distance.

    Args:
        output: an output of the model by name, or a function of outputs and example.
        target: an array of the example, of the output's shape but for axes of size 1.
        times: an array of the example that the output is a mask for: the product is judged.
        time_axis: which axis of the output is time; None for none, "auto" for the only one longer than 1.
    """

    def error(estimate: jax.Array, reference: jax.Array, exists: jax.Array) -> jax.Array:
        return masked_mean(_square(estimate - reference), exists)

    return comparison(error, output, target, times=times, time_axis=time_axis)


@named_by_call
def mean_absolute_error(output: Output, target: str, *, times: str | None = None, time_axis: TimeAxis = "auto") -> Loss:
    """The mean distance over all numbers of frames that exist. Options as of `mse`."""

    def error(estimate: jax.Array, reference: jax.Array, exists: jax.Array) -> jax.Array:
        return masked_mean(jnp.abs(estimate - reference), exists)

    return comparison(error, output, target, times=times, time_axis=time_axis)


@named_by_call
def spectral_mse(
    output: Output,
    target: str,
    *,
    times: str | None = None,
    time_axis: TimeAxis = "auto",
    power: float = 1.0,
    complex_weight: float = 0.0,
    parts_axis: int | None = None,
    floor: float = 1e-4,
) -> Loss:
    """The mean squared error of spectra: of magnitudes, of complex values, or of both, with the power compressed.

    Magnitudes go into it as ``|x| ** power``, complex values with that magnitude and their own phase. The loss is
    ``(1 - complex_weight)`` times the error of magnitudes plus ``complex_weight`` times that of complex values.

    Source: Braun and Tashev, "A consolidated view of loss functions for supervised deep learning-based speech
    enhancement", TSP 2021; they take ``power=0.3`` and ``complex_weight=0.3``.

    Args:
        output: an output of the model by name, or a function of outputs and example: magnitudes, or complex.
        target: an array of the example, of the output's shape but for axes of size 1.
        times: an array of the example that the output is a mask for: the product is judged.
        time_axis: which axis of the output is time; None for none, "auto" for the only one longer than 1.
        power: the exponent of magnitudes, above 0.
        complex_weight: the share of the error of complex values, 0 to 1.
        parts_axis: an axis of size 2 of real output and target that holds the real and the imaginary part.
        floor: magnitudes far below this one count as equal; it keeps the gradient finite where a magnitude is 0.

    Raises:
        InputError: an option is out of its range; or, when called, complex values are asked for and there are none.
    """
    if power <= 0 or not math.isfinite(power):
        raise InputError(f"power must be above 0, not {power}")
    if not 0 <= complex_weight <= 1:
        raise InputError(f"complex_weight must be from 0 to 1, not {complex_weight}")
    if floor <= 0:
        raise InputError(f"floor must be above 0, not {floor}")

    def error(estimate: jax.Array, reference: jax.Array, exists: jax.Array) -> jax.Array:
        result = jnp.zeros((), jnp.finfo(estimate.dtype).dtype)
        if complex_weight < 1:
            errors = _magnitude(estimate, power, floor) - _magnitude(reference, power, floor)
            result += (1 - complex_weight) * masked_mean(errors**2, exists)
        if complex_weight > 0:
            if not jnp.iscomplexobj(estimate):
                raise InputError(
                    f"complex_weight={complex_weight} needs complex values: the output and what it is multiplied with "
                    "are real; for parts along an axis say parts_axis"
                )
            errors = _compressed(estimate, power, floor) - _compressed(reference, power, floor)
            result += complex_weight * masked_mean(_square(errors), exists)
        return result

    return comparison(error, output, target, times=times, time_axis=time_axis, parts_axis=parts_axis)


@named_by_call
def si_sdr(
    output: Output,
    target: str,
    *,
    times: str | None = None,
    time_axis: TimeAxis = "auto",
    zero_mean: bool = False,
    limit: float = 100.0,
) -> Loss:
    """Minus the scale-invariant signal-to-distortion ratio (`jaxrnn.si_sdr`), in dB.

    All of an array is one signal; of spectra, real and imaginary parts are its samples.

    The ratio is held between ``-limit`` and ``limit`` dB, smoothly, so that a perfect estimate has a finite loss and
    gradient. Of a silent target nothing can be said: loss and gradient are 0. A silent estimate of another target
    has the ratio ``-limit`` and no gradient.

    Args:
        output: an output of the model by name, or a function of outputs and example.
        target: an array of the example, of the output's shape but for axes of size 1.
        times: an array of the example that the output is a mask for: the product is judged.
        time_axis: which axis of the output is time; None for none, "auto" for the only one longer than 1.
        zero_mean: whether the mean over existing samples is taken off both signals first. The paper assumes signals
            without one; audio has none, and with carried chunks each chunk would lose its own.
        limit: the highest ratio in dB, above 0.
    """
    if limit <= 0:
        raise InputError(f"limit must be above 0 dB, not {limit}")

    def loss(estimate: jax.Array, reference: jax.Array, exists: jax.Array) -> jax.Array:
        if zero_mean:
            estimate, reference = (present(x - masked_mean(x, exists), exists) for x in (estimate, reference))
        return -_ratio(estimate, reference, limit)

    return comparison(loss, output, target, times=times, time_axis=time_axis)


def _ratio(estimate: jax.Array, reference: jax.Array, limit: float) -> jax.Array:
    """SI-SDR in dB of signals of any shape."""
    # The ratio knows no scale, so that signals are brought to a size whose squares neither vanish nor overflow.
    estimate, estimate_sounds = _normalised(estimate)
    reference, reference_sounds = _normalised(reference)
    signal, distortion = energies(estimate, jnp.where(reference_sounds, reference, jnp.ones((), reference.dtype)))
    distortion = jnp.maximum(distortion, 0)  # rounding may make it less
    least = 10 ** (-limit / 10) * (signal + distortion)
    sounds = reference_sounds & estimate_sounds
    # Where there is no ratio, none is computed: it would give the gradient NaN.
    ratio = jnp.where(sounds, signal + least, 1) / jnp.where(sounds, distortion + least, 1)
    decibels = 10 * jnp.log10(ratio)
    return jnp.where(reference_sounds, jnp.where(estimate_sounds, decibels, -limit), 0)


def _normalised(signal: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The signal over its largest magnitude, and whether it has one."""
    parts = (jnp.real(signal), jnp.imag(signal)) if jnp.iscomplexobj(signal) else (signal,)
    largest = jax.lax.stop_gradient(jnp.maximum(*(jnp.max(jnp.abs(part), initial=0) for part in (parts[0], parts[-1]))))
    # Subnormal numbers have too few digits left to say what the signal is.
    sounds = largest >= jnp.finfo(largest.dtype).tiny
    return signal / jnp.where(sounds, largest, 1).astype(signal.dtype), sounds


def _square(x: jax.Array) -> jax.Array:
    return jnp.real(x) ** 2 + jnp.imag(x) ** 2 if jnp.iscomplexobj(x) else x**2


def _magnitude(x: jax.Array, power: float, floor: float) -> jax.Array:
    return (_square(x) + floor**2) ** (power / 2)


def _compressed(x: jax.Array, power: float, floor: float) -> jax.Array:
    if power == 1:
        return x
    return x * ((_square(x) + floor**2) ** ((power - 1) / 2)).astype(x.dtype)
