"""A Loop of a known number of trips, run as a scan."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.cells import in_chunks
from jaxrnn.jaxprs.scanning import scan_cells, scan_recognised
from jaxrnn.onnx.evaluate import Subgraph
from jaxrnn.onnx.limits import current
from jaxrnn.onnx.time_loops.body import Growth
from jaxrnn.onnx.time_loops.positions import Positions
from jaxrnn.onnx.time_loops.reads import frames_of, read_of
from jaxrnn.onnx.time_loops.trips import Condition
from jaxrnn.onnx.values import Stacked, Value, all_traced, traced


class CarryTypeError(TypeError):
    """A carried value has another type after a trip than before it."""


class TimeLoop:
    """A Loop over time.

    Args:
        body: its body.
        carried: the carried values before the first trip.
    """

    def __init__(self, body: Subgraph, carried: Sequence[Value]):
        self.positions = Positions(body, carried)

    def trips(self, limit: Value, go_on: Value) -> Any:
        """The number of trips, an integer or a symbolic dimension; None where it depends on data.

        Args:
            limit: the most trips; None for no limit.
            go_on: whether there is a first trip.
        """
        return Condition(self.positions).trips(limit, go_on)

    def run(self, trips: Any) -> list[Value]:
        """The outputs of the Loop for more than one trip, by a scan.

        Raises:
            StaticValueError, CarryTypeError: as in `run_recognised`.
        """
        outputs = self._run(scan_cells, trips)
        assert outputs is not None
        return outputs

    def run_recognised(self, trips: Any) -> list[Value] | None:
        """As `run`, where the body holds recurrent cells, which run as sequences; otherwise None.

        Raises:
            StaticValueError: a shape or a position in the body depends on the trip.
            CarryTypeError: a carried value changes its type.
        """
        return self._run(scan_recognised, trips)

    def _run(self, scan: Callable[..., Any], trips: Any) -> list[Value] | None:
        body, block = self.positions.body, self.positions.body.block
        reads = [read for node in block.nodes if (read := read_of(self.positions, node, trips)) is not None]
        slots = [body.slots[place] for place in (*body.fixed, *body.counters, *body.carried)]
        fixed = [self.positions.carried[place] for place in body.fixed]
        grown = [growth.value for growth in body.growing.values()]
        results = [block.outputs[1 + place] for place in body.carried]
        part = block.part(
            [body.trip, body.condition, *slots, *(read.node.outputs[0] for read in reads)],
            [*results, *grown, *block.outputs[1 + len(body.slots) :]],
        )
        graph, count = self.positions.graph.with_block(part), len(results)

        def step(carry: tuple[Value, ...], frame: Any) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
            trip, read_frames = frame
            counted = [self._counted(place, trip) for place in body.counters]
            outputs = graph(trip, np.asarray(True), *fixed, *counted, *carry, *read_frames)
            return all_traced(outputs[:count]), all_traced(outputs[count:])

        carry = all_traced([self.positions.carried[place] for place in body.carried])
        read_frames = [frames_of(read, trips) for read in reads]
        self._check_carry(step, carry, read_frames)
        if isinstance(trips, int):
            current().check((trips,), np.int64)
        frames = (jnp.arange(trips, dtype=jnp.int64), read_frames)
        results = in_chunks(functools.partial(scan, step), carry, frames)
        return None if results is None else self._collected(trips, *results)

    def _counted(self, place: int, trip: Any) -> jax.Array:
        start, step = self.positions.carried[place], self.positions.body.counters[place].reshape(())
        counted = traced(start).astype(jnp.int64) + trip * traced(step).astype(jnp.int64)
        return counted.astype(traced(start).dtype)

    def _check_carry(self, step: Any, carry: Any, frames: Any) -> None:
        frame_shapes = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in frames]
        after, _ = jax.eval_shape(step, carry, (jax.ShapeDtypeStruct((), np.int64), frame_shapes))
        before, later = ([(x.shape, x.dtype) for x in jax.tree.leaves(values)] for values in (carry, after))
        if before != later:
            raise CarryTypeError

    def _collected(self, trips: Any, last: Sequence[Value], new_values: Sequence[Value]) -> list[Value]:
        body = self.positions.body
        results: list[Value] = list(self.positions.carried)
        for place, value in zip(body.carried, last, strict=True):
            results[place] = value
        for place, step in body.counters.items():
            results[place] = _boxed(
                self.positions.carried[place] + step.reshape(()).item() * trips, self.positions.carried[place]
            )
        for (place, growth), values in zip(body.growing.items(), new_values, strict=False):
            results[place] = _grown(growth, self.positions.carried[place], values)
        return [*results, *new_values[len(body.growing) :]]


def _boxed(item: Any, like: np.ndarray) -> np.ndarray:
    """The value of a counter in its own type and shape."""
    array = np.asarray(item, None if isinstance(np.ravel(item)[0], (int, np.integer)) else object)
    return array.reshape(like.shape) if array.dtype == object else array.astype(np.int64).astype(like.dtype, copy=False)


def _grown(growth: Growth, start: Value, values: Value) -> Value:
    """The final value of a carried value that grows, from what each trip appends."""
    if growth.front:
        values = lax.rev(values, (0,))
    if growth.axis is None:
        parts = [start.array] if isinstance(start, Stacked) else [jnp.stack(list(map(traced, start)))] if start else []
        return Stacked(jnp.concatenate([values, *parts] if growth.front else [*parts, values]) if parts else values)
    axis = growth.axis % (values.ndim - 1)
    merged = jnp.moveaxis(values, 0, axis)
    shape = list(merged.shape)
    shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    merged = merged.reshape(shape)
    if start.shape[axis] == 0:
        return merged
    return jnp.concatenate([merged, traced(start)] if growth.front else [traced(start), merged], axis)
