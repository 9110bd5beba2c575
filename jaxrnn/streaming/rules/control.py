"""Rules for control flow that time passes through: loops over other axes, branches, and calls of inner functions.

The body of a loop or branch exchanges arrays only, so chunks cross the boundary as a `Template` and an array.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn._jax import varying
from jaxrnn._jax.context import own_arithmetic
from jaxrnn._jax.versions import Scan
from jaxrnn.cells.forms import Types
from jaxrnn.jaxprs.equations import Domain, bind, called, shape_of, trace, type_of, with_rule
from jaxrnn.jaxprs.own import choose, computed, platforms_of
from jaxrnn.streaming.dimensions import is_symbolic, out_shape
from jaxrnn.streaming.facts import NewFactError
from jaxrnn.streaming.interpreter import RULES, interpret
from jaxrnn.streaming.passes import KeepsStateError, Pass
from jaxrnn.streaming.reach import ComparableReach, union
from jaxrnn.streaming.rewriting import resized
from jaxrnn.streaming.rules.elementwise import align
from jaxrnn.streaming.rules.recurrence import scan_over_time
from jaxrnn.streaming.rules.windows import whole_convolution
from jaxrnn.streaming.values import Awaiting, Chunk, Deferred, FinalValue, Late, Pairs, is_length, known_at_end

#: The largest number of iterations with different delays that are unrolled.
LONGEST = 128


@RULES.add("scan")
def scan(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Stream a scan over any axis."""
    if is_symbolic(equation.params["length"]):
        return scan_over_time(run, equation, operands)
    return _around_time(run, equation, operands)


def _around_time(run: Pass, equation: JaxprEqn, operands: Any) -> list[Any]:
    """Stream a scan over a different axis: the body runs on chunks, with separate state for each iteration."""
    run.refuse_final_values(operands)
    body, length, reverse = (equation.params[key] for key in ("jaxpr", "length", "reverse"))
    fixed, start, xs = Scan.of(equation).split(operands)
    begin, carries = list(start), len(start)
    prefix = run.unique(f"{run.prefix}{run.here or 'scan'}") + "/"
    slice_kinds = [slice_kind(value) for value in xs]

    def inner(child: Pass, values: list[Any]) -> list[Any]:
        return _inside(child, body, values)

    states = {name: value for name, value in (run.state or {}).items() if name.startswith(prefix)}

    def attempt(carry_kinds: list[Template]) -> list[Any]:
        """Run the loop with these templates of the carry."""
        results: list[Template] = []

        def step(carry: list[Any], xs: Any) -> tuple[list[Any], Any]:
            slices, state = xs
            child = dataclasses.replace(run, state=None if run.state is None else state, prefix=prefix)
            values = inner(child, [*fixed, *with_arrays(carry_kinds, carry), *with_arrays(slice_kinds, slices)])
            results[:] = map(Template.of, values)
            if any(kind.final for kind in results):
                run.refuse("its body returns a value that is known only at the end", "compute it outside of the loop")
            if any(a.key != b.key for a, b in zip(carry_kinds, results[:carries], strict=True)):
                raise _UnsettledError(results[:carries])
            return arrays_of(values[:carries]), (arrays_of(values[carries:]), child.new, child.begun)

        frames = [jnp.asarray(array_of(value)) for value in xs], states
        carry = [jnp.asarray(array_of(value)) for value in start]
        last, (outs, new, begun) = varying.scan(step, carry, frames, length=length, reverse=reverse)
        run.new.update(new)
        run.begun.update(begun)
        return [
            *(rebuild(run, kind, array) for kind, array in zip(carry_kinds, last, strict=True)),
            *(rebuild(run, kind, array, 1) for kind, array in zip(results[carries:], outs, strict=True)),
        ]

    # Repeat with the templates that the body returns, until the templates stop changing. If they never do, unroll the
    # loop. The templates are facts, so that later passes begin with them.
    key = equation, prefix, *(Template.of(value).key for value in operands)
    for trip in range(3):
        found = run.facts.carries.get(key, ())
        if trip == len(found):
            run.notes.note(carries={**run.facts.carries, key: found})
            try:
                return attempt([Template.of(value) for value in start])
            except _UnsettledError as unsettled:
                found = (*found, unsettled.kinds)
                run.notes.note(carries={**run.facts.carries, key: found})
        start = [_widened(run, value, kind) for value, kind in zip(start, found[trip], strict=True)]
    return _unrolled(run, equation, inner, prefix, fixed, begin, xs)


