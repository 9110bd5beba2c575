"""Steps of imported models as cells of Flax, for ``flax.nnx.RNN``.

An ONNX step takes ``[1, batch, features]``, ``[batch, 1, features]`` or, with a fixed batch, ``[1, 1, features]``; a
cell of Flax takes ``[batch, features]``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import onnx_ir as ir
from flax import nnx

from jaxrnn._files.messages import describe
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError, StateError
from jaxrnn.model import Model
from jaxrnn.nnx.module import Imported, untabulated
from jaxrnn.onnx.evaluate import BoundNode
from jaxrnn.onnx.registry import Movement
from jaxrnn.steps.specs import ArraySpec, Dimension

#: An array, a tuple of arrays, or a dict of arrays.
Carry = Any


class Cell(Imported, nnx.RNNCellBase):
    """A step of a model with a single input, a single output and a state, as an ``nnx.RNNCellBase``.

    Inputs and outputs are ``[*batch, *features]`` for any layout of the file: axes of size 1 are left out, and a batch
    fixed at 1 becomes a leading axis over single steps. So ``nnx.RNN(Cell(model))`` takes ``[batch, time, features]``.

    If the whole state belongs to a single LSTM, GRU or RNN node with one direction, the carry has the form of Flax's
    cells: ``(c, h)`` for an LSTM, otherwise ``h``, with shapes ``[*batch, hidden]``. In all other cases, the carry is a
    dict of states, each with the batch first and all other axes of the file. `state_of` converts a carry to the state
    of `jaxrnn.Model.step`, and `carry_of` converts a state to a carry.

    Example::

        rnn = nnx.RNN(jaxrnn.nnx.Cell(model))
        masks = rnn(magnitudes)  # float32[batch, time, 129] to the same

    Args:
        model: A model from `jaxrnn.load`, which is static.
        dims: Sizes of open dimensions of the input other than the batch. By default, the last axis has features of any
            size, and other open axes have size 1.
        dtype: The compute dtype, as in `Module`.
        rngs: Unused, since the file has the parameters; Flax passes this argument to each constructor.

    Raises:
        StateError: The model forgets the state after each call, or has no state.
        InputError: The model has several inputs or outputs; bind inputs with ``jaxrnn.load(..., static=...)``.
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
        inputs, outputs = model.spec.inputs, model.spec.outputs
        if not model.state:
            raise StateError(f"{model.label} keeps no state from call to call, so it is no cell; use jaxrnn.nnx.Module")
        names = _flax_carry(model)
        if len(inputs) != 1 or len(outputs) > 1 or not (outputs or names):
            raise InputError(
                f"a cell has one input and one output besides its state, but {model.label} takes {_listed(inputs)} and "
                f"gives {_listed(outputs)}: bind inputs with `jaxrnn.load(path, static={{NAME: VALUE}})`, or use "
                "jaxrnn.nnx.Module"
            )
        symbol = model.spec.batch_symbol
        states = tuple(_slot(variable.name, variable.shape, symbol) for variable in model.state)
        self._input = _slot(inputs[0].name, _frame(inputs[0], symbol, dims or {}), symbol)
        self._output = _slot(outputs[0].name, outputs[0].shape or (), symbol) if outputs else None
        self._form = CarryForm(states, names or {slot.name: slot.name for slot in states})
        #: True if the file fixes the batch of an array, so that steps are mapped over a leading axis.
        self._batched = any(slot.axis is None for slot in (self._input, self._output, *states) if slot is not None)

    @property
    def num_feature_axes(self) -> int:
        """Return the number of feature axes of an input, after the batch axes."""
        return len(self._input.features)

    def __call__(self, carry: Carry, inputs: jax.Array) -> tuple[Carry, jax.Array]:
        """Run one step.

        Args:
            carry: The result of `initialize_carry`, or the carry of the previous step.
            inputs: ``[*batch, *features]``.

        Returns:
            The new carry, and the output ``[*batch, *features]``.

        Raises:
            InputError: The input does not fit.
            StateError: The carry does not fit.
        """
        form, batched = self._form, self._batched
        with exact_types():
            array = jnp.asarray(inputs)
            batch = self._batch(array.shape)
            frame = list(self._input.shape)
            for axis, size in zip(self._input.features, array.shape[len(batch) :], strict=True):
                frame[axis] = size
            array = self._input.into_step(array.reshape(math.prod(batch), *frame), batched)
            rows, _ = form.rows(carry, batch)
            state = {slot.name: slot.into_step(rows[slot.name], batched) for slot in form.states}
            results, state = self.model.step(self.params, state, {self._input.name: array}, dtype=self.dtype)
            rows = {slot.name: slot.out_of_step(state[slot.name], batched) for slot in form.states}
            carry = form.of_rows(rows, batch)
            if self._output is None:
                return carry, carry[-1] if isinstance(carry, tuple) else carry
            result = self._output.out_of_step(results[self._output.name], batched)
            features = [result.shape[1:][axis] for axis in feature_axes(result.shape[1:])]
            return carry, result.reshape(*batch, *features)

    @untabulated
    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: nnx.Rngs | nnx.RngStream | None = None,
        carry_init: Callable[..., jax.Array] | None = None,
    ) -> Carry:
        """Return the carry before the first step: zeros, the values of the file, or values drawn by ``carry_init``.

        Args:
            input_shape: Shape of the input of a step, ``[*batch, *features]``.
            rngs: Source of keys for ``carry_init``: the stream ``carry`` of ``nnx.Rngs``, or a single stream.
            carry_init: A function of a key, a shape and a dtype, called for each array of the carry.

        Raises:
            InputError: The shape has fewer axes than the features, or ``rngs`` is missing for ``carry_init``.
        """
        batch, form = self._batch(tuple(input_shape)), self._form
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
        """Convert a carry to the state of `jaxrnn.Model.step` and `scan`; several batch axes are merged.

        Raises:
            StateError: The carry does not fit.
        """
        with exact_types():
            return self._form.state_of(carry)

    def carry_of(self, state: Mapping[str, jax.Array]) -> Carry:
        """Convert a state of `jaxrnn.Model.step` to a carry of arrays ``[batch, ...]``.

        If the state has no batch, the carry has no batch.

        Raises:
            StateError: An entry of the state is missing, or has a wrong shape or batch.
        """
        with exact_types():
            return self._form.carry_of(state)

    def _batch(self, shape: Shape) -> Shape:
        if len(shape) < self.num_feature_axes:
            slot = self._input
            seen = ", ".join(str(slot.shape[axis]) for axis in slot.features)
            raise InputError(f"input {slot.name!r} of a cell must be [*batch, {seen}], not of rank {len(shape)}")
        return tuple(shape[: len(shape) - self.num_feature_axes])


