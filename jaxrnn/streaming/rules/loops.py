"""Loops over another axis than time, with time inside."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn import varying
from jaxrnn.streaming.access import scan_parts
from jaxrnn.streaming.dimensions import is_symbolic
from jaxrnn.streaming.interpreter import interpret
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rules.elementwise import align, refuse_final_values
from jaxrnn.streaming.rules.recurrence import over_time
from jaxrnn.streaming.rules.templates import Template, around, array_of, arrays_of, made, slice_kind, templates_of
from jaxrnn.streaming.values import Chunk, union

#: A loop whose iterations differ in delay is written out up to so many of them.
LONGEST = 128


def scan(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """A scan, over time or over another axis."""
    if is_symbolic(equation.params["length"]):
        return over_time(run, equation, operands)
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

    def results_for(carry_kinds: list[Template]) -> list[Template]:
        def trial(carry: list[Any]) -> list[Any]:
            slices = [lax.index_in_dim(jnp.asarray(array_of(value)), 0, 0, keepdims=False) for value in xs]
            values = [*fixed, *around(carry_kinds, carry), *around(slice_kinds, slices)]
            return inner(run.child(prefix, None), values)

        return templates_of(trial, arrays_of(start))

    # Carries take on what the body makes of them; where that never settles, the iterations differ.
    results: list[Template] = []
    for _ in range(3):
        kinds = [Template.of(value) for value in start]
        results = results_for(kinds)
        if any(kind.final for kind in results):
            run.refuse("a value that is known only at the end leaves its body", "take it out of the loop")
        if all(a.is_same_as == b.is_same_as for a, b in zip(kinds, results[:carries], strict=True)):
            break
        start = [_join(run, value, kind) for value, kind in zip(start, results[:carries], strict=True)]
    else:
        return _written_out(run, equation, inner, prefix, fixed, list(operands[consts : consts + carries]), xs)

    carry_kinds = [Template.of(value) for value in start]
    created = run.state is None
    names: list[str] = sorted(name for name in (run.state or {}) if name.startswith(prefix))

    def step(carry: list[Any], xs: Any) -> tuple[list[Any], Any]:
        slices, states = xs
        child = run.child(prefix, None if created else dict(zip(names, states, strict=True)))
        values = inner(child, [*fixed, *around(carry_kinds, carry), *around(slice_kinds, slices)])
        if created:
            names[:] = sorted(child.new)
        return arrays_of(values[:carries]), (arrays_of(values[carries:]), [child.new[name] for name in names])

    states = [] if created else [run.state[name] for name in names if run.state is not None]
    last, (outs, kept) = varying.scan(
        step,
        [jnp.asarray(array_of(value)) for value in start],
        ([jnp.asarray(array_of(value)) for value in xs], states),
        length=length,
        reverse=reverse,
    )
    run.new.update(zip(names, kept, strict=True))
    return [
        *(made(run, kind, array) for kind, array in zip(carry_kinds, last, strict=True)),
        *(made(run, kind, array, 1) for kind, array in zip(results[carries:], outs, strict=True)),
    ]


def _join(run: Pass, value: Any, kind: Template) -> Any:
    """A carry that can also hold what the body makes of it."""
    if kind.chunk is None:
        return value
    if not isinstance(value, Chunk):
        run.refuse("a carry becomes a stream only inside the loop", "begin with a stream of that shape")
    if kind.delay is None:
        return Chunk(value.array, value.axis, value.timeline, value.delay, union(value.reach, kind.chunk.reach))
    spread = run.spread(value, kind.delay)
    assert spread.delay is not None
    late = run.delayed(spread, max(kind.delay, spread.delay))
    return Chunk(late.array, late.axis, late.timeline, late.delay, union(late.reach, kind.chunk.reach))


def _written_out(
    run: Pass, equation: JaxprEqn, inner: Any, prefix: str, fixed: Any, carry: list[Any], xs: Any
) -> list[Any]:
    """The iterations one by one, each with delays of its own."""
    length, reverse = equation.params["length"], equation.params["reverse"]
    if length > LONGEST:
        run.refuse(
            f"each of its {length} iterations adds to the delay, and only {LONGEST} can be written out",
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
