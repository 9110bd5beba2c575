"""The loss of a batch as a function of parameters: one example through the model, and all of them by ``jax.vmap``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import describe
from jaxrnn.errors import InputError
from jaxrnn.model import Model
from jaxrnn.training.arguments import Function
from jaxrnn.training.layout import ExampleLayout

Arrays = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Forward:
    """What a training computes of its examples.

    Attributes:
        model: the model.
        layout: how the examples lie in time.
        loss: of one example.
        metrics: more of the same, by name, which are not trained for.
        dtype: the compute dtype.
    """

    model: Model
    layout: ExampleLayout
    loss: Function
    metrics: Mapping[str, Function]
    dtype: np.dtype | None = None

    def takes_lengths(self, ragged: bool) -> bool:
        """Whether the model takes the lengths of examples: only a scan does, and so is compiled a second time."""
        return ragged and self.layout.mode == "scan"

    def run(self, params: Arrays, state: Arrays, example: Arrays, mask: jax.Array, ragged: bool) -> tuple[Any, Any]:
        """The model on one example, or on a chunk of it.

        Args:
            params: all parameters.
            state: the state before the first frame; none in mode "apply".
            example: its arrays.
            mask: ``bool[frames]``.
            ragged: whether frames may be missing at the end.

        Returns:
            Outputs by name, and the state after the last frame that exists.
        """
        inputs = {info.name: example[info.name] for info in self.layout.inputs}
        remat = self.layout.sequences.remat
        if self.layout.mode == "apply":
            return self.model.apply(params, inputs, remat=remat, dtype=self.dtype), state
        if self.layout.mode == "step":
            return self._step(params, state, inputs, mask)
        axes = self._scan_axes(inputs)
        for name in inputs.keys() - self.layout.axes.keys():
            inputs[name] = jnp.broadcast_to(inputs[name], (mask.shape[0], *inputs[name].shape))
        lengths = jnp.sum(mask, dtype=jnp.int32)[None] if ragged else None
        return self.model.scan(params, state, inputs, time_axis=axes, lengths=lengths, remat=remat, dtype=self.dtype)

    def _step(self, params: Arrays, state: Arrays, inputs: Arrays, mask: jax.Array) -> tuple[Any, Any]:
        """`Model.step` over many frames at once, whose backward pass may take chunks of them."""
        inputs = {**inputs, **self.state_inputs(state)}
        results = self.model.apply(params, inputs, remat=self.layout.sequences.remat, dtype=self.dtype)
        new = {variable.name: results.pop(str(variable.output)) for variable in self.model.state}
        # A chunk that begins after the end of its example leaves the state alone; no chunk before it has padding.
        any_exists = mask.any()
        return results, {name: jnp.where(any_exists, new[name], state[name]) for name in new}

    def state_inputs(self, state: Arrays) -> dict[str, Any]:
        """A state by the names of the model's inputs; nothing in mode "apply"."""
        return {str(variable.input): state[variable.name] for variable in self.model.state if variable.name in state}

    def _scan_axes(self, inputs: Arrays) -> dict[str, int]:
        axis = self.layout.sequences.time_axis or {}
        outputs = {name: axis if isinstance(axis, int) else axis.get(name, 0) for name in self.layout.outputs}
        return outputs | {name: self.layout.axes.get(name, 0) for name in inputs}

    def measure(
        self, params: Arrays, state: Arrays, example: Arrays, mask: jax.Array, ragged: bool
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], Any]]:
        """Loss, metrics and new state of one example; without a frame in this chunk, its loss is finite but no result.

        Raises:
            InputError: the loss or a metric is no real scalar.
        """
        outputs, state = self.run(params, state, example, mask, ragged)
        loss, metrics = self.judge(outputs, example, mask)
        return loss, (metrics, state)

    def judge(self, outputs: Arrays, example: Arrays, mask: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Loss and metrics of one example's outputs."""
        # A mean over no frames would be NaN, whose gradient is NaN even where the value is not used.
        mask = mask | ~mask.any()
        loss = _scalar("loss", self.loss(dict(outputs), dict(example), mask), differentiable=True)
        metrics = {
            name: _scalar(f"metric {name!r}", metric(dict(outputs), dict(example), mask))
            for name, metric in self.metrics.items()
        }
        return loss, metrics

    def sums(
        self, params: Arrays, state: Arrays, arrays: Arrays, mask: jax.Array, weights: jax.Array, ragged: bool
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], Any]]:
        """Sums of loss and metrics over the rows of a batch that count, and the new states."""

        def one(state: Any, example: Any, mask: jax.Array) -> Any:
            return self.measure(params, state, example, mask, ragged)

        losses, (metrics, states) = jax.vmap(one)(state, arrays, mask)

        def total(values: jax.Array) -> jax.Array:
            return jnp.sum(jnp.where(weights, values, jnp.zeros((), values.dtype)))

        return total(losses), ({name: total(values) for name, values in metrics.items()}, states)

    def mean(
        self, params: Arrays, state: Arrays, arrays: Arrays, mask: jax.Array, weights: jax.Array, ragged: bool
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], Any]]:
        """`sums` over their number: what an update makes smaller."""
        loss, (metrics, states) = self.sums(params, state, arrays, mask, weights, ragged)
        count = jnp.maximum(jnp.sum(weights, dtype=jnp.int32), 1)
        means = {name: value / count.astype(value.dtype) for name, value in metrics.items()}
        return loss / count.astype(loss.dtype), (means, states)


def _scalar(what: str, value: Any, *, differentiable: bool = False) -> jax.Array:
    """A value as a scalar float."""
    scalar: Any = jnp.asarray(value, jnp.float32) if type(value) in (bool, int, float) else value
    kinds = (jnp.floating,) if differentiable else (jnp.floating, jnp.integer, jnp.bool_)
    if np.shape(scalar) != () or not any(jnp.issubdtype(getattr(scalar, "dtype", object), kind) for kind in kinds):
        kind = "float" if differentiable else "real number"
        raise InputError(f"the {what} of an example must be one {kind}, a scalar, not {describe(value)}; take a mean")
    return scalar if jnp.issubdtype(scalar.dtype, jnp.floating) else scalar.astype(jnp.float32)
