"""Sequences in parts: chunks that are computed again in the backward pass, and blocks that stay in the cache.

Source of the first: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxrnn.errors import InputError

#: Frames in a chunk, or ``"sqrt"``; None to keep everything.
Remat = int | str | None
Run = Callable[[Any, Any], tuple[Any, Any]]

#: Bytes of what a loop reads that are made at once. They are still in the cache when they are read: on the CPU, a loop
#: over tens of megabytes takes twice as long.
BLOCK = 1 << 21

_chosen: ContextVar[Remat] = ContextVar("remat", default=None)


@contextlib.contextmanager
def recomputing(remat: Remat) -> Iterator[None]:
    """What is traced inside keeps, of every sequence over time, only the carries between chunks for its backward pass.

    Results are equal. The memory of the backward pass grows with the number of chunks and the length of one.

    Args:
        remat: frames in a chunk; ``"sqrt"`` for the square root of the number of frames; None to keep everything.

    Raises:
        InputError: it is neither.
    """
    if remat is not None and remat != "sqrt" and (isinstance(remat, bool) or not isinstance(remat, int) or remat < 1):
        raise InputError(f"remat must be None, 'sqrt' or a number of frames from 1 up, not {remat!r}")
    token = _chosen.set(remat)
    try:
        yield
    finally:
        _chosen.reset(token)


def in_chunks(run: Run, carry: Any, frames: Any, *, reverse: bool = False) -> tuple[Any, Any]:
    """A recurrence over frames, in one go or in chunks as `recomputing` asks.

    Args:
        run: ``(carry, frames) -> (carry, outputs)`` over any number of frames.
        carry: pytree before the first step.
        frames: pytree of arrays with time in front.
        reverse: the last frame comes first.

    Returns:
        The last carry, and the outputs with time in front.
    """
    length = jax.tree.leaves(frames)[0].shape[0]
    size = _chunk_of(length)
    if size is None:
        return run(carry, frames)

    @jax.checkpoint
    def again(carry: Any, part: Any) -> tuple[Any, Any]:
        with recomputing(None):  # once is enough: not the sequences inside a step again
            return run(carry, part)

    return _in_parts(again, carry, frames, length, size, reverse)


def in_blocks(run: Run, carry: Any, frames: Any, bytes_a_frame: int, *, reverse: bool = False) -> tuple[Any, Any]:
    """A recurrence over frames, in blocks where it is long.

    Args:
        run: ``(carry, frames) -> (carry, outputs)`` over any number of frames.
        carry: pytree before the first step.
        frames: pytree of arrays with time in front.
        bytes_a_frame: of what ``run`` makes of every frame before its loop.
        reverse: the last frame comes first.

    Returns:
        The last carry, and the outputs with time in front.
    """
    length = jax.tree.leaves(frames)[0].shape[0]
    if not isinstance(length, int) or not isinstance(bytes_a_frame, int):
        return run(carry, frames)
    size = max(1, BLOCK // max(bytes_a_frame, 1))
    if length <= 2 * size:
        return run(carry, frames)
    # A size that divides the length, where one is near, leaves no rest to cut off and put back.
    whole = next((near for near in range(size, size // 2, -1) if length % near == 0), size)
    return _in_parts(run, carry, frames, length, whole, reverse)


def _in_parts(run: Run, carry: Any, frames: Any, length: int, size: int, reverse: bool) -> tuple[Any, Any]:
    """A loop over parts of equal size, and the rest behind it."""
    whole = length // size * size
    # Of a sequence that runs backwards, the whole parts are at its end, where it begins.
    first = length - whole if reverse else 0
    body = jax.tree.map(lambda x: x[first : first + whole].reshape(-1, size, *x.shape[1:]), frames)
    carry, outputs = lax.scan(run, carry, body, reverse=reverse)
    outputs = jax.tree.map(lambda y: y.reshape(whole, *y.shape[2:]), outputs)
    if whole == length:
        return carry, outputs
    rest = jax.tree.map(lambda x: x[:first] if reverse else x[whole:], frames)
    carry, last = run(carry, rest)
    parts = (last, outputs) if reverse else (outputs, last)
    return carry, jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)


def _chunk_of(length: Any) -> int | None:
    """Frames in a chunk; None where the sequence is to run in one go, as one of a symbolic length always does."""
    remat = _chosen.get()
    if remat is None or not isinstance(length, int):
        return None
    size = remat if isinstance(remat, int) else math.isqrt(length)
    return size if 0 < size < length else None
