"""The skeleton that every recurrent layer shares: time, direction, lengths, stacking. The cells fill in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxrnn.cells.chunks import in_blocks, in_chunks
from jaxrnn.cells.products import product_type
from jaxrnn.cells.sequence import Carry, blanked, kept, sequence

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


class Weights(NamedTuple):
    """One direction's weights, in ONNX's layout; G is the cell's number of gates.

    input: ``[G * hidden, features]``; recurrent: ``[G * hidden, hidden]``; bias: ``[2 * G * hidden]``, input's then
    recurrent's; peephole: ``[3 * hidden]`` (LSTM only).
    """

    input: jax.Array
    recurrent: jax.Array
    bias: jax.Array | None = None
    peephole: jax.Array | None = None


class Cell(Protocol):
    """One recurrent cell: what it does in a step, free of time, direction and lengths; and the derivative of a step.

    `tangent` is linear in its last two arguments. It knows of a step what `linearized` gives as coefficients, and does
    not see the tangents of the weights: `from_weights` gives what they add to the projected frames, for all at once.
    """

    #: Gates whose weights are stacked along the first axis of `Weights.input`.
    gates: int
    #: Arrays in the carry; the first is the output.
    carries: int

    def prepare(self, weights: Weights, dtype: Any) -> tuple[Any, Any]:
        """The weights in the form that `project` reads, and in the form that `step` reads."""
        ...

    def project(self, prepared: Any, x: jax.Array) -> jax.Array:
        """The part of the gates that needs no carry, for all frames at once: ``[..., features] -> [..., G*hidden]``."""
        ...

    def parts(self, projected: jax.Array) -> Any:
        """Projected frames in the form that `step` reads: cut apart where a loop is faster over parts."""
        ...

    def step(self, recurrent: Any, carry: Carry, projected: Any) -> Carry:
        """One step: carry arrays ``[batch, hidden]`` and the `parts` of a projected frame ``[batch, G * hidden]``."""
        ...

    def linearized(self, recurrent: Any, carry: Carry, projected: Any) -> tuple[Carry, tuple[jax.Array, ...]]:
        """One step, with the coefficients of its derivative, arrays ``[batch, k * hidden]``."""
        ...

    def tangent(self, recurrent: Any, coefficients: tuple[jax.Array, ...], d_carry: Carry, d_projected: Any) -> Carry:
        """The tangent of the carry behind a step; that of the projected frame in `parts` too."""
        ...

    def seen(self, recurrent: Any, before: Carry, after: Carry) -> tuple[jax.Array, ...]:
        """What `from_weights` needs to see of the carries around a step, besides the hidden state before it."""
        ...

    def from_weights(
        self, d_recurrent: Any, seen: tuple[jax.Array, ...], coefficients: tuple[jax.Array, ...]
    ) -> jax.Array:
        """What tangents of the weights add to that of the projected frames, ``[time, batch, G * hidden]``.

        Args:
            d_recurrent: like the recurrent weights.
            seen: the hidden state before each step, then what `seen` gave, with time in front.
            coefficients: those of each step.
        """
        ...


def run_direction(
    cell: Cell,
    weights: Weights,
    x: jax.Array,
    initial: Carry,
    *,
    reverse: bool = False,
    lengths: jax.Array | None = None,
) -> tuple[jax.Array, Carry]:
    """One cell over a sequence in one direction.

    Args:
        cell: the cell.
        weights: its weights.
        x: ``[time, batch, features]``.
        initial: the carry before the first step, arrays ``[batch, hidden]``.
        reverse: begin with the last frame.
        lengths: ``[batch]`` integers, the frames that exist in each row; the others leave the carry alone and give
            zeros, in either direction.

    Returns:
        Outputs ``[time, batch, hidden]``, in the input's order, and the final carry. A sequence of one frame leaves no
        loop behind; of none, it gives the initial carry.
    """
    for_input, recurrent = cell.prepare(weights, x.dtype)
    exists = None
    if lengths is not None:
        exists = (jnp.arange(x.shape[0], dtype=lengths.dtype)[:, None] < lengths[None, :])[..., None]
    if isinstance(x.shape[0], int) and x.shape[0] == 1:
        new = cell.step(recurrent, initial, cell.parts(cell.project(for_input, x[0])))
        return blanked(exists, new[0][None]), kept(None if exists is None else exists[0], new, initial)

    def block(carry: Carry, frames: tuple[jax.Array, jax.Array | None]) -> tuple[Carry, jax.Array]:
        frame, here = frames
        return sequence(cell, reverse, product_type(), recurrent, carry, cell.project(for_input, frame), here)

    projected = cell.gates * initial[0].size * x.dtype.itemsize

    def run(carry: Carry, frames: tuple[jax.Array, jax.Array | None]) -> tuple[Carry, jax.Array]:
        return in_blocks(block, carry, frames, projected, reverse=reverse)

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
    """A layer of one or two directions.

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


def clipped(x: jax.Array, limit: float | None) -> jax.Array:
    """Clip to ``[-limit, limit]``, where a limit is given: ONNX's ``clip``, at the input of every activation."""
    return x if limit is None else jnp.clip(x, -limit, limit)
