"""A plan: a function traced over a whole recording, the passes that run the function on pulses, and their facts."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import Var
from jax.interpreters import partial_eval

from jaxrnn._files.messages import first_line
from jaxrnn._jax.context import own_arithmetic
from jaxrnn.answers import Unknown
from jaxrnn.cells.forms import is_plain
from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.equations import dependents, is_key, shape_of, trace_inlined, type_of, walk
from jaxrnn.jaxprs.numbering import fingerprint
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.steps.specs import ArraySpec
from jaxrnn.steps.stepspec import Layout, OutputSpec, State, StateSpec, StepSpec
from jaxrnn.streaming.diagnostics import Path, describe_equation, located
from jaxrnn.streaming.dimensions import (
    SYMBOL,
    Clock,
    Laps,
    is_symbolic,
    out_shape,
    smallest_period,
    symbolic_axes,
    symbolic_sizes,
    value_of,
)
from jaxrnn.streaming.facts import Collected, Facts, Initial, Known
from jaxrnn.streaming.histories import Placeholder
from jaxrnn.streaming.instants import Instant
from jaxrnn.streaming.interpreter import LARGEST_STATIC, interpret
from jaxrnn.streaming.lengths import Lengths
from jaxrnn.streaming.narrow import positive_factors, widened_last
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.reach import Extent, Reach
from jaxrnn.streaming.rewriting import at_length, sizes_when_empty, with_bands, with_numbers, with_shifts
from jaxrnn.streaming.unread import without_unread
from jaxrnn.streaming.values import Band, Chunk, Deferred, FinalValue, Pairs, is_length

#: Names of state entries: the count of units up to the horizon, the count without a limit, and the laps of the latter.
COUNT, UNITS, LAPS = "count", "units", "laps"


@dataclass(frozen=True)
class Leaf:
    """An array of the input."""

    shape: tuple[Any, ...]  # the shape for a whole recording, with a symbolic dimension on the time axis
    dtype: Any  # the element type
    axis: int | None  # the time axis; None if the array is constant in time
    times: int  # frames of this array for each input frame
    name: str  # the path to the array, for messages

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype for a whole recording."""
        return jax.ShapeDtypeStruct(self.shape, self.dtype)

    def frames(self, count: int) -> tuple[int, ...]:
        """Return the shape for a number of input frames."""
        return tuple(count * self.times if axis == self.axis else size for axis, size in enumerate(self.shape))


class Closed(NamedTuple):
    """A jaxpr with constants; integer constants, which may be indices, are NumPy arrays."""

    jaxpr: Any
    consts: Sequence[Any] = ()


