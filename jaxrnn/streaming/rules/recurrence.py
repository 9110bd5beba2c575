"""Rules for recurrences over time: scans, recurrent layers and associative scans. The carry is state.

Frames that do not exist leave the carry unchanged. Example: with a delay of 2 and a pulse of 4, the first step reads
frames -2 to 1. The mask is ``[False, False, True, True]``, and the carry after the step has seen frames 0 and 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn
from jax.extend.core.primitives import while_p

from jaxrnn._jax import varying
from jaxrnn._jax.versions import Scan
from jaxrnn.cells.forms import by_platform, is_plain
from jaxrnn.jaxprs.equations import evaluate, is_key, shape_of, type_of, walk
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.jaxprs.scanning import scan_recognised
from jaxrnn.signal.scans import parts_of_carry, without_mark
from jaxrnn.streaming.diagnostics import BOUNDED
from jaxrnn.streaming.dimensions import Timeline, in_shape, is_symbolic, reads_length
from jaxrnn.streaming.interpreter import RULES
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.reach import union
from jaxrnn.streaming.rules.elementwise import (
    align,
    earliest_delay,
    reach_everywhere,
    singular_operands,
)
from jaxrnn.streaming.values import Chunk, FinalValue

#: ``(carry, mask, constants, frames) -> (carry, outputs)``: a recurrence over the frames of a chunk. The mask is
#: ``bool[frames]``, True for frames that exist, or None if all exist. Time is the first axis of frames and outputs.
Sweep = Callable[[list[Any], Any, list[Any], list[Any]], tuple[Sequence[Any], Sequence[Any]]]


def scan_over_time(run: Pass, equation: JaxprEqn, operands: Any) -> list[Any]:
    """Stream a scan over time."""
    if equation.params["reverse"]:
        refuse_reverse(run)
    fixed, start, xs = Scan.of(equation).split(operands)
    carries = len(start)
    body, parts = equation.params["jaxpr"], parts_of_carry(equation)
    if reads_length(body.jaxpr) and not any(isinstance(value, Chunk) for value in fixed):
        raise run.unknown_yet()
    results = equation.outvars
    guarded = not is_plain() and _needs_frames(body.jaxpr)

    def sweep(before: list[Any], mask: Any, constant: list[Any], frames: list[Any]) -> Any:
        def step(carry: list[Any], frame: Any) -> tuple[list[Any], list[Any]]:
            here, slices = frame
            if guarded and here is not None:
                nothing = [jnp.zeros(shape_of(y)[1:], type_of(y)) for y in results[carries:]]
                return varying.cond(here, lambda: step(carry, (None, slices)), lambda: (carry, nothing))
            values = evaluate(body, [*constant, *carry, *slices], without_mark)
            new, out = values[:carries], values[carries:]
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
    return over_time(run, timeline, fixed, start, xs, sweep, results[:carries], results[carries:], needed)


def _needs_frames(jaxpr: Any) -> bool:
    """Return True if the body of a loop must not run on frames that do not exist.

    The derivative of an operation may be singular there, and an inner loop may never end.
    """
    return any(
        singular_operands(each) or each.primitive is while_p or entry_of(each).kind == "linear algebra"
        for each in walk(jaxpr)
    )


def refuse_reverse(run: Pass) -> None:
    """Refuse a recurrence that begins with the last frame."""
    run.refuse(
        "it runs backwards in time, from the last frame (the backward half of a bidirectional recurrence)",
        "use a recurrence that runs forwards only, after a convolution with some look-ahead if necessary",
        first=BOUNDED,
    )


def over_time(
    run: Pass,
    timeline: Timeline,
    fixed: Sequence[Any],  # values that each frame reads
    start: Sequence[Any],  # the carry before the first frame
    xs: Sequence[Any],  # operands with time as the first axis
    sweep: Sweep,
    final: Sequence[Any],  # variables of the last carry
    outputs: Sequence[Any],  # variables of the outputs with a time axis
    needed: Sequence[int],  # indices of the carries that later frames depend on; only these carries are state
) -> list[Any]:
    """Run a recurrence over the frames of a pass, with the carry as state; return the last carry and the outputs."""
    carries = len(start)
    if any(isinstance(value, Chunk) for value in start):
        run.refuse(
            "it carries the whole recording from frame to frame, such as an array that the loop writes into",
            "return the result of each frame, and stack these results after the loop",
        )
    if any(isinstance(value, Chunk) for value in fixed):
        run.refuse(
            "every frame reads the whole recording", "scan over the recording, so that each frame reads one part"
        )
    run.refuse_final_values(xs)
    moving = [x for x in xs if isinstance(x, Chunk)]
    if any(x.outer != 1 for x in moving):
        run.refuse("it runs over an axis that merges another axis with time", "split the axes first")
    delay = max((x.delay for x in moving if x.delay is not None), default=timeline.certain)
    delay = max(delay, earliest_delay(run, [*fixed, *start], timeline))
    frames = [run.harmless(run.delayed(x, delay)).array for x in xs]
    run.notes.complete(timeline, delay)
    names: dict[str, int] = {}
    before = [run.unstreamed(value) for value in start]
    for index in needed:
        kind = f"carry{index}" if carries > 1 else "carry"
        name, value = run.carry(kind, functools.partial(_numbers, before[index]))
        names[name] = index
        before[index] = _begun(run, _like(before[index], value), start[index], timeline, delay)
    exists, constant = run.exists(timeline, delay), [run.unstreamed(value) for value in fixed]
    if exists is False:
        count = run.frames_of(timeline)
        after, outs = before, [jnp.zeros((count, *shape_of(y)[1:]), type_of(y)) for y in outputs]
    else:
        after, outs = sweep(before, None if exists is True else jnp.asarray(exists), constant, frames)
    for name, index in names.items():
        run.store(name, _numbers(after[index], type_of(final[index])))
    reach = union([*(x.reach for x in moving), reach_everywhere([*fixed, *start], timeline)])
    reach = reach.unbounded if carries and reach is not None else reach
    chunks = [run.make(out, 0, timeline, delay, reach) for out in outs]
    return [*(FinalValue(value, reach=reach and reach.of_all) for value in after), *chunks]


def _numbers(carry: Any, dtype: Any = None) -> Any:
    """Return a carry in the form of the state: random keys become integers."""
    carry = jnp.asarray(carry)
    return jax.random.key_data(carry) if is_key(carry.dtype) else jnp.array(carry, dtype)


def _like(carry: Any, numbers: Any) -> Any:
    """Restore a carry from the state."""
    carry = jnp.asarray(carry)
    return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(carry)) if is_key(carry.dtype) else numbers


def _begun(run: Pass, carry: Any, start: Any, timeline: Timeline, delay: int) -> Any:
    """Return the carry before a pass: up to frame 0, the initial carry, which may be known only then."""
    if not isinstance(start, FinalValue):
        return carry
    run.notes.wait_for(timeline, delay + 1)
    return jnp.where(run.now.start(timeline, delay) <= 0, start.array, carry)


@RULES.add("recurrent_layer")
def layer(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Stream a whole recurrent layer of plain forms as a single equation."""
    structure = equation.params["structure"]
    x, initial, weights, exists = jax.tree.unflatten(structure, operands)
    if any(isinstance(value, Chunk) for value in jax.tree.leaves(weights)):
        run.refuse("its weights change with time", "use weights that do not depend on the streamed input")
    if isinstance(x, Chunk) and x.axis == 2:
        run.refuse("time is its feature axis, so every frame depends on all frames", "run it along time instead")
    length = in_shape(equation)[0]
    if not is_symbolic(length):
        run.refuse_final_values(operands)
        arrays, like = align(run, operands)
        y, *final = run.bind(equation, arrays)
        return [run.same(like, y, 2), *(run.same(like, array, 1) for array in final)]
    if equation.params["direction"] != "forward":
        refuse_reverse(run)

    def sweep(before: list[Any], mask: Any, constant: list[Any], frames: list[Any]) -> Any:
        here = None if mask is None else mask[:, None]
        if len(frames) > 1:
            here = frames[1] if here is None else frames[1] & here
        operands, structure = jax.tree.flatten((frames[0], tuple(before), tree.unflatten(constant), here))
        # No result reads outputs in frames that do not exist.
        fills = equation.params["fills"] and exists is not None
        y, *after = run.bind(equation, operands, structure=structure, fills=fills)
        return after, [y]

    constant, tree = jax.tree.flatten(weights)
    xs = [x] if exists is None else [x, exists]
    y, *final = equation.outvars
    timeline = run.clock.timeline(length)
    *after, outputs = over_time(run, timeline, constant, initial, xs, sweep, final, [y], range(len(final)))
    return [outputs, *after]


