"""DynamicQuantizeLSTM: an LSTM with weights of 8 bits, whose products are of integers.

All frames of the input are quantised over their common range, and the hidden state in every step over the range of the
batch. Gates, cell state and outputs are float32.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrnn._jax import varying
from jaxrnn.cells import LSTM
from jaxrnn.cells.recurrence import DIRECTIONS
from jaxrnn.cells.sequence import masked_output, masked_update
from jaxrnn.onnx.operators.quantization import dynamic_quantize_linear, wide
from jaxrnn.onnx.operators.recurrent import checked_lengths, make_cells, visible_layer
from jaxrnn.onnx.registry import Carries, since
from jaxrnn.onnx.values import Value, traced


class RuntimeLSTM(LSTM):
    """An LSTM as ONNX Runtime computes it: ``clip`` bounds the inputs of the gates, but not the cell state."""

    def _output(self, c: jax.Array) -> jax.Array:
        return self.activations[2](c)


class QuantizedMatrix:
    """One direction's quantised weights, ``[rows, 4 * hidden]``, with a scale for all of them or for each column."""

    def __init__(self, steps: Value, scale: Value, zero_point: Value):
        self.scale = traced(scale)
        self.steps = wide(steps)
        if zero_point is not None:
            self.steps = self.steps - wide(zero_point)

    def times(self, x: jax.Array) -> jax.Array:
        """``x @ self``, of an x that is quantised over its whole range: ``[..., rows] -> [..., 4 * hidden]``."""
        quantized, scale, zero_point = dynamic_quantize_linear(x)
        product = jnp.matmul(wide(quantized) - wide(zero_point), self.steps)
        return product.astype(x.dtype) * (scale * self.scale)


def _matrices(
    steps: Value, scale: Value, zero_point: Value, rows: Any, hidden: int, name: str
) -> list[QuantizedMatrix]:
    """One matrix for each direction."""
    shape = tuple(steps.shape)
    if len(shape) != 3 or shape[1:] != (rows, 4 * hidden):
        raise ValueError(f"{name} has shape {shape}, but (directions, {rows}, {4 * hidden}) is expected")
    for what, value in (("scale", scale), ("zero point", zero_point)):
        if value is not None and tuple(value.shape) not in ((shape[0],), (shape[0], 4 * hidden)):
            raise ValueError(f"the {what} of {name} has shape {tuple(value.shape)}; one for each direction is expected")
    zeros = [None] * shape[0] if zero_point is None else list(traced(zero_point))
    return [QuantizedMatrix(traced(steps)[d], traced(scale)[d], zeros[d]) for d in range(shape[0])]


def _run(
    cell: LSTM,
    matrix: QuantizedMatrix,
    peephole: list[jax.Array] | None,
    projected: jax.Array,
    initial: tuple[jax.Array, jax.Array],
    lengths: jax.Array | None,
    reverse: bool,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """One direction: outputs ``[time, batch, hidden]`` and the last carry."""
    # The product with the hidden state is computed here, so the cell gets a hidden state of no units.
    nothing = jnp.zeros((0, projected.shape[-1]), projected.dtype)

    def next_carry(carry: Any, h: jax.Array, gates: jax.Array) -> tuple[jax.Array, ...]:
        return cell.step((nothing, None, peephole), (h[:, :0], carry[1]), gates + matrix.times(h))

    if lengths is None:

        def step(carry: Any, gates: jax.Array) -> tuple[Any, jax.Array]:
            new = next_carry(carry, carry[0], gates)
            return new, new[0]

        final, y = varying.scan(step, initial, projected, reverse=reverse)
        return y, final

    def step_where(state: Any, frame: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        # The range of a step is that of the previous outputs: a sequence that has ended adds zeros, not its last state.
        carry, before = state
        gates, here = frame
        new = next_carry(carry, before, gates)
        y = masked_output(here, new[0])
        return (masked_update(here, new, carry), y), y

    frames = jnp.arange(projected.shape[0], dtype=lengths.dtype)[:, None]
    exists = frames < lengths[None, :]
    # All sequences begin in the first step, also those that are read from their ends.
    order = jnp.where(exists & reverse, lengths[None, :] - 1 - frames, frames)[..., None]
    turned = jnp.take_along_axis(projected, order, 0)
    (final, _), y = varying.scan(step_where, (initial, initial[0]), (turned, exists[..., None]))
    return jnp.take_along_axis(y, order, 0), final


def dynamic_quantize_lstm(
    X: Value,
    W: Value,
    R: Value,
    B: Value = None,
    sequence_lens: Value = None,
    initial_h: Value = None,
    initial_c: Value = None,
    P: Value = None,
    W_scale: Value = None,
    W_zero_point: Value = None,
    R_scale: Value = None,
    R_zero_point: Value = None,
    *,
    activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None,
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    output_count: int,
) -> list[Value]:
    """DynamicQuantizeLSTM: Y, Y_h, Y_c as of LSTM, from matrices that are transposed to those of LSTM."""
    if W_scale is None or R_scale is None:
        raise ValueError("the scales of W and R must be given")
    make: Any = lambda functions, clip: RuntimeLSTM(functions, clip, bool(input_forget))  # noqa: E731
    default = ("Sigmoid", "Tanh", "Tanh")
    cells = make_cells(make, default, clip, direction, activations, activation_alpha, activation_beta)
    x = traced(X)
    time, batch, features = x.shape
    if len(R.shape) != 3:
        raise ValueError(f"R must have rank 3, but its shape is {tuple(R.shape)}")
    hidden: Any = R.shape[1]
    if R.shape[0] != len(cells) or W.shape[0] != len(cells) or hidden_size not in (None, hidden):
        raise ValueError(f"W {W.shape} and R {R.shape} do not fit {len(cells)} direction(s) and size {hidden_size}")
    for_input = _matrices(W, W_scale, W_zero_point, features, hidden, "W")
    recurrent = _matrices(R, R_scale, R_zero_point, hidden, hidden, "R")
    lengths = checked_lengths(sequence_lens, time, batch)
    if lengths is not None:
        # Frames after the longest sequence do not count for the range.
        some = jnp.arange(time, dtype=lengths.dtype) < jnp.max(lengths, initial=0)
        x = jnp.where(some[:, None, None], x, jnp.zeros((), x.dtype))
    zeros = jnp.zeros((len(cells), batch, hidden), x.dtype)
    starts = [zeros if value is None else traced(value) for value in (initial_h, initial_c)]
    results = []
    for d, (cell, reverse) in enumerate(zip(cells, DIRECTIONS[direction], strict=True)):
        projected = for_input[d].times(x)
        if B is not None:
            bias = traced(B)[d]
            projected = projected + (bias[: 4 * hidden] + bias[4 * hidden :])
        peephole = None if P is None else jnp.split(traced(P)[d], 3)
        assert isinstance(cell, LSTM)
        results.append(_run(cell, recurrent[d], peephole, projected, (starts[0][d], starts[1][d]), lengths, reverse))
    y = jnp.stack([outputs for outputs, _ in results], 1)
    final = [jnp.stack(arrays) for arrays in zip(*(carry for _, carry in results), strict=True)]
    results = visible_layer([y, *final], (initial_h, initial_c), direction, all_exist=sequence_lens is None)
    return results[:output_count]


_CARRIES = Carries({"h": (5, 1), "c": (6, 2)}, by_function=True, weights=(1, 2, 3, 7), features=(1, -2), hidden=(2, -2))

OPERATORS = {"com.microsoft::DynamicQuantizeLSTM": since(dynamic_quantize_lstm, 1, carries=_CARRIES)}