#: The names of the carries of a cell in the order of Flax: ``(c, h)`` in ``LSTMCell``, ``h`` in the other cells.
_FLAX_ORDER = ("c", "h")


def _frame(info: ArraySpec, symbol: str | None, dims: Mapping[str, int]) -> tuple[Dimension, ...]:
    if info.shape is None:
        raise InputError(
            f"{info.as_input} has no declared rank, so its features cannot be found; use jaxrnn.nnx.Module"
        )
    is_open = [isinstance(size, str) and size != symbol for size in info.shape]
    named = [size for size, free in zip(info.shape, is_open, strict=True) if free]
    unknown = [name for name in dims if name not in named]
    if unknown:
        known = ", ".join(map(str, named)) or "none"
        raise InputError(
            f"dims: {info.as_input} has no open dimension {unknown[0]!r} besides the batch; it has: {known}"
        )
    last = len(info.shape) - 1
    return tuple(
        dims.get(str(size), size if axis == last else 1) if free else size
        for axis, (size, free) in enumerate(zip(info.shape, is_open, strict=True))
    )


def _slot(name: str, shape: Sequence[Dimension], symbol: str | None) -> Slot:
    axis = None if symbol is None or symbol not in shape else list(shape).index(symbol)
    return Slot(name, tuple(size for place, size in enumerate(shape) if place != axis), axis)


def _listed(infos: Sequence[ArraySpec]) -> str:
    return ", ".join(map(str, infos)) or "nothing"


def _flax_carry(model: Model) -> tuple[str, ...] | str | None:
    states = {variable.name: variable for variable in model.state}
    makers = model.program.block.makers()
    for node in model.program.block.nodes:
        carries = node.operator.traits.carries
        if carries is None or carries.hidden is None:
            continue
        places = [carries.states[name][0] for name in _FLAX_ORDER if name in carries.states]
        names = [_source(node.inputs[place], makers) if place < len(node.inputs) else None for place in places]
        if not names or set(names) != set(states) or len(names) != len(states):
            continue
        slots = [_slot(str(name), states[str(name)].shape, model.spec.batch_symbol) for name in names]
        # The states of both directions have two axes of features.
        if all(len(slot.features) == 1 for slot in slots):
            first, *rest = (slot.name for slot in slots)
            return (first, *rest) if rest else first
    return None


def _source(value: ir.Value | None, makers: Mapping[ir.Value, BoundNode]) -> str | None:
    while value is not None and (node := makers.get(value)) is not None:
        if node.operator.traits.moves is not Movement.REARRANGES:
            return None
        value = node.inputs[0]
    return None if value is None else value.name


Shape = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Slot:
    """An array of a step: name, shape without the batch, and batch axis, which is None if the batch is fixed."""

    name: str
    shape: tuple[Dimension, ...]
    axis: int | None

    @property
    def features(self) -> tuple[int, ...]:
        """Return the axes of `shape` that are features of a cell."""
        return feature_axes(self.shape)

    def into_step(self, array: jax.Array, batched: bool) -> jax.Array:
        """Convert ``[batch, *shape]`` to an input of a step; ``batched`` maps a leading axis over single steps."""
        if self.axis is None:
            return array
        return jnp.expand_dims(array, self.axis + 1) if batched else jnp.moveaxis(array, 0, self.axis)

    def out_of_step(self, array: jax.Array, batched: bool) -> jax.Array:
        """Invert `into_step`."""
        if self.axis is None:
            return array
        return jnp.squeeze(array, self.axis + 1) if batched else jnp.moveaxis(array, self.axis, 0)


