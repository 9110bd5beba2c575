"""The loss of a batch as a function of parameters, and the compiled update with gradients and optimizer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import describe, whole_message
from jaxrnn.cells.forms import recomputing
from jaxrnn.errors import InputError
from jaxrnn.model import Model
from jaxrnn.steps.specs import Arrays
from jaxrnn.training.batches import BatchChunk
from jaxrnn.training.layout import ExampleLayout
from jaxrnn.training.optimizers import Optimizer, averages, learning_rate, skips_updates
from jaxrnn.training.options import Function
from jaxrnn.training.sharding import Placement
from jaxrnn.training.student import Student


class UpdateState(NamedTuple):
    """The arrays that an update changes.

    Trained parameters that the file has in 16 bits are kept in float32, because most updates are smaller than the
    rounding of 16-bit types. ``carry`` is the model's state after the previous chunk, a dict of ``[rows, ...]``.
    """

    trained: dict[str, jax.Array]
    optimizer: Any
    carry: dict[str, jax.Array]

    @property
    def judged(self) -> dict[str, jax.Array]:
        """Return the trained parameters to validate and to return: the moving averages, if the optimizer keeps any."""
        averaged = averages(self.optimizer)
        return self.trained if averaged is None else averaged


class Updates:
    """The compiled update of a training, with the frozen parameters as constants."""

    def __init__(self, forward: Forward, optimizer: Optimizer, placement: Placement, frozen: Arrays):
        self.forward, self.optimizer, self.placement = forward, optimizer, placement
        self._types = {name: array.dtype for name, array in forward.model.program.parameters.items()}
        self.frozen = placement.replicate(dict(frozen))
        self.fresh_carry = functools.cache(functools.partial(fresh_carry, forward, placement))
        everywhere: Any = placement.everywhere
        split: Any = placement.split
        results = UpdateState(everywhere, everywhere, split), everywhere
        self._update = jax.jit(self._plain_update, static_argnames="ragged", out_shardings=results)

    def begin(self, trained: Arrays) -> UpdateState:
        """Return the state before the first update, without a carry."""
        wide = {
            name: np.asarray(value, np.float32) if value.dtype.itemsize < 4 else value
            for name, value in trained.items()
        }
        params = self.placement.replicate(wide)
        optimizer = self.placement.replicate(self.optimizer.init(params))
        return UpdateState(params, optimizer, {})

    def params(self, trained: Arrays) -> dict[str, Any]:
        """Return all parameters, in the order and the types of the file."""
        values = {**self.frozen, **{name: value.astype(self._types[name]) for name, value in trained.items()}}
        return {name: values[name] for name in self._types}

    def __call__(self, state: UpdateState, chunk: BatchChunk) -> tuple[UpdateState, dict[str, jax.Array]]:
        """Run an update, and return the new state and a report of scalars.

        The report has ``loss``, ``grad_norm`` before clipping, ``param_norm``, ``finite``, ``learning_rate`` if known,
        and ``metrics``.
        """
        return self._update(
            state, self.frozen, chunk.arrays, chunk.mask, chunk.weights, ragged=self.forward.takes_lengths(chunk.ragged)
        )

    def _plain_update(
        self, state: UpdateState, frozen: Arrays, arrays: Arrays, mask: jax.Array, weights: jax.Array, *, ragged: bool
    ) -> tuple[UpdateState, dict[str, Any]]:
        def objective(trained: Arrays) -> Any:
            # The state of the previous chunk is a separate argument: no gradient crosses chunks.
            params = {name: value.astype(self._types[name]) for name, value in trained.items()}
            loss, (metrics, states) = self.forward.sums(
                {**frozen, **params}, state.carry, arrays, mask, weights, ragged
            )
            count = jnp.maximum(jnp.sum(weights, dtype=jnp.int32), 1)
            means = {name: value / count.astype(value.dtype) for name, value in metrics.items()}
            return loss / count.astype(loss.dtype), (means, states)

        (loss, (metrics, carry)), gradients = jax.value_and_grad(objective, has_aux=True)(state.trained)
        new, optimizer = self.optimizer.update(
            gradients, state.optimizer, state.trained, loss, lambda trained: objective(trained)[0]
        )
        # Where the optimizer leaves out updates that are not finite, the parameters stay finite.
        judged = new.values() if skips_updates(optimizer) else (loss, *gradients.values(), *new.values())
        report = {
            "loss": loss,
            "grad_norm": _norm(gradients),
            "param_norm": _norm(new),
            "finite": jnp.stack([jnp.isfinite(x).all() for x in judged]).all(),
            "metrics": metrics,
        }
        if (rate := learning_rate(optimizer)) is not None:
            report["learning_rate"] = rate
        return UpdateState(new, optimizer, carry), report


def _norm(arrays: Arrays) -> jax.Array:
    squares = [jnp.sum(jnp.square(array.astype(jnp.float32))) for array in arrays.values()]
    return jnp.sqrt(jnp.sum(jnp.stack(squares)))


def fresh_carry(forward: Forward, placement: Placement, rows: int) -> dict[str, jax.Array]:
    """Return the initial state of the model for these rows of each process, ``[rows, ...]``; empty in mode "apply"."""
    if forward.layout.mode == "apply":
        return {}
    start = {name: np.asarray(value) for name, value in forward.model.init().items()}
    return placement.spread({name: np.broadcast_to(x, (rows, *x.shape)).copy() for name, x in start.items()})


@dataclasses.dataclass(frozen=True)
class Forward:
    """The model, the loss and the metrics, as functions of an example."""

    model: Model
    layout: ExampleLayout
    loss: Function
    metrics: Mapping[str, Function]
    dtype: np.dtype | None = None

    def takes_lengths(self, ragged: bool) -> bool:
        """Return True if the model is called with lengths. Only a scan takes lengths, and is compiled again."""
        return ragged and self.layout.mode == "scan"

    def run(self, params: Arrays, state: Arrays, example: Arrays, mask: jax.Array, ragged: bool) -> tuple[Any, Any]:
        """Run the model on an example or a chunk, and return a dict of the outputs, and the last state."""
        inputs = {info.name: example[info.name] for info in self.layout.inputs}
        remat = self.layout.sequences.remat
        if self.layout.mode == "apply":
            return self.model.apply(params, inputs, remat=remat, dtype=self.dtype), state
        if self.layout.mode == "step":
            return self._step(params, state, inputs)
        for name in inputs.keys() - self.layout.axes.keys():
            inputs[name] = jnp.broadcast_to(inputs[name], (mask.shape[0], *inputs[name].shape))
        axis = self.layout.sequences.time_axis or {}
        axes = {name: axis if isinstance(axis, int) else axis.get(name, 0) for name in self.layout.outputs}
        axes |= {name: self.layout.axes.get(name, 0) for name in inputs}
        lengths = jnp.sum(mask, dtype=jnp.int32)[None] if ragged else None
        return self.model.scan(params, state, inputs, time_axis=axes, lengths=lengths, remat=remat, dtype=self.dtype)

    def _step(self, params: Arrays, state: Arrays, inputs: Arrays) -> tuple[Any, Any]:
        with recomputing(self.layout.sequences.remat):
            return self.model.step(params, state, inputs, dtype=self.dtype)

    def state_inputs(self, state: Arrays) -> dict[str, Any]:
        """Return a state by the names of model inputs; empty in mode "apply"."""
        return {str(variable.input): state[variable.name] for variable in self.model.state if variable.name in state}

    def measure(
        self, params: Arrays, state: Arrays, example: Arrays, mask: jax.Array, ragged: bool
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], Any]]:
        """Return loss, metrics and new state of an example; the loss without frames is finite but meaningless."""
        outputs, state = self.run(params, state, example, mask, ragged)
        loss, metrics = self.judge(outputs, example, mask)
        return loss, (metrics, state)

    def judge(self, outputs: Arrays, example: Arrays, mask: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return loss and metrics of the outputs of an example."""
        # A mean over no frames would be NaN, and its gradient too, even if the value is not used.
        mask = mask | ~mask.any()
        example = self.model.taught(example) if isinstance(self.model, Student) else example

        def measure(what: str, function: Function, **options: Any) -> jax.Array:
            try:
                return _scalar(what, function(dict(outputs), dict(example), mask), **options)
            except jax.errors.JAXTypeError as error:
                raise InputError(
                    f"the {what} must return a JAX scalar and compute with jax.numpy: NumPy, float(), .item() and "
                    f"conditions on arrays are not possible while JAX traces the function: {whole_message(error)}"
                ) from error

        loss = measure("loss", self.loss, differentiable=True)
        return loss, {name: measure(f"metric {name!r}", metric) for name, metric in self.metrics.items()}

    def sums(
        self, params: Arrays, state: Arrays, arrays: Arrays, mask: jax.Array, weights: jax.Array, ragged: bool
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], Any]]:
        """Return sums of loss and metrics over the rows with a weight, and the new states."""

        def one(state: Any, example: Any, mask: jax.Array) -> Any:
            return self.measure(params, state, example, mask, ragged)

        losses, (metrics, states) = jax.vmap(one)(state, arrays, mask)

        def total(values: jax.Array) -> jax.Array:
            return jnp.sum(jnp.where(weights, values, jnp.zeros((), values.dtype)))

        return total(losses), ({name: total(values) for name, values in metrics.items()}, states)


def _scalar(what: str, value: Any, *, differentiable: bool = False) -> jax.Array:
    scalar: Any = jnp.asarray(value, jnp.float32) if type(value) in (bool, int, float) else value
    kinds = (jnp.floating,) if differentiable else (jnp.floating, jnp.integer, jnp.bool_)
    if np.shape(scalar) != () or not any(jnp.issubdtype(getattr(scalar, "dtype", object), kind) for kind in kinds):
        kind = "float" if differentiable else "real number"
        raise InputError(f"the {what} of an example must be one {kind}, a scalar, not {describe(value)}; take a mean")
    return scalar if jnp.issubdtype(scalar.dtype, jnp.floating) else scalar.astype(jnp.float32)
