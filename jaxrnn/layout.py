"""The state as few arrays: one vector for each element type, with every entry at its place.

A step that takes and gives many small arrays spends most of its time on handing them over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

State = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where an entry of the state lies: in which vector, from where on, and its shape."""

    vector: str
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        """Elements of the entry."""
        return math.prod(self.shape)


class Layout:
    """The places of all entries of a state.

    Args:
        entries: arrays or shapes, by name.
        joined: whether entries lie in vectors; otherwise the state is the entries as they are.

    Attributes:
        places: by the name of the entry.
        vectors: the shape of each vector, by the name of its element type; of each entry by its name, if not joined.
    """

    def __init__(self, entries: Mapping[str, Any], *, joined: bool = True):
        sizes: dict[str, int] = {}
        self.places: dict[str, Place] = {}
        self.joined = joined
        for name, entry in entries.items():
            dtype = np.dtype(entry.dtype)
            vector = dtype.name if joined else name
            place = Place(vector, sizes.get(vector, 0), tuple(entry.shape), dtype)
            self.places[name] = place
            sizes[vector] = place.start + place.size
        if not joined:
            self.vectors = {name: jax.ShapeDtypeStruct(place.shape, place.dtype) for name, place in self.places.items()}
            return
        dtypes = {place.vector: place.dtype for place in self.places.values()}
        self.vectors = {name: jax.ShapeDtypeStruct((size,), dtypes[name]) for name, size in sizes.items()}

    def pack(self, entries: Mapping[str, Any]) -> State:
        """The vectors that hold the entries; those of NumPy arrays are NumPy arrays."""
        if not self.joined:
            return {name: entries[name] for name in self.places}
        parts: dict[str, list[Any]] = {name: [] for name in self.vectors}
        for name, place in self.places.items():
            parts[place.vector].append(entries[name].reshape(-1))
        known = all(isinstance(array, np.ndarray) for arrays in parts.values() for array in arrays)
        return {name: (np if known else jnp).concatenate(arrays) for name, arrays in parts.items()}

    def unpack(self, state: State) -> dict[str, Any]:
        """The entries, by name, after the batch that the vectors have in front."""
        if not self.joined:
            return dict(state)
        entries = {}
        for name, place in self.places.items():
            vector = state[place.vector]
            part = vector[..., place.start : place.start + place.size]
            entries[name] = part.reshape((*vector.shape[:-1], *place.shape))
        return entries
