"""The frames of a pool: held against its stepper, and put side by side for one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrnn._files.messages import describe
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError
from jaxrnn.steps.specs import ArraySpec, bind, taken

Frame = dict[str, np.ndarray]


class Frames:
    """One array for each input of a step, with a place for the frame of every stream.

    Args:
        specs: of the inputs; the first frame decides the lengths that they leave open.
        capacity: how many places there are.
    """

    def __init__(self, specs: Sequence[ArraySpec], capacity: int):
        self._specs, self._capacity = specs, capacity
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._buffers: dict[str, np.ndarray] = {}

    def put(self, slot: int, frame: Mapping[str, np.ndarray]) -> None:
        """Put a checked frame in its place."""
        for name, array in frame.items():
            self._buffers[name][slot] = array

    def arrays(self) -> dict[str, np.ndarray]:
        """All frames by name, with a leading axis for the places."""
        # A copy: on the CPU, JAX may read a NumPy array after the call has returned.
        return {name: buffer.copy() for name, buffer in self._buffers.items()}

    def checked(self, frame: Mapping[str, Any]) -> Frame:
        """A copy of a frame, as arrays of the declared types.

        Raises:
            InputError: it does not fit the stepper, or has another shape than the frames before.
        """
        if not self._shapes or not self._fits(frame):
            with exact_types():
                frame = {name: np.asarray(value) for name, value in bind(self._specs, frame, convert=taken).items()}
            shapes = {name: array.shape for name, array in frame.items()}
            if not self._shapes:
                self._fix_shapes(frame)
            elif shapes != self._shapes:
                name = next(name for name in shapes if shapes[name] != self._shapes[name])
                raise InputError(
                    f"input {name!r} got {describe(frame[name])}, but every frame of this pool has shape "
                    f"{list(self._shapes[name])}"
                )
        return {name: np.array(frame[name]) for name in self._shapes}

    def _fits(self, frame: Mapping[str, Any]) -> bool:
        return (
            isinstance(frame, Mapping)
            and frame.keys() == self._shapes.keys()
            and all(
                isinstance(array, np.ndarray)
                and array.shape == self._shapes[name]
                and array.dtype == self._buffers[name].dtype
                for name, array in frame.items()
            )
        )

    def _fix_shapes(self, frame: Mapping[str, np.ndarray]) -> None:
        """The first frame decides the lengths that the specs leave open."""
        self._shapes = {name: array.shape for name, array in frame.items()}
        self._buffers = {name: np.zeros((self._capacity, *array.shape), array.dtype) for name, array in frame.items()}
