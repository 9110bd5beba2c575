"""A function traced over all of time, and what running it in pulses needs: the passes, and the facts about them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxrnn._jax.context import own_arithmetic
from jaxrnn.cells import is_plain
from jaxrnn.errors import StreamError, is_count
from jaxrnn.jaxprs.equations import trace_nested
from jaxrnn.jaxprs.fingerprints import fingerprint
from jaxrnn.steps.stepspec import Layout, State
from jaxrnn.streaming.access import clock_of, front_pads, without_dead_code
from jaxrnn.streaming.dimensions import SYMBOL, symbolic_axes
from jaxrnn.streaming.initial import Initial
from jaxrnn.streaming.interpreter import interpret
from jaxrnn.streaming.known import LARGEST
from jaxrnn.streaming.lengths import Lengths
from jaxrnn.streaming.passes import Absent, Facts, Pass
from jaxrnn.streaming.reach import Extent, Reach
from jaxrnn.streaming.values import Chunk, Deferred, FinalValue, is_length

#: Entries of the state that every stream may have besides those of its equations.
COUNT, UNITS = "count", "units"


@dataclass(frozen=True)
class Leaf:
    """One array of the input: its shape over all of time, and where time is.

    Attributes:
        shape: with a symbolic dimension on the time axis.
        dtype: its element type.
        axis: the time axis; None where the array is constant in time.
        times: frames of it for each input frame.
        name: the path to it, for messages.
    """

    shape: tuple[Any, ...]
    dtype: Any
    axis: int | None
    times: int
    name: str

    @property
    def whole(self) -> jax.ShapeDtypeStruct:
        """It over all of time."""
        return jax.ShapeDtypeStruct(self.shape, self.dtype)

    def frames(self, count: int) -> tuple[int, ...]:
        """The shape for a number of input frames."""
        return tuple(count * self.times if axis == self.axis else size for axis, size in enumerate(self.shape))


class Closed(NamedTuple):
    """A jaxpr with its constants, of which those that may be indices are known while tracing."""

    jaxpr: Any
    consts: list[Any]


class Plan:
    """How a function runs on pulses; the same for every pulse size.

    Attributes:
        leaves: the arrays of the input.
        clock: the timelines; `clock.unit` is the smallest pulse, in frames of the trace.
        facts: what the passes learn.
        outputs: what each output is, without its array.
        output_structure: the tree of the outputs.
        results: shape and dtype of each output, for the smallest pulse.
        layout: the entries of the state, by name.
        initial: the state before the first frame.
        absent: what stands in frames that do not exist.
        label: what messages call the function.
        lengths: the numbers of frames of the trace that a recording may have.
    """

    def __init__(
        self,
        closed: Any,
        output_structure: Any,
        params: Any,
        leaves: Sequence[Leaf],
        absent: Absent,
        label: str,
        lengths: Lengths,
        multiple: int,
    ):
        self.leaves = tuple(leaves)
        self.label, self.lengths = label, lengths
        self.absent = absent
        self.output_structure = output_structure
        jaxpr = without_dead_code(closed.jaxpr)
        self.closed = Closed(jaxpr, [_known(value) for value in closed.consts])
        self.clock = clock_of(jaxpr, multiple, lengths.allow, lengths.most)
        # A recording that the constraints do not allow is told from others by the number of its frames.
        told = lengths.settled(self.clock.unit)
        self.facts = Facts(horizon=told or 0, counts=told is None)
        self.outputs: list[Any] = []
        self.results: list[jax.ShapeDtypeStruct] = []
        self.layout = Layout({})
        param_shapes = [shape_of(leaf) for leaf in jax.tree.leaves(params)]
        constants = [leaf.whole for leaf in leaves if leaf.axis is None]
        with own_arithmetic():
            units = -(-max(front_pads(jaxpr), default=0) // self.clock.unit)
            self.initial = self._traced_start(max(1, units), param_shapes, constants)

    @functools.cached_property
    def fingerprint(self) -> str:
        """What tells the function, as it was traced, from any other."""
        leaves = [(leaf.shape, str(leaf.dtype), leaf.axis, leaf.times) for leaf in self.leaves]
        return fingerprint(self.closed.jaxpr, self.closed.consts, leaves)

    # -- passes

    def _inputs(self, run: Pass, arrays: Sequence[Any]) -> list[Any]:
        values: list[Any] = []
        for leaf, array in zip(self.leaves, arrays, strict=True):
            if leaf.axis is None:
                values.append(array)
                continue
            timeline = run.clock.timeline(leaf.shape[leaf.axis])
            chunk = run.make(array, leaf.axis, timeline, 0, Reach.of_input(timeline, leaf.times, self.clock.multiple))
            values.append(chunk if run.existing is None else run.fill(chunk, self.absent.of(leaf.dtype)))
        return values

    def _pass(self, params: Sequence[Any], arrays: Sequence[Any], run: Pass) -> list[Any]:
        values = interpret(run, self.closed, [*params, *self._inputs(run, arrays)])
        outputs = []
        for value in values:
            if isinstance(value, Deferred):
                raise value.error
            if is_length(value):
                value = FinalValue(run.unstreamed(value))
            if jnp.issubdtype(shape_of(getattr(value, "array", value)).dtype, jax.dtypes.prng_key):
                run.refuse("an output contains random keys", "return jax.random.key_data(key)")
            if isinstance(value, Chunk):
                if value.outer != 1:
                    run.refuse(
                        "an output merges time with another axis, so its frames cannot be separated",
                        "split the axes before the function returns",
                    )
                value = run.spread(value)
                value = run.delayed(value, max(value.delay or 0, 0))
                assert value.delay is not None
                run.facts.sinks.append((value.timeline, value.delay))
            outputs.append(value)
        self.outputs = [
            dataclasses.replace(value, array=None)
            if isinstance(value, Chunk)
            else (FinalValue(None, reach=value.reach) if isinstance(value, FinalValue) else None)
            for value in outputs
        ]
        return [value.array if isinstance(value, (Chunk, FinalValue)) else jnp.asarray(value) for value in outputs]

    def _nothing(self, units: int, constants: Sequence[Any]) -> list[Any]:
        """Input that does not exist."""
        values = iter(constants)
        return [
            next(values)
            if leaf.axis is None
            else lax.full(leaf.frames(units * self.clock.unit), self.absent.of(leaf.dtype), leaf.dtype)
            for leaf in self.leaves
        ]

    def _traced_start(self, units: int, params: Sequence[Any], constants: Sequence[Any]) -> Initial:
        """The state before the first frame, from the pass that finds the facts.

        It runs over so many units before the first frame, or over as many as it finds to be needed; more do no harm.
        """
        closed, _ = trace_nested(functools.partial(self._start, units), params, constants)
        needed = self.facts.warm_up
        return Initial(self.layout, closed) if needed <= units else self._traced_start(needed, params, constants)

    def _start(self, units: int, params: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        """The entries of the state before the first frame, in the order of the layout."""
        run = Pass(self.clock, units, -units, None, None, self.facts, self.absent)
        self.results = [shape_of(array) for array in self._pass(params, self._nothing(units, constants), run)]
        # It stays below 2**24, and as a float it lies in the vector that holds nearly all of the state.
        counters = {COUNT: np.zeros((), np.int32 if is_plain() else np.float32)}
        if self.facts.counts:
            counters[UNITS] = np.zeros((), jax.dtypes.canonicalize_dtype(np.int64))
        entries = dict(sorted({**run.new, **counters}.items()))
        self.layout = Layout(entries, joined=not is_plain())
        return list(entries.values())

    def run(
        self, params: Sequence[Any], state: State, arrays: Sequence[Any], units: int, existing: Any = None
    ) -> tuple[list[Any], State]:
        """One pass over chunks of so many units: the arrays of its outputs, and the state; ``existing`` ends it."""
        entries = self.layout.unpack(state)
        own = {name: value for name, value in entries.items() if name not in (COUNT, UNITS)}
        count, before = self._count(entries), entries.get(UNITS)
        run = Pass(self.clock, units, count, existing, own, self.facts, self.absent, before)
        outputs = self._pass(params, arrays, run)
        later = jnp.minimum(count + np.int32(units), np.int32(self.facts.horizon))
        new = {**run.new, COUNT: later.astype(self.layout.places[COUNT].dtype)}
        if before is not None:
            new[UNITS] = before + np.asarray(units, before.dtype)
        return outputs, self.layout.pack(new)

    def _count(self, entries: Mapping[str, Any]) -> Any:
        return lax.stop_gradient(entries[COUNT]).astype(jnp.int32)

    # -- facts

    @functools.cached_property
    def extents(self) -> list[Extent]:
        """What every output that depends on the input depends on."""
        return [
            output.reach.extent(getattr(output, "timeline", None), self.clock)
            for output in self.outputs
            if output is not None and output.reach is not None
        ]

    def rest(self, tail: int) -> int:
        """Units that a flush must run for all frames to come out, when up to ``tail`` more input frames exist."""
        counts = np.arange(self.facts.horizon + 1)
        units = max(1, -(-tail // self.clock.unit))
        for timeline, delay in set(self.facts.sinks):
            waiting = timeline.length(counts * self.clock.unit + tail) - (counts * timeline.per_unit - delay)
            units = max(units, int(-(-np.max(waiting) // timeline.per_unit)))
        return units

    def total(self, entries: Mapping[str, Any], existing: Any) -> Any:
        """The frames of a recording that ends after the existing frames; a large number may stand for a larger one."""
        before = entries[UNITS] if self.facts.counts else self._count(entries)
        return before * np.asarray(self.clock.unit, before.dtype) + jnp.asarray(existing, before.dtype)

    def is_allowed(self, state: State, existing: Any) -> Any:
        """Whether the constraints allow the recording that ends after the existing frames."""
        return not self.lengths.constraints or self.lengths.allow(self.total(self.layout.unpack(state), existing))

    def is_within(self, state: State, units: int) -> Any:
        """Whether the constraints allow a recording with these units and more."""
        most = self.lengths.most
        return most is None or self.total(self.layout.unpack(state), units * self.clock.unit) <= most

    def counts(self, state: State, existing: Any) -> list[Any]:
        """For each output, the frames that a flush gives; None for those that are no streams."""
        before = self._count(self.layout.unpack(state))
        result: list[Any] = []
        for output in self.outputs:
            if not isinstance(output, Chunk):
                result.append(None)
                continue
            end = output.timeline.length(before * self.clock.unit + existing)
            result.append(end - (before * output.timeline.per_unit - output.delay))
        return result


def _known(value: Any) -> Any:
    """A constant that the function closed over, as a NumPy array where it may be an index."""
    if isinstance(value, Tracer) or not jnp.issubdtype(value.dtype, jnp.integer) or value.size > LARGEST:
        return value
    return np.asarray(value)


def shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """The shape of an example: an array, a number, or a shape already."""
    if not hasattr(leaf, "dtype"):
        return jax.eval_shape(lambda: jnp.asarray(leaf))
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def symbolic_leaf(shape: Sequence[int], dtype: Any, axis: int | None, times: int, name: str, scope: Any) -> Leaf:
    """A leaf with the symbol in place of its length.

    Raises:
        StreamError: it holds keys of random numbers.
    """
    sizes: list[Any] = list(shape)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        raise StreamError(
            f"{name} contains random keys: pass jax.random.key_data(key), and restore the key in the "
            "function with jax.random.wrap_key_data"
        )
    if axis is not None:
        spelling = SYMBOL if times == 1 else f"{times}*{SYMBOL}"
        (sizes[axis],) = jax.export.symbolic_shape(spelling, scope=scope)
    assert len(symbolic_axes(sizes)) == (axis is not None)
    return Leaf(tuple(sizes), np.dtype(dtype), axis, times, name)


def check_pulse(pulse: int, smallest: int, multiple: int) -> int:
    """The units of a pulse.

    Raises:
        StreamError: it does not fit the strides; names the smallest that do.
    """
    step = smallest * multiple
    if not is_count(pulse, 1):
        raise StreamError(f"pulse must be a positive number of input frames, not {pulse!r}")
    if pulse % step:
        fitting = ", ".join(str(step * k) for k in (1, 2, 3))
        raise StreamError(
            f"a pulse of {pulse} frame(s) does not fit the strides of this function: it must be a multiple of "
            f"{step} frames, such as {fitting}"
        )
    return int(pulse) // step