def feature_axes(shape: Sequence[Any]) -> tuple[int, ...]:
    """Return all axes with a size other than 1, or the last axis if all sizes are 1."""
    wide = tuple(axis for axis, size in enumerate(shape) if size != 1)
    return wide or tuple(range(len(shape)))[-1:]


@dataclasses.dataclass(frozen=True)
class CarryForm:
    """The form of a cell's carry.

    ``names`` is a carry with names in place of arrays: ``("c", "h")`` or ``"h"`` as in Flax's cells, or a dict. The
    arrays of Flax's cells have no axes of size 1 apart from the batch.
    """

    states: tuple[Slot, ...]
    names: Any

    @property
    def shapes(self) -> dict[str, Shape]:
        """Return the shape of each array of the carry without batch axes."""
        slots = {slot.name: slot for slot in self.states}
        if isinstance(self.names, Mapping):
            return {name: slots[name].shape for name in self.names}
        return {name: tuple(slots[name].shape[i] for i in slots[name].features) for name in jax.tree.leaves(self.names)}

    @property
    def has_batch_axes(self) -> bool:
        """Return True if each state has a batch axis; otherwise the batch is a leading axis of all states."""
        return all(slot.axis is not None for slot in self.states)

    def pack(self, arrays: Mapping[str, jax.Array]) -> Any:
        """Return the carry with these arrays: ``(c, h)``, ``h``, or a dict."""
        return jax.tree.map(lambda name: arrays[name], self.names)

    def rows(self, carry: Any, batch: Shape | None = None) -> tuple[dict[str, jax.Array], Shape]:
        """Return the states of a carry, each ``[prod(batch), *shape]``, and the batch.

        ``batch`` is the shape of the leading axes, by default taken from the first array. Raises StateError for a wrong
        structure or shape.
        """
        carry = tuple(carry) if isinstance(carry, list) else carry
        if jax.tree.structure(carry) != jax.tree.structure(self.names):
            raise StateError(f"the carry must be {_built(self.names)}, not {_built(carry)}")
        shapes, arrays = self.shapes, {}
        for name, array in zip(jax.tree.leaves(self.names), jax.tree.leaves(carry), strict=True):
            if not hasattr(array, "shape"):
                raise StateError(f"the carry must hold an array for {name!r}, not {_built(array)}")
            lead = tuple(array.shape[: len(array.shape) - len(shapes[name])])
            batch = lead if batch is None else batch
            if tuple(array.shape) != (*batch, *shapes[name]):
                expected = ", ".join(map(str, (*batch, *shapes[name])))
                raise StateError(f"{name!r} in the carry must have the shape [{expected}], not {describe(array)}")
            arrays[name] = array
        lead = batch or ()
        rows = {slot.name: jnp.reshape(arrays[slot.name], (math.prod(lead), *slot.shape)) for slot in self.states}
        return rows, lead

    def of_rows(self, rows: Mapping[str, jax.Array], batch: Shape) -> Any:
        """Invert `rows`."""
        return self.pack({name: jnp.reshape(rows[name], (*batch, *shape)) for name, shape in self.shapes.items()})

    def state_of(self, carry: Any) -> dict[str, jax.Array]:
        """Convert a carry to the state of a model's step; several batch axes are merged."""
        rows, batch = self.rows(carry)
        batched = not self.has_batch_axes
        state = {slot.name: slot.into_step(rows[slot.name], batched) for slot in self.states}
        return {name: value[0] for name, value in state.items()} if batched and not batch else state

    def carry_of(self, state: Mapping[str, Any]) -> Any:
        """Convert the state of a step to a carry, without batch axes if neither the file nor the state has a batch."""
        rows, batches, batched = {}, set(), not self.has_batch_axes
        for slot in self.states:
            if slot.name not in state:
                raise StateError(f"state {slot.name!r} is missing; there must be all of: {', '.join(self.shapes)}")
            array = jnp.asarray(state[slot.name])
            alone = batched and array.ndim == len(slot.shape) + (slot.axis is not None)
            try:
                row = slot.out_of_step(array[None] if alone else array, batched)
            except ValueError:  # too few axes, or several streams in place of one
                row = None
            if row is None or row.shape[1:] != slot.shape:
                raise StateError(f"state {slot.name!r} cannot be {describe(array)}")
            rows[slot.name] = row
            batches.add(() if alone else row.shape[:1])
        if len(batches) > 1:
            raise StateError(f"the state is of several batches: {', '.join(map(str, sorted(batches)))}")
        return self.of_rows(rows, batches.pop())


def _built(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dict of {', '.join(map(str, value)) or 'nothing'}"
    if isinstance(value, (tuple, list)):
        named = all(isinstance(name, str) for name in value)
        return f"a {type(value).__name__} of {', '.join(value) if named else len(value)}"
    return "an array" if isinstance(value, str) else f"a {type(value).__name__}"
