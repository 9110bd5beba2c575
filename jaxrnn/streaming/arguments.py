"""The arguments of streaming functions, as leaves of a pytree, held against what the function was traced for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.errors import InputError
from jaxrnn.jaxprs.packing import plain
from jaxrnn.specs import ArraySpec, bind
from jaxrnn.stepper import batch_note, check_valid
from jaxrnn.streaming.plan import Leaf, Plan


@dataclass(frozen=True)
class Arguments:
    """What the functions of a `Streamed` take; to be called where types are those of the trace.

    Attributes:
        plan: what was traced.
        structure: the tree of the input.
        example: shapes of the parameters.
        multiple: what every length is a multiple of.
    """

    plan: Plan
    structure: Any
    example: Any
    multiple: int

    def specs(self, pulse: int | None) -> list[ArraySpec]:
        """The leaves of an input of so many frames; of any number for None."""
        frames = 0 if pulse is None else pulse // self.multiple
        specs = [ArraySpec(leaf.name, leaf.dtype, leaf.frames(frames), leaf.axis) for leaf in self.plan.leaves]
        return [spec.with_frames(f"frames of {spec.name}") for spec in specs] if pulse is None else specs

    def params(self, params: Any) -> Any:
        """Plain parameters, held against those that the function was streamed with.

        Raises:
            InputError: they are missing, differ in structure, shape or dtype, or were packed for another function.
        """
        given = plain(params, self.plan)
        expected, structure = jax.tree.flatten(self.example)
        if given is None and expected:
            raise InputError("the function was streamed with parameters: give params")
        leaves, shape = jax.tree.flatten(given)
        if shape != structure:
            raise InputError(f"params must be a pytree like those that the function was streamed with, {structure}")
        for leaf, want in zip(leaves, expected, strict=True):
            array = jnp.asarray(leaf)
            if array.shape != want.shape or array.dtype != want.dtype:
                raise InputError(
                    f"params hold {array.dtype.name}{list(array.shape)} where the function was streamed with "
                    f"{want.dtype.name}{list(want.shape)}"
                )
        return given

    def existing(self, valid: Any, room: int) -> Any:
        """The number of frames of a tail that exist, ``int32`` of the trace's frames.

        Raises:
            InputError: it is known, and not a number of frames that the tail can have.
        """
        check_valid(valid, room, self.multiple)
        return jnp.asarray(valid, jnp.int32) // np.int32(self.multiple)

    def leaves(self, x: Any) -> list[Any]:
        """The leaves of an input, None for the entries of a dict that are missing.

        Raises:
            InputError: it is not a pytree like the example.
        """
        if isinstance(x, dict):
            empty = jax.tree.unflatten(self.structure, [None] * len(self.plan.leaves))
            x = {**empty, **x} if isinstance(empty, dict) else x
        try:
            return self.structure.flatten_up_to(x)
        except ValueError as error:
            names = ", ".join(leaf.name for leaf in self.plan.leaves)
            raise InputError(f"x must be a pytree like the example, with {names}: {error}") from error

    def pulse(self, x: Any, frames: int, lead: Sequence[int]) -> list[Any]:
        """The leaves of one pulse of so many frames, after the batch of the state.

        Raises:
            InputError: the tree, a dtype or a shape does not fit.
        """
        note = batch_note(tuple(lead)) or "; with_pulse takes pulses of other sizes"
        return self._bound(self.specs(frames), self.leaves(x), lead, note)

    def recording(self, x: Any, lead: Sequence[int] = ()) -> tuple[list[Any], int]:
        """The leaves of an input of any number of frames, and that number.

        Raises:
            InputError: the tree, a dtype or a shape does not fit.
        """
        arrays = self._bound(self.specs(None), self.leaves(x), lead, batch_note(tuple(lead)))
        return arrays, self._count(arrays, len(lead))

    def held(self, held: Any) -> list[Any]:
        """The leaves without a time axis, from a pytree like the input."""
        pairs = [
            (spec, value)
            for spec, value in zip(self.specs(None), self.leaves(held), strict=True)
            if spec.time_axis is None
        ]
        return self._bound([spec for spec, _ in pairs], [value for _, value in pairs], (), "")

    def tail(self, tail: Any, lead: tuple[int, ...]) -> tuple[list[Any], int]:
        """The leaves of a tail, where those with a time axis may all be None, and how many frames it has room for."""
        given: list[Any] = [None] * len(self.plan.leaves) if tail is None else self.leaves(tail)
        for place, leaf in enumerate(self.plan.leaves):
            if given[place] is None and leaf.axis is None:
                raise InputError(f"{leaf.name} is held constant: flush needs it in its tail, the other leaves None")
            if given[place] is None:
                given[place] = np.zeros((*lead, *leaf.frames(0)), leaf.dtype)
        return self.recording(jax.tree.unflatten(self.structure, given), lead)

    def _bound(self, specs: Sequence[ArraySpec], values: Sequence[Any], lead: Sequence[int], note: str) -> list[Any]:
        given = {spec.name: value for spec, value in zip(specs, values, strict=True) if value is not None}
        return [*bind([spec.batched(lead) for spec in specs], given, note=note).values()]

    def _count(self, arrays: Sequence[Any], lead: int) -> int:
        """The number of input frames that the leaves agree on."""
        moving = [
            (leaf, array.shape[leaf.axis + lead])
            for leaf, array in zip(self.plan.leaves, arrays, strict=True)
            if leaf.axis is not None
        ]
        first, frames = moving[0]
        units = frames // first.times
        for leaf, size in moving:
            if size != units * leaf.times:
                other = f"as many as go with the {frames} of {first.name}"
                due = f"a multiple of {leaf.times}" if leaf is first else other
                raise InputError(f"{leaf.name} has {size} frames, but must have {due}")
        return units * self.multiple


def padded_to(array: Any, leaf: Leaf, frames: int, lead: int) -> Any:
    """A leaf's array with its time axis made as long as a number of frames."""
    assert leaf.axis is not None
    shape = list(array.shape)
    shape[leaf.axis + lead] = frames * leaf.times - shape[leaf.axis + lead]
    return jnp.concatenate([array, jnp.zeros(shape, array.dtype)], leaf.axis + lead)
