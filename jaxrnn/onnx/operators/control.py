"""If, Loop and Scan. What is known while tracing leaves no control flow behind; the rest becomes JAX's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.errors import StaticValueError
from jaxrnn.onnx.operators.movement import axes_of
from jaxrnn.onnx.registry import since
from jaxrnn.onnx.values import Subgraph, Value, describe, is_known, traced


def _all_traced(values: Sequence[Value]) -> tuple[Value, ...]:
    """Every array as a JAX array, sequences included, so that a loop can carry them."""
    return tuple(jax.tree.map(traced, tuple(values)))


def _types(values: Sequence[Value]) -> str:
    return ", ".join(describe(value) for value in values) or "nothing"


def if_(cond: Value, *, then_branch: Subgraph, else_branch: Subgraph) -> list[Value]:
    """If: only the branch that is taken is evaluated where the condition is known, else both are traced."""
    if cond.size != 1:
        raise ValueError(f"the condition must be one boolean, not {describe(cond)}")
    if is_known(cond):
        return list((then_branch if bool(np.asarray(cond).reshape(())) else else_branch)())

    def branch(body: Subgraph):
        return lambda: _all_traced(body())

    try:
        return list(lax.cond(traced(cond).reshape(()), branch(then_branch), branch(else_branch)))
    except TypeError as error:
        then, other = (jax.eval_shape(branch(body)) for body in (then_branch, else_branch))
        raise TypeError(
            f"the condition depends on data, so both branches must agree: then gives {_types(then)}, "
            f"else gives {_types(other)}"
        ) from error


def loop(max_trip_count: Value = None, cond: Value = None, *carried: Value, body: Subgraph) -> list[Value]:
    """Loop.

    A known trip count whose condition never changes becomes a scan (or, for one trip, the body itself). Otherwise the
    trip count depends on data: a while loop where the loop gives no scan outputs. Scan outputs of a length that depends
    on data exist only outside ``jit``, where the loop runs in Python.
    """
    scanned = body.output_count - 1 - len(carried)
    limit = None if max_trip_count is None else max_trip_count.reshape(())
    go_on = np.asarray(True) if cond is None else cond.reshape(())
    if is_known(go_on) and not bool(go_on):
        limit = np.asarray(0)
    if limit is None and _never_ends(carried, body):
        raise ValueError("the loop never ends: it has neither a trip count nor a condition that changes")
    if is_known(go_on) and limit is not None and is_known(limit):
        trips = int(limit)
        if trips <= 0:
            return [*carried, *_no_frames(carried, body)]
        if trips == 1:
            _, *outputs = body(np.asarray(0, np.int64), np.asarray(True), *carried)
            return [*outputs[: len(carried)], *(traced(value)[None] for value in outputs[len(carried) :])]
        try:
            trace = _Trace(carried, body)
        except StaticValueError:
            # A shape or a position depends on the trip, which is known only where Python counts the trips.
            return _python_loop(limit, carried, body)
        if trace.never_ends and trace.carry_keeps_its_type:
            return _scanned_loop(trips, carried, body)
        if trace.never_ends:
            # The carry grows or changes its type: every trip is a computation of its own.
            return _python_loop(limit, carried, body)
    if scanned and all(is_known(leaf) for leaf in jax.tree.leaves((limit, go_on, carried))):
        return _python_loop(limit, carried, body)
    if scanned:
        raise StaticValueError(
            "the loop ends by a condition on data, so the length of its scan outputs is not known while tracing; call "
            "apply outside jit, grad and vmap"
        )
    return _while_loop(limit, go_on, carried, body)


class _Trace:
    """What one abstract trip through the body tells."""

    def __init__(self, carried: Sequence[Value], body: Subgraph):
        self.never_ends = False
        start = _all_traced(carried)

        def trip(state: tuple[Value, ...], index: Value) -> tuple[Value, ...]:
            # True goes in as a known value: if the body only hands it on, or never computes with data, it comes out.
            go_on, *outputs = body(index, np.asarray(True), *state)
            self.never_ends = is_known(go_on) and bool(np.asarray(go_on).reshape(()))
            return _all_traced(outputs)

        outputs = jax.eval_shape(trip, start, jax.ShapeDtypeStruct((), np.int64))
        self.scan_outputs = outputs[len(carried) :]
        self.carry_keeps_its_type = _signatures(outputs[: len(carried)]) == _signatures(start)


def _never_ends(carried: Sequence[Value], body: Subgraph) -> bool:
    try:
        return _Trace(carried, body).never_ends
    except StaticValueError:
        return False  # what is computed trip by trip may end by itself


def _no_frames(carried: Sequence[Value], body: Subgraph) -> list[Value]:
    """The scan outputs of a loop without a trip."""
    return [jnp.zeros((0, *item.shape), item.dtype) for item in _Trace(carried, body).scan_outputs]


def _scanned_loop(trips: int, carried: Sequence[Value], body: Subgraph) -> list[Value]:
    count = len(carried)

    def step(state: tuple[Value, ...], index: Value) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        _, *outputs = body(index, np.asarray(True), *state)
        return _all_traced(outputs[:count]), _all_traced(outputs[count:])

    state, outputs = lax.scan(step, _all_traced(carried), jnp.arange(trips, dtype=jnp.int64))
    return [*state, *outputs]


def _signatures(values: Any) -> Any:
    return jax.tree.map(lambda value: (tuple(value.shape), value.dtype), values)


def _python_loop(limit: Value, carried: Sequence[Value], body: Subgraph) -> list[Value]:
    """The loop, trip by trip, in Python: any shapes, any values, sequences too."""
    count = len(carried)
    state, collected, go_on = list(carried), [], True
    while go_on and (limit is None or len(collected) < int(limit)):
        condition, *outputs = body(np.asarray(len(collected), np.int64), np.asarray(True), *state)
        state = outputs[:count]
        collected.append(outputs[count:])
        go_on = bool(np.asarray(condition).reshape(()))
    if not collected:
        return [*carried, *_no_frames(carried, body)]
    return [*state, *(jnp.stack([traced(value) for value in column]) for column in zip(*collected, strict=True))]


def _while_loop(limit: Value, go_on: Value, carried: Sequence[Value], body: Subgraph) -> list[Value]:
    """A loop without scan outputs whose trip count depends on data."""

    def step(state: Any) -> Any:
        trip, condition, values = state
        condition, *outputs = body(trip, condition, *values)
        return trip + 1, traced(condition).reshape(()), _all_traced(outputs)

    def unfinished(state: Any) -> jax.Array:
        trip, condition, _ = state
        return condition if limit is None else condition & (trip < traced(limit).astype(jnp.int64))

    start = (jnp.zeros((), jnp.int64), traced(go_on), _all_traced(carried))
    _, _, values = lax.while_loop(unfinished, step, start)
    return list(values)


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
        raise ValueError(f"the scanned inputs must have one length, not {lengths}")
    scanned = body.output_count - count
    backwards_out = _directions(scan_output_directions, scanned, "scan_output_directions")
    frames = [
        jnp.flip(moved, 0) if back else moved
        for moved, back in zip(map(jnp.moveaxis, sequences, axes, (0,) * len(axes)), backwards, strict=True)
    ]

    def step(carry: tuple[Value, ...], frame: Sequence[Value]) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        outputs = body(*carry, *frame)
        return _all_traced(outputs[:count]), _all_traced(outputs[count:])

    if isinstance(lengths[0], int) and lengths[0] == 1:
        outputs = body(*state, *(frame[0] for frame in frames))
        final, stacked = outputs[:count], [traced(value)[None] for value in outputs[count:]]
    else:
        final, stacked = lax.scan(step, _all_traced(state), frames)
    axes_out = _axes(scan_output_axes, [value.ndim for value in stacked], "scan_output_axes")
    results = [
        jnp.moveaxis(jnp.flip(value, 0) if back else value, 0, axis)
        for value, back, axis in zip(stacked, backwards_out, axes_out, strict=True)
    ]
    return [*final, *results]


def scan_8(
    sequence_lens: Value = None,
    *inputs: Value,
    body: Subgraph,
    num_scan_inputs: int,
    directions: tuple[int, ...] | None = None,
) -> list[Value]:
    """Scan of opset 8: every input has a leading batch axis, time comes second, and each row may have its length."""
    count = len(inputs) - num_scan_inputs
    backwards = _directions(directions, num_scan_inputs, "directions")
    arrays = _all_traced(inputs)
    batch, time = arrays[-1].shape[:2]
    rows = jnp.full((batch,), time, jnp.int64) if sequence_lens is None else traced(sequence_lens).astype(jnp.int64)

    def one_row(length: jax.Array, *row: jax.Array) -> tuple[jax.Array, ...]:
        steps = jnp.arange(time)
        turned = jnp.where(steps < length, length - 1 - steps, steps)
        frames = [value[turned] if back else value for value, back in zip(row[count:], backwards, strict=True)]

        def step(carry: tuple[Value, ...], frame: Any) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
            index, values = frame
            outputs = _all_traced(body(*carry, *values))
            new = [jnp.where(index < length, after, before) for after, before in zip(outputs, carry, strict=False)]
            shown = [jnp.where(index < length, value, jnp.zeros((), value.dtype)) for value in outputs[count:]]
            return tuple(new), tuple(shown)

        final, stacked = lax.scan(step, row[:count], (steps, frames))
        return (*final, *stacked)

    return list(jax.vmap(one_row)(rows, *arrays))


OPERATORS = {
    "If": since(if_, 1, 11, 13, 16, 19, 21, 23, 24, 25),
    "Loop": since(loop, 1, 11, 13, 16, 19, 21, 23, 24, 25),
    "Scan": since(scan_8, 8) | since(scan, 9, 11, 16, 19, 21, 23, 24, 25),
}
