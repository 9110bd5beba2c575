"""Whole recordings cut into pulses, and the outputs of pulses joined again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxrnn.streaming.plan import Leaf
from jaxrnn.streaming.values import Chunk


def cut(leaves: Sequence[Leaf], arrays: Sequence[Any], pulses: int, frames: int) -> tuple[list[Any], list[Any]]:
    """Arrays cut into pulses, which lie along a new first axis, and the rest of each.

    Arrays that are held constant are in the rest alone.
    """
    bodies, rests = [], []
    for leaf, array in zip(leaves, arrays, strict=True):
        if leaf.axis is None:
            bodies.append(None)
            rests.append(array)
            continue
        size = frames * leaf.times
        body, rest = jnp.split(array, [pulses * size], leaf.axis)
        shape = list(body.shape)
        shape[leaf.axis : leaf.axis + 1] = [pulses, size]
        bodies.append(jnp.moveaxis(body.reshape(shape), leaf.axis, 0))
        rests.append(rest)
    return bodies, rests


def join(kind: Any, pieces: Any, last: Any, total: int) -> Any:
    """All frames of one output: those of the pulses, along a first axis, then those of the flush; the delay removed.

    Args:
        kind: what the output is; one that is no stream is what the flush gave.
        pieces: None if there was no pulse.
        last: of the flush.
        total: frames of the recording, as they were traced.
    """
    if not isinstance(kind, Chunk):
        return last
    joined = last
    if pieces is not None:
        moved = jnp.moveaxis(pieces, 0, kind.axis)
        shape = list(moved.shape)
        shape[kind.axis : kind.axis + 2] = [shape[kind.axis] * shape[kind.axis + 1]]
        joined = jnp.concatenate([moved.reshape(shape), last], kind.axis)
    first = kind.delay or 0
    return lax.slice_in_dim(joined, first, first + int(kind.timeline.length(total)), axis=kind.axis)
