"""Convolutions over time, transposed ones too."""

from __future__ import annotations

from typing import Any

from jax.extend.core import JaxprEqn

from jaxrnn.streaming.access import out_shape
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rules.elementwise import refuse_final_values
from jaxrnn.streaming.rules.overlap import convolved, overlap_add, overlaps
from jaxrnn.streaming.rules.windows import Window, framed
from jaxrnn.streaming.values import Chunk


def convolution(run: Pass, equation: JaxprEqn, x: Any, kernel: Any) -> Chunk | list[Chunk]:
    """Convolution over time, or over other axes with time among the batch."""
    refuse_final_values(run, [x, kernel])
    if isinstance(kernel, Chunk) or not isinstance(x, Chunk):
        run.refuse("its kernel changes with time", "use a kernel that does not depend on the streamed input")
    parameters = equation.params
    numbers = parameters["dimension_numbers"]
    if x.axis == numbers.lhs_spec[0] and parameters["batch_group_count"] == 1:
        x = run.on_time(x)
        return run.same(x, convolved(run, equation, x.array, kernel, {}), numbers.out_spec[0])
    if x.axis not in numbers.lhs_spec[2:]:
        run.refuse("time is its channel axis, so every output depends on all frames", "convolve along time instead")
    place = numbers.lhs_spec[2:].index(x.axis)
    axis = numbers.out_spec[2 + place]
    low, high = parameters["padding"][place]
    window = Window(
        length=kernel.shape[numbers.rhs_spec[2 + place]],
        stride=int(parameters["window_strides"][place]),
        dilation=int(parameters["rhs_dilation"][place]),
        spacing=int(parameters["lhs_dilation"][place]),
        low=low,
    )
    size = out_shape(equation)[axis]
    if x.late is None and overlaps(equation, x, window, place):  # a sum cannot take a late frame
        return overlap_add(run, equation, x, kernel, window, high, place)
    part = framed(run, x, window, high, 0, size, "history")
    layout = [d for d in range(x.array.ndim) if d != x.axis]
    layout.insert(part.axis, x.axis)
    order = [layout.index(d) for d in range(x.array.ndim)]
    array = convolved(run, equation, part.frames, kernel, {place: part.pads}, order)
    return run.make(array, axis, run.clock.timeline(size), part.delay, part.reach)


RULES: dict[str, Any] = {"conv_general_dilated": convolution}
