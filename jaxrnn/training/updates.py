"""One update, compiled: gradients with respect to the trained parameters, the optimizer, and whether all is finite."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.training.batches import BatchChunk
from jaxrnn.training.forward import Forward
from jaxrnn.training.optimizers import Optimizer, learning_rate
from jaxrnn.training.sharding import Placement

Arrays = Mapping[str, Any]


class UpdateState(NamedTuple):
    """What an update changes.

    Attributes:
        trained: the trained parameters by name; those that the file has in 16 bits in float32, because most updates
            are smaller than the rounding of such a type.
        optimizer: the state of the optimizer.
        carry: the model's state after the chunk before, ``[rows, ...]`` by name.
    """

    trained: dict[str, jax.Array]
    optimizer: Any
    carry: dict[str, jax.Array]


class Updates:
    """The compiled functions of a training.

    Args:
        forward: what is computed of the examples.
        optimizer: the optimizer.
        placement: the devices.
        frozen: the parameters that are constants.
    """

    def __init__(self, forward: Forward, optimizer: Optimizer, placement: Placement, frozen: Arrays):
        self.forward, self.optimizer, self.placement = forward, optimizer, placement
        self._types = {name: array.dtype for name, array in forward.model.program.parameters.items()}
        self.frozen = placement.replicate(dict(frozen))
        everywhere: Any = placement.everywhere
        split: Any = placement.split
        states = UpdateState(everywhere, everywhere, split)
        self._update = jax.jit(
            self._plain_update, static_argnames="ragged", out_shardings=(states, placement.everywhere)
        )

    def begin(self, trained: Arrays) -> UpdateState:
        """The state before the first update, without a carry."""
        wide = {
            name: np.asarray(value, np.float32) if value.dtype.itemsize < 4 else value
            for name, value in trained.items()
        }
        params = self.placement.replicate(wide)
        optimizer = self.placement.replicate(self.optimizer.init(params))
        return UpdateState(params, optimizer, {})

    def params(self, trained: Arrays) -> dict[str, Any]:
        """All parameters, in the file's order and types."""
        values = {**self.frozen, **{name: value.astype(self._types[name]) for name, value in trained.items()}}
        return {name: values[name] for name in self._types}

    @functools.cached_property
    def fresh_carry(self) -> dict[str, jax.Array]:
        """The model's state before the first frame, one for each row."""
        return fresh_carry(self.forward, self.placement)

    def __call__(self, state: UpdateState, chunk: BatchChunk) -> tuple[UpdateState, dict[str, jax.Array]]:
        """One update: the new state, and a report of scalars.

        The report has ``loss``, ``grad_norm`` (before clipping), ``finite``, ``learning_rate`` where it is known, and
        the metrics under ``metrics``.
        """
        return self._update(
            state, self.frozen, chunk.arrays, chunk.mask, chunk.weights, ragged=self.forward.takes_lengths(chunk.ragged)
        )

    def _plain_update(
        self, state: UpdateState, frozen: Arrays, arrays: Arrays, mask: jax.Array, weights: jax.Array, *, ragged: bool
    ) -> tuple[UpdateState, dict[str, Any]]:
        def objective(trained: Arrays) -> Any:
            # The state of the chunk before is an argument of its own, so no gradient goes back into that chunk.
            params = {name: value.astype(self._types[name]) for name, value in trained.items()}
            return self.forward.mean({**frozen, **params}, state.carry, arrays, mask, weights, ragged)

        (loss, (metrics, carry)), gradients = jax.value_and_grad(objective, has_aux=True)(state.trained)
        new, optimizer = self.optimizer.update(gradients, state.optimizer, state.trained, loss)
        squares = [jnp.sum(jnp.square(gradient.astype(jnp.float32))) for gradient in gradients.values()]
        report = {
            "loss": loss,
            "grad_norm": jnp.sqrt(jnp.sum(jnp.stack(squares))),
            "finite": all_finite([loss, *gradients.values(), *new.values()]),
            "metrics": metrics,
        }
        if (rate := learning_rate(optimizer)) is not None:
            report["learning_rate"] = rate
        return UpdateState(new, optimizer, carry), report


def fresh_carry(forward: Forward, placement: Placement) -> dict[str, jax.Array]:
    """The model's state before the first frame, ``[rows, ...]`` by name; nothing in mode "apply"."""
    if forward.layout.mode == "apply":
        return {}
    start = {name: np.asarray(value) for name, value in forward.model.init().items()}
    count = len(placement.own_rows)
    return placement.spread({name: np.broadcast_to(x, (count, *x.shape)).copy() for name, x in start.items()})


def all_finite(arrays: list[jax.Array]) -> jax.Array:
    """Whether every element of some arrays is finite: ``bool[]``."""
    return jnp.stack([jnp.isfinite(array).all() for array in arrays]).all()
