"""Whole recurrent layers, as plain forms have them: over time, or over another axis with time among the batch."""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import JaxprEqn

from jaxrnn.streaming.access import in_shape
from jaxrnn.streaming.dimensions import is_symbolic
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rules.elementwise import align, refuse_final_values
from jaxrnn.streaming.rules.recurrence import over_time, refuse_reverse
from jaxrnn.streaming.values import Chunk


def layer(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """A layer; it stays one equation."""
    structure = equation.params["structure"]
    x, initial, weights, exists = jax.tree.unflatten(structure, operands)
    if any(isinstance(value, Chunk) for value in jax.tree.leaves(weights)):
        run.refuse("its weights change with time", "use weights that do not depend on the streamed input")
    if isinstance(x, Chunk) and x.axis == 2:
        run.refuse("time is its feature axis, so every frame depends on all frames", "run it along time instead")
    length = in_shape(equation)[0]
    if not is_symbolic(length):
        refuse_final_values(run, operands)
        arrays, like = align(run, operands)
        y, *final = run.bind(equation, arrays)
        make = lambda array, axis: run.make(array, axis, like.timeline, like.delay, like.reach)  # noqa: E731
        return [make(y, 2), *(make(array, 1) for array in final)]
    if equation.params["direction"] != "forward":
        refuse_reverse(run)

    def sweep(before: list[Any], mask: Any, constant: list[Any], frames: list[Any]) -> Any:
        here = None if mask is None else mask[:, None]
        if len(frames) > 1:
            here = frames[1] if here is None else frames[1] & here
        operands, structure = jax.tree.flatten((frames[0], tuple(before), tree.unflatten(constant), here))
        # Nobody reads outputs in frames that the stream does not have.
        fills = equation.params["fills"] and exists is not None
        y, *after = run.bind(equation, operands, structure=structure, fills=fills)
        return after, [y]

    constant, tree = jax.tree.flatten(weights)
    xs = [x] if exists is None else [x, exists]
    y, *final = equation.outvars
    timeline = run.clock.timeline(length)
    *after, outputs = over_time(run, timeline, constant, initial, xs, sweep, final, [y], range(len(final)))
    return [outputs, *after]


RULES: dict[str, Any] = {"recurrent_layer": layer}
