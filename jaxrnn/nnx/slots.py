"""The arrays of one step as a Flax cell has them: the batch in front, and no axes of size 1 after it.

An ONNX step takes ``[1, batch, features]`` or ``[batch, 1, features]`` or, from a file that fixed its batch,
``[1, 1, features]``; a cell of Flax takes ``[batch, features]``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrnn._files.messages import describe
from jaxrnn.errors import StateError
from jaxrnn.steps.specs import Dimension

Shape = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Slot:
    """One array of a step.

    Attributes:
        name: in the file.
        shape: without the batch.
        axis: where the batch is in the file's shape; None where the file fixed it.
    """

    name: str
    shape: tuple[Dimension, ...]
    axis: int | None

    @property
    def features(self) -> tuple[int, ...]:
        """The axes of `shape` that a cell sees."""
        return feature_axes(self.shape)

    def into_step(self, array: jax.Array, batched: bool) -> jax.Array:
        """``[batch, *shape]`` as the step takes it; batched, as a leading axis over single steps."""
        if self.axis is None:
            return array
        return jnp.expand_dims(array, self.axis + 1) if batched else jnp.moveaxis(array, 0, self.axis)

    def out_of_step(self, array: jax.Array, batched: bool) -> jax.Array:
        """The inverse of `into_step`."""
        if self.axis is None:
            return array
        return jnp.squeeze(array, self.axis + 1) if batched else jnp.moveaxis(array, self.axis, 0)


def feature_axes(shape: Sequence[Any]) -> tuple[int, ...]:
    """The axes that are not of size 1; the last one if there is no other."""
    wide = tuple(axis for axis, size in enumerate(shape) if size != 1)
    return wide or tuple(range(len(shape)))[-1:]


@dataclasses.dataclass(frozen=True)
class CarryForm:
    """How a cell carries the states of a model.

    Attributes:
        states: in the order of ``model.state``.
        names: a carry with the names of the states in place of their arrays: ``("c", "h")`` or ``"h"`` as in Flax's
            own cells, whose arrays have no axes of size 1 besides the batch, or a dict.
    """

    states: tuple[Slot, ...]
    names: Any

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shape of each array of the carry after its batch axes."""
        slots = {slot.name: slot for slot in self.states}
        if isinstance(self.names, Mapping):
            return {name: slots[name].shape for name in self.names}
        return {name: tuple(slots[name].shape[i] for i in slots[name].features) for name in jax.tree.leaves(self.names)}

    @property
    def has_batch_axes(self) -> bool:
        """Whether the file says of every state where its batch is; otherwise a batch is a leading axis of all."""
        return all(slot.axis is not None for slot in self.states)

    def pack(self, arrays: Mapping[str, jax.Array]) -> Any:
        """The carry of its arrays by name: ``(c, h)``, ``h``, or a dict."""
        return jax.tree.map(lambda name: arrays[name], self.names)

    def unpack(self, carry: Any, batch: Shape | None = None) -> dict[str, jax.Array]:
        """The arrays of a carry by name.

        Args:
            carry: as `pack` makes it.
            batch: the axes in front of every array; those of its first array by default.

        Raises:
            StateError: it is built otherwise, or an array has another shape.
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
        return arrays

    def rows(self, carry: Any, batch: Shape) -> dict[str, jax.Array]:
        """The states of a carry, each ``[prod(batch), *shape]``."""
        arrays = self.unpack(carry, batch)
        return {slot.name: jnp.reshape(arrays[slot.name], (math.prod(batch), *slot.shape)) for slot in self.states}

    def of_rows(self, rows: Mapping[str, jax.Array], batch: Shape) -> Any:
        """The inverse of `rows`."""
        return self.pack({name: jnp.reshape(rows[name], (*batch, *shape)) for name, shape in self.shapes.items()})

    def state_of(self, carry: Any) -> dict[str, jax.Array]:
        """What a step of the model takes, of a carry; several batch axes become one.

        Raises:
            StateError: as `unpack`.
        """
        name, array = next(iter(self.unpack(carry).items()))
        batch = tuple(array.shape[: len(array.shape) - len(self.shapes[name])])
        rows = self.rows(carry, batch)
        batched = not self.has_batch_axes
        state = {slot.name: slot.into_step(rows[slot.name], batched) for slot in self.states}
        return {name: value[0] for name, value in state.items()} if batched and not batch else state

    def carry_of(self, state: Mapping[str, Any]) -> Any:
        """The carry of what a step takes; without a batch if the file fixed it and the state has no leading axis.

        Raises:
            StateError: an entry is missing, or has another shape or batch.
        """
        rows, batches, batched = {}, set(), not self.has_batch_axes
        for slot in self.states:
            if slot.name not in state:
                raise StateError(f"state {slot.name!r} is missing; there must be all of: {', '.join(self.shapes)}")
            array = jnp.asarray(state[slot.name])
            alone = batched and array.ndim == len(slot.shape) + (slot.axis is not None)
            try:
                row = slot.out_of_step(array[None] if alone else array, batched)
            except ValueError:  # too few axes, or several streams where there must be one
                row = None
            if row is None or row.shape[1:] != slot.shape:
                raise StateError(f"state {slot.name!r} cannot be {describe(array)}")
            rows[slot.name] = row
            batches.add(() if alone else row.shape[:1])
        if len(batches) > 1:
            raise StateError(f"the state is of several batches: {', '.join(map(str, sorted(batches)))}")
        return self.of_rows(rows, batches.pop())


def _built(value: Any) -> str:
    """What a carry is made of, for a message; of one that has names in place of arrays, those."""
    if isinstance(value, Mapping):
        return f"a dict of {', '.join(map(str, value)) or 'nothing'}"
    if isinstance(value, (tuple, list)):
        named = all(isinstance(name, str) for name in value)
        return f"a {type(value).__name__} of {', '.join(value) if named else len(value)}"
    return "an array" if isinstance(value, str) else f"a {type(value).__name__}"
