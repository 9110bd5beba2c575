"""Windows over time: convolutions, transposed ones too, and pooling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.transforms.streaming.dimensions import is_symbolic
from jaxrnn.transforms.streaming.interpreter import Pass
from jaxrnn.transforms.streaming.rules.elementwise import refuse_ended
from jaxrnn.transforms.streaming.rules.time import check_pads
from jaxrnn.transforms.streaming.values import Chunk, union


@dataclass(frozen=True)
class Window:
    """A window along time, in the terms of ``lax.conv_general_dilated``.

    The operand is spread by `spacing` and padded by `low` in front; output frame j sees `length` of its frames, from
    ``j * stride`` on, `dilation` apart.
    """

    length: int
    stride: int
    dilation: int
    spacing: int
    low: int

    @property
    def extent(self) -> int:
        """How far the window's last frame is from its first."""
        return (self.length - 1) * self.dilation


@dataclass(frozen=True)
class Framed:
    """The frames that a chunk of output needs, and how they are to be padded for a window without pads of its own."""

    array: Any
    pads: tuple[int, int]
    delay: int
    reach: Any


def framed(run: Pass, x: Chunk, window: Window, high: Any, value: Any, size: Any, kind: str) -> Framed:
    """The frames under the windows of a pass, past ones from a buffer.

    In the frames of the spread and padded operand (``m = i * spacing + low`` for frame i), a pass of q frames in gives
    ``q * spacing / stride`` frames out, the last of which must see nothing behind the last frame of the chunk.
    """
    check_pads(run, window.low, high)
    if x.outer != 1:
        run.refuse("its windows run over time where another axis is merged with it", "split the axes first")
    x = run.spread(x)
    assert x.delay is not None
    padded = window.low != 0 or high != 0 or window.spacing > 1
    if padded:
        x = run.fill(x, value)
    assert x.delay is not None
    spacing, low = window.spacing, int(window.low)
    delay = (x.delay * spacing - low + window.extent) // window.stride
    delay = max(delay, run.clock.timeline(size).certain)
    # All below in frames of the padded operand, from its frame n * q * spacing on, n being the pass.
    first = -delay * window.stride
    frames = run.frames_of(run.clock.timeline(size))
    behind = first + (frames - 1) * window.stride + window.extent + 1
    latest = (behind - 1 - low) // spacing
    earliest = min(-((low - first) // spacing), latest)
    history = -x.delay - earliest
    array = run.window(x, history, kind, jnp.asarray(value, x.array.dtype) if padded else None)
    surplus = x.frames - x.delay - 1 - latest
    if surplus:
        array = lax.slice_in_dim(array, 0, array.shape[x.axis] - surplus, axis=x.axis)
    pads = (earliest * spacing + low - first, behind - 1 - low - latest * spacing)
    rate = x.timeline.rate * spacing
    reach = x.reach and x.reach.shifted(-low / rate, (window.extent - low) / rate)
    return Framed(array, pads, delay, reach)


def convolution(run: Pass, equation: JaxprEqn, x: Any, kernel: Any) -> Chunk:
    """Convolution over time, or over other axes with time among the batch."""
    refuse_ended(run, [x, kernel])
    if isinstance(kernel, Chunk) or not isinstance(x, Chunk):
        run.refuse("its kernel changes with time", "use a kernel that does not depend on the streamed input")
        raise AssertionError
    parameters = equation.params
    numbers = parameters["dimension_numbers"]
    if x.axis == numbers.lhs_spec[0] and parameters["batch_group_count"] == 1:
        return run.make(*run.bind(equation, [x.array, kernel]), numbers.out_spec[0], x.timeline, x.delay, x.reach)
    if x.axis not in numbers.lhs_spec[2:]:
        run.refuse("time is its channel axis, so every output sees all of time", "convolve along time instead")
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
    size = equation.outvars[0].aval.shape[axis]
    part = framed(run, x, window, high, 0, size, "history")
    padding = tuple(
        part.pads if index == place else (int(entry[0]), int(entry[1]))
        for index, entry in enumerate(parameters["padding"])
    )
    (array,) = run.bind(equation, [part.array, kernel], padding=padding)
    return run.make(array, axis, run.clock.timeline(size), part.delay, part.reach)


def _identity(name: str, dtype: Any) -> Any:
    """What a pooling operation pads with."""
    if name == "reduce_window_sum":
        return 0
    limits = (-np.inf, np.inf) if jnp.issubdtype(dtype, np.inexact) else (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
    return limits[0 if name == "reduce_window_max" else 1]


def pooling(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Chunk]:
    """Pooling: a sum, a maximum, a minimum, or any function over windows."""
    refuse_ended(run, operands)
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
    size = equation.outvars[0].aval.shape[axis]
    value = starts[0] if starts else _identity(equation.primitive.name, x.array.dtype)
    if (window.length, window.stride, window.spacing, low) == (1, 1, 1, 0) and not is_symbolic(high) and high == 0:
        arrays = run.bind(equation, [x.array, *starts])
        return [run.make(array, axis, x.timeline, x.delay, x.reach) for array in arrays]
    part = framed(run, x, window, high, value, size, "history")
    padding = tuple(
        part.pads if index == axis else (int(entry[0]), int(entry[1]))
        for index, entry in enumerate(parameters["padding"])
    )
    (array,) = run.bind(equation, [part.array, *starts], padding=padding)
    return [run.make(array, axis, run.clock.timeline(size), part.delay, union(part.reach))]


RULES = {
    "conv_general_dilated": convolution,
    **dict.fromkeys(("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"), pooling),
}
