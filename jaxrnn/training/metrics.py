"""Metrics: what to watch beside the loss. They are built as losses are, and larger is not always better."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrnn.training import losses
from jaxrnn.training.losses import mean_absolute_error
from jaxrnn.training.losses.classes import classes_last, mean_where, valid_labels
from jaxrnn.training.losses.frames import (
    Arrays,
    Loss,
    Output,
    TimeAxis,
    comparison,
    frames_first,
    like,
    masked_mean,
    of_one_type,
    read_output,
    read_target,
)

__all__ = [
    "METRICS",
    "accuracy",
    "binary_accuracy",
    "mean_absolute_error",
    "si_sdr",
    "si_sdr_improvement",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def accuracy(
    output: Output,
    target: str,
    *,
    class_axis: int = -1,
    time_axis: TimeAxis = "auto",
    ignore_label: int | None = None,
) -> Loss:
    """The share of frames whose largest output is that of the right class. Options as of `losses.cross_entropy`."""

    def metric(outputs: Arrays, example: Arrays, mask: jax.Array) -> jax.Array:
        scores, axis = classes_last(read_output(outputs, example, output), class_axis, time_axis)
        labels = like(read_target(example, target).astype(jnp.int32), scores.shape[:-1], target)
        scores, exists = frames_first(scores, axis, mask)
        labels, _ = frames_first(labels, axis, mask)
        counts, labels = valid_labels(labels, exists, scores.shape[-1], ignore_label)
        return mean_where((jnp.argmax(scores, -1).astype(jnp.int32) == labels).astype(scores.dtype), counts)

    return metric


def binary_accuracy(output: Output, target: str, *, threshold: float = 0.5, time_axis: TimeAxis = "auto") -> Loss:
    """The share of numbers on the right side of a threshold.

    Args:
        output: an output of the model by name, or a function of outputs and example.
        target: an array of the example, of the output's shape but for axes of size 1; at least 1/2 means yes.
        threshold: at least so much of the output means yes: 0 for logits.
        time_axis: which axis of the output is time; None for none, "auto" for the only one longer than 1.
    """

    def metric(scores: jax.Array, labels: jax.Array, exists: jax.Array) -> jax.Array:
        return masked_mean(((scores >= threshold) == (labels >= 0.5)).astype(scores.dtype), exists)

    return comparison(metric, output, target, time_axis=time_axis)


@functools.wraps(losses.si_sdr, assigned=["__annotations__"])  # the signature, and no more
def si_sdr(*args: Any, **options: Any) -> Loss:
    """The scale-invariant signal-to-distortion ratio in dB. Options as of `losses.si_sdr`, which is minus this."""
    loss = losses.si_sdr(*args, **options)
    return lambda outputs, example, mask: -loss(outputs, example, mask)


def si_sdr_improvement(
    output: Output,
    target: str,
    mixture: str,
    *,
    times: str | None = None,
    time_axis: TimeAxis = "auto",
    zero_mean: bool = False,
    limit: float = 100.0,
) -> Loss:
    """By how many dB the output's SI-SDR is above that of the ``mixture``, an array of the example of its shape."""
    after = si_sdr(output, target, times=times, time_axis=time_axis, zero_mean=zero_mean, limit=limit)

    def metric(outputs: Arrays, example: Arrays, mask: jax.Array) -> jax.Array:
        shape = read_output(outputs, example, output).shape
        unchanged = {"mixture": like(read_target(example, mixture), shape, mixture)}
        before = si_sdr("mixture", target, time_axis=time_axis, zero_mean=zero_mean, limit=limit)
        gained, had = of_one_type(after(outputs, example, mask), before(unchanged, example, mask))
        return gained - had

    return metric


#: The metrics by name; every loss can be watched as well.
METRICS: dict[str, Callable[..., Loss]] = {
    "accuracy": accuracy,
    "binary_accuracy": binary_accuracy,
    **losses.LOSSES,
    "si_sdr": si_sdr,
    "si_sdr_improvement": si_sdr_improvement,
}
