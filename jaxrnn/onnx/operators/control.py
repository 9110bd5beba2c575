"""If, Loop and Scan. Control flow that is known while tracing disappears; other control flow becomes JAX's."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.arguments import static_or_eager
from jaxrnn._jax import varying
from jaxrnn.cells import in_chunks, is_plain
from jaxrnn.errors import StaticValueError
from jaxrnn.jaxprs.primitives import visible_recurrences
from jaxrnn.jaxprs.scanning import scan_cells, scan_recognised
from jaxrnn.onnx.evaluate import Subgraph
from jaxrnn.onnx.operators.loops import loop, types_of, visible_body
from jaxrnn.onnx.operators.shaping import axes_of
from jaxrnn.onnx.registry import BODY, bounded, since
from jaxrnn.onnx.values import Value, all_traced, describe, is_known, traced


def if_(cond: Value, *, then_branch: Subgraph, else_branch: Subgraph) -> list[Value]:
    """If: on a known condition only one branch is evaluated, else both are traced."""
    if cond.size != 1:
        raise ValueError(f"the condition must be one boolean, not {describe(cond)}")
    if is_known(cond):
        return list((then_branch if bool(np.asarray(cond).reshape(())) else else_branch)())

    def branch(body: Subgraph):
        return lambda: all_traced(body())

    try:
        return list(varying.cond(traced(cond).reshape(()), branch(then_branch), branch(else_branch)))
    except TypeError as error:
        then, other = (jax.eval_shape(branch(body)) for body in (then_branch, else_branch))
        raise StaticValueError(
            f"the condition depends on data, so both branches must return equal types: then returns {types_of(then)}, "
            f"else returns {types_of(other)}. Bind the graph input that the condition comes from with "
            f"{static_or_eager()}"
        ) from error


def _directions(directions: Sequence[int] | None, count: int, name: str) -> tuple[bool, ...]:
    if directions is None:
        return (False,) * count
    if len(directions) != count or any(direction not in (0, 1) for direction in directions):
        raise ValueError(f"{name} must hold {count} entries, each 0 or 1, not {list(directions)}")
    return tuple(direction == 1 for direction in directions)


def _axes(axes: Sequence[int] | None, ranks: Sequence[int], name: str) -> tuple[int, ...]:
    if axes is None:
        return (0,) * len(ranks)
    if len(axes) != len(ranks):
        raise ValueError(f"{name} must hold {len(ranks)} entries, not {list(axes)}")
    return tuple(axes_of([axis], rank)[0] for axis, rank in zip(axes, ranks, strict=True))


def scan(
    *inputs: Value,
    body: Subgraph,
    num_scan_inputs: int,
    scan_input_axes: tuple[int, ...] | None = None,
    scan_input_directions: tuple[int, ...] | None = None,
    scan_output_axes: tuple[int, ...] | None = None,
    scan_output_directions: tuple[int, ...] | None = None,
) -> list[Value]:
    """Scan: a ``lax.scan``, or for one step the body itself."""
    count = len(inputs) - num_scan_inputs
    state, sequences = inputs[:count], [traced(value) for value in inputs[count:]]
    axes = _axes(scan_input_axes, [value.ndim for value in sequences], "scan_input_axes")
    backwards = _directions(scan_input_directions, num_scan_inputs, "scan_input_directions")
    lengths = [value.shape[axis] for value, axis in zip(sequences, axes, strict=True)]
    if any(length != lengths[0] for length in lengths):
        raise ValueError(f"the scanned inputs must have equal lengths, not {lengths}")
    scanned = body.output_count - count
    backwards_out = _directions(scan_output_directions, scanned, "scan_output_directions")
    frames = [
        jnp.flip(moved, 0) if back else moved
        for moved, back in zip(map(jnp.moveaxis, sequences, axes, (0,) * len(axes)), backwards, strict=True)
    ]

    def step(carry: tuple[Value, ...], frame: Sequence[Value]) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        outputs = body(*carry, *frame)
        return all_traced(outputs[:count]), all_traced(outputs[count:])

    with visible_recurrences(False):
        is_one = isinstance(lengths[0], int) and lengths[0] == 1
        found = scan_recognised(step, all_traced(state), frames) if is_one and is_plain() else None
        if found is not None:
            final, stacked = found
        elif is_one:
            outputs = body(*state, *(frame[0] for frame in frames))
            final, stacked = outputs[:count], [traced(value)[None] for value in outputs[count:]]
        else:
            final, stacked = in_chunks(functools.partial(scan_cells, step), all_traced(state), frames)
    axes_out = _axes(scan_output_axes, [value.ndim for value in stacked], "scan_output_axes")
    results = [
        jnp.moveaxis(jnp.flip(value, 0) if back else value, 0, axis)
        for value, back, axis in zip(stacked, backwards_out, axes_out, strict=True)
    ]
    return visible_body([*final, *results], state, body, lengths[0], forward=not any(backwards))


def scan_8(
    sequence_lens: Value = None,
    *inputs: Value,
    body: Subgraph,
    num_scan_inputs: int,
    directions: tuple[int, ...] | None = None,
) -> list[Value]:
    """Scan of opset 8: inputs are ``[batch, time, ...]``, and the rows may have different lengths."""
    count = len(inputs) - num_scan_inputs
    backwards = _directions(directions, num_scan_inputs, "directions")
    arrays = all_traced(inputs)
    batch, time = arrays[-1].shape[:2]
    rows = jnp.full((batch,), time, jnp.int64) if sequence_lens is None else traced(sequence_lens).astype(jnp.int64)

    def one_row(length: jax.Array, *row: jax.Array) -> tuple[jax.Array, ...]:
        steps = jnp.arange(time)
        turned = jnp.where(steps < length, length - 1 - steps, steps)
        frames = [value[turned] if back else value for value, back in zip(row[count:], backwards, strict=True)]

        def step(carry: tuple[Value, ...], frame: Any) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
            index, values = frame

            def run() -> tuple[tuple[Value, ...], tuple[Value, ...]]:
                outputs = all_traced(body(*carry, *values))
                return outputs[:count], outputs[count:]

            def skip() -> tuple[tuple[Value, ...], tuple[Value, ...]]:
                shapes = jax.eval_shape(run)[1]
                return carry, tuple(jnp.zeros(item.shape, item.dtype) for item in shapes)

            # Under vmap the body also runs for rows that have ended; cond excludes them from the derivative.
            return run() if sequence_lens is None else varying.cond(index < length, run, skip)

        final, stacked = varying.scan(step, row[:count], (steps, frames))
        return (*final, *stacked)

    with visible_recurrences(False):
        results = list(jax.vmap(one_row)(rows, *arrays))
    return visible_body(results, inputs[:count], body, time, forward=not any(backwards))


OPERATORS = {
    "If": bounded(if_, 1, 11, 13, 16, 19, 21, 23, 24, 25),
    "Loop": bounded(loop, 1, 11, 13, 16, 19, 21, 23, 24, 25, carries=BODY),
    "Scan": since(scan_8, 8) | bounded(scan, 9, 11, 16, 19, 21, 23, 24, 25, carries=BODY),
}