def _inside(child: Pass, part: Any, values: list[Any]) -> list[Any]:
    """Evaluate the body of a loop or branch; a length that the body returns is a final value."""
    return [
        FinalValue(child.now.length(value, type_of(atom))) if is_length(value) else value
        for atom, value in zip(part.jaxpr.outvars, interpret(child, part, values), strict=True)
    ]


class _UnsettledError(Exception):
    """Raised if an iteration changes the templates of the carry; `kinds` are the new templates."""

    def __init__(self, kinds: list[Template]):
        super().__init__()
        self.kinds = kinds


def _widened(run: Pass, value: Any, kind: Template) -> Any:
    """Convert a carry so that the carry can also hold the result of an iteration."""
    if kind.chunk is None:
        return value
    if not isinstance(value, Chunk):
        run.refuse("a carry gets a time axis only inside the loop", "start with an array that has this time axis")
    if value.delay is None:  # frames that are all equal are equal in each of several merged streams
        value = dataclasses.replace(value, timeline=kind.chunk.timeline)
    late = _late(run, value, kind.delay)
    return Chunk(late.array, late.axis, late.timeline, late.delay, union([late.reach, kind.chunk.reach]))


def _unrolled(
    run: Pass, equation: JaxprEqn, inner: Any, prefix: str, fixed: Any, carry: list[Any], xs: Any
) -> list[Any]:
    """Unroll a loop in which iterations have different delays."""
    length, reverse = equation.params["length"], equation.params["reverse"]
    if length > LONGEST:
        run.refuse(
            f"each of its {length} iterations adds delay, and at most {LONGEST} can be unrolled",
            "use fewer layers, or layers without look-ahead",
        )
    outs: list[list[Any]] = []
    for index in reversed(range(length)) if reverse else range(length):
        slices = []
        for value in xs:
            part = lax.index_in_dim(jnp.asarray(array_of(value)), index, 0, keepdims=False)
            slices.append(slice_kind(value).with_array(part))
        child = dataclasses.replace(run, prefix=f"{prefix}{index}/")
        values = inner(child, [*fixed, *carry, *slices])
        run.new.update(child.new)
        run.begun.update(child.begun)
        carry, out = values[: len(carry)], values[len(carry) :]
        outs.append(out)
    if reverse:
        outs.reverse()
    stacked = []
    for parts in zip(*outs, strict=True):
        arrays = arrays_of(parts)
        if not any(isinstance(part, Chunk) for part in parts):
            stacked.append(jnp.stack(arrays))
            continue
        arrays, like = align(run, parts)
        stacked.append(run.same(like, jnp.stack(arrays), like.axis + 1))
    return [*carry, *stacked]


