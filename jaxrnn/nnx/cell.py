"""One step of an imported model as a cell of Flax, to run in ``flax.nnx.RNN`` and to stand where its own cells do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError
from jaxrnn.model import Model
from jaxrnn.nnx.imported import Imported, untabulated
from jaxrnn.nnx.slots import Shape, feature_axes
from jaxrnn.nnx.step_layout import step_layout

#: An array, a tuple of arrays, or a dict of arrays.
Carry = Any


class Cell(Imported, nnx.RNNCellBase):
    """One step of a model with one input and one output besides its state, as an ``nnx.RNNCellBase``.

    Inputs are ``[*batch, *features]``, and so are outputs, whatever the file's layout is: axes of size 1 are left out,
    and a batch that the file fixed at 1 becomes a leading axis over single steps. ``nnx.RNN(Cell(model))`` so takes
    ``[batch, time, features]``.

    The carry is laid out as in Flax's own cells where the whole state is that of one LSTM, GRU or RNN node of one
    direction: ``(c, h)`` for an LSTM, ``h`` for the others, ``[*batch, hidden]`` each. Otherwise it is a dict of the
    states by name, each with the batch in front and its other axes, those of size 1 included, as in the file.
    `state_of` makes of a carry the state that `jaxrnn.Model.step` takes, and `carry_of` the reverse.

    Example::

        rnn = nnx.RNN(jaxrnn.nnx.Cell(model))
        masks = rnn(magnitudes)  # float32[batch, time, 129] to the same

    Args:
        model: as `jaxrnn.load` gives it. It is static.
        dims: sizes of open dimensions of the input besides the batch. Without one, the last axis is features of any
            size, and any other open axis is one frame.
        dtype: the compute dtype, as in `Module`.
        rngs: not used, as the parameters come from the file; Flax passes it to every constructor.

    Raises:
        StateError: the model forgets its state after every call, or has none.
        InputError: it has several inputs or outputs; bind inputs with ``jaxrnn.load(..., static=...)``.
    """

    def __init__(
        self,
        model: Model,
        *,
        dims: Mapping[str, int] | None = None,
        dtype: Any = None,
        rngs: nnx.Rngs | None = None,
    ):
        super().__init__(model, dtype=dtype)
        self._layout = step_layout(model, dims or {})

    @property
    def num_feature_axes(self) -> int:
        """How many of the last axes of an input are features; those before are batch."""
        return len(self._layout.input.features)

    def __call__(self, carry: Carry, inputs: jax.Array) -> tuple[Carry, jax.Array]:
        """One step.

        Args:
            carry: as `initialize_carry` gives it, or as the step before did.
            inputs: ``[*batch, *features]``.

        Returns:
            The new carry, and the output ``[*batch, *features]``.

        Raises:
            InputError: the input does not fit.
            StateError: the carry does not fit.
        """
        layout, form = self._layout, self._layout.carry
        with exact_types():
            array = jnp.asarray(inputs)
            batch = self._batch(array.shape)
            frame = list(layout.input.shape)
            for axis, size in zip(layout.input.features, array.shape[len(batch) :], strict=True):
                frame[axis] = size
            array = layout.input.into_step(array.reshape(math.prod(batch), *frame), layout.batched)
            rows = form.rows(carry, batch)
            state = {slot.name: slot.into_step(rows[slot.name], layout.batched) for slot in form.states}
            results, state = self.model.step(self.params, state, {layout.input.name: array}, dtype=self.dtype)
            rows = {slot.name: slot.out_of_step(state[slot.name], layout.batched) for slot in form.states}
            carry = form.of_rows(rows, batch)
            if layout.output is None:
                return carry, carry[-1] if isinstance(carry, tuple) else carry
            result = layout.output.out_of_step(results[layout.output.name], layout.batched)
            features = [result.shape[1:][axis] for axis in feature_axes(result.shape[1:])]
            return carry, result.reshape(*batch, *features)

    @untabulated
    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: nnx.Rngs | nnx.RngStream | None = None,
        carry_init: Callable[..., jax.Array] | None = None,
    ) -> Carry:
        """The carry before the first step: zeros or the file's own values, or what ``carry_init`` draws.

        Args:
            input_shape: of an input of one step, ``[*batch, *features]``.
            rngs: where ``carry_init`` takes its keys from (its stream ``carry``); not needed otherwise.
            carry_init: called with a key, a shape and a dtype for every array of the carry.

        Raises:
            InputError: the shape has too few axes, or ``carry_init`` comes without ``rngs``.
        """
        batch, form = self._batch(tuple(input_shape)), self._layout.carry
        stream = rngs.carry if isinstance(rngs, nnx.Rngs) else rngs
        with exact_types():
            start = self.model.init()
            if carry_init is None:
                first = {name: jnp.reshape(start[name], shape) for name, shape in form.shapes.items()}
                return form.pack({name: jnp.broadcast_to(a, (*batch, *a.shape)) for name, a in first.items()})
            if stream is None:
                raise InputError("carry_init draws random numbers: pass rngs=nnx.Rngs(seed) too")
            return form.pack(
                {name: carry_init(stream(), (*batch, *shape), start[name].dtype) for name, shape in form.shapes.items()}
            )

    def state_of(self, carry: Carry) -> dict[str, jax.Array]:
        """The state that `jaxrnn.Model.step` and `scan` take, of a carry; several batch axes become one.

        Raises:
            StateError: the carry does not fit.
        """
        with exact_types():
            return self._layout.carry.state_of(carry)

    def carry_of(self, state: Mapping[str, jax.Array]) -> Carry:
        """The carry, ``[batch, ...]`` each, of a state of `jaxrnn.Model.step`; without a batch if the state has none.

        Raises:
            StateError: an entry of the state is missing, or has another shape or batch.
        """
        with exact_types():
            return self._layout.carry.carry_of(state)

    def _batch(self, shape: Shape) -> Shape:
        """The batch axes of an input of a step."""
        if len(shape) < self.num_feature_axes:
            slot = self._layout.input
            seen = ", ".join(str(slot.shape[axis]) for axis in slot.features)
            raise InputError(f"input {slot.name!r} of a cell must be [*batch, {seen}], not of rank {len(shape)}")
        return tuple(shape[: len(shape) - self.num_feature_axes])