@dataclass(frozen=True, eq=False)
class Program:
    """A function traced over a whole recording, ready to run on chunks."""

    closed: Closed
    leaves: tuple[Leaf, ...]  # the arrays of the input
    clock: Clock  # the timelines; `clock.unit` is the smallest pulse, in frames of the trace
    placeholder: Placeholder

    def run(self, run: Pass, params: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
        """Return the outputs of a pass: chunks, final values and arrays that are the same in each step."""
        values = interpret(run, self.closed, [*params, *self._inputs(run, arrays)])
        return [_output(run, *each) for each in zip(self.closed.jaxpr.outvars, values, strict=True)]

    def _inputs(self, run: Pass, arrays: Sequence[Any]) -> list[Any]:
        values: list[Any] = []
        for leaf, array in zip(self.leaves, arrays, strict=True):
            if leaf.axis is None:
                values.append(array)
                continue
            timeline = self.clock.timeline(leaf.shape[leaf.axis])
            chunk = run.make(array, leaf.axis, timeline, 0, Reach.of_input(timeline, leaf.times, self.clock.multiple))
            values.append(chunk if run.now.existing is None else run.fill(chunk, self.placeholder.of(leaf.dtype)))
        return values

    def placeholders(self, units: int, constants: Sequence[Any]) -> list[Any]:
        """Return input arrays in which no frame exists."""
        values = iter(constants)
        return [
            next(values)
            if leaf.axis is None
            else lax.full(leaf.frames(units * self.clock.unit), self.placeholder.of(leaf.dtype), leaf.dtype)
            for leaf in self.leaves
        ]


def _output(run: Pass, variable: Any, value: Any) -> Any:
    """Return an output of a pass, with a delay of at least 0; refuse values that a step cannot return."""
    if isinstance(value, Deferred):
        raise value.error
    if isinstance(value, Pairs):
        run.refuse(
            "an output has time on two axes, one element for each pair of frames", "reduce it over one of the axes"
        )
    if is_length(value):
        value = FinalValue(run.now.length(value, type_of(variable)))
    if is_key(as_struct(getattr(value, "array", value)).dtype):
        run.refuse("an output contains random keys", "return jax.random.key_data(key)")
    if not isinstance(value, Chunk):
        return value
    if value.outer != 1:
        run.refuse(
            "an output merges time with another axis, so its frames cannot be separated",
            "split the axes before the function returns",
        )
    value = run.delayed(run.spread(value), 0)
    assert value.delay is not None
    run.notes.complete(value.timeline, value.delay)
    return value


def _arrays(outputs: Sequence[Any]) -> list[Any]:
    return [value.array if isinstance(value, (Chunk, FinalValue)) else jnp.asarray(value) for value in outputs]


def _kind(output: Any) -> Any:
    """Return an output of a pass without the array; None if the output is the same in each step."""
    if isinstance(output, Chunk):
        return dataclasses.replace(output, array=None)
    return FinalValue(None, reach=output.reach) if isinstance(output, FinalValue) else None


def analyse(program: Program, params: Sequence[Any], known: Facts) -> tuple[Facts, Initial]:
    """Return the facts about a function, and the state before the first frame.

    The function is traced on the `known.warm_up` units before the first frame, where the state entries begin. If a
    value has earlier frames, the function is traced again; more units than necessary do no harm.

    Args:
        program: the function.
        params: the shapes and types of the parameters.
        known: the facts with which the analysis begins.
    """
    notes, units = Collected(known), known.warm_up

    def start(params: Sequence[Any], constants: Sequence[Any]) -> dict[str, Any]:
        """Return the state entries before the first frame."""
        run = Pass(Instant(program.clock, notes, units, -units), None, program.placeholder)
        outputs = program.run(run, params, program.placeholders(units, constants))
        notes.note(outputs=tuple(map(_kind, outputs)), results=tuple(map(as_struct, _arrays(outputs))))
        # The count stays below 2**24. As a float, the count fits into the vector that contains most of the state.
        counters = {COUNT: np.zeros((), np.int32 if is_plain() else np.float32)}
        if run.facts.counts:
            counters[UNITS] = np.zeros((), jax.dtypes.canonicalize_dtype(np.int64))
        if run.facts.counts_laps:
            counters[LAPS] = np.zeros((), counters[COUNT].dtype)
        return {**run.new, **counters}

    closed, structure = trace_inlined(start, params, [leaf.struct for leaf in program.leaves if leaf.axis is None])
    if notes.facts.warm_up > units:
        return analyse(program, params, dataclasses.replace(known, warm_up=notes.facts.warm_up))
    layout = Layout(jax.tree.unflatten(structure, closed.out_avals), joined=not is_plain())
    return notes.facts, Initial(layout, closed)


class Plan:
    """A function traced over a whole recording, ready to run on pulses of any size.

    Attributes:
        uncompared: outputs without a finite number where the trace was compared with traces at single lengths.
    """

    uncompared: tuple[str, ...] = ()

    def __init__(
        self,
        closed: Any,
        output_structure: Any,
        params: Any,
        leaves: Sequence[Leaf],
        placeholder: Placeholder,
        label: str,
        lengths: Lengths,
        multiple: int,
        shapes_when_empty: Sequence[Any] | Unknown,
        past: int | None = None,
        bands: Callable[[Path], Band] | None = None,
    ):
        self.leaves = tuple(leaves)  # the arrays of the input
        self.params = jax.tree.map(as_struct, params)
        self.label, self.lengths = label, lengths  # the name in messages, and the lengths of recordings
        self.past = past
        self.output_structure = output_structure
        jaxpr = without_unread(closed.jaxpr, closed.consts)
        jaxpr = _without_dead_code(widened_last(with_shifts(with_numbers(jaxpr))))
        self.closed = Closed(jaxpr, [_static_integers(value) for value in closed.consts])
        when_empty = self._sizes_when_empty(closed)
        if isinstance(when_empty, Unknown) or not self._has_shapes(shapes_when_empty, when_empty):
            when_empty = {}
            self.lengths = lengths = Lengths((*lengths.constraints, f"{SYMBOL} >= 1"))
        self.clock = Clock(_unit_of(jaxpr), multiple, lengths.allow, lengths.most, when_empty)
        # After this many units, the constraints depend on the place of the end in a unit only.
        settled = lengths.settled(self.clock.unit)
        known = Facts(
            warm_up=max(1, -(-max(_front_pads(jaxpr), default=0) // self.clock.unit)),
            horizon=settled or int(bool(when_empty)),
            counts=settled is None,
            laps=Laps(math.lcm(self.clock.unit, lengths.period) // self.clock.unit, self.clock.unit),
            positive=positive_factors(self.closed, jax.tree.leaves(params)),
            bands=bands if past is None else lambda path: Band(past),
        )
        program = Program(self.closed, self.leaves, self.clock, placeholder)
        start = functools.partial(analyse, params=jax.tree.leaves(self.params))
        with own_arithmetic():
            self.facts, self.initial = start(program, known=known)
            if past is not None and not self.facts.masks:
                raise StreamError(f"`past={past}` has no effect: no attention sees all earlier frames; leave it out")
            self.masks = self.facts.masks  # of attention that gets a band
            if self.masks:
                banded = self.closed._replace(jaxpr=with_bands(self.closed.jaxpr, self.masks))
                program = dataclasses.replace(program, closed=banded)
                self.facts, self.initial = start(program, known=dataclasses.replace(known, bands=None))
        self.program, self.closed, self.layout = program, program.closed, self.initial.layout

    def _has_shapes(self, shapes: Sequence[Any] | Unknown, when_empty: Mapping[str, int]) -> bool:
        """Return True if the outputs have these shapes in an empty recording, or the function raises an error there.

        JAX takes ``x[-1:]`` for one frame, because JAX assumes at least one frame.
        """
        if isinstance(shapes, Unknown) or not self.lengths.allow(np.zeros((), int)):
            return True

        def size_of(size: Any) -> int:
            return when_empty.get(str(size), value_of(size, 0))

        try:
            return [tuple(map(size_of, shape_of(each))) for each in self.closed.jaxpr.outvars] == list(shapes)
        except ZeroDivisionError:  # a size divides by the length
            return False

    def _sizes_when_empty(self, closed: Any) -> dict[str, int] | Unknown:
        """Return the sizes in an empty recording that differ from their expressions, or Unknown."""
        # A dead equation may compute an array of which the function reads the length.
        sizes = (size for size, _ in symbolic_sizes(closed.jaxpr))
        if not self.lengths.allow(np.zeros((), int)):
            return {}
        inputs = [jax.ShapeDtypeStruct(leaf.frames(0), leaf.dtype) for leaf in self.leaves]
        try:
            if not _may_differ_when_empty(closed.jaxpr) and all(value_of(size, 0) >= 0 for size in sizes):
                return {}
            with own_arithmetic():
                return sizes_when_empty(closed, [*jax.tree.leaves(self.params), *inputs])
        except Exception as error:  # a size may divide by the length, and the function may raise any error
            return Unknown(first_line(error))

    @functools.cached_property
    def fingerprint(self) -> str:
        """A text that identifies the traced function; the values of parameters do not count."""
        leaves = [(leaf.shape, str(leaf.dtype), leaf.axis, leaf.times) for leaf in self.leaves]
        return fingerprint(self.closed.jaxpr, self.closed.consts, leaves)

    # -- passes

    def _continued(self, state: State, units: int, existing: Any = None) -> Pass:
        """Return a pass on `units` units after a packed state."""
        entries = self.layout.unpack(state)
        laps = None if LAPS not in entries else lax.stop_gradient(entries[LAPS]).astype(jnp.int32)
        counted = self._count(entries), existing, entries.get(UNITS), laps
        now = Instant(self.clock, Known(self.facts), units, *counted)
        own = {name: value for name, value in entries.items() if name not in (COUNT, UNITS, LAPS)}
        return Pass(now, own, self.program.placeholder)

    def step(self, params: Sequence[Any], state: State, arrays: Sequence[Any], units: int) -> tuple[list[Any], State]:
        """Return the arrays of the outputs for input arrays of `units` units, and the packed state after them.

        `params` are the leaves of the parameters, and `state` is packed.
        """
        run = self._continued(state, units)
        outputs = self.program.run(run, params, arrays)
        now, laps = run.now, self.facts.laps
        later = jnp.minimum(now.count + np.int32(units), np.int32(self.facts.horizon))
        new = {**run.new, COUNT: later.astype(self.layout.places[COUNT].dtype)}
        if now.before is not None:
            new[UNITS] = now.before + np.asarray(units, now.before.dtype)
            if now.before.dtype == np.int32:
                done = laps.completed(new[UNITS])
                new[UNITS] -= done * np.asarray(laps.length, done.dtype)
                if now.laps is not None:
                    new[LAPS] = (now.laps + done).astype(self.layout.places[LAPS].dtype)
        return _arrays(outputs), self.layout.pack(new)

    def flush(self, params: Sequence[Any], state: State, arrays: Sequence[Any], units: int, existing: Any) -> list[Any]:
        """Return the arrays of the outputs if the stream ends after `existing` frames of the input arrays."""
        return _arrays(self.program.run(self._continued(state, units, existing), params, arrays))

    def offline(self, params: Sequence[Any], arrays: Sequence[Any], frames: int) -> list[Any]:
        """Return the outputs for whole recordings, without chunks and state; `frames` counts frames of the trace."""
        return [jnp.asarray(each) for each in at_length(self.closed, [*params, *arrays], frames)]

    def _count(self, entries: Mapping[str, Any]) -> Any:
        return lax.stop_gradient(entries[COUNT]).astype(jnp.int32)

    # -- facts

    @functools.cached_property
    def extents(self) -> list[Extent]:
        """The extent of each output that depends on the input."""
        return [
            output.reach.extent(getattr(output, "timeline", None), self.clock)
            for output in self.facts.outputs
            if output is not None and output.reach is not None
        ]

    def spec(self, units: int) -> StepSpec:
        """Return the facts about pulses of this many units; arrays are in the order of their pytrees, named by path."""
        multiple, kinds = self.clock.multiple, self.facts.kinds
        pulse = units * self.clock.unit * multiple
        fields = [extent.field for extent in self.extents]
        return StepSpec(
            self.label,
            inputs=tuple(
                ArraySpec(leaf.name, leaf.dtype, leaf.frames(units * self.clock.unit), leaf.axis)
                for leaf in self.leaves
            ),
            outputs=tuple(self._output_specs(pulse)),
            state=tuple(
                StateSpec(name, place.dtype, place.shape, kind=kinds.get(name, "counter"))
                for name, place in self.layout.places.items()
            ),
            pulse=pulse,
            multiple=multiple,
            smallest_pulse=self.clock.unit * multiple,
            look_ahead=max([0, *(extent.last for extent in self.extents)]),
            receptive_field=None if None in fields else max((each for each in fields if each is not None), default=0),
            past=self.past,
            shortest=self.lengths.least * multiple,
            longest=None if self.lengths.most is None else self.lengths.most * multiple,
            joined=self.layout.joined,
            needs_params=bool(jax.tree.leaves(self.params)),
        )

    def _output_specs(self, pulse: int) -> Iterator[OutputSpec]:
        """Yield the spec of each output; an output that only the flush returns has no time axis."""
        tree = jax.tree.unflatten(self.output_structure, range(len(self.facts.outputs)))
        names = [jax.tree_util.keystr(path) or "output" for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
        for name, kind, result in zip(names, self.facts.outputs, self.facts.results, strict=True):
            spec = OutputSpec(name, np.dtype(result.dtype), tuple(result.shape), at_end=isinstance(kind, FinalValue))
            if isinstance(kind, Chunk):
                rate: Fraction = kind.timeline.rate / self.clock.multiple
                moving = dataclasses.replace(spec, time_axis=kind.axis, delay=kind.delay, rate=rate)
                spec = moving.with_frames(int(rate * pulse))
            yield spec

    def rest(self, tail: int) -> int:
        """Return the number of units that a flush must run if up to `tail` more input frames exist."""
        counts = np.arange(self.facts.horizon + 1)
        units = max(1, -(-tail // self.clock.unit))
        for timeline, delay in self.facts.sinks:
            waiting = timeline.length(counts * self.clock.unit + tail) - (counts * timeline.per_unit - delay)
            units = max(units, int(-(-np.max(waiting) // timeline.per_unit)))
        return units

    def total(self, entries: Mapping[str, Any], existing: Any) -> Any:
        """Return the length of a recording that ends after `existing` more frames, or the horizon if that is less."""
        before = entries[UNITS] if self.facts.counts else self._count(entries)
        existing = existing if isinstance(existing, jax.Array) else np.asarray(existing)
        return before * np.asarray(self.clock.unit, before.dtype) + existing.astype(before.dtype)

    def is_allowed(self, state: State, existing: Any) -> Any:
        """Return True if the constraints allow a recording that ends after `existing` more frames."""
        return not self.lengths.constraints or self.lengths.allow(self.total(self.layout.unpack(state), existing))

    def is_within(self, state: State, units: int) -> Any:
        """Return True if the constraints allow a recording with at least this many more units."""
        most = self.lengths.most
        return most is None or self.total(self.layout.unpack(state), units * self.clock.unit) <= most

    def counts(self, state: State, existing: Any) -> list[Any]:
        """Return the number of frames that a flush completes, for each output; None if the output is not a stream."""
        before = self._count(self.layout.unpack(state))
        result: list[Any] = []
        for output in self.facts.outputs:
            if not isinstance(output, Chunk):
                result.append(None)
                continue
            end = output.timeline.length(before * self.clock.unit + existing)
            result.append(end - (before * output.timeline.per_unit - output.delay))
        return result


def _without_dead_code(jaxpr: Any) -> Any:
    """Remove equations without a reader, also inside loops; keep all inputs."""
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


def _static_integers(value: Any) -> Any:
    """Return a small integer constant as a NumPy array, because the constant may be an index."""
    if isinstance(value, Tracer) or not jnp.issubdtype(value.dtype, jnp.integer) or value.size > LARGEST_STATIC:
        return value
    return np.asarray(value)


def _front_pads(jaxpr: Any) -> Iterator[int]:
    """Yield the number of frames that each pad adds before the stream."""
    for equation in walk(jaxpr):
        if equation.primitive.name == "pad":
            for axis in symbolic_axes(out_shape(equation)):
                low, _, _ = equation.params["padding_config"][axis]
                if not is_symbolic(low):
                    yield int(low)


def _may_differ_when_empty(jaxpr: Any) -> bool:
    """Return True if lengths in an empty recording may differ from their expressions.

    They differ if an equation adds elements between the elements of an array, as a transposed convolution does, or if
    it joins a stream and single frames of a stream.
    """
    for equation in walk(jaxpr):
        params, axis = equation.params, equation.params.get("dimension")
        if entry_of(equation).joins and axis in symbolic_axes(out_shape(equation)):
            parts = [
                each for each in equation.invars if isinstance(each, Var) and not is_symbolic(shape_of(each)[axis])
            ]
            if dependents(jaxpr.eqns, jaxpr.invars).intersection(parts):
                return True
        spacing = [*(params.get("lhs_dilation") or ()), *(params.get("base_dilation") or ())]
        if any(each > 1 for each in spacing) or any(inside for _, _, inside in params.get("padding_config", ())):
            return True
    return False


def _unit_of(jaxpr: Any) -> int:
    """Return the smallest pulse; refuse a length that does not grow evenly."""
    unit, seen = 1, set[str]()
    for size, path in symbolic_sizes(jaxpr):
        if str(size) not in seen:
            seen.add(str(size))
            with located(functools.partial(describe_equation, path)):
                unit = math.lcm(unit, smallest_period(size))
    return unit


def as_struct(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of an array, a number or a ``jax.ShapeDtypeStruct``."""
    if not hasattr(leaf, "dtype"):
        return jax.eval_shape(lambda: jnp.asarray(leaf))
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
