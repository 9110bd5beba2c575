"""The arguments of streaming functions, held against what the function was traced for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrnn.errors import InputError, StateError
from jaxrnn.jaxprs.packing import plain
from jaxrnn.streaming.plan import Leaf, Plan

_WIDER = {("int32", "int64"), ("uint32", "uint64")}

#: By the kind of an element type, the kinds of Python's numbers that stand for it.
_WITHOUT_WIDTH = {"f": "iuf", "i": "iu", "u": "iu", "c": "iufc"}


def in_type(value: Any, dtype: np.dtype) -> Any:
    """A value as a JAX array; Python's numbers and narrower integers take on the element type that is asked for."""
    if not hasattr(value, "dtype"):
        # Python's numbers have no width of their own.
        given = np.asarray(value)
        value = given.astype(dtype) if given.dtype.kind in _WITHOUT_WIDTH.get(dtype.kind, "") else given
    array = jnp.asarray(value)
    return array.astype(dtype) if (array.dtype.name, dtype.name) in _WIDER else array


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

    def lead(self, state: Any) -> tuple[int, ...]:
        """The shape that every entry of a state has in front: the batch, or nothing.

        Raises:
            StateError: an entry is missing, unknown, or of another dtype or shape.
        """
        vectors = self.plan.layout.vectors
        if not isinstance(state, dict) or state.keys() != vectors.keys():
            found = ", ".join(map(str, state)) if isinstance(state, dict) else type(state).__name__
            raise StateError(f"the state must be a dict as init gives it, with {', '.join(vectors)}, not {found}")
        leads = {jnp.shape(value)[:-1] for value in state.values()}
        for name, vector in vectors.items():
            value = state[name]
            if len(leads) > 1 or jnp.shape(value)[-1:] != vector.shape or value.dtype != vector.dtype:
                found = f"{value.dtype.name}{list(jnp.shape(value))}"
                raise StateError(
                    f"state {name!r} must be {name}[{vector.shape[0]}], as init of this very function gives it (in a "
                    f"batch, with one leading axis, the same everywhere), not {found}"
                )
        (lead,) = leads
        if len(lead) > 1:
            raise StateError(f"the state has {len(lead)} leading axes; map over all but one with jax.vmap")
        return lead

    def params(self, params: Any) -> Any:
        """Plain parameters, held against those that the function was streamed with.

        Raises:
            InputError: they are missing, differ in structure, shape or dtype, or were packed for another function.
        """
        given = plain(params, self.plan)
        expected, structure = jax.tree.flatten(self.example)
        if given is None and expected:
            raise InputError("the function was streamed with parameters: give params")
        leaves, found = jax.tree.flatten(given)
        if found != structure:
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
        if not isinstance(valid, Tracer):
            known = np.asarray(valid)
            if known.dtype.kind not in "iu" or np.any((known < 0) | (known > room) | (known % self.multiple != 0)):
                of = "" if self.multiple == 1 else f" and a multiple of {self.multiple}"
                raise InputError(f"valid must be from 0 to the {room} frame(s) of the tail{of}, not {valid}")
        return jnp.asarray(valid, jnp.int32) // np.int32(self.multiple)

    def flat(self, x: Any, *, partial: bool = False) -> list[Any]:
        """The leaves of an input; with ``partial``, entries of a dict may be missing.

        Raises:
            InputError: it is not a pytree like the example.
        """
        if partial and isinstance(x, dict):
            empty = jax.tree.unflatten(self.structure, [None] * len(self.plan.leaves))
            x = {**empty, **x} if isinstance(empty, dict) else x
        try:
            return self.structure.flatten_up_to(x)
        except ValueError as error:
            names = ", ".join(leaf.name for leaf in self.plan.leaves)
            raise InputError(f"x must be a pytree like the example, with {names}: {error}") from error

    def checked(self, x: Any, frames: int | None, lead: Sequence[int]) -> list[Any]:
        """The leaves of an input of so many frames (None: any number), behind the batch of the state.

        Raises:
            InputError: the tree, a dtype or a shape does not fit.
        """
        return [
            self._checked(leaf, value, frames, tuple(lead))
            for leaf, value in zip(self.plan.leaves, self.flat(x, partial=True), strict=True)
        ]

    def _checked(self, leaf: Leaf, value: Any, frames: int | None, lead: tuple[int, ...]) -> Any:
        if value is None:
            raise InputError(f"{leaf.name} is missing")
        array = in_type(value, leaf.dtype)
        free = leaf.axis if frames is None else None
        shape = [*lead, *leaf.frames(0 if frames is None else frames // self.multiple)]
        place = None if free is None else free + len(lead)
        fits = array.ndim == len(shape) and all(
            axis == place or have == want for axis, (have, want) in enumerate(zip(array.shape, shape, strict=True))
        )
        if not fits or array.dtype != leaf.dtype:
            shown = ", ".join("frames" if axis == place else str(size) for axis, size in enumerate(shape))
            hint = f"; the state is of a batch of {lead[0]}" if lead else ""
            if frames is not None and leaf.axis is not None and array.shape[: len(lead)] == lead:
                hint = "; with_pulse takes pulses of other sizes"
            raise InputError(
                f"{leaf.name} must be {leaf.dtype.name}[{shown}], not {array.dtype.name}{list(array.shape)}{hint}"
            )
        return array

    def count_frames(self, arrays: Sequence[Any], lead: int = 0) -> int:
        """The number of input frames that the leaves agree on."""
        moving = [
            (leaf, array.shape[leaf.axis + lead])
            for leaf, array in zip(self.plan.leaves, arrays, strict=True)
            if leaf.axis is not None
        ]
        units = moving[0][1] // moving[0][0].times
        for leaf, size in moving:
            if size != units * leaf.times:
                first = f"{moving[0][1]} of {moving[0][0].name}" if leaf is not moving[0][0] else ""
                wanted = f"as many as go with the {first}" if first else f"a multiple of {leaf.times}"
                raise InputError(f"{leaf.name} has {size} frames, but must have {wanted}")
        return units * self.multiple

    def held(self, held: Any) -> list[Any]:
        """The leaves without a time axis, from a pytree like the input."""
        return [
            self._checked(leaf, value, None, ())
            for leaf, value in zip(self.plan.leaves, self.flat(held, partial=True), strict=True)
            if leaf.axis is None
        ]

    def tail(self, tail: Any, lead: tuple[int, ...]) -> tuple[list[Any], int]:
        """The leaves of a tail, where those with a time axis may all be None, and how many frames it has room for."""
        given = [None] * len(self.plan.leaves) if tail is None else self.flat(tail, partial=True)
        arrays = []
        for leaf, value in zip(self.plan.leaves, given, strict=True):
            if value is None and leaf.axis is None:
                raise InputError(f"{leaf.name} is held constant: flush needs it in its tail, the other leaves None")
            empty = None if value is not None else jnp.zeros((*lead, *leaf.frames(0)), leaf.dtype)
            arrays.append(self._checked(leaf, value if empty is None else empty, None, lead))
        return arrays, self.count_frames(arrays, len(lead))


def padded_to(array: Any, leaf: Leaf, frames: int, lead: int) -> Any:
    """A leaf's array with its time axis made as long as a number of frames."""
    assert leaf.axis is not None
    shape = list(array.shape)
    shape[leaf.axis + lead] = frames * leaf.times - shape[leaf.axis + lead]
    return jnp.concatenate([array, jnp.zeros(shape, array.dtype)], leaf.axis + lead)
