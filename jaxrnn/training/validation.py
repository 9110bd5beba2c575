"""The loss and metrics of a model over examples, without training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrnn.training.arguments import check_functions, check_precision
from jaxrnn.training.batches import Batches
from jaxrnn.training.examples import Position, Source, batches_from, make_source, read_example
from jaxrnn.training.forward import Forward, Function
from jaxrnn.training.layout import find_mode, inputs_of, make_layout
from jaxrnn.training.options import SEQUENCES, Sequences, check_count
from jaxrnn.training.parameters import checked
from jaxrnn.training.sharding import Placement
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
    compute_dtype: Any = None,
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
        compute_dtype: as for `fit`.

    Raises:
        InputError: an argument or an example does not fit.
        StateError: the model forgets its state, so that it has no steps.
    """
    check_count("batch_size", batch_size)
    functions = check_functions(loss, metrics)
    compute_dtype = check_precision(compute_dtype)
    values = checked(params, model.program.parameters)
    source = make_source(data, None)
    wide = computes_wide(model)
    mode = find_mode(model, sequences.mode)
    first = read_example(data[0], inputs_of(model, mode), state_names(model, mode), wide=wide)
    layout = make_layout(model, mode, first, "example 0", sequences.whole)
    forward = Forward(model, layout, loss, functions, None, compute_dtype)
    batch_size = min(batch_size, len(data))
    placement = Placement(devices, batch_size)
    batches = Batches(source, layout, placement, state_names(model, mode), wide=wide)
    with jax.enable_x64(wide):
        return Validator(forward, placement, source, batches, batch_size)(placement.replicate(values))


def computes_wide(model: Model) -> bool:
    """Whether 64-bit types stay so: as the caller has set JAX, and always for a model that computes in float64."""
    arrays = [*model.program.parameters.values(), *model.inputs]
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64 or any(array.dtype == np.float64 for array in arrays)


def state_names(model: Model, mode: str) -> list[str]:
    """The inputs that no example has, because they are state."""
    return [] if mode == "apply" else [str(variable.input) for variable in model.state]


class Validator:
    """Means over all examples of a source, compiled once for each length.

    Args:
        forward: what is computed of each example.
        placement: the devices.
        source: the examples.
        batches: how they become batches.
        batch_size: examples in a batch.
    """

    def __init__(self, forward: Forward, placement: Placement, source: Source, batches: Batches, batch_size: int):
        assert source.size is not None, "a sequence of examples"
        self._count, self._batches, self._batch_size = source.size, batches, batch_size
        self._carry, self._told = fresh_carry(forward, placement), forward.told

        def sums(params: Any, carry: Any, arrays: Any, mask: Any, weights: Any, ragged: bool) -> Any:
            loss, (metrics, _) = forward.sums(params, carry, arrays, mask, weights, ragged)
            return {**metrics, "loss": loss}

        self._sums: Callable[..., Any] = jax.jit(sums, static_argnames="ragged", out_shardings=placement.everywhere)

    def __call__(self, params: Mapping[str, Any]) -> dict[str, float]:
        """The mean loss and metrics with these parameters, which are replicated."""
        parts: list[dict[str, Any]] = []
        places = batches_from(Position(), self._count, self._batch_size, 1)
        with closing(self._batches.make(places, self._batch_size)) as made:
            for batch in made:
                (chunk,) = batch.chunks
                parts.append(
                    self._sums(
                        params, self._carry, chunk.arrays, chunk.mask, chunk.weights, ragged=self._told(chunk.ragged)
                    )
                )
        found = jax.device_get(parts)
        names = ["loss", *(name for name in found[0] if name != "loss")]
        return {name: math.fsum(float(part[name]) for part in found) / self._count for name in names}
