"""The arguments of streaming functions, as arrays by their paths, held against what the function was traced for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.errors import InputError
from jaxrnn.steps.recordings import recording_specs
from jaxrnn.steps.specs import bind
from jaxrnn.steps.stepper import batch_note, check_valid
from jaxrnn.steps.stepspec import StepSpec
from jaxrnn.streaming.lengths import Lengths

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Arguments:
    """What the functions of a `Streamed` take; to be called where types are those of the trace.

    Attributes:
        spec: the facts, with the arrays by their paths.
        structure: the tree of the input.
        lengths: those that a recording may have.
    """

    spec: StepSpec
    structure: Any
    lengths: Lengths

    def existing(self, valid: Any, room: int) -> Any:
        """The number of frames of a tail that exist, ``int32`` of the trace's frames.

        Raises:
            InputError: it is known, and not a number of frames that the tail can have.
        """
        check_valid(valid, room, self.spec.multiple)
        frames = jnp.asarray(valid, jnp.int32)
        return frames if self.spec.multiple == 1 else frames // np.int32(self.spec.multiple)

    def leaves(self, x: Any) -> Arrays:
        """The leaves of an input by their paths, without those that are None or missing in a dict.

        Raises:
            InputError: it is not a pytree like the example.
        """
        names = [each.name for each in self.spec.inputs]
        if isinstance(x, dict):
            empty = jax.tree.unflatten(self.structure, [None] * len(names))
            x = {**empty, **x} if isinstance(empty, dict) else x
        try:
            values = self.structure.flatten_up_to(x)
        except ValueError as error:
            raise InputError(f"x must be a pytree like the example, with {', '.join(names)}: {error}") from error
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}

    def tree(self, arrays: Mapping[str, Any]) -> Any:
        """The tree of an input with these leaves, None for those that are missing."""
        return jax.tree.unflatten(self.structure, [arrays.get(each.name) for each in self.spec.inputs])

    def pulse(self, x: Any, lead: tuple[int, ...]) -> Arrays:
        """One pulse, after the batch of the state.

        Raises:
            InputError: the tree, a dtype or a shape does not fit.
        """
        specs = [each.batched(lead) for each in self.spec.inputs]
        pulses = "; with_pulse takes pulses of other sizes"
        return bind(specs, self.leaves(x), note=batch_note(lead), otherwise=pulses)

    def recording(self, arrays: Arrays, lead: tuple[int, ...] = ()) -> tuple[Arrays, int]:
        """The leaves of an input of any number of frames, and that number.

        Raises:
            InputError: a dtype or a shape does not fit, or the leaves have different numbers of frames.
        """
        bound = bind(recording_specs(self.spec, "frames", lead), arrays, note=batch_note(lead))
        return bound, self.spec.count_frames(bound, lead) or 0

    def whole(self, x: Any) -> tuple[Arrays, int]:
        """The leaves of a whole recording, and its number of frames.

        Raises:
            InputError: as in `recording`; or the constraints do not allow so many frames.
        """
        arrays, total = self.recording(self.leaves(x))
        self.lengths.check(self.spec.label, total, self.spec.multiple)
        return arrays, total

    def constants(self, constants: Any) -> list[Any]:
        """The leaves without a time axis, from a pytree like the input."""
        specs = [each for each in self.spec.inputs if each.time_axis is None]
        names = {each.name for each in specs}
        arrays = {name: value for name, value in self.leaves(constants).items() if name in names}
        return [*bind(specs, arrays).values()]

    def tail(self, tail: Any, lead: tuple[int, ...]) -> tuple[Arrays, int]:
        """The leaves of a tail, where those with a time axis may be missing, and how many frames it has room for."""
        arrays = {} if tail is None else self.leaves(tail)
        for each in self.spec.inputs:
            if each.name not in arrays and each.time_axis is None:
                raise InputError(f"{each.name} is constant in time: pass it in the tail, and None for other leaves")
            if each.name not in arrays:
                arrays[each.name] = np.zeros(each.with_frames(0).batched(lead).sizes, each.dtype)
        return self.recording(arrays, lead)
