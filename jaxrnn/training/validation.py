"""The loss and metrics of a model over examples, without training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import jax

from jaxrnn._jax.precision import compute_type
from jaxrnn.errors import check_count
from jaxrnn.training.agreement import check_alike, digest_of_examples
from jaxrnn.training.arguments import Function, check_functions
from jaxrnn.training.batches import Batches
from jaxrnn.training.examples import make_source
from jaxrnn.training.facts import digest_of_all
from jaxrnn.training.forward import Forward
from jaxrnn.training.options import SEQUENCES, Sequences, Validation
from jaxrnn.training.order import sequence_order
from jaxrnn.training.parameters import copied
from jaxrnn.training.sharding import Placement
from jaxrnn.training.time_axes import make_layout
from jaxrnn.training.updates import fresh_carry

if TYPE_CHECKING:
    from jaxrnn.model import Model


def validate(
    model: Model,
    params: Mapping[str, Any],
    data: Sequence[Mapping[str, Any]],
    loss: Function,
    *,
    metrics: Mapping[str, Function] | None = None,
    batch_size: int = 16,
    sequences: Sequences = SEQUENCES,
    devices: Sequence[Any] | None = None,
    dtype: Any = None,
) -> dict[str, float]:
    """The mean loss and metrics over examples, as `fit` measures them: ``{"loss": ..., name: ...}``.

    Every example counts the same, whatever its length.

    Args:
        model: the model.
        params: all of its parameters.
        data: a sequence of examples, as `fit` takes them.
        loss: ``loss(outputs, example, mask) -> scalar``, as for `fit`.
        metrics: more of the same, by name.
        batch_size: examples that are run at once.
        sequences: as for `fit`; they are run whole, so chunks and what is computed again do not count.
        devices: as for `fit`.
        dtype: as for `fit`.

    Raises:
        InputError: an argument or an example does not fit.
        StateError: the model forgets its state, so that it has no steps.
        MissingPackageError: Grain is not installed.
    """
    check_count("batch_size", batch_size)
    functions = check_functions(loss, metrics)
    dtype = compute_type(dtype)
    values = copied(model, params, dtype)
    layout = make_layout(model, sequences.whole, *make_source(data, None).get(0))
    validator = Validator(Forward(model, layout, loss, functions, dtype), Validation(data), batch_size, devices)
    check_alike(validator.placement, {"parameters": digest_of_all(values), "batch_size": batch_size})
    with jax.enable_x64(layout.wide):
        return validator(validator.placement.replicate(values))


class Validator:
    """Means over a sequence of examples, compiled once for each length.

    Args:
        forward: what is computed of each example.
        options: the examples, and how often a training measures them.
        batch_size: examples in a batch.
        devices: the devices that a batch is split over; None for all.
    """

    def __init__(self, forward: Forward, options: Validation, batch_size: int, devices: Sequence[Any] | None):
        self.options, self._count = options, len(options.data)
        size = min(batch_size, self._count)
        self._order = sequence_order(self._count, size)
        self.placement = Placement(devices, size)
        source = make_source(options.data, None)
        examples = digest_of_examples(self.placement, source, forward.layout)
        check_alike(self.placement, {"validation examples": self._count, "examples in validation": examples})
        self._batches = Batches(source, forward.layout, self.placement)
        self._forward, self._carry = forward, fresh_carry(forward, self.placement)

        def sums(params: Any, carry: Any, arrays: Any, mask: Any, weights: Any, ragged: bool) -> Any:
            loss, (metrics, _) = forward.sums(params, carry, arrays, mask, weights, ragged)
            return {**metrics, "loss": loss}

        everywhere = self.placement.everywhere
        self._sums: Callable[..., Any] = jax.jit(sums, static_argnames="ragged", out_shardings=everywhere)

    def __call__(self, params: Mapping[str, Any]) -> dict[str, float]:
        """The mean loss and metrics with these parameters, which are replicated."""
        parts: list[dict[str, Any]] = []
        with closing(self._batches.make(self._order)) as made:
            for batch in made:
                (chunk,) = batch.chunks
                ragged = self._forward.takes_lengths(chunk.ragged)
                parts.append(self._sums(params, self._carry, chunk.arrays, chunk.mask, chunk.weights, ragged=ragged))
        sums = jax.device_get(parts)
        names = ["loss", *(name for name in sums[0] if name != "loss")]
        return {name: math.fsum(float(part[name]) for part in sums) / self._count for name in names}
