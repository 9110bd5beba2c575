"""A recurrence over time, a scan or a whole layer: its carry is the state of the stream."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from jaxrnn._jax import varying
from jaxrnn.cells import is_plain
from jaxrnn.jaxprs.equations import evaluate, shape_of, type_of
from jaxrnn.jaxprs.scanning import scan_recognised
from jaxrnn.streaming.access import scan_parts
from jaxrnn.streaming.associative import parts_of_carry, without_mark
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.reach import union
from jaxrnn.streaming.rules.elementwise import known_by, reach_everywhere, refuse_final_values
from jaxrnn.streaming.rules.prefixes import associative
from jaxrnn.streaming.timeline import Timeline
from jaxrnn.streaming.values import Chunk, FinalValue

#: ``(carry, mask, constants, frames) -> (carry, outputs)``: a recurrence over the frames of a chunk. The mask is
#: ``bool[frames]``, which of them exist, or None if all do; arrays of frames and outputs have time in front.
Sweep = Callable[[list[Any], Any, list[Any], list[Any]], tuple[Sequence[Any], Sequence[Any]]]


def scan_over_time(run: Pass, equation: JaxprEqn, operands: Any) -> list[Any]:
    """A scan over time: its carry is state, which frames that do not exist leave alone."""
    if equation.params["reverse"]:
        refuse_reverse(run)
    consts, carries = scan_parts(equation)
    fixed, start, xs = operands[:consts], operands[consts : consts + carries], operands[consts + carries :]
    body, parts = equation.params["jaxpr"], parts_of_carry(equation)

    def sweep(before: list[Any], mask: Any, constant: list[Any], frames: list[Any]) -> Any:
        def step(carry: list[Any], frame: Any) -> tuple[list[Any], list[Any]]:
            here, slices = frame
            results = evaluate(body, [*constant, *carry, *slices], without_mark)
            new, out = results[:carries], results[carries:]
            if here is not None:
                new = [jnp.where(here, after, earlier) for after, earlier in zip(new, carry, strict=True)]
            return new, out

        count = run.frames_of(timeline)
        if is_plain() and (found := scan_recognised(step, before, (mask, frames), loose=True)) is not None:
            return found
        if count == 1:
            after, outs = step(before, (None if mask is None else mask[0], [x[0] for x in frames]))
            return after, [out[None] for out in outs]
        if parts is not None:
            return associative(step, before, mask, frames, parts.outputs)
        return varying.scan(step, before, (mask, frames), length=count, unroll=equation.params["unroll"])

    timeline = run.clock.timeline(equation.params["length"])
    needed = range(carries) if parts is None else parts.needed
    results = equation.outvars
    return over_time(run, timeline, fixed, start, xs, sweep, results[:carries], results[carries:], needed)


def refuse_reverse(run: Pass) -> None:
    """Refuse what begins with the last frame."""
    run.refuse(
        "it runs backwards in time, from the last frame (the backward half of a bidirectional recurrence)",
        "use a recurrence that runs forwards only, after a convolution with some look-ahead if necessary",
    )


def over_time(
    run: Pass,
    timeline: Timeline,
    fixed: Sequence[Any],
    start: Sequence[Any],
    xs: Sequence[Any],
    sweep: Sweep,
    final: Sequence[Any],
    outputs: Sequence[Any],
    needed: Sequence[int],
) -> list[Any]:
    """A recurrence over time, whose carry is state.

    Args:
        run: the pass.
        timeline: of its frames.
        fixed: what each frame reads.
        start: the carry before the first frame.
        xs: what it goes over, with time in front.
        sweep: runs it over a chunk.
        final, outputs: its results, the last carry and what has time in front, as variables.
        needed: which parts of the carry later frames depend on.

    Returns:
        The last carry, and the outputs.
    """
    carries = len(start)
    if any(isinstance(value, Chunk) for value in (*fixed, *start)):
        run.refuse("every frame reads a value of the recording's length", "give each frame its own part")
    refuse_final_values(run, xs)
    moving = [x for x in xs if isinstance(x, Chunk)]
    if any(x.outer != 1 for x in moving):
        run.refuse("it runs over an axis that merges another axis with time", "split the axes first")
    delay = max((x.delay for x in moving if x.delay is not None), default=timeline.certain)
    delay = max(delay, known_by(run, [*fixed, *start], timeline))
    aligned = []
    for x in xs:
        x = run.delayed(run.spread(x, delay), delay)
        aligned.append(run.harmless(x).array)
    run.facts.sinks.append((timeline, delay))
    names: dict[str, int] = {}
    before = [run.unstreamed(value) for value in start]
    for index in needed:
        kind = f"carry{index}" if carries > 1 else "carry"
        name, value = run.carry(kind, functools.partial(_numbers, before[index]))
        names[name] = index
        before[index] = _begun(run, _like(before[index], value), start[index], timeline, delay)
    exists, constant = run.exists(timeline, delay), [run.unstreamed(value) for value in fixed]
    if exists is False:
        frames = run.frames_of(timeline)
        after, outs = before, [jnp.zeros((frames, *shape_of(y)[1:]), type_of(y)) for y in outputs]
    else:
        after, outs = sweep(before, None if exists is True else jnp.asarray(exists), constant, aligned)
    for name, index in names.items():
        run.store(name, _numbers(after[index], type_of(final[index])))
    reach = union([*(x.reach for x in moving), reach_everywhere([*fixed, *start], timeline)])
    reach = reach.unbounded if carries and reach is not None else reach
    chunks = [run.make(out, 0, timeline, delay, reach) for out in outs]
    return [*(FinalValue(value, reach=reach and reach.of_all) for value in after), *chunks]


def _is_key(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def _numbers(carry: Any, dtype: Any = None) -> Any:
    """A part of a carry as the state has it: keys of random numbers as their numbers."""
    carry = jnp.asarray(carry)
    return jax.random.key_data(carry) if _is_key(carry) else jnp.array(carry, dtype)


def _like(carry: Any, numbers: Any) -> Any:
    """A part of a carry from what the state has of it."""
    carry = jnp.asarray(carry)
    return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(carry)) if _is_key(carry) else numbers


def _begun(run: Pass, carry: Any, start: Any, timeline: Timeline, delay: int) -> Any:
    """The carry before a pass, which is the first value until frame 0: that may be known no earlier."""
    if not isinstance(start, FinalValue):
        return carry
    run.facts.wait_for(timeline, delay + 1)
    return jnp.where(run.start(timeline, delay) <= 0, start.array, carry)
