"""The step of a live stream: state and outputs in few arrays where JAX compiles it, as they are where it is ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from jaxrnn._jax.context import placed, unmapped
from jaxrnn.steps.stepspec import Layout

Arrays = Mapping[str, Any]
Vectors = tuple[Any, ...]
Step = Callable[[Any, Arrays], tuple[dict[str, Any], Any]]


class LiveStep(Protocol):
    """A step whose state has a form of its own, a pytree of arrays."""

    def pack(self, state: Arrays) -> Any:
        """A state in that form."""
        ...

    def unpack(self, packed: Any) -> dict[str, Any]:
        """The state again."""
        ...

    def __call__(self, packed: Any, inputs: Arrays) -> tuple[dict[str, np.ndarray], Any]:
        """The outputs on the host, read-only, and the state after the step."""
        ...


class ReadyStep:
    """Machine code, which takes and gives arrays by name.

    Args:
        step: the code.
        check: refuses inputs that the step does not take.
    """

    def __init__(self, step: Step, check: Callable[[Arrays], Any]):
        self._step, self._check = step, check

    def pack(self, state: Arrays) -> dict[str, Any]:
        """The state as it is."""
        return dict(state)

    def unpack(self, packed: Arrays) -> dict[str, Any]:
        """The state as it is."""
        return dict(packed)

    def __call__(self, packed: Arrays, inputs: Arrays) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """One step; see `LiveStep`."""
        try:
            outputs, after = self._step(packed, inputs)
        except (TypeError, ValueError):
            self._check(inputs)
            raise
        return {name: np.asarray(value) for name, value in outputs.items()}, after


class JoinedStep:
    """A step that is compiled with one vector for each element type of state and outputs.

    Handing over many small arrays takes longer than a small network computes, and plain tuples are handed over fastest.

    Args:
        step: what is to be compiled.
        state: a state of it.
    """

    def __init__(self, step: Step, state: Arrays):
        self._layout = Layout(state)
        self._place = placed if all(array.committed for array in state.values()) else jax.device_put

        #: Name, vector, slice and shape of each output, known once the step is traced.
        self._places: tuple[tuple[str, int, slice, tuple[int, ...]], ...] = ()

        def joined(vectors: Vectors, inputs: Arrays) -> tuple[Vectors, Vectors]:
            with unmapped():
                outputs, new = step(self._entries(vectors), inputs)
            layout = Layout(outputs)
            numbers = {name: number for number, name in enumerate(layout.vectors)}
            self._places = tuple(
                (name, numbers[place.vector], slice(place.start, place.start + place.size), place.shape)
                for name, place in layout.places.items()
            )
            return tuple(layout.pack(outputs).values()), tuple(self._layout.pack(new).values())

        self._step = jax.jit(joined)

    def pack(self, state: Arrays) -> Vectors:
        """The vectors of a state."""
        # On the host: JAX would compile programs for it.
        vectors = self._layout.pack({name: np.asarray(array) for name, array in state.items()})
        return tuple(map(self._place, vectors.values()))

    def unpack(self, packed: Vectors) -> dict[str, Any]:
        """The state, on the host."""
        return self._entries(tuple(map(np.asarray, packed)))

    def __call__(self, packed: Vectors, inputs: Arrays) -> tuple[dict[str, np.ndarray], Vectors]:
        """One step; see `LiveStep`."""
        vectors, after = self._step(packed, inputs)
        flat = [np.asarray(vector) for vector in vectors]
        return {name: flat[number][part].reshape(shape) for name, number, part, shape in self._places}, after

    def _entries(self, vectors: Vectors) -> dict[str, Any]:
        return self._layout.unpack(dict(zip(self._layout.vectors, vectors, strict=True)))
