"""Losses of classes and labels: cross-entropy, binary cross-entropy, and CTC."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from jaxrnn._files.messages import describe
from jaxrnn.errors import InputError, optional_package
from jaxrnn.training.losses.frames import (
    Arrays,
    Loss,
    Output,
    TimeAxis,
    comparison,
    find_time_axis,
    frames_first,
    like,
    masked_mean,
    named_by_call,
    present,
    read_output,
    read_target,
    wide,
)

with optional_package("optax", "losses", "train"):
    import optax

#: Contents of an output: logits (also log-probabilities), or probabilities.
Scale = Literal["logits", "probabilities"]


@named_by_call
def cross_entropy(
    output: Output,
    target: str,
    *,
    scale: Scale = "logits",
    class_axis: int = -1,
    time_axis: TimeAxis = "auto",
    ignore_label: int | None = None,
) -> Loss:
    """Build the cross-entropy of classes in nats, averaged over existing frames; computed by optax.

    Args:
        output: The name of a model output, or a function of outputs and example.
        target: An array of the example: integer labels in the shape of the output without ``class_axis``, or float
            probabilities of classes in the shape of the output. Axes of size 1 may differ.
        scale: Contents of the output: ``"logits"`` or ``"probabilities"``.
        class_axis: The axis of classes in the output.
        time_axis: The time axis of the output, None without a time axis, or "auto" for the only other axis longer than
            1.
        ignore_label: Frames with this label do not count. Other labels that are not a class make the loss NaN.
    """
    check_scale(scale)

    def loss(outputs: Arrays, example: Arrays, mask: jax.Array) -> jax.Array:
        array, labels = read_output(outputs, example, output), read_target(example, target)
        scores, axis = classes_last(array, class_axis, time_axis)
        logits, exists = _logits(scores, axis, mask, scale)
        if jnp.issubdtype(labels.dtype, jnp.floating):
            shares = jnp.moveaxis(like(wide(labels), array.shape, target), class_axis, -1)
            shares, _ = frames_first(shares.astype(logits.dtype), axis, mask)
            return masked_mean(optax.softmax_cross_entropy(logits, present(shares, exists)), exists)
        labels, _ = frames_first(like(labels.astype(jnp.int32), scores.shape[:-1], target), axis, mask)
        counts, labels = valid_labels(labels, exists, logits.shape[-1], ignore_label)
        return mean_where(optax.softmax_cross_entropy_with_integer_labels(logits, labels), counts)

    return loss


@named_by_call
def binary_cross_entropy(
    output: Output, target: str, *, scale: Scale = "probabilities", time_axis: TimeAxis = "auto"
) -> Loss:
    """Build the binary cross-entropy of each element in nats, averaged over existing frames.

    optax computes the loss of logits. For probabilities, as from a sigmoid output, the loss is exact between 0 and 1; a
    saturated probability of 0 or 1 costs at most 88 nats and has no gradient.

    Args:
        output: The name of a model output, or a function of outputs and example.
        target: An array of the example in the shape of the output, apart from axes of size 1: booleans, 0 and 1, or
            probabilities.
        scale: Contents of the output: ``"probabilities"`` or ``"logits"``.
        time_axis: The time axis of the output, None without a time axis, or "auto" for the only axis longer than 1.
    """
    check_scale(scale)

    def loss(scores: jax.Array, labels: jax.Array, exists: jax.Array) -> jax.Array:
        if scale == "logits":
            return masked_mean(optax.sigmoid_binary_cross_entropy(scores, labels), exists)
        limits = jnp.finfo(scores.dtype)
        yes = jnp.log(jnp.maximum(scores, limits.tiny))
        no = jnp.log1p(-jnp.minimum(scores, 1 - limits.epsneg))
        return masked_mean(-labels * yes - (1 - labels) * no, exists)

    return comparison(loss, output, target, time_axis=time_axis)


@named_by_call
def ctc(
    output: Output,
    target: str,
    *,
    scale: Scale = "logits",
    blank: int = 0,
    labels_in: str | None = None,
    class_axis: int = -1,
    time_axis: TimeAxis = "auto",
    skip_impossible: bool = False,
) -> Loss:
    """Build the CTC loss (connectionist temporal classification), the negative log-likelihood of labels, in nats.

    Source: Graves, Fernández, Gomez and Schmidhuber, "Connectionist temporal classification: labelling unsegmented
    sequence data with recurrent neural networks", ICML 2006.

    Args:
        output: The name of a model output, or a function of outputs and example. Only the axes of time and classes may
            be longer than 1.
        target: An array of the example: integer labels, ``[labels]`` apart from axes of size 1. Padding begins at the
            first blank, negative number or number that is not a class.
        scale: Contents of the output: ``"logits"`` (also log-probabilities) or ``"probabilities"``.
        blank: The number of the blank class; negative numbers count from the last class.
        labels_in: An array of the example with the number of labels, if labels and padding have the same values.
        class_axis: The axis of classes in the output.
        time_axis: The time axis of the output; "auto" for the only other axis longer than 1.
        skip_impossible: Return 0 for examples with fewer frames than the labels need. The default loss is infinite.
    """
    check_scale(scale)
    if time_axis is None:
        raise InputError("ctc aligns labels with frames: time_axis must name an axis of the output")

    def loss(outputs: Arrays, example: Arrays, mask: jax.Array) -> jax.Array:
        scores, axis = classes_last(read_output(outputs, example, output), class_axis, time_axis)
        logits, exists = _logits(scores, axis, mask, scale)
        frames, classes = len(logits), logits.shape[-1]
        if logits.size != frames * classes:
            raise InputError(
                f"ctc: the output of an example has frames and classes and no other axes, not {describe(scores)} "
                f"(classes put last, axis {axis} being time)"
            )
        if not -classes <= blank < classes:
            raise InputError(f"blank={blank}: the output has {classes} classes, numbered from 0")
        labels = read_target(example, target).astype(jnp.int32).reshape(-1)
        if labels_in is None:
            is_label = (labels >= 0) & (labels < classes) & (labels != blank % classes)
            valid = jnp.cumprod(is_label.astype(jnp.int32)).astype(bool)
        else:
            valid = jnp.arange(len(labels), dtype=jnp.int32) < read_target(example, labels_in).astype(
                jnp.int32
            ).reshape(())
        return _ctc(logits.reshape(frames, classes), exists, labels, valid, blank % classes, skip_impossible)

    return loss


def _ctc(
    logits: jax.Array, exists: jax.Array, labels: jax.Array, valid: jax.Array, blank: int, skip_impossible: bool
) -> jax.Array:
    if not labels.size:  # optax needs at least one label
        labels, valid = jnp.zeros(1, jnp.int32), jnp.zeros(1, bool)
    labels = jnp.where(valid, labels, blank)
    repeats = jnp.sum(valid[1:] & (labels[1:] == labels[:-1]), dtype=jnp.int32)
    possible = jnp.sum(valid, dtype=jnp.int32) + repeats <= jnp.sum(exists, dtype=jnp.int32)
    # optax gives an impossible alignment a loss of about 1e5, with a meaningless gradient.
    valid = valid & possible
    padding = (~exists).astype(logits.dtype), (~valid).astype(logits.dtype)
    # optax mixes float32 with the type of the logits, and makes arrays of JAX's standard float type.
    with jax.numpy_dtype_promotion("standard"), jax.enable_x64(logits.dtype == jnp.float64):
        (value,) = optax.ctc_loss(logits[None], padding[0][None], labels[None], padding[1][None], blank_id=blank)
    return jnp.where(possible, value, 0 if skip_impossible else jnp.inf)


def check_scale(scale: str) -> None:
    """Refuse an unknown scale."""
    if scale not in ("logits", "probabilities"):
        raise InputError(f"scale must be 'logits' or 'probabilities', not {scale!r}")


def classes_last(array: jax.Array, class_axis: int, time_axis: TimeAxis) -> tuple[jax.Array, int | None]:
    """Return the array with classes on the last axis, and the number of the time axis in the result."""
    if not -array.ndim <= class_axis < array.ndim:
        raise InputError(f"class_axis={class_axis}: the output is {describe(array)}")
    classes = class_axis % array.ndim
    moved = jnp.moveaxis(array, classes, -1)
    if not isinstance(time_axis, int):
        return moved, find_time_axis(moved[..., 0], time_axis)
    axis = find_time_axis(array, time_axis)
    if axis is None or axis == classes:
        raise InputError(f"axis {classes} of {describe(array)} cannot be both time_axis and class_axis")
    return moved, axis - (axis > classes)


def valid_labels(
    labels: jax.Array, exists: jax.Array, classes: int, ignore_label: int | None
) -> tuple[jax.Array, jax.Array]:
    """Return a mask of labels ``[time, ...]`` that count, and the labels: 0 without a count, ``classes`` if unknown."""
    counts = jnp.broadcast_to(exists.reshape(-1, *(1,) * (labels.ndim - 1)), labels.shape)
    if ignore_label is not None:
        counts = counts & (labels != ignore_label)
    # A negative index would count from the last class; an index that is too large gives NaN.
    return counts, jnp.where(counts, jnp.where(labels < 0, classes, labels), 0)


def mean_where(values: jax.Array, counts: jax.Array) -> jax.Array:
    """Return the mean of values that count, or 0 without such values."""
    total = jnp.sum(jnp.where(counts, values, 0))
    return total / jnp.maximum(jnp.sum(counts, dtype=total.dtype), 1)


def _logits(scores: jax.Array, axis: int | None, mask: jax.Array, scale: Scale) -> tuple[jax.Array, jax.Array]:
    scores, exists = frames_first(scores, axis, mask)
    if scale == "logits":
        return present(scores, exists), exists
    return jnp.log(jnp.maximum(present(scores, exists, 1), jnp.finfo(scores.dtype).tiny)), exists
