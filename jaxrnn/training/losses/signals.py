"""Losses of signals and spectra: SI-SDR, and errors of real values, magnitudes and complex spectra."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import describe, near_or_all
from jaxrnn.audio.frames import Frames, window_values
from jaxrnn.errors import InputError
from jaxrnn.signal.distortion import energies
from jaxrnn.training.losses.frames import (
    Arrays,
    Loss,
    Output,
    TimeAxis,
    comparison,
    masked_mean,
    named_by_call,
    present,
    read_output,
    read_target,
)


@named_by_call
def mse(output: Output, target: str, *, times: str | None = None, time_axis: TimeAxis = "auto") -> Loss:
    """Build the mean squared error over all elements of existing frames; squared distance for complex values.

    Args:
        output: The name of a model output, or a function of outputs and example.
        target: An array of the example in the shape of the output, apart from axes of size 1.
        times: An array of the example. The output is then a mask, and the product is judged.
        time_axis: The time axis of the output, None without a time axis, or "auto" for the only axis longer than 1.
    """

    def error(estimate: jax.Array, reference: jax.Array, exists: jax.Array) -> jax.Array:
        return masked_mean(_square(estimate - reference), exists)

    return comparison(error, output, target, times=times, time_axis=time_axis)


@named_by_call
def mean_absolute_error(output: Output, target: str, *, times: str | None = None, time_axis: TimeAxis = "auto") -> Loss:
    """Build the mean absolute error over all elements of existing frames. Options as in `mse`."""

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
    """Build the mean squared error of spectra: of magnitudes, of complex values, or of both, with compressed power.

    Magnitudes enter as ``|x| ** power``, complex values with this magnitude and the original phase. The loss is ``(1 -
    complex_weight)`` times the error of magnitudes plus ``complex_weight`` times the error of complex values.

    Source: Braun and Tashev, "A consolidated view of loss functions for supervised deep learning-based speech
    enhancement", TSP 2021, with ``power=0.3`` and ``complex_weight=0.3``.

    Args:
        output: The name of a model output, or a function of outputs and example: magnitudes, or complex values.
        target: An array of the example in the shape of the output, apart from axes of size 1.
        times: An array of the example. The output is then a mask, and the product is judged.
        time_axis: The time axis of the output, None without a time axis, or "auto" for the only axis longer than 1.
        power: The exponent of magnitudes, above 0.
        complex_weight: The weight of the error of complex values, 0 to 1.
        parts_axis: An axis of size 2 of a real output and target with real and imaginary parts.
        floor: Magnitudes far below this value count as equal, so that the gradient is finite at 0.

    Raises:
        InputError: An option is out of range; or, when called, complex values are needed and the arrays are real.
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
def multi_resolution_stft(
    output: Output,
    target: str,
    *,
    time_axis: TimeAxis = "auto",
    sizes: tuple[int, ...] = (1024, 2048, 512),
    hops: tuple[int, ...] = (120, 240, 50),
    windows: tuple[int, ...] = (600, 1200, 240),
    floor: float = 1e-7,
    padding: Literal["reflect", "zeros"] = "reflect",
) -> Loss:
    """Build the error of magnitudes of short-time spectra, the mean over several resolutions.

    For spectra T and O of target and output, ``||T| - |O||_F / ||T||_F + mean(abs(log|T| - log|O|))``: spectral
    convergence and error of log magnitudes. The phase does not count.

    Source: Yamamoto, Song and Kim, "Parallel WaveGAN", ICASSP 2020.

    Args:
        output: The name of a model output, or a function of outputs and example: real samples.
        target: An array of the example in the shape of the output, apart from axes of size 1.
        time_axis: The time axis of the output, or "auto" for the only axis longer than 1.
        sizes: Samples of the Fourier transform, for each resolution.
        hops: Samples from frame to frame.
        windows: Samples of the Hann window.
        floor: The least square of a magnitude, so that the logarithm of silence is finite.
        padding: The samples around a recording: "reflect", as in the authors' code and ``torch.stft``, or "zeros".

    Raises:
        InputError: The numbers do not fit, or the padding does not exist; or, when called, the arrays are complex.
    """
    if not sizes or not len(sizes) == len(hops) == len(windows) or floor <= 0:
        raise InputError(f"sizes, hops and windows have a number for each resolution, not {sizes}, {hops}, {windows}")
    if padding not in ("reflect", "zeros"):
        raise InputError(f"padding must be 'reflect' or 'zeros', not {padding!r}")
    frames = []
    for size, hop, length in zip(sizes, hops, windows, strict=True):
        if not 0 < length <= size:
            raise InputError(f"a window must have from 1 to the {size} samples of its transform, not {length}")
        before = (size - length) // 2
        window = np.pad(window_values("hann", length), (before, size - length - before))
        frames.append(Frames(size, hop, window, padding="none"))

    def padded(x: jax.Array, size: int, count: jax.Array) -> jax.Array:
        """Add half a frame around the first `count` samples on the last axis, as NumPy does."""
        places = jnp.arange(-(size // 2), x.shape[-1] + size // 2, dtype=jnp.int32)
        period = jnp.maximum(2 * (count - 1), 1)
        turned = jnp.abs(places) % period
        reflected = jnp.take(x, jnp.minimum(turned, period - turned), axis=-1)
        inside = (places >= 0) & (places < count)
        return reflected if padding == "reflect" else jnp.where(inside, reflected, 0)

    def error(estimate: jax.Array, reference: jax.Array, exists: jax.Array) -> jax.Array:
        if jnp.iscomplexobj(estimate):
            raise InputError("multi_resolution_stft compares samples, and these arrays are complex")
        total, count = jnp.zeros((), estimate.dtype), jnp.sum(exists, dtype=jnp.int32)
        for each in frames:
            signals = (padded(jnp.moveaxis(x, 0, -1), each.size, count) for x in (estimate, reference))
            spectra = (jnp.moveaxis(each.stft(signal), -2, 0) for signal in signals)
            got, wanted = (jnp.sqrt(jnp.maximum(_square(spectrum), floor)) for spectrum in spectra)
            # The frames that a recording of the existing samples has.
            there = jnp.arange(len(got), dtype=jnp.int32) * each.hop <= count - each.size % 2
            square = jnp.sum(present(wanted - got, there) ** 2)
            distance = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)
            total += distance / jnp.sqrt(jnp.sum(present(wanted, there) ** 2))
            total += masked_mean(jnp.abs(jnp.log(wanted) - jnp.log(got)), there)
        return total / len(frames)

    return comparison(error, output, target, time_axis=time_axis)


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
    """Build the negative scale-invariant signal-to-distortion ratio (`jaxrnn.signal.si_sdr`) in dB.

    A whole array is one signal. Samples of spectra are the real and imaginary parts.

    The ratio is smoothly limited to the range from ``-limit`` to ``limit`` dB, so that a perfect estimate has a finite
    loss and gradient. For a silent target, loss and gradient are 0. A silent estimate of any other target has the
    ratio ``-limit`` and no gradient.

    Args:
        output: The name of a model output, or a function of outputs and example.
        target: An array of the example in the shape of the output, apart from axes of size 1.
        times: An array of the example. The output is then a mask, and the product is judged.
        time_axis: The time axis of the output, None without a time axis, or "auto" for the only axis longer than 1.
        zero_mean: True to subtract the mean over existing samples first. The paper assumes zero-mean signals; audio has
            no offset, and chunks would be centered separately.
        limit: The highest ratio in dB, above 0.
    """
    if limit <= 0:
        raise InputError(f"limit must be above 0 dB, not {limit}")

    def loss(estimate: jax.Array, reference: jax.Array, exists: jax.Array) -> jax.Array:
        if zero_mean:
            estimate, reference = (present(x - masked_mean(x, exists), exists) for x in (estimate, reference))
        return -_ratio(estimate, reference, limit)

    return comparison(loss, output, target, times=times, time_axis=time_axis)


@named_by_call
def permutation_invariant(
    loss: str | Callable[..., Loss],
    output: Output,
    target: str,
    *,
    axis: int = 0,
    time_axis: TimeAxis = "auto",
    **options: Any,
) -> Loss:
    """Build the loss of several sources, the mean over sources, in the order of the output that makes it least.

    Source: Kolbaek et al., "Multitalker speech separation with utterance-level permutation invariant training of deep
    recurrent neural networks", TASLP 2017.

    Args:
        loss: The loss of a source: a name, or a function of the names of an output and a target.
        output: The name of a model output, or a function of outputs and example, with an axis of sources.
        target: An array of the example with the axis of sources first, as `jaxrnn.training.Mixtures` draws it.
        axis: The axis of sources of the output.
        time_axis: The time axis of a source of the output, or "auto" for the only axis longer than 1.
        options: Options of the loss.

    Raises:
        InputError: The loss or an option is unknown; or, when called, the numbers of sources differ.
    """
    if isinstance(loss, str) and loss not in SIGNALS:
        raise InputError(f"there is no loss of a source {loss!r}{near_or_all(loss, SIGNALS)}")
    try:
        of_source = (SIGNALS[loss] if isinstance(loss, str) else loss)("it", "it", time_axis=time_axis, **options)
    except TypeError as error:
        raise InputError(f"the loss of a source does not take these options: {error}") from error

    def best(outputs: Arrays, example: Arrays, mask: jax.Array) -> jax.Array:
        estimates, references = read_output(outputs, example, output), read_target(example, target)
        sources = estimates.shape[axis] if -estimates.ndim <= axis < estimates.ndim else 0
        if sources != len(references) or not 0 < sources <= MAX_SOURCES:
            raise InputError(
                f"{target!r} is {describe(references)}, with sources first, and the output is {describe(estimates)}, "
                f"with sources along axis {axis}: give 1 to {MAX_SOURCES} sources in both"
            )

        def pair(estimate: jax.Array, reference: jax.Array) -> jax.Array:
            return of_source({**outputs, "it": estimate}, {**example, "it": reference}, mask)

        pairs = jnp.stack([jnp.stack([pair(x, y) for y in references]) for x in jnp.moveaxis(estimates, axis, 0)])
        orders = np.array(list(itertools.permutations(range(sources))), np.int32)
        return jnp.min(jnp.mean(pairs[np.arange(sources, dtype=np.int32), orders], axis=1))

    return best


#: The losses of a signal by name.
SIGNALS: dict[str, Callable[..., Loss]] = {
    make.__name__: make for make in (mean_absolute_error, mse, multi_resolution_stft, si_sdr, spectral_mse)
}
#: The most sources, which have 720 orders.
MAX_SOURCES = 6


def _ratio(estimate: jax.Array, reference: jax.Array, limit: float) -> jax.Array:
    """Return the SI-SDR in dB of signals of any shape."""
    # The ratio is invariant to scale: scale signals so that squares neither underflow nor overflow.
    estimate, estimate_sounds = _normalised(estimate)
    reference, reference_sounds = _normalised(reference)
    signal, distortion = energies(estimate, jnp.where(reference_sounds, reference, jnp.ones((), reference.dtype)))
    distortion = jnp.maximum(distortion, 0)  # rounding may make it less
    least = 10 ** (-limit / 10) * (signal + distortion)
    sounds = reference_sounds & estimate_sounds
    # An undefined ratio would make the gradient NaN.
    ratio = jnp.where(sounds, signal + least, 1) / jnp.where(sounds, distortion + least, 1)
    decibels = 10 * jnp.log10(ratio)
    return jnp.where(reference_sounds, jnp.where(estimate_sounds, decibels, -limit), 0)


def _normalised(signal: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the signal divided by its largest magnitude, and False for a silent signal."""
    parts = (jnp.real(signal), jnp.imag(signal)) if jnp.iscomplexobj(signal) else (signal,)
    largest = jax.lax.stop_gradient(jnp.maximum(*(jnp.max(jnp.abs(part), initial=0) for part in (parts[0], parts[-1]))))
    # Subnormal numbers have too few digits for a ratio.
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
