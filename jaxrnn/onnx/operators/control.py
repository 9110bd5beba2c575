"""If, Loop and Scan. Control flow that is known while tracing is resolved; other control flow becomes JAX's."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxrnn._jax import varying
from jaxrnn.cells.forms import in_chunks, is_plain
from jaxrnn.errors import NodeError, StaticValueError
from jaxrnn.jaxprs.own import Carried, are_visible, visible, visible_recurrences
from jaxrnn.jaxprs.scanning import scan_cells, scan_recognised
from jaxrnn.onnx.evaluate import Subgraph, copied_from, demand
from jaxrnn.onnx.limits import current
from jaxrnn.onnx.operators.shaping import axes_of
from jaxrnn.onnx.registry import BODY, bounded, since
from jaxrnn.onnx.time_loops import CarryTypeError, TimeLoop
from jaxrnn.onnx.values import (
    STATIC_OR_EAGER,
    Value,
    all_traced,
    describe,
    is_known,
    is_sequence,
    is_static,
    is_symbolic,
    traced,
)


def types_of(values: Sequence[Value]) -> str:
    """Format dtypes and shapes for a message."""
    return ", ".join(describe(value) for value in values) or "nothing"


def loop_with(label: str, bound: int | None) -> Callable[..., list[Value]]:
    """Return Loop with a label for errors and a bound on trips that depend on data.

    A loop with a known number of trips becomes a scan; a loop with a single trip becomes its body. If the number of
    trips depends on data, a loop without scan outputs becomes a while loop, or with a bound a scan with masked trips
    after the end, which supports reverse mode. Scan outputs of a length that depends on data exist only outside of
    ``jit``, where the loop runs in Python.
    """

    def loop(max_trip_count: Value = None, cond: Value = None, *carried: Value, body: Subgraph) -> list[Value]:
        return _Loop(label, bound, max_trip_count, cond, carried, body).run()

    return loop


#: The trip, the condition, and the carried values.
_State = tuple[jax.Array, jax.Array, tuple[Value, ...]]


class _Loop:
    """A Loop node applied to values."""

    def __init__(
        self, label: str, bound: int | None, limit: Value, cond: Value, carried: Sequence[Value], body: Subgraph
    ):
        self.label, self.bound = label, bound
        self.limit = None if limit is None else limit.reshape(())
        self.go_on = np.asarray(True) if cond is None else cond.reshape(())
        self.carried, self.body = carried, body
        self.has_scan_outputs = body.output_count > 1 + len(carried)

    def run(self) -> list[Value]:
        """Return the carried values and the scan outputs."""
        walk = TimeLoop(self.body, self.carried)
        trips = walk.positions.trips(self.limit, self.go_on)
        with visible_recurrences(False):
            results = self._run(walk, trips)
        if not are_visible():
            return results
        with visible_recurrences(False):
            forward = trips is None or not walk.reads_backwards(trips)
        chosen = walk.positions.body.carried
        return visible_body(results, self.carried, self.body, trips, head=1, forward=forward, chosen=chosen)

    def _run(self, walk: TimeLoop, trips: Any) -> list[Value]:
        if trips is not None:
            of_data = self.limit is not None and not is_static(self.limit)
            if self.bound is not None and isinstance(trips, int) and trips > self.bound and of_data:
                raise ValueError(self._over_bound(f"the loop makes {trips} trips"))
            return self._counted(walk, trips)
        if self.limit is None and self._never_ends():
            raise ValueError("the loop never ends: it has neither a trip count nor a condition that changes")
        if self.has_scan_outputs:
            if not all(is_known(leaf) for leaf in jax.tree.leaves((self.limit, self.go_on, self.carried))):
                raise StaticValueError(
                    "the loop ends by a condition on data, so the length of its scan outputs is not known while "
                    "tracing; call apply outside jit, grad and vmap"
                )
            return self._in_python(self.limit, self.bound)
        if self.bound is not None:
            return self._as_scan(self.bound)
        _, _, values = varying.while_loop(self._is_unfinished, self._step, self._start())
        if not self.label:
            return list(values)
        bound = "`jaxrnn.load(path, max_trip_count=NUMBER)`"
        reason = (
            f"{self.label}: its trip count depends on data, so that it runs as a while loop, which has no "
            f"reverse-mode derivative. Give the largest number of trips: {bound}, or a number for each node by name; "
            "forward mode (jax.jvp) needs no bound"
        )
        return [jax.tree.map(lambda leaf: forward_mode_only(leaf, reason), value) for value in values]

    def _counted(self, walk: TimeLoop, trips: Any) -> list[Value]:
        """Run a loop with a trip count that is known while tracing, perhaps as a symbolic dimension."""
        if isinstance(trips, int) and trips <= 0:
            return self._without_trips()
        if isinstance(trips, int) and trips == 1:
            with contextlib.suppress(StaticValueError, CarryTypeError):
                if is_plain() and (outputs := walk.run(1, scan_recognised)) is not None:
                    return outputs
            _, *outputs = self.body(np.asarray(0, np.int64), np.asarray(True), *self.carried)
            count = len(self.carried)
            return [*outputs[:count], *(traced(value)[None] for value in outputs[count:])]
        try:
            outputs = walk.run(trips)
            assert outputs is not None
            return outputs
        except (StaticValueError, CarryTypeError) as error:
            if not isinstance(trips, int):
                raise StaticValueError(
                    f"the loop makes {trips} trips, so carried values must keep their types, and shapes and positions "
                    f"must not depend on the trip ({error or 'a carried value changes its type'}); call apply on "
                    "arrays of known length"
                ) from error
            # A shape or a position depends on the trip, or a carried value changes its type: each trip is a separate
            # computation.
            return self._in_python(np.asarray(trips), None)

    def _in_python(self, limit: Value, bound: int | None) -> list[Value]:
        """Run the loop in Python, for shapes that depend on the trip and for sequences."""
        count = len(self.carried)
        state, collected, go_on = list(self.carried), [], True
        while go_on and (limit is None or len(collected) < int(limit)):
            if bound is not None and len(collected) == bound:
                raise ValueError(self._over_bound(f"the loop goes on after {bound} trips"))
            condition, *outputs = self.body(np.asarray(len(collected), np.int64), np.asarray(True), *state)
            state = outputs[:count]
            collected.append(outputs[count:])
            go_on = bool(np.asarray(condition).reshape(()))
        if not collected:
            return self._without_trips()
        return [*state, *(jnp.stack([traced(value) for value in column]) for column in zip(*collected, strict=True))]

    def _without_trips(self) -> list[Value]:
        """Return the results of a loop without trips: initial carries, and scan outputs without frames."""
        if not self.has_scan_outputs:
            return list(self.carried)
        scan_outputs = _AbstractTrip(self.carried, self.body).scan_outputs
        return [*self.carried, *(jnp.zeros((0, *item.shape), item.dtype) for item in scan_outputs)]

    def _never_ends(self) -> bool:
        try:
            return _AbstractTrip(self.carried, self.body).never_ends
        except StaticValueError:
            return False  # a loop that runs trip by trip in Python may end

    def _start(self) -> _State:
        """Return the state before the first trip of a loop of unknown length. The carry must keep its type."""
        trip = _AbstractTrip(self.carried, self.body)
        if not trip.carry_keeps_its_type:
            raise TypeError(
                "the number of trips depends on data, so carried values must keep their types: they are "
                f"{types_of(trip.before)} before a trip, and {types_of(trip.after)} after the trip"
            )
        return jnp.zeros((), jnp.int64), traced(self.go_on), all_traced(self.carried)

    def _step(self, state: _State) -> _State:
        trip, condition, values = state
        condition, *outputs = self.body(trip, condition, *values)
        return trip + 1, traced(condition).reshape(()), all_traced(outputs)

    def _is_unfinished(self, state: _State) -> jax.Array:
        trip, condition, _ = state
        return condition if self.limit is None else condition & (trip < traced(self.limit).astype(jnp.int64))

    def _as_scan(self, bound: int) -> list[Value]:
        """Run a bounded loop as a scan. More trips raise an error if their number is known, or else result in NaN."""
        start = self._start()
        limit = self.limit
        known = int(limit) if limit is not None and is_static(limit) and not is_symbolic(limit) else None
        enough = known is not None and known <= bound
        current().check((known if enough else bound,), np.int64)
        trips = jnp.arange(known if enough else bound, dtype=jnp.int64)

        def trip(state: _State, _: jax.Array) -> tuple[_State, None]:
            choose = functools.partial(jnp.where, self._is_unfinished(state))
            # After its end the loop repeats its first trip and discards it: a step from the final state may have an
            # infinite derivative, which times a zero cotangent is NaN. A cond would avoid that too, but would store a
            # copy of every weight for each trip.
            after = self._step(jax.tree.map(choose, state, start))
            return jax.tree.map(choose, after, state), None

        def scan() -> _State:
            return in_chunks(functools.partial(varying.scan, trip), start, trips)[0]

        # A loop without trips must not run a first trip.
        last = varying.cond(self._is_unfinished(start), scan, lambda: start)
        values = list(last[2])
        if enough:
            return values
        beyond = self._is_unfinished(last)
        if is_known(beyond):
            if bool(beyond):
                raise ValueError(self._over_bound(f"the loop goes on after {bound} trips"))
            return values
        demand(lambda: ~beyond)
        return jax.tree.map(functools.partial(_spoiled, beyond), values)

    def _over_bound(self, what: str) -> str:
        return f"{what}, but `max_trip_count={self.bound}` was given when the model was loaded; give a larger bound"


class _AbstractTrip:
    """A trip through the body, evaluated on shapes."""

    def __init__(self, carried: Sequence[Value], body: Subgraph):
        self.never_ends = False
        start = all_traced(carried)

        def trip(state: tuple[Value, ...], index: Value) -> tuple[Value, ...]:
            # The condition enters as a known True, and stays known unless the body computes the condition from data.
            go_on, *outputs = body(index, np.asarray(True), *state)
            self.never_ends = is_known(go_on) and bool(np.asarray(go_on).reshape(()))
            return all_traced(outputs)

        outputs = jax.eval_shape(trip, start, jax.ShapeDtypeStruct((), np.int64))
        self.before, self.after = start, outputs[: len(carried)]
        self.scan_outputs = outputs[len(carried) :]
        self.carry_keeps_its_type = _signatures(self.after) == _signatures(self.before)


def _signatures(values: Any) -> Any:
    return jax.tree.map(lambda value: (tuple(value.shape), value.dtype), values)


def _spoiled(wrong: jax.Array, value: jax.Array) -> jax.Array:
    """Replace wrong values by NaN, the extreme of an integer type, or True."""
    if jnp.issubdtype(value.dtype, jnp.inexact):
        # A factor of NaN also reaches the derivatives.
        return value * jnp.where(wrong, jnp.asarray(jnp.nan, value.dtype), jnp.ones((), value.dtype))
    if value.dtype == np.bool_:
        return value | wrong
    limits = jnp.iinfo(value.dtype)
    return jnp.where(wrong, jnp.asarray(limits.min or limits.max, value.dtype), value)


def visible_body(
    results: Sequence[Value],
    carried: Sequence[Value],
    body: Subgraph,
    steps: Any,
    *,
    head: int = 0,
    forward: bool = True,
    chosen: Collection[int] | None = None,
) -> list[Value]:
    """Wrap the results of a Scan or Loop by `visible` with the carries."""
    if not are_visible():
        return list(results)
    results, starts, slots, handed = list(results), [], [], set[int]()
    inputs, outputs, makers = body.block.inputs[2 * head :], body.block.outputs[head:], body.block.makers()
    followed = [
        place
        for place, start in enumerate(carried)
        if start is not None and not is_sequence(start) and np.shape(results[place]) == tuple(start.shape)
    ]
    for place in followed:
        if copied_from(outputs[place], makers) is inputs[place]:
            results[place] = carried[place]
            handed.add(place)
    computed = [place for place, value in enumerate(results) if isinstance(value, Tracer) and place not in handed]
    for place in followed:
        if place in computed and (chosen is None or place in chosen):
            slots.append(Carried(str(inputs[place].name), computed.index(place), len(starts), forward))
            starts.append(traced(carried[place]))
    shown = visible([results[place] for place in computed], starts, slots, steps if isinstance(steps, int) else None)
    for place, value in zip(computed, shown, strict=True):
        results[place] = value
    return results


def forward_mode_only(value: jax.Array, reason: str) -> jax.Array:
    """Return the value with its forward-mode derivative; reverse mode raises a `NodeError`.

    JAX cannot transpose the derivative of a ``lax.while_loop``, and JAX's own error does not name the node.
    """
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        return value

    @jax.custom_jvp
    def same(value: jax.Array) -> jax.Array:
        return value

    @same.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return primals[0], _not_transposed.bind(tangents[0], reason=reason)

    return same(value)


def _refuse(_cotangent: Any, _tangent: Any, *, reason: str) -> Any:
    error = NodeError(reason)
    error.located = True
    raise error


#: The identity on a tangent, which refuses to be transposed.
_not_transposed = Primitive("forward_mode_only")
_not_transposed.def_impl(lambda tangent, **_: tangent)
_not_transposed.def_abstract_eval(lambda tangent, **_: tangent)
ad.deflinear2(_not_transposed, _refuse)
batching.defvectorized(_not_transposed)
mlir.register_lowering(_not_transposed, lambda context, tangent, **_: [tangent])


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
            f"{STATIC_OR_EAGER}"
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


def _state_count(inputs: Sequence[Value], scanned: int) -> int:
    if not 0 < scanned <= len(inputs):
        raise ValueError(f"num_scan_inputs must be from 1 to the {len(inputs)} inputs, not {scanned}")
    return len(inputs) - scanned


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
    count = _state_count(inputs, num_scan_inputs)
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
    count = _state_count(inputs, num_scan_inputs)
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

            # Under vmap the body also runs for rows that have ended; cond excludes these rows from the derivative.
            return run() if sequence_lens is None else varying.cond(index < length, run, skip)

        final, stacked = varying.scan(step, row[:count], (steps, frames))
        return (*final, *stacked)

    with visible_recurrences(False):
        results = list(jax.vmap(one_row)(rows, *arrays))
    return visible_body(results, inputs[:count], body, time, forward=not any(backwards))


OPERATORS = {
    "If": bounded(if_, 1, 11, 13, 16, 19, 21, 23, 24, 25),
    "Loop": bounded(loop_with("", None), 1, 11, 13, 16, 19, 21, 23, 24, 25, carries=BODY),
    "Scan": since(scan_8, 8) | bounded(scan, 9, 11, 16, 19, 21, 23, 24, 25, carries=BODY),
}
