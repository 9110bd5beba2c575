"""Losses: functions that build ``loss(outputs, example, mask) -> scalar`` for one example.

Each loss reads named arrays and ignores frames that do not exist: padding changes neither the value nor the gradient.
Losses that optax has are computed by optax.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxrnn.training.losses.classes import binary_cross_entropy, cross_entropy, ctc
from jaxrnn.training.losses.frames import Loss, Output, TimeAxis, weighted_sum
from jaxrnn.training.losses.signals import (
    SIGNALS,
    mean_absolute_error,
    mse,
    multi_resolution_stft,
    permutation_invariant,
    si_sdr,
    spectral_mse,
)

__all__ = [
    "LOSSES",
    "Loss",
    "Output",
    "TimeAxis",
    "binary_cross_entropy",
    "cross_entropy",
    "ctc",
    "mean_absolute_error",
    "mse",
    "multi_resolution_stft",
    "permutation_invariant",
    "si_sdr",
    "spectral_mse",
    "weighted_sum",
]
__dir__ = __all__.copy


LOSSES: dict[str, Callable[..., Loss]] = {
    **{make.__name__: make for make in (binary_cross_entropy, cross_entropy, ctc, permutation_invariant)},
    **SIGNALS,
}
"""The losses by name, as a file of settings calls them."""
