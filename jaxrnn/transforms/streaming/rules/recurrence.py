"""A recurrence over time: a scan whose carry is the state of the stream."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.transforms.equations import evaluate
from jaxrnn.transforms.streaming.access import avals, scan_parts
from jaxrnn.transforms.streaming.passes import Pass
from jaxrnn.transforms.streaming.rules.elementwise import refuse_ended
from jaxrnn.transforms.streaming.values import Chunk, Ended, Reach, union


def over_time(run: Pass, equation: JaxprEqn, operands: Any) -> list[Any]:
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
        results = evaluate(body, [*fixed, *carry, *given])
        new, out = results[:carries], results[carries:]
        if here is not None:
            new = [jnp.where(here, after, earlier) for after, earlier in zip(new, carry, strict=True)]
        return new, out

    frames = run.frames_of(timeline)
    if exists is False:
        shapes = avals(equation.outvars[carries:])
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
    reach = union(*(x.reach for x in moving)) or Reach(timeline.rate * 0, timeline.rate * 0)
    reach = reach.unbounded if carries else reach
    chunks = [run.make(out, 0, timeline, delay, reach) for out in outs]
    return [*map(Ended, after), *chunks]