@RULES.add("while")
def while_(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Stream a loop of unknown length; the body must not keep state.

    With `jax.vmap`, the condition may differ between frames: a frame stays unchanged once its condition is False.
    """
    _refuse_end(run, operands)
    params = equation.params
    heads, bodies = params["cond_nconsts"], params["body_nconsts"]
    operands = tuple(run.together(*map(run.spread, operands)))
    test_consts, body_consts = operands[:heads], operands[heads : heads + bodies]
    start = operands[heads + bodies :]
    reach = union(value.reach for value in operands if isinstance(value, Chunk))
    kinds = [Template.of(value) for value in start]

    def inner(part: Any, values: list[Any]) -> tuple[Pass, list[Any]]:
        child = dataclasses.replace(run, state=None, prefix="")
        results = _inside(child, part, values)
        if child.new:
            run.refuse(
                "its body remembers past frames, or sums over time, and its number of iterations is not static",
                "use a loop of known length (lax.scan, or fori_loop with constant bounds)",
            )
        return child, results

    def going(arrays: Any) -> Any:
        """Return the condition: a scalar, or a mask of frames (and rows) that is False in frames that do not exist."""
        child, (value,) = inner(params["cond_jaxpr"], [*test_consts, *with_arrays(kinds, arrays)])
        _refuse_end(run, [value])
        return child.fill(child.spread(value), False).array if isinstance(value, Chunk) else array_of(value)

    def body(arrays: Any) -> list[Any]:
        child, values = inner(params["body_jaxpr"], [*body_consts, *with_arrays(kinds, arrays)])
        _refuse_end(run, values)
        values = list(map(child.spread, values))
        if any(Template.of(a).key[:4] != kind.key[:4] for a, kind in zip(values, kinds, strict=True)):
            run.refuse(
                "an iteration changes the time axis or the delay of its carry",
                "start with arrays that have the time axis that the body returns",
            )
        here = going(arrays)
        if here.ndim == 0:
            return arrays_of(values)
        return [
            jnp.where(here.reshape(*here.shape, *(1,) * (before.ndim - here.ndim)), after, before)
            for after, before in zip(arrays_of(values), arrays, strict=True)
        ]

    last = varying.while_loop(lambda arrays: jnp.any(going(arrays)), body, [jnp.asarray(array_of(x)) for x in start])
    results = [rebuild(run, kind, array) for kind, array in zip(kinds, last, strict=True)]
    return [dataclasses.replace(each, reach=reach) if isinstance(each, Chunk) else each for each in results]


def _refuse_end(run: Pass, values: Sequence[Any]) -> None:
    """Refuse a loop that uses final values or the length, such as `fori_loop` over all frames."""
    if known_at_end(values):
        run.refuse(
            "it uses a value that is known only when the stream has ended, such as the length",
            "write a loop over frames as jax.lax.scan, which passes one frame to each iteration",
        )


@RULES.add("cond")
def cond(run: Pass, equation: JaxprEqn, index: Any, *operands: Any) -> list[Any]:
    """Stream a choice that is the same in each step, such as a choice by platform; each branch has separate state."""
    if known_at_end([index]):
        run.refuse("its condition is not known before the stream begins", "write jnp.where(condition, a, b)")
    run.refuse_final_values(operands)
    branches, platforms = equation.params["branches"], platforms_of(equation)
    # A choice by platform is not part of the model, so the label must not change the names of other entries.
    prefix = run.unique(f"{run.prefix}{run.here or 'cond'}{'.platform' if platforms else ''}") + "/"
    inputs = [Template.of(value) for value in operands]

    def trial(place: int, delays: list[Any] | None, state: Any) -> Any:
        def branch(arrays: Any) -> Any:
            child = dataclasses.replace(run, state=state, prefix=f"{prefix}{place}/")
            outs = _inside(child, branches[place], with_arrays(inputs, arrays))
            if delays is not None:
                outs = [_late(child, out, delay) for out, delay in zip(outs, delays, strict=True)]
            return outs, child

        return branch

    arrays = [jnp.asarray(array_of(value)) for value in operands]
    kinds = [
        templates_of(lambda arrays, place=place: trial(place, None, None)(arrays)[0], arrays)
        for place in range(len(branches))
    ]
    delays = [_common(run, choices) for choices in zip(*kinds, strict=True)]
    before = run.state
    if before is None:
        before = {}
        for place in range(len(branches)):
            _, child = trial(place, delays, None)(arrays)
            before.update(child.begun)
        run.begun.update(before)
    own = {name: value for name, value in before.items() if name.startswith(prefix)}
    results: list[Template] = []

    def choice(place: int) -> Any:
        def branch(arrays: Any, state: Any) -> Any:
            outs, child = trial(place, delays, state)(arrays)
            results[:] = map(Template.of, outs)
            return arrays_of(outs), {**state, **child.new}

        return branch

    choices = [choice(place) for place in range(len(branches))]
    if platforms:
        chosen, kept = choose(platforms, choices, arrays, own)
    else:
        chosen, kept = varying.switch(jnp.asarray(index), choices, arrays, own)
    run.new.update(kept)
    return [rebuild(run, kind, array) for kind, array in zip(_reaching(results, kinds), chosen, strict=True)]


def _reaching(results: list[Template], kinds: list[list[Template]]) -> list[Template]:
    """Return the templates of a branch, with the union of the reaches of all branches."""
    merged = []
    for result, *choices in zip(results, *kinds, strict=True):
        if result.chunk is not None:
            reach = union(choice.chunk.reach for choice in choices if choice.chunk is not None)
            result = Template(dataclasses.replace(result.chunk, reach=reach))
        merged.append(result)
    return merged


def _common(run: Pass, choices: Any) -> int | None:
    """Return the delay of an output, which is the same in all branches; None if the output is not a stream."""
    if any(kind.final for kind in choices):
        run.refuse("a branch returns a value that is known only at the end", "compute it outside of the branch")
    if not all(kind.chunk is not None for kind in choices):
        return None
    return max((kind.delay for kind in choices if kind.delay is not None), default=None)


def _late(run: Pass, value: Any, delay: int | None) -> Any:
    """Delay a chunk, or return the value unchanged if the delay is None."""
    if not isinstance(value, Chunk) or delay is None:
        return value
    return run.delayed(value, delay)


@RULES.add(kind="call", takes=(Deferred, Late, Pairs))
@RULES.add(kind="checkpoint", takes=(Deferred, Late, Pairs))
def call(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Inline a call of an inner function."""
    inner = resized(equation) or called(equation)
    return interpret(run, inner, operands, late=True)


@RULES.add(kind="custom rule", takes=(Pairs,))
def custom_rule(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Stream a function with a custom derivative rule.

    If the function keeps no state, the derivative rule is also traced and stays attached. Otherwise the function is
    inlined, and JAX differentiates the streaming form.
    """
    body = equation.params["call_jaxpr"]
    if not any(isinstance(value, Chunk) for value in operands) or any(
        isinstance(value, FinalValue | Pairs | Awaiting) for value in operands
    ):
        return interpret(run, body, operands)
    # With equal delays, the inner function needs no buffers.
    operands = tuple(run.together(*operands))
    inputs = [Template.of(value) for value in operands]
    domain = OnePass(run, body, inputs)
    function = with_rule(equation, lambda *arrays: bind(equation, arrays), domain, inputs)
    try:
        results = function(*map(jnp.asarray, arrays_of(operands)))
    except KeepsStateError:
        return interpret(run, body, operands)
    return [rebuild(run, kind, result) for kind, result in zip(domain.outputs, results, strict=True)]


@RULES.add("onnx_operator", takes=(Pairs,))
def operator(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Stream an ONNX operator: a single equation for an operator on elements, rows or windows, otherwise inlined."""
    x, *others = operands
    if isinstance(x, Chunk) and not any(isinstance(value, Chunk | FinalValue) for value in others):
        along, rank = equation.params["along"], x.array.ndim
        rows = along == "rows" and x.axis < rank - 1 and len(out_shape(equation)) == rank
        if along == "elements" or rows:
            return list(run.frame_by_frame(equation, x, *others))
        if along == "windows" and (convolved := whole_convolution(run, equation, x, others)) is not None:
            return [convolved]
    structs = [jax.ShapeDtypeStruct(shape_of(atom), type_of(atom)) for atom in equation.invars]
    return interpret(run, trace(functools.partial(computed, **equation.params), *structs)[0], operands)


class OnePass(Domain):
    """The `Domain` of chunks in a pass; `arrays` are the arrays of the pass that rules read."""

    def __init__(self, run: Pass, body: Any, inputs: list[Template]):
        self.run, self.types = dataclasses.replace(run), Types.here()  # rules are traced when `run` is elsewhere
        self.body, self.inputs = body, inputs  # the function, and templates of the operands
        self.names = [
            name for name in ("count", "existing", "before", "laps") if isinstance(getattr(run.now, name), jax.Array)
        ]
        self.arrays = [getattr(run.now, name) for name in self.names]
        self.outputs: list[Template] = []  # templates of the results, after the first evaluation

    def check(self, arrays: list[Any], operands: Sequence[Any]) -> None:
        """Check the function on shapes, as in `Domain`; raise `KeepsStateError` if the function keeps state."""
        if not self.outputs:
            values = functools.partial(self.evaluate, arrays, self.body, self.inputs)
            jax.eval_shape(lambda *operands: arrays_of(values(operands)), *operands)

    @own_arithmetic()
    def evaluate(self, arrays: list[Any], jaxpr: Any, kinds: Sequence[Template], operands: Sequence[Any]) -> list[Any]:
        """Evaluate the function or a derivative rule on chunks, with the arrays of the pass.

        Raise `KeepsStateError` if the function keeps state, or if the results have different delays. Refuse a
        derivative rule that keeps state, or that needs a fact which the function does not need.
        """
        rule = jaxpr is not self.body
        now = dataclasses.replace(self.run.now, **dict(zip(self.names, arrays, strict=True)))
        local = rule or self.run.local
        child = dataclasses.replace(self.run, now=now, state=None, prefix="", local=local, stateless=True)
        try:
            results = interpret(child, jaxpr, with_arrays(kinds, operands))
        except (KeepsStateError, NewFactError):
            if not rule:
                raise
            self.run.refuse(
                "its derivative rule reads other frames, or positions in time",
                "leave out the rule, or differentiate `Streamed.offline`, which has no state",
            )
        delays = {template.delay for template in (*kinds, *self.kinds_of(results))} - {None}
        results = list(map(child.spread, results))
        if not self.outputs:
            if len(delays) > 1 or not all(isinstance(value, Chunk) for value in results):
                raise KeepsStateError
            self.outputs = self.kinds_of(results)
        return results

    def arrays_of(self, values: Sequence[Any]) -> list[Any]:
        """Return the arrays of values, as in `Domain`."""
        return arrays_of(values)

    def kinds_of(self, values: Sequence[Any]) -> list[Template]:
        """Return the templates of values, as in `Domain`."""
        return [Template.of(value) for value in values]


@dataclasses.dataclass(frozen=True)
class Template:
    """A value without the array. An array has the template ``Template()``."""

    chunk: Chunk | None = None
    final: bool = False

    @classmethod
    def of(cls, value: Any) -> Template:
        """Return the template of a value."""
        if isinstance(value, Chunk):
            return cls(dataclasses.replace(value, array=None))
        return cls(final=isinstance(value, FinalValue))

    def with_array(self, array: Any, axis: int = 0) -> Any:
        """Return a value with this template and an array; `axis` is added to the time axis."""
        if self.chunk is not None:
            return self.chunk.holding(array, self.chunk.axis + axis)
        return FinalValue(array) if self.final else array

    @property
    def delay(self) -> int | None:
        """The delay of a chunk with separate frames."""
        return None if self.chunk is None else self.chunk.delay

    @property
    def key(self) -> tuple[Any, ...]:
        """A tuple that is equal for templates that can replace each other."""
        if self.chunk is None:
            return (self.final,)
        timeline, reach = self.chunk.timeline, self.chunk.reach
        reads = None if reach is None else ComparableReach(reach, timeline)
        return (self.chunk.axis, self.chunk.delay, self.chunk.outer, str(timeline.size), reads)


def with_arrays(kinds: Sequence[Template], arrays: Sequence[Any]) -> list[Any]:
    """Return values with these templates and arrays."""
    return [kind.with_array(array) for kind, array in zip(kinds, arrays, strict=True)]


def array_of(value: Any) -> Any:
    """Return the array of a value, or raise the error of a deferred value."""
    if isinstance(value, Deferred):
        raise value.error
    return value.array if isinstance(value, (Chunk, FinalValue)) else value


def arrays_of(values: Sequence[Any]) -> list[Any]:
    """Return the arrays of values."""
    return [array_of(value) for value in values]


def templates_of(function: Callable[[Any], list[Any]], arrays: Any) -> list[Template]:
    """Return the templates of the results of a function of arrays, without computing the results."""
    templates: list[Template] = []

    def trial(arrays: Any) -> list[Any]:
        values = function(arrays)
        templates.extend(map(Template.of, values))
        return arrays_of(values)

    jax.eval_shape(trial, arrays)
    return templates


def slice_kind(value: Any) -> Template:
    """Return the template of a slice of a scanned value; without the first axis, the time axis decreases by 1."""
    kind = Template.of(value)
    return Template.of(kind.with_array(None, -1)) if kind.chunk is not None else kind


def rebuild(run: Pass, kind: Template, array: Any, further: int = 0) -> Any:
    """Create a value from a template and a result array; `further` is added to the time axis."""
    return array if kind.chunk is None else run.same(kind.chunk, array, kind.chunk.axis + further)
