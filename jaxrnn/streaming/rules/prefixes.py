"""An associative scan over the frames of a chunk: in parallel, or on CPUs in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxrnn._jax import varying
from jaxrnn.cells.products import by_platform, is_plain

#: A step of a scan, ``(carry, (exists, frame)) -> (carry, outputs)``. The carry is whether the scan has started, and
#: the prefix.
Step = Callable[[list[Any], tuple[Any, Sequence[Any]]], tuple[list[Any], Any]]


def associative(step: Step, carry: list[Any], mask: Any, frames: list[Any], outputs: Sequence[int]) -> Any:
    """An associative scan over the frames of a chunk.

    On a CPU, a loop is the fast form: it combines each frame once, with a carry that stays in the cache. Written out in
    a graph, it has the fewest nodes, too.

    Args:
        step: of the scan.
        carry: before the chunk.
        mask: which frames exist, ``bool[frames]``; None if all do.
        frames: arrays ``[frames, ...]``.
        outputs: which part of the carry each output of a step is.

    Returns:
        The carry after the chunk, and outputs ``[frames, ...]``.
    """

    def in_turn(carry: list[Any], mask: Any, frames: list[Any]) -> Any:
        return varying.scan(step, carry, (mask, frames))

    def in_parallel(carry: list[Any], mask: Any, frames: list[Any]) -> Any:
        carries = carries_of(step, carry, mask, frames)
        return [values[-1] for values in carries], [carries[part] for part in outputs]

    if is_plain():
        return in_turn(carry, mask, frames)
    return by_platform(in_turn, in_parallel, carry, mask, frames)


def carries_of(step: Step, carry: list[Any], mask: Any, frames: list[Any]) -> list[Any]:
    """The carries of an associative scan after each frame of a chunk, ``[frames, ...]``, in parallel.

    The associative function is lifted to pairs of whether a value exists and the value; where only one exists, that one
    is the result. Lifted, it is associative too, and what stands in frames that do not exist reaches no result.
    """

    def combine(exists: Any, earlier: list[Any], later: list[Any]) -> list[Any]:
        return step([exists, *earlier], (None, later))[0][1:]

    def join(earlier: Any, later: Any) -> Any:
        (exists, first), (here, second) = earlier, later
        if here is None:
            return None, combine(jnp.array(True), first, second)
        both = combine(exists, first, second)
        return exists | here, [lax.select(here, *pair) for pair in zip(both, first, strict=True)]

    # The carry goes into the first frame.
    (started, *prefix), _ = step(carry, (None if mask is None else mask[0], [x[0] for x in frames]))
    exists = None if mask is None else _beginning_with(started, mask)
    values = [_beginning_with(*pair) for pair in zip(prefix, frames, strict=True)]
    exists, values = lax.associative_scan(jax.vmap(join), (exists, values))
    return [jnp.ones(frames[0].shape[0], bool) if exists is None else exists, *values]


def _beginning_with(first: Any, frames: Any) -> Any:
    return jnp.concatenate([jnp.asarray(first)[None], frames[1:]])
