"""Losses made of losses: weighted sums, and the best order of several sources."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import describe, near_or_all
from jaxrnn.errors import InputError
from jaxrnn.training.losses.classes import binary_cross_entropy, cross_entropy
from jaxrnn.training.losses.frames import Arrays, Loss, TimeAxis, named_by_call, read_output, read_target
from jaxrnn.training.losses.signals import mean_absolute_error, mse, multi_resolution_stft, si_sdr, spectral_mse

#: The losses of a single source by name.
OF_SOURCES: dict[str, Callable[..., Loss]] = {
    make.__name__: make
    for make in (
        binary_cross_entropy,
        cross_entropy,
        mean_absolute_error,
        mse,
        multi_resolution_stft,
        si_sdr,
        spectral_mse,
    )
}
#: The most sources, which have 720 orders.
MAX_SOURCES = 6


def weighted_sum(parts: Sequence[tuple[float, Loss]]) -> Loss:
    """Build the weighted sum of losses.

    Args:
        parts: Weights with losses, such as ``[(1, losses.si_sdr(...)), (0.5, losses.mse(...))]``.

    Raises:
        InputError: There is no loss, or a weight is not a finite number.
    """
    parts = list(parts)
    if not parts:
        raise InputError("a weighted sum needs at least one loss")
    for weight, _ in parts:
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise InputError(f"the weight of a loss must be a finite number, not {weight!r}")

    def loss(outputs: Arrays, example: Arrays, mask: jax.Array) -> jax.Array:
        terms = [weight * jnp.asarray(part(outputs, example, mask)) for weight, part in parts]
        return jnp.sum(jnp.stack(terms))

    written = (f"{weight:g} * {getattr(part, '__qualname__', type(part).__name__)}" for weight, part in parts)
    loss.__qualname__ = f"weighted_sum({', '.join(written)})"
    return loss


@named_by_call
def permutation_invariant(
    loss: str | Callable[..., Loss],
    output: str | list[str],
    target: str | list[str],
    *,
    axis: int = 0,
    time_axis: TimeAxis = "auto",
    **options: Any,
) -> Loss:
    """Build the loss of several sources in the order that makes it least: the mean over the sources.

    Source: Kolbaek et al., "Multitalker speech separation with utterance-level permutation invariant training of deep
    recurrent neural networks", TASLP 2017.

    Args:
        loss: The loss of a single source: a name such as ``"si_sdr"``, or a function that builds a loss from the
            names of an output and a target.
        output: The name of a model output with an axis of sources, or a list with the output of each source.
        target: An array of the example with the axis of sources first, such as ``clean`` of
            `jaxrnn.training.Mixtures`; or a list with the array of each source.
        axis: The axis of sources of the output.
        time_axis: The time axis of one source of the output, or "auto" for the only axis longer than 1.
        options: Further options of the loss, such as ``zero_mean=True``.

    Raises:
        InputError: The loss or an option is unknown; or, when called, the numbers of sources differ.
    """
    if isinstance(loss, str) and loss not in OF_SOURCES:
        raise InputError(f"there is no loss of a single source {loss!r}{near_or_all(loss, OF_SOURCES)}")
    make = OF_SOURCES[loss] if isinstance(loss, str) else loss
    known = inspect.signature(make).parameters
    for name in options:
        if name not in known and not any(each.kind is each.VAR_KEYWORD for each in known.values()):
            raise InputError(f"{make.__name__} has no option {name!r}{near_or_all(name, known)}")
    single = make("source", "source", time_axis=time_axis, **options)

    def best(outputs: Arrays, example: Arrays, mask: jax.Array) -> jax.Array:
        estimates = _sources(output, lambda name: read_output(outputs, example, name), axis)
        references = _sources(target, lambda name: read_target(example, name), 0)
        count = len(estimates)
        if count != len(references):
            raise InputError(f"{output!r} has {count} sources, and {target!r} has {len(references)}")
        if count > MAX_SOURCES:
            raise InputError(f"{output!r} has {count} sources; all orders of at most {MAX_SOURCES} are compared")

        def pair(estimate: jax.Array, reference: jax.Array) -> jax.Array:
            return single({**outputs, "source": estimate}, {**example, "source": reference}, mask)

        pairs = jnp.stack([jnp.stack([pair(x, y) for y in references]) for x in estimates])
        orders = np.array(list(itertools.permutations(range(count))), np.int32)
        return jnp.min(jnp.mean(pairs[np.arange(count, dtype=np.int32), orders], axis=1))

    return best


def _sources(named: str | Sequence[str], read: Callable[[str], jax.Array], axis: int) -> list[jax.Array]:
    """Return the array of each source."""
    if not isinstance(named, str):
        return [read(name) for name in named]
    array = read(named)
    if not -array.ndim <= axis < array.ndim:
        raise InputError(f"{named!r} is {describe(array)} and has no axis {axis} of sources")
    return list(jnp.moveaxis(array, axis, 0))
