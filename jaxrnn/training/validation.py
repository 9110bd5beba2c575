"""Loss and metrics of a model over examples, without training."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrnn._jax.context import compute_type
from jaxrnn.errors import check_count
from jaxrnn.training.agreement import check_alike, digest_of_all, digest_of_examples
from jaxrnn.training.batches import Batches, example_order
from jaxrnn.training.examples import make_source
from jaxrnn.training.layout import check_model, make_layout
from jaxrnn.training.options import SEQUENCES, Function, Sequences, Validation, check_functions
from jaxrnn.training.parameters import copied
from jaxrnn.training.sharding import Placement
from jaxrnn.training.updates import Forward, fresh_carry

if TYPE_CHECKING:
    from jaxrnn.audio.waveforms import Waveform
    from jaxrnn.model import Model
    from jaxrnn.training.student import Student


def validate(
    model: Model | Waveform | Student,
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
    """Return the mean loss and metrics over examples, as `fit` measures them: ``{"loss": ..., name: ...}``.

    All examples have the same weight, whatever their length.

    Args:
        model: The model, as in `fit`.
        params: All parameters of the model.
        data: A sequence of examples, as in `fit`.
        loss: ``loss(outputs, example, mask) -> scalar``, as in `fit`.
        metrics: A dict of further functions like the loss.
        batch_size: Examples per batch.
        sequences: As in `fit`. Sequences run whole: chunks and recomputation have no effect.
        devices: As in `fit`.
        dtype: As in `fit`.

    Raises:
        InputError: An argument or an example does not fit.
        StateError: The model forgets its state, so it has no steps.
        MissingPackageError: Grain is missing.
    """
    network: Any = check_model(model)
    check_count("batch_size", batch_size)
    functions = check_functions(loss, metrics)
    dtype = compute_type(dtype)
    values = copied(network, params, dtype)
    layout = make_layout(network, sequences.whole, *make_source(data, None).get(0))
    validator = Validator(Forward(network, layout, loss, functions, dtype), Validation(data), batch_size, devices)
    check_alike(validator.placement, {"parameters": digest_of_all(values), "batch_size": batch_size})
    with jax.enable_x64(layout.wide):
        return validator(validator.placement.replicate(values))


class Validator:
    """A function that measures means over a sequence of examples, compiled once per length."""

    def __init__(self, forward: Forward, options: Validation, batch_size: int, devices: Sequence[Any] | None):
        self.options, self._count = options, len(options.data)
        size = min(batch_size, self._count)
        self.placement = Placement(devices, size)
        source = make_source(options.data, None)
        forward.layout.read(*source.get(0))  # raises errors before the training
        examples = digest_of_examples(self.placement, source, forward.layout)
        check_alike(self.placement, {"validation examples": self._count, "examples in validation": examples})
        self._order = example_order(source, forward.layout, self.placement, epochs=1)
        self._source, self._batches = source, Batches(source, forward.layout, self.placement)
        self._run = jax.jit(functools.partial(forward.run, ragged=False))
        self._forward = forward
        self._carry = functools.cache(functools.partial(fresh_carry, forward, self.placement))

        def sums(params: Any, carry: Any, arrays: Any, mask: Any, weights: Any, ragged: bool) -> Any:
            loss, (metrics, _) = forward.sums(params, carry, arrays, mask, weights, ragged)
            return {**metrics, "loss": loss}

        everywhere = self.placement.everywhere
        self._sums: Callable[..., Any] = jax.jit(sums, static_argnames="ragged", out_shardings=everywhere)

    def examples(self, params: Mapping[str, Any], count: int) -> Iterator[dict[str, Any]]:
        """Yield the arrays and the outputs of the first examples, for parameters on one device."""
        forward, layout = self._forward, self._forward.layout
        state = {} if layout.mode == "apply" else forward.model.init()
        for number in range(min(count, self._count)):
            example = layout.read(*self._source.get(number))
            outputs, _ = self._run(params, state, example, np.ones(layout.frames(example), bool))
            yield {**example, **jax.device_get(outputs)}

    def __call__(self, params: Mapping[str, Any]) -> dict[str, float]:
        """Return the mean loss and metrics for replicated parameters."""
        parts: list[dict[str, Any]] = []
        with closing(self._batches.make(self._order)) as made:
            for batch in made:
                (chunk,) = batch.chunks
                ragged = self._forward.takes_lengths(chunk.ragged)
                carry = self._carry(len(batch.labels))
                parts.append(self._sums(params, carry, chunk.arrays, chunk.mask, chunk.weights, ragged=ragged))
        sums = jax.device_get(parts)
        names = ["loss", *(name for name in sums[0] if name != "loss")]
        return {name: math.fsum(float(part[name]) for part in sums) / self._count for name in names}
