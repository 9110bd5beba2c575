"""The skeleton that every recurrent layer shares: time, direction, lengths, stacking. The cells fill in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

Carry = tuple[jax.Array, ...]

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
    """One recurrent cell: what it does in a step, free of time, direction and lengths."""

    #: Gates whose weights are stacked along the first axis of `Weights.input`.
    gates: int
    #: Arrays in the carry; the first is the output.
    carries: int

    def prepare(self, weights: Weights, dtype: Any) -> Any:
        """Whatever depends on the weights alone, in the form that `project` and `step` read."""
        ...

    def project(self, prepared: Any, x: jax.Array) -> jax.Array:
        """The part of the gates that needs no carry, for all frames at once: ``[..., features] -> [..., G*hidden]``."""
        ...

    def step(self, prepared: Any, carry: Carry, projected: jax.Array) -> Carry:
        """One step: carry arrays ``[batch, hidden]`` and the projected frame ``[batch, G * hidden]``."""
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
    prepared = cell.prepare(weights, x.dtype)
    projected = cell.project(prepared, x)

    def step(carry: Carry, frame: tuple[jax.Array, jax.Array | None]) -> tuple[Carry, jax.Array]:
        gates, exists = frame
        new = cell.step(prepared, carry, gates)
        if exists is None:
            return new, new[0]
        kept = tuple(jnp.where(exists, after, before) for after, before in zip(new, carry, strict=True))
        return kept, jnp.where(exists, new[0], jnp.zeros((), x.dtype))

    exists = None
    if lengths is not None:
        exists = (jnp.arange(x.shape[0], dtype=lengths.dtype)[:, None] < lengths[None, :])[..., None]
    if isinstance(x.shape[0], int) and x.shape[0] == 1:
        final, y = step(initial, (projected[0], None if exists is None else exists[0]))
        return y[None], final
    final, y = lax.scan(step, initial, (projected, exists), reverse=reverse)
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