#: A step of a scan, ``(carry, (exists, frame)) -> (carry, outputs)``. The carry is a flag, True after the first frame,
#: and the prefix.
Step = Callable[[list[Any], tuple[Any, Sequence[Any]]], tuple[list[Any], Any]]


def associative(step: Step, carry: list[Any], mask: Any, frames: list[Any], outputs: Sequence[int]) -> Any:
    """Run an associative scan over the frames of a chunk, ``[frames, ...]``: in a loop on a CPU, in parallel elsewhere.

    On a CPU, a loop is faster: the loop combines each frame once, with a carry that stays in the cache. An exported
    graph of the loop also has the fewest nodes. `mask` is True for frames that exist, or None if all frames exist.
    `outputs` is, for each output of the step, the index of the equal carry.
    """

    def in_turn(carry: list[Any], mask: Any, frames: list[Any]) -> Any:
        return varying.scan(step, carry, (mask, frames))

    def in_parallel(carry: list[Any], mask: Any, frames: list[Any]) -> Any:
        carries = carries_of(step, carry, mask, frames)
        return [values[-1] for values in carries], [carries[part] for part in outputs]

    if is_plain():
        return in_turn(carry, mask, frames)
    return by_platform(in_turn, in_parallel, carry, mask, frames)


def carries_of(step: Step, carry: list[Any], mask: Any, frames: list[Any]) -> list[Any]:
    """Return the carries after each frame of a chunk, ``[frames, ...]``, computed in parallel.

    The associative function is extended to pairs (exists, value): if only one value exists, this value is the result.
    The extended function is also associative, and frames that do not exist have no influence.
    """

    def combine(exists: Any, earlier: list[Any], later: list[Any]) -> list[Any]:
        return step([exists, *earlier], (None, later))[0][1:]

    def join(earlier: Any, later: Any) -> Any:
        (exists, first), (here, second) = earlier, later
        if here is None:
            return None, combine(jnp.array(True), first, second)
        both = combine(exists, first, second)
        return exists | here, [lax.select(here, *pair) for pair in zip(both, first, strict=True)]

    # Combine the carry with the first frame.
    (started, *prefix), _ = step(carry, (None if mask is None else mask[0], [x[0] for x in frames]))
    exists = None if mask is None else _beginning_with(started, mask)
    values = [_beginning_with(*pair) for pair in zip(prefix, frames, strict=True)]
    exists, values = lax.associative_scan(jax.vmap(join), (exists, values))
    return [jnp.ones(frames[0].shape[0], bool) if exists is None else exists, *values]


def _beginning_with(first: Any, frames: Any) -> Any:
    """Replace the first frame."""
    return jnp.concatenate([jnp.asarray(first)[None], frames[1:]])
