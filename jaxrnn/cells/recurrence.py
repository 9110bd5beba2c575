"""The skeleton of every recurrent layer: time, direction, sequence lengths and stacking. A cell adds one step."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxrnn.cells.cell import Carry, Cell, Weights
from jaxrnn.cells.chunks import in_blocks, in_chunks
from jaxrnn.cells.products import product_type
from jaxrnn.cells.sequence import masked_output, masked_update, sequence

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def run_direction(
    cell: Cell,
    weights: Weights,
    x: jax.Array,
    initial: Carry,
    *,
    reverse: bool = False,
    lengths: jax.Array | None = None,
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

    Returns:
        Outputs ``[time, batch, hidden]`` in the order of the input, and the final carry. One frame compiles to no loop;
        no frame returns the initial carry.
    """
    input_weights, recurrent = cell.prepare(weights, x.dtype)
    exists = None
    if lengths is not None:
        exists = (jnp.arange(x.shape[0], dtype=lengths.dtype)[:, None] < lengths[None, :])[..., None]
    if isinstance(x.shape[0], int) and x.shape[0] == 1:
        new = cell.step(recurrent, initial, cell.split_gates(cell.project(input_weights, x[0])))
        return masked_output(exists, new[0][None]), masked_update(None if exists is None else exists[0], new, initial)

    def block(carry: Carry, frames: tuple[jax.Array, jax.Array | None]) -> tuple[Carry, jax.Array]:
        frame, mask = frames
        return sequence(cell, reverse, product_type(), recurrent, carry, cell.project(input_weights, frame), mask)

    bytes_a_frame = cell.gates * initial[0].size * x.dtype.itemsize

    def run(carry: Carry, frames: tuple[jax.Array, jax.Array | None]) -> tuple[Carry, jax.Array]:
        return in_blocks(block, carry, frames, bytes_a_frame, reverse=reverse)

    final, y = in_chunks(run, initial, (x, exists), reverse=reverse)
    return y, final


def run(
    cell: Cell | Sequence[Cell],
    weights: Sequence[Weights],
    x: jax.Array,
    initial: Sequence[Carry],
    *,
    direction: str = "forward",
    lengths: jax.Array | None = None,
) -> tuple[jax.Array, Carry]:
    """Run a layer of one or two directions.

    Args:
        cell: the cell, or one for each direction.
        weights: one entry for each direction.
        x: ``[time, batch, features]``.
        initial: one carry for each direction.
        direction: ``"forward"``, ``"reverse"`` or ``"bidirectional"``.
        lengths: as in `run_direction`.

    Returns:
        Outputs ``[time, directions, batch, hidden]`` and the final carry, arrays ``[directions, batch, hidden]``.
    """
    if direction not in DIRECTIONS:
        raise ValueError(f"direction must be one of {', '.join(DIRECTIONS)}, not {direction!r}")
    backwards = DIRECTIONS[direction]
    cells = tuple(cell) if isinstance(cell, Sequence) else (cell,) * len(backwards)
    results = [
        run_direction(each, each_weights, x, each_initial, reverse=reverse, lengths=lengths)
        for each, each_weights, each_initial, reverse in zip(cells, weights, initial, backwards, strict=True)
    ]
    outputs = jnp.stack([y for y, _ in results], 1)
    final = tuple(jnp.stack(arrays) for arrays in zip(*(carry for _, carry in results), strict=True))
    return outputs, final
