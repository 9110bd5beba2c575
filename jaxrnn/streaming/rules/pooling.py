"""Pooling over time."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from jaxrnn.streaming.access import out_shape
from jaxrnn.streaming.dimensions import is_symbolic
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rules.elementwise import refuse_final_values
from jaxrnn.streaming.rules.windows import Window, framed
from jaxrnn.streaming.totals import identity_of
from jaxrnn.streaming.values import Chunk


def pooling(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Chunk]:
    """Pooling: a sum, a maximum, a minimum, or any function over windows."""
    refuse_final_values(run, operands)
    count = len(equation.outvars)
    parameters, chunks, starts = equation.params, operands[:count], operands[count:]
    x = next(value for value in chunks if isinstance(value, Chunk))
    if count > 1 or any(isinstance(value, Chunk) for value in starts):
        run.refuse("it pools several operands, or starts from a value that changes with time", "pool one operand")
    axis = x.axis
    low, high = parameters["padding"][axis]
    ones = (1,) * x.array.ndim
    window = Window(
        length=int(parameters["window_dimensions"][axis]),
        stride=int(parameters["window_strides"][axis]),
        dilation=int((parameters.get("window_dilation") or ones)[axis]),
        spacing=int((parameters.get("base_dilation") or ones)[axis]),
        low=low,
    )
    size = out_shape(equation)[axis]
    kind = equation.primitive.name.removeprefix("reduce_window_")
    value = starts[0] if starts else identity_of(kind, x.array.dtype)
    if (window.length, window.stride, window.spacing, low) == (1, 1, 1, 0) and not is_symbolic(high) and high == 0:
        return run.frame_by_frame(equation, run.on_time(x), *starts)
    part = framed(run, x, window, high, value, size, "history")
    padding = tuple(
        part.pads if index == axis else (int(entry[0]), int(entry[1]))
        for index, entry in enumerate(parameters["padding"])
    )
    (array,) = run.bind(equation, [jnp.moveaxis(part.frames, part.axis, axis), *starts], padding=padding)
    return [run.make(array, axis, run.clock.timeline(size), part.delay, part.reach)]


RULES = dict.fromkeys(("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"), pooling)
