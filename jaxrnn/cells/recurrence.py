"""The skeleton of every recurrent layer: time, direction, sequence lengths and stacking. A cell adds one step."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrnn.cells.cell import Carry, Cell, Weights
from jaxrnn.cells.chunks import in_blocks, in_chunks, is_in_parts
from jaxrnn.cells.platforms import is_plain
from jaxrnn.cells.products import product_type
from jaxrnn.cells.sequence import masked_output, masked_update, sequence

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}

#: The two directions of a layer over one row run in one loop where the recurrent weights of each take up to so many
#: bytes: such a loop spends its time on what surrounds the products. With larger weights, two loops are faster on CPUs.
SMALL = 1 << 17


def run_direction(
    cell: Cell,
    weights: Weights,
    x: jax.Array,
    initial: Carry,
    *,
    reverse: bool = False,
    lengths: jax.Array | None = None,
    exists: jax.Array | None = None,
) -> tuple[jax.Array, Carry]:
    """Run one cell over a sequence in one direction.

    Args:
        cell: the cell.
        weights: its weights.
        x: ``[time, batch, features]``.
        initial: the carry before the first step, arrays ``[batch, hidden]``.
        reverse: begin with the last frame.
        lengths: ``[batch]`` integers, the number of frames that exist in each row. The others leave the carry unchanged
            and output zeros, in either direction.
        exists: ``bool[time, batch, 1]``, which frames exist, in place of the lengths.

    Returns:
        Outputs ``[time, batch, hidden]`` in the order of the input, and the final carry. One frame compiles to no loop;
        no frame returns the initial carry.
    """
    input_weights, recurrent = cell.prepare(weights, x.dtype)
    exists = exists_of(x, lengths) if exists is None else exists
    if isinstance(x.shape[0], int) and x.shape[0] == 1:
        new = cell.step(recurrent, initial, cell.split_gates(cell.project(input_weights, x[0])))
        return masked_output(exists, new[0][None]), masked_update(None if exists is None else exists[0], new, initial)

    def block(carry: Carry, frames: tuple[jax.Array, jax.Array | None]) -> tuple[Carry, jax.Array]:
        frame, mask = frames
        return sequence(cell, reverse, product_type(), recurrent, carry, cell.project(input_weights, frame), mask)

    def run(carry: Carry, frames: tuple[jax.Array, jax.Array | None]) -> tuple[Carry, jax.Array]:
        return in_blocks(block, carry, frames, _bytes_a_frame(cell, initial), reverse=reverse)

    final, y = in_chunks(run, initial, (x, exists), reverse=reverse)
    return y, final


def exists_of(x: jax.Array, lengths: jax.Array | None) -> jax.Array | None:
    """Which frames of each row exist, ``bool[time, batch, 1]``; None if all do."""
    if lengths is None:
        return None
    return (jnp.arange(x.shape[0], dtype=lengths.dtype)[:, None] < lengths[None, :])[..., None]


def _bytes_a_frame(cell: Cell, initial: Carry) -> Any:
    """The bytes of one projected frame."""
    return cell.gates * initial[0].size * initial[0].dtype.itemsize


def _is_one_loop(cells: Sequence[Cell], weights: Sequence[Weights], x: jax.Array, initial: Sequence[Carry]) -> bool:
    """Whether the two directions of a layer run in one loop.

    The gradient of several rows is faster in two. A symbolic number of rows is that of the frames in a pulse: few.
    """
    frames, rows = x.shape[:2]
    return (
        len(cells) == 2
        and not is_plain()
        and cells[0] == cells[1]
        and isinstance(frames, int)
        and frames > 1
        and (rows == 1 or not isinstance(rows, int))
        and weights[0].recurrent.nbytes <= SMALL
        and not is_in_parts(frames, _bytes_a_frame(cells[0], initial[0]))
    )


def _run_both(
    cell: Cell, weights: Sequence[Weights], x: jax.Array, initial: Sequence[Carry], exists: jax.Array | None
) -> tuple[jax.Array, Carry]:
    """As `run` of two directions, in one loop over a batch of two: of the second, all frames are in reverse order."""

    def both(array: jax.Array) -> jax.Array:
        return jnp.stack([array, jnp.flip(array, 0)], 1)

    prepared = [cell.prepare(each, x.dtype) for each in weights]
    inputs, recurrent = jax.tree.map(lambda *pair: jnp.stack(pair), *prepared)
    start = jax.tree.map(lambda *pair: jnp.stack(pair), *initial)
    projected = jax.vmap(cell.project, (0, 1), 1)(inputs, both(x))
    one = functools.partial(sequence, cell, False, product_type())
    mask = None if exists is None else both(exists)
    final, y = jax.vmap(one, (0, 0, 1, 1), (0, 1))(recurrent, start, projected, mask)
    return jnp.stack([y[:, 0], jnp.flip(y[:, 1], 0)], 1), final


def run(
    cell: Cell | Sequence[Cell],
    weights: Sequence[Weights],
    x: jax.Array,
    initial: Sequence[Carry],
    *,
    direction: str = "forward",
    lengths: jax.Array | None = None,
    exists: jax.Array | None = None,
) -> tuple[jax.Array, Carry]:
    """Run a layer of one or two directions.

    Args:
        cell: the cell, or one for each direction.
        weights: one entry for each direction.
        x: ``[time, batch, features]``.
        initial: one carry for each direction.
        direction: ``"forward"``, ``"reverse"`` or ``"bidirectional"``.
        lengths, exists: as in `run_direction`.

    Returns:
        Outputs ``[time, directions, batch, hidden]`` and the final carry, arrays ``[directions, batch, hidden]``.
    """
    if direction not in DIRECTIONS:
        raise ValueError(f"direction must be one of {', '.join(DIRECTIONS)}, not {direction!r}")
    backwards = DIRECTIONS[direction]
    cells = tuple(cell) if isinstance(cell, Sequence) else (cell,) * len(backwards)
    exists = exists_of(x, lengths) if exists is None else exists
    if _is_one_loop(cells, weights, x, initial):
        return _run_both(cells[0], weights, x, initial, exists)
    results = [
        run_direction(each, each_weights, x, each_initial, reverse=reverse, exists=exists)
        for each, each_weights, each_initial, reverse in zip(cells, weights, initial, backwards, strict=True)
    ]
    outputs = jnp.stack([y for y, _ in results], 1)
    final = tuple(jnp.stack(arrays) for arrays in zip(*(carry for _, carry in results), strict=True))
    return outputs, final
