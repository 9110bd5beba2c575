"""The step of a live stream: state and outputs in few arrays where JAX compiles it, as they are where it is ready."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from jaxrnn.layout import Layout
from jaxrnn.placing import placed

Arrays = Mapping[str, Any]
Step = Callable[[Any, Arrays], tuple[dict[str, Any], Any]]


class LiveStep(Protocol):
    """A step whose state has a form of its own."""

    def pack(self, state: Arrays) -> dict[str, Any]:
        """A state in that form."""
        ...

    def unpack(self, packed: Arrays) -> dict[str, Any]:
        """The state again."""
        ...

    def __call__(self, packed: Arrays, inputs: Arrays) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
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

    Handing over many small arrays takes longer than a small network computes.

    Args:
        step: what is to be compiled.
        state: a state of it.
    """

    def __init__(self, step: Step, state: Arrays):
        self._layout = Layout(state)
        self._place = placed if all(array.committed for array in state.values()) else jax.device_put

        def joined(vectors: dict[str, Any], inputs: Arrays) -> tuple[_Joined, dict[str, Any]]:
            outputs, new = step(self._layout.unpack(vectors), inputs)
            return _Joined.of(outputs), self._layout.pack(new)

        self._step = jax.jit(joined)

    def pack(self, state: Arrays) -> dict[str, Any]:
        """The vectors of a state."""
        # On the host: JAX would compile programs for it.
        vectors = self._layout.pack({name: np.asarray(array) for name, array in state.items()})
        return {name: self._place(vector) for name, vector in vectors.items()}

    def unpack(self, packed: Arrays) -> dict[str, Any]:
        """The state, on the host."""
        return self._layout.unpack({name: np.asarray(vector) for name, vector in packed.items()})

    def __call__(self, packed: Arrays, inputs: Arrays) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """One step; see `LiveStep`."""
        outputs, after = self._step(packed, inputs)
        return outputs.arrays(), after


@functools.partial(jax.tree_util.register_dataclass, data_fields=["vectors"], meta_fields=["places"])
@dataclass
class _Joined:
    """Outputs of a step as one vector for each element type.

    Attributes:
        vectors: by the name of the element type.
        places: name, vector, slice and shape of each output.
    """

    vectors: dict[str, Any]
    places: tuple[tuple[str, str, slice, tuple[int, ...]], ...]

    @classmethod
    def of(cls, outputs: Arrays) -> _Joined:
        """The outputs, joined."""
        layout = Layout(outputs)
        places = (
            (name, place.vector, slice(place.start, place.start + place.size), place.shape)
            for name, place in layout.places.items()
        )
        return cls(layout.pack(outputs), tuple(places))

    def arrays(self) -> dict[str, np.ndarray]:
        """The outputs, cut out again."""
        flat = {name: np.asarray(vector) for name, vector in self.vectors.items()}
        return {name: flat[vector][part].reshape(shape) for name, vector, part, shape in self.places}
