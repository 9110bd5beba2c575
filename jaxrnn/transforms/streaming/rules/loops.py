"""Loops: over time, over another axis with time inside, and conditionals."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.transforms.equations import evaluate
from jaxrnn.transforms.streaming.access import scan_parts
from jaxrnn.transforms.streaming.dimensions import is_symbolic
from jaxrnn.transforms.streaming.interpreter import Pass
from jaxrnn.transforms.streaming.rules.elementwise import refuse_ended
from jaxrnn.transforms.streaming.rules.templates import Template, array_of, arrays_of
from jaxrnn.transforms.streaming.values import Chunk, Ended, Reach, union

#: A loop whose iterations differ in delay is written out up to so many of them.
LONGEST = 128


def scan(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """A scan, over time or over another axis."""
    if is_symbolic(equation.params["length"]):
        return _over_time(run, equation, operands)
    return _around_time(run, equation, operands)


def _over_time(run: Pass, equation: JaxprEqn, operands: Any) -> list[Any]:
    """A scan over time: its carry is state, which frames that do not exist leave alone."""
    if equation.params["reverse"]:
        run.refuse(
            "it runs backwards in time, from the last frame (the backward half of a bidirectional recurrence)",
            "use a model whose recurrence runs forwards only",
        )
    consts, carries = scan_parts(equation)
    fixed, start, xs = operands[:consts], operands[consts : consts + carries], operands[consts + carries :]
    refuse_ended(run, [*fixed, *start])
    if any(isinstance(value, Chunk) for value in (*fixed, *start)):
        run.refuse("every frame sees a value that is as long as time", "let a frame see its own part only")
    refuse_ended(run, xs)
    moving = [x for x in xs if isinstance(x, Chunk)]
    if any(x.outer != 1 for x in moving):
        run.refuse("it runs over time where another axis is merged in front of it", "split the axes first")
    timeline = run.clock.timeline(equation.params["length"])
    delay = max((x.delay for x in moving if x.delay is not None), default=timeline.certain)
    aligned = []
    for x in xs:
        x = run.delayed(run.spread(x, delay), delay)
        aligned.append(run.harmless(x).array)
    run.facts.sinks.append((timeline, delay))
    body = equation.params["jaxpr"]
    entries = [
        run.carry(f"carry{index}" if carries > 1 else "carry", functools.partial(jnp.array, value))
        for index, value in enumerate(start)
    ]
    before = [value for _, value in entries]
    exists = run.exists(timeline, delay)

    def step(carry: list[Any], frame: Any) -> tuple[list[Any], list[Any]]:
        here, given = frame
        results = evaluate(body, [*fixed, *carry, *given]) if hasattr(body, "consts") else []
        new, out = results[:carries], results[carries:]
        if here is not None:
            new = [jnp.where(here, after, earlier) for after, earlier in zip(new, carry, strict=True)]
        return new, out

    frames = run.frames_of(timeline)
    if exists is False:
        shapes = [atom.aval for atom in equation.outvars[carries:]]
        after = before
        outs = [jnp.zeros((frames, *shape.shape[1:]), shape.dtype) for shape in shapes]
    else:
        mask = None if exists is True else jnp.asarray(exists)
        if frames == 1:
            after, outs = step(before, (None if mask is None else mask[0], [x[0] for x in aligned]))
            outs = [out[None] for out in outs]
        else:
            after, outs = lax.scan(step, before, (mask, aligned), unroll=equation.params["unroll"])
    for (name, _), value in zip(entries, after, strict=True):
        run.keep(name, value)
    reach = union(*(x.reach for x in moving)) or Reach(None, timeline.rate * 0)
    chunks = [run.make(out, 0, timeline, delay, reach.unbounded) for out in outs]
    return [*map(Ended, after), *chunks]


def _around_time(run: Pass, equation: JaxprEqn, operands: Any) -> list[Any]:
    """A scan over another axis, with time inside: the body runs on chunks, with one state for each iteration."""
    refuse_ended(run, operands)
    body, length, reverse = (equation.params[key] for key in ("jaxpr", "length", "reverse"))
    consts, carries = scan_parts(equation)
    fixed, start, xs = operands[:consts], list(operands[consts : consts + carries]), operands[consts + carries :]
    prefix = run.unique(f"{run.prefix}{run.here or 'scan'}") + "/"
    slice_kinds = [_slice_kind(value) for value in xs]

    def inner(child: Pass, values: list[Any]) -> list[Any]:
        with child.inside():
            return child.interpret(getattr(body, "jaxpr", body), getattr(body, "consts", ()), values)

    def first_slices() -> list[Any]:
        return [lax.index_in_dim(jnp.asarray(array_of(value)), 0, 0, keepdims=False) for value in xs]

    def results_for(carry_kinds: list[Template]) -> list[Template]:
        found: list[Template] = []

        def trial(carry: list[Any]) -> list[Any]:
            slices = [kind.around(array) for kind, array in zip(slice_kinds, first_slices(), strict=True)]
            inside = [kind.around(array) for kind, array in zip(carry_kinds, carry, strict=True)]
            values = inner(run.child(prefix, None), [*fixed, *inside, *slices])
            found.extend(map(Template.of, values))
            return arrays_of(values)

        jax.eval_shape(trial, [array_of(value) for value in start])
        return found

    # Carries take on what the body makes of them; where that never settles, the iterations differ.
    results: list[Template] = []
    for _ in range(3):
        kinds = [Template.of(value) for value in start]
        results = results_for(kinds)
        if any(kind.ended for kind in results):
            run.refuse("a value that is known only at the end leaves its body", "take it out of the loop")
        if all(a.is_same_as == b.is_same_as for a, b in zip(kinds, results[:carries], strict=True)):
            break
        start = [_join(run, value, kind) for value, kind in zip(start, results[:carries], strict=True)]
    else:
        return _written_out(run, equation, inner, prefix, fixed, list(operands[consts : consts + carries]), xs)

    carry_kinds = [Template.of(value) for value in start]
    created = run.state is None
    names: list[str] = sorted(name for name in (run.state or {}) if name.startswith(prefix))

    def step(carry: list[Any], given: Any) -> tuple[list[Any], Any]:
        slices, held = given
        child = run.child(prefix, None if created else dict(zip(names, held, strict=True)))
        inside = [kind.around(array) for kind, array in zip(carry_kinds, carry, strict=True)]
        values = inner(
            child, [*fixed, *inside, *(kind.around(array) for kind, array in zip(slice_kinds, slices, strict=True))]
        )
        if created:
            names[:] = sorted(child.new)
        return arrays_of(values[:carries]), (arrays_of(values[carries:]), [child.new[name] for name in names])

    held = [] if created else [run.state[name] for name in names if run.state is not None]
    last, (outs, kept) = lax.scan(
        step,
        [jnp.asarray(array_of(value)) for value in start],
        ([jnp.asarray(array_of(value)) for value in xs], held),
        length=length,
        reverse=reverse,
    )
    run.new.update(zip(names, kept, strict=True))
    return [
        *(_made(run, kind, array) for kind, array in zip(carry_kinds, last, strict=True)),
        *(_made(run, kind, array, 1) for kind, array in zip(results[carries:], outs, strict=True)),
    ]


def _slice_kind(value: Any) -> Template:
    """What one slice of a scanned value is: time lies one axis further in front."""
    kind = Template.of(value)
    return Template.of(kind.around(None, -1)) if kind.chunk is not None else kind


def _made(run: Pass, kind: Template, array: Any, further: int = 0) -> Any:
    if kind.chunk is None:
        return array
    chunk = kind.chunk
    return run.make(array, chunk.axis + further, chunk.timeline, chunk.delay, chunk.reach)


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
            slices.append(_slice_kind(value).around(part))
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
        from jaxrnn.transforms.streaming.rules.elementwise import align

        arrays, like = align(run, parts)
        stacked.append(run.make(jnp.stack(arrays), like.axis + 1, like.timeline, like.delay, like.reach))
    return [*carry, *stacked]


def while_(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """A loop of unknown length: time may pass through it, if it keeps nothing from frame to frame."""
    refuse_ended(run, operands)
    params = equation.params
    heads, bodies = params["cond_nconsts"], params["body_nconsts"]
    test_consts, body_consts = operands[:heads], operands[heads : heads + bodies]
    start = [run.spread(value) if isinstance(value, Chunk) else value for value in operands[heads + bodies :]]
    delays = [value.delay for value in start if isinstance(value, Chunk) and value.delay is not None]
    start = [run.delayed(value, max(delays)) if isinstance(value, Chunk) else value for value in start]
    kinds = [Template.of(value) for value in start]

    def inner(part: Any, values: list[Any]) -> tuple[list[Any], Pass]:
        child = run.child("", None)
        return child.interpret(getattr(part, "jaxpr", part), getattr(part, "consts", ()), values), child

    def around(arrays: Any) -> list[Any]:
        return [kind.around(array) for kind, array in zip(kinds, arrays, strict=True)]

    def body(arrays: Any) -> list[Any]:
        values, child = inner(params["body_jaxpr"], [*body_consts, *around(arrays)])
        same = all(
            Template.of(value).is_same_as[:4] == kind.is_same_as[:4] for value, kind in zip(values, kinds, strict=True)
        )
        if child.new or not same:
            run.refuse(
                "it repeats a part that remembers past frames, and how often is not known while tracing",
                "use a loop of known length (lax.scan, or fori_loop with constant bounds)",
            )
        return arrays_of(values)

    def test(arrays: Any) -> Any:
        values, _ = inner(params["cond_jaxpr"], [*test_consts, *around(arrays)])
        return array_of(values[0])

    last = lax.while_loop(test, body, [jnp.asarray(array_of(value)) for value in start])
    return [_made(run, kind, array) for kind, array in zip(kinds, last, strict=True)]


def cond(run: Pass, equation: JaxprEqn, index: Any, *operands: Any) -> list[Any]:
    """A choice that is the same in every step; the branches keep state each for itself."""
    refuse_ended(run, [index, *operands])
    branches = equation.params["branches"]
    prefix = run.unique(f"{run.prefix}{run.here or 'cond'}") + "/"
    inputs = [Template.of(value) for value in operands]
    created = run.state is None

    def trial(place: int, delays: list[Any] | None, held: Any) -> Any:
        def branch(arrays: Any) -> Any:
            child = run.child(f"{prefix}{place}/", held)
            values = [kind.around(array) for kind, array in zip(inputs, arrays, strict=True)]
            part = branches[place]
            outs = child.interpret(getattr(part, "jaxpr", part), getattr(part, "consts", ()), values)
            if delays is not None:
                outs = [_late(child, out, delay) for out, delay in zip(outs, delays, strict=True)]
            return outs, child

        return branch

    arrays = [jnp.asarray(array_of(value)) for value in operands]
    kinds: list[list[Template]] = []
    for place in range(len(branches)):
        found: list[Template] = []

        def probe(given: Any, place: int = place, found: list[Template] = found) -> Any:
            outs, _ = trial(place, None, None)(given)
            found.extend(map(Template.of, outs))
            return arrays_of(outs)

        jax.eval_shape(probe, arrays)
        kinds.append(found)
    delays = [_common(run, choices) for choices in zip(*kinds, strict=True)]
    own = {name: value for name, value in (run.state or {}).items() if name.startswith(prefix)}
    results: list[Template] = []
    if created:
        for place in range(len(branches)):
            outs, child = trial(place, delays, None)(arrays)
            run.new.update(child.new)
        shown = _reaching([Template.of(out) for out in outs], kinds)
        return [_made(run, kind, array_of(out)) for kind, out in zip(shown, outs, strict=True)]

    def choice(place: int) -> Any:
        def branch(given: Any, held: Any) -> Any:
            outs, child = trial(place, delays, held)(given)
            results[:] = map(Template.of, outs)
            return arrays_of(outs), {**held, **child.new}

        return branch

    chosen, kept = lax.switch(jnp.asarray(index), [choice(place) for place in range(len(branches))], arrays, own)
    run.new.update(kept)
    return [_made(run, kind, array) for kind, array in zip(_reaching(results, kinds), chosen, strict=True)]


def _reaching(results: list[Template], kinds: list[list[Template]]) -> list[Template]:
    """Results of one branch, with the reach of all of them."""
    merged = []
    for result, *choices in zip(results, *kinds, strict=True):
        if result.chunk is not None:
            reach = union(*(choice.chunk.reach for choice in choices if choice.chunk is not None))
            result = Template(dataclasses.replace(result.chunk, reach=reach))
        merged.append(result)
    return merged


def _common(run: Pass, choices: Any) -> int | None:
    if any(kind.ended for kind in choices):
        run.refuse("a value that is known only at the end leaves one of its branches", "take it out of the branch")
    if not all(kind.chunk is not None for kind in choices):
        return None
    return max((kind.delay for kind in choices if kind.delay is not None), default=None)


def _late(run: Pass, value: Any, delay: int | None) -> Any:
    if not isinstance(value, Chunk) or delay is None:
        return value
    return run.delayed(run.spread(value, delay), delay)


RULES: dict[str, Any] = {"scan": scan, "while": while_, "cond": cond}
