"""Sequences in parts: chunks that the backward pass recomputes, and blocks that fit the processor's cache.

Source of the chunks: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jaxrnn._jax import varying
from jaxrnn.cells.products import by_platform, is_plain
from jaxrnn.errors import InputError, is_count

#: Frames in a chunk, or ``"sqrt"``; None to recompute nothing.
Remat = int | str | None
Run = Callable[[Any, Any], tuple[Any, Any]]

#: Bytes of projected frames to compute before the loop that reads them. They are then still in the cache: on the CPU, a
#: loop over tens of megabytes takes twice as long.
BLOCK = 1 << 21

#: What `recomputing` asks for. Part of the key of every cache of JAX, as the type of products is.
_chosen = jax.make_user_context(None)


@contextlib.contextmanager
def recomputing(remat: Remat) -> Iterator[None]:
    """Rematerialize the sequences traced inside: keep only the carries between chunks for the backward pass.

    Values do not change. The memory of the backward pass grows with the number of chunks plus the length of a chunk.
    ``remat`` is the number of frames in a chunk, ``"sqrt"`` for the square root of the number of frames, or None
    without chunks.
    """
    if remat is not None and remat != "sqrt" and not is_count(remat, 1):
        raise InputError(f"remat must be None, 'sqrt' or a number of frames from 1 up, not {remat!r}")
    with _chosen(remat):
        yield


def in_chunks(run: Run, carry: Any, frames: Any, *, reverse: bool = False) -> tuple[Any, Any]:
    """Run ``(carry, frames) -> (carry, outputs)`` over frames, in chunks if `recomputing` asks for chunks."""
    length = jax.tree.leaves(frames)[0].shape[0]
    size = _chunk_of(length)
    if size is None:
        return run(carry, frames)

    @jax.checkpoint
    def run_chunk(carry: Any, part: Any) -> tuple[Any, Any]:
        with recomputing(None):  # sequences inside a step are not recomputed a second time
            return run(carry, part)

    return _in_parts(run_chunk, carry, frames, length, size, reverse)


def in_blocks(run: Run, carry: Any, frames: Any, bytes_a_frame: int, *, reverse: bool = False) -> tuple[Any, Any]:
    """Run ``(carry, frames) -> (carry, outputs)`` over frames; long recurrences run in blocks on CPUs.

    ``bytes_a_frame`` is the number of bytes that ``run`` computes for each frame before its loop.
    """
    length = jax.tree.leaves(frames)[0].shape[0]
    size = _block_of(length, bytes_a_frame)
    if size is None:
        return run(carry, frames)
    # A nearby size that divides the length leaves no remainder to slice off and concatenate.
    size = next((divisor for divisor in range(size, size // 2, -1) if length % divisor == 0), size)

    def blocks(carry: Any, frames: Any) -> tuple[Any, Any]:
        return _in_parts(run, carry, frames, length, size, reverse)

    return by_platform(blocks, run, carry, frames)


def _in_parts(run: Run, carry: Any, frames: Any, length: int, size: int, reverse: bool) -> tuple[Any, Any]:
    """Loop over parts of equal size, then run the remainder."""
    covered = length // size * size
    # A reversed sequence begins at its end, so its remainder lies at the front.
    first = length - covered if reverse else 0
    body = jax.tree.map(lambda x: x[first : first + covered].reshape(-1, size, *x.shape[1:]), frames)
    carry, outputs = varying.scan(run, carry, body, reverse=reverse)
    outputs = jax.tree.map(lambda y: y.reshape(covered, *y.shape[2:]), outputs)
    if covered == length:
        return carry, outputs
    remainder = jax.tree.map(lambda x: x[:first] if reverse else x[covered:], frames)
    carry, last = run(carry, remainder)
    parts = (last, outputs) if reverse else (outputs, last)
    return carry, jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)


def is_in_parts(length: Any, bytes_a_frame: Any) -> bool:
    """Return True if `in_chunks` or `in_blocks` cuts a sequence."""
    return _chunk_of(length) is not None or _block_of(length, bytes_a_frame) is not None


def _block_of(length: Any, bytes_a_frame: Any) -> int | None:
    """Return the frames in a block; None for an uncut sequence, such as one of symbolic length or batch."""
    if is_plain() or not isinstance(length, int) or not isinstance(bytes_a_frame, int):
        return None
    size = max(1, BLOCK // max(bytes_a_frame, 1))
    return size if length > 2 * size else None


def _chunk_of(length: Any) -> int | None:
    """Return the frames in a chunk; None for an uncut sequence. Symbolic lengths are never cut."""
    remat = _chosen.value
    if remat is None or is_plain() or not isinstance(length, int):
        return None
    size = remat if isinstance(remat, int) else math.isqrt(length)
    return size if 0 < size < length else None
