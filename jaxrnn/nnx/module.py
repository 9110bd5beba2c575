"""A whole imported model as a Flax NNX module, its state as variables of their own type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrnn._files.messages import describe
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import StateError
from jaxrnn.model import Model
from jaxrnn.nnx.imported import Imported, inputs_by_name, untabulated


class RecurrentState(nnx.Variable):
    """What an imported model carries from step to step; no ``nnx.Param``, so no filter of parameters takes it."""


class Module(Imported):
    """An imported model as a Flax NNX module.

    ``module(inputs)`` is `jaxrnn.Model.apply` with the module's parameters. ``module.step(inputs)`` and
    ``module.scan(inputs)`` advance the state that the module holds, in place, as NNX's rules have it: also inside
    ``nnx.jit``, ``nnx.scan`` and ``nnx.grad``, and nowhere but there.

    Example::

        denoiser = jaxrnn.nnx.Module(model)
        mask = denoiser.step(magnitude=frame)["mask"]

    Args:
        model: as `jaxrnn.load` gives it. It is static: two modules have one graph definition if they share it.
        batch: streams that the state is for, as in `jaxrnn.Model.init`.
        dtype: the compute dtype, as in `jaxrnn.Model.apply`; weights that are cast to it are taken too.
        rngs: not used, as the parameters come from the file; Flax passes it to every constructor
            (``nnx.bridge.to_linen``).

    Attributes:
        weights: the parameters, ``nnx.Param`` by ONNX name.
        carry: the state, `RecurrentState` by the names of ``model.state``; empty where the model takes none from
            outside.
    """

    carry: dict[str, RecurrentState]

    def __init__(self, model: Model, *, batch: int | None = None, dtype: Any = None, rngs: nnx.Rngs | None = None):
        super().__init__(model, dtype=dtype)
        try:
            state = model.init(batch)
        except StateError:
            state = {}  # a whole sequence runs without; `step` and `reset` say why there is none
        with exact_types():
            self.carry = nnx.data({name: RecurrentState(value) for name, value in state.items()})

    def __call__(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, jax.Array]:
        """The whole graph: inputs and outputs by ONNX names, a state among them where the file has one.

        Args:
            inputs: arrays by name, as in ``model.inputs``.
            named: the same by keyword.

        Raises:
            InputError: an input does not fit.
        """
        return self.model.apply(self.params, inputs_by_name(inputs, named), dtype=self.dtype)

    @property
    def state(self) -> dict[str, jax.Array]:
        """The state as it is now, by name: what `jaxrnn.Model.step` takes."""
        with exact_types():
            types = {variable.name: variable.dtype for variable in self.model.state if variable.name in self.carry}
            return {name: _widened(jnp.asarray(self.carry[name].get_value()), dtype) for name, dtype in types.items()}

    @untabulated
    def reset(self, batch: int | None = None) -> None:
        """Put the state back to where it was before the first step, for ``batch`` streams, as in `jaxrnn.Model.init`.

        Raises:
            StateError: the model has no steps.
        """
        self._set_state(self.model.init(batch))

    def step(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, jax.Array]:
        """One time step: outputs without the state, which advances in place.

        Args:
            inputs: arrays by name, as in ``model.spec.inputs``.
            named: the same by keyword.

        Raises:
            StateError: the model forgets its state after every call, so it has no steps.
            InputError: an input does not fit, or is of another batch than the state.
        """
        outputs, state = self.model.step(self.params, self.state, inputs_by_name(inputs, named), dtype=self.dtype)
        self._set_state(state)
        return outputs

    def scan(
        self, inputs: Mapping[str, Any], *, time_axis: int | Mapping[str, int] = 0, lengths: Any = None
    ) -> dict[str, jax.Array]:
        """`step` over a whole recording in one call, as `jaxrnn.Model.scan`; the state advances in place.

        Args:
            inputs: arrays by name, as in ``model.spec.inputs``, with frames along ``time_axis``.
            time_axis: where the frames are; or one for each input and output by name.
            lengths: ``int[batch]``, frames of each stream.

        Raises:
            StateError: the model has no steps.
            InputError: an input does not fit.
        """
        outputs, state = self.model.scan(
            self.params, self.state, inputs, time_axis=time_axis, lengths=lengths, dtype=self.dtype
        )
        self._set_state(state)
        return outputs

    def _set_state(self, state: Mapping[str, jax.Array]) -> None:
        with exact_types():
            for name, value in state.items():
                self.carry[name].set_value(value)

    def _facts(self) -> dict[str, Any]:
        return {
            **super()._facts(),
            "carry": {name: describe(variable.get_value()) for name, variable in self.carry.items()},
        }


def _widened(array: jax.Array, dtype: np.dtype) -> jax.Array:
    """Integers in the file's type: a checkpoint that is restored without ``jax_enable_x64`` has them in 32 bits."""
    return array.astype(dtype) if dtype.kind in "iu" and array.dtype.kind == dtype.kind else array
