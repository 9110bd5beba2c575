"""A stepper with its parameters over frames of recordings, a batch of them at a time."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError
from jaxrnn.evaluation.systems import Piece, stepper_identity
from jaxrnn.jaxprs.packing import Packed
from jaxrnn.runtime.bound import Bound, packed
from jaxrnn.steps.recordings import advance
from jaxrnn.steps.specs import ArraySpec
from jaxrnn.steps.stepper import Stepper
from jaxrnn.steps.stepspec import OutputSpec, StepSpec


@dataclass(frozen=True, eq=False)
class Network:
    """What an `Offline` and a `Stage` share.

    Attributes:
        stepper: a model in steps, a streamed function, a compiled file or one's own `Stepper`.
        params: its parameters; None for the stepper's own.
    """

    stepper: Stepper
    params: Any = field(default=None, repr=False)

    @functools.cached_property
    def _bound(self) -> Bound:
        return Bound(self.stepper, self.params)

    @property
    def spec(self) -> StepSpec:
        """That of the stepper, for one stream."""
        return self._bound.spec

    def types(self) -> AbstractContextManager[Any]:
        """Inside, arrays keep the types of 64 bits that the stepper takes."""
        return exact_types() if any(each.is_wide for each in self.spec.inputs) else contextlib.nullcontext()

    @property
    def identity(self) -> dict[str, Any]:
        """The stepper with its parameters."""
        return stepper_identity(self.stepper, self._bound.params)

    def packed(self, dims: Mapping[str, int]) -> Any:
        """The parameters as `advance` takes them, with the work done that depends on nothing else."""
        with jax.ensure_compile_time_eval():  # the first call may come while something around is traced
            return packed(self.stepper, self._bound.params, dims)

    def start(self, batch: int) -> Any:
        """The state of so many streams before the first frame, with the batch in front."""
        return jax.tree.map(lambda array: jnp.broadcast_to(array, (batch, *array.shape)), self._bound.start())

    def fitted(self, each: ArraySpec, elements: int) -> ArraySpec:
        """An input of one step, with the size of a dimension that it leaves open, for frames of so many elements.

        Raises:
            InputError: no frame has so many.
        """
        spec = self.spec
        one = each.with_frames(each.sizes[each.time_axis] // spec.pulse) if each.time_axis is not None else each
        known = math.prod(size for size in one.shape or () if isinstance(size, int))
        if one.shape is None or len(one.symbols) > 1 or (elements % known if one.symbols else elements != known):
            raise InputError(f"{spec.label}: a frame of {elements} numbers does not fit {one}")
        return one.sized(dict.fromkeys(one.symbols, elements // known))

    def advance(
        self, params: Any, state: Any, frames: Mapping[str, jax.Array], counts: jax.Array, *, ending: bool
    ) -> tuple[dict[str, Piece], Any]:
        """Frames that follow on those before.

        Args:
            params: of `packed`.
            state: of `start` or the last call.
            frames: by input, ``[batch, time, ...]``; the numbers of a frame are in the order of the input's own.
            counts: ``int32[batch]``, how many of the frames are each stream's.
            ending: whether any stream ends among them.
        """
        stepper, size = self.stepper, next(iter(frames.values())).shape[1]
        if hasattr(stepper, "with_pulse") and not isinstance(params, Packed):
            stepper = stepper.with_pulse(size)  # pyright: ignore[reportAttributeAccessIssue]
        outputs = {each.name: each for each in self.spec.outputs}

        def one(state: Any, frames: Mapping[str, jax.Array], count: jax.Array) -> tuple[dict[str, Piece], Any]:
            inputs = {each.name: self._input(each, frames[each.name]) for each in self.spec.inputs}
            arrays, counts, after = advance(stepper, params, state, inputs, count, ending=ending)
            pieces = {name: Piece(_in_front(outputs[name], array), counts[name]) for name, array in arrays.items()}
            return pieces, after

        return jax.vmap(one)(state, dict(frames), counts)

    def _input(self, each: ArraySpec, frames: jax.Array) -> jax.Array:
        """Frames ``[time, ...]`` as an input of a recording; floats may round, but are no integers."""
        one = self.fitted(each, math.prod(frames.shape[1:]))
        assert each.dtype is not None, "it has a shape"
        kinds = (jnp.complexfloating, jnp.inexact)
        if any(jnp.issubdtype(frames.dtype, kind) and not jnp.issubdtype(each.dtype, kind) for kind in kinds):
            raise InputError(f"{self.spec.label}: {each.as_input} takes no {frames.dtype} of a recording")
        frames = frames.astype(each.dtype)
        axis = one.time_axis
        if axis is None:
            return frames.reshape(frames.shape[0], *one.sizes)
        rest = [size for place, size in enumerate(one.sizes) if place != axis]
        return jnp.moveaxis(frames.reshape(frames.shape[0] * one.sizes[axis], *rest), 0, axis)


def _in_front(output: OutputSpec, array: jax.Array) -> jax.Array:
    """An output of a recording as ``[time, ...]``, without the batch of one that files give their arrays."""
    moved = jnp.moveaxis(array, output.time_axis or 0, 0)
    return moved[:, 0] if moved.ndim > 1 and moved.shape[1] == 1 else moved
