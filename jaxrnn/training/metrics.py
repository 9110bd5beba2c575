"""Metrics to measure beside the loss, built like losses. For some metrics, larger is better."""

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

__all__ = ["METRICS", "accuracy", "binary_accuracy", "mean_absolute_error", "si_sdr", "si_sdr_improvement"]
__dir__ = __all__.copy


def accuracy(
    output: Output, target: str, *, class_axis: int = -1, time_axis: TimeAxis = "auto", ignore_label: int | None = None
) -> Loss:
    """Build the fraction of frames with the largest output in the right class. Options as in `losses.cross_entropy`."""

    def metric(outputs: Arrays, example: Arrays, mask: jax.Array) -> jax.Array:
        scores, axis = classes_last(read_output(outputs, example, output), class_axis, time_axis)
        labels = like(read_target(example, target).astype(jnp.int32), scores.shape[:-1], target)
        scores, exists = frames_first(scores, axis, mask)
        labels, _ = frames_first(labels, axis, mask)
        counts, labels = valid_labels(labels, exists, scores.shape[-1], ignore_label)
        return mean_where((jnp.argmax(scores, -1).astype(jnp.int32) == labels).astype(scores.dtype), counts)

    return metric


def binary_accuracy(output: Output, target: str, *, threshold: float = 0.5, time_axis: TimeAxis = "auto") -> Loss:
    """Build the fraction of elements on the right side of a threshold.

    Args:
        output: The name of a model output, or a function of outputs and example.
        target: An array of the example in the shape of the output, apart from axes of size 1; at least 1/2 means yes.
        threshold: An output of at least this value means yes: 0 for logits.
        time_axis: The time axis of the output, None without a time axis, or "auto" for the only axis longer than 1.
    """

    def metric(scores: jax.Array, labels: jax.Array, exists: jax.Array) -> jax.Array:
        return masked_mean(((scores >= threshold) == (labels >= 0.5)).astype(scores.dtype), exists)

    return comparison(metric, output, target, time_axis=time_axis)


@functools.wraps(losses.si_sdr, assigned=["__annotations__"])  # the signature, and no more
def si_sdr(*args: Any, **options: Any) -> Loss:
    """Build the scale-invariant signal-to-distortion ratio in dB. Options as in `losses.si_sdr`."""
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
    """Build the improvement of SI-SDR in dB over the ``mixture``, an array in the shape of the output."""
    after = si_sdr(output, target, times=times, time_axis=time_axis, zero_mean=zero_mean, limit=limit)

    def metric(outputs: Arrays, example: Arrays, mask: jax.Array) -> jax.Array:
        shape = read_output(outputs, example, output).shape
        unchanged = {"mixture": like(read_target(example, mixture), shape, mixture)}
        before = si_sdr("mixture", target, time_axis=time_axis, zero_mean=zero_mean, limit=limit)
        gained, had = of_one_type(after(outputs, example, mask), before(unchanged, example, mask))
        return gained - had

    return metric


METRICS: dict[str, Callable[..., Loss]] = {
    "accuracy": accuracy,
    "binary_accuracy": binary_accuracy,
    **losses.LOSSES,
    "si_sdr": si_sdr,
    "si_sdr_improvement": si_sdr_improvement,
}
"""The metrics by name, and all losses."""
