"""Whole recordings cut into pulses, and the outputs of pulses joined again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxrnn.streaming.plan import Leaf
from jaxrnn.streaming.values import Chunk


def cut(leaves: Sequence[Leaf], arrays: Sequence[Any], pulses: int, frames: int) -> list[Any]:
    """Arrays cut into pulses, which lie along a new first axis; None for those that are held constant."""
    bodies = []
    for leaf, array in zip(leaves, arrays, strict=True):
        if leaf.axis is None:
            bodies.append(None)
            continue
        shape = list(array.shape)
        shape[leaf.axis : leaf.axis + 1] = [pulses, frames * leaf.times]
        bodies.append(jnp.moveaxis(array.reshape(shape), leaf.axis, 0))
    return bodies


def split(leaves: Sequence[Leaf], arrays: Sequence[Any], frames: int) -> tuple[list[Any], list[Any]]:
    """The first frames of arrays, and the rest; those that are held constant are in both."""
    pairs = [
        (array, array) if leaf.axis is None else jnp.split(array, [frames * leaf.times], leaf.axis)
        for leaf, array in zip(leaves, arrays, strict=True)
    ]
    return [first for first, _ in pairs], [rest for _, rest in pairs]


def merge(kind: Any, pieces: Any) -> Any:
    """One output of pulses, which lie along a first axis, as one array; of one that is no stream the last."""
    if pieces is None:
        return None
    if not isinstance(kind, Chunk):
        return pieces[-1]
    moved = jnp.moveaxis(pieces, 0, kind.axis)
    shape = list(moved.shape)
    shape[kind.axis : kind.axis + 2] = [shape[kind.axis] * shape[kind.axis + 1]]
    return moved.reshape(shape)


def join(kind: Any, body: Any, last: Any, total: int) -> Any:
    """All frames of one output: those of the pulses, then those of the flush; the delay removed.

    Args:
        kind: what the output is; one that is no stream is what the flush gave.
        body: None if there was no pulse.
        last: of the flush.
        total: frames of the recording, as they were traced.
    """
    if not isinstance(kind, Chunk):
        return last
    joined = last if body is None else jnp.concatenate([body, last], kind.axis)
    first = kind.delay or 0
    return lax.slice_in_dim(joined, first, first + int(kind.timeline.length(total)), axis=kind.axis)
