"""Loops over another axis than time, with time inside."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn._jax import varying
from jaxrnn.streaming.access import scan_parts
from jaxrnn.streaming.dimensions import is_symbolic
from jaxrnn.streaming.interpreter import interpret
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.reach import union
from jaxrnn.streaming.rules.elementwise import align, refuse_final_values
from jaxrnn.streaming.rules.recurrence import scan_over_time
from jaxrnn.streaming.rules.templates import Template, around, array_of, arrays_of, made, slice_kind
from jaxrnn.streaming.values import Chunk

#: A loop whose iterations differ in delay is written out up to so many of them.
LONGEST = 128


def scan(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """A scan, over time or over another axis."""
    if is_symbolic(equation.params["length"]):
        return scan_over_time(run, equation, operands)
    return _around_time(run, equation, operands)


def _around_time(run: Pass, equation: JaxprEqn, operands: Any) -> list[Any]:
    """A scan over another axis, with time inside: the body runs on chunks, with one state for each iteration."""
    refuse_final_values(run, operands)
    body, length, reverse = (equation.params[key] for key in ("jaxpr", "length", "reverse"))
    consts, carries = scan_parts(equation)
    fixed, start, xs = operands[:consts], list(operands[consts : consts + carries]), operands[consts + carries :]
    prefix = run.unique(f"{run.prefix}{run.here or 'scan'}") + "/"
    slice_kinds = [slice_kind(value) for value in xs]

    def inner(child: Pass, values: list[Any]) -> list[Any]:
        return interpret(child, body, values)

    states = {name: value for name, value in (run.state or {}).items() if name.startswith(prefix)}

    def attempt(carry_kinds: list[Template]) -> list[Any]:
        """The results of the loop for such carries."""
        results: list[Template] = []

        def step(carry: list[Any], xs: Any) -> tuple[list[Any], Any]:
            slices, state = xs
            child = run.child(prefix, None if run.state is None else state)
            values = inner(child, [*fixed, *around(carry_kinds, carry), *around(slice_kinds, slices)])
            results[:] = map(Template.of, values)
            if any(kind.final for kind in results):
                run.refuse("its body returns a value that is known only at the end", "compute it outside of the loop")
            if any(a.is_same_as != b.is_same_as for a, b in zip(carry_kinds, results[:carries], strict=True)):
                raise _UnsettledError(results[:carries])
            return arrays_of(values[:carries]), (arrays_of(values[carries:]), child.new, child.begun)

        frames = [jnp.asarray(array_of(value)) for value in xs], states
        carry = [jnp.asarray(array_of(value)) for value in start]
        last, (outs, new, begun) = varying.scan(step, carry, frames, length=length, reverse=reverse)
        run.new.update(new)
        run.begun.update(begun)
        return [
            *(made(run, kind, array) for kind, array in zip(carry_kinds, last, strict=True)),
            *(made(run, kind, array, 1) for kind, array in zip(results[carries:], outs, strict=True)),
        ]

    # Carries take on what the body makes of them; where that never settles, the iterations differ. What one pass has
    # found, the next one begins with.
    key = id(equation), prefix, *(Template.of(value).is_same_as for value in operands)
    become = run.facts.carries.setdefault(key, (equation, []))[1]
    for trip in range(3):
        try:
            if trip == len(become):
                return attempt([Template.of(value) for value in start])
        except _UnsettledError as unsettled:
            become.append(unsettled.kinds)
        start = [_join(run, value, kind) for value, kind in zip(start, become[trip], strict=True)]
    return _written_out(run, equation, inner, prefix, fixed, list(operands[consts : consts + carries]), xs)


class _UnsettledError(Exception):
    """Carries are other values after an iteration than before it, of these kinds."""

    def __init__(self, kinds: list[Template]):
        super().__init__()
        self.kinds = kinds


def _join(run: Pass, value: Any, kind: Template) -> Any:
    """A carry that can also hold what the body makes of it."""
    if kind.chunk is None:
        return value
    if not isinstance(value, Chunk):
        run.refuse("a carry gets a time axis only inside the loop", "start with an array that has this time axis")
    if kind.delay is None:
        return Chunk(value.array, value.axis, value.timeline, value.delay, union([value.reach, kind.chunk.reach]))
    spread = run.spread(value, kind.delay)
    assert spread.delay is not None
    late = run.delayed(spread, max(kind.delay, spread.delay))
    return Chunk(late.array, late.axis, late.timeline, late.delay, union([late.reach, kind.chunk.reach]))


def _written_out(
    run: Pass, equation: JaxprEqn, inner: Any, prefix: str, fixed: Any, carry: list[Any], xs: Any
) -> list[Any]:
    """The iterations one by one, each with delays of its own."""
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
            slices.append(slice_kind(value).around(part))
        child = run.child(f"{prefix}{index}/", run.state)
        values = inner(child, [*fixed, *carry, *slices])
        run.new.update(child.new)
        run.begun.update(child.begun)
        carry, out = values[: len(carry)], values[len(carry) :]
        outs.append(out)
    if reverse:
        outs.reverse()
    stacked = []
    for parts in zip(*outs, strict=True):
        if not any(isinstance(part, Chunk) for part in parts):
            stacked.append(jnp.stack(parts))
            continue
        arrays, like = align(run, parts)
        stacked.append(run.make(jnp.stack(arrays), like.axis + 1, like.timeline, like.delay, like.reach))
    return [*carry, *stacked]


RULES: dict[str, Any] = {"scan": scan}
