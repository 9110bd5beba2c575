"""The skeleton of every recurrent layer: time, direction, sequence lengths and stacking. A cell adds one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxrnn.cells.chunks import in_blocks, in_chunks
from jaxrnn.cells.products import product, product_type
from jaxrnn.cells.sequence import Carry, masked_output, masked_update, sequence

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


class Weights(NamedTuple):
    """The weights of one direction in ONNX's layout; G is the number of gates of the cell.

    Attributes:
        input: ``[G * hidden, features]``.
        recurrent: ``[G * hidden, hidden]``.
        bias: ``[2 * G * hidden]``, the input's, then the recurrent one.
        peephole: ``[3 * hidden]``; LSTM only.
    """

    input: jax.Array
    recurrent: jax.Array
    bias: jax.Array | None = None
    peephole: jax.Array | None = None


class Cell(Protocol):
    """One recurrent cell: a step and its derivative. Time, direction and lengths are the skeleton's.

    The derivative has two parts. `tangent` is linear in the tangents of the carry and of the projected frame, with the
    coefficients that `linearize` computes. `weight_tangents` adds what the tangents of the weights contribute, as one
    product for all frames.
    """

    #: Gates whose weights are stacked along the first axis of `Weights.input`.
    gates: ClassVar[int]
    #: Arrays in the carry; the first one is the output.
    carries: ClassVar[int]

    def prepare(self, weights: Weights, dtype: Any) -> tuple[Any, Any]:
        """The weights as `project` takes them, a matrix and a bias or None, and as `step` takes them."""
        ...

    def project(self, prepared: tuple[jax.Array, jax.Array | None], x: jax.Array) -> jax.Array:
        """The part of the gates that needs no carry, for all frames: ``[..., features] -> [..., G * hidden]``."""
        w, bias = prepared
        projected = product(x, w)
        return projected if bias is None else projected + bias

    def split_gates(self, projected: jax.Array) -> Any:
        """Projected frames as `step` takes them: one array, or several where a loop over them is faster."""
        return projected

    def step(self, recurrent: Any, carry: Carry, projected: Any) -> Carry:
        """One step, from carry arrays ``[batch, hidden]`` and one projected frame as `split_gates` returns it."""
        ...

    def linearize(self, recurrent: Any, carry: Carry, projected: Any) -> tuple[Carry, tuple[jax.Array, ...]]:
        """One step, and the coefficients of its derivative, arrays ``[batch, k * hidden]``."""
        ...

    def tangent(self, recurrent: Any, coefficients: tuple[jax.Array, ...], d_carry: Carry, d_projected: Any) -> Carry:
        """The tangent of the carry after a step; ``d_projected`` is split like the projected frame."""
        ...

    def residuals(self, recurrent: Any, before: Carry, after: Carry) -> tuple[jax.Array, ...]:
        """The parts of the carries around a step that `weight_tangents` needs besides the hidden state before it."""
        return ()

    def weight_tangents(
        self, d_recurrent: Any, residuals: tuple[jax.Array, ...], coefficients: tuple[jax.Array, ...]
    ) -> jax.Array:
        """What the tangents of the weights add to those of the projected frames, ``[time, batch, G * hidden]``.

        Args:
            d_recurrent: tangents with the structure of the recurrent weights.
            residuals: the hidden state before each step, then the `residuals`, with a leading time axis.
            coefficients: the coefficients of each step, with a leading time axis.
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


def sum_biases(bias: jax.Array | None) -> jax.Array | None:
    """ONNX's two biases, the input's and the recurrent one, as their sum ``[G * hidden]``."""
    return None if bias is None else bias[: bias.shape[0] // 2] + bias[bias.shape[0] // 2 :]


def clip_input(x: jax.Array, limit: float | None) -> jax.Array:
    """Clip the input of an activation to ``[-limit, limit]``, as ONNX's attribute ``clip`` asks; None clips nothing."""
    return x if limit is None else jnp.clip(x, -limit, limit)
