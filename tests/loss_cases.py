"""Losses and metrics in all their variants, an example for them, and how the tests call them."""

from __future__ import annotations

import functools

import jax
import numpy as np
from scipy import special

from jaxrnn.training import losses, metrics

FRAMES, WIDTH, CLASSES = 9, 3, 4
ALL = np.ones(FRAMES, bool)


def draw(seed: int = 0, frames: int = FRAMES) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Outputs and arrays of an example, with time on axis 1, and on axis 0 where its name says so."""
    rng = np.random.default_rng(seed)
    real = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    outputs = {
        "y": real(1, frames, WIDTH),
        "y_first": real(frames, 1, WIDTH),
        "spectrum": (real(1, frames, WIDTH) + 1j * real(1, frames, WIDTH)).astype(np.complex64),
        "parts": real(1, WIDTH, frames, 2),
        "logits": real(1, frames, CLASSES),
        "logits_in_front": real(1, CLASSES, frames),
        "yes": rng.uniform(0.01, 0.99, (frames, 1, 1)).astype(np.float32),
        "yes_logits": 3 * real(frames, 1, 1),
    }
    outputs["shares"] = special.softmax(outputs["logits"], -1)
    example = {
        "wanted": real(frames, WIDTH),
        "noisy": real(1, frames, WIDTH),
        "wanted_spectrum": (real(frames, WIDTH) + 1j * real(frames, WIDTH)).astype(np.complex64),
        "wanted_parts": real(1, WIDTH, frames, 2),
        "classes": rng.integers(0, CLASSES, frames),
        "soft": special.softmax(real(frames, CLASSES), -1),
        "speech": rng.random(frames) < 0.5,
        "labels": np.array([1, 2, 2, 0, 0]),
    }
    return outputs, example


#: Every loss and metric in its variants, and the output that it judges.
CASES = {
    "mse": ("y", losses.mse("y", "wanted", time_axis=1)),
    "mse, time first": ("y_first", losses.mse("y_first", "wanted", time_axis=0)),
    "mse of a mask": ("y", losses.mse("y", "wanted", times="noisy", time_axis=-2)),
    "absolute error": ("y", losses.mean_absolute_error("y", "wanted", time_axis=1)),
    "absolute error of spectra": ("spectrum", losses.mean_absolute_error("spectrum", "wanted_spectrum", time_axis=1)),
    "magnitudes": ("spectrum", losses.spectral_mse("spectrum", "wanted_spectrum", time_axis=1)),
    "complex": ("spectrum", losses.spectral_mse("spectrum", "wanted_spectrum", time_axis=1, complex_weight=1)),
    "compressed": (
        "spectrum",
        losses.spectral_mse("spectrum", "wanted_spectrum", time_axis=1, power=0.3, complex_weight=0.3),
    ),
    "complex mask": ("y", losses.spectral_mse("y", "wanted_spectrum", times="noisy", time_axis=1, complex_weight=0.5)),
    "parts": (
        "parts",
        losses.spectral_mse("parts", "wanted_parts", time_axis=2, power=0.5, complex_weight=0.5, parts_axis=3),
    ),
    "si_sdr": ("y", losses.si_sdr("y", "wanted", time_axis=1)),
    "si_sdr, zero mean": ("y", losses.si_sdr("y", "wanted", time_axis=1, zero_mean=True)),
    "si_sdr of spectra": ("spectrum", losses.si_sdr("spectrum", "wanted_spectrum", time_axis=1, zero_mean=True)),
    "cross_entropy": ("logits", losses.cross_entropy("logits", "classes")),
    "cross_entropy, classes first": (
        "logits_in_front",
        losses.cross_entropy("logits_in_front", "classes", class_axis=1, time_axis=2),
    ),
    "cross_entropy, soft": ("logits", losses.cross_entropy("logits", "soft", time_axis=1)),
    "cross_entropy, ignored": ("logits", losses.cross_entropy("logits", "classes", ignore_label=2)),
    "cross_entropy of probabilities": ("shares", losses.cross_entropy("shares", "classes", scale="probabilities")),
    "binary": ("yes", losses.binary_cross_entropy("yes", "speech")),
    "binary, logits": ("yes_logits", losses.binary_cross_entropy("yes_logits", "speech", scale="logits")),
    "ctc": ("logits", losses.ctc("logits", "labels")),
    "improvement": ("y", metrics.si_sdr_improvement("y", "wanted", "noisy", time_axis=1)),
}
#: Metrics whose gradient is zero nearly everywhere, or has no meaning.
FLAT = {
    "accuracy": ("logits", metrics.accuracy("logits", "classes")),
    "accuracy, ignored": ("logits", metrics.accuracy("logits", "classes", ignore_label=1)),
    "binary accuracy": ("yes", metrics.binary_accuracy("yes", "speech")),
}


@functools.cache
def derivative_of(loss, name):
    """Compiled once for all examples and masks of one shape."""
    return jax.jit(jax.value_and_grad(lambda array, outputs, *rest: loss({**outputs, name: array}, *rest)))


def value_and_gradient(loss, name, outputs, example, mask):
    value, gradient = derivative_of(loss, name)(outputs[name], outputs, example, mask)
    return np.asarray(value), np.asarray(gradient)


def call(loss, outputs, example, mask=ALL) -> float:
    return float(jax.jit(loss)(outputs, example, mask))
