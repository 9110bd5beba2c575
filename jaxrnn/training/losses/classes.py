"""Losses of classes and labels: cross-entropy of one class in many, of yes or no, and of label sequences (CTC)."""

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

#: What an output holds: numbers before softmax or sigmoid (logarithms of probabilities too), or probabilities.
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
    """The cross-entropy of classes, in nats, as a mean over frames that exist; optax computes it.

    Args:
        output: an output of the model by name, or a function of outputs and example.
        target: an array of the example: integer labels, of the output's shape without ``class_axis``; or the
            probabilities of the classes as floats, of the output's shape. Axes of size 1 do not matter.
        scale: whether the output holds logits or probabilities.
        class_axis: which axis of the output has the classes.
        time_axis: which other axis of it is time; None for none, "auto" for the only other one longer than 1.
        ignore_label: frames with this label do not count. Any other label that is no class makes the loss NaN.
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
    """The cross-entropy of yes or no in every number of the output, in nats, as a mean over frames that exist.

    Of logits, optax computes it. Of probabilities, as networks with a sigmoid at their end give them, it is exact as
    long as they are neither 0 nor 1; one that has saturated there costs at most 88 nats, and has no gradient left.

    Args:
        output: an output of the model by name, or a function of outputs and example.
        target: an array of the example, of the output's shape but for axes of size 1: truth values, 0 and 1, or
            probabilities.
        scale: whether the output holds probabilities or logits.
        time_axis: which axis of the output is time; None for none, "auto" for the only one longer than 1.
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
    """Connectionist temporal classification: minus the log-likelihood of a label sequence, in nats; optax computes it.

    Source: Graves, Fernández, Gomez and Schmidhuber, "Connectionist temporal classification: labelling unsegmented
    sequence data with recurrent neural networks", ICML 2006.

    Args:
        output: an output of the model by name, or a function of outputs and example; of its axes only those of time
            and classes are longer than 1.
        target: an array of the example: the labels as integers, ``[labels]`` but for axes of size 1. What follows
            the first blank, negative number or number that is no class is padding.
        scale: whether the output holds logits (logarithms of probabilities too) or probabilities.
        blank: the number of the class that is no label; a negative one counts from the last.
        labels_in: an array of the example with the number of labels, where padding cannot be told from labels.
        class_axis: which axis of the output has the classes.
        time_axis: which other axis of it is time; "auto" for the only other one longer than 1.
        skip_impossible: give 0 where there are fewer frames than the labels need. Otherwise the loss is infinite.
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
    if not labels.size:  # optax needs room for one
        labels, valid = jnp.zeros(1, jnp.int32), jnp.zeros(1, bool)
    labels = jnp.where(valid, labels, blank)
    repeats = jnp.sum(valid[1:] & (labels[1:] == labels[:-1]), dtype=jnp.int32)
    possible = jnp.sum(valid, dtype=jnp.int32) + repeats <= jnp.sum(exists, dtype=jnp.int32)
    # An alignment that does not exist has a loss of about 1e5 in optax, and a gradient that leads nowhere.
    valid = valid & possible
    padding = (~exists).astype(logits.dtype), (~valid).astype(logits.dtype)
    # optax mixes float32 with the type of the logits, and makes arrays of JAX's standard float type.
    with jax.numpy_dtype_promotion("standard"), jax.enable_x64(logits.dtype == jnp.float64):
        (value,) = optax.ctc_loss(logits[None], padding[0][None], labels[None], padding[1][None], blank_id=blank)
    return jnp.where(possible, value, 0 if skip_impossible else jnp.inf)


def check_scale(scale: str) -> None:
    """Refuse a scale that is not known."""
    if scale not in ("logits", "probabilities"):
        raise InputError(f"scale must be 'logits' or 'probabilities', not {scale!r}")


def classes_last(array: jax.Array, class_axis: int, time_axis: TimeAxis) -> tuple[jax.Array, int | None]:
    """The array with its classes on the last axis, and which of its other axes is time then.

    Raises:
        InputError: there are no such axes, or both are one.
    """
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
    """Which labels ``[time, ...]`` count; and the labels, 0 where they do not, ``classes`` where they are no class."""
    counts = jnp.broadcast_to(exists.reshape(-1, *(1,) * (labels.ndim - 1)), labels.shape)
    if ignore_label is not None:
        counts = counts & (labels != ignore_label)
    # A negative index would count from the last class; one too large gives NaN.
    return counts, jnp.where(counts, jnp.where(labels < 0, classes, labels), 0)


def mean_where(values: jax.Array, counts: jax.Array) -> jax.Array:
    """The mean of values that count, and 0 where none does."""
    total = jnp.sum(jnp.where(counts, values, 0))
    return total / jnp.maximum(jnp.sum(counts, dtype=total.dtype), 1)


def _logits(scores: jax.Array, axis: int | None, mask: jax.Array, scale: Scale) -> tuple[jax.Array, jax.Array]:
    """Logits ``[time, ..., classes]`` of any scale, harmless where no frame is, and which frames exist."""
    scores, exists = frames_first(scores, axis, mask)
    if scale == "logits":
        return present(scores, exists), exists
    return jnp.log(jnp.maximum(present(scores, exists, 1), jnp.finfo(scores.dtype).tiny)), exists
